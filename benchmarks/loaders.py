"""How fast loaders deliver, as a share of what the machine can read: raw `preadv` into a reused
buffer.

8,192 rows of 360 × 167 float32 with 36 targets, 1.97 GB, in batches of 256; file in the page cache.
Every case runs in a process of its own: one epoch to warm up, then three that count (one for the
slow ones). A round has every case once, each ratio is taken within its round, and the table gives
the median over the rounds and their span. Every epoch's batches are checked: each row once, with
its own target.

    python benchmarks/loaders.py [--rounds 3] [--rows 8192] [--folder /tmp/benchmark] [--cold]
    [--write]

--cold drops the page cache before some epochs: needs root, and slows whoever shares the machine.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from forks import in_fork  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402

ROWS = 8192
SHAPE = (360, 167)
TARGETS = 36
BATCH = 256
CHUNK = 1024
STEP = 0.015  # seconds: stands for the GPU's work on a batch
ROW_BYTES = 4 * SHAPE[0] * SHAPE[1]
BLOCK = 32 << 20
PEERS = ("streaming", "webdataset")
PEERS_PYTHON = ROOT / ".venv-peers/bin/python"  # `make bench` makes it
WORKERS: tuple[int, ...] = (0, 2)  # of the peers


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global SHAPE, TARGETS, BATCH, CHUNK, ROW_BYTES, BLOCK, STEP, WORKERS
    SHAPE = (12, 5)
    TARGETS = 2
    BATCH = 32
    CHUNK = 128
    ROW_BYTES = 4 * SHAPE[0] * SHAPE[1]
    BLOCK = 8 << 10
    STEP = 0.001
    WORKERS = (0,)


# ---- the data ------------------------------------------------------------------------------------


def write(path: Path, rows: int) -> None:
    """Contiguous HDF5; the first number of each row and of its targets is the row's own."""
    import h5py

    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (rows, *SHAPE), "f4")
        targets = file.create_dataset("targets", (rows, TARGETS), "f4")
        random = np.random.default_rng(0).normal(size=(CHUNK, *SHAPE)).astype("f4")
        for start in range(0, rows, CHUNK):
            numbers = np.arange(start, start + CHUNK, dtype="f4")
            random[:, 0, 0] = numbers
            features[start : start + CHUNK] = random
            targets[start : start + CHUNK] = numbers[:, None]


def offset_of(path: Path, name: str = "features") -> int:
    import h5py

    with h5py.File(path) as file:
        return file[name].id.get_offset()


# ---- cases: functions of (path, epoch) that yield (features, targets) batch by batch -------------


