"""What every workload keeps to, so that loaders, steps and evaluation need to know nothing of it."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from fakes import CPU, LOADERS, PRECISIONS, OneOf
from importing import imported
from rendering import render, scratch
from test_tier_b import TINY
from torch import Tensor
from variants import choices

WORKLOADS = choices("workload")
every_workload = pytest.mark.parametrize("workload", WORKLOADS)
SPLITS = ("train", "validation", "test")


def settings(workload: str, **changed: Any) -> Any:
    """A workload's small settings, with changed keys in the form `data__order="time"`."""
    words = TINY[workload]
    small = [
        (key.removeprefix("--"), value) for key, value in zip(words[::2], words[1::2], strict=True)
    ]
    chosen = [(key.replace("__", "."), str(value).lower()) for key, value in changed.items()]
    chosen += [("data.num_workers", "0"), ("compile.enabled", "false")]
    return imported(render(workload=workload), "config").load(None, None, [*small, *chosen], {})


@functools.cache
def store(workload: str) -> Any:
    """The workload's synthetic data, written once."""
    project, folder = render(workload=workload), scratch() / f"synthetic-{workload}"
    imported(project, "dataset").synthesize(folder, settings(workload))
    return imported(project, "engine.store").Store.open(
        folder, imported(project, "settings").WORKLOAD
    )


def assemble(workload: str, **changed: Any) -> Any:
    """The project as a run builds it, on the CPU."""
    alone = SimpleNamespace(**vars(OneOf()), wrap=lambda model, *_: model)
    return imported(render(workload=workload), "assemble").assemble(
        settings(workload, **changed), alone, store(workload)
    )


def samples(workload: str, split: str = "train") -> Any:
    return imported(render(workload=workload), "dataset").Samples(
        store(workload), settings(workload), split
    )


def read(workload: str, numbers: list[int], split: str = "validation") -> dict[str, Tensor]:
    """The batch of these samples, read without a loader."""
    rows, seams = imported(render(workload=workload), "engine.rows"), samples(workload, split)
    indices = np.array(numbers)
    found = {}
    for name, spans in seams.spans(indices, 0).items():
        array = store(workload).arrays[name]
        values = rows.gather(rows.mapped(array), spans).view(rows.stored_dtype(array))
        found[name] = imported(render(workload=workload), "engine.seams").Rows(
            values, torch.from_numpy(spans.lengths)
        )
    if hasattr(seams, "host"):
        found = seams.host(found, indices, 0)
    return rows.deliver(seams, found, indices, np.ones(len(indices), bool), CPU)


