"""What a script takes: a step against the package's, its loader, its graphs, its optimizations.

`script`: a step against a step of the package, on the same data and settings. Runs take turns,
each in a process of its own with one thread; a round's ratio is taken on its own, so that a
drifting machine cancels out. A run's figure is the median over its rows of metrics, each of 20
steps, without evaluations and checkpoints; the first row warms up and does not count. The clock
counts seconds of the process, so that time which others took does not. Losses must be equal.

`loader`: an epoch of the windows from the chunk loader, against a DataLoader that reads window by
window with h5py. `graphs`: a batch with graphs from the file, against graphs that are computed.
`optimizations`: what `--benchmark` of each script prints. These three count seconds of the clock,
since other processes and the disk take part.

    python benchmarks/script.py [script loader graphs optimizations] [--rounds 7] [--only llm]
    [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from loop import interval  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from running import losses, rows, run  # noqa: E402
from scripts import CASES, run_script  # noqa: E402

STEPS = 300
EVERY = 20
# Sizes as by default; data large enough for none of the epochs' ends to fall into the steps that
# count.
SIZES = {
    "tabular": ("--batch_size 256", "--data.batch_size 256 --data.num_workers 0"),
    "timeseries": ("--history 24 --horizon 6", ""),
    "forecast": (
        "--series shop --targets sales --known promotion --history 14 --horizon 5 --batch_size 16",
        "--data.batch_size 16",
    ),
    "llm": ("--block_size 32 --batch_size 16", "--data.block_size 32 --data.batch_size 16"),
    "windows": ("--shuffle_block 100", "--data.order block --data.shuffle_block 100"),
    "graph": ("--window 10 --neighbors 3 --correlation_days 40 --split 150,35,20", ""),
    "seq2seq": ("--split 0.7,0.15,0.15 --batch_size 8", "--data.batch_size 8"),
    "vision": ("--size 16 --batch_size 64", "--data.batch_size 64"),
}


WINDOWS = 8192  # of 96 rows and 32 columns, 12 KB each
DAYS = 400  # of 256 stocks


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global STEPS, EVERY, WINDOWS, DAYS
    STEPS = 4
    EVERY = 2
    WINDOWS = 256
    DAYS = 80


def trained(
    workload: str, folder: Path, sides: tuple[str, ...]
) -> dict[str, tuple[float, list[tuple[int, str]]]]:
    """Milliseconds of a step and the losses, of both layouts, in that order."""
    words_of_side = {}
    script, package = SIZES[workload]
    for side in sides:
        cwd = folder / side
        cwd.mkdir(parents=True)
        CASES[workload].write(cwd / "data.file")
        if side == "script":
            words = f"--data data.file --precision fp32 --max_steps {STEPS} {script}"
            words += f" --evaluate_every {STEPS} --save_every {STEPS} --log_every {EVERY}"
            done = run_script(render(workload=workload, layout="script"), *words.split(), cwd=cwd)
        else:
            project = render(workload=workload)
            run(project, "prepare", *CASES[workload].prepare.split(), cwd=cwd)
            words = f"--training.precision fp32 --training.max_steps {STEPS}"
            words += f" --monitor.every_steps {EVERY}"
            words += f" --evaluation.every_steps {STEPS} --checkpoint.every_steps {STEPS} {package}"
            done = run(project, "train", *words.split(), cwd=cwd)
        assert done.code == 0, done.err
        times = [row["step_ms"] for row in rows(cwd) if "split" not in row][1:]
        words_of_side[side] = statistics.median(times), losses(cwd)
    assert words_of_side["script"][1] == words_of_side["package"][1], (
        f"not the same work: {workload}"
    )
    return words_of_side


def measure(workloads: list[str], rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times of both, and the ratio with the interval that holds its median with about 95 %."""
    times: list[list[str]] = []
    ratios: list[list[str]] = []
    for workload in workloads:
        seconds: dict[str, list[float]] = {"script": [], "package": []}
        with tempfile.TemporaryDirectory() as temporary:
            for number in range(rounds):  # who goes first changes, too
                sides = ("script", "package")[:: 1 - 2 * (number % 2)]
                taken = trained(workload, Path(temporary) / str(number), sides)
                for side, (milliseconds, _) in taken.items():
                    seconds[side].append(milliseconds)
        for side, values in seconds.items():
            shown = (f"{figure(values):.3f}" for figure in (statistics.median, min, max))
            times.append([f"{workload}, {side}", *shown])
        ordered = sorted(a / b for a, b in zip(seconds["script"], seconds["package"], strict=True))
        low, high = interval(ordered)
        median = f"{statistics.median(ordered):.3f}"
        ratios.append([workload, median, f"{low:.3f} to {high:.3f}", "≤ 1.02"])
    return (
        {"columns": ["loop", "ms a step, median", "fastest", "slowest"], "rows": times},
        {
            "columns": ["script against package", "ratio, median", "95 % interval", "wanted"],
            "rows": ratios,
        },
    )


# --- the three parts inside a script


def inside(workload: str, folder: Path, act: Callable[[Any], Any]) -> Any:
    """What a function of the script's module returns, in a process of its own."""

    def keep(train: Any) -> None:
        Path("result.json").write_text(json.dumps(act(train)))

    project = render(workload=workload, layout="script")
    done = run_script(project, "--help", cwd=folder, before=keep)
    assert done.code == 0, done.err
    return json.loads((folder / "result.json").read_text())


def shown(seconds: list[float], digits: int = 2) -> str:
    """The median and the range."""
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def ratio(slow: list[float], fast: list[float]) -> str:
    return shown([a / b for a, b in zip(slow, fast, strict=True)], 1)


