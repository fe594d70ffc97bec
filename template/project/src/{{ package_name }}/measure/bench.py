"""Samples and new models of the project on the CPU in float32, for the checks in contract.py."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from .. import dataset
from ..assemble import open_store
from ..engine.compute.precision import Precision, mean_and_clip
from ..engine.interfaces import Batch, Rows, Spans
from ..engine.loading.rows import deliver, gather, mapped
from ..engine.plugins import discover
from ..engine.training.dry_run import check_model
from ..engine.training.evaluation import added
from ..engine.training.progress import seed_everything
from ..model import build_model
from ..optimizer import build_optimizer

if TYPE_CHECKING:
    from ..settings import Settings

T = TypeVar("T")

CPU = torch.device("cpu")
FEW = 8  # samples in a batch
STEPS = 200  # maximum number of steps of a training
BETWEEN = 20  # steps between two evaluations
LEAST_RATE = 1e-3  # smaller learning rates, as for fine-tuning, would show nothing in so few steps
MEMORIZED = 0.5  # a batch is memorized if its loss falls to this fraction of the first one
WAITS = {  # functions that wait for the device
    "item",
    "tolist",
    "numpy",
    "cpu",
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "equal",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
}


class Failed(Exception):
    """A check failed; the message says why, and where to look."""


class Skipped(Exception):
    """A check does not apply to the project; the message says why."""


def require(condition: object, why: str, where: str) -> None:
    if not condition:
        raise Failed(f"{why}: {where}")


class Bench:
    """Provides the project's samples and new models.

    num_looked: the number of samples of each split that `check_samples` reads.
    """

    def __init__(self, settings: Settings, num_looked: int):
        self.settings = settings
        self.store = open_store(settings)
        self.num_looked = num_looked
        self.precision = Precision("fp32", CPU)
        self.samples: dict[str, Any] = {}
        for name in ("train", "validation"):
            self.samples[name] = dataset.Samples(self.store, settings, name)

    def numbers(self, split: str, count: int) -> list[int]:
        """Return the numbers of up to `count` samples, evenly spaced."""
        length = len(self.samples[split])
        if not length:
            raise Skipped(f"the {split} split has no samples")
        return np.unique(np.linspace(0, length - 1, count).astype(np.int64)).tolist()

    def read(
        self,
        numbers: Iterable[int],
        split: str = "train",
        *,
        training: bool = False,
        epoch: int = 0,
        change: Callable[[str, Rows], Rows] | None = None,
    ) -> Batch:
        """Return the batch of these samples; −1 is a padding row.

        change: replaces stored rows; it is called with the name of their array.
        """
        samples = self.samples[split]
        samples.training = training
        indices = np.array(list(numbers))
        rows = {}
        for name, spans in samples.spans(indices, epoch).items():
            rows[name] = self.stored(name, spans)
            if change is not None:
                rows[name] = change(name, rows[name])
        if samples.host is not None:
            rows = samples.host(rows, indices, epoch)
        return deliver(samples, rows, indices, epoch, CPU)

    def stored(self, name: str, spans: Spans) -> Rows:
        """Return the stored rows of an array, padded with zeros."""
        array = self.store.arrays[name]
        if array.offset is not None:
            return gather(mapped(array), spans)
        # Only HDF5 can read a compressed dataset, one span after the other.
        starts = np.ravel(spans.starts)
        lengths = np.ravel(spans.num_rows())
        packed = discover("engine.loading", "Hdf5Array")[0].Hdf5Array(**vars(array))
        pieces = []
        for start, length in zip(starts, lengths, strict=True):
            pieces.append(packed.read(start, start + length))
        source = torch.from_numpy(np.concatenate(pieces))
        new_starts = np.where(lengths > 0, lengths.cumsum() - lengths, -1)
        return gather(source, spans._replace(starts=new_starts.reshape(spans.starts.shape)))

    def new_model(self, seed: int = 0) -> Any:
        """Return a new model; it and later random numbers come from the run's seed plus `seed`."""
        seed_everything(self.settings.reproducibility.seed + seed)
        model = build_model(self.settings, self.store.facts)
        check_model(model)
        return model

    def train(self, model: Any, batches: Iterable[Batch]) -> Iterator[float]:
        """Make a step with each batch; yield the losses."""
        optimizer = build_optimizer(model.train(), self.settings)
        for group in optimizer.param_groups:
            group["lr"] = max(group["lr"], LEAST_RATE)
        for batch in batches:
            output = model.train()(batch)
            output.loss.backward(gradient=output.total_weight)
            targets = output.total_weight.detach().clamp(min=1)
            mean_and_clip(optimizer, targets, self.settings.training.gradient_clip)
            optimizer.step()
            optimizer.zero_grad()
            yield float(output.loss.detach())

    @cached_property
    def batch(self) -> Batch:
        """A few samples as training reads them."""
        return self.read(self.numbers("train", FEW), training=True)

    @cached_property
    def plain(self) -> Batch:
        """The same samples as evaluation reads them."""
        return self.read(self.numbers("train", FEW))

    @cached_property
    def model(self) -> Any:
        """A model after a few steps, because weights that start at zero would hide errors."""
        model = self.new_model()
        list(self.train(model, [self.batch] * 5))
        return model.eval()

    @cached_property
    def fitted(self) -> tuple[Any, list[float]]:
        """A model trained on one batch only, and its evaluation losses on that batch, in order."""
        model = self.new_model()
        losses = [measured(model, self.plain)[0]]
        steps = self.train(model, with_bar([self.batch] * STEPS, "overfit"))
        for number, _ in enumerate(steps, start=1):
            if number % BETWEEN == 0:
                losses.append(measured(model, self.plain)[0])
                if losses[-1] < MEMORIZED * losses[0]:
                    break
        return model.eval(), losses

    @property
    def targets(self) -> list[str]:
        """The names of the targets in a batch."""
        names = [name for name in self.batch if name.startswith(("target", "label"))]
        if not names:
            raise Skipped("no name in the batch begins with target or label")
        return names


