"""The commands of the README and of the pages that need an installer or several processes, as they
are written there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ranks import free_port
from rendering import REPOSITORY, questions, render, template
from running import resumes
from terminal import ENTER, Terminal
from test_distributed import status
from test_interview import asked
from test_pages import command_lines

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
SOURCE = "gh:org/fasttrain-template"  # what the documents call the template
PROMPTS = [name for name in questions() if name not in ("gpu_compute_capability", "gpu_memory_gb")]

pytestmark = pytest.mark.full


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A new user's home; programs that an installer puts there are found first."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("uv", "pipx"):
        (programs / name).symlink_to(BIN / name)
    others = [folder for folder in os.environ["PATH"].split(":") if Path(folder) != BIN]
    home = tmp_path / "home"
    monkeypatch.setenv(
        "PATH", ":".join([f"{home}/.local/bin", f"{home}/.copier/bin", str(programs), *others])
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("UV_SYSTEM_CERTS", "1")
    for inherited in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES"):  # of the `make` around the tests
        monkeypatch.delenv(inherited, raising=False)
    monkeypatch.setenv("TORCH", "torch==" + torch.__version__.partition("+")[0])


def test_the_first_run_of_the_readme(home, tmp_path):
    block = re.search(r"## Install and first run\n\n```sh\n(.+?)```", README, re.DOTALL)[1]
    assert SOURCE in block
    commands = block.replace(SOURCE, str(template()))
    with Terminal(["/bin/sh", "-e", "-c", commands], tmp_path) as terminal:
        for question in PROMPTS:
            asked(terminal, question)
            terminal.press(ENTER)
        terminal.shows("is ready")
        terminal.shows("report.md", seconds=1200)
    assert status(tmp_path / "myproj")["state"] == "finished"


@pytest.mark.parametrize(
    "line", [line for line in command_lines("start") if "install copier" in line]
)
def test_copier_is_installed_and_runs(line, home):
    subprocess.run(f"{line} && copier --version", shell=True, check=True)


def test_the_torchrun_lines_of_the_guide(tmp_path):
    """On one host, where two agents stand for two hosts, and with one process or two for each."""
    project = render(workload="tabular", distributed="ddp")
    (tmp_path / "config.yaml").symlink_to(project / "config.yaml")
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    torchrun = f"{sys.executable} -m torch.distributed.run "
    address = f"localhost:{free_port()}"

    def runs(line: str, processes: int, steps: int) -> str:
        line = re.sub(r"nproc_per_node=\d", f"nproc_per_node={processes}", line)
        line = line.replace("torchrun ", torchrun).replace("host-a:29400", address)
        return f"{line} --max-steps {steps}"

    def shell(command: str) -> None:
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True)

    lines = [line for line in command_lines("several-gpus") if re.match("torchrun .+ train", line)]
    first, hosts, resumed = lines
    shell(runs(first, 2, steps=4))
    shell(runs(resumed, 1, steps=6))
    assert resumes(tmp_path) == [4]
    one_of_two = runs(hosts, 1, steps=2)
    shell(f"{one_of_two} & {one_of_two} && wait $!")
    assert status(tmp_path)["step"] == 2
