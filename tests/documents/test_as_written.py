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
from running import evaluation_of, resumes, status
from terminal import ENTER, Terminal, asked
from test_pages import command_lines

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
SOURCE = "gh:org/fasttrain-template"  # what the documents call the template
OTHER_CARD = ("gpu_compute_capability", "gpu_memory_gb")
PROMPTS = [
    name
    for name, question in questions().items()
    if name not in OTHER_CARD and question.get("ask") is not False
]

pytestmark = pytest.mark.full


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A new user's home; programs that an installer puts there are found first."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("uv", "uvx", "pipx"):
        (programs / name).symlink_to(BIN / name)
    home = tmp_path / "home"
    path = f"{home}/.local/bin:{home}/.copier/bin:{programs}:/usr/local/bin:/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)
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


@pytest.mark.parametrize("line", [line for line in command_lines("start") if "copier>=" in line])
def test_copier_is_installed_and_runs(line, home):
    subprocess.run(f"{line} && copier --version", shell=True, check=True)


def test_the_torchrun_lines_of_the_guide(tmp_path):
    """On one host, where two agents stand for two hosts, and with one process or two for each.

    torchrun has a flag `--run-path`, of which `--run` would be a beginning.
    """
    project = render(workload="tabular", distributed="ddp")
    (tmp_path / "config.yaml").symlink_to(project / "config.yaml")
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    torchrun = f"{sys.executable} -m torch.distributed.run "
    address = f"localhost:{free_port()}"

    def here(line, processes):
        line = re.sub(r"nproc_per_node=\d", f"nproc_per_node={processes}", line)
        return line.replace("torchrun ", torchrun).replace("host-a:29400", address)

    def shell(command):
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True)

    lines = [line for line in command_lines("several-gpus") if line.startswith("torchrun ")]
    first, evaluate, hosts, resumed = lines
    shell(f"{here(first, 2)} --name NAME --max-steps 4")
    shell(f"{here(resumed, 1)} --max-steps 6")
    assert resumes(tmp_path) == [4]
    shell(here(evaluate, 2))
    assert evaluation_of(tmp_path)["split"] == "test"
    one_of_two = f"{here(hosts, 1)} --max-steps 2"
    shell(f"{one_of_two} & {one_of_two} && wait $!")
    assert status(tmp_path)["step"] == 2
