"""The numbers of the steps since the last record: means, times, and whether all are finite.

Values on the device are read at records and checkpoints only. Between them, the loop only leaves
references here, and nothing waits for the GPU.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import NonFinite
from ..interfaces import Batch, Output

if TYPE_CHECKING:
    from ..compute.distributed import Distributed

Pairs = list[tuple[Tensor, Tensor]]
"""(value, weight) of several micro-batches, on the device."""

Values = list[tuple[str, int, Tensor]]
"""(kind, step from 1, value) of losses and gradient norms, on the device."""


class Meter:
    """Measures the steps between two records. Every rank calls `read` and `check`.

    skips: a step whose gradient is not finite is skipped, as loss scaling does, and is no error.
    """

    def __init__(self, distributed: Distributed, skips: bool):
        self.distributed = distributed
        self.skips = skips
        self.times: Any = Counter()  # seconds by kind, also of earlier calls of `train`
        self.is_first_step = True
        self._last_time = time.perf_counter()
        self._ends: dict[str, Any] = {}  # the last events on a GPU, by what ended there
        if distributed.device.type == "cuda":
            event: Any = torch.cuda.Event
            for kind in ("forward/backward", "optimizer"):
                self._ends[kind] = event(enable_timing=True)
        self.step_weights: list[Tensor] = []  # of the micro-batches of the current step
        self._values: dict[str, Pairs] = {"loss": []}  # of the loss, means; of others, sums
        self._unchecked: Values = []  # in the order of the steps; equally many on every rank
        self._norms: list[Tensor] = []  # of the gradients, since the last record
        self.bits = ""  # of the losses, then of the norms, of the last record
        self.restart(0)

    def restart(self, step: int) -> None:
        """Start the clock of the next record, after this step."""
        self.step = step
        self.num_steps = 0
        self.num_batches = 0
        self.waited = 0.0  # seconds that the loop waited for data
        self.start_time = time.perf_counter()

    # --- in a step

    def next_batch(self, batches: Iterator[Batch]) -> Batch:
        """Return the next batch; count how long the loop waits for it."""
        self.count("Python")
        batch = next(batches)
        self.waited += self.count("data wait")
        return batch

    def add(self, output: Output) -> None:
        """Remember the loss and the metrics of a micro-batch."""
        loss = output.loss.detach()
        self.step_weights.append(output.total_weight)
        self._unchecked.append(("loss", self.step + 1, loss))
        self._values["loss"].append((loss, output.total_weight))
        for name, (total, count) in output.metrics.items():
            self._values.setdefault(name, []).append((total.detach(), count))
        self.num_batches += 1

    def add_value(self, name: str, value: float | Tensor) -> None:
        """Remember a number of the current step."""
        one = torch.ones((), device=self.distributed.device)  # made there, not copied
        self._values.setdefault(name, []).append((one * value, one))

    def total_weight(self) -> Tensor:
        """Return the sum () of the weights of the current step's micro-batches."""
        if len(self.step_weights) == 1:
            return self.step_weights[0]
        return torch.stack(self.step_weights).sum()

    def end_step(self, norm: Tensor) -> None:
        """End a step; norm () is that of its gradients."""
        self.count("optimizer")
        self.is_first_step = False
        self.step += 1
        self.num_steps += 1
        self.step_weights = []
        self._norms.append(norm)
        if not self.skips:
            self._unchecked.append(("gradient", self.step, norm))

    # --- times

    def count(self, kind: str) -> float:
        """Count the time since the last call as this kind, and return it.

        The first step of a call compiles and fills caches, so all until its end is one kind. A GPU
        runs behind Python: `read` finds out what the optimizer takes.
        """
        now = time.perf_counter()
        seconds = now - self._last_time
        self._last_time = now
        if kind in self._ends:
            self._ends[kind].record()
            kind = "forward/backward"
        if kind in ("validation", "saving"):
            self.start_time += seconds  # no record counts it as training
        elif self.is_first_step:
            kind = "compiling and first step"
        self.times[kind] += seconds
        return seconds

    # --- at a record

    def read(self) -> tuple[float, int, dict[str, float]]:
        """Return the last gradient norm, the number of skipped steps and the means (host sync).

        The means are over all ranks since the last record. Raises `NonFinite`.
        """
        losses, means = self._means()
        # One copy from the device has both. Losses are of this rank, norms the same on all ranks.
        numbers = torch.cat([losses, torch.stack(self._norms)]).float().cpu()
        self.bits = numbers.numpy().tobytes().hex()
        norms = numbers[-len(self._norms) :].tolist()
        # A number that is not finite is in the means of all ranks, so all of them look for it.
        if not math.isfinite(sum(means) + sum(norms)):
            self.check()
        self._unchecked = []
        if self._ends:  # the GPU has passed both
            # Python's clock counted all of it as forward and backward. The events show the last
            # optimizer step only, which stands for all of them.
            before, after = self._ends.values()
            seconds = self.num_steps * before.elapsed_time(after) / 1000
            self.times.update({"optimizer": seconds, "forward/backward": -seconds})
        self.count("forward/backward")
        num_skipped = sum(not math.isfinite(norm) for norm in norms)
        by_name = dict(zip(self._values, means, strict=True))
        self._values = {"loss": []}
        self._norms = []
        return norms[-1], num_skipped, by_name

    def _means(self) -> tuple[Tensor, list[float]]:
        """Return this rank's losses (n,), and the mean of each value over all ranks (host sync)."""
        losses = torch.empty(0)
        sums = []
        for name, pairs in self._values.items():
            values, weights = (torch.stack(column).float() for column in zip(*pairs, strict=True))
            if name == "loss":  # is a mean; the others are sums
                losses = values
                values = values * weights
            sums.append(torch.stack([values.sum(), weights.sum()]))
        # All sums are exchanged at once, because each exchange waits for the slowest rank.
        totals = self.distributed.sum_over_ranks(torch.stack(sums))
        return losses, (totals[:, 0] / totals[:, 1].clamp(min=1)).tolist()

    def check(self) -> None:
        """Raise `NonFinite` if a loss or a gradient since the last check is not (host sync).

        It names the first one: a loss comes before the gradient of its step.
        """
        if not self._unchecked:
            return
        is_bad = ~torch.stack([value for _, _, value in self._unchecked]).isfinite()
        if self.distributed.sum_over_ranks(is_bad.sum()) > 0:
            places = is_bad.nonzero().flatten().tolist()
            of_ranks = self.distributed.gather_objects(min(places, default=len(is_bad)))
            first = min(of_ranks)
            kind, step, _ = self._unchecked[first]
            raise NonFinite(kind, step, rank=of_ranks.index(first))
        self._unchecked = []

    # --- in checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's values that the next record will average (host sync)."""
        values = {}
        for name, pairs in self._values.items():
            if pairs:  # all at once, because each copy waits for the GPU
                values[name] = torch.stack([torch.stack(pair) for pair in pairs]).tolist()
        norms = torch.stack(self._norms).tolist() if self._norms else []
        return {"values": values, "norms": norms}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Add the values of a rank to the next record."""
        device = self.distributed.device
        self._norms = list(torch.tensor(state["norms"], device=device))
        for name, rows in state["values"].items():
            pairs = [(value, weight) for value, weight in torch.tensor(rows, device=device)]
            self._values.setdefault(name, []).extend(pairs)
