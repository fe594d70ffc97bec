"""Many series: the workload `forecast` on M4 Hourly next to N-HiTS of two libraries, intervals,
and ETTh2 with `timeseries`.

M4 has 414 hourly series; the last 48 hours of each are the test. All models see 168 hours. Every
forecast is read from a file and scored here, by one function for all. `--m4` is a folder with
Hourly-train.csv and Hourly-test.csv of github.com/Mcompetitions/M4-methods, `--etth2` is ETTh2.csv
of github.com/zhouhaoyi/ETDataset; each may be compressed (.gz). `memory` needs neither: it makes a
table of 60 million rows.

    python benchmarks/forecast.py [m4] --m4 FOLDER --etth2 FILE [--seeds 3] [--write]
    python benchmarks/forecast.py memory [--write]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from pyarrow import parquet  # noqa: E402
from rendering import render  # noqa: E402
from running import Result, evaluation_of, start  # noqa: E402

SEASON = 24
HISTORY = 168
HORIZON = 48
SPLIT = "8640,2880,2880"  # of ETTh2, as published
ETT = f"--history 96 --horizon 24 --split {SPLIT}"
FLAGS = ""  # of every training
QUANTILES = "--model.quantiles 0.1,0.5,0.9"
PEERS = {"neuralforecast": "neuralforecast NHITS", "darts": "darts NHiTS"}
PEERS_PYTHON = ROOT / ".venv-forecasters/bin/python"  # `make bench PART=forecast` makes it
PEER_STEPS = 0  # 0: as many as take the CPU time of ours
HOUR = 3600.0
NUM_SERIES = 30_000  # of the table whose memory is measured
DAYS = 2000
MEMORY_STEPS = 2000


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global HISTORY, HORIZON, SPLIT, ETT, FLAGS, PEER_STEPS, NUM_SERIES, DAYS, MEMORY_STEPS
    HISTORY = 48
    HORIZON = 24
    ETT = "--history 48 --horizon 24 --split 400,150,150"
    FLAGS = "--training.max_steps 2 --evaluation.every_steps 2"
    PEER_STEPS = 1
    NUM_SERIES = 20
    DAYS = 400
    MEMORY_STEPS = 2


# ---- data ----------------------------------------------------------------------------------------


class Series(NamedTuple):
    """M4: the rows before the test and the test, by name."""

    before: dict[str, np.ndarray]
    test: dict[str, np.ndarray]

    def naive(self, name: str) -> np.ndarray:
        return np.resize(self.before[name][-SEASON:], HORIZON)

    def scores(self, forecasts: dict[str, np.ndarray]) -> tuple[float, float]:
        """MASE and sMAPE in percent, as the competition defines them: means over series."""
        mase = []
        smape = []
        for name, truth in self.test.items():
            error = np.abs(forecasts[name] - truth)
            before = self.before[name]
            mase.append(error.mean() / np.abs(before[SEASON:] - before[:-SEASON]).mean())
            smape.append(200 * (error / (np.abs(truth) + np.abs(forecasts[name]))).mean())
        return float(np.mean(mase)), float(np.mean(smape))


def file_of(path: Path) -> Path:
    """The file, or its compressed version."""
    return path if path.exists() else path.with_name(f"{path.name}.gz")


def read_m4(folder: Path) -> Series:
    parts = []
    for part in ("train", "test"):
        path = file_of(folder / f"Hourly-{part}.csv")
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as file:
            rows = list(csv.reader(file))[1:]
        parts.append({name: np.array(list(filter(None, cells)), float) for name, *cells in rows})
    return Series(*parts)


def made_up_m4() -> Series:
    """What a rehearsal takes."""
    random = np.random.default_rng(0)
    hours = np.arange(240)
    before = {}
    test = {}
    for number in range(6):
        values = 50 + 9 * np.sin(hours * 2 * np.pi / SEASON + number) + random.normal(size=240)
        before[f"H{number}"] = values[:-HORIZON]
        test[f"H{number}"] = values[-HORIZON:]
    return Series(before, test)


def made_up_ett(folder: Path) -> Path:
    hours = np.datetime64("2024-01-01T00") + np.arange(700)
    values = np.random.default_rng(0).normal(size=(len(hours), 2)).round(4)
    lines = (f"{hour},{a},{b}\n" for hour, (a, b) in zip(hours, values, strict=True))
    path = folder / "ETTh2.csv"
    path.write_text("".join(["date,a,b\n", *lines]))
    return path


def write_long(series: Series, path: Path) -> None:
    with open(path, "w") as file:
        file.write("series,value\n")
        for part in series:
            for name, values in part.items():
                file.writelines(f"{name},{value}\n" for value in values)


# ---- ours ----------------------------------------------------------------------------------------


class Ours:
    """A project of one workload in a folder of its own."""

    def __init__(self, workload: str, folder: Path):
        self.project = render(workload=workload)
        self.folder = folder
        self.folder.mkdir(parents=True)

    def run(self, *words: str) -> Result:
        done = start(self.project, *words, cwd=self.folder).wait(HOUR)
        assert done.code == 0, done.err[-3000:]
        return done

    def prepare(self, path: Path, flags: str) -> None:
        self.run("prepare", "--input", str(path.resolve()), *flags.split())

    def train(self, seed: int, flags: str = "") -> float:
        """CPU seconds of the command, without the import of PyTorch."""
        before = cpu_of_children()
        words = shlex.split(f"--reproducibility.seed {seed} {flags} {FLAGS}")
        self.run("train", *words)
        return cpu_of_children() - before

    def metrics(self) -> dict[str, float]:
        """What `evaluate` measures on the test split."""
        self.run("evaluate")
        return evaluation_of(self.folder)["metrics"]

    def forecasts(self) -> dict[str, dict[str, np.ndarray]]:
        """(windows, H, targets) of each number in the predictions of the test split, by series."""
        path = self.folder / "forecast.npz"
        self.run("predict", "--split", "test", "--output", str(path))
        rows = dict(np.load(path))  # a row for each window, step and target
        names = [name for name in rows if name == "prediction" or name.startswith("q")]
        shape = (-1, rows["step"].max(), len(np.unique(rows["target"])))
        by_series: dict[str, dict[str, np.ndarray]] = {}
        for series in np.unique(rows["series"]):
            chosen = rows["series"] == series
            by_series[str(series)] = {name: rows[name][chosen].reshape(shape) for name in names}
        return by_series


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---- M4 ------------------------------------------------------------------------------------------

Scores = list[tuple[float, float, float]]  # MASE, sMAPE and CPU seconds of each seed


def ours_on_m4(series: Series, folder: Path, seeds: int, flags: str) -> tuple[Scores, list[Any]]:
    """Scores, and the forecasts of each seed."""
    ours = Ours("forecast", folder)
    path = folder / "m4.csv"
    write_long(series, path)
    columns = f"--series series --time-column none --season {SEASON}"
    windows = f"--history {HISTORY} --horizon {HORIZON}"
    ours.prepare(path, f"{columns} {windows} --split-by end --split rest,{HORIZON},{HORIZON}")
    scores = []
    forecasts = []
    for seed in range(seeds):
        seconds = ours.train(seed, flags)
        found = ours.forecasts()
        forecasts.append(found)
        points = {name: numbers["prediction"][0, :, 0] for name, numbers in found.items()}
        scores.append((*series.scores(points), seconds))
        print(f"forecast {flags}, seed {seed}: {scores[-1]}", file=sys.stderr, flush=True)
    return scores, forecasts


def peer_on_m4(
    peer: str, series: Series, folder: Path, seeds: int, seconds: float
) -> tuple[Scores, str]:
    """Scores, and versions with the number of steps."""
    given = folder / "series.npz"
    output = folder / "forecasts.npy"
    values = list(series.before.values())
    lengths = [len(one) for one in values]
    np.savez(given, values=np.concatenate(values), lengths=lengths)
    scores = []
    counts = []
    names: dict[str, str] = {}
    for seed in range(seeds):
        command = [str(PEERS_PYTHON), str(ROOT / "benchmarks/forecasters.py"), peer, str(given)]
        command += [str(output), f"--history={HISTORY}", f"--horizon={HORIZON}", f"--seed={seed}"]
        command += [f"--steps={PEER_STEPS}"] if PEER_STEPS else [f"--seconds={seconds}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        told = json.loads(done.stdout.splitlines()[-1])
        forecasts = dict(zip(series.before, np.load(output), strict=True))
        scores.append((*series.scores(forecasts), told["seconds"]))
        counts.append(told["steps"])
        names = told["versions"]
        print(f"{peer}, seed {seed}: {scores[-1]}", file=sys.stderr, flush=True)
    return scores, f"{peer} {names[peer]} on torch {names['torch']} ({min(counts):,} steps)"


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def row_of(name: str, scores: Scores) -> list[str]:
    """A row of the table: the median of each score and all of them."""
    mase, smape, seconds = zip(*scores, strict=True)
    cells = [name]
    for values, digits in ((mase, 3), (smape, 2)):
        spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
        cells += [f"{middle(values):.{digits}f}", spread]
    return [*cells, f"{middle(seconds):.0f}"]


def m4(series: Series, seeds: int, folder: Path) -> tuple[str, dict[str, Any], list[Any]]:
    """Versions of the peers, the table, and the forecasts with quantiles of each seed."""
    naive = series.scores({name: series.naive(name) for name in series.test})
    plain, _ = ours_on_m4(series, folder / "plain", seeds, "")
    budget = middle([seconds for *_, seconds in plain])
    rows: list[list[Any]] = [["seasonal naive", f"{naive[0]:.3f}", "", f"{naive[1]:.2f}", "", ""]]
    rows.append(row_of("`forecast`, default settings", plain))
    wide, forecasts = ours_on_m4(series, folder / "quantiles", seeds, QUANTILES)
    rows.append(row_of("`forecast`, three quantiles", wide))
    versions = []
    for peer, title in PEERS.items():
        if PEERS_PYTHON.exists():
            scores, version = peer_on_m4(peer, series, folder, seeds, budget)
            rows.append(row_of(title, scores))
            versions.append(version)
        elif not PEER_STEPS:
            rows.append([title, *[None] * 5])
    columns = ["model", "MASE", "all seeds", "sMAPE %", "all seeds", "CPU s"]
    return ", ".join(versions), {"columns": columns, "rows": rows}, forecasts


# ---- intervals -----------------------------------------------------------------------------------


def covered(low: np.ndarray, high: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(H,) fractions of the truths (windows, H, targets) that are between the quantiles."""
    return ((low <= truth) & (truth <= high)).mean((0, 2))


