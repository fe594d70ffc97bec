"""The checks that model.py and dataset.py must pass; the command `check` runs them.

The docstring of a check is the claim that it tests. A check returns a detail to print, or raises
`Failed`, with the reason and where to look, or `Skipped`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.compute.distributed import Distributed
from ..engine.errors import UserError
from ..engine.interfaces import Batch, Rows
from ..engine.training.checkpoint import Checkpoint
from ..engine.training.dry_run import FORWARD, check_output
from ..engine.training.progress import seed_everything
from .bench import (
    BETWEEN,
    CPU,
    FEW,
    MEMORIZED,
    STEPS,
    Bench,
    Calls,
    Failed,
    Skipped,
    Swap,
    close,
    differing,
    measured,
    predicted,
    require,
    scores,
    shuffled,
    with_bar,
)
from .nonfinite import explain_sample, loss_is_finite

PREDICT = "model.py, predict"
HELD_OUT = 0.95  # required ratio of held-out losses: true labels over shuffled labels
NEARER = 0.8  # required ratio of squared errors: after training over before
PLACES = 16  # number of places at which `check_future` changes the rows
ENCODED = 1000  # more rows of a sample that `host` decodes are the bytes of a file, such as a JPEG
MEANT = "host sync"  # a comment with these words, in the line or above it, allows the wait


def check_shapes(bench: Bench) -> str:
    """Batches, outputs and predictions have their shapes and dtypes."""
    check_batch(bench.batch)
    model = bench.new_model()
    numbers = bench.numbers("train", FEW)
    check_training(model, bench.batch)
    check_training(model, bench.read(numbers[:1], training=True))
    several = model.eval()(bench.read(numbers))
    check_output(several)
    alone = model.eval()(bench.read([0]))
    why = "metrics are not the same (sum, count) of () for every batch"
    require(several.metrics.keys() == alone.metrics.keys(), why, FORWARD)
    why = "by_group has not the same names for every batch"
    require(several.by_group.keys() == alone.by_group.keys(), why, FORWARD)
    check_predictions(predicted(model, bench.batch), bench.batch)
    return ", ".join(f"{name} {kind(x)}" for name, x in list(bench.batch.items())[:-2])


def check_batch(batch: Batch) -> None:
    """Raise `UserError` if a tensor's first axis is not the samples."""
    check_first_axis(batch, len(batch["present"]), "dataset.py, Samples.batch")


def kind(value: object) -> str:
    """Describe a value in an error: `(8, 6) float32`, or its type."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def check_first_axis(values: Batch, count: int, where: str) -> None:
    """Raise `UserError` for a value that is not a tensor of `count` samples."""
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.shape[:1] != (count,):
            what = f"'{name}' of {count} samples is {kind(value)}"
            raise UserError(what, where, "return a tensor whose first axis is the samples")


def check_predictions(predictions: Any, batch: Batch) -> None:
    """Raise `UserError` if a prediction has no row for each sample, or other axes than `target`."""
    if not isinstance(predictions, dict):
        remedy = "return a dictionary of tensors by name"
        raise UserError(f"predict returns {kind(predictions)}", PREDICT, remedy)
    check_first_axis(predictions, len(batch["present"]), PREDICT)
    if "prediction" not in predictions or "target" not in batch:
        return
    prediction = predictions["prediction"]
    target = batch["target"]
    # (B, 1) minus (B,) is (B, B), without an error.
    are_alike = prediction.squeeze().shape == target.squeeze().shape
    if are_alike and prediction.shape != target.shape:
        what = f"'prediction' is {kind(prediction)}, and 'target' is {kind(target)}"
        raise UserError(what, PREDICT, "give both the same axes, as by squeeze(1)")


def leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors that get a gradient from this loss."""
    seen = set[Any]()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        if hasattr(node, "variable"):
            yield node.variable


