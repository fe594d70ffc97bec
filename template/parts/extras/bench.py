"""The project's samples and fresh models on the CPU in float32, eager, for the checks in contract.py."""

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
from ..engine.optimization import make_optimizer
from ..engine.plugins import discover
from ..engine.precision import Precision
from ..engine.progress import seed_everything
from ..engine.rows import deliver, gather, mapped, stored_dtype
from ..engine.seams import Batch, Rows, keeps
from ..model import build_model

if TYPE_CHECKING:
    from ..config import Settings

T = TypeVar("T")

CPU = torch.device("cpu")
FEW = 8  # samples of a batch
STEPS, BETWEEN = 200, 20  # of a training at most, and between two looks at it
LEAST_RATE = 1e-3  # so that fine-tuning's small rates show something in so few steps
LEARNT = 0.5  # one batch by heart: its loss over the first one
WAITS = {
    "item",
    "tolist",
    "numpy",
    "cpu",
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "equal",
}
WAITS |= {"__bool__", "__int__", "__float__", "__index__"}


class Failed(Exception):
    """Why a check failed, and where to look."""


class Skipped(Exception):
    """Why the project has no use for a check."""


def require(condition: object, why: str, where: str) -> None:
    if not condition:
        raise Failed(f"{why}: {where}")


class Bench:
    """The project's samples and fresh models. looks: samples of a split that `check_samples` looks at."""

    def __init__(self, settings: Settings, looks: int):
        self.settings, self.store, self.looks = settings, open_store(settings), looks
        self.precision = Precision("fp32", CPU)
        splits = ("train", "validation")
        self.samples: dict[str, Any] = {
            name: dataset.Samples(self.store, settings, name) for name in splits
        }

    def some(self, split: str, count: int) -> list[int]:
        """Numbers of so many samples, evenly spaced; fewer where there are fewer."""
        if not (length := len(self.samples[split])):
            raise Skipped(f"the {split} split has no samples")
        return np.unique(np.linspace(0, length - 1, count).astype(np.int64)).tolist()

    def read(
        self,
        numbers: Iterable[int],
        split: str = "train",
        *,
        training: bool = False,
        epoch: int = 0,
        change: Callable[[str, Rows], Rows] = lambda name, rows: rows,
    ) -> Batch:
        """The batch of these samples, −1 for a row that fills it up. change: what becomes of stored rows."""
        samples, indices, rows = self.samples[split], np.array(list(numbers)), {}
        samples.training = training
        for name, spans in samples.spans(indices, epoch).items():
            array = self.store.arrays[name]
            if array.offset is None:  # packed: HDF5 alone can read it
                starts, lengths = np.ravel(spans.starts), np.ravel(spans.lengths)
                packed = discover("engine", "Hdf5Array")[0].Hdf5Array(**vars(array))
                pieces = [packed.read(a, a + n) for a, n in zip(starts, lengths, strict=True)]
                source = torch.from_numpy(np.concatenate(pieces))
                spans = spans._replace(
                    starts=(lengths.cumsum() - lengths).reshape(spans.starts.shape)
                )
            else:
                source = mapped(array)
            values = gather(source, spans).view(stored_dtype(array))
            rows[name] = change(name, Rows(values, torch.from_numpy(spans.lengths)))
        if hasattr(samples, "host"):
            rows = samples.host(rows, indices, epoch)
        return deliver(samples, rows, indices, np.ones(len(indices), bool), CPU)

    def fresh(self, seed: int = 0) -> Any:
        """A model of the run's seed, or another; later random numbers come from it too."""
        seed_everything(self.settings.reproducibility.seed + seed)
        model = build_model(self.settings, self.store.facts)
        keeps(("predict", "blocks"), model, f"the model {type(model).__name__}")
        return model

    def train(self, model: Any, batches: Iterable[Batch]) -> Iterator[float]:
        """Takes a step on each batch; gives the losses."""
        optimizer = make_optimizer(model.train(), self.settings.optimizer)
        for group in optimizer.param_groups:
            group["lr"] = max(group["lr"], LEAST_RATE)
        for batch in batches:
            output = model.train()(batch)
            output.loss.backward(gradient=output.weight)
            targets = output.weight.detach().clamp(min=1)
            self.precision.step(optimizer, self.settings.training.gradient_clip, targets)
            yield float(output.loss.detach())

    @cached_property
    def batch(self) -> Batch:
        """A few samples as training has them."""
        return self.read(self.some("train", FEW), training=True)

    @cached_property
    def plain(self) -> Batch:
        """The same as evaluation has them."""
        return self.read(self.some("train", FEW))

    @cached_property
    def model(self) -> Any:
        """After a few steps, as what begins at zero would hide much."""
        model = self.fresh()
        list(self.train(model, [self.batch] * 5))
        return model.eval()

    @cached_property
    def fitted(self) -> tuple[Any, list[float]]:
        """A model trained on one batch alone, and its losses there in evaluation, first to last."""
        model = self.fresh()
        losses = [measured(model, self.plain)[0]]
        for number, _ in enumerate(self.train(model, shown([self.batch] * STEPS, "overfit")), 1):
            if number % BETWEEN == 0:
                losses.append(measured(model, self.plain)[0])
                if losses[-1] < LEARNT * losses[0]:
                    break
        return model.eval(), losses

    @property
    def targets(self) -> list[str]:
        """Names of what predictions are measured against."""
        if names := [name for name in self.batch if name.startswith(("target", "label"))]:
            return names
        raise Skipped("nothing in a batch is called target or label")


