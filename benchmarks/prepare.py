"""How fast and in how much memory `prepare` reads, against the libraries that it reads with.

Speed: CPU seconds of one process on one core, without its imports, for `prepare` and for what the
same bytes need at least: pyarrow's own single-threaded reading of a table, block by block; learning
and encoding by `tokenizers` in pieces of 64 kB; a copy with its sha256 for text that stays bytes.
The two take turns, and the ratio is that of each pair, its median here. Throughput is of the input.
With `--before`, the same by another version of the template, on a twentieth of the input.

Memory: the peak of RssAnon, which is memory that no file backs, of inputs of 200 MB and 2 GB,
shuffled, with a category; a tenth of that for byte pairs and pairs of texts, a fifth for stocks,
which is more than the 32 MB of a CSV that pyarrow reads ahead. And without what may grow: 9 bytes a
row for the split of a table, 24 bytes a pair for copies and split, and for byte pairs the peak of
the library alone, which holds the words that it counts.

    python benchmarks/prepare.py [speed|memory] [--rounds 3] [--megabytes 200] [--before REVISION]
    [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from forks import in_fork  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402

TABULAR = ("--target", "x7", "--task", "regression")
SERIES = ("--history", "96", "--horizon", "24")
BYTE_PAIRS = ("--tokenizer", "bpe", "--vocabulary", "8192")
# name: workload, file, flags, what it is compared with, the ratio that is wanted
CASES: dict[str, tuple[str, str, tuple[str, ...], str, float]] = {
    "table, CSV": ("tabular", "table.csv", TABULAR, "csv", 0.5),
    "table, Parquet": ("tabular", "table.parquet", TABULAR, "parquet", 0.5),
    "series, CSV": ("timeseries", "series.csv", SERIES, "csv", 0.5),
    "text, bytes": ("llm", "text.txt", (), "copy", 0.5),
    "text, byte pairs": ("llm", "less.txt", BYTE_PAIRS, "byte pairs", 0.8),
}
# name: workload, file, flags. Of the last two the memory alone is measured.
MEMORY: dict[str, tuple[str, str, tuple[str, ...]]] = {
    **{title: case[:3] for title, case in CASES.items()},
    "pairs of texts": ("seq2seq", "pairs.tsv", ()),
    "stocks": ("graph", "stocks.csv", ()),
}
BLOCK = 400_000  # rows of the made-up table that repeat
ROW_BYTES = 74  # of one of them as CSV
TEXT_FRACTION = 0.1  # of the megabytes: text is slow to prepare
STOCK_FRACTION = 0.2  # of the megabytes: the graphs of stocks grow
PAIR_BYTES = 52
STOCK_DAYS = 5000
DAY_BYTES = 55  # of a stock
PIECE = 64 << 10


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global BLOCK, STOCK_DAYS
    BLOCK = 2000
    STOCK_DAYS = 200
    for title in ("table, Parquet", "series, CSV", "text, byte pairs"):
        del CASES[title]
    for title in list(MEMORY)[:-3]:  # the speed of these is rehearsed, too
        del MEMORY[title]


# ---- files to read -----------------------------------------------------------------------------


def table(rows: int) -> Any:
    """Eight columns of numbers with four digits, and one of words."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{n}": random.normal(100, 20, rows).round(4) for n in range(8)}
    return pa.table(columns | {"c": random.choice(["red", "green", "blue"], rows)})


def blocks(megabytes: float) -> int:
    return max(round(megabytes * 1e6 / ROW_BYTES / BLOCK), 1)


@functools.cache
def library_text() -> bytes:
    """The standard library's."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    return b"".join(path.read_bytes() for path in paths)


def make(folder: Path, megabytes: float) -> None:
    """Files of about so many megabytes: the same rows again and again, times that continue."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    rows = table(BLOCK)
    parts = blocks(megabytes)
    with (
        csv.CSVWriter(folder / "table.csv", rows.schema) as lines,
        parquet.ParquetWriter(folder / "table.parquet", rows.schema) as groups,
    ):
        for _ in range(parts):
            lines.write_table(rows)
            groups.write_table(rows)
    start = np.datetime64("2000-01-01T00:00", "s")
    times = pa.field("time", pa.timestamp("s"))
    with csv.CSVWriter(folder / "series.csv", pa.schema([times, *list(rows.schema)[:8]])) as lines:
        for number in range(parts):
            stamps = start + 60 * (np.arange(BLOCK) + number * BLOCK)
            lines.write_table(rows.drop_columns("c").add_column(0, times, pa.array(stamps)))
    text = library_text()
    for name, size in (("text.txt", megabytes), ("less.txt", megabytes * TEXT_FRACTION)):
        with open(folder / name, "wb") as file:
            while file.tell() < size * 1e6:
                file.write(
                    text[: int(size * 1e6) - file.tell()].decode("utf-8", "ignore").encode() + b"\n"
                )


