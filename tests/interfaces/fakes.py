"""Stores, samples and models of every shape that the interfaces allow, and nothing of a real
workload.

A part that holds for these holds for workloads that do not exist yet: windows that overlap, ragged
sequences, several spans for a sample, spans that are absent, models that carry a state.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from importing import imported
from rendering import render
from torch import Tensor, nn
from variants import choices

CPU = torch.device("cpu")
LOADERS = choices("loader")
PRECISIONS = [
    name for name in choices("precision") if name not in ("auto", "fp8")
]  # fp8 needs a part
DTYPES = ("float32", "float16", "bfloat16", "uint16", "int32")
ROWS = 160  # of every array
COUNT = 61  # samples: no multiple of any batch size here
K = 3  # most spans of a sample in one array
WIDTH = 7  # most rows of a span
ARRAYS = {"one": (), "wide": (3,), "square": (2, 2)}  # shapes of a row


def engine(module: str, **answers: Any) -> ModuleType:
    """A module of a rendered project's engine: `engine("training.run").Run`."""
    return imported(render(**answers), f"engine.{module}")


ORDERS = ("auto", "time", "block", "full", "lanes", "bucket", "random_start")


def kinds(stride: int, lengths: np.ndarray | None) -> dict[str, Any]:
    """`Samples.orders` of a workload that has both."""
    lanes = engine("loading.lanes", extras=["lanes"]).Lanes
    buckets = engine("loading.buckets", workload="seq2seq").Buckets
    return {"lanes": partial(lanes, stride=stride), "bucket": partial(buckets, lengths=lengths)}


def content(row: tuple[int, ...]) -> np.ndarray:
    """(ROWS, *row) whole numbers from 1 to 251: exact in every dtype, and never the zero of
    padding."""
    return (np.arange(ROWS * int(np.prod(row))).reshape(ROWS, *row) * 7) % 251 + 1


def as_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bfloat16":
        return values.astype(dtype)
    return torch.tensor(values).bfloat16().view(torch.int16).numpy().view(np.uint16)


def write_store(folder: Path, loader: str, dtype: str = "float32") -> Any:
    """The opened store with all `ARRAYS` in one dtype."""
    store = engine("loading.store", loader=loader)
    with store.StoreWriter(folder, "fake") as writer:
        for name, row in ARRAYS.items():
            writer.append(name, as_stored(content(row), dtype), dtype)
        writer.splits = {"train": [0, COUNT]}
    return store.Store.open(folder, "fake")


def settings(seed: int = 3, evaluation_batch_size: int = 0, **data: Any) -> SimpleNamespace:
    """What a loader reads of the settings, with keys of `data:` in their real form."""
    section = SimpleNamespace()
    for loader in ("memmap", "chunk", "dataloader"):
        vars(section).update(engine("settings", loader=loader).EngineData())
    vars(section).update({"batch_size": 4, "num_workers": 0} | data)
    return SimpleNamespace(
        data=section,
        reproducibility=SimpleNamespace(seed=seed),
        evaluation=SimpleNamespace(batch_size=evaluation_batch_size),
    )


def make_loader(
    loader: str, samples: Any, store: Any, given: Any, *place: int, train: bool = True
) -> Any:
    """The loader's part over samples; place: rank and world."""
    order = engine("training.project", loader=loader).make_order(
        samples, given, *place, train=train
    )
    return engine("loading.loader", loader=loader).Loader(samples, store, given, order, CPU)


