"""Predict with a trained run: for a split of the prepared data, or for new days of the same kind of files."""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import find_run
from ..splits import add_input
from .evaluate import add_flags, collected, new_loader, open_run, output_path, predictions, write_output
from .prepare import long_enough, read_stocks

if TYPE_CHECKING:
    from ..engine.loader import Loader
    from ..engine.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add_flags(parser, ".npz or .csv", "predictions.npz")
    add_input(parser, "prices, with a window of days before the new ones", required=False)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes `prediction` and `target` (n, P), `date` and `ticker` (n,), and the `horizons` (P,)."""
    folder = find_run(arguments.run)
    output = output_path(arguments.output, folder / "predictions.npz", ".npz", ".csv")
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not arguments.input)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            new_days(Path(arguments.input), vars(arguments), project.store, Path(temporary))
            loader = new_loader(project, Path(temporary))
        else:
            loader = project.loader(arguments.split)
        found = predict(project, loader)
    found["horizons"] = [horizon["days"] for horizon in project.store.facts["target"]["horizons"]]
    write_output(output, as_csv(found) if output.suffix == ".csv" else found)
    print(f"{len(found['prediction']):,} predictions of step {step} written to {output}")


def new_days(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Writes all days of new files as a store into `folder`, with the facts of the training data.

    Stocks that training had not are predicted too: no weight belongs to a stock.
    """
    from ..dataset import Plan, panel
    from ..engine.store import StoreWriter
    from ..settings import WORKLOAD

    facts = trained.facts
    horizons = tuple(horizon["days"] for horizon in facts["target"]["horizons"])
    same = {name: facts[name] for name in Plan._fields if name not in ("target", "horizons")}
    plan = Plan(target=facts["target"]["kind"], horizons=horizons, **same)
    with StoreWriter(folder, WORKLOAD) as writer:
        stocks, _ = long_enough(read_stocks(writer, path, flags, trained.source)[0], plan.window)
        if not stocks:
            remedy = "the new days need the ones before them"
            raise UserError(f"no stock has {plan.window} days with prices", str(path), remedy)
        found = panel(writer, stocks, plan)
        writer.facts = {**facts, "tickers": list(stocks)}
        writer.splits = {"input": [0, len(found.dates)]}


def predict(project: Any, loader: Loader) -> dict[str, Any]:
    """`prediction` and `target` (n, P), `date` and `ticker` (n,) of each stock on each day of the loader."""
    import numpy as np

    samples: Any = loader.samples
    values = collected(predictions(project, loader), "target", "listed")
    listed = values.pop("listed")
    day, seat = np.nonzero(listed)
    index = values.pop("index")[day]
    dates = samples.store.arrays["dates"].rows()[samples.first + index].astype("datetime64[D]")
    return {
        "date": dates.astype("U10"),
        "ticker": np.array(samples.facts["tickers"])[samples.stocks[samples.seats[index, seat]]],
        **{name: value[listed] for name, value in values.items()},
    }


def as_csv(found: dict[str, Any]) -> bytes:
    """Lines; a target that is not known yet is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kinds = [(name, place) for place in range(len(found["horizons"])) for name in ("prediction", "target")]
    writer.writerow(["date", "ticker", *(f"{name} {found['horizons'][place]}" for name, place in kinds)])
    columns = [found[name][:, place] for name, place in kinds]
    for date, ticker, *row in zip(found["date"], found["ticker"], *columns, strict=True):
        writer.writerow([date, ticker, *("" if value != value else f"{value:.7g}" for value in row)])
    return text.getvalue().encode()
