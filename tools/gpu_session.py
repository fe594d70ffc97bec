"""All that only a GPU can show, in the order of its value, in calls that can be interrupted and go on.

    python tools/gpu_session.py              # on the machine with the GPU, until it says that all is done
    python tools/gpu_session.py --list       # what is done, and what comes next
    python tools/gpu_session.py --rehearse   # all of it in small on a CPU, some minutes, no figures of worth
    python tools/gpu_session.py --publish    # at home: what was measured, onto the pages of docs/benchmarks

First whether all of it is right (the GPU tier of the tests), then the rows of each benchmark that matter
most, then the others. A call ends within nine minutes, all calls together within 25; each test and each row
is kept when it ends, in the folder RESULTS, so that the next call, or another machine that was given that
folder, begins with what is missing. What failed is not tried again without `--again`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/gpu")]

from publish import PAGES, keep, page_of  # noqa: E402
from rows import Row, left_out, read  # noqa: E402

RESULTS, PROJECTS = ROOT / "build/gpu/results", ROOT / "build/gpu/projects"
CALL, TOTAL = 520, 25 * 60  # seconds
LEAST = 45  # seconds that a stage must have left to be worth its start
GRACE = 10  # seconds to end in
CHECKED = "FASTTRAIN_CHECKED"  # environment: the file of tests with an outcome
NOT_A_FIGURE = "none: a rehearsal"


class Stage(NamedTuple):
    """A part of the evidence. seconds: about what it takes on an H200, for the plan."""

    name: str
    part: str
    seconds: int
    headline: bool = False

    @property
    def page(self) -> str:
        return {"timeseries": "loaders"}.get(self.part, self.part)


PROJECT = {
    "llm": "llm-memmap-pytorch",
    "seq2seq": "seq2seq-dataloader-pytorch",
    "timeseries": "windows-chunk-pytorch",
    "graph": "graph-dataloader-pytorch",
}
STAGES = (
    Stage("check", "check", 240),
    Stage("llm, headline", "llm", 150, True),
    Stage("seq2seq, headline", "seq2seq", 150, True),
    Stage("timeseries", "timeseries", 330),
    Stage("graph", "graph", 150),
    Stage("llm, the rest", "llm", 240),
    Stage("seq2seq, the rest", "seq2seq", 180),
)


# --- what is there


def tests(results: Path) -> dict[str, str]:
    """Outcome by test of the GPU tier; `(all)` once every test has one."""
    return {name: row["outcome"] for name, row in read(results / "check.jsonl").items()}


def names(stage: Stage) -> list[str]:
    """Rows of a stage, as the page of the repository has them."""
    (table,) = json.loads((PAGES / f"{stage.page}.json").read_text(encoding="utf-8"))["gpu"][
        "tables"
    ]
    every = [row[0] for row in table["rows"]]
    return [name for name in every if not stage.headline or name in first_of(stage.part)]


def first_of(part: str) -> tuple[str, ...]:
    """The rows of a benchmark that matter most."""
    spec = importlib.util.spec_from_file_location(f"gpu_{part}", ROOT / f"benchmarks/gpu/{part}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.FIRST)


def missing(stage: Stage, results: Path, again: bool = False) -> list[str]:
    """Rows that a call would measure, or for the tier of tests one line."""
    if stage.part == "check":
        found = tests(results)
        failed = [name for name, outcome in found.items() if outcome == "failed"]
        return (failed if again else []) if "(all)" in found else ["the GPU tier of the tests"]
    rows = read(results / f"{stage.page}.jsonl")
    return [name for name in names(stage) if name not in rows or worth(rows[name], again)]


def worth(row: Row, again: bool) -> bool:
    """Whether a row that is there is to be measured once more."""
    return "error" in row and (again or left_out(row))


def failures(results: Path) -> list[str]:
    lines = [f"test {name}" for name, outcome in tests(results).items() if outcome == "failed"]
    for stage in STAGES[1:]:
        rows = read(results / f"{stage.page}.jsonl").values()
        lines += [
            f"{stage.part}: {row['name']}: {row['error']}" for row in rows if worth(row, True)
        ]
    return list(dict.fromkeys(lines))


def spent(results: Path) -> float:
    """Seconds of all calls so far."""
    path = results / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(json.loads(line)["seconds"] for line in lines)


def overview(results: Path, again: bool = False) -> str:
    """What is done, what failed, and what comes next."""
    lines, coming = [], ""
    for stage in STAGES:
        left = missing(stage, results, again)
        if left and not coming:
            coming = stage.name
        whole = 1 if stage.part == "check" else len(names(stage))
        state = (
            "done" if not left else f"{len(left)} of {whole} to do, about {stage.seconds} s in all"
        )
        lines.append(f"{'  ' if stage.name != coming else '> '}{stage.name:<20}{state}")
    lines += [f"failed: {line}" for line in failures(results)]
    then = f"next: {coming}" if coming else "all is done"
    return "\n".join([*lines, f"{spent(results):.0f} s of {TOTAL} s are spent; {then}"])


# --- the calls


def command(stage: Stage, arguments: argparse.Namespace, seconds: float) -> list[str]:
    """What measures the rest of a stage."""
    if stage.part == "check":
        tier = ("-n", "0" if arguments.rehearse else "8", "-m", "gpu", "tests/gpu", "-q")
        return [
            sys.executable,
            "-m",
            "pytest",
            *tier,
            "-p",
            "no:cacheprovider",
            "-p",
            "gpu_session",
        ]
    carried = PROJECTS / PROJECT[stage.part]
    words = [f"benchmarks/gpu/{stage.part}.py", "--resume", "--output", str(arguments.results)]
    words += ["--again"] * arguments.again + ["--rehearse"] * arguments.rehearse
    words += ["--headline"] * stage.headline + ["--seconds", str(int(seconds))]
    words += ["--project", str(carried)] if carried.exists() else []
    return [sys.executable, *words]


def environment(stage: Stage, results: Path, again: bool) -> dict[str, str]:
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if stage.part == "check":
        path = os.pathsep.join(
            filter(None, (str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")))
        )
        found |= {"PYTHONPATH": path, CHECKED: str(results / "check.jsonl")}
        # Every process of pytest-xdist must leave out the same tests: as it was when the call began.
        kept = [
            name for name, outcome in tests(results).items() if not (again and outcome == "failed")
        ]
        (results / "check.known.json").write_text(json.dumps(kept))
        if PROJECTS.exists():
            found["FASTTRAIN_PROJECTS"] = str(PROJECTS)
    return found


def run(stage: Stage, arguments: argparse.Namespace, deadline: float) -> int | None:
    """Runs a stage; its exit code, or None where the time came to its end before."""
    process = subprocess.Popen(
        command(stage, arguments, deadline - time.monotonic() - GRACE),
        cwd=ROOT,
        env=environment(stage, arguments.results, arguments.again),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=os.setpgrp,  # ended with all that it starts
    )

    def listen() -> None:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            pack(arguments)

    reader = threading.Thread(target=listen, daemon=True)
    reader.start()
    try:
        return process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)
        reader.join(GRACE)
        pack(arguments)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a stage and what it has started, if it runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE / 2)


def pack(arguments: argparse.Namespace) -> None:
    """All results in one file, for machines from which few files come home; whole at any time."""
    if arguments.archive is not None:
        partial = arguments.archive.with_name(f".{arguments.archive.name}.partial")
        with tarfile.open(partial, "w") as archive:
            for path in sorted(arguments.results.glob("*.json*")):
                archive.add(path, path.name)
        partial.replace(arguments.archive)


def unpack(archive: Path, results: Path) -> None:
    with tarfile.open(archive) as found:
        for member in found.getmembers():
            if re.fullmatch(r"[a-z0-9.]+\.jsonl?", member.name) and (
                file := found.extractfile(member)
            ):
                (results / member.name).write_bytes(file.read())


def session(arguments: argparse.Namespace) -> int:
    """One call; 0 when all is done, 75 when there is more to do."""
    results, begun = arguments.results, time.monotonic()
    deadline = begun + min(arguments.seconds, arguments.minutes * 60 - spent(results))
    try:
        for stage in STAGES:
            if arguments.parts and stage.part not in arguments.parts:
                continue
            if not missing(stage, results, arguments.again):
                continue
            if deadline - time.monotonic() < LEAST:
                break
            print(f"== {stage.name}, {deadline - time.monotonic():.0f} s left", flush=True)
            if run(stage, arguments, deadline) is None:
                break
    finally:
        with open(results / "calls.jsonl", "a") as file:
            file.write(json.dumps({"seconds": round(time.monotonic() - begun, 1)}) + "\n")
        pack(arguments)
        print(overview(results, arguments.again))
    chosen = [stage for stage in STAGES if not arguments.parts or stage.part in arguments.parts]
    return 75 if any(missing(stage, results) for stage in chosen) else 0


# --- onto the pages


def publish(results: Path, pages: Path) -> list[str]:
    """Puts what was measured into the pages; names of those that changed. The rest stays «not measured»."""
    changed, rows = list[str](), dict[str, dict[str, Row]]()
    for page in dict.fromkeys(stage.page for stage in STAGES[1:]):
        path = results / f"{page}.json"
        found = {
            name: row for name, row in read(results / f"{page}.jsonl").items() if "error" not in row
        }
        if not found or not path.exists():
            continue
        if any(row["gpu"] == NOT_A_FIGURE for row in found.values()):
            sys.exit(f"error: {path} is of a rehearsal: there is nothing to publish")
        figures = json.loads(path.read_text(encoding="utf-8"))["gpu"]
        for table in figures["tables"]:
            width = len(table["columns"]) - 1
            table["rows"] = [
                [name, *(cells if name in found else [None] * width)]
                for name, *cells in table["rows"]
            ]
        keep(pages / f"{page}.json", "gpu", figures)
        page_of(pages / f"{page}.json")
        rows[page] = found
        changed.append(page)
    if changed:
        headlines(rows, results, pages)
    return changed


def headlines(rows: dict[str, dict[str, Row]], results: Path, pages: Path) -> None:
    """The column of figures of ours in the table of headlines; a cell that nothing was measured for stays."""
    path = pages / "README.json"
    figures = json.loads(path.read_text(encoding="utf-8"))["headlines"]
    (table,) = figures["tables"]
    for row, text in zip(table["rows"], claims(rows), strict=True):
        row[-1] = text or row[-1]
    known = [
        json.loads((results / f"{page}.json").read_text(encoding="utf-8"))["gpu"] for page in rows
    ]
    ours = known[0]["protocol"].split(", load ")[0]
    figures["protocol"] = f"The owners' figures are theirs, on their machines; ours: {ours}"
    keep(path, "headlines", figures)
    page_of(path)


def claims(rows: dict[str, dict[str, Row]]) -> Iterator[str]:
    """What each line of the headlines says of us, in the table's order; empty where a row is missing."""

    def pair(page: str, one: str, other: str) -> tuple[Row, Row] | None:
        found = rows.get(page, {})
        return (found[one], found[other]) if one in found and other in found else None

    yield with_pair(
        pair("seq2seq", "T5-large, TF32", "T5-large, fp32"),
        lambda a, b: f"T5-large {a['samples_per_second'] / b['samples_per_second']:.2f}×",
    )
    graph = rows.get("graph", {}).get("graphs of `prepare`")
    text = with_pair(
        pair("graph", "graphs of `prepare`", "rebuilt, Python loop over stocks"),
        lambda a, b: (
            f"{a['windows_per_second']:,.0f} windows/s, "
            f"{a['samples_per_second'] / b['samples_per_second']:.1f}× the Python loop"
        ),
    )
    busy = (
        f", GPU {graph['gpu_busy_percent']:.0f} % busy"
        if graph and "gpu_busy_percent" in graph
        else ""
    )
    yield text + busy if text else ""
    yield with_pair(
        pair("llm", "deterministic", "+ chunked loss"),
        lambda a, b: f"{a['step_ms'] / b['step_ms'] - 1:+.1%} a step",
    )
    slow, chunk = "map-style DataLoader, 0 workers, fp32", "chunk loader, two chunks of 2 GB"
    text = with_pair(
        pair("loaders", chunk, slow), lambda a, b: f"{a['epoch_s'] / b['epoch_s'] - 1:+.1%}"
    )
    every = with_pair(
        pair("loaders", "+ auto precision, fused AdamW", slow),
        lambda a, b: f", {a['epoch_s'] / b['epoch_s'] - 1:+.1%} with all else",
    )
    yield text + every if text else ""
    yield with_pair(
        pair("llm", "+ chunked loss", "no optimization (fp32)"),
        lambda a, b: (
            f"memory {a['memory_gb'] / b['memory_gb'] - 1:+.0%}, "
            f"{a['tokens_per_second'] / b['tokens_per_second']:.1f}× the tokens/s"
        ),
    )