def shown(items: list[T], title: str) -> Iterable[T]:
    return tqdm(items, title, leave=False, disable=None)


@torch.no_grad()
def measured(model: Any, batch: Batch) -> list[float]:
    """Loss, weight, and sum and count of each metric, in evaluation."""
    output = model.eval()(batch)
    pairs = [part for name in sorted(output.metrics) for part in output.metrics[name]]
    return [float(value) for value in (output.loss, output.weight, *pairs)]


@torch.no_grad()
def predicted(model: Any, batch: Batch) -> dict[str, Tensor]:
    predictions: dict[str, Tensor] = model.eval().predict(batch)
    return predictions


def close(one: Any, other: Any) -> bool:
    """Equal but for the order of summation in float32."""
    return np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not equal bit for bit."""
    return [
        name for name in one if not torch.equal(one[name].nan_to_num(), other[name].nan_to_num())
    ]


def kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


class Calls(TorchFunctionMode):
    """Every call of torch from Python: its name, what it got, and the line of yours."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Any, traceback.FrameSummary | None]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name == "argmax" or name in WAITS or (name == "__getitem__" and by_mask(args[1])):
            self.made.append((name, args, own_line(traceback.extract_stack())))
        return function(*args, **(kwargs or {}))


def by_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def own_line(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """The innermost line of your own modules."""
    package, others = Path(__file__).parent.parent, ("__main__.py", "assemble.py")
    paths = [(frame, Path(frame.filename)) for frame in frames]
    own = [frame for frame, path in paths if path.parent == package and path.name not in others]
    return own[-1] if own else None


class Swap:
    """Copies of a sample in which some rows of one array are those of another sample, the donor."""

    def __init__(self, bench: Bench, array: str, number: int, donor: int):
        self.bench, self.array, self.number, self.donor = bench, array, number, donor

    def __call__(self, others: np.ndarray) -> Batch:
        """others (n, W): which rows are the donor's, for each copy. The donor itself is the last sample."""

        def change(name: str, rows: Rows) -> Rows:
            if name != self.array:
                return rows
            values, axes = rows.values, [1] * rows.lengths.dim()
            mask = torch.zeros(*values.shape[:1], values.shape[len(axes)], dtype=torch.bool)
            mask[:-1, : others.shape[1]] = torch.from_numpy(others)
            mask = mask.view(len(mask), *axes[1:], -1, *[1] * (values.dim() - len(axes) - 1))
            return rows._replace(values=torch.where(mask, values[-1:], values))

        return self.bench.read([self.number] * len(others) + [self.donor], change=change)

    def targets(self, rows: np.ndarray) -> dict[int, tuple[int, int]]:
        """Rows that change a target by themselves; its first place that changes, and how many it has."""
        found: dict[int, tuple[int, int]] = {}
        for part in (rows[at : at + 64] for at in range(0, len(rows), 64)):
            one, other = self(np.zeros((len(part), len(rows)), bool)), self(rows == part[:, None])
            for name in self.bench.targets:
                differs = (one[name].nan_to_num() != other[name].nan_to_num())[:-1]
                differs = differs.view(
                    len(part), differs.shape[1] if differs.dim() > 1 else 1, -1
                ).any(2)
                for row, places in zip(part.tolist(), differs, strict=True):
                    if places.any():
                        found.setdefault(row, (int(places.int().argmax()), len(places)))
        return found


def scores(model: Any, batch: Batch) -> dict[str, Tensor]:
    """Predictions that are floats; where all are whole numbers, what their argmax was taken of."""
    with Calls() as calls:
        found = predicted(model, batch)
    floats = {name: value for name, value in found.items() if value.is_floating_point()}
    inputs = [args[0] for name, args, _ in calls.made if name == "argmax"]
    return floats or {f"before argmax {number}": value for number, value in enumerate(inputs)}


def leaves(loss: Tensor) -> Iterator[Tensor]:
    """The tensors where backward of this loss leaves a gradient."""
    seen, waiting = set[Any](), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable


def mixed(batch: Batch, targets: list[str]) -> Batch:
    """The batch with its targets in another order."""
    found = dict(batch)
    for name in targets:
        flat = batch[name].flatten(0, 1) if batch[name].dim() > 1 else batch[name]
        order = torch.from_numpy(np.random.default_rng(1).permutation(len(flat)))
        found[name] = flat[order].view_as(batch[name])
    return found
