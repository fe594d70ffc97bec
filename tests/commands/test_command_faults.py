"""Flags, files and settings that were a traceback, a crash or nothing at all: one line each."""

import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path
from shlex import split

import pytest
import yaml
from rendering import render, replace
from running import (
    check_run,
    losses,
    newest_run,
    one_error,
    report_of,
    run,
    start,
)
from variants import extras

TABULAR = render(
    workload="tabular",
    extras=extras("tabular"),
)

# ---- YAML that no configuration needs


def bounded():
    """For `before=`: a process that may take a GB more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))


def exploding(levels=12):
    """A mapping whose aliases stand for 10 ** levels values."""
    lines = [f"l0: &l0 [{', '.join('1' * 10)}]"]
    for level in range(1, levels):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]")
    return "{" + ", ".join(lines) + "}"


NESTED = "[" * 10_000 + "]" * 10_000
HOSTILE = {
    "aliases in a profile": (f"profiles: {{a: {exploding()}}}", "unknown setting 'l0'"),
    "an alias of itself": ("profiles: {a: &a {b: *a}}", "unknown setting 'b.b'"),
    "brackets": (f"profiles: {NESTED}", "recursion|nesting depth"),
    "many values": ("finetune.phases: [" + "1, " * 20_000 + "]", "finetune.phases cannot be "),
    "a long number": ("training: {epochs: 0x" + "f" * 5_000 + "}", "an integer"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_yaml_beyond_every_configuration_is_refused_at_once(kind, tmp_path):
    text, pattern = HOSTILE[kind]
    (tmp_path / "mine.yaml").write_text(text)
    words = ("train", "--config", "mine.yaml", "--print-config")
    refused = start(TABULAR, *words, cwd=tmp_path, before=bounded).wait(seconds=60)
    assert refused.code == 2
    lines = refused.errors()
    assert len(lines) < 20
    assert all("mine.yaml" in line and len(line) < 300 for line in lines)
    assert re.search(pattern, lines[0])


def test_files_of_a_run_and_of_the_project_are_read_in_the_same_way(tmp_path):
    run_folder = tmp_path / "runs/a"
    run_folder.mkdir(parents=True)
    (run_folder / "config.resolved.yaml").write_text(f"estimate: {NESTED}")
    (tmp_path / ".copier-answers.yml").write_text(NESTED)
    for command in ("evaluate", "machine"):
        one_error(run(TABULAR, command, cwd=tmp_path), "as YAML")
    for command in ("report", "compare"):  # of a run with damaged settings, too
        check_run(TABULAR, command, cwd=tmp_path)
    (run_folder / "config.resolved.yaml").write_text("")
    one_error(run(TABULAR, "evaluate", cwd=tmp_path), "has lost its settings: .*restore the file")


# ---- flags that were ignored

SHORT = split("--training.max_steps 4 --monitor.every_steps 1 --model.width 16")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with a run `a` that stopped at step 2 of 4, and configurations."""
    folder = tmp_path_factory.mktemp("stopped")
    check_run(TABULAR, "train", *SHORT, "--name", "a", "--max-steps", "2", cwd=folder)
    (folder / "other.yaml").write_text("model: {width: 8}\n")
    return folder


LONG = "x" * 5_000
TOO_LONG = "[Nn]ame too long|no run|does not exist|no such file"
REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yml").read_text(encoding="utf-8"))
REFUSED |= {
    f"train --name {LONG}": "is not a plain folder name",
    f"train --config {LONG}": TOO_LONG,
    f"train --resume {LONG}": TOO_LONG,
    f"train --data.path {LONG}": TOO_LONG,
    f"predict --input {LONG}.csv": TOO_LONG,
    f"predict --output {LONG}.csv": TOO_LONG,
    f"prepare --target b --task regression --input {LONG}.csv": TOO_LONG,
    f"export --output {LONG}": TOO_LONG,
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words[:60])
def test_a_command_that_cannot_be_followed_is_one_line_and_leaves_nothing(words, stopped):
    before = sorted(stopped.rglob("*"))
    one_error(run(TABULAR, *words.split(" "), cwd=stopped), REFUSED[words])
    assert sorted(stopped.rglob("*")) == before


