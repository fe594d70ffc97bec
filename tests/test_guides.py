"""Guides for what people search: their files and commands work as the pages print them."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rendering import REPOSITORY, render
from running import check_run, documented, evaluation_of, losses, newest_run
from test_from_elsewhere import quoted, replace_model_settings
from test_own_data import CODE
from test_shell import shell

FILES = ("dataset.py", "model.py", "commands/prepare.py")
PREDICT = CODE[-1]  # of the page on your own data, for all of these
LINES = 60  # of a program on a page


def guide(name: str) -> Path:
    return REPOSITORY / f"docs/{name}.md"


def with_files(folder: Path, name: str, line: str, value: str) -> Path:
    """A project with the files of a page, and what it says is left of its settings."""
    project = Path(shutil.copytree(render(workload="tabular", extras=["check"]), folder / name))
    package = project / "src/my_training"
    shutil.rmtree(package / "prepare")
    (package / "examples.py").unlink()
    (package / "commands/predict.py").write_text(PREDICT, encoding="utf-8")
    for file, text in zip(FILES, quoted(name), strict=True):
        assert len([line for line in text.splitlines() if line.strip()]) <= LINES
        (package / file).write_text(text, encoding="utf-8")
    shell(project, "ruff", "check", "src")
    shell(project, "ruff", "format", "--check", "src")
    replace_model_settings(project, line, value, name)
    return project


def followed(project: Path, name: str, folder: Path, *short: str) -> Iterator[str]:
    """What the commands of a page print, one after the other; a training has few steps."""
    shutil.copy(project / "config.yaml", folder)
    for words in documented(guide(name)):
        more = short if words[0] == "train" else ()
        yield check_run(project, *words, *more, cwd=folder).out


# ---- images ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of JPEG files of two classes and of several sizes, one of them gray."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(200):
        name = ("red", "green")[number % 2]
        pixels = random.integers(0, 120, (40 + number % 30, 50, 3), np.uint8)
        pixels[:, :, number % 2] += 120
        file = folder / "images" / name / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    Image.new("L", (30, 30), 40).save(folder / "images/red/gray.jpg")
    return folder


def test_images_are_decoded_in_workers_and_learned(images, tmp_path):
    project = with_files(tmp_path, "images", "width: Positive = 32", "width: 32")
    short = ("--training.max_steps", "30", "--data.num_workers", "2", "--monitor.every_steps", "1")
    checked, prepared, *_ = followed(project, "images", images, *short)
    assert {line.split()[0] for line in checked.splitlines()} == {"ok"}
    assert prepared == "201 images\n"
    assert evaluation_of(images)["metrics"]["accuracy"] > 0.9
    with np.load(newest_run(images) / "predictions.npz") as predicted:
        assert predicted["probability"].shape == (21, 2)
        assert predicted["classes"].tolist() == ["green", "red"]
    with_workers = losses(images)
    words = [words for words in documented(guide("images")) if words[0] == "train"][0]
    alone = (*words, *short, "--data.num_workers", "0")
    check_run(project, *alone, cwd=images)
    assert losses(images) == with_workers
