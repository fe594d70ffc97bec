"""Learning rates against torch's own schedulers, and at the edges."""

import itertools
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from fakes import engine
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from torch.optim import lr_scheduler

PEAK = 0.02


def names() -> tuple[str, ...]:
    """The schedules that the settings offer."""
    return get_args(engine("config").Schedule.model_fields["name"].annotation)


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
    rates = []
    for step in range(steps):
        made.set(step)
        assert {group["lr"] for group in made.optimizer.param_groups} == {made.learning_rate}
        rates.append(made.learning_rate)
    return rates


def torch_rates(scheduler: Any, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("total", "warmup"), [(100, "auto"), (1000, "auto"), (40, 10)])
def test_onecycle_is_that_of_torch(total, warmup):
    share = 0.3 if warmup == "auto" else warmup / total
    reference = lr_scheduler.OneCycleLR(optimizer(), PEAK, total_steps=total, pct_start=share)
    expected = [*torch_rates(reference, total - 1), reference.get_last_lr()[0]]
    assert rates(schedule("onecycle", total, warmup), total) == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [0, 1, 25])
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_warmup_then_decay_are_those_of_torch(name, warmup, final):
    decay = 120 - warmup
    made = optimizer()
    after: Any = lr_scheduler.ConstantLR(made, 1.0)
    if name == "cosine":
        after = lr_scheduler.CosineAnnealingLR(made, decay, eta_min=final * PEAK)
    elif name == "linear":
        after = lr_scheduler.LinearLR(made, 1.0, final, total_iters=decay)
    expected = [PEAK * (step + 1) / warmup for step in range(warmup)]
    expected += torch_rates(after, decay + 1)
    made_rates = rates(schedule(name, 120, warmup, final), 121)
    assert made_rates == pytest.approx(expected, abs=1e-12)


@given(
    name=some.integers(0, 100).map(lambda number: names()[number % len(names())]),
    total=some.integers(1, 300),
    warmup=some.integers(0, 400),
    final=some.floats(0, 1),
)
@hypothesis_settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_any_length_gives_rates_up_to_the_peak(name, total, warmup, final):
    """Also runs shorter than their warm-up, and steps behind the end; up first, then never up
    again."""
    actual = rates(schedule(name, total, warmup, final), total + 5)
    assert 0 < max(actual) <= PEAK * (1 + 1e-9)
    assert min(actual) >= 0
    top = actual.index(max(actual))
    assert all(left <= right + 1e-15 for left, right in itertools.pairwise(actual[: top + 1]))
    assert all(left >= right - 1e-15 for left, right in itertools.pairwise(actual[top:]))
