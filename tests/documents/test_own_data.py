"""Data and a model of the user's own: the documented example keeps to its contract, trains and
predicts."""

import re
import shutil

import numpy as np
import pytest
from rendering import REPOSITORY, render, replace
from running import check_run, evaluation_of, newest_run, one_error, run
from test_from_elsewhere import replaced

PAGE = (REPOSITORY / "docs/how-to/own-data.md").read_text(encoding="utf-8")
FILES = ("dataset.py", "model.py", "commands/prepare.py", "commands/predict.py")
*CODE, SECTION = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OTHERS = re.compile(r"(?<=\nmodel:\n)(.*?)(?=\noptimizer:)", re.DOTALL)
SHORT = ("--training.max_steps", "60", "--optimizer.learning_rate", "0.01")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project for tables with the page's files in place of its own; config.yaml is still the old
    one."""
    rendered = render(workload="tabular", extras=["check"])
    project = shutil.copytree(rendered, tmp_path_factory.mktemp("own") / "project")
    package = project / "src/my_training"
    for name, text in zip(FILES, CODE, strict=True):
        (package / name).write_text(text, encoding="utf-8")
    shutil.rmtree(package / "prepare")
    (package / "examples.py").unlink()
    old = r"class Model\(Section\):.*?\n\n\n"
    replaced(package / "settings.py", old, SECTION + "\n\n")
    return project


def test_the_example_keeps_to_its_contract_trains_and_predicts(project, tmp_path):
    text = (project / "config.yaml").read_text(encoding="utf-8")
    (tmp_path / "config.yaml").write_text(OTHERS.sub("  width: 64\n", text), encoding="utf-8")
    result = check_run(project, "check", cwd=tmp_path)
    assert [line.split()[0] for line in result.out.splitlines()] == ["ok"] * 14

    random = np.random.default_rng(1)
    folder = tmp_path / "signals"
    folder.mkdir()
    lines = ["file,label"]
    for number in range(200):
        label = ("hum", "hiss")[number % 2]
        values = random.standard_normal(50 + number % 40)
        np.save(folder / f"{number}.npy", values if label == "hiss" else values.cumsum())
        lines.append(f"{number}.npy,{label}")
    (folder / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    for words in (
        ("prepare", "--input", str(folder)),
        ("train", *SHORT),
        ("evaluate",),
        ("predict",),
    ):
        result = check_run(project, *words, cwd=tmp_path)
    evaluation = evaluation_of(tmp_path)
    assert evaluation["metrics"]["accuracy"] > 0.8
    assert evaluation["metrics"]["loss"] < evaluation["baseline_loss"]
    predicted = np.load(newest_run(tmp_path) / "predictions.npz")
    assert predicted["probability"].shape == (30, 2)
    assert predicted["classes"].tolist() == ["hiss", "hum"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("class Samples", "class Signals", "the file has no Samples: dataset.py: .*interfaces.py"),
        ("def spans", "def rows", "Samples has no spans: dataset.py: .*interfaces.py"),
        ("def synthesize", "def sample", "no prepared data: data: run `prepare --input"),
    ],
)
def test_what_is_missing_in_the_dataset_is_one_line(old, new, says, project, tmp_path):
    broken = shutil.copytree(project, tmp_path / "project")
    replace(broken / "src/my_training/dataset.py", old, new)
    (tmp_path / "config.yaml").write_text("{}", encoding="utf-8")
    one_error(run(broken, "train", "--training.max_steps", "2", cwd=tmp_path), says)


def test_a_dataset_without_a_baseline_trains_and_is_evaluated(project, tmp_path):
    """Only `Samples` and the data are needed."""
    bare = shutil.copytree(project, tmp_path / "project")
    dataset = bare / "src/my_training/dataset.py"
    replace(dataset, "def baseline_loss(", "def own_baseline_loss(")
    (tmp_path / "config.yaml").write_text("{}", encoding="utf-8")
    for words in (("train", "--training.max_steps", "2"), ("evaluate",)):
        check_run(bare, *words, cwd=tmp_path)
    assert evaluation_of(tmp_path)["baseline_loss"] is None
