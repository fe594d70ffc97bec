"""The last batch of an epoch: as a whole step, dropped while training, or scaled by its size.

Three workloads, each with two sizes of training set: the last batch has one sample, or half of the
others'. Epochs are short, so that it comes often. Every seed trains in all three ways for equally
many epochs with the settings of the project, and the validation loss at the end counts; differences
are taken seed by seed.

    python benchmarks/last_batch.py --series ETTh2.csv.gz [--only llm] [--seeds 8] [--write]
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import numpy as np  # noqa: E402
from importing import imported  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from running import newest_run, rows, run, undrawn  # noqa: E402


class Case(NamedTuple):
    """One workload: what it trains on, how long, and on how much of it."""

    data: str
    prepare: str  # flags; empty: the synthetic data
    batch: int
    batches: int  # full ones of an epoch
    epochs: int
    flags: str = ""


CASES = {
    "tabular": Case("diabetes of scikit-learn", "--target target --task regression", 32, 8, 40),
    "timeseries": Case(
        "ETTh2, 96 to 24", "--history 96 --horizon 24", 64, 12, 12, "--model.width 32"
    ),
    "llm": Case(
        data="synthetic text",
        prepare="",
        batch=8,
        batches=24,
        epochs=12,
        flags="--data.block_size 64 --data.sample_mb 0.5 --model.layers 2 --model.width 64",
    ),
}


def orders() -> Any:
    return importlib.import_module("my_training.engine.loading.order").Order


def replace(kind: type, name: str, method: Callable[..., Any]) -> None:
    """Gives a class another method of that name, which it must have."""
    assert hasattr(kind, name), f"{kind.__name__} has no {name}"
    setattr(kind, name, method)


def whole() -> None:
    undrawn()
    replace(orders(), "step_fraction", lambda *_: 1.0)


def dropped() -> None:
    """Never all of it: a training set that fills no batch is one."""
    undrawn()
    length = orders().__len__

    def steps(order: Any) -> int:
        if not order.train:
            return length(order)
        return max(order.count // order.batch_size_all_ranks, 1)

    replace(orders(), "__len__", steps)


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    for workload, case in CASES.items():
        flags = case.flags.replace("sample_mb 0.5", "sample_mb 0.05")
        CASES[workload] = case._replace(batches=2, epochs=1, flags=flags)


WAYS: dict[str, Callable[[], None]] = {
    "a whole step": whole,
    "dropped": dropped,
    "scaled by its size": undrawn,
}


def made_up_series(folder: Path) -> Path:
    """What a rehearsal takes instead of somebody's file."""
    hours = np.datetime64("2024-01-01T00") + np.arange(1500)
    values = np.random.default_rng(0).normal(size=(len(hours), 2)).round(4)
    lines = (f"{hour},{a},{b}\n" for hour, (a, b) in zip(hours, values, strict=True))
    path = folder / "series.csv"
    path.write_text("".join(["date,a,b\n", *lines]))
    return path


def prepare(workload: str, series: Path | None, folder: Path) -> int:
    """Makes the data in `folder`; returns how many training samples there are."""
    case = CASES[workload]
    project = render(workload=workload)
    folder.mkdir()
    source = series.resolve() if series else made_up_series(folder)
    if workload == "tabular":
        from sklearn.datasets import load_diabetes

        source = folder.resolve() / "diabetes.csv"
        table = load_diabetes()
        rows_of = np.column_stack([table.data, table.target])
        names = ",".join([*table.feature_names, "target"])
        np.savetxt(source, rows_of, delimiter=",", header=names, comments="")
    made = ["prepare", f"--input={source}", *case.prepare.split()]
    words = made if case.prepare else ["train", "--max-steps", "1", *case.flags.split()]
    done = run(project, *words, cwd=folder)
    assert done.code == 0, done.err
    return count(project, case.flags, folder / ("data" if case.prepare else "data/synthetic"))


