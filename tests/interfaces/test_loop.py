"""The loop of each framework: groups accumulated by weight, clipped by the norm of their mean
gradient."""

import copy
import math

import pytest
import torch
from fakes import Loop, OneOf, Ragged, Summing, cut, ragged_batch
from hypothesis import given, strategies
from hypothesis import settings as hypothesis_settings
from torch import nn
from variants import choices

FLOATS = (torch.float64, torch.float32)
every_framework = pytest.mark.parametrize("framework", choices("framework"))


def moved(model, start):
    """How far each weight went, which is the gradient that the optimizer saw."""
    return {name: start[name] - value.detach() for name, value in model.named_parameters()}


def mean_gradient(model, batch):
    """Gradient of the mean loss of one whole batch, and that loss, by nothing but autograd in
    float64."""
    reference = copy.deepcopy(model).double()
    whole = {}
    for name, tensor in batch.items():
        whole[name] = tensor.double() if tensor.is_floating_point() else tensor
    loss = reference(whole).loss
    loss.backward()
    return {name: parameter.grad for name, parameter in reference.named_parameters()}, loss.item()


def assert_same(actual, wanted, tolerance=1e-6):
    assert actual.keys() == wanted.keys()
    scale = max(value.abs().max().item() for value in wanted.values())
    for name, value in actual.items():
        assert (value.double() - wanted[name]).abs().max() <= tolerance * scale, name


def norm_of(gradients):
    return math.sqrt(sum(value.square().sum().item() for value in gradients.values()))


def state(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(
    borders=strategies.lists(strategies.integers(1, 23), unique=True, max_size=6).map(sorted),
    seed=strategies.integers(0, 9),
    has_targets=strategies.booleans(),
)
@hypothesis_settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_a_group_of_ragged_batches_equals_one_big_batch(dtype, borders, seed, has_targets):
    """However it is cut: into unequal parts, parts without any target, a last short one."""
    model = Ragged(dtype=dtype)
    batch = ragged_batch(24, dtype, seed)
    batch["lengths"] *= has_targets
    wanted, loss = mean_gradient(model, batch)
    start = state(model)
    loop = Loop(model)(cut(batch, borders))
    assert_same(moved(model, start), wanted)
    assert loop.means == [pytest.approx(loss, rel=1e-6)]
    assert loop.norms == [pytest.approx(norm_of(wanted), rel=1e-6)]


@every_framework
def test_groups_do_not_leak_into_each_other(framework):
    """The second group's update is that of its own targets, though the first was longer."""
    model = Ragged()
    alone = Ragged()
    first = cut(ragged_batch(24, seed=1), [5, 11])
    second = ragged_batch(7, seed=2)
    Loop(alone)(first)
    wanted, _ = mean_gradient(alone, second)
    Loop(model, framework=framework)(first, [second])
    assert_same(moved(model, state(alone)), wanted)
    assert all(parameter.grad is None for parameter in model.parameters()), "gradients are cleared"


@every_framework
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_a_step_of_few_samples_moves_weights_by_its_fraction(framework, clip):
    """Before the clipping, which sees the smaller gradient, as the logged norm does; the loss is
    its mean."""
    model = Ragged()
    batch = ragged_batch(24)
    wanted, loss = mean_gradient(model, batch)
    norm = norm_of(wanted)
    start = state(model)
    share = 0.01
    loop = Loop(model, framework=framework, clip=clip * norm)
    loop.step_fraction = share
    loop(cut(batch, [7]))
    assert_same(moved(model, start), {name: share * value for name, value in wanted.items()})
    assert loop.norms == [pytest.approx(share * norm, rel=1e-6)]
    assert loop.means == [pytest.approx(loss, rel=1e-6)]


@pytest.mark.parametrize("share", [0.01, 0.999, 1.001])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@every_framework
def test_clipping_is_that_of_torch_on_the_mean_gradient(framework, dtype, share):
    """clip: a share of the gradient's own norm, so below 1 it bites and above it does nothing."""
    model = Ragged(dtype=dtype)
    batch = ragged_batch(24, dtype)
    wanted, _ = mean_gradient(model, batch)
    parameters = [nn.Parameter(torch.zeros_like(value)) for value in wanted.values()]
    for parameter, value in zip(parameters, wanted.values(), strict=True):
        parameter.grad = value.clone()
    norm = norm_of(wanted)
    torch.nn.utils.clip_grad_norm_(parameters, share * norm)
    start = state(model)
    loop = Loop(model, clip=share * norm, framework=framework)(cut(batch, [4, 5, 17]))
    clipped = {name: parameter.grad for name, parameter in zip(wanted, parameters, strict=True)}
    assert_same(moved(model, start), clipped, 2e-6)  # torch adds 1e-6 to the norm
    assert loop.norms == [pytest.approx(norm, rel=1e-6)], "as it was before clipping"


@every_framework
def test_gradients_stay_local_until_the_group_closes(framework):
    exchanged = []
    log = []
    model = Ragged()
    ranks = OneOf()
    ranks.exchange_gradients = exchanged.append
    model.head.bias.register_post_accumulate_grad_hook(lambda _: log.append(exchanged[-1]))
    Loop(model, distributed=ranks, framework=framework)(cut(ragged_batch(), [5, 9]))
    assert log == [False, False, True]


@every_framework
def test_a_group_keeps_its_own_rate(framework):
    model = Ragged()
    groups = [
        {"params": model.layer.parameters()},
        {"params": model.head.parameters(), "lr_factor": 0.1},
    ]
    batch = ragged_batch()
    wanted, _ = mean_gradient(model, batch)
    for name in ("head.weight", "head.bias"):
        wanted[name] *= 0.1
    start = state(model)
    Loop(model, optimizer=torch.optim.SGD(groups, lr=1.0), framework=framework)([batch])
    assert_same(moved(model, start), wanted)


def stateful(x, index):
    numbers = torch.tensor(index)
    return {"x": torch.tensor(x), "index": numbers, "present": numbers >= 0}


def test_a_state_continues_in_its_lane_and_is_zero_where_it_starts_afresh():
    model = Summing()
    model(stateful([1, 2, math.inf], [0, 5, -1]))
    model(stateful([10, 20, 30], [1, 5, 0]))
    model(stateful([100, 200, 300], [2, 6, 1]))
    assert model.seen[1].tolist() == [1, 0, 0], "not even an infinite state reaches a fresh lane"
    assert model.seen[2].tolist() == [11, 20, 30]
    model.eval()(stateful([5, 6], [3, 7]))
    model.train()(stateful([0, 0, 0], [3, 7, 2]))
    assert model.seen[4].tolist() == [111, 220, 330], "an evaluation leaves it alone"


@every_framework
def test_a_carried_state_is_cut_off_from_the_graph(framework):
    """The gradient of a batch is its own: d(w · x)/dw = x, whatever came before."""
    model = Summing()
    loop = Loop(model, framework=framework)
    for step in range(3):
        before = model.weight.item()
        loop([stateful([2.0, 4.0], [step, 10 + step])])
        assert before - model.weight.item() == pytest.approx(3.0)
    assert not model.seen[-1].requires_grad
