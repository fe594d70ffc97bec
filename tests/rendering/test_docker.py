"""The extra `docker`: what its Dockerfile sets and starts; are its versions those of the
project."""

import json
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
from packaging.specifiers import SpecifierSet
from rendering import render, render_into

GPUS = ("auto", "cpu", "v100", "h100", "mi300x")


def instructions(folder):
    """What follows each word of the Dockerfile."""
    found: dict[str, list[str]] = {}
    for line in (folder / "Dockerfile").read_text(encoding="utf-8").splitlines():
        word, _, text = line.partition(" ")
        found.setdefault(word, []).append(text)
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_versions_are_those_of_the_project(gpu):
    folder = render(workload="tabular", gpu=gpu, extras=["docker"])
    content = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    lines = instructions(folder)
    (python,) = re.findall(r"^python:(\d+\.\d+)-slim", "\n".join(lines["FROM"]), re.MULTILINE)
    assert python in SpecifierSet(content["project"]["requires-python"])
    (torch,) = [line for line in content["project"]["dependencies"] if re.match(r"torch\b", line)]
    words = shlex.split(next(text for text in lines["RUN"] if "pip install" in text))
    assert torch in words, "by itself: as a dependency it would come from another index"
    indexes = [entry["url"] for entry in content.get("tool", {}).get("uv", {}).get("index", [])]
    assert words[words.index(torch) + 1 :] == [*["--index-url"] * len(indexes), *indexes]


def test_nothing_runs_as_root_and_only_what_is_there_is_copied():
    folder = render(workload="tabular", extras=["docker"])
    lines = instructions(folder)
    (user,) = lines["USER"]
    assert any(f" {user}" in text and "useradd" in text for text in lines["RUN"])
    ignored = (folder / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored, "no data and no runs travel into the image"
    for name in [name for text in lines["COPY"] for name in text.split()[:-1]]:
        assert (folder / name).exists(), name
        assert f"!{name}" in ignored, name


def test_its_command_finds_the_checkpoints_of_phases_and_folds_too(tmp_path):
    (command,) = map(json.loads, instructions(render(extras=["docker"]))["CMD"])
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    said = {}
    for number, folder in enumerate(("", "checkpoints", "phase-1/checkpoints")):
        place = tmp_path / str(number)
        (place / "runs/a" / folder).mkdir(parents=True)
        if folder:
            (place / "runs/a" / folder / "step-00000004-1.pt").touch()
        path = {"PATH": f"{python.parent}:/usr/bin:/bin"}
        output = subprocess.check_output(command, cwd=place, env=path, text=True)
        said[folder] = output.split()[-1]
    assert said == {"": "train", "checkpoints": "--resume", "phase-1/checkpoints": "--resume"}


@pytest.mark.full
def test_its_command_starts_a_run_and_then_resumes_it(tmp_path):
    """ENV and CMD in a clean shell, as a container has them."""
    folder = render_into(tmp_path / "app", workload="tabular", extras=["docker"])
    lines = instructions(folder)
    (command,) = map(json.loads, lines["CMD"])
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    packages = [path for path in sys.path if "site-packages" in path]
    clean = dict(pair.split("=", 1) for pair in shlex.split(" ".join(lines["ENV"])))
    clean["PATH"] = f"{python.parent}:/usr/bin:/bin"
    clean["HOME"] = str(tmp_path)
    clean["OMP_NUM_THREADS"] = "1"
    clean["PYTHONPATH"] = ":".join([str(folder / "src"), *packages])
    config = "training: {max_steps: 8}\ncheckpoint: {every_steps: 4}\n"
    (folder / "config.yaml").write_text(config, encoding="utf-8")

    def start():
        return subprocess.check_output(command, cwd=folder, env=clean, text=True)

    assert "float32 matmul precision is" in start()
    (started,) = (folder / "runs").iterdir()
    # As if the machine had been taken away before step 8.
    (last,) = (started / "checkpoints").glob("step-00000008-*")
    last.unlink()
    assert "resumed at step 4 of 8" in start()
    assert list((folder / "runs").iterdir()) == [started]