def count(project: Path, flags: str, data: Path) -> int:
    """How many training samples the project makes of prepared data."""
    words = [word.removeprefix("--") for word in flags.split()]
    overrides = [("data.path", str(data)), *zip(words[::2], words[1::2], strict=True)]
    settings = imported(project, "settings").Settings.load(overrides=overrides)
    store = imported(project, "assemble").open_store(settings)
    return len(imported(project, "dataset").Samples(store, settings, "train"))


def train(workload: str, way: str, fraction: float, seed: int, folder: Path) -> tuple[float, float]:
    """The validation loss at the end, and the largest gradient norm before clipping after the
    warm-up."""
    case = CASES[workload]
    flags = {
        "data.fraction": fraction,
        "data.batch_size": case.batch,
        "reproducibility.seed": seed,
        "training.epochs": case.epochs,
        "training.precision": "fp32",
        "evaluation.every_steps": 10**6,
        "evaluation.batch_size": 256,
        "checkpoint.every_steps": 10**6,
        "monitor.every_steps": 1,
    }
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    done = run(
        render(workload=workload),
        "train",
        *words,
        *case.flags.split(),
        cwd=folder,
        before=WAYS[way],
    )
    assert done.code == 0, done.err
    records = list(rows(folder))
    norms = [row["gradient_norm"] for row in records if "gradient_norm" in row]
    (loss,) = [row["loss"] for row in records if row.get("split") == "validation"]
    shutil.rmtree(newest_run(folder))
    return loss, max(norms[len(norms) // 10 :])


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; nan of a single value."""
    return statistics.stdev(values) if len(values) > 1 else float("nan")


def compare(
    workload: str, left_over: int, seeds: int, samples: int, folder: Path
) -> list[list[str]]:
    """A row for each way."""
    case = CASES[workload]
    scores: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    fraction = (case.batch * case.batches + left_over) / samples
    for seed in range(seeds):
        for way in WAYS:  # in turn, and seed by seed
            scores[way].append(train(workload, way, fraction, seed, folder))
            print(
                f"{workload}, {left_over} of {case.batch}, seed {seed}, {way}: {scores[way][-1]}",
                flush=True,
            )
    first = next(iter(WAYS))
    cells = []
    for way, outcomes in scores.items():
        losses, norms = zip(*outcomes, strict=True)
        changes = [
            loss - before for (loss, _), (before, _) in zip(outcomes, scores[first], strict=True)
        ]
        error = deviation(changes) / seeds**0.5
        change = "" if way == first else f"{statistics.mean(changes):+.4f} ± {error:.4f}"
        spread = f"{statistics.mean(losses):.4f} ({deviation(losses):.4f})"
        cells.append(
            [f"{workload}, {left_over} of {case.batch}", way, spread, change, f"{max(norms):.2f}"]
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=Path, help="ETTh2.csv of the ETT datasets, also .gz")
    parser.add_argument("--only", choices=CASES, action="append", help="these workloads")
    parser.add_argument("--seeds", type=int, default=8)
    arguments = command_line(parser, seeds=1)
    if arguments.rehearse:
        shrink()
    elif arguments.series is None:
        parser.error("--series is missing: a file of github.com/zhouhaoyi/ETDataset")
    columns = [
        "workload, last batch",
        "it is",
        "validation loss (std)",
        "against a whole step",
        "norm",
    ]
    for workload in arguments.only or CASES:
        case = CASES[workload]
        left_over = (1,) if arguments.rehearse else (1, case.batch // 2)
        model = case.flags or "the default model"
        how = (
            f"{machine()}. {case.data}, {case.epochs} epochs of {case.batches} batches of "
            f"{case.batch} and the last one, `{model}`, fp32, {arguments.seeds} seeds"
        )
        rows = []
        with tempfile.TemporaryDirectory() as place:
            samples = prepare(workload, arguments.series, Path(place) / workload)
            for size in left_over:
                rows += compare(workload, size, arguments.seeds, samples, Path(place) / workload)
        table = {"columns": columns, "rows": rows}
        publish("last_batch", workload, how, table, arguments=arguments)


if __name__ == "__main__":
    main()
