"""What every workload keeps to, so that loaders, steps and evaluation need to know nothing of
it."""

import functools
from contextlib import nullcontext
from typing import get_args

import numpy as np
import pytest
import torch
from fakes import CPU, LOADERS, OneOf
from importing import catalogue_of, imported
from rendering import render, scratch
from sizes import TINY
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from variants import choices
from workload import Workload

every_workload = pytest.mark.parametrize("workload", choices("workload"))


def module(workload, name, **answers):
    return imported(render(workload=workload, **answers), name)


def settings(workload, *flags, **answers):
    """A workload's small settings."""
    given = ("--compile.enabled", "false", *TINY[workload], *flags)
    if "data.num_workers" in catalogue_of(render(workload=workload, **answers)):
        given = (*given, "--data.num_workers", "0")
    return Workload(workload).settings(*given, **answers)


@functools.cache
def store(workload):
    """The workload's synthetic data, written once."""
    folder = scratch() / f"synthetic-{workload}"
    module(workload, "dataset").synthesize(folder, settings(workload))
    return module(workload, "engine.loading.store").Store.open(folder, workload)


def model_of(workload, *flags):
    """The model as a run builds it, on the CPU."""
    alone = OneOf()
    alone.wrap = lambda model, *_: model
    assemble = module(workload, "assemble").assemble
    return assemble(settings(workload, *flags), alone, store(workload)).model


def samples(workload, split="train"):
    return module(workload, "dataset").Samples(store(workload), settings(workload), split)


def read(workload, numbers, split="validation"):
    """The batch of these samples, read without a loader."""
    engine_rows = module(workload, "engine.loading.rows")
    of_split = samples(workload, split)
    indices = np.array(numbers)
    rows = {}
    for name, spans in of_split.spans(indices, 0).items():
        source = engine_rows.mapped(store(workload).arrays[name])
        rows[name] = engine_rows.gather(source, spans)
    if of_split.host is not None:
        rows = of_split.host(rows, indices, 0)
    return engine_rows.deliver(of_split, rows, indices, 0, CPU)


@torch.no_grad()
def sums(model, batches):
    """(sum, count) of the loss and of each metric, in float64."""
    totals: dict[str, np.ndarray] = {}
    for batch in batches:
        output = model(batch)
        metrics = {
            "loss": (output.loss * output.total_weight, output.total_weight),
            **output.metrics,
        }
        for name, sum_and_count in metrics.items():
            totals[name] = totals.get(name, np.zeros(2)) + np.array(sum_and_count, np.float64)
    return totals