class Samples:
    """Samples whose spans are in tables: starts and lengths, (N,) or (N, K), for each array.

    shift: moves the starts with the epoch, as `random_start` does. tight: the width is the batch's
    own. An absent span starts far behind the array's end, where nobody may look.
    """

    training = False
    augment = None
    host = None
    stride = 4

    def __init__(
        self, tables: dict[str, tuple[np.ndarray, np.ndarray]], tight: bool, shift: bool = False
    ):
        self.tables = tables
        self.tight = tight
        self.shift = shift

    def __len__(self) -> int:
        return COUNT

    @property
    def orders(self) -> dict[str, Any]:
        return kinds(self.stride, self.lengths())

    def lengths(self) -> np.ndarray:
        return sum(lengths.reshape(COUNT, -1).sum(1) for _, lengths in self.tables.values())

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        spans = {}
        for name, (starts, lengths) in self.tables.items():
            rows = (-1, *[1] * (starts.ndim - 1))
            taken = np.where((indices >= 0).reshape(rows), lengths[indices], 0)
            first = starts[indices]
            if self.shift:
                first = first + ((indices * 31 + epoch * 17) % 5).reshape(rows)
            has_lengths = self.tight or (lengths != lengths.flat[0]).any()
            width = WIDTH if has_lengths else int(lengths.flat[0])
            if self.tight:
                width = max(int(taken.max(initial=0)), 1)
            spans[name] = engine("interfaces").Spans(
                np.where(taken > 0, first, 10**9 if has_lengths else -1),
                width,
                taken if has_lengths else None,
            )
        return spans

    def batch(self, rows: dict[str, Any]) -> dict[str, Tensor]:
        batch = {}
        for name, array in rows.items():
            batch[name] = array.values
            if array.lengths is not None:
                batch[f"{name}.lengths"] = array.lengths
        return batch

    def expected(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        """What `batch` must hold, read row by row."""
        batch = {}
        for name, (starts, width, lengths) in self.spans(indices, epoch).items():
            source = content(ARRAYS[name])
            values = np.zeros((*starts.shape, width, *ARRAYS[name]), np.int64)
            for place in np.ndindex(starts.shape):
                first = starts[place]
                count = lengths[place] if lengths is not None else width * (first >= 0)
                values[place][:count] = source[first : first + count]
            batch[name] = values
            if lengths is not None:
                batch[f"{name}.lengths"] = lengths
        return batch


class Augmented(Samples):
    """Samples with work on the CPU: what it adds depends on sample and epoch, not on who does
    it."""

    def host(self, rows: dict[str, Any], indices: np.ndarray, epoch: int) -> dict[str, Any]:
        added = torch.from_numpy((indices * 7 + epoch * 3) % 11)
        wide = rows["wide"]
        noise = added.view(-1, *[1] * (wide.values.dim() - 1)).to(wide.values.dtype)
        return {**rows, "wide": wide._replace(values=wide.values + noise)}


def shapes() -> dict[str, Samples]:
    """Every form of sample, over the same store."""
    random = np.random.default_rng(0)
    first = np.arange(COUNT)
    ones = np.ones(COUNT, np.int64)
    window = (first, ones * WIDTH)
    ragged = random.integers(0, WIDTH + 1, COUNT)
    is_there = random.integers(0, 2, (COUNT, K))
    days = is_there * random.integers(0, WIDTH + 1, (COUNT, K))
    days[5] = 0  # one sample has no span at all
    somewhere = random.integers(0, ROWS - WIDTH, (COUNT, K))
    full_days = np.full((COUNT, K), WIDTH)
    both_ragged = {"one": (first, ragged), "square": (first * 2, ragged[::-1])}
    return {
        "rows": Samples(dict.fromkeys(ARRAYS, (first, ones)), tight=False),
        "windows": Samples({"wide": window, "one": (first + 9, ones)}, tight=False),
        "shifted": Samples({"wide": window}, tight=False, shift=True),
        "ragged": Samples(both_ragged, tight=True),
        "padded": Samples({"one": (first, ragged)}, tight=False),
        "days": Samples({"wide": (somewhere, days), "one": (first, ones)}, tight=True),
        "panel": Samples({"square": (somewhere, full_days)}, tight=False),
        "host": Augmented({"wide": window, "one": (first, ragged)}, tight=False),
    }


def frozen(batch: dict[str, Tensor]) -> dict[str, Any]:
    """A batch's content as plain values that outlive it and compare by ==, bit for bit."""
    content = {}
    for name, tensor in batch.items():
        content[name] = (tensor.dtype, tensor.shape, tensor.contiguous().view(torch.uint8).tolist())
    return content


def epoch_of(loader: Any, epoch: int = 0, start: int = 0) -> list[dict[str, Any]]:
    return [frozen(batch) for batch in loader.epoch(epoch, start)]


class OneOf:
    """Process `rank` of `world`: a sum over all of them is `total(tensor)`."""

    device = CPU

    def __init__(self, world: int = 1, rank: int = 0, total: Any = lambda tensor: tensor):
        self.world = world
        self.rank = rank
        self.sum_over_ranks = total
        self.is_main = rank == 0

    def exchange_gradients(self, enabled: bool) -> None:
        pass

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def on_all_ranks(self, work: Any, main_first: bool = False) -> Any:
        return work()


class Loop:
    """What `train.train` sees of a run: a model, and steps, each with its own micro-batches.

    Keeps `norms` and `means` of the steps: the gradient's before clipping, the loss per target.
    """

    evaluation_due = False
    save_due = False
    log_due = True
    num_steps = 10

    def __init__(
        self,
        model: nn.Module,
        answers: dict[str, Any] | None = None,
        *,
        clip: float = 0.0,
        distributed: Any = None,
        precision: Any = None,
        optimizer: Any = None,
        framework: str = "pytorch",
    ):
        # The rate is 1, so plain SGD moves each weight by minus its gradient.
        self.settings = SimpleNamespace(
            training=SimpleNamespace(gradient_clip=clip),
            optimizer=SimpleNamespace(learning_rate=1.0),
            schedule=SimpleNamespace(name="constant", warmup_steps=0),
        )
        self.project = SimpleNamespace(
            wrapped=model,
            optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=1.0),
            precision=precision or engine("compute.precision").Precision("fp32", CPU),
            distributed=distributed or OneOf(),
            device=CPU,
        )
        skips = self.project.precision.scaler.is_enabled()
        self.meter = engine("monitoring.meter").Meter(self.project.distributed, skips)
        self.signals = self
        self.step = 0
        self.accumulation = 1
        self.step_fraction = 1.0
        order = SimpleNamespace(step_fraction=lambda *place: self.step_fraction)
        self.loader = SimpleNamespace(order=order)
        self.norms: list[float] = []
        self.means: list[float] = []
        self.skipped: list[int] = []
        self._train = imported(render(**(answers or {"framework": framework})), "train").train
        self._steps: list[list[dict[str, Tensor]]] = []

    def __call__(self, *steps: list[dict[str, Tensor]]) -> Loop:
        """Trains on these micro-batches, a list for each step."""
        self._steps = list(steps)
        self._train(self)
        return self

    @property
    def should_stop(self) -> bool:
        return not self._steps

    def next_batches(self) -> Any:
        batches = self._steps[0]
        for number, batch in enumerate(batches, start=1):
            yield {**batch}, number == len(batches)

    def batches_of(self, step: int) -> tuple[int, int, int]:
        return 0, 0, len(self._steps[0])

    def divisor(self) -> Tensor:
        return engine("training.run").Run.divisor(self)

    def end_step(self, norm: Tensor) -> None:
        self.step += 1
        self._steps.pop(0)
        self.meter.end_step(norm)

    def write_record(self, learning_rate: float) -> None:
        norm, skipped, means = self.meter.read()
        self.norms.append(norm)
        self.skipped.append(skipped)
        self.means.append(means["loss"])

    # --- as signals and hooks

    def listen(self) -> None:
        pass

    def call_hooks(self, moment: str, *facts: object) -> list[Any]:
        return []