def of_m4(series: Series, forecasts: list[Any]) -> Iterator[np.ndarray]:
    for of_seed in forecasts:
        parts = []
        for name, truth in series.test.items():
            numbers = of_seed[name]
            parts.append(covered(numbers["q0.1"], numbers["q0.9"], truth[None, :, None]))
        yield np.mean(parts, 0)


def of_ett(path: Path, seeds: int, folder: Path) -> Iterator[np.ndarray]:
    """As one series of the workload `forecast`, with each window of the test split."""
    ours = Ours("forecast", folder)
    ours.prepare(path, ETT)
    *_, split = ETT.split()
    train, validation, test = map(int, split.split(","))
    values = read_values(path)[train + validation :][:test]
    for seed in range(seeds):
        ours.train(seed, QUANTILES)
        (numbers,) = ours.forecasts().values()
        horizon = numbers["q0.1"].shape[1]
        truth = np.lib.stride_tricks.sliding_window_view(values, horizon, 0).swapaxes(1, 2)
        yield covered(numbers["q0.1"], numbers["q0.9"], truth)


def read_values(path: Path) -> np.ndarray:
    """The columns behind the time."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        rows = list(csv.reader(file))[1:]
    return np.array([row[1:] for row in rows], np.float32)


def coverage_row(name: str, by_step: list[np.ndarray]) -> list[str]:
    """Coverage of each seed, and of the parts of the horizon."""
    totals = [float(steps.mean()) for steps in by_step]
    parts = np.array_split(np.mean(by_step, 0), 3)
    spread = f"{min(totals):.1%} to {max(totals):.1%}"
    return [name, f"{middle(totals):.1%}", spread, *(f"{part.mean():.1%}" for part in parts)]


# ---- ETTh2 with `timeseries` ---------------------------------------------------------------------


def etth2(path: Path, seeds: int, folder: Path) -> dict[str, Any]:
    ours = Ours("timeseries", folder)
    ours.prepare(path, ETT)
    rows = []
    for seed in range(1, seeds + 1):
        seconds = ours.train(seed, "--training.epochs 5")
        metrics = ours.metrics()
        rows.append([str(seed), metrics["mse"], metrics["mae"], seconds])
    middles = [middle(values) for values in zip(*(row[1:] for row in rows), strict=True)]
    table = [["median", *middles], *rows]
    cells = [[name, f"{mse:.4f}", f"{mae:.4f}", f"{cpu:.0f}"] for name, mse, mae, cpu in table]
    return {"columns": ["seed", "MSE", "MAE", "CPU s"], "rows": cells}


# ---- memory --------------------------------------------------------------------------------------


def write_stores(path: Path) -> None:
    """A table of daily sales, sorted by date, as a database exports it."""
    random = np.random.default_rng(0)
    level = random.uniform(5, 50, NUM_SERIES)
    phase = random.uniform(0, 2 * np.pi, NUM_SERIES)
    stores = np.arange(NUM_SERIES, dtype=np.int32)
    columns = {"date": pa.timestamp("s"), "store": pa.int32(), "sold": pa.float32()}
    with parquet.ParquetWriter(path, pa.schema(columns)) as writer:
        for day in range(DAYS):
            date = np.datetime64("2018-01-01", "s") + np.timedelta64(day, "D")
            week = np.sin(day * 2 * np.pi / 7 + phase)
            sold = level * (1 + 0.3 * week) + random.normal(size=NUM_SERIES)
            cells = [np.full(NUM_SERIES, date), stores, sold.astype(np.float32).round(2)]
            arrays = [
                pa.array(values, kind) for values, kind in zip(cells, columns.values(), strict=True)
            ]
            writer.write_table(pa.table(arrays, [*columns]))


def peak_memory(project: Path, folder: Path, *words: str) -> tuple[float, float]:
    """MB that no file backs, at the peak, and seconds of a command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "TRAINING_ROOT": "."}
    command = [sys.executable, "-m", "my_training", *words]
    peak = 0
    begun = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            status = Path(f"/proc/{child.pid}/status").read_text()
            for kilobytes in re.findall(r"RssAnon:\s+(\d+)", status):  # none when it ends
                peak = max(peak, int(kilobytes))
            time.sleep(0.02)
    assert child.returncode == 0, words
    return peak / 1024, time.perf_counter() - begun