def with_bar(items: list[T], title: str) -> Iterable[T]:
    return tqdm(items, title, leave=False, disable=None)


@torch.no_grad()
def measured(model: Any, batch: Batch) -> list[float]:
    """Return loss, weight, sum and count of each metric, and sums of groups, in evaluation."""
    output = model.eval()(batch)
    values = [output.loss, output.total_weight]
    for name in sorted(output.metrics):
        values += output.metrics[name]
    for groups in output.by_group.values():
        # A value at the border of a group may change sides by a rounding error: compare moments.
        sums = added(groups)
        place = torch.linspace(0, 1, len(sums), dtype=sums.dtype, device=sums.device)
        values += [*sums.sum(0).flatten(), *torch.tensordot(place, sums, 1).flatten()]
    return [float(value) for value in values]


@torch.no_grad()
def predicted(model: Any, batch: Batch) -> dict[str, Tensor]:
    predictions: dict[str, Tensor] = model.eval().predict(batch)
    return predictions


def close(one: Any, other: Any) -> bool:
    """Whether values are equal, up to rounding errors of float32 sums."""
    return np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not equal bit for bit."""
    names = []
    for name, value in one.items():
        if not torch.equal(value.nan_to_num(), other[name].nan_to_num()):
            names.append(name)
    return names


class Calls(TorchFunctionMode):
    """While open, records calls of argmax and of functions that wait for the device.

    A record has the function's name, its arguments, and the line of your code that called it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Any, traceback.FrameSummary | None]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        by_mask = name == "__getitem__" and has_mask(args[1])
        if name == "argmax" or name in WAITS or by_mask:
            self.made.append((name, args, own_line(traceback.extract_stack())))
        return function(*args, **(kwargs or {}))


def has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(value, Tensor) and value.dtype == torch.bool for value in parts)


def own_line(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """Return the innermost frame in your own modules; None in `host`, which the CPU runs."""
    package = Path(__file__).parent.parent
    if any(frame.name == "host" for frame in frames):
        return None
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.parent == package and path.name not in ("__main__.py", "assemble.py"):
            return frame
    return None


class Swap:
    """Copies a sample, and replaces some rows of one array by rows of another sample, the donor."""

    def __init__(self, bench: Bench, array: str, number: int, donor: int):
        self.bench = bench
        self.array = array
        self.number = number
        self.donor = donor

    def __call__(self, others: np.ndarray) -> Batch:
        """Return the batch of the copies; the last sample is the donor itself.

        others: for each copy, which rows come from the donor (n, W).
        """

        def change(name: str, rows: Rows) -> Rows:
            if name != self.array:
                return rows
            values = rows.values
            sample_axes = values.dim() - len(self.bench.store.arrays[name].shape)
            if sample_axes > 1 and values.shape[sample_axes] == 1:
                sample_axes -= 1  # of spans of one row, each is a row of the sample
            mask = torch.zeros(len(values), values.shape[sample_axes], dtype=torch.bool)
            mask[:-1, : others.shape[1]] = torch.from_numpy(others)
            shape = [1] * values.dim()
            shape[0] = len(mask)
            shape[sample_axes] = -1
            swapped = torch.where(mask.view(shape), values[-1:], values)
            # What is known ahead stays: a prediction may depend on it.
            known = getattr(self.bench.samples["train"], "known_ahead", {}).get(name, [])
            if known:
                swapped[..., known] = values[..., known]
            return rows._replace(values=swapped)

        return self.bench.read([self.number] * len(others) + [self.donor], change=change)

    def targets(self, num_rows: int) -> dict[int, tuple[int, int]]:
        """Return each row that changes a target by itself.

        Its value is the first place of the target that changes, and the number of all places.
        """
        rows = np.arange(num_rows)
        places_of: dict[int, tuple[int, int]] = {}
        for first in range(0, num_rows, 64):
            tried = rows[first : first + 64]
            before = self(np.zeros((len(tried), num_rows), bool))
            after = self(rows == tried[:, None])
            for name in self.bench.targets:
                differs = before[name].nan_to_num() != after[name].nan_to_num()
                differs = differs[:-1]
                width = differs.shape[1] if differs.dim() > 1 else 1
                differs = differs.reshape(len(tried), width, -1).any(2)
                for row, places in zip(tried.tolist(), differs, strict=True):
                    if places.any():
                        places_of.setdefault(row, (int(places.int().argmax()), width))
        return places_of


def scores(model: Any, batch: Batch) -> dict[str, Tensor]:
    """Return floating-point predictions; if all are integers, return the inputs of argmax."""
    with Calls() as calls:
        predictions = predicted(model, batch)
    floats = {name: value for name, value in predictions.items() if value.is_floating_point()}
    if floats:
        return floats
    inputs = [args[0] for name, args, _ in calls.made if name == "argmax"]
    return {f"before argmax {number}": value for number, value in enumerate(inputs)}


def shuffled(batch: Batch, targets: list[str]) -> Batch:
    """Return the batch with its targets in another order."""
    changed = dict(batch)
    for name in targets:
        flat = batch[name]
        if flat.dim() > 1:
            flat = flat.flatten(0, 1)
        order = torch.from_numpy(np.random.default_rng(1).permutation(len(flat)))
        changed[name] = flat[order].view_as(batch[name])
    return changed
