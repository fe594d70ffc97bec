"""The extra `docker`: what its Dockerfile sets and starts; are its versions those of the
project."""

import functools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from rendering import render, render_into

GPUS = ("auto", "cpu", "v100", "h100", "mi300x")
WORDS = ("FROM", "RUN", "ARG", "WORKDIR", "COPY", "ENV", "USER", "CMD")


@functools.cache
def project(gpu: str = "auto", workload: str = "tabular") -> Path:
    return render(workload=workload, gpu=gpu, extras=["docker"])


def instructions(folder: Path) -> list[tuple[str, str]]:
    """(word, what follows) of each line; every line is an instruction or a comment."""
    lines = (folder / "Dockerfile").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" ", 1) for line in lines if line and not line.startswith("#")]
    assert {word for word, _ in pairs} == set(WORDS)
    return [(word, text) for word, text in pairs]


def environment(folder: Path) -> dict[str, str]:
    texts = [text for word, text in instructions(folder) if word == "ENV"]
    return dict(pair.split("=", 1) for pair in shlex.split(" ".join(texts)))


@pytest.mark.parametrize("gpu", GPUS)
def test_versions_are_those_of_the_project(gpu):
    folder = project(gpu)
    content = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    lines = instructions(folder)
    images = [text for word, text in lines if word == "FROM"]
    python = re.fullmatch(r"python:(\d+\.\d+)-slim", images[0])
    assert python
    assert python[1] in SpecifierSet(content["project"]["requires-python"])
    (torch,) = [line for line in content["project"]["dependencies"] if re.match(r"torch\b", line)]
    installs = [text for word, text in lines if word == "RUN" and "pip install" in text]
    words = shlex.split(installs[0])
    assert torch in words, "by itself: as a dependency it would come from another index"
    indexes = [entry["url"] for entry in content.get("tool", {}).get("uv", {}).get("index", [])]
    assert words[words.index(torch) + 1 :] == [*["--index-url"] * len(indexes), *indexes]
    assert shlex.split(installs[1])[-1] == "."


@pytest.mark.parametrize("gpu", GPUS)
def test_nothing_runs_as_root_and_only_what_is_there_is_copied(gpu):
    folder = project(gpu)
    lines = instructions(folder)
    assert [word for word, _ in lines][-2:] == ["USER", "CMD"]
    (user,) = [text for word, text in lines if word == "USER"]
    assert user != "root"
    assert any(f" {user}" in text and "useradd" in text for word, text in lines if word == "RUN")
    ignored = (folder / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored, "no data and no runs travel into the image"
    copied = [name for word, text in lines if word == "COPY" for name in text.split()[:-1]]
    assert "src" in copied
    for name in copied:
        assert (folder / name).exists(), name
        assert f"!{name}" in ignored, name


@pytest.mark.full
def test_the_variable_is_the_one_that_torch_reads():
    """In a process of its own: the variable changes the default, and an explicit setting wins."""
    name = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
    program = (
        "import torch; print(torch.get_float32_matmul_precision());"
        "torch.set_float32_matmul_precision('highest'); print(torch.get_float32_matmul_precision())"
    )
    clean = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", name: environment(project())[name]}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=clean, capture_output=True, text=True)
    assert done.stdout.split() == ["high", "highest"]


@pytest.mark.full
def test_its_command_starts_a_run_and_then_resumes_it(tmp_path):
    """ENV and CMD in a clean shell, as a container has them."""
    folder = render_into(tmp_path / "app", workload="tabular", extras=["docker"])
    (command,) = [json.loads(text) for word, text in instructions(folder) if word == "CMD"]
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    packages = [path for path in sys.path if "site-packages" in path]
    clean = environment(folder)
    clean["PATH"] = f"{python.parent}:/usr/bin:/bin"
    clean["HOME"] = str(tmp_path)
    clean["OMP_NUM_THREADS"] = "1"
    clean["PYTHONPATH"] = ":".join([str(folder / "src"), *packages])
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["training"]["max_steps"] = 8
    config["checkpoint"]["every_steps"] = 4
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    def start():
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "float32 matmul precision is" in start()
    (started,) = (folder / "runs").iterdir()
    # As if the machine had been taken away before step 8.
    (last,) = (started / "checkpoints").glob("step-00000008-*")
    last.unlink()
    assert "resumed at step 4 of 8" in start()
    assert list((folder / "runs").iterdir()) == [started]
    assert len(list((started / "checkpoints").glob("step-00000008-*"))) == 1
