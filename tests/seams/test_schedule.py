"""Learning rates against torch's own schedulers, and at the edges."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from fakes import engine
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from importing import imported
from rendering import render
from torch.optim import lr_scheduler

PEAK = 0.02


def names() -> tuple[str, ...]:
    """The schedules that the settings offer."""
    return get_args(imported(render(), "config").Schedule.model_fields["name"].annotation)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(2)]}], lr=PEAK)


def schedule(
    name: str, total: int, warmup: int | str = 0, final: float = 0.1, target: Any = None
) -> Any:
    settings = SimpleNamespace(
        schedule=SimpleNamespace(name=name, warmup_steps=warmup, final_factor=final),
        optimizer=SimpleNamespace(learning_rate=PEAK),
    )
    return engine("optimization").Schedule(target or optimizer(), settings, total)


def rates(made: Any, steps: int) -> list[float]:
    found = []
    for step in range(steps):
        made.set(step)
        (rate,) = {group["lr"] for group in made.optimizer.param_groups}
        assert rate == made.learning_rate
        found.append(rate)
    return found


def torch_rates(scheduler: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("total", "warmup"), [(100, "auto"), (100, 30), (1000, "auto"), (40, 10), (200, 50)]
)
def test_onecycle_is_that_of_torch(total: int, warmup: int | str) -> None:
    share = 0.3 if warmup == "auto" else warmup / total
    reference = lr_scheduler.OneCycleLR(optimizer(), PEAK, total_steps=total, pct_start=share)
    assert rates(schedule("onecycle", total, warmup), total) == pytest.approx(
        [*torch_rates(reference, total - 1), reference.get_last_lr()[0]]
    )


@pytest.mark.parametrize("warmup", [0, 1, 25])
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_warmup_then_decay_are_those_of_torch(name: str, warmup: int, final: float) -> None:
    total, decay = 120, 120 - warmup
    made = optimizer()
    after = {
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(made, decay, eta_min=final * PEAK),
        "linear": lambda: lr_scheduler.LinearLR(made, 1.0, final, total_iters=decay),
        "constant": lambda: lr_scheduler.ConstantLR(made, 1.0),
    }[name]()
    wanted = [PEAK * (step + 1) / warmup for step in range(warmup)] + torch_rates(after, decay + 1)
    assert rates(schedule(name, total, warmup, final), total + 1) == pytest.approx(
        wanted, abs=1e-12
    )


@given(
    name=some.integers(0, 100).map(lambda number: names()[number % len(names())]),
    total=some.integers(1, 300),
    warmup=some.integers(0, 400),
    final=some.floats(0, 1),
)
@hypothesis_settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_any_length_gives_rates_up_to_the_peak(
    name: str, total: int, warmup: int, final: float
) -> None:
    """Also runs shorter than their warm-up, and steps behind the end; up first, then never up again."""
    found = rates(schedule(name, total, warmup, final), total + 5)
    assert 0 < max(found) <= PEAK * (1 + 1e-9)
    assert min(found) >= 0
    top = found.index(max(found))
    assert all(left <= right + 1e-15 for left, right in itertools.pairwise(found[: top + 1]))
    assert all(left >= right - 1e-15 for left, right in itertools.pairwise(found[top:]))
    if 10 <= total >= warmup and (name, warmup) != ("onecycle", 1):  # there is room for a rise
        assert max(found) == pytest.approx(PEAK)


def test_a_loaded_optimizer_is_still_the_one_that_is_set() -> None:
    """Loading a state puts new groups in place of the old ones."""
    target = optimizer()
    made = schedule("linear", 10, target=target)
    made.set(0)
    target.load_state_dict(optimizer().state_dict())
    made.set(5)
    assert {group["lr"] for group in target.param_groups} == {made.learning_rate} != {PEAK}


def test_another_length_or_schedule_is_refused() -> None:
    made = schedule("cosine", 100)
    made.load_state_dict(schedule("cosine", 100).state_dict())
    for other in (schedule("cosine", 101), schedule("linear", 100)):
        with pytest.raises(engine("errors").UserError, match="schedule changed"):
            made.load_state_dict(other.state_dict())