def test_the_printed_command_resumes_a_run_with_any_name(tmp_path):
    words = ("--name", "eine große Sache", "--max-steps", "2")
    done = check_run(TABULAR, "train", *SHORT, *words, cwd=tmp_path)
    command = re.findall("`(train --resume .+)`", done.out)[-1]
    assert "at step 4 of 4" in check_run(TABULAR, *split(command), cwd=tmp_path).out


def test_a_report_has_the_lines_of_hooks_and_commands(stopped, tmp_path):
    project = shutil.copytree(TABULAR, tmp_path / "project")
    for folder in ("hooks", "commands"):
        path = project / f"src/my_training/{folder}/mine.py"
        path.write_text(f'def report_lines(run):\n    return [f"{folder} of {{run.name}}"]\n')
    shutil.copytree(stopped / "runs", tmp_path / "runs")
    check_run(project, "report", cwd=tmp_path)
    assert "\nhooks of a\n\ncommands of a\n" in report_of(tmp_path)


# ---- settings that were left as they are, or left out of a line


def test_without_optimizations_the_graphs_are_built_again_with_the_same_losses(tmp_path):
    project = render(workload="graph")
    curves = []
    for number, words in enumerate(((), ("--graph_builder.use_in_training", "false"))):
        folder = tmp_path / str(number)
        words = ("train", "--no-optimize", *words, *split("--training.max_steps 3"))
        done = check_run(project, *words, *split("--monitor.every_steps 1"), cwd=folder)
        assert re.search(f"^  graphs +{('rebuilt', 'cached')[number]} ", done.out, re.MULTILINE)
        settings = (newest_run(folder) / "config.resolved.yaml").read_text()
        assert ("graph_builder.use_in_training: true " in settings) == (number == 0)
        curves.append(losses(folder))
    assert curves[0] == curves[1]


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_a_compile_mode_with_cuda_graphs_is_refused_with_the_modes_that_accumulate(mode, tmp_path):
    words = f"--compile.enabled true --compile.mode {mode} --training.gradient_accumulation_steps 2"
    done = run(TABULAR, "doctor", *words.split(), cwd=tmp_path)
    if mode.endswith("no-cudagraphs"):
        assert done.code == 0, done.err
    else:
        one_error(done, "set compile.mode to default or max-autotune-no-cudagraphs, or ")


def test_watch_says_once_that_it_sees_no_gpu(tmp_path):
    phases = "finetune.phases: [{training.max_steps: 2}, {training.max_steps: 2}]"
    (tmp_path / "config.yaml").write_text(f"model: {{width: 16}}\n{phases}\n")
    said = check_run(TABULAR, "train", cwd=tmp_path).out
    assert said.count("note: watch samples no GPU: ") == 1
    off = check_run(TABULAR, "train", "--watch.every_seconds", "0", cwd=tmp_path)
    assert "watch samples" not in off.out


# ---- what a run records, what a resume refuses, what cannot be imported


def test_a_run_records_the_commit_of_its_project(tmp_path):
    (tmp_path / "config.yaml").write_text("training: {max_steps: 1}\n")
    (tmp_path / ".gitignore").write_text("runs/\ndata/\n.out\n.err\n")
    person = "-c user.name=tests -c user.email=tests@localhost"
    commands = f"git init -q && git add . && git {person} commit -qm work && git tag v1"
    commands += " && git rev-parse --short=7 HEAD"
    commit = subprocess.check_output(commands, shell=True, cwd=tmp_path, text=True).strip()
    for state in (commit, f"{commit}+changes"):
        check_run(TABULAR, "train", cwd=tmp_path)
        environment = json.loads((newest_run(tmp_path) / "env.json").read_text())
        assert environment["git"] == state
        (tmp_path / "config.yaml").write_text("training: {max_steps: 2}\n")


IMPORTS = {
    "import einops": "einops cannot be loaded: .*: `make setup` installs it if pyproject.toml lists it",
    "from torch import nope": "torch cannot be loaded: cannot import name 'nope'",
    "import torch.nope": "torch.nope cannot be loaded",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_an_import_that_fails_in_a_model_says_what_installs_it(line, tmp_path):
    project = shutil.copytree(TABULAR, tmp_path / "project")
    model = project / "src/my_training/model.py"
    replace(model, "\nimport torch\n", f"\n{line}\nimport torch\n")
    one_error(run(project, "train", cwd=tmp_path), IMPORTS[line])
