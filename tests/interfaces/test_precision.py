"""Number formats: what autocast computes in, the loss scale, and a step that an overflow skips."""

import copy
from typing import Any

import pytest
import torch
from fakes import CPU, PRECISIONS, Loop, Ragged, engine, ragged_batch
from test_loop import assert_same, mean_gradient, moved, state
from torch import nn

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def make(name: str) -> Any:
    return engine("compute.precision").Precision(name, CPU)


def fp16_loop(model: nn.Module, weight: float, clip: float, optimizer: Any) -> Loop:
    precision = make("fp16")
    precision.calibrate(weight)
    return Loop(model, clip=clip, precision=precision, optimizer=optimizer)


@pytest.mark.parametrize("name", PRECISIONS)
def test_flags_follow_the_precision(name):
    make("tf32" if name == "fp32" else "fp32")  # whatever another one left
    make(name)
    allowed = name != "fp32"
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is allowed


@pytest.mark.parametrize("name", PRECISIONS)
def test_matmuls_run_in_the_precision_and_weights_stay_float32(name):
    layer = nn.Linear(4, 4)
    with make(name).autocast():
        product = layer(torch.ones(2, 4))
    assert product.dtype == HALF.get(name, torch.float32)
    product.sum().backward()
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 2.0, 3.0, 32.0, 1000.0, 1e6])
def test_the_first_scale_fits_a_sum_over_the_weight(weight):
    """Gradients of a sum start as large as those of a mean under GradScaler's own scale, or half of
    it."""
    precision = make("fp16")
    precision.calibrate(weight)
    start = torch.amp.GradScaler("cpu").get_scale()
    assert start / 2 < precision.scaler.scale(torch.tensor(max(weight, 1.0))).item() <= start


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_the_optimizer_sees_the_unscaled_mean_gradient(clip):
    batch = ragged_batch(24, torch.float32)
    model = Ragged(dtype=torch.float32)
    wanted, _ = mean_gradient(model, batch)
    norm = sum(value.square().sum().item() for value in wanted.values()) ** 0.5
    if clip:
        wanted = {name: value * clip / norm for name, value in wanted.items()}
    start = state(model)
    loop = fp16_loop(model, 1e4, clip, torch.optim.SGD(model.parameters(), lr=1.0))([batch])
    assert_same(moved(model, start), wanted, 2e-3)  # as exact as a half
    assert loop.norms == [pytest.approx(norm, rel=2e-3)]


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_overflow_skips_its_step_and_halves_the_scale(fused, bad):
    batch = ragged_batch(8, torch.float32)
    model = Ragged(dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    loop = fp16_loop(model, 40.0, 1.0, optimizer)
    precision = loop.project.precision
    loop([batch])
    before = state(model)
    scale = precision.scaler.get_scale()
    hook = model.layer.weight.register_hook(lambda gradient: torch.full_like(gradient, bad))
    loop([batch])
    hook.remove()
    assert_same(state(model), before, 0.0)
    assert precision.scaler.get_scale() == scale / 2
    loop([batch])
    assert loop.skipped[1:] == [1, 0], "since the last record"
    assert not torch.equal(state(model)["head.weight"], before["head.weight"])


def test_the_scale_travels_with_the_checkpoint():
    first = make("fp16")
    second = make("fp16")
    first.calibrate(1e4)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    one = torch.tensor(1.0)
    assert second.scaler.scale(one) == first.scaler.scale(one)
    make("fp32").load_state_dict(first.state_dict())  # no scaler there: nothing to take over
    second.load_state_dict(make("bf16").state_dict())
    assert second.scaler.scale(one) == first.scaler.scale(one)