def raw(path: Path, threads: int, reused: int = 0) -> float:
    """Seconds to read all features, block by block in `threads` threads, into `reused` bytes of
    memory.

    By default a chunk's worth of memory, as a loader has to hold that hands out batches of 62 MB.
    Memory that fits in the CPU's cache is filled faster, without reaching the memory at all: that
    says nothing about loaders.
    """
    first = offset_of(path)
    size = ROWS * ROW_BYTES
    reused = reused or CHUNK * ROW_BYTES
    block = min(BLOCK, reused)
    file = os.open(path, os.O_RDONLY)
    blocks = iter(range(0, size, block))
    memory = np.ones(reused, np.uint8).data
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                start = next(blocks, None)
            if start is None:
                return
            place = start % (reused // block * block)
            view = memory[place : place + min(block, size - start)]
            while view:
                count = os.preadv(file, [view], first + start)
                view = view[count:]
                start += count

    workers = [threading.Thread(target=work) for _ in range(threads)]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.close(file)
    return time.perf_counter() - begun


class Windows:
    """Rows of both arrays as samples, with the attributes of a project's `Samples`."""

    training = False
    host = None
    augment = None
    orders: ClassVar[dict[str, Any]] = {}

    def __init__(self, spans: Any, rows: int):
        self.Spans = spans
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        span = self.Spans(indices, 1)
        return {"features": span, "targets": span}

    def batch(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {name: array.values[:, 0] for name, array in rows.items()}


def project(name: str) -> Any:
    """A module of the linked project."""
    return importlib.import_module(f"my_training.{name}")


def ours(path: Path, loader: str, order: str) -> Any:
    """A loader of the template, over links to its parts."""
    import torch
    from link import link

    folder = Path(tempfile.mkdtemp())
    link(folder, workload="windows", loader=loader)
    sys.path.insert(0, str(folder / "src"))
    hdf5_arrays = project("engine.loading.hdf5").hdf5_arrays
    make_order = project("engine.training.project").make_order

    data = SimpleNamespace(
        order=order, batch_size=BATCH, fraction=1.0, shuffle_block=CHUNK, chunk_size_gb="auto",
        resident="auto",
        pin_memory=True, num_workers=2, prefetch_factor=2, persistent_workers=True,
    )  # fmt: skip
    settings = SimpleNamespace(
        data=data, evaluation=SimpleNamespace(batch_size=0), reproducibility=SimpleNamespace(seed=0)
    )
    store = SimpleNamespace(arrays=hdf5_arrays(path, "features", "targets"), resident={})
    samples = Windows(project("engine.interfaces").Spans, ROWS)
    return project("engine.loading.loader").Loader(
        samples, store, settings, make_order(samples, settings), torch.device("cpu")
    )


def template(path: Path, loader: str, order: str) -> Callable[[int], Iterator[Any]]:
    made = ours(path, loader, order)

    def epoch(number: int) -> Iterator[Any]:
        for batch in made.epoch(number):
            yield batch["features"], batch["targets"]

    return epoch


def plain_chunks(path: Path, shuffled: bool) -> Callable[[int], Iterator[Any]]:
    """The chunk loader that one writes first: read a chunk with h5py, copy it to the device, cut
    it."""
    import h5py
    import torch

    file = h5py.File(path)

    def epoch(number: int) -> Iterator[Any]:
        for start in range(0, ROWS, CHUNK):
            features = torch.from_numpy(file["features"][start : start + CHUNK]).clone()
            targets = torch.from_numpy(file["targets"][start : start + CHUNK]).clone()
            order = torch.randperm(CHUNK) if shuffled else None
            for first in range(0, CHUNK, BATCH):
                if order is None:
                    yield features[first : first + BATCH], targets[first : first + BATCH]
                else:
                    yield (
                        features[order[first : first + BATCH]],
                        targets[order[first : first + BATCH]],
                    )

    return epoch


class MapStyle:
    """One row at a time, from a file that is opened once in each process."""

    def __init__(self, path: Path):
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        import h5py
        import torch

        if self.file is None:
            self.file = h5py.File(self.path)
        return torch.from_numpy(self.file["features"][row]), torch.from_numpy(
            self.file["targets"][row]
        )


def map_style(path: Path, workers: int) -> Callable[[int], Iterator[Any]]:
    """PyTorch's DataLoader over rows, shuffled as the order `full` is."""
    from torch.utils.data import DataLoader

    class Shuffled:
        number = 0

        def __len__(self) -> int:
            return ROWS

        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng([0, self.number]).permutation(ROWS).tolist())

    data: Any = MapStyle(path)
    sampler = Shuffled()
    loader: Any = DataLoader(
        data, BATCH, sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )

    def epoch(number: int) -> Iterator[Any]:
        sampler.number = number
        return iter(loader)

    return epoch


def lstm(path: Path) -> dict[str, float]:
    """One training step of the template's LSTM on the loader's batches: train.py's against a bare
    one."""
    import torch

    loader = ours(path, "chunk", "full")
    torch.set_num_threads(1)
    settings = SimpleNamespace(model=SimpleNamespace(width=64, depth=1, dropout=0.0))
    facts = {"mean": [0.0] * SHAPE[1], "std": [1.0] * SHAPE[1]}
    facts |= {"target_mean": [0.0] * TARGETS, "target_std": [1e4] * TARGETS}
    optimizing = SimpleNamespace(
        name="adamw",
        weight_decay=0.01,
        learning_rate=1e-3,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        fused=True,
    )
    batch = {name: value[:32].clone() for name, value in next(loader.epoch(0)).items()}
    batch["target"] = batch.pop("targets")
    loader.close()
    model = project("model").build_model(settings, facts)
    precision = project("engine.compute.precision").Precision("fp32", torch.device("cpu"))
    settings = SimpleNamespace(optimizer=optimizing)
    optimizer = project("optimizer").build_optimizer(model, settings)
    mean_and_clip = project("engine.compute.precision").mean_and_clip

    def bare() -> None:
        loss = model(batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def by_the_project() -> None:
        with precision.autocast():
            output = model(batch)
        (output.loss * output.total_weight).backward()
        mean_and_clip(optimizer, output.total_weight.clamp(min=1), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return in_turn({"bare": bare, "ours": by_the_project})


def in_turn(runs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The median seconds of each, after four that warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(24):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if number >= 4:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


# ---- a case in its own process -------------------------------------------------------------------


def case(path: Path, name: str) -> Callable[[int], Iterator[Any]]:
    if name.startswith("map"):
        return map_style(path, int(name[-1]))
    if name.startswith(PEERS):
        import peers

        return getattr(peers, name.split()[0])(path, (SHAPE, TARGETS), BATCH, int(name[-1]))
    if name.startswith("plain"):
        return plain_chunks(path, name.endswith("shuffled"))
    loader, order = name.split()
    return template(path, loader, order)


def memory() -> int:
    """Bytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def child(path: Path, name: str, step: float = 0.0, cold: bool = False) -> dict[str, Any]:
    """Seconds of epochs, first batch and CPU of a case."""
    if name == "growth":
        return growth(path)
    if name == "lstm":
        return lstm(path)
    if name.startswith("raw"):
        threads = int(name[4])
        reused = 2 * BLOCK if name.endswith("cache") else CHUNK * ROW_BYTES
        if cold:
            drop_caches()
            return {"epoch": raw(path, threads)}
        return {"epoch": statistics.median([raw(path, threads, reused) for _ in range(4)][1:])}
    import torch

    torch.set_num_threads(1)
    start_memory = memory()
    epoch = case(path, name)
    quick = not name.startswith(("map", "dataloader", "plain", *PEERS))
    epochs = []
    for number in range(4 if quick and not cold else 2):
        if cold:
            drop_caches()
        epochs.append(timed(epoch(number), step))
    counted = {}
    for key in ("epoch", "first", "cpu"):
        counted[key] = statistics.median(values[key] for values in epochs[1:])
    return counted | {"memory": max(values["memory"] for values in epochs) - start_memory}


def timed(batches: Iterator[Any], step: float) -> dict[str, float]:
    """Seconds and peak of memory of an epoch that has each row once."""
    seen = np.zeros(ROWS, bool)
    first = 0.0
    peak = 0
    start = time.perf_counter()
    cpu = time.process_time()
    for place, (features, targets) in enumerate(batches):
        if place == 0:
            first = time.perf_counter() - start
        rows = features[:, 0, 0].numpy().astype(int)
        assert not seen[rows].any()
        assert (targets[:, -1].numpy() == rows).all()
        seen[rows] = True
        peak = max(peak, memory())
        if step:
            time.sleep(step)
    seconds = time.perf_counter() - start
    cpu = time.process_time() - cpu
    assert seen.all()
    return {"epoch": seconds, "first": first, "cpu": cpu, "memory": peak}


def growth(path: Path) -> dict[str, Any]:
    """Peak of host memory over the start, and the time from asking to the first batch at some
    places."""
    loader = ours(path, "chunk", "full")
    start = memory()
    peak = 0
    resumed = []
    for batch in loader.epoch(0):
        batch["features"].sum()
        peak = max(peak, memory())
    for place in (3, ROWS // BATCH // 2, ROWS // BATCH - 2):
        begun = time.perf_counter()
        batches = loader.epoch(0, place)
        next(batches)
        resumed.append(time.perf_counter() - begun)
        batches.close()
    loader.close()
    return {"memory": peak - start, "resumed": max(resumed)}


# ---- rounds and table ----------------------------------------------------------------------------

WARM = (
    *("raw 1", "raw 2", "raw 2 in cache", "chunk time", "chunk block", "chunk full"),
    *("memmap full", "dataloader full", "plain sequential", "plain shuffled", "map 0", "map 2"),
)
STEPPED = ("chunk time", "chunk full", "plain sequential", "map 0", "map 2")


def beside() -> tuple[str, ...]:
    """The peers' cases, where their environment is."""
    if not PEERS_PYTHON.exists():
        return ()
    return tuple(f"{peer} {workers}" for peer in PEERS for workers in WORKERS)


def forked(path: Path, name: str, step: float, cold: bool) -> dict[str, Any]:
    """A case of a rehearsal."""

    def work() -> dict[str, Any]:
        global ROWS
        ROWS = int(path.stem)
        return child(path, name, step, cold)

    return in_fork(work)


def spawn(
    path: Path, name: str, *, step: float = 0.0, cold: bool = False, rehearse: bool = False
) -> dict[str, Any]:
    """A case in a process of its own; ours in a fork where it is a rehearsal."""
    peer = name.startswith(PEERS)
    if rehearse and not peer:
        return forked(path, name, step, cold)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(PEERS_PYTHON) if peer else sys.executable, __file__, "--child", name]
    command += ["--folder", str(path.parent), "--rows", path.stem, "--step", str(step)]
    command += ["--cold"] * cold + ["--rehearse"] * rehearse
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder: Path, rounds: int, cold: bool, rehearse: bool) -> list[dict[str, Any]]:
    run = functools.partial(spawn, rehearse=rehearse)
    path = folder / f"{ROWS}.h5"
    if not path.exists():
        write(path, ROWS)
    measured = []
    for number in range(rounds):
        row: dict[str, Any] = {name: run(path, name) for name in (*WARM, *beside())}
        row |= {f"{name} + step": run(path, name, step=STEP) for name in STEPPED}
        row["lstm"] = run(path, "lstm")
        if cold:
            row |= {
                f"{name} cold": run(path, name, cold=True)
                for name in ("raw 2", "chunk time", "chunk full")
            }
        measured.append(row)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    for size, rows in (("small", ROWS // 2), ("large", 2 * ROWS)):
        file = folder / f"{rows}.h5"
        write(file, rows)
        measured[-1][size] = run(file, "growth")
        file.unlink()
    return measured


class Rounds:
    """What was measured in each round; ratios of it, of which a list has one a round."""

    def __init__(self, rounds: list[dict[str, Any]]):
        self.rounds = rounds
        self.raw = f"raw {min(os.cpu_count() or 1, 2)}"

    def each(self, function: Callable[[dict[str, Any]], float]) -> list[float]:
        return [function(row) for row in self.rounds]

    def epochs(self, one: str, other: str) -> list[float]:
        """How often the epoch of `other` fits into that of `one`."""
        return self.each(lambda row: row[one]["epoch"] / row[other]["epoch"])

    def of_raw(self, name: str) -> list[float]:
        return self.epochs(self.raw, name)

    def of_ideal(self, name: str) -> list[float]:
        """An epoch with a step, against the longer of reading and of all steps."""
        steps = ROWS / BATCH * STEP
        return self.each(
            lambda row: row[f"{name} + step"]["epoch"] / max(steps, row[self.raw]["epoch"])
        )

    def saved(self, name: str) -> list[float]:
        """Fraction of the time that the full shuffle saves."""
        return [1 - ratio for ratio in self.epochs("chunk full + step", f"{name} + step")]

    def of_chunk(self, name: str) -> list[float]:
        """The time until the first batch, against that of reading one chunk."""
        chunk = CHUNK / ROWS
        return self.each(lambda row: row[name]["first"] / (row[self.raw]["epoch"] * chunk))


def gigabytes() -> float:
    """Of an epoch."""
    return ROWS * ROW_BYTES / 1e9


def lines_of(rounds: Rounds) -> list[tuple[str, str, list[float]]]:
    """What, target, and its value in each round."""
    lines = [
        ("sequential, of raw preadv", "≥ 0.90", rounds.of_raw("chunk time")),
        ("block shuffle, of raw preadv", "≥ 0.75", rounds.of_raw("chunk block")),
        ("full shuffle, of raw preadv", "≥ 0.80", rounds.of_raw("chunk full")),
        (
            "sequential, times a plain h5py chunk loader",
            "≥ 4.5",
            rounds.epochs("plain sequential", "chunk time"),
        ),
        (
            "full shuffle, times a plain one that shuffles in its chunk",
            "≥ 4",
            rounds.epochs("plain shuffled", "chunk full"),
        ),
        ("epoch with a 15 ms step, of ideal, sequential", "≤ 1.10", rounds.of_ideal("chunk time")),
        ("the same, full shuffle", "≤ 1.10", rounds.of_ideal("chunk full")),
        ("time saved against a map-style DataLoader, 0 workers", "≥ 0.70", rounds.saved("map 0")),
        ("the same, 2 workers", "≥ 0.55", rounds.saved("map 2")),
        (
            f"first batch, of one chunk's read ({CHUNK} rows)",
            "≤ 0.4",
            rounds.of_chunk("chunk time"),
        ),
        (
            "LSTM step, of a bare loop",
            "≤ 1.03",
            rounds.each(lambda row: row["lstm"]["ours"] / row["lstm"]["bare"]),
        ),
    ]
    for peer in beside():
        lines.append((f"full shuffle, times {peer}", "", rounds.epochs(peer, "chunk full")))
    lines += [
        ("memmap, full shuffle, of raw preadv", "", rounds.of_raw("memmap full")),
        (
            "dataloader, 2 workers, full shuffle, of raw preadv",
            "",
            rounds.of_raw("dataloader full"),
        ),
        (
            "CPU seconds per GB, chunk, sequential",
            "≤ 0.13",
            rounds.each(lambda row: row["chunk time"]["cpu"] / gigabytes()),
        ),
    ]
    return lines


def rare_lines(rounds: Rounds) -> list[tuple[str, str, list[float]]]:
    """Of a cold page cache, and of the last round's files of two sizes."""
    lines = []
    if "raw 2 cold" in rounds.rounds[0]:
        for order, wanted in (("time", "≥ 0.95"), ("full", "")):
            ratios = rounds.epochs("raw 2 cold", f"chunk {order} cold")
            lines.append((f"cold, order {order}, of cold raw preadv", wanted, ratios))
    last = rounds.rounds[-1]
    blocks = [last[size]["memory"] / (BATCH * ROW_BYTES) for size in ("small", "large")]
    lines.append(("host memory of 1 GB and of 4 GB, in blocks of 62 MB", "≤ 4", blocks))
    epoch = statistics.median(row[rounds.raw]["epoch"] for row in rounds.rounds)
    resumed = last["large"]["resumed"] / (epoch * CHUNK / ROWS)
    lines.append(("resuming at any batch, of one chunk's read", "< 1", [resumed]))
    return lines


def tables(measured: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What, target, median and span over the rounds; and the speeds."""
    rounds = Rounds(measured)
    measures = []
    for name, wanted, values in lines_of(rounds) + rare_lines(rounds):
        span = f"{min(values):.2f} to {max(values):.2f}"
        measures.append([name, wanted, f"{statistics.median(values):.2f}", span])
    speeds = []
    for name in (*WARM, *beside()):
        rates = [gigabytes() / row[name]["epoch"] for row in measured]
        speeds.append([name, f"{statistics.median(rates):.2f}"])
    return (
        {"columns": ["measure", "wanted", "median", "span"], "rows": measures},
        {"columns": ["loader, no step", "GB/s"], "rows": speeds},
    )


def main() -> None:
    global ROWS
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="fewer, to try it (default: %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "fasttrain-benchmark"
    )
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--step", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = command_line(parser, rounds=1, rows=256)
    if arguments.rehearse:
        shrink()
    ROWS = arguments.rows
    if arguments.child:
        path = arguments.folder / f"{ROWS}.h5"
        print(json.dumps(child(path, arguments.child, arguments.step, arguments.cold)))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    protocol = machine("h5py", "numpy") + f", {ROWS:,} rows, {arguments.rounds} rounds"
    measured = measure(arguments.folder, arguments.rounds, arguments.cold, arguments.rehearse)
    publish("loaders", "loaders", protocol, *tables(measured), arguments=arguments)


if __name__ == "__main__":
    main()
