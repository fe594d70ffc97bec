"""Flags, files and settings that were a traceback, a crash or nothing at all: one line each."""

import os
import resource
from pathlib import Path

import pytest
from rendering import render
from running import check_run, one_error, run, start

TABULAR = render(workload="tabular", extras=["compare", "ema", "estimate", "watch"])

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
    "a long number": ("training: {epochs: 0x" + "f" * 5_000 + "}", "characters"),
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
