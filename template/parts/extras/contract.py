"""What model.py and dataset.py must keep to, as checks; the verb `check` runs them.

A check is a function of the bench; its docstring is its claim. It returns a detail worth a word, or raises
`Failed` with why and where to look, or `Skipped`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..engine.checkpoint import Checkpoint
from ..engine.distributed import Distributed
from ..engine.progress import seed_everything
from ..engine.seams import Batch, Output, Rows, keeps
from .bench import (
    BETWEEN,
    FEW,
    LEARNT,
    STEPS,
    Bench,
    Calls,
    Failed,
    Skipped,
    Swap,
    close,
    differing,
    kind,
    leaves,
    measured,
    mixed,
    predicted,
    require,
    scores,
    shown,
)

HELD_OUT = 0.95  # loss of held-out samples with their labels, over that with mixed ones
NEARER = 0.8  # squared error of predictions after that training, over the one before it
PLACES = 16  # at which the future is changed
MEANT = "host sync"  # a comment on the line or above it that says so


def check_shapes(bench: Bench) -> str:
    """Batches, outputs and predictions have their shapes and dtypes."""
    batch, model, count = bench.batch, bench.fresh(), len(bench.batch["index"])
    for name, value in batch.items():
        why = f"batch['{name}'] is {kind(value)}: its first axis is not the {count} samples"
        require(value.shape[:1] == (count,), why, "dataset.py, Samples.batch")
    for given in (batch, bench.read(bench.some("train", FEW)[:1], training=True)):
        output = model.train()(given)
        keeps(Output._fields, output, f"the {type(output).__name__} that forward returns")
        for name, value in (("loss", output.loss), ("weight", output.weight)):
            right = value.dtype == torch.float32 and not value.shape
            require(right, f"{name} is {kind(value)}, not () float32", "model.py, forward")
        require(
            output.weight > 0, f"{len(given['index'])} samples have no weight", "model.py, forward"
        )
        output.loss.backward()
    metrics = [model.eval()(bench.read(part)).metrics for part in (bench.some("train", FEW), [0])]
    sums = [part for pair in metrics[0].values() for part in pair]
    right = all(not part.shape for part in sums) and metrics[0].keys() == metrics[1].keys()
    require(
        right, "metrics are not the same (sum, count) of () for every batch", "model.py, forward"
    )
    for name, value in predicted(model, batch).items():
        right = value.shape[:1] == (count,)
        require(
            right, f"'{name}' is {kind(value)}, its first axis not the samples", "model.py, predict"
        )
    modules = all(isinstance(block, nn.Module) for block in model.blocks())
    require(modules, "blocks() gives what is no module", "model.py, blocks")
    return ", ".join(f"{name} {kind(x)}" for name, x in list(batch.items())[:-3])


def check_samples(bench: Bench) -> str:
    """Every sample gives a finite loss."""
    where = "prepare the data again, from values that are finite"
    for place in nonfinite_places(bench.store.facts):
        raise Failed(f"the metadata of the data have nan or inf: {place}: {where}")
    looked, model = 0, bench.fresh()
    for split in bench.samples:
        numbers = bench.some(split, bench.looks)
        parts = [numbers[at : at + 4 * FEW] for at in range(0, len(numbers), 4 * FEW)]
        for part in shown(parts, f"samples of {split}"):
            if trouble(bench, model, split, part):
                found = ((number, trouble(bench, model, split, [number])) for number in part)
                number, why = next(pair for pair in found if pair[1])
                raise Failed(f"sample {number} of {split}: {why}")
        looked += len(numbers)
    return f"{looked:,} looked at"


def trouble(bench: Bench, model: Any, split: str, numbers: list[int]) -> str:
    """What is wrong with samples, and where to look; empty where nothing is."""
    stored: dict[str, torch.Tensor] = {}

    def remember(name: str, rows: Rows) -> Rows:
        stored[name] = rows.values.clone()  # `Samples.batch` may change them in place
        return rows

    try:
        batch = bench.read(numbers, split, change=remember)
        loss = measured(model, batch)[0]
    except (IndexError, RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        return f"{first_line}: the data, or dataset.py, Samples.batch"
    if np.isfinite(loss):
        return ""
    causes = columns_at_fault(model, batch)
    if not causes:
        return f"its loss is {loss}, and its batch has no nan or inf that makes it so: model.py, forward"
    names = [column_name(bench.store.facts, array, column, batch) for array, column in causes]
    prepared = any(is_stored(stored, array, column) for array, column in causes)
    where = (
        "the prepared data"
        if prepared
        else "dataset.py, Samples.batch: the prepared data are finite"
    )
    return f"its loss is {loss}: nan or inf in {', '.join(names)}: {where}"


def columns_at_fault(model: Any, batch: Batch) -> list[tuple[str, int | None]]:
    """(array, column) of values that make the loss nan or inf; the column is None for an array without.

    A model may be made for some gaps. So each column is tried by itself, with 0 in all others' gaps.
    """
    suspects: list[tuple[str, int | None]] = []
    for name, values in batch.items():
        if not values.is_floating_point() or values.isfinite().all():
            continue
        if values.dim() == 1:
            suspects.append((name, None))
        else:
            broken = ~values.isfinite().flatten(0, -2).all(0)
            suspects += [(name, int(column)) for column in broken.nonzero()]

    def loss_with(kept: list[tuple[str, int | None]]) -> float:
        """The loss where only these suspects keep their nan and inf."""
        changed = dict(batch)
        for name, column in suspects:
            if (name, column) not in kept:
                values = changed[name].clone()
                part = values if column is None else values[..., column]
                part.nan_to_num_(0, 0, 0)
                changed[name] = values
        return measured(model, changed)[0]

    if not np.isfinite(loss_with([])):
        return []
    alone = [suspect for suspect in suspects if not np.isfinite(loss_with([suspect]))]
    return alone or suspects


def is_stored(stored: dict[str, torch.Tensor], array: str, column: int | None) -> bool:
    """Whether the column has nan or inf in the prepared data already; any array, where none has its name."""
    values = stored.get(array)
    if values is None or values.dim() < 2 or column is None or column >= values.shape[-1]:
        floats = [values for values in stored.values() if values.is_floating_point()]
        return any(not values.isfinite().all() for values in floats)
    return values.is_floating_point() and not values[..., column].isfinite().all()


def column_name(facts: dict[str, Any], array: str, column: int | None, batch: Batch) -> str:
    """`'features', column 3 (wind)`: the array of the batch, and the column by number and by name."""
    if column is None:
        return f"'{array}'"
    width = batch[array].shape[-1]
    known = facts.get(array) or facts.get("columns")
    name = known[column] if isinstance(known, list) and len(known) == width else ""
    name = name.get("name", "") if isinstance(name, dict) else name
    return f"'{array}', column {column}" + (f" ({name})" if name else "")


def nonfinite_places(value: Any, place: str = "") -> Iterator[str]:
    """Where metadata have nan or inf: `features[3].mean`."""
    if isinstance(value, float) and not np.isfinite(value):
        yield f"{place} is {value}"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from nonfinite_places(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from nonfinite_places(inner, f"{place}[{number}]")


def check_filler(bench: Bench) -> str:
    """Rows that fill a batch up change nothing."""
    numbers, where = (
        bench.some("train", 3),
        'model.py, forward: batch["present"] says which rows count',
    )
    alone, filled = (
        measured(bench.model, bench.read([*numbers, *more])) for more in ([], [-1, -1])
    )
    with_them = f"with them the loss is {filled[0]:.6g} over {filled[1]:g}"
    why = f"{with_them}, without {alone[0]:.6g} over {alone[1]:g}"
    require(close(alone, filled), why, where)
    loss, weight, *_ = measured(bench.model, bench.read([-1, -1]))
    require(
        loss == weight == 0,
        f"a batch of them alone has loss {loss:g} and weight {weight:g}, not 0",
        where,
    )
    return ""


def check_mean(bench: Bench) -> str:
    """The loss is a mean over its weight."""
    numbers = bench.some("train", 2)
    (loss, weight, *_), (other, more, *_) = (
        measured(bench.model, bench.read(numbers * n)) for n in (1, 2)
    )
    why = f"each sample twice makes a loss of {loss:.6g} one of {other:.6g}"
    require(close(loss, other), why, "model.py, forward: the sum is divided by weight")
    why = f"each sample twice makes a weight of {weight:g} one of {more:g}"
    require(close(2 * weight, more), why, "model.py, forward: weight is the number of targets")
    return ""


def check_padding(bench: Bench) -> str:
    """Padding changes nothing."""
    spans, numbers = bench.samples["train"].spans, np.array(bench.some("train", 256))
    rows = sum(x.lengths.reshape(len(numbers), -1).sum(1) for x in spans(numbers, 0).values())
    pair = [int(numbers[np.argmin(rows)]), int(numbers[np.argmax(rows)])]
    widths = [[x.width for x in spans(np.array([number]), 0).values()] for number in pair]
    if widths[0] == widths[1]:
        raise Skipped("every batch is as wide, whatever its samples")
    loss, weight = np.array([measured(bench.model, bench.read([number]))[:2] for number in pair]).T
    alone, both = (loss * weight).sum() / weight.sum(), measured(bench.model, bench.read(pair))[0]
    why = (
        f"samples {pair[0]} and {pair[1]} have a loss of {alone:.6g} alone and {both:.6g} together"
    )
    require(
        close(alone, both), why, "model.py: what stands behind a sample's length must not count"
    )
    return f"of samples {pair[0]} and {pair[1]}"


def check_future(bench: Bench) -> str:
    """A stored row that makes a target, and those after it, do not reach its prediction."""
    number, *donors = bench.some("train", FEW)
    looked, where = 0, "dataset.py, Samples.batch: where inputs end; model.py: a causal mask"
    for array, spans in bench.samples["train"].spans(np.array([number, *donors]), 0).items():
        lengths = spans.lengths.reshape(len(spans.lengths), -1).max(1)
        for donor, length in zip(donors, np.minimum(lengths[0], lengths[1:]), strict=True):
            swap = Swap(bench, array, number, donor)
            if found := swap.targets(np.arange(length)):
                break
        else:
            continue
        rows = np.array(sorted(found))
        places = rows[np.unique(np.linspace(0, len(rows) - 1, PLACES).astype(int))]
        before = scores(bench.model, swap(np.zeros((len(places), length), bool)))
        after = scores(bench.model, swap(np.arange(length) >= places[:, None]))
        for name in before:
            for row, one, other in zip(places, before[name], after[name], strict=False):
                place, width = found[row]  # of its first target, among so many
                end = place + 1 if one.dim() and len(one) == width else None
                why = f"row {row} of '{array}' makes target {place}, and reaches its prediction ('{name}')"
                require(close(one[:end] if end else one, other[:end] if end else other), why, where)
        looked += len(rows)
    if not looked:
        raise Skipped("no stored row changes a target")
    return f"{looked} such rows"


def check_evaluation(bench: Bench) -> str:
    """In evaluation a sample gives the same, whatever the epoch, chance and the batch before."""
    other = bench.read(bench.some("train", FEW), epoch=1)
    if names := differing(bench.plain, other):
        why, where = (
            f"batch['{names[0]}'] changes, as by an augmentation",
            "dataset.py: `if self.training`",
        )
        raise Failed(f"in evaluation {why}: {where} in spans, host and batch")
    before = bench.read(bench.some("train", FEW)[::-1])

    @torch.no_grad()
    def loss(*batches: Batch, seed: int = 1, training: bool = False) -> float:
        model = bench.fresh().train(training)
        for batch in batches:
            seed_everything(seed)
            output = model(batch)
        return float(output.loss)

    same = loss(bench.plain) == loss(bench.plain, seed=2)
    why = "in evaluation the same batch gives another loss, as by dropout or an augmentation"
    require(same, why, "model.py: what draws random numbers asks `self.training`")
    for mode in (False, True):
        same = loss(bench.plain, training=mode) == loss(before, bench.plain, training=mode)
        why = "the same batch gives another loss after another one: a state is kept between batches"
        require(same, why, "model.py: keep a state in a `RecurrentState` alone")
    return ""


def check_seed(bench: Bench) -> str:
    """The same seed gives the same batches and losses, bit for bit."""
    numbers, found = bench.some("train", FEW), []
    for _ in range(2):
        model = bench.fresh()
        batches = [bench.read(numbers, training=True, epoch=epoch) for epoch in range(3)]
        found.append((batches, list(bench.train(model, batches))))
    (batches, losses), (others, again) = found
    where = "dataset.py: random numbers come from seed, epoch and index alone"
    require(
        not any(map(differing, batches, others)), "the same samples of the same epoch differ", where
    )
    why, where = (
        f"losses differ, {losses[-1]:.6g} and {again[-1]:.6g}",
        "model.py: torch's own generator alone",
    )
    require(losses == again, why, where)
    return ""


def check_weights(bench: Bench) -> str:
    """Every weight is registered and gets a gradient."""
    model, reached = bench.fresh(), set[str]()
    for _ in range(3):
        model.zero_grad()
        loss, known = model.train()(bench.batch).loss, set(map(id, model.parameters()))
        for weight in leaves(loss):
            why = f"a weight of shape {tuple(weight.shape)} is not registered: nobody trains or saves it"
            require(
                id(weight) in known, why, "model.py: nn.ModuleList or nn.ParameterList, and no list"
            )
        loss.backward()
        reached |= {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        list(bench.train(model, [bench.batch]))
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    lost = sorted(wanted - reached)
    why = f"{len(lost)} of {len(wanted)} get no gradient, such as {', '.join(lost[:1])}"
    require(not lost, why, "model.py: a detach, a no_grad, or a layer that is not called")
    return f"{len(wanted)} weights"


def check_sync(bench: Bench) -> str:
    """Nothing in the step waits for the device."""
    model = bench.fresh().train()
    with Calls() as calls:
        output = model(bench.read(bench.some("train", FEW), training=True))
        output.loss.backward(gradient=output.weight)
    for name, _, line in calls.made:
        if (
            name != "argmax"
            and line is not None
            and line.lineno
            and Path(line.filename).name in ("model.py", "dataset.py")
        ):
            text = Path(line.filename).read_text(encoding="utf-8").splitlines()[: line.lineno][-2:]
            where = (
                f"{Path(line.filename).name}:{line.lineno}; `# {MEANT}` there says that it is meant"
            )
            require(
                any(MEANT in each for each in text),
                f"`{text[-1].strip()}` would wait for the GPU",
                where,
            )
    return ""


def check_overfit(bench: Bench) -> str:
    """One batch can be learnt by heart."""
    first, *_, last = bench.fitted[1]
    why = f"{STEPS} steps on it bring the loss from {first:.4g} to {last:.4g} only"
    require(
        last < LEARNT * first,
        why,
        "model.py: does the loss see what predict gives? the learning rate",
    )
    return f"loss {first:.4g} to {last:.4g} in {BETWEEN * (len(bench.fitted[1]) - 1)} steps"


def check_units(bench: Bench) -> str:
    """Predictions are in the units of the targets: they come near as the loss falls."""
    before, after = (errors(bench, model) for model in (bench.fresh(), bench.fitted[0]))
    if not after:
        raise Skipped("no prediction has the axes and the kind of a target")
    for pair, error in after.items():
        why = f"the loss falls, and the error of {pair} goes from {before[pair]:.4g} to {error:.4g}"
        require(
            error < NEARER * before[pair], why, "model.py, predict: original units, classes from 0"
        )
    return ", ".join(after)


def errors(bench: Bench, model: Any) -> dict[str, float]:
    """Mean squared error of each prediction and target that compare; of numbers the share that differs."""
    found = {}
    for title, value in predicted(model, bench.plain).items():
        for name in bench.targets:
            target = bench.plain[name]
            if (
                value.dim() == target.dim()
                and value.is_floating_point() == target.is_floating_point()
            ):
                common = tuple(map(slice, map(min, value.shape, target.shape)))
                one, other = value[common], target[common]
                known = (
                    one.isfinite() & other.isfinite() & ((other >= 0) | other.is_floating_point())
                )
                error = (
                    (one - other).double().square()
                    if one.is_floating_point()
                    else (one != other).double()
                )
                found[f"'{title}' from '{name}'"] = float(error[known].mean())
    return found


def check_saving(bench: Bench) -> str:
    """A model that was saved and loaded gives the same outputs."""
    other = bench.fresh(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        Checkpoint(Path(folder), Distributed(), model=bench.model).save(1)
        Checkpoint(Path(folder), Distributed(), model=other).load_model("last")
    names = differing(predicted(bench.model, bench.plain), predicted(other, bench.plain))
    same = not names and measured(bench.model, bench.plain) == measured(other, bench.plain)
    why = f"after loading {', '.join(names) or 'the loss'} differs"
    require(same, why, "model.py: what is learnt or drawn is a parameter or a buffer")
    return ""


def check_labels(bench: Bench) -> str:
    """With labels mixed up nothing is learnt of held-out samples."""
    targets, held = bench.targets, bench.read(bench.some("validation", 128), "validation")
    drawn = np.random.default_rng(0).integers(len(bench.samples["train"]), size=(STEPS, 2 * FEW))
    batches = [bench.read(numbers, training=True) for numbers in drawn]
    models = [bench.fresh(), bench.fresh()]
    own = bench.train(models[0], shown(batches, "labels"))
    other = bench.train(models[1], (mixed(batch, targets) for batch in batches))
    for number, _ in enumerate(zip(own, other, strict=False), 1):
        if number % BETWEEN == 0:
            right, wrong = (measured(model, held)[0] for model in models)
            if right < HELD_OUT * wrong:
                return f"loss {right:.4g} with labels, {wrong:.4g} with mixed ones after {number} steps"
    why = f"held-out samples have a loss of {right:.4g} with labels and {wrong:.4g} with mixed ones"
    raise Failed(
        f"{why}: dataset.py, Samples.spans: do rows and labels belong together? or hard to learn"
    )


CHECKS: list[Callable[[Bench], str]] = [
    *(
        check_shapes,
        check_samples,
        check_evaluation,
        check_filler,
        check_mean,
        check_padding,
        check_future,
    ),
    *(
        check_seed,
        check_weights,
        check_sync,
        check_overfit,
        check_units,
        check_saving,
        check_labels,
    ),
]

# What a check takes for granted. Where that failed, the check would accuse something that is in order: a nan
# differs from itself, and what is random in evaluation is never the same again.
DEPENDS_ON = {
    "samples": "shapes",
    "evaluation": "samples",
    **dict.fromkeys(("filler", "mean", "padding", "future", "saving"), "evaluation"),
    **dict.fromkeys(("seed", "weights"), "samples"),
    "sync": "shapes",
    "overfit": "weights",
    **dict.fromkeys(("units", "labels"), "overfit"),
}
