"""Learning rates against torch's own schedulers, and at the edges."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from importing import imported
from rendering import render
from torch.optim import lr_scheduler

PEAK = 0.02


def optimizer():
    return torch.optim.SGD([torch.zeros(1)], lr=PEAK)


def rates(name, total, warmup=0, final=0.1, steps=None, decay="auto"):
    """The rates of the first steps of a run, by default of all."""
    settings = SimpleNamespace(
        schedule=SimpleNamespace(
            name=name, warmup_steps=warmup, final_factor=final, decay_steps=decay
        ),
        optimizer=SimpleNamespace(learning_rate=PEAK),
    )
    learning_rate = imported(render(), "optimizer").learning_rate
    return [learning_rate(step, total, settings) for step in range(steps or total)]


def torch_rates(scheduler, steps):
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("total", "warmup"), [(1000, "auto"), (40, 10)])
def test_onecycle_is_that_of_torch(total, warmup):
    share = 0.3 if warmup == "auto" else warmup / total
    reference = lr_scheduler.OneCycleLR(optimizer(), PEAK, total_steps=total, pct_start=share)
    expected = [*torch_rates(reference, total - 1), reference.get_last_lr()[0]]
    assert rates("onecycle", total, warmup) == pytest.approx(expected)


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
    actual = rates(name, 120, warmup, final, steps=121)
    assert actual == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_wsd_stays_at_the_peak_and_then_falls_with_a_square_root(final):
    actual = rates("wsd", 100, 10, final, steps=101)
    fall = [PEAK * (1 - (1 - final) * (step / 20) ** 0.5) for step in range(21)]
    assert actual[:10] == pytest.approx([PEAK * (step + 1) / 10 for step in range(10)])
    assert actual[10:80] == [PEAK] * 70
    assert actual[80:] == pytest.approx(fall)
    assert actual[-1] == pytest.approx(final * PEAK)


@pytest.mark.parametrize(("warmup", "longer"), [("auto", 20), (3, 3)])
def test_wsd_before_its_decay_is_constant_and_of_no_length(warmup, longer):
    """So a run with either may become longer; `auto` is as many steps only if they are given."""
    common = rates("constant", 400, longer, steps=160)
    assert rates("wsd", 200, warmup, steps=160) == common
    assert rates("wsd", 190, longer, decay=30, steps=160) == common
    assert rates("wsd", 400, longer, steps=320) == rates("constant", 320, longer)
    assert rates("wsd", 400, longer, decay=0) == rates("constant", 400, longer)


@given(
    name=some.sampled_from(["onecycle", "cosine", "linear", "wsd", "constant"]),
    total=some.integers(1, 300),
    warmup=some.integers(0, 400),
    final=some.floats(0, 1),
)
@hypothesis_settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_any_length_gives_rates_up_to_the_peak(name, total, warmup, final):
    """Also runs shorter than their warm-up, and steps behind the end; up first, then never up
    again."""
    actual = rates(name, total, warmup, final, steps=total + 5)
    assert 0 < max(actual) <= PEAK * (1 + 1e-9)
    assert min(actual) >= 0
    top = actual.index(max(actual))
    assert sorted(actual[:top]) == pytest.approx(actual[:top])
    assert sorted(actual[top:], reverse=True) == pytest.approx(actual[top:])
