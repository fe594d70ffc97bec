"""Made-up prices of stocks, and a rendered project of the workload `graph` around them."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from importing import imported
from rendering import render
from running import Result, run
from torch import Tensor

PREPARE = (
    "prepare",
    "--input",
    "prices",
    "--window",
    "10",
    "--neighbors",
    "3",
    "--correlation-days",
    "40",
)
SMALL = ("--model.width", "16", "--model.temporal_layers", "1", "--data.batch_size", "8")
TRAIN = ("train", *SMALL, "--training.max_steps", "12", "--monitor.every_steps", "1")
HEADER = "date,open,high,low,close,volume\n"
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


def module(name: str):
    return imported(render(workload="graph"), name)


def prices(stocks: int = 8, days: int = 220, seed: int = 0) -> dict[str, np.ndarray]:
    """(days, 5) open, high, low, close, volume of each stock: random walks in two groups, calm and wild."""
    random = np.random.default_rng(seed)
    calm = np.exp(np.convolve(random.normal(0, 0.3, days + 9), np.ones(10) / 3, "valid"))
    factors = random.standard_normal((days, 2))
    found = {}
    for number, name in enumerate(NAMES[:stocks]):
        returns = 0.01 * calm * (factors[:, number % 2] + 0.5 * random.standard_normal(days))
        close = 30 * np.exp(np.cumsum(returns))
        opening = close * np.exp(-returns)
        high = np.maximum(opening, close) * np.exp(0.005 * calm * random.random(days))
        low = np.minimum(opening, close) * np.exp(-0.005 * calm * random.random(days))
        found[name] = np.stack([opening, high, low, close, random.integers(1000, 9000, days)], 1)
    return found


def dates(count: int) -> np.ndarray:
    """Weekdays from 2020 on."""
    return np.busday_offset("2020-01-01", np.arange(count), roll="forward")


def csv_lines(values: np.ndarray, first: int = 0) -> str:
    days = dates(first + len(values))[first:]
    cells = (",".join(f"{value:.6f}" for value in row) for row in values)
    return HEADER + "".join(f"{day},{row}\n" for day, row in zip(days, cells, strict=True))


def write_folder(folder: Path, table: dict[str, np.ndarray] | None = None, **files: str) -> Path:
    """`prices/` with a CSV for each stock; `files` replace or add by name."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {name: csv_lines(values) for name, values in (table or prices()).items()} | files
    for name, content in contents.items():
        (folder / f"{name}.csv").write_text(content)
    return folder


def prepare(place: Path, *flags: str, words: tuple[str, ...] = PREPARE) -> Result:
    return run(render(workload="graph"), *words, *flags, cwd=place)


def prepared(place: Path, *flags: str, **made: dict) -> Path:
    write_folder(place / "prices", **made)
    result = prepare(place, *flags)
    assert result.code == 0, result.err
    return place


def store(place: Path, data: str = "data"):
    return module("engine.store").Store.open(place / data)


def train(place: Path, *flags: str) -> None:
    result = run(render(workload="graph"), *TRAIN, *flags, cwd=place)
    assert result.code == 0, result.err


def settings(**changes: object):
    overrides = [(key.replace("__", "."), str(value)) for key, value in changes.items()]
    return module("config").load(overrides=[("data.num_workers", "0"), *overrides])


def batches(
    opened, split: str = "test", size: int = 4, **changes: object
) -> list[dict[str, Tensor]]:
    chosen = settings(data__batch_size=size, **changes)
    samples = module("dataset").Samples(opened, chosen, split)
    order = module("engine.order").order_of(samples, chosen, train=False)
    loader = module("engine.loader").Loader(samples, opened, chosen, order, torch.device("cpu"))
    return list(loader.epoch(0))


@functools.cache
def example(folder: Path):
    """A prepared store of eight stocks, shared by all tests of the process."""
    return store(prepared(folder / "example"))
