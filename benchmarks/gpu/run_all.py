"""All that only a GPU can show: the GPU tests, the rows of the headlines, then the other rows.

    make bench-gpu                    # resumes where it was interrupted
    make bench-gpu ARGS=--rehearse    # every row in small on a CPU; no result counts
    make bench-gpu ARGS=--publish     # write what was measured onto the pages of docs/benchmarks
    make bench-gpu PART=llm           # one benchmark
    make bench-gpu ARGS='--only resume timeseries "llm, headline"'

Each row is kept in `--output` when it ends: copy that folder to another machine to continue or to
publish there.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from publish import PAGES, put
from rows import OUTPUT, REHEARSAL, REHEARSED, ROOT, Row, read

CHUNK_TESTS = "tests of the chunk loader"
PYTEST = ("-m", "pytest", "-m", "gpu", "-q")
PARTS = 4  # of the GPU tests: what a lost machine repeats
STAGES = {  # in the order of their value
    "resume": ("benchmarks/gpu/resume.py",),
    CHUNK_TESTS: (*PYTEST, "tests/gpu/test_chunk.py"),
    "timeseries": ("benchmarks/gpu/timeseries.py",),
    "llm, headline": ("benchmarks/gpu/llm.py", "--headline"),
    "scripts": ("benchmarks/gpu/scripts.py",),
    "llm": ("benchmarks/gpu/llm.py",),
    "seq2seq, headline": ("benchmarks/gpu/seq2seq.py", "--headline"),
    "seq2seq": ("benchmarks/gpu/seq2seq.py",),
    "vision": ("benchmarks/gpu/vision.py",),
    "chat": ("benchmarks/gpu/chat.py",),
    "experiment": ("benchmarks/gpu/experiment.py",),
    "graph": ("benchmarks/gpu/graph.py",),
}
for number in range(1, PARTS + 1):
    shard = f"{number}/{PARTS}"
    STAGES[f"GPU tests, part {number}"] = (*PYTEST, "tests/gpu", "--shard", shard)


def run_all(output: Path, stages: list[str], rehearse: bool) -> int:
    """Run the stages; the benchmarks themselves leave out the rows that are there."""
    failed = []
    for name, words in STAGES.items():
        if name not in stages:
            continue
        is_test = words[:2] == PYTEST[:2]
        passed = output / f"passed-{name.replace(' ', '-')}"
        if passed.exists():
            continue
        print(f"== {name}", flush=True)
        command = [sys.executable, *words]
        if is_test:
            command += ["-n", "0" if rehearse else "8"]
        else:
            command += ["--output", str(output), *["--rehearse"] * rehearse]
        code = subprocess.run(command, cwd=ROOT).returncode
        if code:
            failed.append(name)
        elif is_test:
            output.mkdir(parents=True, exist_ok=True)
            passed.touch()
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def publish(output: Path, pages: Path) -> None:
    """Write measured rows onto their pages; what failed or is missing stays "not measured yet".

    Rows that an earlier session measured, and this one did not, stay in a table of their own.
    """
    measured: dict[str, dict[str, Row]] = {}
    for path in sorted(output.glob("*.jsonl")):
        rows = {name: row for name, row in read(path).items() if "error" not in row}
        if any(row["gpu"] == REHEARSAL for row in rows.values()):
            sys.exit(f"error: {path} is of a rehearsal: there is nothing to publish")
        measured[path.stem] = rows
    for page, rows in measured.items():
        figures = json.loads((output / f"{page}.json").read_text(encoding="utf-8"))["gpu"]
        (table,) = figures["tables"]
        for row in table["rows"]:
            if row[0] not in rows:
                row[1:] = [None] * len(row[1:])
        known = json.loads((pages / f"{page}.json").read_text(encoding="utf-8"))["gpu"]
        figures["tables"] = [*earlier(known, set(rows)), table]
        put(pages, page, "gpu", figures)
    publish_headlines(measured, pages)


def earlier(figures: Row, names: set[str]) -> list[Row]:
    """The tables of a page with what was measured, except for rows that are measured again."""
    kept = []
    for table in figures["tables"]:
        rows = [row for row in table["rows"] if any(row[1:]) and row[0] not in names]
        if rows:
            protocol = table.get("protocol", figures["protocol"])
            kept.append({"columns": table["columns"], "rows": rows, "protocol": protocol})
    return kept


def speed(one: Row, other: Row) -> str:
    return f"{one['samples_per_second'] / other['samples_per_second']:.2f}× the samples/s"


def windows(one: Row, other: Row) -> str:
    busy = f", GPU {one['gpu_busy_percent']:.0f} % busy" if "gpu_busy_percent" in one else ""
    return f"{one['windows_per_second']:,.0f} windows/s, {speed(one, other)}{busy}"


def longer(one: Row, other: Row) -> str:
    return f"{one['step_ms'] / other['step_ms'] - 1:+.1%} a step"


def epoch(one: Row, other: Row) -> str:
    return f"{one['epoch_s'] / other['epoch_s'] - 1:+.1%} an epoch"


def memory(one: Row, other: Row) -> str:
    faster = one["tokens_per_second"] / other["tokens_per_second"]
    return f"memory {one['memory_gb'] / other['memory_gb'] - 1:+.0%}, {faster:.1f}× the tokens/s"


# In the order of the table: page, row, the row that it is compared with, and the text.
HEADLINES: tuple[tuple[str, str, str, Callable[[Row, Row], str]], ...] = (
    ("seq2seq", "T5-large, TF32", "T5-large, fp32", speed),
    ("graph", "graphs of `prepare`", "rebuilt, Python loop over stocks", windows),
    ("llm", "deterministic, chunked loss", "chunked loss", longer),
    (
        "loaders",
        "chunk loader, two chunks of 2 GB",
        "map-style DataLoader, 0 workers, fp32",
        epoch,
    ),
    ("llm", "+ fused AdamW", "no optimization (fp32)", memory),
)


def publish_headlines(measured: dict[str, dict[str, Row]], pages: Path) -> None:
    """Write the last column of the table of headlines; a cell without both rows stays."""
    figures = json.loads((pages / "README.json").read_text(encoding="utf-8"))["headlines"]
    (table,) = figures["tables"]
    for row, (page, name, reference, text) in zip(table["rows"], HEADLINES, strict=True):
        known = measured.get(page, {})
        if name in known and reference in known:
            one = known[name]
            row[-1] = f"{text(one, known[reference])} ({one['gpu']}, {one['date']})"
    put(pages, "README", "headlines", figures)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help=f"of the results (default: {OUTPUT})")
    parser.add_argument("--rehearse", action="store_true", help="every row in small; needs no GPU")
    text = f"run only these stages: {', '.join(map(repr, STAGES))}"
    parser.add_argument(
        "--only", nargs="+", choices=STAGES, default=[*STAGES], metavar="STAGE", help=text
    )
    parser.add_argument("--publish", action="store_true", help="only write the pages")
    arguments = parser.parse_args()
    output = arguments.output or (REHEARSED if arguments.rehearse else OUTPUT)
    if arguments.publish:
        publish(output, PAGES)
        return
    # Otherwise the stage that runs would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(run_all(output.resolve(), arguments.only, arguments.rehearse))


if __name__ == "__main__":
    main()
