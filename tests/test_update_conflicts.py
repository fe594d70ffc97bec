"""Edits next to what answers change: git merges both, as `copier update` lets it."""

import subprocess

import pytest
from rendering import render, replace

# (the file, what an owner finds in it, what comes after it)
APPENDED = {
    "a dependency": ("pyproject.toml", "  # yours\n", '  "einops>=0.8",\n'),
    "a tool": ("pyproject.toml", '  "ruff>=0.17",\n', '  "mypy>=1.10",\n'),
    "an answer": ("README.md", "* All answers: `.copier-answers.yml`.\n", "* Mine.\n"),
}
# (answers, other answers): what they add, change and remove is next to those places
CHANGES = [
    ({}, {"tracker": "wandb"}),
    ({"tracker": "wandb"}, {"tracker": "mlflow"}),
    ({}, {"gpu": "h100", "extras": ["export", "pre_commit", "watch"]}),
    ({"gpu": "h100", "extras": ["watch"]}, {"gpu": "cpu", "extras": ["pre_commit"]}),
    ({"workload": "seq2seq"}, {"workload": "graph"}),
    (
        {"layout": "script", "workload": "llm", "gpu": "h100"},
        {"layout": "script", "workload": "llm", "gpu": "cpu"},
    ),
]


@pytest.mark.parametrize("edit", APPENDED)
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_what_an_owner_appends_merges_with_other_answers(before, after, edit, tmp_path):
    name, place, line = APPENDED[edit]
    old = render(**before) / name
    new = render(**after) / name
    mine = tmp_path / name
    mine.write_text(old.read_text())
    replace(mine, place, place + line)
    expected = tmp_path / "expected"
    expected.write_text(new.read_text())
    replace(expected, place, place + line)
    command = ["git", "merge-file", "--stdout", str(mine), str(old), str(new)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected.read_text())