def sums(model: Any, batches: list[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    """(sum, count) of the loss and of each metric, in float64."""
    found: dict[str, np.ndarray] = {}
    for batch in batches:
        with torch.no_grad():
            output = model(batch)
        parts = {"loss": (output.loss.double() * output.weight, output.weight), **output.metrics}
        for name, (total, count) in parts.items():
            found[name] = found.get(name, np.zeros(2)) + np.array([float(total), float(count)])
    return found


@every_workload
@pytest.mark.parametrize("split", SPLITS)
def test_spans_are_pure_lie_in_their_arrays_and_are_empty_for_filling(
    workload: str, split: str
) -> None:
    part, arrays = samples(workload, split), store(workload).arrays
    assert len(part) > 0
    indices = np.array([0, -1, len(part) - 1, len(part) // 2, -1])
    for epoch in (0, 1):
        again = part.spans(indices, epoch)
        for name, (starts, lengths, width) in part.spans(indices, epoch).items():
            assert starts.shape == lengths.shape
            assert starts.dtype == lengths.dtype == np.int64
            assert len(starts) == len(indices)
            np.testing.assert_array_equal(starts, again[name].starts)
            np.testing.assert_array_equal(lengths, again[name].lengths)
            present = lengths > 0
            assert not lengths[indices < 0].any()
            assert lengths.max() <= width
            assert (starts[present] >= 0).all()
            assert (starts + lengths)[present].max() <= arrays[name].shape[0]


@every_workload
def test_any_cut_into_batches_and_any_filling_give_the_same_sums(workload: str) -> None:
    """Loss and metrics belong to samples, not to the batches that they came in."""
    model = assemble(workload).model.eval()
    whole = sums(model, [read(workload, list(range(12)))])
    assert whole["loss"][1] > 0
    cuts = (
        [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 11]],
        [[-1, 3, 7, -1, 0, 1], [2, 4, 5, 6, 8, 9, 10, 11, -1], [-1, -1]],
    )
    for cut in cuts:
        found = sums(model, [read(workload, numbers) for numbers in cut])
        assert found.keys() == whole.keys()
        for name, (total, count) in whole.items():
            assert found[name][1] == count, name
            assert found[name][0] == pytest.approx(total, rel=1e-5), name


@every_workload
def test_a_batch_of_nothing_but_filling_has_weight_and_gradient_zero(workload: str) -> None:
    model = assemble(workload).model.train()
    output = model(read(workload, [-1, -1, -1], "train"))
    assert (output.loss.item(), output.weight.item()) == (0, 0)
    output.loss.backward(gradient=output.weight)
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.any()


@every_workload
def test_metrics_are_computed_in_evaluation_only_each_with_its_count(workload: str) -> None:
    model, batch = assemble(workload).model, read(workload, [0, 1, -1, 2])
    assert model.train()(dict(batch)).metrics == {}
    with torch.no_grad():
        metrics = model.eval()(dict(batch)).metrics
    assert metrics
    for total, count in metrics.values():
        assert total.shape == count.shape == ()
        assert count > 0
        assert total.isfinite()


@every_workload
@pytest.mark.parametrize("precision", PRECISIONS)
def test_loss_and_weight_are_float32_scalars_in_every_precision(
    workload: str, precision: str
) -> None:
    project = assemble(workload, training__precision=precision)
    with project.precision.autocast():
        output = project.model.train()(read(workload, [0, 1, 2], "train"))
    for value in (output.loss, output.weight):
        assert value.dtype == torch.float32
        assert value.shape == ()
        assert value.isfinite()
    assert not output.weight.requires_grad


@every_workload
def test_predictions_are_per_sample(workload: str) -> None:
    """In the batch's sequence, and the same for a sample whatever stands beside it."""
    model = assemble(workload).model.eval()
    with torch.no_grad():
        first = model.predict(read(workload, [0, 1, 2, 3, 4]))
        second = model.predict(read(workload, [3, -1, 0, 4]))
    for name, values in first.items():
        torch.testing.assert_close(second[name][[0, 2, 3]], values[[3, 0, 4]], rtol=1e-4, atol=1e-5)


@every_workload
def test_the_seed_decides_the_weights(workload: str) -> None:
    first, again, other = (
        torch.cat(
            [
                parameter.detach().ravel()
                for parameter in assemble(workload, **seed).model.parameters()
            ]
        )
        for seed in ({}, {}, {"reproducibility__seed": 7})
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every_workload
def test_blocks_are_own_classes_inside_the_model(workload: str) -> None:
    """Stock modules compile to nothing, silently."""
    model = assemble(workload).model
    inside = set(model.modules())
    assert model.blocks()
    for block in model.blocks():
        assert block in inside
        assert not type(block).__module__.startswith("torch.")


@every_workload
def test_recomputation_changes_neither_losses_nor_gradients(workload: str) -> None:
    """Dropout draws the same numbers twice. And it does recompute: forward runs again in backward."""
    results = []
    for recompute in (False, True):
        project = assemble(workload, training__gradient_checkpointing=recompute)
        model, calls = project.model.train(), []
        inner = next(part for part in model.blocks()[0].children())
        inner.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(5)
        output = model(read(workload, [0, 1, 2, 3], "train"))
        before = len(calls)
        output.loss.backward(gradient=output.weight)
        assert len(calls) == before * (1 + recompute)
        gradients = [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]
        results.append(
            (output.loss.item(), torch.cat([gradient.ravel() for gradient in gradients]))
        )
        with torch.no_grad():
            model(read(workload, [0, 1], "train"))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


@every_workload
def test_a_carried_state_has_the_batch_first(workload: str) -> None:
    output = assemble(workload).model.eval()(read(workload, [0, 1, 2]))
    leaves, _ = torch.utils._pytree.tree_flatten(output.carry)
    assert all(leaf.shape[0] == 3 for leaf in leaves if isinstance(leaf, Tensor))


@every_workload
@pytest.mark.parametrize("loader", LOADERS)
def test_every_order_of_the_workload_runs_and_equals_a_direct_reading(
    workload: str, loader: str
) -> None:
    project = render(workload=workload, loader=loader)
    kinds = get_args(imported(project, "settings").Data.model_fields["order"].annotation)
    for kind in kinds:
        chosen = settings(workload, data__order=kind, data__batch_size=16, data__fraction=0.02)
        taken = samples(workload)
        order = imported(project, "engine.order").order_of(taken, chosen)
        made = imported(project, "engine.loader").Loader(taken, store(workload), chosen, order, CPU)
        batch = next(made.epoch(0))
        wanted = read(workload, batch["index"].tolist(), "train")
        assert batch.keys() == wanted.keys()
        for name, tensor in batch.items():
            if name != "fresh" and kind != "random_start":
                torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=0, equal_nan=True)
        made.close()
    assert imported(project, "settings").Data().order in kinds


@every_workload
def test_baselines_are_measured_in_the_model_s_own_metrics(workload: str) -> None:
    dataset = imported(render(workload=workload), "dataset")
    project = assemble(workload)
    found = sums(project.model.eval(), [read(workload, list(range(8)))])
    means = {name: total / count for name, (total, count) in found.items()}
    known = project.finish(means, "validation")
    baselines = dataset.baselines(store(workload), settings(workload), "validation")
    assert baselines
    for metrics in baselines.values():
        assert metrics
        assert metrics.keys() <= known.keys()
        assert all(np.isfinite(value) for value in metrics.values())


@every_workload
def test_the_loss_without_a_model_is_that_of_the_simplest_baseline(workload: str) -> None:
    dataset, data = imported(render(workload=workload), "dataset"), store(workload)
    baselines = dataset.baselines(data, settings(workload), "validation")
    if workload in ("llm", "seq2seq"):
        expected = np.log(data.facts["vocabulary"])
    elif workload == "timeseries":
        windows = read(workload, list(range(len(samples(workload, "validation")))), "validation")
        scaled = [
            (windows["target"].numpy() - data.facts["target_mean"]) / data.facts["target_std"]
        ]
        expected = min(np.square(scaled).mean(), baselines["repeat_last"]["mse"])
    else:
        expected = baselines["mean"]["mse"]
    assert dataset.naive(data, "validation") == pytest.approx(expected, rel=1e-4)
