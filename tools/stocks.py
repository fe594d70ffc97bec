"""Made-up prices of stocks, and a rendered project of the workload `graph` around them."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from running import Result
from workload import Batch, Workload

GRAPH = Workload("graph")
module = GRAPH.module
PREPARE = ("--window", "10", "--neighbors", "3", "--correlation-days", "40")
SMALL = ("--model.width", "16", "--model.temporal_layers", "1", "--data.batch_size", "8")
TRAIN = ("train", *SMALL, "--training.max_steps", "12", "--monitor.every_steps", "1")
HEADER = "date,open,high,low,close,volume\n"
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
Table = dict[str, np.ndarray]


def prices(stocks: int = 8, days: int = 220, seed: int = 0) -> Table:
    """(days, 5) open, high, low, close, volume of each stock: random walks in two groups, calm and
    wild."""
    random = np.random.default_rng(seed)
    calm = np.exp(np.convolve(random.normal(0, 0.3, days + 9), np.ones(10) / 3, "valid"))
    factors = random.standard_normal((days, 2))
    table = {}
    for number, name in enumerate(NAMES[:stocks]):
        returns = 0.01 * calm * (factors[:, number % 2] + 0.5 * random.standard_normal(days))
        close = 30 * np.exp(np.cumsum(returns))
        opening = close * np.exp(-returns)
        high = np.maximum(opening, close) * np.exp(0.005 * calm * random.random(days))
        low = np.minimum(opening, close) * np.exp(-0.005 * calm * random.random(days))
        table[name] = np.stack([opening, high, low, close, random.integers(1000, 9000, days)], 1)
    return table


def dates(count: int) -> np.ndarray:
    """Weekdays from 2020 on."""
    return np.busday_offset("2020-01-01", np.arange(count), roll="forward")


def csv_lines(values: np.ndarray, first: int = 0) -> str:
    lines = []
    for day, row in zip(dates(first + len(values))[first:], values, strict=True):
        cells = ",".join(f"{value:.6f}" for value in row)
        lines.append(f"{day},{cells}\n")
    return HEADER + "".join(lines)


def write_folder(folder: Path, table: Table | None = None, **files: str) -> Path:
    """A CSV for each stock; `files` replace or add by name."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {name: csv_lines(values) for name, values in (table or prices()).items()}
    for name, content in (contents | files).items():
        (folder / f"{name}.csv").write_text(content)
    return folder


def prepare(place: Path, *flags: str) -> Result:
    return GRAPH.run("prepare", "--input", "prices", *PREPARE, *flags, cwd=place)


def prepared(place: Path, *flags: str, table: Table | None = None, **files: str) -> Path:
    write_folder(place / "prices", table, **files)
    result = prepare(place, *flags)
    assert result.code == 0, result.err
    return place


def store(place: Path) -> Any:
    return GRAPH.store(place / "data")


def batches(opened: Any, split: str = "test", *flags: str, size: int = 4) -> list[Batch]:
    flags = ("--data.batch_size", str(size), *flags)
    return GRAPH.batches(opened, split, *flags, loader="dataloader")


@functools.cache
def example(folder: Path) -> Any:
    """A prepared store of eight stocks, shared by all tests of the process."""
    return store(prepared(folder / "example"))
