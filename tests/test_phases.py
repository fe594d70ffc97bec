"""Phases: several stages of training in one run folder, each with its own settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from rendering import render
from running import evaluations, losses, newest_run, one_error, rows, run, weights
from variants import choices

OPTIONS = ("--model.width", "16", "--monitor.every_steps", "1", "--schedule.warmup_steps", "2")
PHASES = [
    {"name": "short", "steps": 12, "overrides": {"data": {"batch_size": 64}}},
    {
        "name": "long",
        "steps": 15,
        "overrides": {"data.batch_size": 256, "optimizer.learning_rate": 1e-4},
    },
    {"name": "last", "steps": 5, "overrides": {"training.gradient_accumulation_steps": 2}},
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phases")
    configure(folder)
    assert run(render(workload="tabular"), "train", *OPTIONS, cwd=folder).code == 0
    return folder


@pytest.fixture
def place(reference: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").symlink_to(reference / "data")
    configure(tmp_path)
    return tmp_path


def configure(folder: Path) -> None:
    config = yaml.safe_load((render(workload="tabular") / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"phases": PHASES}))


def test_phases_run_in_turn_with_their_settings(reference: Path) -> None:
    trained = [row for row in rows(reference) if "split" not in row]
    assert [row["step"] for row in trained] == list(range(1, 33))
    assert max(row["learning_rate"] for row in trained[:12]) == pytest.approx(1e-3)
    assert max(row["learning_rate"] for row in trained[12:27]) == pytest.approx(1e-4)
    assert max(row["learning_rate"] for row in trained[27:]) == pytest.approx(1e-3)
    assert trained[12]["loss"] < 0.99 * trained[0]["loss"], (
        "a phase begins with the weights of the one before"
    )
    assert [step for step, _ in evaluations(reference)] == [12, 27, 32]


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.parametrize("stops", [(5, 12, 20, 27, 30), (11, 13), (12,), (27, 28, 31)], ids=str)
@pytest.mark.cover(1)
def test_resume_inside_any_phase(
    framework: str, stops: tuple[int, ...], place: Path, reference: Path
) -> None:
    for number, stop in enumerate(stops):
        words = ("--resume",) if number else OPTIONS
        result = run(
            render(workload="tabular", framework=framework),
            "train",
            *words,
            "--max-steps",
            str(stop),
            cwd=place,
        )
        assert result.code == 0, result.err
        assert losses(place)[-1][0] == stop
    assert (
        run(render(workload="tabular", framework=framework), "train", "--resume", cwd=place).code
        == 0
    )
    assert losses(place) == losses(reference)
    assert evaluations(place) == evaluations(reference)
    assert weights(place) == weights(reference)


def test_one_phase_at_a_time(place: Path, reference: Path) -> None:
    project = render(workload="tabular")
    for number, steps in ((1, 12), (2, 27), (3, 32)):
        words = OPTIONS if number == 1 else ()
        result = run(project, "train", *words, "--phase", str(number), cwd=place)
        assert result.code == 0, result.err
        assert losses(place)[-1][0] == steps
    assert len(list((place / "runs").iterdir())) == 1
    assert losses(place) == losses(reference)
    assert weights(place) == weights(reference)


def test_a_phase_waits_for_the_one_before(place: Path) -> None:
    project = render(workload="tabular")
    one_error(run(project, "train", "--phase", "2", cwd=place), "no run yet")
    one_error(run(project, "train", "--phase", "9", cwd=place), "no phase 9", "3")
    assert run(project, "train", *OPTIONS, "--phase", "1", "--max-steps", "7", cwd=place).code == 0
    one_error(run(project, "train", "--phase", "4", cwd=place), "no phase 4")
    one_error(
        run(project, "train", "--phase", "2", cwd=place), "phase 1 is not finished", "step 7 of 12"
    )
    assert newest_run(place).exists()


def test_a_phase_trains_and_evaluates_on_data_of_its_own(tmp_path: Path) -> None:
    """Two prepared tables, one after the other; resumed in each to the bit, and evaluated on the last one."""
    for name, slope in (("one", 1.0), ("two", -3.0)):
        random = np.random.default_rng(0)
        a, noise = random.normal(2, 1, 300), random.normal(0, 0.1, 300)
        table = np.column_stack([a, noise, slope * a + noise])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="a,b,target", comments="")
        words = f"--input {name}.csv --target target --task regression --data.path data/{name}"
        prepared = run(render(workload="tabular"), "prepare", *words.split(), cwd=tmp_path)
        assert prepared.code == 0, prepared.err
    phases = [
        {"name": name, "steps": steps, "overrides": {"data.path": f"data/{name}"}}
        for name, steps in (("one", 9), ("two", 11))
    ]
    config = yaml.safe_load((render(workload="tabular") / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"phases": phases}))
    words, found = (*OPTIONS, "--data.batch_size", "64"), []
    for stops in ((), (5, 9, 14)):
        for number, stop in enumerate((*stops, 20)):
            flags = ("--resume",) if number else words
            done = run(
                render(workload="tabular"), "train", *flags, "--max-steps", str(stop), cwd=tmp_path
            )
            assert done.code == 0, done.err
        found.append((losses(tmp_path), evaluations(tmp_path), weights(tmp_path)))
    assert found[0] == found[1]
    trained = [row["loss"] for row in rows(tmp_path) if "split" not in row]
    assert trained[9] > 2 * trained[8], (
        "the second table's targets go down where the first one's go up"
    )
    words = ("--checkpoint", "last", "--split", "validation")
    assert run(render(workload="tabular"), "evaluate", *words, cwd=tmp_path).code == 0
    measured = json.loads((newest_run(tmp_path) / "evaluation.json").read_text())["metrics"]["loss"]
    assert measured == float.fromhex(evaluations(tmp_path)[-1][1])