class Ragged(nn.Module):
    """Mean squared error over the present values of padded sequences: `weight` differs by batch.

    A batch is {"x": (B, W, F), "y": (B, W), "lengths": (B,)}.
    """

    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(3, 4, dtype=dtype)
        self.head = nn.Linear(4, 1, dtype=dtype)

    def forward(self, batch: dict[str, Tensor]) -> Any:
        y = batch["y"]
        error = self.head(self.layer(batch["x"]).tanh()).squeeze(-1).to(y.dtype) - y
        present = torch.arange(y.shape[1]) < batch["lengths"][:, None]
        weight = present.sum().to(y.dtype)
        squares = torch.where(present, error, 0.0).square().sum()
        return engine("interfaces").Output(squares / weight.clamp(min=1), weight)


def ragged_batch(
    count: int = 24, dtype: torch.dtype = torch.float64, seed: int = 0
) -> dict[str, Tensor]:
    """Sequences of length 0 to 7; values behind a length are garbage."""
    random = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(count, WIDTH, 3, generator=random, dtype=dtype),
        "y": 3 * torch.randn(count, WIDTH, generator=random, dtype=dtype) + 2,
        "lengths": torch.randint(0, WIDTH + 1, (count,), generator=random),
        "index": torch.arange(count),
        "present": torch.ones(count, dtype=torch.bool),
    }


def cut(batch: dict[str, Tensor], borders: list[int]) -> list[dict[str, Tensor]]:
    """The batch in micro-batches that end at `borders` and at its end."""
    ends = [*borders, len(batch["index"])]
    return [
        {name: tensor[start:end] for name, tensor in batch.items()}
        for start, end in zip([0, *borders], ends, strict=True)
    ]


class Summing(nn.Module):
    """A stateful model: each lane's running sum of {"x": (B,)}, which is also its prediction.

    The sample that continues a lane is the next one.

    Its weight enters the state, so that a state that was not cut off drags the old graph along.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.recurrent = engine("training.recurrent", extras=["lanes"]).RecurrentState(stride=1)
        self.seen: list[Tensor] = []

    def forward(self, batch: dict[str, Tensor]) -> Any:
        before = torch.zeros(len(batch["x"]))
        state = self.recurrent.apply(batch, self.training)
        if state is not None:
            before = state["sum"]
        self.seen.append(before)
        total = before + self.weight * batch["x"]
        self.recurrent.update(batch, {"sum": total}, self.training)
        present = batch["present"]
        weight = present.sum(dtype=torch.float32)
        value = torch.where(present, total, 0.0).sum()
        metrics = {} if self.training else {"sum": (value.detach(), weight)}
        return engine("interfaces").Output(value / weight.clamp(min=1), weight, metrics)
