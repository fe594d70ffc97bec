"""How fast two versions of the template train: whole runs of both in turns, by their own metrics.

    python tools/compare.py v0.1.0 .                     # a git revision against the working tree
    python tools/compare.py v0.1.0 . --only loop,llm --rounds 9

OLD and NEW are as in tools/golden.py, whose small sizes these are. Both render the same answers,
synthesize their own data and train in fresh processes of one thread, with equal settings: where
defaults differ, OLD's; what one of them alone has is as by default. A round has each version once,
and their order turns: the median of `step_ms` and the mean of `data_wait_fraction` over rows after
the warm-up, and CPU seconds, user and system, of `train --help` and of a run of one step: imports,
dry run, evaluation, checkpoint, report, all without plots.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from golden import Cell, Tree, Trials
from publish import machine, tables

PARTS = {  # workload, loader, steps of a run
    "loop": ("tabular", "memmap", 3000),
    "loaders chunk": ("timeseries", "chunk", 600),
    "loaders memmap": ("timeseries", "memmap", 600),
    "loaders dataloader": ("timeseries", "dataloader", 600),
    "graph": ("graph", "dataloader", 300),
    "seq2seq": ("seq2seq", "dataloader", 300),
    "llm": ("llm", "memmap", 300),
}
ROWS = 60  # log entries of a run
WARM = 10  # of them, which do not count
# `-m my_training` without plots, of the curves or by hooks/examples.py: they cost what they show.
UNDRAWN = """import contextlib, sys, types
from my_training.__main__ import main
if "--help" not in sys.argv:
    from my_training.engine.monitoring import report
    report.draw = lambda *_: ""  # of earlier versions
    report.curves = lambda *_: types.SimpleNamespace(savefig=lambda *_: None)
    with contextlib.suppress(ImportError):  # a version that has none, or has it under another name
        from my_training.hooks import examples
        examples.THERE = False
        examples.Hook.after_evaluation = lambda *_: None
sys.exit(main(sys.argv[1:]))"""
NEVER = dict.fromkeys(("--evaluation.every_steps", "--checkpoint.every_steps"), str(10**9))


class Figures(NamedTuple):
    """Of one version in one round. waits: share of the time. Seconds are the CPU's."""

    step_ms: float
    waits: float
    help_s: float
    first_s: float


def cpu_seconds(project: Path, *words: str) -> float:
    """User and system time of `train` in a fresh process. Raises `RuntimeError` if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-c", UNDRAWN, "train", *words)
    before = os.times()
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{project}: {' '.join(words)}: {done.stderr[-2000:]}")
    return sum(os.times()[2:4]) - sum(before[2:4])  # of ended children


def one_step(project: Path, flags: dict[str, str]) -> float:
    """CPU seconds of the shortest run."""
    return cpu_seconds(project, *itertools.chain(*(flags | {"--training.max_steps": "1"}).items()))


def measure(project: Path, flags: dict[str, str]) -> Figures:
    from running import rows

    help_s = cpu_seconds(project, "--help")
    first_s = one_step(project, flags)
    cpu_seconds(project, *itertools.chain(*flags.items()))
    late = [row for row in rows(project) if "split" not in row][WARM:]
    shutil.rmtree(project / "runs")
    waits = statistics.mean(row["data_wait_fraction"] for row in late)
    return Figures(statistics.median(row["step_ms"] for row in late), waits, help_s, first_s)


def compare(part: str, old: Tree, new: Tree, rounds: int) -> list[str]:
    """The row of a part."""
    workload, loader, steps = PARTS[part]
    cell = Cell(workload, "fp32", loader, "pytorch")
    sides = {}
    pairs = []
    for tree in (old, new):
        words = Trials(old, steps).flags(tree, cell)
        flags = dict(zip(words[::2], words[1::2], strict=True)) | NEVER
        sides[tree] = (tree.render(cell), flags | {"--monitor.every_steps": str(steps // ROWS)})
        one_step(*sides[tree])  # synthesizes data, compiles Python and fills caches
    for number in range(rounds):
        figures = {
            tree: measure(*sides[tree]) for tree in ((new, old) if number % 2 else (old, new))
        }
        pairs.append((figures[old], figures[new]))
        print(f"{part}, round {number + 1}: {pairs[-1]}", file=sys.stderr, flush=True)
    ratios = [after.step_ms / before.step_ms for before, after in pairs]
    before, after = (
        Figures(*map(statistics.median, zip(*s, strict=True))) for s in zip(*pairs, strict=True)
    )
    row = [
        part,
        f"{before.step_ms:.3f}",
        f"{after.step_ms:.3f}",
        f"{statistics.median(ratios):.3f}",
    ]
    row += [f"{min(ratios):.3f} to {max(ratios):.3f}", f"{before.waits:.1%} → {after.waits:.1%}"]
    return [
        *row,
        f"{before.help_s:.2f} → {after.help_s:.2f}",
        f"{before.first_s:.2f} → {after.first_s:.2f}",
    ]


def main() -> None:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    every = ",".join(dict.fromkeys(part.split()[0] for part in PARTS))
    parser.add_argument("--only", default=every, metavar="PART,…", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    protocol = machine()
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        old = Tree(arguments.old, Path(scratch) / "old")
        new = Tree(arguments.new, Path(scratch) / "new")
        rows = [
            compare(part, old, new, arguments.rounds) for part in PARTS if part.split()[0] in only
        ]
    columns = ["part", "old ms/step", "new ms/step", "new ÷ old", "all pairs", "data wait"]
    columns += ["CPU s of --help", "CPU s of one step"]
    versions = f"{arguments.old} against {arguments.new}"
    how = f"{protocol}, one thread, {arguments.rounds} rounds, {versions}"
    print(tables({"protocol": how, "tables": [{"columns": columns, "rows": rows}]}))


if __name__ == "__main__":
    main()
