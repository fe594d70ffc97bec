"""Number formats: what autocast computes in, and the loss scale."""

import copy

import pytest
import torch
from fakes import CPU, PRECISIONS, Loop, Ragged, engine, ragged_batch
from test_loop import assert_same, mean_gradient, moved, norm_of, state
from torch import nn

DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def make(name):
    return engine("compute.precision").Precision(name, CPU)


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


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_the_optimizer_sees_the_unscaled_mean_gradient(clip):
    batch = ragged_batch(24, torch.float32)
    model = Ragged(dtype=torch.float32)
    wanted, _ = mean_gradient(model, batch)
    norm = norm_of(wanted)
    if clip:
        wanted = {name: value * clip / norm for name, value in wanted.items()}
    start = state(model)
    precision = make("fp16")
    precision.calibrate(1e4)
    loop = Loop(model, clip=clip, precision=precision)([batch])
    assert_same(moved(model, start), wanted, 2e-3)  # as exact as a half
    assert loop.norms == [pytest.approx(norm, rel=2e-3)]


def test_gradients_of_several_dtypes_keep_them_and_have_the_norm_of_torch():
    """Bit for bit; a weight without a gradient is left out."""
    parameters = [nn.Parameter(torch.randn(5, 3, dtype=dtype)) for dtype in DTYPES]
    unused = nn.Parameter(torch.ones(2))
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    gradients = [parameter.grad.clone() for parameter in parameters]
    norm = torch.nn.utils.get_total_norm(gradients)
    optimizer = torch.optim.SGD([unused, *parameters])
    divisor = torch.tensor(3.0)
    actual = engine("compute.precision").mean_and_clip(optimizer, divisor, clip=0.0)
    assert torch.equal(actual, norm / divisor)
    assert unused.grad is None
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert torch.equal(parameter.grad, gradient / divisor)
        assert parameter.grad.dtype == gradient.dtype


def test_the_scale_travels_with_the_checkpoint():
    first = make("fp16")
    second = make("fp16")
    first.calibrate(1e4)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    one = torch.tensor(1.0)
    assert second.scaler.scale(one) == first.scaler.scale(one)
    make("fp32").load_state_dict(first.state_dict())  # no scaler there: nothing to take over
