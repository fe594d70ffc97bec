"""The extra `lanes`: the state of the LSTM is carried through time, scored so, and resumed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from copiers import refusal
from importing import imported
from rendering import render
from running import (
    check_run,
    evaluation_of,
    evaluations,
    last_state,
    losses,
    one_error,
    run,
    weights,
)
from sizes import TINY
from variants import choices

PROJECT = render(extras=["lanes"])
LANES = ("--data.order", "lanes", "--data.batch_size", "4", "--monitor.every_steps", "1")
WORDS = ("train", *TINY["timeseries"], *LANES, "--evaluation.every_steps", "8")


def model(order, project=PROJECT, frames=None, **sizes):
    """frames: their seconds, by name."""
    given = {"width": 8, "depth": 2, "dropout": 0.0, "loss": "mse"}
    given |= {"subtract_last": False, "linear_path": False}
    data = SimpleNamespace(order=order, stride=0)
    settings = SimpleNamespace(model=SimpleNamespace(**given | sizes), data=data)
    scale = {"history": 24, "mean": [0.0] * 3, "std": [1.0] * 3}
    steps = frames or {"rows": 3600}
    facts: dict[str, Any] = {"horizon": 6, "targets": [0, 2]}
    facts["frames"] = [{"name": name, "step": step, **scale} for name, step in steps.items()]
    facts |= {"target_mean": [[0.0, 0.0]], "target_std": [[1.0, 1.0]]}
    torch.manual_seed(0)
    if order == "lanes":  # as assemble.py does
        return imported(project, "lanes").LaneForecaster(settings, facts)
    return imported(project, "model").build_model(settings, facts)


def batch(length=24):
    generator = torch.Generator().manual_seed(1)
    return {
        "rows": torch.randn(4, length, 3, generator=generator),
        "target": torch.randn(4, 6, 2, generator=generator),
        "index": torch.arange(4) * 1000,
        "present": torch.ones(4, dtype=torch.bool),
    }


def test_a_carried_state_is_that_of_one_long_window():
    """Two windows, one behind the other in a lane, end in the state of a window of both."""
    forecaster = model("lanes").eval()
    long = batch(length=48)
    continued = {"index": long["index"] + 24}
    forecaster(long | {"rows": long["rows"][:, :24]})
    second = forecaster(long | {"rows": long["rows"][:, 24:]} | continued)
    assert forecaster.recurrent.states[False][1][0].shape == (4, 2, 8)  # lanes first
    whole = forecaster(long)
    torch.testing.assert_close(second.loss, whole.loss)


def test_without_lanes_the_extra_changes_no_weight_and_no_loss():
    """The forecaster that carries a state starts from the same weights."""
    carrying = model("lanes", subtract_last=True)
    plain = model("full", subtract_last=True)
    assert all(map(torch.equal, carrying.state_dict().values(), plain.state_dict().values()))
    assert type(plain).__name__ == "Forecaster"
    assert torch.equal(carrying(batch()).loss, plain(batch()).loss), "each lane starts here"


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_run_continues_with_the_carried_state(framework, tmp_path):
    """Stopped inside an epoch and at its end, bit for bit as the run left alone."""
    project = render(framework=framework, extras=["lanes"])
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    check_run(project, *WORDS, "--training.max_steps", "20", cwd=whole)
    check_run(project, *WORDS, "--training.max_steps", "20", "--max-steps", "7", cwd=parts)
    (carried,) = last_state(parts)["hooks"]["lanes"]["ranks"]
    assert carried is not None
    for until in ("11", "20"):
        check_run(project, "train", "--resume", "--max-steps", until, cwd=parts)
    assert losses(parts) == losses(whole)
    assert evaluations(parts) == evaluations(whole)
    assert weights(parts) == weights(whole)


def test_forecasts_of_lanes_are_those_that_are_scored(tmp_path):
    check_run(PROJECT, *WORDS, "--training.max_steps", "8", cwd=tmp_path)
    check_run(PROJECT, "evaluate", "--split", "validation", cwd=tmp_path)
    words = ("--split", "validation", "--output", "p.npz")
    check_run(PROJECT, "predict", *words, cwd=tmp_path)
    store = imported(PROJECT, "engine.loading.store").Store.open(tmp_path / "data/synthetic")
    rows = store.arrays["rows"].rows()
    times = store.arrays["time"].rows()
    with np.load(tmp_path / "p.npz") as file:
        forecast = file["prediction"].astype(np.float64).reshape(-1, rows.shape[1])
        ahead = np.searchsorted(times, file["time"][:: rows.shape[1]].astype(np.int64))
    error = forecast - rows[ahead]
    expected = evaluation_of(tmp_path)["metrics"]["mse_original"]
    assert np.square(error).mean() == pytest.approx(expected, rel=1e-5)


def test_what_has_no_lanes_says_so_in_one_line(tmp_path):
    done = run(render(), "train", "--data.order", "lanes", cwd=tmp_path)
    one_error(done, "data.order cannot be 'lanes'")
    message = refusal(tmp_path, workload="llm", extras=["ema", "lanes"])
    assert message.endswith("only timeseries has lanes")
