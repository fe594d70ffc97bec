"""A full pass: sums in float64 over present samples, each metric by its own denominator; no trace
is left."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import CPU, OneOf, engine
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Batches:
    """A loader of these batches."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def epoch(self, number):
        return iter(self.batches)


class Squares(nn.Module):
    """Loss: mean of x² over present samples. Metrics: `all` over samples, `even` over even numbers
    alone."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, batch):
        if self.training:
            self.passes += 1
        x = self.dropout(batch["x"])
        present = batch["present"]
        even = present & (batch["index"] % 2 == 0)
        weight = present.sum(dtype=torch.float32)
        total = torch.where(present, x.square(), 0.0).sum()
        metrics = {
            "all": (torch.where(present, x, 0.0).sum(), weight),
            "even": (torch.where(even, x, 0.0).sum(), even.sum(dtype=torch.float32)),
        }
        return engine("interfaces").Output(total / weight.clamp(min=1), weight, metrics)


def evaluate(model, loader, distributed=None, finish=None, **more):
    project = SimpleNamespace(
        model=model,
        wrapped=model,
        store="the store",
        ask_dataset=lambda name, default, *given: finish(*given) if finish else default,
        device=CPU,
        precision=engine("compute.precision").Precision("fp32", CPU),
        distributed=distributed or OneOf(),
    )
    return engine("training.evaluation").evaluate(project, loader, "test", **more)


def numbered(values, batch):
    """Batches of `values`, the last one padded with nan; one more is only padding."""
    x = torch.full(((len(values) // batch + 2) * batch,), torch.nan)
    x[: len(values)] = torch.from_numpy(values)
    index = torch.arange(len(x))
    index[len(values) :] = -1
    rows = {"x": x, "index": index, "present": index >= 0}
    cut = [tensor.split(batch) for tensor in rows.values()]
    return [dict(zip(rows, tensors, strict=True)) for tensors in zip(*cut, strict=True)]


def test_sums_equal_a_direct_computation_in_float64():
    """One large batch before many small ones: added in float32, the small ones would all be
    lost."""
    values = np.full(16 * 200 + 5, 0.5, np.float32)
    values[:16] = 2.0**13
    metrics = evaluate(Squares(), Batches(numbered(values, 16)))
    exact = values.astype(np.float64)
    assert metrics["loss"] == pytest.approx(np.mean(exact**2), rel=1e-12)
    assert metrics["all"] == pytest.approx(exact.mean(), rel=1e-12)
    assert metrics["even"] == pytest.approx(exact[::2].mean(), rel=1e-12)


def test_without_any_target_nothing_is_divided_by_zero():
    metrics = evaluate(Squares(), Batches(numbered(np.zeros(0, np.float32), 4)))
    assert set(metrics.values()) == {0.0}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("end", ["whole", "stopped"])
def test_no_trace_is_left(training, end):
    """Whether it ends or is stopped by a signal: mode, buffers, gradients, random numbers."""
    model = Squares().train(training)
    before = torch.get_rng_state()
    batches = Batches(numbered(np.ones(40, np.float32), 8))
    asked = iter(range(100))
    metrics = evaluate(model, batches, stop=lambda: end == "stopped" and next(asked) == 3)
    assert (metrics is None) == (end == "stopped")
    assert metrics is None or metrics["all"] == 1.0, "dropout was off"
    assert model.training is training
    assert model.passes == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


class Grouped(Squares):
    """Adds up by the sample's number modulo 3: how many, and (x, x²) in a pair of columns."""

    calibrated_with = None

    def forward(self, batch):
        output = super().forward(batch)
        interfaces = engine("interfaces")
        present = batch["present"]
        x = torch.where(present, batch["x"], 0.0)
        group = batch["index"].clamp(min=0) % 3
        by_group = {
            "count": interfaces.Groups(4, group, present.long()),
            "pairs": interfaces.Groups(4, group, torch.stack([x, x.square()], 1)),
        }
        return output._replace(by_group=by_group)

    def calibrate(self, sums):
        self.calibrated_with = sums


def test_sums_by_group_reach_finish_and_calibrate():
    """A direct computation in float64, over batches of which one is only padding, and two ranks."""
    values = np.linspace(0, 5, 16 * 3 + 5).astype(np.float32)
    values[:16] = 2.0**13
    seen = []

    def finish(metrics, *given):
        seen.append(given)
        return {**metrics, "worst": float(given[-1]["pairs"].max())}

    two = OneOf(total=lambda tensor: 2 * tensor)
    batches = Batches(numbered(values, 16))
    model = Grouped()
    metrics = evaluate(model, batches, two, finish, calibrate=True)
    ((store, split, sums),) = seen
    assert (store, split) == ("the store", "test")
    assert model.calibrated_with is sums
    exact = values.astype(np.float64)
    for group in range(4):
        own = exact[group::3] if group < 3 else exact[:0]
        assert sums["count"][group] == 2 * len(own)
        expected = [2 * own.sum(), 2 * np.square(own.astype(np.float32)).sum(dtype=np.float64)]
        assert sums["pairs"][group].tolist() == pytest.approx(expected, rel=1e-12)
    assert metrics["worst"] == float(sums["pairs"].max())

    other = Grouped()
    evaluate(other, batches)
    assert other.calibrated_with is None, "only a training calibrates"


class Operators(TorchDispatchMode):
    """Counts what PyTorch dispatches."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_a_metric_takes_two_operators_a_batch():
    """A tiny model shows each operator: in the validation of an MLP, four took 6 µs more."""
    model = Squares().eval()
    batches = numbered(np.ones(40, np.float32), 8)
    with torch.no_grad(), Operators() as forward:
        outputs = [model(batch) for batch in batches]
    metrics = 1 + len(outputs[0].metrics)  # with the loss
    counts = []
    for length in (1, len(batches)):
        with Operators() as both:
            evaluate(model, Batches(batches[:length]))
        counts.append(both.count)
    one_batch = (counts[1] - counts[0]) / (len(batches) - 1) - forward.count / len(batches)
    assert one_batch == 2 * metrics + 1, "and a mean loss is multiplied by its weight"
