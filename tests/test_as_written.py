"""The commands of the README and of the pages that need an installer or several processes, as they
are written there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ranks import free_port
from rendering import REPOSITORY, questions, render, template
from running import newest_run
from terminal import ENTER, Terminal
from test_distributed import status
from test_interview import asked
from test_pages import command_lines, page

ADDRESS = "gh:org/fasttrain-template"
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.full


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A new user's home: what an installer puts there is found first, the tests' own Copier never."""
    installers = tmp_path / "installers"
    installers.mkdir()
    for name in ("uv", "pipx"):
        (installers / name).symlink_to(BIN / name)
    folders = os.environ["PATH"].split(os.pathsep)
    others = [folder for folder in folders if Path(folder) != BIN]
    own = tmp_path / "home/.local/bin"
    monkeypatch.setenv("PATH", os.pathsep.join([str(own), str(installers), *others]))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_SYSTEM_CERTS", "1")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("TORCH", "torch==" + torch.__version__.partition("+")[0])
    return own


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-e", "-c", text]


def test_the_install_and_first_run_of_the_readme(tmp_path, home):
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## Install and first run\n\n```sh\n(.+?)```", readme, flags=re.DOTALL)[1]
    assert ADDRESS in block
    with Terminal(shell(block.replace(ADDRESS, str(template()))), tmp_path) as terminal:
        for question in questions():
            asked(terminal, question)
            terminal.press(ENTER)
        terminal.shows("is ready")
        terminal.shows("report.md", seconds=1200)
    project = tmp_path / "myproj"
    assert status(project)["state"] == "finished"
    assert (newest_run(project) / "report.md").stat().st_size


@pytest.mark.parametrize(
    "line", [line for line in command_lines("install") if "install copier" in line]
)
def test_each_way_to_install_copier(line, home):
    subprocess.run(shell(line), check=True)
    answer = subprocess.run(
        [home / "copier", "--version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("copier 9.")


def test_every_torchrun_line_of_the_page(tmp_path, home):
    """On one host and with two processes instead of eight; the two hosts are two agents here."""
    first, hosts, resume = (line for line in command_lines("several-gpus") if "torchrun" in line)
    project = render(workload="tabular", distributed="ddp")
    (tmp_path / "config.yaml").write_text((project / "config.yaml").read_text())
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}

    def start(line: str, processes: int, *more: str) -> subprocess.Popen[bytes]:
        line = re.sub(r"--nproc_per_node=\d", f"--nproc_per_node={processes}", line)
        _, *words = shlex.split(line.replace("host-a:29400", f"localhost:{port}"))
        command = [sys.executable, "-m", "torch.distributed.run", *words, *more]
        return subprocess.Popen(command, cwd=tmp_path, env=environment)

    port = free_port()
    assert start(first, 2, "--max-steps", "4").wait() == 0
    assert start(resume, 1, "--max-steps", "6").wait() == 0
    assert status(tmp_path)["resumes"] == [4]
    agents = [start(hosts, 1, "--max-steps", "2") for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0]
    assert status(tmp_path)["step"] == 2
    assert "accelerate launch --num_processes 4 -m my_training train" in page("several-gpus")