def make_more(folder: Path, megabytes: float) -> None:
    """Pairs of texts, all different, and prices of stocks, of their shares of so many megabytes."""
    import numpy as np

    with open(folder / "pairs.tsv", "w") as file:
        for pair in range(round(TEXT_FRACTION * megabytes * 1e6 / PAIR_BYTES)):
            file.write(f"what is said about number {pair:9}\tit is {pair:9}\n")
    random = np.random.default_rng(0)
    days = np.busday_offset("1990-01-01", np.arange(STOCK_DAYS), "forward")
    with open(folder / "stocks.csv", "w") as file:
        file.write("date,ticker,open,high,low,close,volume\n")
        for stock in range(round(STOCK_FRACTION * megabytes * 1e6 / STOCK_DAYS / DAY_BYTES)):
            close = 30 * np.exp(np.cumsum(0.01 * random.standard_normal(STOCK_DAYS)))
            prices = zip(days.astype(str), close, 1.01 * close, 0.99 * close, close, strict=True)
            file.writelines(
                f"{day},S{stock:04},{a:.5f},{b:.5f},{c:.5f},{d:.5f},9\n"
                for day, a, b, c, d in prices
            )


# ---- what is compared --------------------------------------------------------------------------


def read_csv(path: Path) -> None:
    from pyarrow import csv

    for _ in csv.open_csv(path, csv.ReadOptions(use_threads=False)):
        pass


def read_parquet(path: Path) -> None:
    from pyarrow import parquet

    for _ in parquet.ParquetFile(path).iter_batches(use_threads=False):
        pass


def copy(path: Path) -> None:
    digest = hashlib.sha256()
    with open(path, "rb") as old, open(path.with_suffix(".copy"), "wb") as new:
        while block := old.read(1 << 20):
            digest.update(block)
            new.write(block)
        os.fsync(new.fileno())


def texts(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        while text := file.read(PIECE):
            yield text


def byte_pairs(path: Path) -> None:
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = library.pre_tokenizer.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=8191, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(texts(path), trainer)
    held: list[str] = []
    for text in texts(path):
        held.append(text)
        if len(held) == 32:
            library.encode_batch_fast(held)
            held = []
    library.encode_batch_fast(held)


LIBRARIES: dict[str, Callable[[Path], None]] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "copy": copy,
    "byte pairs": byte_pairs,
}


# ---- measuring ---------------------------------------------------------------------------------


def child(what: str, path: Path, *words: str) -> tuple[float, int]:
    """CPU seconds and the peak of RssAnon in kilobytes. what: a library, or the folder of a
    project."""
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401
    import tokenizers  # noqa: F401

    if what in LIBRARIES:
        work = lambda: LIBRARIES[what](path)  # noqa: E731
    else:
        import torch

        torch.set_num_threads(1)
        sys.path.insert(0, f"{what}/src")
        import numpy.random  # noqa: F401

        for name in ("dataset", "commands.prepare", "engine.loading.loader"):
            importlib.import_module(f"my_training.{name}")
        with contextlib.suppress(ImportError):  # text that stays bytes is no table
            importlib.import_module("my_training.prepare.tables")
        command = importlib.import_module("my_training.__main__").main

        def work() -> None:
            data = ["--data.path", str(path.parent / "data")]
            assert command(["prepare", "--input", str(path), *words, *data]) == 0

    peak = 0
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.005):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    begun = time.process_time()
    work()
    seconds = time.process_time() - begun
    over.set()
    thread.join()
    return seconds, peak


def anonymous() -> int:
    """Kilobytes."""
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes)