def memory(folder: Path) -> dict[str, Any]:
    """The table of what each command takes for one large table."""
    ours = Ours("forecast", folder)
    (folder / "config.yaml").write_bytes((ours.project / "config.yaml").read_bytes())
    path = folder / "stores.parquet"
    write_stores(path)
    flags = "--series store --targets sold --history 56 --horizon 14"
    steps = f"--training.max_steps {MEMORY_STEPS} --evaluation.fraction 0.05"
    commands = {
        "`prepare`": f"prepare --input {path} {flags}",
        f"`train`, {MEMORY_STEPS:,} steps": f"train {steps}",
        "`predict`, one forecast a series": "predict --output forecasts.csv",
    }
    rows = []
    for name, words in commands.items():
        peak, seconds = peak_memory(ours.project, folder, *words.split())
        rows.append([name, f"{peak:.0f}", f"{seconds:.0f}"])
    return {"columns": ["command", "MB at the peak", "seconds"], "rows": rows}


# ---- all -----------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["m4", "etth2", "memory"], help="(default: all)")
    parser.add_argument("--m4", type=Path, metavar="FOLDER", help="with Hourly-train.csv")
    parser.add_argument("--etth2", type=Path, metavar="FILE", help="ETTh2.csv")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = command_line(parser, seeds=1)
    if arguments.rehearse:
        shrink()
    elif arguments.part != "memory" and not (arguments.m4 and arguments.etth2):
        parser.error("--m4 or --etth2 is missing: see the description")
    seeds = arguments.seeds
    how = f"{machine()}. One thread, {seeds} seeds, median"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ett = made_up_ett(folder) if arguments.rehearse else arguments.etth2
        if arguments.part in (None, "m4"):
            series = made_up_m4() if arguments.rehearse else read_m4(arguments.m4)
            peers, table, forecasts = m4(series, seeds, folder / "m4")
            rows = [coverage_row("M4 Hourly", list(of_m4(series, forecasts)))]
            rows.append(coverage_row("ETTh2", list(of_ett(ett, seeds, folder / "ett"))))
            columns = ["data", "coverage", "all seeds", "first third", "second", "last"]
            protocol = f"{how}. {peers}" if peers else how
            publish("forecast", "m4", protocol, table, arguments=arguments)
            table = {"columns": columns, "rows": rows}
            publish("forecast", "intervals", how, table, arguments=arguments)
        if arguments.part in (None, "etth2"):
            table = etth2(ett, seeds, folder / "timeseries")
            publish("forecast", "ETTh2", f"{how}. {ETT}", table, arguments=arguments)
        if arguments.part in (None, "memory"):
            table = memory(folder / "memory")
            publish("forecast", "memory", f"{machine()}. One thread", table, arguments=arguments)


if __name__ == "__main__":
    main()