@every_workload
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_spans_are_inside_their_arrays_and_empty_for_padding(workload, split):
    of_split = samples(workload, split)
    count = len(of_split)
    indices = np.array([0, -1, count - 1, count // 2, -1])
    for epoch in (0, 1):
        for name, spans in of_split.spans(indices, epoch).items():
            num_rows = spans.num_rows()
            assert spans.starts.shape == num_rows.shape
            assert len(spans.starts) == len(indices)
            is_present = num_rows > 0
            assert not is_present[indices < 0].any()
            assert num_rows.max() <= spans.width
            assert (spans.starts[is_present] >= 0).all()
            last = (spans.starts + num_rows)[is_present].max()
            assert last <= store(workload).arrays[name].shape[0]


@every_workload
def test_batches_and_padding_change_no_sum(workload):
    """Loss and metrics belong to samples, not to the batches that they came in."""
    model = model_of(workload).eval()
    whole = sums(model, [read(workload, [*range(12)])])
    assert whole["loss"][1] > 0
    cuts = (
        [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 11]],
        [[-1, 3, 7, -1, 0, 1], [2, 4, 5, 6, 8, 9, 10, 11, -1], [-1, -1]],
    )
    for cut in cuts:
        totals = sums(model, [read(workload, numbers) for numbers in cut])
        assert totals.keys() == whole.keys()
        for name, (total, count) in whole.items():
            assert totals[name][1] == count, name
            assert totals[name][0] == pytest.approx(total, rel=1e-5), name


@every_workload
@torch.no_grad()
def test_predictions_are_per_sample(workload):
    """In the batch's sequence, and the same for a sample whatever is next to it."""
    model = model_of(workload).eval()
    first = model.predict(read(workload, [0, 1, 2, 3, 4]))
    second = model.predict(read(workload, [3, -1, 0, 4]))
    for name, values in first.items():
        torch.testing.assert_close(second[name][[0, 2, 3]], values[[3, 0, 4]], rtol=1e-4, atol=1e-5)


@every_workload
def test_recomputation_changes_neither_losses_nor_gradients(workload):
    """Dropout draws the same numbers twice. And it does recompute: forward runs in backward too.

    An LSTM sums its gradients over stretches of time: test_optimization.py counts their calls.
    """
    losses = []
    gradients = []
    buffers = []
    for recompute in (False, True):
        flags = ("--training.gradient_checkpointing", str(recompute).lower())
        model = model_of(workload, *flags).train()
        calls: list[int] = []
        first_layer = next(model.blocks()[0].children())
        first_layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(5)
        output = model(read(workload, [0, 1, 2, 3], "train"))
        calls_of_forward = len(calls)
        output.loss.backward(gradient=output.total_weight)
        has_rnn = isinstance(first_layer, torch.nn.RNNBase)
        assert has_rnn or len(calls) == calls_of_forward * (1 + recompute)
        losses.append(output.loss.item())
        gradients.append([weight.grad for weight in model.parameters()])
        buffers.append(list(model.buffers()))
    assert losses[0] == losses[1]
    torch.testing.assert_close(*buffers, rtol=0, atol=0)  # statistics of a batch count once
    rounding = 1e-5 if has_rnn else 0
    for before, after in zip(*gradients, strict=True):
        is_unused = before is None and after is None
        assert is_unused or torch.allclose(before, after, rtol=rounding, atol=rounding)


@every_workload
@pytest.mark.parametrize("loader", LOADERS)
def test_every_order_of_the_workload_gives_what_a_direct_reading_gives(workload, loader):
    orders = get_args(module(workload, "settings").Data.model_fields["order"].annotation)
    small = ("--data.batch_size", "16", "--data.fraction", "0.02")
    for name in set(orders) - {"random_start"}:
        given = settings(workload, *small, "--data.order", name, loader=loader)
        of_split = samples(workload)
        order = module(workload, "engine.training.project", loader=loader).make_order(
            of_split, given
        )
        make = module(workload, "engine.loading.loader", loader=loader).Loader
        made = make(of_split, store(workload), given, order, CPU)
        batch = next(made.epoch(0))
        expected = read(workload, batch["index"].tolist(), "train")
        torch.testing.assert_close(batch, expected, rtol=0, atol=0, equal_nan=True)
        made.close()


class Copies(TorchDispatchMode):
    """Counts the operations that put values of the host onto the device `meta`."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        from_host = any(x.device.type == "cpu" for x in inputs)
        self.count += from_host and any(x.device.type == "meta" for x in outputs)
        return result


# The numbers of the samples, and the places of their spans in each array; some have more arrays.
COPIES = {"timeseries": 2, "llm": 2, "tabular": 4, "seq2seq": 3, "windows": 3, "graph": 5}
COPIES |= {"forecast": 5, "vision": 3, "chat": 4}


@every_workload
def test_a_batch_of_resident_rows_is_two_copies_to_the_device(workload, monkeypatch):
    """One of the samples' numbers, and one of the places in each array."""
    flags = ("--data.batch_size", "4", "--data.resident", "true")
    given = settings(workload, *flags, loader="memmap")
    of_split = samples(workload)
    of_split.training = True
    order = module(workload, "engine.training.project").make_order(of_split, given)
    make = module(workload, "engine.loading.loader", loader="memmap").Loader
    loader = make(of_split, store(workload), given, order, torch.device("meta"))
    batches = loader.epoch(0)
    next(batches)  # copies what is constant
    with Copies() as copies:
        batch = next(batches)
    loader.close()
    assert {values.device.type for values in batch.values()} == {"meta"}
    assert copies.count == COPIES[workload]


@every_workload
@torch.no_grad()
def test_the_loss_without_a_model_is_that_of_a_model_without_weights(workload):
    """The mean of the training targets, or any token."""
    model = model_of(workload).eval()
    for weight in model.parameters():
        weight.zero_()
    if workload == "vision":  # whose classes are not all equally frequent
        counts = torch.tensor(store(workload).facts["counts"])
        model.network.head.bias.copy_(counts.log())
    batch = read(workload, [*range(len(samples(workload, "validation")))])
    output = model(batch)
    expected = output.loss.item()
    if workload in ("llm", "seq2seq", "chat"):  # whose models pad the vocabulary
        expected = np.log(store(workload).facts["vocabulary"])
    if workload in ("forecast", "timeseries"):  # whose evaluations compute it
        total, count = output.metrics["loss_of_mean"]
        loss = float(total / count)
    else:
        loss = module(workload, "dataset").baseline_loss(store(workload), "validation")
    if workload == "timeseries":  # whose model repeats the last value; the mean is better
        assert loss < expected
    else:
        assert loss == pytest.approx(expected, rel=1e-4)


def batch_on_meta(workload, split):
    """The second batch of a split on the device `meta`, whose tensors have no values."""
    flags = ("--data.batch_size", "4", "--data.resident", "true")
    given = settings(workload, *flags, loader="memmap")
    of_split = samples(workload, split)
    of_split.training = split == "train"
    order = module(workload, "engine.training.project").make_order(of_split, given)
    make = module(workload, "engine.loading.loader", loader="memmap").Loader
    loader = make(of_split, store(workload), given, order, torch.device("meta"))
    batches = loader.epoch(0)
    next(batches)
    batch = next(batches)
    loader.close()
    return batch


@every_workload
def test_neither_a_step_nor_an_evaluation_waits_for_the_device(workload, monkeypatch):
    """Nothing is read from it, which `meta` refuses, and nothing is copied to it."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it has no `meta`
    train = batch_on_meta(workload, "train")
    validation = batch_on_meta(workload, "validation")
    model = model_of(workload).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mean_and_clip = module(workload, "engine.compute.precision").mean_and_clip
    with Copies() as copies:
        output = model.train()(train)
        output.loss.backward(gradient=output.total_weight)
        mean_and_clip(optimizer, output.total_weight, 1.0)
        optimizer.step()
    assert copies.count == 0
    with torch.no_grad(), Copies() as copies:
        model.eval()(validation)
        model.predict(validation)
    assert copies.count == 0
