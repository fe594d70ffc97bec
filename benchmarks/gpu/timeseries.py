"""The chunk loader on a GPU: an LSTM on 51,779 windows of 360 × 167 float32, 12.4 GB, epoch after epoch.

A map-style DataLoader (no workers, file opened once, pinned, the same order), then the chunk loader with
two chunks that take turns, with everything resident, and with the other optimizations on top. Beside them
what the machine allows: reading the cached file, copying from page-locked memory. All rows see the same
windows in the same order. Each row is written when it ends. Takes about 6 minutes and 13 GB of disk.

    make bench-gpu PART=timeseries ARGS="--output benchmark_results"
    python benchmarks/gpu/timeseries.py --project build/gpu/projects/timeseries-chunk-pytorch
    python benchmarks/gpu/timeseries.py --rehearse     # every row in small on a CPU, without worth as figures
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "benchmarks")]

WINDOWS, SHAPE, TARGETS, BATCH, EVERY = 51_779, (360, 167), 36, 128, 50
OFF = {
    "training.precision": "fp32",
    "optimizer.fused": "false",
    "data.batch_size": BATCH,
    "monitor.every_steps": EVERY,
    "monitor.progress": "false",
    "evaluation.every_steps": 1_000_000,
}
ON = {"training.precision": "auto", "optimizer.fused": "true"}
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200")


def write(path: Path, windows: int) -> None:
    """Random windows; the targets are the last values of their first channels."""
    import h5py

    random = np.random.default_rng(0).normal(size=(1024, *SHAPE)).astype("f4")
    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (windows, *SHAPE), "f4")
        targets = file.create_dataset("targets", (windows, TARGETS), "f4")
        for start in range(0, windows, len(random)):
            count = min(len(random), windows - start)
            features[start : start + count] = random[:count]
            targets[start : start + count] = random[:count, -1, :TARGETS]


def make_row_by_row(inner: Any) -> Any:
    """A loader with the face of the project's own, over a map-style DataLoader, in the project's order."""
    import h5py
    import torch

    class Windows(torch.utils.data.Dataset):
        def __init__(self, array: Any, names: tuple[str, ...]):
            file = h5py.File(array.path)
            self.sets = [file[name] for name in names]

        def __len__(self) -> int:
            return len(self.sets[0])

        def __getitem__(self, row: int) -> list[Any]:
            return [torch.from_numpy(part[row]) for part in self.sets]

    class RowByRow:
        WITHOUT_EFFECT = ()

        def __init__(
            self, samples: Any, store: Any, settings: Any, device: Any, rank: int, world: int, train: bool
        ):
            self.inner = inner(samples, store, settings, device, rank, world, train)
            self.samples, self.device, self.order = samples, device, self.inner.order
            self.names = tuple(self.inner._chunks.sources)
            self.data = Windows(store.arrays["features"], self.names)

        def __len__(self) -> int:
            return len(self.inner)

        def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
            rows = importlib.import_module("my_training.engine.rows")
            seams = importlib.import_module("my_training.engine.seams")
            numbers, fresh = self.order.epoch(number)
            spans = [self.samples.spans(batch, number)[self.names[0]] for batch in numbers[start:]]
            loader = torch.utils.data.DataLoader(
                self.data,
                batch_sampler=[part.starts[part.lengths > 0].tolist() for part in spans],
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # else it draws from the one that dropout draws from
            )
            for batch, parts in enumerate(loader, start):
                lengths = torch.ones(len(parts[0]), dtype=torch.int64)
                found = {
                    name: seams.Rows(part[:, None], lengths)
                    for name, part in zip(self.names, parts, strict=True)
                }
                present = numbers[batch] >= 0
                yield rows.deliver(
                    self.samples, found, numbers[batch][present], fresh[batch][present], self.device
                )

        def stats(self) -> dict[str, float]:
            return {}

        def close(self) -> None:
            self.inner.close()

    return RowByRow


def train(folder: Path, steps: int, overrides: dict[str, Any], loader: Any) -> dict[str, Any]:
    """Two epochs by the project's own loop; figures of the second."""
    load = importlib.import_module("my_training.config").load
    assembling = importlib.import_module("my_training.assemble")
    session_of = importlib.import_module("my_training.engine.session").Session
    distributed = importlib.import_module("my_training.engine.distributed").Distributed()
    fit = importlib.import_module("my_training.train").fit
    assembling.Loader = loader
    settings = load(
        overrides=[
            (key, str(value)) for key, value in (overrides | {"training.max_steps": 2 * steps}).items()
        ]
    )
    run = Path(tempfile.mkdtemp(dir=folder))
    build = lambda settings: assembling.assemble(settings, distributed, assembling.open_store(settings))  # noqa: E731
    busy: list[int] = []
    with contextlib.redirect_stdout(open(run / "log", "w")), session_of(run, settings, build) as session:
        session.save = lambda: None
        for project in session.phases():
            with watched(busy):
                fit(session)
            stats = session.loader.stats()
            batch = project.settings.data.batch_size
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    late = [row for row in rows if row["step"] > steps and "split" not in row]
    step = statistics.median(row["step_ms"] for row in late) / 1000
    found = {
        "step_ms": 1000 * step,
        "epoch_s": step * steps,
        "samples_per_second": batch / step,
        "gb_per_second": batch / step * 4 * SHAPE[0] * SHAPE[1] / 1e9,
        "data_wait": statistics.median(row["data_wait_fraction"] for row in late),
        "loss": rows[-1]["loss"],
        "resident": stats.get("resident"),
    }
    later = busy[len(busy) // 2 :]
    return found | ({"gpu_busy_percent": statistics.median(later)} if later else {})


@contextlib.contextmanager
def watched(busy: list[int]) -> Iterator[None]:
    """Adds NVML's utilisation to `busy`, five times a second; nothing where there is no nvidia-smi."""
    try:
        process = subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True)
    except OSError:
        yield
        return
    read = threading.Thread(
        target=lambda: busy.extend(int(line) for line in process.stdout or () if line.strip().isdigit())
    )
    read.start()
    try:
        yield
    finally:
        process.terminate()
        read.join()


