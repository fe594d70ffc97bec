"""How fast two versions of the template train: whole runs of both in turns, by their own metrics.

    python tools/compare.py v0.1.0 .                     # a git revision against the working tree
    python tools/compare.py v0.1.0 . --only loop,llm --rounds 9

OLD and NEW are git revisions, `.` for the working tree, or folders with a copier.yml, as in tools/golden.py,
whose small sizes these are. Both render the same answers without extras, synthesize their own data and train
in fresh processes of one thread, with equal settings as flags: where defaults differ, OLD's. What one of them
alone has is as by default. A round has each version once, and their order turns. Its figures are medians of
`step_ms` and means of `data_wait_fraction` over the rows after the warm-up, and CPU seconds, user and system,
of `train --help` and of a run of one step: imports, data, dry run, evaluation, checkpoint, report.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from golden import Cell, Tree, Trials  # noqa: E402
from publish import machine, tables  # noqa: E402

PARTS = {  # workload, loader, steps of a run
    "loop": ("tabular", "memmap", 3000),
    "loaders chunk": ("timeseries", "chunk", 600),
    "loaders memmap": ("timeseries", "memmap", 600),
    "loaders dataloader": ("timeseries", "dataloader", 600),
    "graph": ("graph", "dataloader", 300),
    "seq2seq": ("seq2seq", "dataloader", 300),
    "llm": ("llm", "memmap", 300),
}
ROWS, WARM = 60, 10  # rows of metrics of a run; how many of them do not count
NEVER = str(10**9)


class Figures(NamedTuple):
    """Of one version in one round."""

    step_ms: float
    waits: float  # share of the time in which the loop waits for data
    help_s: float  # CPU seconds
    first_s: float


def cpu_seconds(project: Path, *words: str) -> float:
    """User and system time of a project's command in a fresh process. Raises `RuntimeError` if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = (sys.executable, "-m", "my_training", *words)
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{project}: {' '.join(words)}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(project: Path, flags: dict[str, str]) -> Figures:
    from running import rows

    words = [word for pair in flags.items() for word in pair]
    one_step = [word for pair in {**flags, "--training.max_steps": "1"}.items() for word in pair]
    help_s, first_s = cpu_seconds(project, "train", "--help"), cpu_seconds(project, "train", *one_step)
    shutil.rmtree(project / "runs")
    cpu_seconds(project, "train", *words)
    late = [row for row in rows(project) if "split" not in row][WARM:]
    shutil.rmtree(project / "runs")
    step_ms = statistics.median(row["step_ms"] for row in late)
    return Figures(step_ms, statistics.mean(row["data_wait_fraction"] for row in late), help_s, first_s)


def compare(part: str, old: Tree, new: Tree, rounds: int) -> list[str]:
    """The row of a part."""
    workload, loader, steps = PARTS[part]
    cell, pairs = Cell(workload, "fp32", loader, "pytorch"), []
    more = {"--monitor.every_steps": str(steps // ROWS), "--monitor.progress": "false"}
    more |= {"--evaluation.every_steps": NEVER, "--checkpoint.every_steps": NEVER}
    projects = {}
    for tree in (old, new):
        words = Trials(old, steps).flags(tree, cell)
        projects[tree] = tree.render(cell), dict(zip(words[::2], words[1::2], strict=True)) | more
    for number in range(-1, rounds):
        order = (old, new) if number % 2 else (new, old)
        found = {tree: measure(*projects[tree]) for tree in order}
        if number >= 0:  # the first one synthesizes data, compiles Python and fills caches
            pairs.append((found[old], found[new]))
            steps_ms = " and ".join(f"{figures.step_ms:.3f}" for figures in pairs[-1])
            print(f"{part}, round {number + 1}: {steps_ms} ms a step", file=sys.stderr, flush=True)
    ratios = [after.step_ms / before.step_ms for before, after in pairs]
    middle = [Figures(*map(statistics.median, zip(*side, strict=True))) for side in zip(*pairs, strict=True)]
    both = lambda name, form: [format(getattr(figures, name), form) for figures in middle]  # noqa: E731
    row = [part, *both("step_ms", ".3f"), f"{statistics.median(ratios):.3f}"]
    row += [f"{min(ratios):.3f} to {max(ratios):.3f}"]
    return row + [
        " → ".join(both(*what)) for what in (("waits", ".1%"), ("help_s", ".2f"), ("first_s", ".2f"))
    ]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--only", default="", metavar="PART,…", help="of " + ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="(default: %(default)s)")
    arguments = parser.parse_args(words)
    only, protocol = arguments.only.split(",") if arguments.only else [], machine()
    parts = [part for part in PARTS if not only or part in only or part.split()[0] in only]
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        old, new = Tree(arguments.old, Path(scratch) / "old"), Tree(arguments.new, Path(scratch) / "new")
        rows = [compare(part, old, new, arguments.rounds) for part in parts]
    columns = ["part", "old ms/step", "new ms/step", "new ÷ old", "all pairs"]
    columns += ["data wait", "CPU s of --help", "CPU s of one step"]
    protocol += f", one thread, {arguments.rounds} rounds, {arguments.old} against {arguments.new}"
    print(tables({"protocol": protocol, "tables": [{"columns": columns, "rows": rows}]}))


if __name__ == "__main__":
    main(sys.argv[1:])
