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
    ({}, {"workload": "forecast"}),
    (
        {"layout": "script", "workload": "llm", "gpu": "h100"},
        {"layout": "script", "workload": "llm", "gpu": "cpu"},
    ),
]


# (the file, what an owner changes in it)
CHANGED = [
    ("config.yaml", "\n  name: adamw\n", "\n  name: lion\n"),
    ("config.yaml", "\n  batch_size: 64\n", "\n  batch_size: 96\n"),
    ("src/my_training/settings.py", "name: OptimizerName", 'name: OptimizerName | Literal["lion"]'),
    ("src/my_training/settings.py", '"constant",\n', '"constant",\n        "stair",\n'),
]


def merged(name, before, after, old, new, folder):
    """Assert that git merges an edit of a file with what other answers change in it."""
    base = render(**before) / name
    other = render(**after) / name
    mine = folder / "mine"
    mine.write_text(base.read_text())
    replace(mine, old, new)
    expected = folder / "expected"
    expected.write_text(other.read_text())
    replace(expected, old, new)
    command = ["git", "merge-file", "--stdout", str(mine), str(base), str(other)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected.read_text())


@pytest.mark.parametrize("edit", APPENDED)
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_what_an_owner_appends_merges_with_other_answers(before, after, edit, tmp_path):
    name, place, line = APPENDED[edit]
    merged(name, before, after, place, place + line, tmp_path)


def test_a_changed_value_or_choice_merges_with_a_new_description_above_it(tmp_path):
    many = {"extras": ["muon", "ema", "watch"], "tracker": "wandb"}
    for name, old, new in CHANGED:
        merged(name, {}, many, old, new, tmp_path)
        merged(name, many, {}, old, new, tmp_path)
    llm, seq2seq = ({"workload": workload} for workload in ("llm", "seq2seq"))
    merged("config.yaml", llm, seq2seq, "\n  name: cosine\n", "\n  name: linear\n", tmp_path)
    learning_rate = ("\n  learning_rate: auto\n", "\n  learning_rate: 0.002\n")
    merged("config.yaml", llm, {"workload": "llm", **many}, *learning_rate, tmp_path)
    # Its learning rate has another description.
    merged("config.yaml", llm, seq2seq, *learning_rate, tmp_path)