def with_pair(pair: tuple[Row, Row] | None, words: Any) -> str:
    return str(words(*pair)) if pair else ""


# --- the GPU tier's outcomes, as pytest tells them (`-p gpu_session`)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out the tests that have an outcome of an earlier call."""
    known = set(json.loads(Path(os.environ[CHECKED]).with_name("check.known.json").read_text()))
    gone = [item for item in items if item.nodeid in known]
    items[:] = [item for item in items if item.nodeid not in known]
    config.hook.pytest_deselected(items=gone)


def pytest_runtest_logreport(report: Any) -> None:
    """Once for each test, in the process that hears of all of them."""
    if "PYTEST_XDIST_WORKER" not in os.environ and (
        report.when == "call" or report.outcome != "passed"
    ):
        note({"name": report.nodeid, "outcome": report.outcome})


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """All passed, some failed, or none was left: every test has its outcome."""
    if "PYTEST_XDIST_WORKER" not in os.environ and int(exitstatus) in (0, 1, 5):
        note({"name": "(all)", "outcome": "passed"})


def note(row: Row) -> None:
    with open(os.environ[CHECKED], "a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--results", type=Path, default=RESULTS, help="folder (default: build/gpu/results)")
    add(
        "--archive",
        type=Path,
        help="all results in one file, anew after each row; read if it is there",
    )
    add("--seconds", type=float, default=CALL, help=f"of this call (default: {CALL})")
    add("--minutes", type=float, default=TOTAL / 60, help=f"of all calls (default: {TOTAL // 60})")
    add("--parts", nargs="+", choices=["check", *PROJECT], help="only these")
    add("--again", action="store_true", help="try once more what failed")
    add("--rehearse", action="store_true", help="all of it in small; needs no GPU")
    add("--list", action="store_true", help="say what is done and what is next")
    add("--publish", action="store_true", help="put what was measured onto the pages")
    add("--pages", type=Path, default=PAGES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the stage, too
    arguments.results = arguments.results.resolve()
    if arguments.rehearse and arguments.results == RESULTS:  # its rows are no figures
        arguments.results = RESULTS.with_name("rehearsal")
    arguments.results.mkdir(parents=True, exist_ok=True)
    if arguments.archive is not None and arguments.archive.exists():
        unpack(arguments.archive, arguments.results)
    if arguments.list:
        print(overview(arguments.results, arguments.again))
        return 0
    if arguments.publish:
        print(
            "published: "
            + (", ".join(publish(arguments.results, arguments.pages)) or "nothing was measured")
        )
        return 0
    return session(arguments)


if __name__ == "__main__":
    sys.exit(main())
