"""The types that modules exchange, and what your files must define.

A module knows these types and not the other modules.

`dataset.py` defines `Samples(store, settings, split)`, a class derived from the one below. It may
define these functions; what they give is left out otherwise:

* `synthesize(folder, settings)` writes a small prepared dataset, always the same, to train on
  before `prepare`.
* `finish(metrics, store, split, sums)` returns the metrics of a split with those added that are no
  sums over samples, such as `r2`, on every rank. sums: those of `Output.by_group`, over all batches
  and ranks: (size, …) float64, on the CPU. A metric `baseline_loss` replaces the function.
* `baseline_loss(store, split)` returns the loss of a split without a model; training must reach a
  lower one.
* `details(store, split, sums)` returns lines that `evaluate` prints below the metrics.

`model.py` defines `build_model(settings, facts)`, which returns an `nn.Module` with these methods:

* `forward(batch)` returns an `Output`.
* `predict(batch)` returns predictions by name, in original units, with the batch as the first axis.
* `blocks()` returns the repeated layers, to be compiled, checkpointed and sharded one by one. Their
  classes must be your own. A block may have a method `apart()` that returns modules in it which are
  called outside of its forward; these are sharded separately.
* Optional: `calibrate(sums)`, called at each evaluation of a training with the same `sums` as
  `finish`. It sets the buffers that the attribute `calibrated` names, equally on every rank.
* Optional: `recurrent`, a `RecurrentState`, which the extra `lanes` stores in checkpoints.

A sample is a set of *spans of rows*: a start and a length for each named array of the store. A span
can be a row of a table, a window of a series, a block of tokens, a text of any length, or a day of
stocks. Rows are stored once, nothing is copied per sample, and no workload pads.

Shapes: `B` samples in a batch, `K` spans of one sample in one array, `W` padded width of a span.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from .errors import UserError

Batch = dict[str, Tensor]
"""The input of a model: every tensor has the batch as its first axis and is on the device. It is
valid until the next `next()` of its loader. `index` (B,) int64 is the sample's number, −1 in rows
that are padding; `present` (B,) bool is False there."""

Run = TypeVar("Run", contravariant=True)


class Spans(NamedTuple):
    """Which rows of one array a batch of samples needs.

    Without lengths, all spans have `width` rows. A span is absent if its start is −1, or its length
    0.
    """

    starts: np.ndarray  # (B,) or (B, K) int64, first row
    width: int  # padded length: the same in all batches of an epoch, or as small as possible
    lengths: np.ndarray | None = None  # the same shape as `starts`, int64, at most `width`

    def num_rows(self) -> np.ndarray:
        """Return the number of rows of each span, 0 if it is absent."""
        if self.lengths is not None:
            return self.lengths
        return np.where(self.starts < 0, 0, self.width)


class Rows(NamedTuple):
    """The rows of one `Spans`, read by a loader in the stored dtype; zeros where there are none."""

    values: Tensor  # (B, W, *row) or (B, K, W, *row)
    lengths: Any = None  # a Tensor (B,) or (B, K) int64, if the spans have lengths


class Groups(NamedTuple):
    """Numbers that an evaluation adds up by group, such as the errors of each series.

    Those of padding must be 0.
    """

    size: int  # number of groups
    group: Tensor  # (n,) int64, from 0 to size − 1
    numbers: Tensor  # (n, …)


class Output(NamedTuple):
    """The result of a model's forward, a NamedTuple because FSDP and DDP look for tensors in it.

    total_weight: the number of targets, or the sum of their weights. If its sum over a step is
    below 1, it counts as 1, so weights should have a mean of about 1.
    """

    loss: Tensor  # () float32: weighted mean over the targets; 0 if there are none
    total_weight: Tensor  # () float32
    metrics: dict[str, tuple[Tensor, Tensor]] = {}  # noqa: RUF012 - name: (sum, count); () each
    by_group: dict[str, Groups] = {}  # noqa: RUF012 - the same names in every evaluation batch


class Samples:
    """The base of `dataset.Samples(store, settings, split)`, which defines what a sample is.

    `spans` and `host` are pure numpy. Workloads that count tokens also have `tokens`, the mean
    number of targets in a sample, and `typical()`, a batch of one such sample.
    """

    training = False
    """Whether a loader reads the samples for training. The loader sets it; augment only then."""

    host: Any = None
    """`host(rows, indices, epoch)` returns rows after real work on the CPU, such as decoding.

    Define it as a method. It runs in the thread or process that reads. It may draw random numbers
    from (seed, epoch, index) alone, so that a resumed run sees the same samples.
    """

    augment: Any = None
    """`augment(batch, epoch)` returns the batch after random changes on the device.

    Define it as a method. Only training calls it. Draw from (seed, epoch, `batch["index"]`) alone,
    also for rows of padding, so that every loader and a resumed run see the same samples.
    """

    @property
    def orders(self) -> dict[str, Any]:
        """Your own values of `data.order`: for each a subclass of `Order`, or what makes one."""
        return {}

    # Optional: `known_ahead`, columns by array whose future a forecast may see, as of holidays. To
    # `check`, they are no leak.

    def __len__(self) -> int:
        """Return the number of samples of the split."""
        raise missing("__len__", "Samples")

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        """Return the rows of each sample by array name; the spans of index −1 are absent."""
        raise missing("spans", "Samples")

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Split, shift, cast and mask rows on the device. The loader adds `index` and `present`."""
        raise missing("batch", "Samples")


