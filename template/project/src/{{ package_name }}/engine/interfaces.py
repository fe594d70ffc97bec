"""The types that parts exchange; each part knows these and nothing of its neighbours.

A sample is a set of *spans of rows*: for each named array of the store a start and a length. That
one notion covers a table row, a window of a series, a block of tokens, a ragged pair of texts and a
day of a stock panel. Rows are stored once; nothing is copied per sample and no workload pads.

Shapes: `B` samples in a batch, `K` spans of one sample in one array, `W` padded width of a span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from .errors import UserError

Batch = dict[str, Tensor]
"""What a model gets: every tensor has the batch as its first axis and is on the device. It is
valid until the next `next()` of its loader. `present` (B,) bool is False in rows that are padding;
`index` (B,) int64 is the sample's number, −1 there; `starts_sequence` (B,) bool is False where a
carried state continues."""


class Spans(NamedTuple):
    """Which rows of one array a batch of samples needs. An absent span has length 0."""

    starts: np.ndarray  # (B,) or (B, K) int64, first row
    lengths: np.ndarray  # the same shape, int64, at most `width`
    width: (
        int  # padded length, the same for every batch of an epoch or as small as the batch allows
    )


class Rows(NamedTuple):
    """The rows of one `Spans`, read by a loader in the stored dtype; zeros after `lengths`."""

    values: Tensor  # (B, W, *row) or (B, K, W, *row)
    lengths: Tensor  # (B,) or (B, K) int64


class Output(NamedTuple):
    """What a model's forward gives. A NamedTuple: FSDP and DDP look for tensors inside it."""

    loss: Tensor  # () float32: mean over `total_weight` targets; 0 where there is none
    total_weight: Tensor  # () float32: how many targets the loss is a mean of
    metrics: dict[str, tuple[Tensor, Tensor]] = {}  # noqa: RUF012 - name: (sum, count); () each


class Samples(Protocol):
    """`dataset.Samples(store, settings, split)`: what a sample is. Host methods are pure numpy.

    `training` is set to whether a loader takes the samples to train; `random_start` shifts only
    then.
    """

    training: bool

    def __len__(self) -> int: ...

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        """Rows of each sample by array name; index −1 gives spans of length 0."""

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """On the device: split, shift, cast, mask. The loader adds `index`, `present`,
        `starts_sequence`."""

    # Optional: `orders`, by value of `data.order` a subclass of Order, or what makes one from its
    # arguments.
    # Optional, for `hooks/throughput.py` where a workload counts in tokens: `tokens`, how many
    # targets a mean sample has, and `typical()`, a batch of one such sample.
    # Optional: host(rows, indices, epoch) -> rows runs in the worker or reader thread: real CPU
    # work per sample, such as augmentation, seeded by (seed, epoch, index) alone.


class Loader(Protocol):
    """`Loader(samples, store, settings, order, device)`: batches of an `Order`, on the device."""

    stall_seconds: (
        float  # how long `next()` waited so far for the GPU's earlier steps, and not for data
    )

    def __len__(self) -> int:
        """Batches an epoch, the same on every rank."""

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[Batch]:
        """Batches of epoch `number` from `start_batch` on; a pure function of seed and numbers."""

    def stats(self) -> dict[str, float]: ...

    def close(self) -> None: ...


class Model(Protocol):
    """`model.build_model(settings, facts)`: an `nn.Module` with these methods."""

    def forward(self, batch: Batch) -> Output: ...

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Predictions in original units, batch first."""

    def blocks(self) -> list[Any]:
        """The repeated layers, of own classes: compiled, checkpointed and sharded one by one.

        A block may have `apart()`: parts of it that are called outside of its forward, sharded by
        themselves.
        """

    # Optional: `recurrent`, a `RecurrentState` of engine/recurrent.py, which checkpoints store.


class Hook(Protocol):
    """The class `Hook` of a file in `hooks/`: any of these methods, called on every rank.

    `run` is an `engine.run.Run`. Each phase has hooks of its own.
    """

    trials: bool  # False: no part in the short runs of benchmark and tune (default: True)

    def start(self, run: Any) -> None:
        """Called when a phase starts, after its checkpoint is restored."""

    def before_step(self, run: Any) -> None:
        """Called before the first forward of a step."""

    def after_step(self, run: Any) -> None:
        """Called after each step. See `run.progress.step`, `run.monitor.row`."""

    def evaluating(self, run: Any) -> Any:
        """Return a context manager that surrounds an evaluation."""

    def after_evaluation(self, run: Any, metrics: dict[str, float]) -> None:
        """Called with the results of an evaluation. What it adds to them is logged, too."""

    def close(self, run: Any) -> None:
        """Called at the end of a phase, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what checkpoints store: plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a stored state: on resume, and from phase to phase."""


def require_attributes(names: Iterable[str], value: object, title: str) -> None:
    """Raise `UserError` if what your file returned lacks one of `names`."""
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        what = f"{title} has no {' and no '.join(missing)}"
        raise UserError(what, "model.py", "see its contract in engine/interfaces.py")
