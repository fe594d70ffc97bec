"""The graph workload on a GPU: graphs of `prepare` against rebuilt ones, and how busy training
keeps it.

256 stocks with 10 neighbours each, 32 days a batch, by the project's own loop: with the graphs that
`prepare` has cached; rebuilt for each batch by the project, as `graph_builder.use_in_training`
does; and rebuilt by a loop in Python, stock by stock. The last rows look for a model and a batch
that keep a large GPU busy. "GPU busy" is the share of time in which any kernel ran, as NVML has it.
Takes about 4 minutes on an H200.

    make bench-gpu PART=graph
    make bench-gpu PART=graph ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rows import Book, begin, gain, ladder, project, share, spread, train, watched

FLAGS = {"monitor.every_steps": 5}
REHEARSAL = {"model.width": 8, "model.temporal_layers": 1, "monitor.every_steps": 1}
CACHED = "graphs of `prepare`"
LARGER: dict[str, dict[str, Any]] = {  # each row keeps what the rows above it have
    "128 days a batch": {"data.batch_size": 128},
    "+ width 128": {"model.width": 128},
    "+ CUDA graphs": {"compile.mode": "reduce-overhead"},
}
COLUMNS = [
    "",
    "days/s",
    "range",
    "windows/s",
    "speed",
    "validation s/it",
    "data wait",
    "GPU busy",
    "peak memory",
]


def on_a_cpu() -> Any:
    """benchmarks/graph.py, whose data and loop over stocks these are. It imports torch."""
    return importlib.import_module("graph")


def measured(
    folder: Path, overrides: dict[str, Any], builder: Callable[..., Any] | None
) -> dict[str, Any]:
    """Trains with this way to build graphs. None: as the project does it."""
    busy: list[int] = []
    dataset = project("dataset")
    own, dataset.correlated = dataset.correlated, builder or dataset.correlated
    try:
        measured = train(folder, overrides, around=watched(busy))
    finally:
        dataset.correlated = own
    figures = measured.steady("samples_per_second", "data_wait_fraction")
    figures["windows_per_second"] = figures["samples_per_second"] * on_a_cpu().STOCKS
    figures["validation_s"] = measured.evaluations[-1]["seconds"] / len(measured.run.validation)
    later = busy[len(busy) // 2 :]
    return figures | ({"gpu_busy_percent": statistics.median(later)} if later else {})


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{row['samples_per_second']:,.1f}",
        spread(row, "samples_per_second", ",.1f"),
        f"{row['windows_per_second']:,.0f}",
        gain(row, done.get(CACHED), "samples_per_second"),
        f"{row['validation_s']:.3f}",
        share(row, "data_wait_fraction"),
        f"{row['gpu_busy_percent']:.0f} %" if "gpu_busy_percent" in row else "n/a",
        f"{row['memory_gb']:.1f} GB",
    ]


def main() -> None:
    arguments = begin(__doc__, "graph", steps=200)
    graph = on_a_cpu()
    graph.module = project
    if arguments.rehearse:
        graph.shrink()
    days, batches = (200, 2) if arguments.rehearse else (2000, 25)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        graph.write(folder / "data", days, batches)
        common = FLAGS | {"data.path": folder / "data", "data.batch_size": graph.BATCH}
        common |= {
            "training.max_steps": arguments.steps,
            "evaluation.every_steps": arguments.steps // 2,
        }
        common |= {"evaluation.batch_size": graph.BATCH}
        small = REHEARSAL | {"data.batch_size": graph.BATCH} if arguments.rehearse else {}
        rebuilt = common | {"graph_builder.use_in_training": "true"}
        plan: dict[str, Any] = {
            CACHED: (common, None),
            "rebuilt for each batch": (rebuilt, None),
            "rebuilt, Python loop over stocks": (rebuilt, graph.python_loop),
        }
        for name, on in ladder(common, LARGER).items():
            plan[name] = (on, None)
        how = f"{graph.STOCKS} stocks, {graph.NEIGHBORS} neighbours, {graph.BATCH} days a batch"
        how += f", {arguments.steps} steps a row"
        book = Book("graph", COLUMNS, cells, list(plan), arguments, how)
        works: dict[str, Any] = {
            name: lambda on=on | small, builder=builder: measured(folder, on, builder)
            for name, (on, builder) in plan.items()
        }
        book.run(lambda: works)


if __name__ == "__main__":
    main()