LOADERS = {
    "chunk loader": "--chunk_loader 1 --resident 0",
    "DataLoader, 0 workers": "--chunk_loader 0 --num_workers 0",
    "DataLoader, 2 workers": "--chunk_loader 0 --num_workers 2",
}


def epoch_seconds(train: Any, words: str, cold: bool) -> float:
    """Seconds of one epoch, whose windows must be all there."""
    settings, _ = train.read_settings(train.parse(words.split()))
    data = train.Trainer(settings).data
    if cold:  # the pages of the file leave the cache
        file = os.open(settings.data, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    count = 0
    start = time.perf_counter()
    for numbers, _ in data.epoch(0, 0):
        count += len(numbers)
    seconds = time.perf_counter() - start
    assert count == len(data.splits["train"])
    return seconds


def measure_loader(rounds: int) -> list[dict[str, Any]]:
    rows = []
    values = np.random.default_rng(0).normal(size=(WINDOWS, 96, 32)).astype("f4").round(1)
    for compression in (None, "gzip"):
        for cold in (False, True):
            seconds: dict[str, list[float]] = {name: [] for name in LOADERS}
            with tempfile.TemporaryDirectory() as folder:
                with h5py.File(Path(folder, "windows.h5"), "w") as file:
                    chunks = None if compression is None else (64, 96, 32)
                    file.create_dataset(
                        "features", data=values, chunks=chunks, compression=compression
                    )
                    file["targets"] = values[:, -4:, 0]
                os.sync()  # dirty pages do not leave the cache
                for _ in range(rounds):
                    for name, flags in LOADERS.items():
                        words = f"--data windows.h5 --purge 0 {flags}"
                        take = partial(epoch_seconds, words=words, cold=cold)
                        taken = inside("windows", Path(folder), take)
                        seconds[name].append(taken)
            cache = "cold" if cold else "warm"
            for name, taken in seconds.items():
                gain = ratio(taken, seconds["chunk loader"])
                rows.append(
                    [f"{compression or 'plain'}, {cache} cache, {name}", shown(taken), gain]
                )
    return [{"columns": ["case", "s an epoch", "× of the chunk loader"], "rows": rows}]


def many_stocks(train: Any) -> list[Any]:
    """256 stocks, a market and their own moves."""
    random = np.random.default_rng(0)
    dates = np.datetime64("2020-01-01") + np.arange(DAYS)
    market = random.normal(0, 0.01, DAYS)
    stocks = []
    for _ in range(256):
        close = 100 * np.exp(np.cumsum(market + random.normal(0, 0.01, DAYS)))
        prices = np.stack([close, close * 1.01, close * 0.99, close], axis=1)
        stocks.append(train.Stock(dates, prices, close, 1e6 * close))
    return stocks


def batch_milliseconds(train: Any, cached: int) -> float:
    """Milliseconds of a batch of one day."""
    train.synthesize = lambda: many_stocks(train)
    words = f"--batch_size 1 --neighbors 10 --window 5 --cached_graphs {cached}"
    settings, _ = train.read_settings(train.parse(words.split()))
    data = train.Trainer(settings).data
    num_batches = len(data.splits["train"])
    start = time.perf_counter()
    for _, batch in data.epoch(0, 0):
        assert batch["neighbors"].shape == (1, 256, 10)
    return 1000 * (time.perf_counter() - start) / num_batches


def measure_graphs(rounds: int) -> list[dict[str, Any]]:
    taken: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for cached in (0, 1):
                take = partial(batch_milliseconds, cached=cached)
                milliseconds = inside("graph", Path(folder), take)
                taken[cached].append(milliseconds)
    rows = [["from the file", shown(taken[1]), "1"]]
    rows.append(["computed in each batch", shown(taken[0]), ratio(taken[0], taken[1])])
    return [{"columns": ["graphs", "ms a batch", "× of the file's"], "rows": rows}]


def measure_optimizations(workloads: list[str], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for workload in workloads:
        with tempfile.TemporaryDirectory() as folder:
            CASES[workload].write(Path(folder, "data.file"))
            words = f"--benchmark --data data.file --rounds {rounds} --log_every {EVERY}"
            words += f" {SIZES[workload][0]}"
            project = render(workload=workload, layout="script")
            done = run_script(project, *words.split(), cwd=Path(folder))
            assert done.code == 0, done.err
        pattern = r"^all optimizations: (.+) ms a step against (.+): (.+)× as fast"
        ((on, off, gain),) = re.findall(pattern, done.out, re.MULTILINE)
        rows.append([workload, on, off, gain])
    columns = ["script", "ms a step, all on", "ms a step, all off", "× as fast"]
    return [{"columns": columns, "rows": rows}]


PARTS = ("script", "loader", "graphs", "optimizations")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; by default all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES))
    arguments = command_line(parser, rounds=1)
    if arguments.rehearse:
        shrink()
    rounds = arguments.rounds
    parts = arguments.parts or PARTS
    if "script" in parts:
        how = f"{machine()}, one thread, {rounds} rounds of {STEPS} steps, seconds of the process"
        with mock.patch.object(time, "perf_counter", time.process_time):  # forks have it, too
            tables = measure(arguments.only, rounds)
        publish("script", "script", how, *tables, arguments=arguments)
    others: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "loader": lambda: measure_loader(rounds),
        "graphs": lambda: measure_graphs(rounds),
        "optimizations": lambda: measure_optimizations(arguments.only, rounds),
    }
    for part, take in others.items():
        if part in parts:
            how = f"{machine()}, one thread, {rounds} rounds, in turns"
            publish("script", part, how, *take(), arguments=arguments)


if __name__ == "__main__":
    main()
