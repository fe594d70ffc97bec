"""`profile`: what belongs to which layer, what bounds a step, and runs for every workload and framework."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rendering
import torch
from importing import imported
from running import PACKAGE, run
from test_tier_b import TINY
from torch import nn
from variants import choices, name, pairwise


def render(**answers: Any) -> Path:
    """With the extras that are tested here."""
    return rendering.render(**{"extras": ["profile"]} | answers)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


def profiled(folder: Path, before: Callable[[], None] | None = None, *words: str, **answers: str) -> str:
    """profile.md of a short profile."""
    project = render(**answers)
    flags = (*TINY[answers["workload"]], "--steps", "3", *words)
    done = run(project, "profile", *flags, cwd=folder / answers["workload"], before=before)
    assert done.code == 0, done.err[-3000:]
    page = (folder / answers["workload"] / "trace/profile.md").read_text()
    assert page in done.out
    return page


@pytest.mark.parametrize("answers", pairwise("workload", "framework"), ids=name)
@pytest.mark.cover(1, "framework")
def test_every_workload_has_its_layers(answers: dict[str, str], place: Path) -> None:
    page = profiled(place, **answers)
    assert re.match(r"# Profile: (input|launch|memory|compute)-bound\n", page)
    shares = [float(share) for share in re.findall(r"(?:data|compute|idle) (\d+)%", page.splitlines()[4])]
    assert len(shares) == 3
    assert 98 <= sum(shares) <= 102
    table = page.partition("## Layers")[2].partition("##")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    kinds = {row[0].partition(" ")[0]: row for row in rows}
    assert "(optimizer)" in kinds
    assert any(float(row[1]) > 0 and float(row[2]) > 0 for row in rows if row[0][0] != "(")
    calls = [int(count) for count in re.findall(r"(\d+) \|$", page.partition("## Operations")[2], re.M)]
    assert sum(int(row[5]) for row in rows) > 0.75 * sum(calls)  # the rest is of layers that are not shown
    trace = json.loads(gzip.decompress((place / answers["workload"] / "trace/trace.json.gz").read_bytes()))
    ranges = {event["name"] for event in trace["traceEvents"] if str(event.get("name")).startswith("layer: ")}
    assert len(ranges) > 2


def test_the_chunk_loader_is_measured_as_it_trains(place: Path) -> None:
    """On a GPU it reads batch by batch until it knows what a first step leaves free."""

    def as_on_a_gpu() -> None:
        chunks = importlib.import_module(f"{PACKAGE}.engine.chunks").Chunks
        begin, close = chunks.__init__, chunks.close

        def init(self: Any, *given: Any, **named: Any) -> None:
            begin(self, *given, **named)
            self.dry = True

        def closing(self: Any) -> None:
            Path("stats.json").write_text(json.dumps(self.stats()))
            close(self)

        chunks.__init__, chunks.close = init, closing

    folder = place / "tabular"
    project = render(workload="tabular", loader="chunk")
    assert run(project, "train", "--max-steps", "1", *TINY["tabular"], cwd=folder).code == 0
    done = run(project, "profile", "--steps", "3", cwd=folder, before=as_on_a_gpu)
    assert done.code == 0, done.err
    assert json.loads((folder / "stats.json").read_text())["resident"] == 1


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_a_slow_loader_is_the_bottleneck(workload: str, place: Path) -> None:
    def slow() -> None:
        loader = importlib.import_module(f"{PACKAGE}.engine.loader").Loader
        fast = loader.epoch

        def epoch(self: Any, number: int, start_batch: int = 0) -> Any:
            for batch in fast(self, number, start_batch):
                time.sleep(0.5)
                yield batch

        loader.epoch = epoch

    page = profiled(place, slow, workload=workload)
    assert page.startswith("# Profile: input-bound\n")
    assert "of a step waits for data" in page


def test_a_wait_for_the_device_is_named_by_its_line(place: Path) -> None:
    def wait() -> None:
        model = importlib.import_module(f"{PACKAGE}.model")
        forward = model.Block.forward
        source = compile("def slow(x):\n    return x.sum().item()\n", model.__file__, "exec")
        names: dict[str, Any] = {}
        exec(source, names)
        model.Block.forward = lambda self, x: (names["slow"](x), forward(self, x))[1]

    clean = profiled(place, workload="tabular")
    assert "## Where the host waits" not in clean
    page = profiled(place, wait, workload="tabular")
    assert re.search(r"\| model.py:2: _local_scalar_dense \| 2 \|", page)


def test_recompilations_are_counted_with_the_reason() -> None:
    profiling = imported(render(workload="tabular"), "measure.profiling")

    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    torch._dynamo.reset()
    compiled = torch.compile(double, backend="eager", dynamic=False)
    with profiling.Recompilations() as found:
        for size in (3, 3, 4, 5):
            compiled(torch.ones(size))
    assert sum(found.places.values()) == 2
    assert all("test_profile.py" in text and "(double)" in text for text in found.places)
    assert any("size" in text for text in found.places)
    torch._dynamo.reset()


class Two(nn.Module):
    """A large and a small layer, and arithmetic of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512), nn.Linear(512, 512)])
        self.small = Small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.small(x).sum()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(512, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


def attributed(model: nn.Module) -> dict[str, Any]:
    profiling = imported(render(workload="tabular"), "measure.profiling")
    x = torch.ones(256, 512)
    model(x).backward()
    with profiling.layers(model), torch.profiler.profile(profile_memory=True) as found:
        model(x).backward()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    events = sorted(found.events(), key=lambda event: (event.time_range.start, -event.time_range.end))
    rows = profiling.attribute(events, cuda=False)
    assert sum(row.share for row in rows) == pytest.approx(1)
    return {row.name: row for row in rows}


def test_operations_belong_to_their_layers_forward_and_backward() -> None:
    rows = attributed(Two())
    assert {"layers.*", "small", "small.inner", "Two"} <= set(rows)
    assert rows["layers.*"].modules == 2
    for kind in ("layers.*", "small", "small.inner", "Two"):
        assert rows[kind].forward_ms > 0, kind
        assert rows[kind].backward_ms > 0, kind
    # Each linear layer leaves its output, 256 rows; figures are means over 3 steps, of which here is one.
    assert rows["layers.*"].kept_bytes * 3 == 2 * 256 * 512 * 4
    assert rows["small.inner"].kept_bytes * 3 == 256 * 2 * 4
    assert rows["layers.*"].share == max(row.share for row in rows.values())


def test_backward_belongs_to_the_operation_of_its_number() -> None:
    """Numbers are shared by what does not take them: the last operation of a number did."""
    profiling = imported(render(workload="tabular"), "measure.profiling")

    def event(name: str, ms: float, number: int = -1, parent: Any = None) -> Any:
        times = {"self_cpu_time_total": 1000 * profiling.TRACED * ms, "self_cpu_memory_usage": 0}
        return SimpleNamespace(name=name, sequence_nr=number, cpu_parent=parent, cpu_children=[], **times)

    first, second = event("layer: a.0", 0), event("layer: b", 0)
    backward = [event(f"{profiling.BACKWARD}X", 0, number) for number in (3, 2, 1)]
    events = [
        *(
            first,
            event("aten::t", 1, 1, first),
            event("aten::mm", 2, 2, first),
            event("aten::sum", 4, 3, first),
        ),
        *(second, event("aten::mm", 8, 3, second)),
        *(event("aten::loss", 16, 4), backward[0], event("aten::mm", 32, parent=backward[0])),
        *(backward[1], event("aten::mm", 64, parent=backward[1]), backward[2]),
        *(event(f"{profiling.BACKWARD}AccumulateGrad", 128), event("Optimizer.step#AdamW.step", 256)),
    ]
    rows = {row.name: row for row in profiling.attribute(events, cuda=False)}
    assert (rows["a.*"].forward_ms, rows["a.*"].backward_ms) == (7, 64)
    assert (rows["b"].forward_ms, rows["b"].backward_ms) == (8, 32)
    assert rows["(outside)"].forward_ms == 16
    assert rows["(gradients)"].backward_ms == 128
    assert rows["(optimizer)"].share == 256 / 511


def test_a_compiled_block_is_one_layer() -> None:
    model = Two()
    model.small.compile(backend="eager", fullgraph=True)
    rows = attributed(model)
    assert rows["small"].forward_ms > 0
    assert "small.inner" not in rows
    assert model.small(torch.ones(1, 512)).shape == (1, 2)
    torch._dynamo.reset()


def test_recomputation_belongs_to_backward() -> None:
    optimization = imported(render(workload="tabular"), "engine.optimization")
    plain, model = attributed(Two()), Two()
    optimization.checkpoint_blocks(list(model.layers))
    rows = attributed(model)
    assert rows["layers.*"].kernels > plain["layers.*"].kernels
    assert rows["layers.*"].kept_bytes < 1.02 * plain["layers.*"].kept_bytes  # and the random state


def settings(**data: Any) -> Any:
    training = SimpleNamespace(precision=data.pop("precision", "auto"))
    compiles = SimpleNamespace(enabled=data.pop("compiled", "auto"))
    data = {
        "batch_size": 8,
        "num_workers": 2,
    } | data
    return SimpleNamespace(data=SimpleNamespace(**data), training=training, compile=compiles)


@pytest.mark.parametrize(
    ("split", "products", "given", "without", "name", "remedy"),
    [
        ((0.5, 0.4, 0.1), 0.9, {}, (), "input", "--data.num_workers 4"),
        ((0.5, 0.4, 0.1), 0.9, {"num_workers": "auto"}, (), "input", "--data.num_workers 4"),
        ((0.5, 0.4, 0.1), 0.9, {}, ("num_workers",), "input", "chunk_size_gb"),
        ((0.5, 0.4, 0.1), 0.9, {}, ("num_workers", "chunk_size_gb"), "input", "loader=dataloader"),
        ((0.0, 0.3, 0.7), 0.9, {}, (), "launch", "--data.batch_size 16, or --compile.mode reduce-overhead"),
        ((0.0, 0.3, 0.7), 0.9, {"compiled": False}, (), "launch", "--compile.enabled true"),
        ((0.0, 0.9, 0.1), 0.2, {"precision": "fp32"}, (), "memory", "--training.precision auto"),
        ((0.0, 0.9, 0.1), 0.2, {"compiled": False}, (), "memory", "--compile.enabled true"),
        ((0.05, 0.9, 0.05), 0.8, {"precision": "tf32"}, (), "compute", "--training.precision auto"),
        ((0.05, 0.9, 0.05), 0.8, {"precision": "bf16"}, (), "compute", "faster card"),
    ],
)
def test_verdicts(
    split: tuple[float, ...], products: float, given: dict, without: tuple, name: str, remedy: str
) -> None:
    verdict = imported(render(workload="tabular"), "measure.profiling").verdict
    shares = dict(zip(("data", "compute", "idle"), split, strict=True))
    found = verdict(shares, products, settings(**given), without, (9, 0))
    assert found[0] == f"{name}-bound"
    assert remedy in found[2]


def test_a_cpu_is_not_told_to_compile_nor_a_gpu_that_compiles() -> None:
    verdict = imported(render(workload="tabular"), "measure.profiling").verdict
    shares = {"data": 0.0, "compute": 0.9, "idle": 0.1}
    for products in (0.2, 0.8):
        assert verdict(shares, products, settings(), (), None)[2] == "a smaller model, or a GPU"
    assert verdict(shares, 0.2, settings(), (), (9, 0))[2] == "a smaller model, or a faster card"


def test_shares_of_a_step() -> None:
    shares = imported(render(workload="tabular"), "measure.profiling").shares
    gpu = shares(seconds=0.1, waited=0.02, busy=0.05, traced=0.4, cuda=True)
    assert gpu == pytest.approx({"data": 0.2, "compute": 0.5, "idle": 0.3})
    cpu = shares(seconds=0.1, waited=0.02, busy=0.2, traced=0.4, cuda=False)
    assert cpu == pytest.approx({"data": 0.2, "compute": 0.4, "idle": 0.4})
    full = shares(seconds=0.1, waited=0.02, busy=0.2, traced=0.4, cuda=True)  # two streams at once
    assert full == pytest.approx({"data": 0.2, "compute": 0.8, "idle": 0.0})
