"""Do the figures of a project's `benchmark` repeat? The whole of it twice, one after the other.

A gain is printed with a range, in which nine of ten repeats are. Each row's second gain is compared
with the first one's range, each second median of a step with the first range from the 10th to the
90th percentile.

    python benchmarks/repeat.py [--workload graph] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from publish import command_line, machine, publish  # noqa: E402

SWITCHES = ("fused_optimizer", "loader", "accumulation", "checkpointing")
SMALL = {
    "graph": ("--model.width", "16", "--data.batch_size", "4"),
    "tabular": ("--data.batch_size", "256"),
}
SMALLEST = ("--warmup", "1", "--steps", "2", "--processes", "2")


def measured(project: Path, folder: Path, workload: str, rehearse: bool) -> list[dict[str, Any]]:
    """The rows of benchmark.json that have a range. A rehearsal forks its processes."""
    shutil.rmtree(folder / "benchmark_results", ignore_errors=True)
    words = SMALL.get(workload, ())
    if rehearse:
        from forking import forked_trials
        from running import run

        words = ("benchmark", *words, *SMALLEST)
        done = run(project, *words, cwd=folder, before=forked_trials(project))
        assert done.code == 0, done.err
    else:
        command = (sys.executable, "-m", "my_training", "benchmark", *SWITCHES, *words)
        environment = {
            **os.environ,
            "PYTHONPATH": str(project / "src"),
            "TRAINING_ROOT": str(folder),
        }
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((folder / "benchmark_results/benchmark.json").read_text())["rows"]
    return [row for row in rows if row["gain_low"] != row["gain_high"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", default="graph")
    arguments = command_line(parser)
    from rendering import render

    protocol = machine()
    project = render(workload=arguments.workload, extras=["benchmark"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.yaml").write_text((project / "config.yaml").read_text())
        given = project, folder, arguments.workload, arguments.rehearse
        first = measured(*given)
        second = measured(*given)
    rows = []
    inside = 0
    near = 0
    for one, other in zip(first, second, strict=True):
        gains = one["gain_low"] <= other["gain"] <= one["gain_high"]
        steps = one["step_ms"]["p10"] <= other["step_ms"]["median"] <= one["step_ms"]["p90"]
        inside += gains
        near += steps
        rows.append(
            [
                f"{one['table'].replace('_', ' ')}: {one['name']}",
                f"{one['gain']:.2f} ({one['gain_low']:.2f}-{one['gain_high']:.2f})",
                f"{other['gain']:.2f}",
                "yes" if gains else "no",
                f"{one['step_ms']['p10']:.2f}-{one['step_ms']['p90']:.2f}",
                f"{other['step_ms']['median']:.2f}",
                "yes" if steps else "no",
            ]
        )
    rows.append(
        ["rows within", "", "", f"{inside} of {len(rows)}", "", "", f"{near} of {len(rows)}"]
    )
    columns = [
        "row",
        "gain",
        "again",
        "within its range",
        "ms/step, p10-p90",
        "median again",
        "within",
    ]
    how = f"{protocol}, workload {arguments.workload}, as `benchmark` does it: "
    how += "3 processes of 20 + 100 steps"
    publish("repeat", "repeat", how, {"columns": columns, "rows": rows}, arguments=arguments)


if __name__ == "__main__":
    main()