def limits(path: Path) -> dict[str, float]:
    """GB/s of reading the cached file with four threads, and of copies from page-locked memory."""
    import loaders
    import torch

    size, first = path.stat().st_size, loaders.offset_of(path)
    loaders.ROWS = (size - first) // loaders.ROW_BYTES
    found = {"read": loaders.ROWS * loaders.ROW_BYTES / 1e9 / loaders.raw(path, 4)}
    if torch.cuda.is_available():
        host = torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True)
        device = torch.empty_like(host, device="cuda")
        seconds = []
        for _ in range(10):
            torch.cuda.synchronize()
            start = time.perf_counter()
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        found["bus"] = host.nbytes / 1e9 / statistics.median(seconds)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; each epoch against the first one's."""
    lines = [
        "| | epoch | less than the first | samples/s | GB/s | data wait | GPU busy | peak memory | loss |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "step_ms" not in row:
            lines.append(f"| {row['name']} | {row.get('text', row.get('error'))} | | | | | | | |")
            continue
        first = next(row["epoch_s"] for row in rows if "epoch_s" in row)
        busy = f"{row['gpu_busy_percent']:.0f} %" if "gpu_busy_percent" in row else "n/a"
        cells = [
            row["name"],
            f"{row['epoch_s']:.1f} s",
            f"{1 - row['epoch_s'] / first:.1%}",
            f"{row['samples_per_second']:,.0f}",
            f"{row['gb_per_second']:.1f}",
            f"{row['data_wait']:.1%}",
            busy,
            f"{row['memory_gb']:.1f} GB",
            f"{row['loss']:.4f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", type=Path, help="a project of workload timeseries with the chunk loader")
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "benchmark_results")))
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    import torch

    if not (torch.cuda.is_available() or arguments.rehearse):
        sys.exit("error: no GPU: this benchmark has nothing to measure: benchmarks/loaders.py is the CPU's")
    if arguments.project is None:
        from rendering import render

        arguments.project = render(workload="timeseries", loader="chunk")
    source = arguments.project.resolve() / "src"
    sys.path.insert(0, str(source))
    arguments.output.mkdir(parents=True, exist_ok=True)
    windows = 1024 if arguments.rehearse else WINDOWS
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        gpu = "none" if arguments.rehearse else torch.cuda.get_device_name()
        rows.append(row | {"gpu": gpu, "torch": torch.__version__, "windows": windows, "batch": BATCH})
        with open(arguments.output / "timeseries.jsonl", "a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        (arguments.output / "timeseries.md").write_text(table(rows))
        print(table([*rows[:3], rows[-1]]).splitlines()[-1], flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder / "windows.h5", windows + BATCH)
        for name, speed in limits(folder / "windows.h5").items():
            keep({"name": f"limit: {name}", "text": f"{speed:.1f} GB/s"})
        words = ("prepare", "--input", "windows.h5", "--split", f"{windows},{BATCH},0", "--purge", "0")
        prepare = (sys.executable, "-m", "my_training", *words)
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run(prepare, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        own = importlib.import_module("my_training.engine.loader").Loader
        naive = make_row_by_row(own)
        common = OFF | {"data.path": folder / "data"}
        two_chunks = 0.2 if arguments.rehearse else 4.0
        plan = (
            ("map-style DataLoader, 0 workers, fp32", naive, common | {"data.chunk_size_gb": two_chunks}),
            ("chunk loader, two chunks of 2 GB", own, common | {"data.chunk_size_gb": two_chunks}),
            ("chunk loader, resident", own, common),
            ("+ auto precision, fused AdamW", own, common | ON),
        )
        for name, loader, overrides in plan:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            row: dict[str, Any] = {"name": name}
            try:
                row |= train(folder, -(-windows // BATCH), overrides, loader)
                row["memory_gb"] = torch.cuda.max_memory_allocated() / 2**30
            except Exception as error:  # the other rows are worth having all the same
                row["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            keep(row)


if __name__ == "__main__":
    main()
