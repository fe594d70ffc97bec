"""Graph attention against PyTorch Geometric's GATConv, and cached graphs against rebuilt ones.

Attention: forward and backward of one layer, 8 heads × 8, on a citation graph's size and on 32 days
of 256 stocks; the same edges for both, loops among them, weights alike. In float64 both must give
the same results. Calls are interleaved and each pair's ratio is taken on its own, so that a
drifting machine cancels out. Memory: the peak above what the graph and the layer hold, each size in
a fresh process, and again with twice the nodes and edges.

Graphs: training and validation of the model on 256 stocks with 10 neighbours each, 2,560 edges a
day, as `prepare` cached the graphs; rebuilt for each batch by the project
(`graph_builder.use_in_training`); and rebuilt by a loop in Python, stock by stock. On a GPU where
there is one, else on one thread of the CPU.

    python benchmarks/graph.py [attention|memory|graphs] [--rounds 60] [--passes 4] [--write]

`attention` and `memory` need `pip install torch_geometric`.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import platform
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from torch import Tensor  # noqa: E402

HEADS = 8
WIDTH = 8
INPUTS = 64
SIZES = {
    "2,708 nodes, 10,556 edges": (2708, 10556, 1),
    "256 nodes, 2,560 edges × 32 days": (256, 2560, 32),
}
STOCKS = 256
NEIGHBORS = 10
DAYS = 400
BATCH = 32
MODEL: dict[str, str] = {}  # settings that are not as by default


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global SIZES, STOCKS, MODEL
    SIZES = {"64 nodes, 256 edges": (64, 256, 1), "32 nodes, 128 edges × 2 days": (32, 128, 2)}
    STOCKS = 24
    MODEL = {"model.width": "8", "model.temporal_layers": "1"}


def module(name: str) -> Any:
    """A module of a rendered project."""
    from importing import imported
    from rendering import render

    return imported(render(workload="graph"), name)


# ---- attention ---------------------------------------------------------------------------------


def graph(nodes: int, edges: int, copies: int = 1) -> tuple[Tensor, Tensor]:
    """Features and edges of `copies` graphs side by side, each node with its own loop."""
    torch.manual_seed(0)
    candidates = torch.cat(
        [torch.randint(nodes, (2, edges)) + copy * nodes for copy in range(copies)], 1
    )
    loops = torch.arange(nodes * copies).expand(2, -1)
    return torch.randn(nodes * copies, INPUTS), torch.cat([candidates, loops], 1).contiguous()


def layers() -> dict[str, Any]:
    """Both layers with the same weights."""
    from torch_geometric.nn import GATConv

    ours = module("layers").GraphAttention(INPUTS, WIDTH, HEADS)
    theirs = GATConv(INPUTS, WIDTH, HEADS, add_self_loops=False)
    theirs.lin.weight.data = ours.linear.weight.data.clone()
    theirs.att_src.data = ours.source.data[None].clone()
    theirs.att_dst.data = ours.target.data[None].clone()
    return {"ours": ours, "PyG": theirs}


def dense(layer: Any, copies: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The same with a masked (N, N) of scores for each graph and head. Counts double edges once."""

    def forward(x: Tensor, edges: Tensor) -> Tensor:
        size = len(x) // copies
        apart = torch.zeros(copies, size, size, dtype=torch.bool)
        apart[edges[1] // size, edges[1] % size, edges[0] % size] = True
        values = layer.linear(x).view(copies, size, HEADS, WIDTH)
        leaving, arriving = (
            (values * vector).sum(3).mT for vector in (layer.source, layer.target)
        )  # (B, H, N)
        sums = leaving.unsqueeze(2) + arriving.unsqueeze(3)
        scores = torch.nn.functional.leaky_relu(sums, 0.2)  # as in layers.py
        shares = scores.masked_fill(~apart.unsqueeze(1), -torch.inf).softmax(3)  # (B, H, N, N)
        return (shares @ values.transpose(1, 2)).transpose(1, 2).flatten(0, 1).flatten(1)

    return forward


def call(layer: Any, x: Tensor, edges: Tensor) -> tuple[float, Tensor, Tensor]:
    """Seconds of this process in forward and backward, output, gradient of x."""
    x = x.clone().requires_grad_()
    start = time.process_time()  # other processes do not count
    out = layer(x, edges)
    out.square().sum().backward()
    seconds = time.process_time() - start
    assert x.grad is not None
    return seconds, out.detach(), x.grad


def difference(both: dict[str, Any], x: Tensor, edges: Tensor) -> float:
    """The largest difference between outputs or gradients of the two layers, in float64.

    In float32 a sum that rounding moves over LeakyReLU's kink has another slope, and another
    gradient.
    """
    exact = [copy.deepcopy(layer).double() for layer in both.values()]
    # Ours computes in float32 otherwise, whatever it gets.
    with mock.patch.object(Tensor, "float", Tensor.double):
        (_, *ours), (_, *theirs) = (call(layer, x.double(), edges) for layer in exact)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def attention(rounds: int) -> dict[str, Any]:
    both = layers()
    rows = []
    for title, size in SIZES.items():
        x, edges = graph(*size)
        apart = difference(both, x, edges)
        assert apart < 1e-9, f"not the same work: results differ by {apart}"
        times: dict[str, list[float]] = {name: [] for name in both}
        for number in range(-5, rounds):  # five warm up
            turn = list(both.items())
            for name, layer in turn if number % 2 else reversed(turn):
                seconds = call(layer, x, edges)[0]
                if number >= 0:
                    times[name].append(1e3 * seconds)
        ratios = sorted(a / b for a, b in zip(times["ours"], times["PyG"], strict=True))
        low, high = interval(ratios)
        middle = {name: statistics.median(values) for name, values in times.items()}
        sides = (f"{middle[name]:.2f}" for name in ("PyG", "ours"))
        rows.append(
            [
                title,
                *sides,
                f"{statistics.median(ratios):.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{apart:.0e}",
            ]
        )
    masked = [1e3 * call(dense(both["ours"], size[2]), x, edges)[0] for _ in range(4)]
    milliseconds = f"{statistics.median(masked[1:]):.0f}"
    rows.append(["the last one, a masked matrix instead of edges", "", milliseconds, "", "", ""])
    columns = ["graph", "PyG ms", "ours ms", "ratio", "95 %", "largest difference, float64"]
    return {"columns": columns, "rows": rows}


def interval(ratios: list[float]) -> tuple[float, float]:
    """About 95 % of the median, by order statistics."""
    reach = round(0.98 * len(ratios) ** 0.5)
    return ratios[max(len(ratios) // 2 - reach, 0)], ratios[
        min(len(ratios) // 2 + reach, len(ratios) - 1)
    ]


# ---- memory ------------------------------------------------------------------------------------


def memory(start_method: str) -> dict[str, Any]:
    """start_method: of the processes; a fresh one each by `spawn`, which alone measures memory
    rightly."""
    rows = []
    for title, (nodes, edges, copies) in SIZES.items():
        row = []
        for scale in (1, 2):
            for name in ("PyG", "ours"):
                size = (nodes * scale, edges * scale, copies)
                row.append(in_child(start_method, peak, name, *size))
        growth = (f"× {row[2] / row[0]:.2f}", f"× {row[3] / row[1]:.2f}")
        rows.append([title, f"{row[0]:.1f}", f"{row[1]:.1f}", *growth])
    return {"columns": ["graph", "PyG MB", "ours MB", "PyG twice", "ours twice"], "rows": rows}


def peak(name: str, *size: int) -> float:
    """MB that one forward and backward needs at most, beyond what was there before."""
    layer = layers()[name]
    x, edges = graph(*size)
    call(layer, *graph(64, 256))  # libraries make their own buffers
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = resident("VmRSS")
    call(layer, x, edges)
    return resident("VmHWM") - before


def resident(name: str) -> float:
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) / 1024


def in_child(start_method: str, function: Callable[..., float], *arguments: Any) -> float:
    with multiprocessing.get_context(start_method).Pool(1, torch.set_num_threads, (1,)) as pool:
        return pool.apply(function, arguments)


# ---- cached and rebuilt graphs -----------------------------------------------------------------


def stocks(days: int) -> dict[str, Any]:
    """Random walks with a common factor."""
    random = np.random.default_rng(0)
    dataset = module("dataset")
    dates = np.datetime64("2020-01-01") + np.arange(days)
    table = {}
    market = random.standard_normal(days)
    for number in range(STOCKS):
        close = 50 * np.exp(np.cumsum(0.01 * (market + random.standard_normal(days))))
        prices = np.stack([close, 1.01 * close, 0.99 * close, close], 1)
        table[f"{number:03d}"] = dataset.Stock(
            dates, prices, close, random.integers(1000, 9000, days) + 0.0
        )
    return table


def python_loop(returns: Tensor, count: int, overlap: int) -> Tensor:
    """What `dataset.correlated` gives, day by day and stock by stock."""
    neighbors = np.full((*returns.shape[::2], count), -1)
    np.seterr(invalid="ignore")  # 0 / 0 of a day that fills up the last batch
    for day, window in enumerate(returns.cpu().numpy().astype(np.float64)):
        window = window[~np.isnan(window).any(1)]
        if len(window) < overlap:
            continue
        window = window - window.mean(0)
        sizes = np.sqrt((window**2).sum(0))
        for stock in range(window.shape[1]):
            strength = np.abs(window[:, stock] @ window) / (sizes[stock] * sizes)
            strength[stock] = -1
            neighbors[day, stock] = np.argsort(-strength)[:count]
    return torch.from_numpy(neighbors).to(returns.device)


def write(folder: Path, days: int = DAYS, batches: int = 3) -> None:
    """A store with graphs: the last batches of days are the validation split, as many before them
    train."""
    dataset = module("dataset")
    table = stocks(days)
    plan = dataset.Plan(neighbors=NEIGHBORS)
    with module("engine.loading.store").StoreWriter(folder, "graph") as writer:
        arrays = dataset.panel(writer, table, plan)
        count = len(arrays["dates"]) - 1
        # Late days, so that each graph has all of its past.
        borders = [count - 2 * batches * BATCH, count - batches * BATCH, count, count]
        names = ("train", "validation", "test")
        writer.splits = {name: borders[place : place + 2] for place, name in enumerate(names)}
        writer.facts = dataset.describe(arrays, list(table), plan, slice(*writer.splits["train"]))


def stepping(project: Any) -> Any:
    """A function that trains one batch, as `train.py` does."""
    mean_and_clip = module("engine.compute.precision").mean_and_clip

    def step(batch: Any) -> None:
        with project.precision.autocast():
            output = project.wrapped(batch)
        (output.loss * output.total_weight).backward()
        mean_and_clip(project.optimizer, output.total_weight.clamp(min=1), 1.0)
        project.optimizer.step()
        project.optimizer.zero_grad()

    return step


Times = dict[str, dict[str, list[float]]]  # seconds of batches, by table row and by pass


def ready(store: Any, title: str, rebuilt: bool) -> tuple[Any, Any, Any]:
    """Loader, step and model of a row of the table."""
    overrides = MODEL | {
        "data.path": str(store.folder),
        "data.batch_size": str(BATCH),
        "data.num_workers": "0",
        "graph_builder.use_in_training": "true" if rebuilt else "false",
    }
    settings = module("settings").Settings.load(overrides=overrides.items())
    distributed = module("engine.compute.distributed").Distributed()
    project = module("assemble").assemble(settings, distributed, store)
    loader = project.loader("train", train=True)
    if title == "none":
        forget(loader.samples)
    return loader, stepping(project), project.model


def time_graphs(store: Any, rounds: int) -> Times:
    dataset = module("dataset")
    vectorised = dataset.correlated
    builders = {
        "none": None,
        "cached": None,
        "rebuilt, vectorised": vectorised,
        "rebuilt, Python loop over stocks": python_loop,
    }
    sides = {title: ready(store, title, bool(builder)) for title, builder in builders.items()}
    times: Times = {title: defaultdict(list) for title in builders}
    for number in range(-1, rounds):  # the first one warms up
        for title, builder in builders.items():
            dataset.correlated = builder
            loader, step, model = sides[title]
            passes = times[title] if number >= 0 else defaultdict(list)
            passes["loading"] += seconds_of(loader, lambda batch: None)
            if title == "none":
                continue
            passes["training"] += seconds_of(loader, step)
            with torch.no_grad():
                passes["validation"] += seconds_of(loader, model.eval())
            model.train()
    dataset.correlated = vectorised
    return times


def graphs(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        times = time_graphs(module("engine.loading.store").Store.open(folder), rounds)
    medians = {}
    for title, passes in times.items():
        medians[title] = {name: statistics.median(seconds) for name, seconds in passes.items()}
    without = medians.pop("none")["loading"]
    rows = []
    for title, seconds in medians.items():
        cost = seconds["loading"] - without
        cells = [title]
        for name in ("training", "validation"):
            cells += [f"{seconds[name]:.3f}", f"{BATCH / seconds[name]:,.0f}"]
        rows.append([*cells, f"{1e3 * cost:.1f}", f"{cost / seconds['training']:.1%}"])
    columns = ["graphs", "training s/it", "samples/s", "validation s/it", "samples/s"]
    return {"columns": [*columns, "graph ms", "of the step"], "rows": rows}


def forget(samples: Any) -> None:
    """Samples without a graph: what reading and joining one costs is the difference."""
    spans = samples.spans
    samples.spans = lambda *arguments: {
        k: v for k, v in spans(*arguments).items() if k != "neighbors"
    }
    samples.batch = lambda rows: {
        "features": rows["features"].values,
        "target": rows["target"].values[:, :, 0],
        "listed": rows["stock"].lengths > 0,
    }


def seconds_of(loader: Any, work: Callable[[Any], Any]) -> list[float]:
    """Seconds of each batch of an epoch and of `work` on it; on a CPU those of this process."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    times = []
    start = clock()
    for batch in loader.epoch(0):
        work(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(clock() - start)
        start = clock()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "part", nargs="?", choices=["attention", "memory", "graphs"], help="(default: all)"
    )
    parser.add_argument("--rounds", type=int, default=60, help="pairs of calls (default: 60)")
    parser.add_argument(
        "--passes", type=int, default=4, help="over three batches with each row (default: 4)"
    )
    arguments = command_line(parser, rounds=1, passes=1)
    if arguments.rehearse:
        shrink()
    torch.set_num_threads(1)
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()}, 1 thread"
    )
    protocol = machine("torch_geometric", device=device)
    parts = {
        "attention": lambda: attention(arguments.rounds),
        "memory": lambda: memory("fork" if arguments.rehearse else "spawn"),
        "graphs": lambda: graphs(arguments.passes),
    }
    for name, part in parts.items():
        if arguments.part in (None, name):
            publish("graph", name, protocol, part(), arguments=arguments)


if __name__ == "__main__":
    main()