def check_registered(model: nn.Module, loss: Tensor) -> None:
    """Raise `UserError` if the loss depends on a weight that is not one of the model's."""
    known = {id(weight) for weight in model.parameters()}
    for weight in leaves(loss):
        if id(weight) not in known:
            what = f"a weight of shape {tuple(weight.shape)} is not registered"
            remedy = "use nn.ModuleList or nn.ParameterList instead of a list"
            raise UserError(f"{what}, so it is not trained or saved", "model.py", remedy)


def check_training(model: Any, batch: Batch) -> None:
    output = model.train()(batch)
    check_output(output)
    for name in ("loss", "total_weight"):
        value = getattr(output, name)
        is_right = value.dtype == torch.float32 and not value.shape
        require(is_right, f"{name} is {kind(value)}, not () float32", FORWARD)
    require(output.total_weight > 0, f"{len(batch['index'])} samples have no weight", FORWARD)
    output.loss.backward()


def check_samples(bench: Bench) -> str:
    """Every sample gives a finite loss."""
    for place in nonfinite_places(bench.store.facts):
        remedy = "prepare the data again, from values that are finite"
        raise Failed(f"the metadata of the data have nan or inf: {place}: {remedy}")
    model = bench.new_model()
    looked = 0
    for split in bench.samples:
        numbers = bench.numbers(split, bench.num_looked)
        stretches = [numbers[at : at + 4 * FEW] for at in range(0, len(numbers), 4 * FEW)]
        for stretch in with_bar(stretches, f"samples of {split}"):
            of_all = problem(bench, model, split, stretch)
            if not of_all:
                continue
            for number in stretch:
                why = problem(bench, model, split, [number])
                require(not why, f"sample {number} of {split}", why)
            raise Failed(f"samples {stretch[0]} to {stretch[-1]} of {split} together: {of_all}")
        looked += len(numbers)
    return f"{looked:,} checked"