def measured(what: str, path: Path, *words: str, rehearse: bool) -> tuple[float, float]:
    """CPU seconds, and MB at the peak, of a process of its own on one core; of a fork in a
    rehearsal."""
    if rehearse:
        seconds, peak = in_fork(lambda: silenced(what, path, *words))
        return seconds, peak / 1024
    core = max(os.sched_getaffinity(0))
    command = [
        "taskset",
        "-c",
        str(core),
        sys.executable,
        __file__,
        "--child",
        what,
        str(path),
        *words,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    run = {
        "env": environment,
        "cwd": path.parent,
        "stdout": subprocess.PIPE,
        "text": True,
        "check": True,
    }
    done: Any = subprocess.run(command, **run)  # type: ignore[call-overload]
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak / 1024


def silenced(what: str, path: Path, *words: str) -> tuple[float, int]:
    with contextlib.redirect_stdout(io.StringIO()):
        return child(what, path, *words)


def speed(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    from golden import Tree
    from rendering import render, render_into

    megabytes = arguments.megabytes
    before = arguments.before
    measure = functools.partial(measured, rehearse=arguments.rehearse)
    make(folder, megabytes)
    small = folder / "small"
    rows = []
    if before:
        small.mkdir()
        make(small, megabytes / 20)
        source = Tree(before, folder / "before").source
        older = {
            workload: str(
                render_into(folder / f"before-{workload}", source=source, workload=workload)
            )
            for workload in {case[0] for case in CASES.values()}
        }
    for title, (workload, name, words, library, wanted) in CASES.items():
        path = folder / name
        project = str(render(workload=workload))
        size = path.stat().st_size / 1e6
        found = []
        for _ in range(arguments.rounds):
            found.append((measure(library, path)[0], measure(project, path, *words)[0]))
        theirs, ours = (statistics.median(seconds) for seconds in zip(*found, strict=True))
        ratio = statistics.median(one / other for one, other in found)
        old = None
        if before and not name.endswith(".parquet"):
            seconds = measure(older[workload], small / name, *words)[0]
            old = f"{(small / name).stat().st_size / 1e6 / seconds:.1f}"
        reached = "yes" if ratio >= wanted else "no"
        cells = [
            f"{size:,.0f}",
            f"{size / theirs:.1f}",
            f"{size / ours:.1f}",
            f"{ratio:.2f}",
            str(wanted),
        ]
        rows.append([title, *cells, reached, old or "–"])
    head = [
        "input",
        "MB",
        "library MB/s",
        "prepare MB/s",
        "ratio",
        "wanted",
        "reached",
        "before MB/s",
    ]
    return {"columns": head, "rows": rows}


def memory(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    from rendering import render

    megabytes = arguments.megabytes
    rows = []
    measure = functools.partial(measured, rehearse=arguments.rehearse)
    found: dict[str, list[tuple[float, float]]] = {}
    for size in (megabytes, 10 * megabytes):
        make(folder, size)
        make_more(folder, size)
        grows = {
            "tabular": 9 * BLOCK * blocks(size),
            "seq2seq": 24 * size * TEXT_FRACTION * 1e6 / PAIR_BYTES,
        }
        for title, (workload, name, words) in MEMORY.items():
            path = folder / name
            peak = measure(str(render(workload=workload)), path, *words)[1]
            may = (
                measure("byte pairs", path)[1]
                if words == BYTE_PAIRS
                else grows.get(workload, 0) / 2**20
            )
            found.setdefault(title, []).append((peak, peak - may))
    for title, ((peak, less), (large, more)) in found.items():
        fits = "yes" if more <= 1.1 * less and more <= 400 else "no"
        rows.append([title, f"{peak:.0f}", f"{large:.0f}", f"{less:.0f}", f"{more:.0f}", fits])
    head = [
        "input",
        f"{megabytes:.0f} MB",
        f"{10 * megabytes:.0f} MB",
        "without what may grow",
        "of ten times",
        "fits",
    ]
    return {"columns": head, "rows": rows}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return print(json.dumps(child(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["speed", "memory"], help="(default: both)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of processes (default: 3)")
    parser.add_argument("--megabytes", type=float, default=200, help="of an input (default: 200)")
    parser.add_argument("--before", metavar="REVISION", help="measures that version beside")
    arguments = command_line(parser, rounds=1, megabytes=0.3, before=".")
    if arguments.rehearse:
        shrink()
    protocol = machine("pyarrow", "tokenizers") + ", one core"
    for name, part in (("speed", speed), ("memory", memory)):
        if arguments.part in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                publish(
                    "prepare", name, protocol, part(Path(folder), arguments), arguments=arguments
                )


if __name__ == "__main__":
    main()
