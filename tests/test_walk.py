"""A new user's walk, from the interview to another card, by documented commands alone.

Two things stand for what needs a network: `.venv` is a link to the environment of these tests,
where `make setup` would make one, and PYTHONPATH names the package that it would install.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import stocks
from rendering import REPOSITORY, questions, replace, template
from running import report_of
from terminal import ENTER, Terminal
from test_interview import asked, down
from test_update import _clean_home, commit  # noqa: F401  # a fixture
from variants import choices

SOURCE = "gh:org/fasttrain-template"  # what the documents call the template
DOCUMENTS = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
PROMPTS = [name for name in questions() if name not in ("gpu_compute_capability", "gpu_memory_gb")]


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


def tables(folder: Path, **files: str) -> None:
    for name, content in files.items():
        (
            folder / name.replace("_csv", ".csv").replace("_tsv", ".tsv").replace("_txt", ".txt")
        ).write_text(content)


PAIRS = "".join(f"what is {n}\tit is {n + 1}\n" for n in range(120))
# The files that each README's commands name.
OWN: dict[str, Callable[[Path], object]] = {
    "tabular": lambda at: tables(
        at, table_csv=numbers("a,b,price", 200), new_rows_csv=numbers("a,b", 5)
    ),
    "timeseries": lambda at: tables(
        at, series_csv=numbers("time,load,heat", 900), new_rows_csv=numbers("time,load,heat", 150)
    ),
    "windows": lambda at: (windows(at / "windows.h5", 300), windows(at / "new_windows.h5", 9)),
    "llm": lambda at: tables(
        at, book_txt="It was a dark and stormy night; the rain fell in torrents. " * 300
    ),
    "seq2seq": lambda at: tables(at, pairs_tsv=PAIRS, new_tsv="what is 7\n"),
    "graph": lambda at: stocks.write_folder(at / "prices"),
}


class Walker:
    """Runs commands in a shell at the project, if a document, its README or its first message has
    them."""

    def __init__(self, project: Path, screen: str) -> None:
        self.project = project
        self.screen = screen
        # As `source .venv/bin/activate` does.
        path = f"{project / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(project / "src"),
            "OMP_NUM_THREADS": "1",
        }
        for name in ("TRAINING_ROOT", "MAKEFLAGS", "MAKELEVEL", "ARGS"):
            self.environment.pop(name, None)

    def readme(self) -> str:
        """As one line, where a command may be broken."""
        text = (self.project / "README.md").read_text(encoding="utf-8")
        return re.sub(r"\s*\\\n\s*", " ", text)

    def __call__(self, command: str, arguments: str = "", cwd: Path | None = None) -> str:
        """What it prints. arguments: of ARGS, or of the command."""
        listed = re.findall(
            r"^([a-z-]+):.*## ", (self.project / "Makefile").read_text(encoding="utf-8"), re.M
        )
        known = [
            self.readme(),
            self.screen,
            *(f"make {target}" for target in listed),
        ]  # as `make` lists them
        known += [page.read_text(encoding="utf-8") for page in DOCUMENTS]
        assert any(
            re.search(rf"(?m)(^ *|`){re.escape(command)}($|`| +#|;| )", text) for text in known
        ), command
        words = (
            f'{command} ARGS="{arguments}"' if command.startswith("make") and arguments else command
        )
        done = subprocess.run(
            ["sh", "-c", words],
            cwd=cwd or self.project,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def interview(workload: str, folder: Path) -> Walker:
    """Answers one question and takes the default of all others; what stands on the screen is done
    next."""
    upstream = commit(shutil.copytree(template(), folder / "fasttrain-template"), "1.0.0")
    copying = f"copier copy {SOURCE} myproj"
    assert any(copying in page.read_text(encoding="utf-8") for page in DOCUMENTS)
    words = copying.replace(SOURCE, str(upstream)).split()
    with Terminal([sys.executable, "-m", *words], folder) as terminal:
        for question in PROMPTS:
            asked(terminal, question)
            if question == "workload":
                for _ in range(list(choices("workload")).index(workload)):
                    down(terminal)
            terminal.press(ENTER)
        terminal.shows("is ready")
        screen = "\n".join(terminal.shows("README.md explains"))
    return Walker(folder / "myproj", screen)


@pytest.mark.full
@pytest.mark.parametrize("workload", choices("workload"))
def test_a_new_user_gets_along_by_what_is_documented(workload, tmp_path):
    do = interview(workload, tmp_path)
    project = do.project
    do("git rev-parse 2> /dev/null || git init")
    do('git add -A . && git commit -m "Start" .')
    assert "make setup" in do.screen
    (project / ".venv").symlink_to(Path(sys.executable).parents[1])
    assert "finished at step" in do("make try", "--minutes 0.01")
    do("make report")
    assert "validation" in report_of(project)

    # Data of their own, by the three lines of the README, and a run that ends before its time.
    OWN[workload](project)
    block = do.readme().partition("## Your data\n")[2].partition("```sh\n")[2].partition("\n```")[0]
    prepare, train, predict = (line.strip() for line in block.splitlines())
    assert "next: " in do(prepare)
    replace(project / "config.yaml", "\n  max_steps: 0\n", "\n  max_steps: 6\n")
    replace(project / "config.yaml", "\n  every_steps: 50\n", "\n  every_steps: 1\n")
    assert train == "make train evaluate"
    assert "stopped at step 3 of 6" in do("make train", "--max-steps 3")
    do("make evaluate")
    do(predict)

    # Another card and an extra, by the commands of the README.
    do("git add -A")
    commit(project)
    do("copier update --defaults -r :current: -d gpu=h100")
    assert "H100" in do.readme()
    commit(project)
    (extra,) = re.findall(
        r"copier update --defaults -r :current: -d 'extras=\[check\]'", do.readme()
    )
    do(extra)
    assert any(project.glob("src/*/commands/check.py"))
    assert do("git ls-files -u").strip() == ""
    assert "finished at step 6 of 6" in do("make train", "--resume")
