"""What owners change most: each patch of docs/changes.md is small, trains, shows its effect, and resumes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rendering import REPOSITORY, render
from running import PICTURES, evaluations, losses, newest_run, rows, run, weights

PAGE = (REPOSITORY / "docs/changes.md").read_text(encoding="utf-8")
CHANGES = {
    section.partition("\n")[0]: section.partition("```diff\n")[2].partition("```")[0]
    for section in PAGE.split("\n## ")[1:]
}
ANSWERS = {"workload": "tabular", "tracker": "tensorboard", "extras": ["ema"]}
LINES, FILES = (
    15,
    2,
)  # that a change may touch; `config.yaml`, where settings are given, is not the code's
WORDS = (
    *(
        "--data.batch_size",
        "128",
        "--data.num_workers",
        "0",
        "--model.width",
        "16",
        "--data.fraction",
        "0.1",
    ),
    *("--training.max_steps", "12", "--monitor.every_steps", "2", "--schedule.warmup_steps", "2"),
)


def parts(patch: str) -> dict[str, list[str]]:
    """Lines of a patch by the file that they are for."""
    files: dict[str, list[str]] = {}
    for line in patch.splitlines():
        if line.startswith("--- "):
            files[line[4:]] = lines = []
        else:
            lines.append(line)
    return files


def apply(project: Path, patch: str) -> None:
    """What stands in the page, done to a project; every place must be one."""
    for name, lines in parts(patch).items():
        old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        path = project / name
        text = path.read_text(encoding="utf-8") if old else ""
        old, new = (part.rstrip("\n") if old else part for part in (old, new))
        assert text.count(old) == 1 or not path.exists(), (name, old)
        path.write_text(text.replace(old, new) if old else new, encoding="utf-8")


def values(folder: Path, name: str, split: str | None = None) -> list[float]:
    return [row[name] for row in rows(folder) if row.get("split") == split and name in row]


def state(folder: Path) -> dict[str, Any]:
    newest = max((newest_run(folder) / "checkpoints").glob("step-*"))
    return torch.load(newest / "state.pt", weights_only=True)


def tracked(folder: Path, kind: str) -> list[str]:
    """Names of one kind in the newest run's TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(newest_run(folder) / "tensorboard"))
    events.Reload()
    return events.Tags()[kind]


def optimizer(folder: Path, out: str) -> None:
    body, head = (group["lr"] for group in state(folder)["optimizer"]["param_groups"])
    assert head == pytest.approx(10 * body)
    assert "mu_product" in state(folder)["optimizer"]["state"][0]


def metric(folder: Path, out: str) -> None:
    assert len(values(folder, "mae")) == 7
    assert "train/mae" in tracked(folder, "scalars")


def root(folder: Path, out: str) -> None:
    _, *rates = values(folder, "learning_rate")
    assert rates[-1] == pytest.approx(rates[0] * (2 / 11) ** 0.5)


def picture(folder: Path, out: str) -> None:
    assert tracked(folder, "images") == ["validation/predictions", "validation/errors_by_sun"]
    assert (
        "![errors_by_sun](pictures/errors_by_sun.png)"
        in (newest_run(folder) / "report.md").read_text()
    )


def phases(folder: Path, out: str) -> None:
    lines = [line for line in out.splitlines() if "frozen weights" in line]
    assert len(lines) == 1, "of the first phase alone"
    assert len(state(folder)["optimizer"]["state"]) == 9


def averages(folder: Path, out: str) -> None:
    assert len(values(folder, "loss_averaged", "validation")) == 2
    assert "validation/loss_averaged" in tracked(folder, "scalars")
    assert "decay: 0.9 " in (newest_run(folder) / "config.resolved.yaml").read_text()


def start(folder: Path, out: str) -> None:
    assert "note: weights of runs/source/" in out
    assert "left: nothing" in out


def terms(folder: Path, out: str) -> None:
    for loss, mse, penalty in zip(
        *(values(folder, name) for name in ("loss", "mse", "penalty")), strict=True
    ):
        assert loss == pytest.approx(mse + penalty)
    assert "train/penalty" in tracked(folder, "scalars")


def second(folder: Path, out: str) -> None:
    assert values(folder, "loss_second", "validation") != values(folder, "loss", "validation")
    assert "validation/loss_second" in tracked(folder, "scalars")


def line(folder: Path, out: str) -> None:
    assert out.count("largest bias of the head: ") == 3


EFFECTS: dict[str, Callable[[Path, str], None] | None] = {  # None: other losses are all of it
    "Another optimizer, two groups with two rates": optimizer,
    "A metric, also in the rows of training": metric,
    "A data augmentation": None,
    "Another schedule": root,
    "A picture of your own": picture,
    "Frozen layers, trained from the second phase on": phases,
    "Averaged weights": averages,
    "Weights of another run": start,
    "A second term of the loss, visible in the rows": terms,
    "A second data set, measured at each evaluation": second,
    "A printed line": line,
}
SAME = ("metric", "picture", "Averaged", "second data", "printed")  # what only watches


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the project as it is, and data."""
    folder = tmp_path_factory.mktemp("plain")
    result = run(render(**ANSWERS), "train", "--name", "source", *WORDS, cwd=folder)
    assert result.code == 0, result.err[-2000:]
    shutil.copytree(folder / "data/synthetic", folder / "data/second")
    (folder / "config.yaml").unlink()
    return folder


@pytest.fixture
def place(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "place"))


def changed(title: str, folder: Path) -> Path:
    project = Path(shutil.copytree(render(**ANSWERS), folder / "project"))
    apply(project, CHANGES[title])
    return project


def test_every_change_is_small_tested_and_has_its_place(tmp_path: Path) -> None:
    assert CHANGES.keys() == {*EFFECTS, "A verb"}
    for title, patch in CHANGES.items():
        files = parts(patch)
        lines = [
            line
            for part in files.values()
            for line in part
            if line[:1] in "+-" and line.strip("+-")
        ]
        assert len(lines) <= LINES, title
        assert len(files.keys() - {"config.yaml"}) <= FILES, title
        project = changed(title, tmp_path / title)
        for name in files.keys() - {"config.yaml"}:
            compile((project / name).read_text(encoding="utf-8"), name, "exec")


@pytest.mark.parametrize("title", EFFECTS)
@pytest.mark.first(3)
def test_a_change_trains_shows_its_effect_and_resumes(
    title: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PICTURES, "1")
    project, plain = changed(title, tmp_path), losses(place)
    words = (
        WORDS
        if "Frozen" not in title
        else tuple(w for w in WORDS if w not in ("--training.max_steps", "12"))
    )
    result = run(project, "train", *words, cwd=place)
    assert result.code == 0, result.err[-2000:]
    if effect := EFFECTS[title]:
        effect(place, result.out)
    whole = losses(place), evaluations(place), weights(place)
    assert (whole[0] == plain) == any(word in title for word in SAME)
    for more in ((*words, "--max-steps", "7"), ("--resume",)):
        result = run(project, "train", *more, cwd=place)
        assert result.code == 0, result.err[-2000:]
    assert (losses(place), evaluations(place), weights(place)) == whole


def test_a_verb_of_ones_own(place: Path, tmp_path: Path) -> None:
    result = run(changed("A verb", tmp_path), "weights", cwd=place)
    assert result.code == 0, result.err
    assert re.search(r"^ +64  first.bias$", result.out, re.MULTILINE)
