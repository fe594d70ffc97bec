"""Predict with a trained run: for a split of the prepared dataset, or for new files of prices."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import replacing
from ..prepare.stocks import add_prices, long_enough, read_edges, read_stocks
from ..trained import add_flags, collected, open_run, output_path, prediction_loader

if TYPE_CHECKING:
    from ..dataset import Plan
    from ..engine.loading.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    output = ".npz or .csv (default: predictions.npz in the run's folder)"
    add_flags(parser, output=output)
    title = "new prices, after 150 earlier days (`--correlation-days` plus `--refresh`)"
    add_prices(parser, title, required=False)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` (n, P), `date` and `ticker` (n,), and `horizons` (P,)."""
    import numpy as np

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".npz", ".csv")
    with prediction_loader(arguments, project, write_new) as loader:
        predicted = predict(project, loader)

    horizons = project.store.facts["target"]["horizons"]
    predicted["horizons"] = [horizon["days"] for horizon in horizons]
    with replacing(output) as file:
        if output.suffix == ".csv":
            file.write(as_csv(predicted))
        else:
            np.savez(file, allow_pickle=False, **predicted)
    print(f"{len(predicted['prediction']):,} predictions of step {step} written to {output}")


def write_new(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write new files as a dataset into `folder`, with the metadata of the training data.

    Stocks may be new, because no weight belongs to a stock.
    """
    from ..dataset import panel
    from ..engine.loading.store import StoreWriter
    from ..settings import WORKLOAD

    plan = plan_of_training(trained.facts)
    with StoreWriter(folder, WORKLOAD) as writer:
        named, _, _ = read_stocks(path, flags, trained.source)
        stocks = long_enough(named, plan.window, path)
        if len(stocks) < len(named):
            num_short = len(named) - len(stocks)
            print(f"note: stocks left out: fewer than {plan.window} days: {num_short:,}")
        if "edges" in trained.facts and not flags["edges"]:
            remedy = "give the edges between the stocks of --input"
            raise UserError("the run was trained with own edges", "--edges", remedy)
        edges = read_edges(flags, stocks, [*named, *trained.facts["tickers"]])
        arrays = panel(writer, stocks, plan, edges)
        writer.facts = {**trained.facts, "tickers": list(stocks)}
        writer.splits = {"input": [0, len(arrays["dates"])]}


def plan_of_training(facts: dict[str, Any]) -> Plan:
    """Restore the plan with which `prepare` wrote the training data."""
    from ..dataset import Plan

    same = {name: facts[name] for name in Plan._fields if name not in ("target", "horizons")}
    target = facts["target"]
    horizons = tuple(horizon["days"] for horizon in target["horizons"])
    return Plan(target=target["kind"], horizons=horizons, **same)


def predict(project: Any, loader: Any) -> dict[str, Any]:
    """Return `prediction` (n, P), `date` and `ticker` (n,).

    There is a row for each stock on each day of the loader.
    """
    import numpy as np

    samples = loader.samples
    values = collected(project, loader, "listed")
    listed = values.pop("listed")
    day, seat = np.nonzero(listed)
    sample = values.pop("index")[day]
    dates = samples.store.arrays["dates"].rows()[samples.first + sample]
    stock = samples.stocks[samples.seats[sample, seat]]
    return {
        "date": dates.astype("datetime64[D]").astype("U10"),
        "ticker": np.array(samples.facts["tickers"])[stock],
        "prediction": values["prediction"][listed],
    }


def as_csv(predicted: dict[str, Any]) -> bytes:
    """Return the content of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["date", "ticker", *(f"prediction {days}" for days in predicted["horizons"])])
    predictions = predicted["prediction"].T
    writer.writerows(zip(predicted["date"], predicted["ticker"], *predictions, strict=True))
    return text.getvalue().encode()
