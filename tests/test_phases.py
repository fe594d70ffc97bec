"""Phases: several stages of training in one run folder, each with its own settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rendering import render
from running import (
    check_run,
    evaluation_of,
    evaluations,
    losses,
    one_error,
    rows,
    run,
    weights,
)
from variants import choices

OPTIONS = ("--model.width", "16", "--monitor.every_steps", "1", "--schedule.warmup_steps", "2")
PHASES = [
    {"name": "short", "steps": 12, "overrides": {"data": {"batch_size": 64}}},
    {"name": "long", "steps": 15, "overrides": {"optimizer.learning_rate": 1e-4}},
    {"name": "last", "steps": 5, "overrides": {"training.gradient_accumulation_steps": 2}},
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases")
    configure(folder)
    train(folder, *OPTIONS)
    return folder


@pytest.fixture
def place(reference, tmp_path):
    (tmp_path / "data").symlink_to(reference / "data")
    configure(tmp_path)
    return tmp_path


def configure(folder: Path, phases: Any = PHASES) -> None:
    config = yaml.safe_load((render(workload="tabular") / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"phases": phases}))


def train(place: Path, *words: str, framework: str = "pytorch") -> None:
    project = render(workload="tabular", framework=framework)
    check_run(project, "train", *words, cwd=place)


def results(place: Path) -> tuple[object, ...]:
    """What must be the same, bit for bit, however often a run was stopped."""
    return losses(place), evaluations(place), weights(place)


def test_phases_run_in_turn_with_their_settings(reference):
    trained = [row for row in rows(reference) if "split" not in row]
    assert [row["step"] for row in trained] == list(range(1, 33))
    rates = [row["learning_rate"] for row in trained]
    peaks = [max(rates[first:end]) for first, end in ((0, 12), (12, 27), (27, 32))]
    assert peaks == pytest.approx([1e-3, 1e-4, 1e-3])
    # A phase begins with the weights of the one before.
    assert trained[12]["loss"] < 0.99 * trained[0]["loss"]
    assert [step for step, _ in evaluations(reference)] == [12, 27, 32]


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.parametrize("stops", [(5, 12, 20), (11, 13, 27), (12, 28, 31)], ids=str)
@pytest.mark.cover(1)
def test_resume_inside_any_phase(framework, stops, place, reference):
    words = OPTIONS
    for stop in (*stops, 32):
        train(place, *words, "--max-steps", str(stop), framework=framework)
        assert losses(place)[-1][0] == stop
        words = ("--resume",)
    assert results(place) == results(reference)


def test_one_phase_at_a_time(place, reference):
    words = OPTIONS
    for number, steps in ((1, 12), (2, 27), (3, 32)):
        train(place, *words, "--phase", str(number))
        assert losses(place)[-1][0] == steps
        words = ()
    assert len(list((place / "runs").iterdir())) == 1
    assert results(place) == results(reference)


def test_a_phase_waits_for_the_one_before(place):
    def refused(phase, *parts):
        done = run(render(workload="tabular"), "train", "--phase", str(phase), cwd=place)
        one_error(done, *parts)

    refused(2, "no run yet")
    train(place, *OPTIONS, "--phase", "1", "--max-steps", "7")
    refused(4, "no phase 4")
    refused(2, "phase 1 is not finished", "step 7 of 12")


def test_a_phase_trains_and_evaluates_on_data_of_its_own(tmp_path):
    """Two prepared tables, one after the other; resumed in each to the bit, and evaluated on the
    last one."""
    project = render(workload="tabular")
    random = np.random.default_rng(0)
    a = random.normal(2, 1, 300)
    noise = random.normal(0, 0.1, 300)
    phases = []
    for name, slope, steps in (("one", 1.0, 9), ("two", -3.0, 11)):
        table = np.column_stack([a, noise, slope * a + noise])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="a,b,target", comments="")
        words = f"--input {name}.csv --target target --task regression --data.path data/{name}"
        check_run(project, "prepare", *words.split(), cwd=tmp_path)
        overrides = {"data.path": f"data/{name}"}
        phases.append({"name": name, "steps": steps, "overrides": overrides})
    configure(tmp_path, phases)

    options = (*OPTIONS, "--data.batch_size", "64")
    train(tmp_path, *options)
    whole = results(tmp_path)
    for stop in (5, 9, 14, 20):
        train(tmp_path, *options, "--max-steps", str(stop))
        options = ("--resume",)
    assert results(tmp_path) == whole
    # The second table's targets go down where the first one's go up.
    trained = [row["loss"] for row in rows(tmp_path) if "split" not in row]
    assert trained[9] > 2 * trained[8]
    words = ("--checkpoint", "last", "--split", "validation")
    check_run(project, "evaluate", *words, cwd=tmp_path)
    measured = evaluation_of(tmp_path)["metrics"]["loss"]
    assert measured == float.fromhex(evaluations(tmp_path)[-1][1])
