"""Flags, files and settings that were a traceback, a crash or nothing at all: one line each."""

import os
import re
import resource
import shutil
from pathlib import Path
from shlex import split

import pytest
from rendering import render
from running import check_run, one_error, run, start

TABULAR = render(workload="tabular", extras=["compare", "ema", "estimate", "export", "watch"])

# ---- YAML that no configuration needs


def bounded() -> None:
    """For `before=`: a process that may take a GB more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))


def exploding(levels: int = 12) -> str:
    """A mapping whose aliases stand for 10 ** levels values."""
    lines = [f"l0: &l0 [{', '.join('1' * 10)}]"]
    for level in range(1, levels):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]")
    return "{" + ", ".join(lines) + "}"


NESTED = "[" * 10_000 + "]" * 10_000
HOSTILE = {
    "aliases in phases": (f"phases: [{{name: a, steps: 1, overrides: {exploding()}}}]", "values"),
    "aliases in a profile": (f"profiles: {{a: {exploding()}}}", "values"),
    "an alias of itself": ("profiles: {a: &a {b: *a}}", "values"),
    "aliases that nest": (
        "profiles: {a: [&a0 [[[[[[1]]]]]], &a1 [[[[[[*a0]]]]]], &a2 [[[[[[*a1]]]]]], [*a2]]}",
        "levels",
    ),
    "brackets": (f"profiles: {NESTED}", "levels"),
    "blocks": ("profiles:\n" + "".join(" " * n + "-\n" for n in range(1, 400)), "levels"),
    "many values": ("phases: [" + "1, " * 20_000 + "]", "values"),
    "a large file": ("# nothing\n" * 200_000, "bytes"),
    "a long number": ("training: {epochs: 0x" + "f" * 5_000 + "}", "digits"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_yaml_beyond_every_configuration_is_one_line_at_once(kind, tmp_path):
    text, pattern = HOSTILE[kind]
    (tmp_path / "mine.yaml").write_text(text)
    words = ("train", "--config", "mine.yaml", "--print-config")
    refused = start(TABULAR, *words, cwd=tmp_path, before=bounded).wait(seconds=60)
    assert len(one_error(refused, "mine.yaml", f"more than .* {pattern}")) < 300


@pytest.mark.parametrize(
    "words", [("--training.epochs", NESTED), ("--data.fraction=0x" + "f" * 5_000,)]
)
def test_the_same_in_a_flag(words, tmp_path):
    refused = start(TABULAR, "train", *words, cwd=tmp_path, before=bounded).wait(seconds=60)
    assert len(one_error(refused, words[0].partition("=")[0], "give a ")) < 300


def test_a_variable_of_the_environment_is_read_within_the_same_limits(tmp_path):
    def place() -> None:
        bounded()
        os.environ["SEED"] = NESTED

    refused = start(TABULAR, "train", cwd=tmp_path, before=place).wait(seconds=60)
    assert len(one_error(refused, r"\$SEED", "give a whole number")) < 300


def test_files_of_a_run_and_of_the_project_are_read_within_the_same_limits(tmp_path):
    run_folder = tmp_path / "runs/a"
    run_folder.mkdir(parents=True)
    (run_folder / "config.resolved.yaml").write_text(f"estimate: {NESTED}")
    (tmp_path / ".copier-answers.yml").write_text(NESTED)
    for words in (("evaluate",), ("doctor",)):
        one_error(run(TABULAR, *words, cwd=tmp_path), "more than .* levels")
    for words in (("report",), ("compare",)):  # of a run with damaged settings, too
        check_run(TABULAR, *words, cwd=tmp_path)


# ---- flags that were ignored

SHORT = split("--training.max_steps 4 --monitor.every_steps 1 --model.width 16")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with a run `a` that stopped at step 2 of 4, and configurations."""
    folder = tmp_path_factory.mktemp("stopped")
    check_run(TABULAR, "train", *SHORT, "--name", "a", "--max-steps", "2", cwd=folder)
    (folder / "rows.csv").write_text("a,b\n" + "".join(f"{n},{n * 2}\n" for n in range(40)))
    (folder / "other.yaml").write_text("model: {width: 8}\n")
    (folder / "same.yaml").write_text((folder / "runs/a/config.resolved.yaml").read_text())
    return folder


LONG = "x" * 5_000
REFUSED = {
    "train --resume a --name b": "a resumed run keeps its name: --name b: remove it",
    "train --phase 2 --name b": "there is no phase 2|keeps its name",
    "train --resume a --config other.yaml": "model.width is 16, not 8: --config other.yaml: remove",
    "evaluate --run a --config other.yaml": "model.width is 16, not 8: --config other.yaml",
    "train --max-steps 0": "a run cannot have 0 steps: --max-steps: give at least 1",
    "train --resume a --max-steps 0": "a run cannot have 0 steps",
    "train --phase 0": "there is no phase 0: --phase",
    "train --phase -1": "there is no phase -1: --phase",
    "train --name=-x": r"run name '-x' is not a plain folder name: --name: use letters",
    "train --name a\nb": r"run name 'a\\nb' is not",
    f"train --name {LONG}": "is not a plain folder name",
}


@pytest.mark.parametrize("words", REFUSED)
def test_flags_that_cannot_be_followed_are_refused_and_leave_nothing(words, stopped):
    before = sorted(stopped.rglob("*"))
    refused = run(TABULAR, *words.split(" "), cwd=stopped)
    assert len(one_error(refused, REFUSED[words])) < 300
    assert sorted(stopped.rglob("*")) == before


def test_a_configuration_that_a_run_already_has_is_no_error(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    check_run(TABULAR, "train", "--resume", "a", "--config", "same.yaml", cwd=tmp_path)


def test_the_printed_command_resumes_a_run_with_any_name(tmp_path):
    words = ("--name", "eine große 'Sache'", "--max-steps", "2")
    done = check_run(TABULAR, "train", *SHORT, *words, cwd=tmp_path)
    command = re.findall("`(train --resume .+)`", done.out)[-1]
    assert "at step 4 of 4" in check_run(TABULAR, *split(command), cwd=tmp_path).out


# ---- paths that are too long for the system

PATHS = [
    f"train --config {LONG}",
    f"train --resume {LONG}",
    f"train --training.init_from {LONG}",
    f"train --data.path {LONG}",
    f"evaluate --run {LONG}",
    f"report {LONG}",
    f"compare {LONG} a",
    f"predict --input {LONG}",
    f"predict --input {LONG}.csv",
    f"predict --output {LONG}.csv",
    f"predict --output {LONG}/a.csv",
    f"prepare --target b --task regression --input {LONG}",
    f"prepare --target b --task regression --input {LONG}.csv",
    f"prepare --target b --task regression --input rows.csv --data.path {LONG}",
    f"export --output {LONG}",
    f"doctor --config {LONG}",
]


@pytest.mark.parametrize("words", PATHS)
def test_a_path_of_5000_characters_is_one_line(words, stopped):
    before = sorted(stopped.rglob("*"))
    one_error(run(TABULAR, *words.split(), cwd=stopped), "[Nn]ame too long|no run|does not exist")
    assert sorted(stopped.rglob("*")) == before


def test_a_folder_of_the_environment_with_5000_characters_is_one_line(tmp_path):
    def place() -> None:
        os.environ["TRAINING_ROOT"] = LONG

    one_error(run(TABULAR, "report", cwd=tmp_path, before=place), "TRAINING_ROOT|name too long")
