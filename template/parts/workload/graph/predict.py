"""Predict with a trained run: for a split of the prepared data, or for new days of the same kind of files."""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import replacing
from ..engine.runs import find_run
from .evaluate import open_run
from .prepare import long_enough, read_stocks

if TYPE_CHECKING:
    import numpy as np


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add = parser.add_argument
    add("--run", metavar="RUN", help="name or path of the run (default: the newest)")
    add("--split", choices=["train", "validation", "test"], default="test", help="(default: test)")
    add("--input", metavar="PATH", help="folder or CSV of prices, with a window of days before the new ones")
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add("--output", metavar="FILE", help=".npz or .csv (default: predictions.npz in the run folder)")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes a prediction for each day and stock."""
    folder = find_run(arguments.run)
    output = Path(arguments.output or folder / "predictions.npz")
    if output.suffix not in (".npz", ".csv"):
        raise UserError(f"cannot write a '{output.suffix}' file", f"--output {output}", "use .npz or .csv")
    if not output.parent.is_dir():
        raise UserError("there is no such folder", f"--output {output}", "make it first")
    project, step = open_run(folder, load(folder / "config.resolved.yaml"), arguments.checkpoint)
    if arguments.input:
        with tempfile.TemporaryDirectory() as temporary:
            loader = new_days(Path(arguments.input), project, Path(temporary))
            found = predict(project, loader)
    else:
        found = predict(project, project.loader(arguments.split))
    found["horizons"] = [horizon["days"] for horizon in project.store.facts["target"]["horizons"]]
    try:
        with replacing(output) as file:
            file.write((as_csv if output.suffix == ".csv" else as_npz)(found))
    except OSError as error:
        raise UserError(f"cannot write the file ({error.strerror})", f"--output {output}") from error
    print(f"{len(found['prediction']):,} predictions of step {step} written to {output}")


def new_days(path: Path, project: Any, folder: Path) -> Any:
    """A loader over all days of new files, by way of a store in `folder` with the facts of the training data.

    Stocks that training had not are predicted too: no weight belongs to a stock.
    """
    from ..dataset import Plan, Samples, panel, write
    from ..engine.loader import Loader
    from ..engine.store import Store

    facts = project.store.facts
    horizons = tuple(horizon["days"] for horizon in facts["target"]["horizons"])
    same = {name: facts[name] for name in Plan._fields if name not in ("target", "horizons")}
    plan = Plan(target=facts["target"]["kind"], horizons=horizons, **same)
    stocks, _ = long_enough(read_stocks(path)[0], plan.window)
    if not stocks:
        remedy = "the new days need the ones before them"
        raise UserError(f"no stock has {plan.window} days with prices", str(path), remedy)
    found = panel(stocks, plan)
    write(folder, found, {**facts, "tickers": list(stocks)}, {"input": [0, len(found.dates)]})
    store = Store.open(folder)
    samples = Samples(store, project.settings, "input")
    return Loader(samples, store, project.settings, project.device, train=False)


def predict(project: Any, loader: Any) -> dict[str, Any]:
    """`prediction` and `target` (n, P), `date` and `ticker` (n,) of each stock on each day of the loader."""
    import numpy as np
    import torch
    from tqdm import tqdm

    samples, parts = loader.samples, defaultdict(list)
    with torch.no_grad():
        for batch in tqdm(loader.epoch(0), "predicting", len(loader), leave=False, disable=None):
            with project.precision.autocast():
                found = project.model.predict(batch)
            found |= {name: batch[name] for name in ("index", "target", "listed")}
            for name, value in found.items():
                parts[name].append(value.to("cpu", copy=True))  # the loader reuses the batch's memory
    loader.close()
    values: dict[str, np.ndarray] = {name: torch.cat(tensors).numpy() for name, tensors in parts.items()}
    listed = values.pop("listed")
    day, seat = np.nonzero(listed)
    index = values.pop("index")[day]
    first = samples.first
    tickers = np.array(samples.facts["tickers"])
    return {
        "date": samples.store.arrays["dates"].rows()[first + index].astype("datetime64[D]"),
        "ticker": tickers[samples.stocks[samples.seats[index, seat]]],
        **{name: value[listed] for name, value in values.items()},
    }


def as_npz(found: dict[str, Any]) -> bytes:
    """Arrays `date` and `ticker` (n,), `prediction` and `target` (n, P), `horizons` (P,)."""
    import numpy as np

    file = io.BytesIO()
    np.savez(file, **{**found, "date": found["date"].astype("U10")})
    return file.getvalue()


def as_csv(found: dict[str, Any]) -> bytes:
    """The same as lines; a target that is not known yet is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kinds = [(name, place) for place in range(len(found["horizons"])) for name in ("prediction", "target")]
    writer.writerow(["date", "ticker", *(f"{name} {found['horizons'][place]}" for name, place in kinds)])
    columns = [found[name][:, place] for name, place in kinds]
    for date, ticker, *row in zip(found["date"].astype(str), found["ticker"], *columns, strict=True):
        writer.writerow([date, ticker, *("" if value != value else f"{value:.7g}" for value in row)])
    return text.getvalue().encode()