class Loader(Protocol):
    """`Loader(samples, store, settings, order, device)`: batches of an `Order`, on the device."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Generator[Batch]:
        """Yield an epoch from batch `start_batch` on; the seed and both numbers decide it."""

    def describe(self) -> list[dict[str, str]]:
        """Return lines for the start of a run, of the order and the loader: name, state, why."""

    def close(self) -> None: ...


class Hook(Protocol[Run]):
    """The class `Hook` of a file in `hooks/`: any of these methods, called on every rank.

    `Run` stands for `engine.training.run.Run`, which imports this module.
    """

    trials: bool  # False: not called in the short runs of benchmark and tune (default: True)

    def before_first_batch(self, run: Run) -> None:
        """Called before any data are read. A `UserError` ends the run."""

    def initialize(self, run: Run) -> None:
        """Called for a new run, before the first step. The weights may be changed here."""

    def start(self, run: Run) -> None:
        """Called after the checkpoint is restored."""

    def before_step(self, run: Run) -> None:
        """Called before the first forward of a step."""

    def after_step(self, run: Run) -> None:
        """Called after each step. See `run.step`, and `run.record`, the last record."""

    def before_record(self, run: Run, record: dict[str, Any]) -> None:
        """Called before a record of training is written. What it adds to it is written, too."""

    def evaluating(self, run: Run) -> Any:
        """Return a context manager that surrounds an evaluation."""

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Called with the results of an evaluation. What it adds to them is logged, too."""

    def explain(self, run: Run, error: Exception) -> Any:
        """Return a `UserError` that says why a loss or a gradient was not finite, or None."""

    def close(self, run: Run) -> None:
        """Called at the end, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what checkpoints store: plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a stored state on resume."""


def require_attributes(
    names: Iterable[str], value: object, title: str, where: str = "model.py"
) -> None:
    """Raise `UserError` if an object from one of your files lacks one of the attributes `names`."""
    absent = [name for name in names if not hasattr(value, name)]
    if absent:
        raise missing(" and no ".join(absent), title, where)


def missing(name: str, title: str, where: str = "dataset.py") -> UserError:
    """Return the error of something that one of your files must define."""
    remedy = "add it; engine/interfaces.py has the contract"
    return UserError(f"{title} has no {name}", where, remedy)
