"""One optimizer step: accumulated by weight, clipped by the norm of the mean gradient, stateful if asked."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from fakes import CPU, OneOf, Ragged, Summing, cut, engine, ragged_batch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from torch import Tensor, nn

FLOATS = (torch.float64, torch.float32)


def make_step(model: nn.Module, clip: float = 0.0, distributed: Any = None, **more: Any) -> Any:
    """A Step whose weights move by exactly minus the gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    precision = engine("precision").Precision("fp32", CPU)
    return engine("step").Step(model, optimizer, precision, distributed or OneOf(), clip, **more)


def run_group(step: Any, batches: list[dict[str, Tensor]]) -> None:
    for number, batch in enumerate(batches, start=1):
        step(batch, closes=number == len(batches))


def moved(model: nn.Module, start: dict[str, Tensor]) -> dict[str, Tensor]:
    """How far each weight went, which is the gradient that the optimizer saw."""
    return {name: start[name] - value.detach() for name, value in model.named_parameters()}


def mean_gradient(model: nn.Module, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
    """Gradient of the mean loss of one whole batch, and that loss, by nothing but autograd in float64."""
    reference = copy.deepcopy(model).double()
    whole = {
        name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()
    }
    loss = reference(whole).loss
    loss.backward()
    return {name: parameter.grad for name, parameter in reference.named_parameters()}, loss.item()


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert found.keys() == wanted.keys()
    scale = max(value.abs().max().item() for value in wanted.values())
    for name, value in found.items():
        assert (value.double() - wanted[name]).abs().max() <= tolerance * scale, name


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(
    borders=some.lists(some.integers(1, 23), unique=True, max_size=6).map(sorted), seed=some.integers(0, 9)
)
@hypothesis_settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_a_group_of_ragged_batches_equals_one_big_batch(
    dtype: torch.dtype, borders: list[int], seed: int
) -> None:
    """However it is cut: into unequal parts, parts without any target, a last short one."""
    model, batch = Ragged(dtype=dtype), ragged_batch(24, dtype, seed)
    wanted, loss = mean_gradient(model, batch)
    step, start = make_step(model), state(model)
    run_group(step, cut(batch, borders))
    assert_same(moved(model, start), wanted)
    assert step.last["loss"].item() == pytest.approx(loss, rel=1e-6)
    norm = math.sqrt(sum(value.square().sum().item() for value in wanted.values()))
    assert step.last["gradient_norm"].item() == pytest.approx(norm, rel=1e-6)


def test_groups_do_not_leak_into_each_other() -> None:
    """The second group's update is that of its own targets, though the first was longer."""
    model = Ragged()
    step = make_step(model)
    run_group(step, cut(ragged_batch(24, seed=1), [5, 11]))
    second = ragged_batch(7, seed=2)
    wanted, _ = mean_gradient(model, second)
    start = state(model)
    run_group(step, [second])
    assert_same(moved(model, start), wanted)
    assert len(step.group) == 1


def test_weights_move_when_a_group_closes_and_not_before() -> None:
    model = Ragged()
    step, start = make_step(model), state(model)
    first, second = cut(ragged_batch(), [9])
    step(first, closes=False)
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    step(second, closes=True)
    assert not any(torch.equal(value, start[name]) for name, value in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters()), "gradients are cleared"


def test_a_group_without_targets_moves_nothing() -> None:
    model, batch = Ragged(), ragged_batch(6)
    batch["lengths"] = torch.zeros(6, dtype=torch.int64)
    step, start = make_step(model, clip=1.0), state(model)
    run_group(step, cut(batch, [3]))
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    assert step.last["loss"].item() == 0


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999, 1.001, 100.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clipping_is_that_of_torch_on_the_mean_gradient(share: float, dtype: torch.dtype) -> None:
    """clip: a share of the gradient's own norm, so below 1 it bites and above it does nothing."""
    model, batch = Ragged(dtype=dtype), ragged_batch(24, dtype)
    wanted, _ = mean_gradient(model, batch)
    parameters = [nn.Parameter(torch.zeros_like(value)) for value in wanted.values()]
    for parameter, value in zip(parameters, wanted.values(), strict=True):
        parameter.grad = value.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf).item()
    torch.nn.utils.clip_grad_norm_(parameters, share * norm)
    step, start = make_step(model, clip=share * norm), state(model)
    run_group(step, cut(batch, [4, 5, 17]))
    clipped = {name: parameter.grad for name, parameter in zip(wanted, parameters, strict=True)}
    assert_same(moved(model, start), clipped, 2e-6)  # torch adds 1e-6 to the norm
    assert step.last["gradient_norm"].item() == pytest.approx(norm, rel=1e-6), "as it was before clipping"


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_two_ranks_that_average_gradients_equal_one(clip: float) -> None:
    """DDP and FSDP divide the sum of gradients by the world; ranks have unequally many targets."""
    model, batch = Ragged(), ragged_batch()
    mine, theirs = cut(batch, [6])
    alone = copy.deepcopy(model)
    run_group(make_step(alone, clip), [batch])

    def averaged(loss: Tensor, gradient: Tensor) -> None:
        loss.backward(gradient=gradient)
        other = model(theirs)
        other.loss.backward(gradient=other.weight)
        for parameter in model.parameters():
            parameter.grad /= 2

    other = model(theirs)
    both = {0: other.weight.detach(), 1: torch.stack([other.loss * other.weight, other.weight]).detach()}
    ranks = OneOf(world=2, total=lambda tensor: tensor + both[tensor.dim()])
    step = make_step(model, clip, ranks, backward=averaged)
    run_group(step, [mine])
    assert_same(state(model), state(alone))
    wanted = Ragged()(batch).loss.item()
    assert step.last["loss"].item() == pytest.approx(wanted, rel=1e-9)


