"""What a rendered README tells a new user to do, by its own commands.

`.venv` is a link to the environment of these tests, where `make setup` would make one, and
PYTHONPATH names the package that it would install.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import stocks
from rendering import render_into, replace
from running import report_of
from variants import choices


def numbers(header: str, rows: int) -> str:
    """A CSV of random walks; a first column `time` counts days."""
    names = header.split(",")
    table = np.random.default_rng(0).standard_normal((rows, len(names))).cumsum(0)
    days = np.datetime64("2020-01-01") + np.arange(rows)
    first = days.astype(str) if names[0] == "time" else table[:, 0].round(3).astype(str)
    cells = np.column_stack([first, table[:, 1:].round(3).astype(str)])
    return "\n".join([header, *map(",".join, cells)]) + "\n"


def windows(path: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["features"] = random.standard_normal((rows, 8, 3), dtype=np.float32)
        file["targets"] = random.standard_normal((rows, 2), dtype=np.float32)


def files_of(workload: str) -> dict[str, str]:
    """The texts that the README's commands name, by the names of their files."""
    series = {
        name: numbers("time,load,heat", rows) for name, rows in (("series", 900), ("new_rows", 150))
    }
    return {
        "tabular": {"table.csv": numbers("a,b,price", 200), "new_rows.csv": numbers("a,b", 5)},
        "timeseries": {f"{name}.csv": text for name, text in series.items()},
        "llm": {"book.txt": "It was a dark and stormy night; the rain fell in torrents. " * 300},
        "seq2seq": {
            "pairs.tsv": "".join(f"what is {n}\tit is {n + 1}\n" for n in range(120)),
            "new.tsv": "what is 7\n",
        },
    }.get(workload, {})


def write_own_data(workload: str, folder: Path) -> None:
    for name, text in files_of(workload).items():
        (folder / name).write_text(text)
    if workload == "windows":
        windows(folder / "windows.h5", 300)
        windows(folder / "new_windows.h5", 9)
    if workload == "graph":
        stocks.write_folder(folder / "prices")


def shell(project: Path, command: str) -> str:
    """What a command prints that runs in the activated environment."""
    environment = {
        **os.environ,
        "PATH": f"{project / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project / "src"),
        "OMP_NUM_THREADS": "1",
    }
    for name in ("TRAINING_ROOT", "MAKEFLAGS", "MAKELEVEL", "ARGS"):
        environment.pop(name, None)
    words = ["sh", "-c", command]
    done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("workload", choices("workload"))
def test_a_first_run_then_data_of_your_own(workload, tmp_path):
    project = render_into(tmp_path / "myproj", workload=workload)
    (project / ".venv").symlink_to(Path(sys.executable).parents[1])
    assert "finished at step" in shell(project, 'make try ARGS="--minutes 0.01"')
    shell(project, "make report")
    assert "validation" in report_of(project)

    write_own_data(workload, project)
    readme = re.sub(r"\s*\\\n\s*", " ", (project / "README.md").read_text(encoding="utf-8"))
    block = readme.partition("## Your data\n")[2].partition("```sh\n")[2].partition("\n```")[0]
    prepare, train, predict = (line.strip() for line in block.splitlines())
    assert "next: " in shell(project, prepare)
    replace(project / "config.yaml", "\n  max_steps: 0\n", "\n  max_steps: 6\n")
    assert train == "make train evaluate"
    assert "stopped at step 3 of 6" in shell(project, 'make train ARGS="--max-steps 3"')
    shell(project, "make evaluate")
    shell(project, predict)
    assert "finished at step 6 of 6" in shell(project, 'make train ARGS="--resume"')