def problem(bench: Bench, model: Any, split: str, numbers: list[int]) -> str:
    """Return what is wrong with samples, and where to look; empty if nothing is."""
    stored = []

    def remember(name: str, rows: Rows) -> Rows:
        stored.append(rows.values.clone())  # `Samples.batch` may change them in place
        return rows

    subject: Any = SimpleNamespace(model=model.eval(), device=CPU, store=bench.store)
    try:
        batch = bench.read(numbers, split, change=remember)
        if loss_is_finite(subject, batch):
            return ""
    except (IndexError, RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        return f"{first_line}: the data, or dataset.py, Samples.batch"
    if len(numbers) > 1:
        return "their loss is not finite"
    if are_finite(batch.values()):
        where = FORWARD
    elif are_finite(stored):
        where = "dataset.py, Samples.batch: the prepared data are finite"
    else:
        where = "the prepared data"
    return f"{explain_sample(subject, batch)}: {where}"


def are_finite(tensors: Iterable[Tensor]) -> bool:
    return all(values.isfinite().all() for values in tensors if values.is_floating_point())


def nonfinite_places(value: Any, place: str = "") -> Iterator[str]:
    """Yield the places of metadata with nan or inf, such as `features[3].mean is nan`."""
    if isinstance(value, float) and not np.isfinite(value):
        yield f"{place.removeprefix('.')} is {value}"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from nonfinite_places(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from nonfinite_places(inner, f"{place}[{number}]")


def check_padding_rows(bench: Bench) -> str:
    """Padding rows change nothing."""
    where = 'model.py, forward: only rows with batch["present"] count'
    numbers = bench.numbers("train", 3)
    alone = measured(bench.model, bench.read(numbers))
    padded = measured(bench.model, bench.read([*numbers, -1, -1]))
    why = f"with them the loss is {padded[0]:.6g} with weight {padded[1]:g}"
    why += f", without them {alone[0]:.6g} with weight {alone[1]:g}"
    require(close(alone, padded), why, where)
    loss, weight, *_ = measured(bench.model, bench.read([-1, -1]))
    why = f"a batch of padding rows has loss {loss:g} and weight {weight:g}, not 0"
    require(loss == weight == 0, why, where)
    return ""


def check_mean(bench: Bench) -> str:
    """The loss is a mean over its weight."""
    numbers = bench.numbers("train", 2)
    loss, weight, *_ = measured(bench.model, bench.read(numbers))
    twice, weight_twice, *_ = measured(bench.model, bench.read(numbers * 2))
    why = f"with each sample twice, the loss changes from {loss:.6g} to {twice:.6g}"
    require(close(loss, twice), why, f"{FORWARD}: divide the sum by the weight")
    why = f"with each sample twice, the weight changes from {weight:g} to {weight_twice:g}"
    require(close(2 * weight, weight_twice), why, f"{FORWARD}: weight is the number of targets")
    return ""


def check_padding(bench: Bench) -> str:
    """Padding within a sample changes nothing."""
    spans = bench.samples["train"].spans
    numbers = np.array(bench.numbers("train", 256))
    rows = np.zeros(len(numbers))
    for array in spans(numbers, 0).values():
        rows += array.num_rows().reshape(len(numbers), -1).sum(1)
    short = int(numbers[np.argmin(rows)])
    long = int(numbers[np.argmax(rows)])
    widths = []
    for number in (short, long):
        widths.append([array.width for array in spans(np.array([number]), 0).values()])
    if widths[0] == widths[1]:
        raise Skipped("all batches have the same width")

    loss, weight, *_ = measured(bench.model, bench.read([short]))
    other_loss, other_weight, *_ = measured(bench.model, bench.read([long]))
    alone = (loss * weight + other_loss * other_weight) / (weight + other_weight)
    both = measured(bench.model, bench.read([short, long]))[0]
    why = f"samples {short} and {long} have a loss of {alone:.6g} alone and {both:.6g} together"
    where = "model.py: values after a sample's length must not count"
    require(close(alone, both), why, where)
    return f"of samples {short} and {long}"


def check_future(bench: Bench) -> str:
    """Stored rows from a target on do not affect its prediction."""
    numbers = np.array(bench.numbers("train", FEW))
    decodes = bench.samples["train"].host is not None
    looked = 0
    for array, spans in bench.samples["train"].spans(numbers, 0).items():
        of_spans = spans.num_rows().reshape(len(numbers), -1)
        lengths = of_spans.sum(1) if spans.width == 1 else of_spans.max(1)
        if decodes and lengths.max() > ENCODED:
            continue
        for donor, length in zip(numbers[1:], lengths[1:], strict=True):
            num_rows = min(int(lengths[0]), int(length))
            swap = Swap(bench, array, int(numbers[0]), int(donor))
            try:
                targets = swap.targets(num_rows)
            except Exception:
                if not decodes:
                    raise
                break  # a file made of two cannot be decoded
            if targets:
                check_causal(bench, swap, num_rows, targets)
                looked += len(targets)
                break
    if not looked:
        raise Skipped("no stored row changes a target")
    return f"no target reaches its own prediction ({looked} rows tried)"


def check_causal(
    bench: Bench, swap: Swap, num_rows: int, targets: dict[int, tuple[int, int]]
) -> None:
    """Replace the rows from one that makes a target on, and compare that target's prediction."""
    where = "dataset.py, Samples.batch: where inputs end; model.py: a causal mask"
    rows = np.array(sorted(targets))
    places = rows[np.unique(np.linspace(0, len(rows) - 1, PLACES).astype(int))]
    before = scores(bench.model, swap(np.zeros((len(places), num_rows), bool)))
    after = scores(bench.model, swap(np.arange(num_rows) >= places[:, None]))
    for name in before:
        for row, one, other in zip(places, before[name], after[name], strict=False):
            place, width = targets[row]
            # Predictions of earlier targets must not change either; later ones may.
            if one.dim() and len(one) == width:
                one = one[: place + 1]
                other = other[: place + 1]
            why = f"row {row} of '{swap.array}' makes target {place}"
            require(close(one, other), f"{why}, but changes its prediction ('{name}')", where)


def check_evaluation(bench: Bench) -> str:
    """Evaluation does not depend on epoch, random numbers or earlier batches."""
    numbers = bench.numbers("train", FEW)
    names = differing(bench.plain, bench.read(numbers, epoch=1))
    if names:
        why = f"batch['{names[0]}'] changes in evaluation, as by an augmentation"
        raise Failed(f"{why}: dataset.py: augment only `if self.training`")
    before = bench.read(numbers[::-1])

    @torch.no_grad()
    def loss(*batches: Batch, seed: int = 1, training: bool = False) -> float:
        model = bench.new_model().train(training)
        for batch in batches:
            seed_everything(seed)
            output = model(batch)
        return float(output.loss)

    why = "the same batch gives another loss in evaluation, as by dropout or an augmentation"
    where = "model.py: draw random numbers only `if self.training`"
    require(loss(bench.plain) == loss(bench.plain, seed=2), why, where)
    why = "the loss of a batch depends on the batch before: a state is kept between batches"
    where = "model.py: keep state only in a `RecurrentState`"
    for mode in (False, True):
        first = loss(bench.plain, training=mode)
        later = loss(before, bench.plain, training=mode)
        require(first == later, why, where)
    return ""


def check_seed(bench: Bench) -> str:
    """The same seed gives the same batches and losses, bit for bit."""
    numbers = bench.numbers("train", FEW)

    def train() -> tuple[list[Batch], list[float]]:
        model = bench.new_model()
        batches = [bench.read(numbers, training=True, epoch=epoch) for epoch in range(3)]
        return batches, list(bench.train(model, batches))

    batches, losses = train()
    others, again = train()
    where = "dataset.py: derive random numbers only from seed, epoch and index"
    are_same = not any(map(differing, batches, others))
    require(are_same, "the same samples of the same epoch differ", where)
    why = f"losses differ, {losses[-1]:.6g} and {again[-1]:.6g}"
    require(losses == again, why, "model.py: use only torch's global generator")
    return ""


def check_weights(bench: Bench) -> str:
    """Every weight is registered and gets a gradient."""
    model = bench.new_model()
    reached = set[str]()
    for _ in range(3):  # a layer that starts at zero passes no gradient on at first
        model.zero_grad()
        loss = model.train()(bench.batch).loss
        check_registered(model, loss)
        loss.backward()
        for name, weight in model.named_parameters():
            if weight.grad is not None and weight.grad.any():
                reached.add(name)
        list(bench.train(model, [bench.batch]))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    lost = sorted(trained - reached)
    why = f"{len(lost)} of {len(trained)} get no gradient, such as {', '.join(lost[:1])}"
    require(not lost, why, "model.py: look for detach, no_grad, or a layer that is not called")
    return f"{len(trained)} weights"


def check_sync(bench: Bench) -> str:
    """Nothing in the step waits for the device."""
    model = bench.new_model().train()
    with Calls() as calls:
        output = model(bench.read(bench.numbers("train", FEW), training=True))
        output.loss.backward(gradient=output.total_weight)
    for name, _, line in calls.made:
        if name == "argmax" or line is None or line.lineno is None:
            continue
        path = Path(line.filename)
        if path.name in ("model.py", "dataset.py"):
            text = path.read_text(encoding="utf-8").splitlines()[: line.lineno][-2:]
            is_meant = any(MEANT in code for code in text)
            why = f"`{text[-1].strip()}` would wait for the GPU"
            where = f"{path.name}:{line.lineno}: avoid it, or add the comment `# {MEANT}`"
            require(is_meant, why, where)
    return ""


def check_overfit(bench: Bench) -> str:
    """One batch can be memorized."""
    _, losses = bench.fitted
    why = f"{STEPS} steps on it only change the loss from {losses[0]:.4g} to {losses[-1]:.4g}"
    where = "model.py: check the loss, the gradients and the learning rate"
    require(losses[-1] < MEMORIZED * losses[0], why, where)
    return f"loss {losses[0]:.4g} to {losses[-1]:.4g} in {BETWEEN * (len(losses) - 1)} steps"


def check_units(bench: Bench) -> str:
    """Predictions are in the units of the targets, and approach them as the loss falls."""
    before = errors(bench, bench.new_model())
    after = errors(bench, bench.fitted[0])
    if not after:
        raise Skipped("no prediction has the axes and the dtype of a target")
    where = "model.py, predict: return original units, and classes from 0"
    for pair, error in after.items():
        why = f"the loss falls, but the error of {pair} goes from {before[pair]:.4g} to {error:.4g}"
        require(error < NEARER * before[pair], why, where)
    return ", ".join(after)


def errors(bench: Bench, model: Any) -> dict[str, float]:
    """Return the error of each prediction and target that can be compared.

    It is the mean squared error, or the fraction of integers that differ.
    """
    errors_of = {}
    for title, prediction in predicted(model, bench.plain).items():
        for name in bench.targets:
            target = bench.plain[name]
            same_dtype = prediction.is_floating_point() == target.is_floating_point()
            if prediction.dim() != target.dim() or not same_dtype:
                continue
            common = tuple(map(slice, map(min, prediction.shape, target.shape)))
            one = prediction[common]
            other = target[common]
            if one.is_floating_point():
                known = one.isfinite() & other.isfinite()
                error = (one - other).double().square()
            else:
                known = other >= 0
                error = (one != other).double()
            errors_of[f"'{title}' from '{name}'"] = float(error[known].mean())
    return errors_of


def check_saving(bench: Bench) -> str:
    """A saved and loaded model gives the same outputs."""
    other = bench.new_model(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        Checkpoint(Path(folder), Distributed(), model=bench.model).save(1)
        Checkpoint(Path(folder), Distributed(), model=other).load()
    names = differing(predicted(bench.model, bench.plain), predicted(other, bench.plain))
    same_loss = measured(bench.model, bench.plain) == measured(other, bench.plain)
    why = f"after loading {', '.join(names) or 'the loss'} differs"
    where = "model.py: register learned or random tensors as parameters or buffers"
    require(same_loss and not names, why, where)
    return ""


def check_labels(bench: Bench) -> str:
    """Training with shuffled labels is worse on held-out samples."""
    held_out = bench.read(bench.numbers("validation", 128), "validation")
    drawn = np.random.default_rng(0).integers(len(bench.samples["train"]), size=(STEPS, 2 * FEW))
    batches = [bench.read(numbers, training=True) for numbers in drawn]
    model = bench.new_model()
    other = bench.new_model()
    steps = bench.train(model, with_bar(batches, "labels"))
    other_steps = bench.train(other, [shuffled(batch, bench.targets) for batch in batches])
    for number, _ in enumerate(zip(steps, other_steps, strict=False), start=1):
        if number % BETWEEN == 0:
            loss = measured(model, held_out)[0]
            other_loss = measured(other, held_out)[0]
            losses = f"{loss:.4g} with labels, {other_loss:.4g} with shuffled ones"
            if loss < HELD_OUT * other_loss:
                return f"loss {losses} after {number} steps"
    where = "dataset.py, Samples.spans: check that rows match labels, or the data are hard to learn"
    raise Failed(f"held-out samples have a loss of {losses}: {where}")


CHECKS: list[Callable[[Bench], str]] = [
    check_shapes,
    check_samples,
    check_evaluation,
    check_padding_rows,
    check_mean,
    check_padding,
    check_future,
    check_seed,
    check_weights,
    check_sync,
    check_overfit,
    check_units,
    check_saving,
    check_labels,
]

# The check that each check relies on. If that one failed, the other would blame correct code: nan
# differs from itself, and random results in evaluation always differ.
DEPENDS_ON = {
    "samples": "shapes",
    "evaluation": "samples",
    **dict.fromkeys(("padding_rows", "mean", "padding", "future", "saving"), "evaluation"),
    **dict.fromkeys(("seed", "weights"), "samples"),
    "sync": "shapes",
    "overfit": "weights",
    **dict.fromkeys(("units", "labels"), "overfit"),
}