def test_gradients_stay_local_until_the_group_closes() -> None:
    inside, log = [], []

    class Local:
        def __enter__(self) -> None:
            inside.append(True)

        def __exit__(self, *error: object) -> None:
            inside.pop()

    def backward(loss: Tensor, gradient: Tensor) -> None:
        log.append(bool(inside))
        loss.backward(gradient=gradient)

    run_group(make_step(Ragged(), backward=backward, no_sync=Local), cut(ragged_batch(), [5, 9]))
    assert log == [True, True, False]


def stateful(x: list[float], fresh: list[bool]) -> dict[str, Tensor]:
    index = torch.arange(len(x))
    return {"x": torch.tensor(x), "fresh": torch.tensor(fresh), "index": index}


def test_a_state_goes_on_in_its_lane_and_starts_at_zero_where_fresh() -> None:
    model = Summing()
    step = make_step(model)
    step(stateful([1, 2, math.inf], [True, True, True]), closes=False)
    step(stateful([10, 20, 30], [False, True, True]), closes=False)
    step(stateful([100, 200, 300], [False, False, False]), closes=False)
    assert model.seen[0] is None
    assert model.seen[1].tolist() == [1, 0, 0], "not even an infinite state reaches a fresh lane"
    assert model.seen[2].tolist() == [11, 20, 30]


def test_a_carried_state_is_cut_off_from_the_graph() -> None:
    """The gradient of a batch is its own: d(w · x)/dw = x, whatever came before."""
    model = Summing()
    step = make_step(model)
    for _ in range(3):
        before = model.weight.item()
        step(stateful([2.0, 4.0], [False, False]), closes=True)
        assert before - model.weight.item() == pytest.approx(3.0)
        assert not step.carry.state["sum"].requires_grad


def test_a_state_travels_with_the_checkpoint_and_can_be_dropped() -> None:
    model = Summing()
    step = make_step(model)
    step(stateful([1.0, 2.0], [True, True]), closes=True)
    other = make_step(Summing())
    other.load_state_dict(copy.deepcopy(step.state_dict()))
    other(stateful([0.0, 0.0], [False, False]), closes=True)
    assert other.model.seen[0].tolist() == [1, 2]
    other.carry.drop()
    other(stateful([0.0, 0.0], [False, False]), closes=True)
    assert other.model.seen[1] is None


def test_states_may_be_nested_and_of_any_rank() -> None:
    carry, seams = engine("step").Carry(), engine("seams")
    nest = {"layers": [(torch.ones(2, 3), torch.ones(2)), (torch.ones(2, 3, 4), torch.ones(2, 1))]}
    carry.keep(seams.Output(torch.tensor(0.0), torch.tensor(1.0), carry=nest))
    batch = {"fresh": torch.tensor([True, False])}
    carry.into(batch)
    for part in [tensor for layer in batch["carry"]["layers"] for tensor in layer]:
        assert (part[0] == 0).all()
        assert (part[1] == 1).all()
    assert isinstance(batch["carry"]["layers"][0], tuple)
