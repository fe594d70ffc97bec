"""`profile`: what belongs to which layer, what bounds a step, and runs for every workload and framework."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import time
from collections import Counter
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
from torch.utils.data import get_worker_info
from variants import choices, name, pairwise


def render(**answers: Any) -> Path:
    """With the extras that are tested here."""
    return rendering.render(**{"extras": ["profile"]} | answers)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


def profiled(
    folder: Path, before: Callable[[], None] | None = None, *words: str, **answers: str
) -> str:
    """profile.md of a short profile."""
    project = render(**answers)
    flags = (*TINY[answers["workload"]], "--steps", "3", *(words or ("--no-advice",)))
    done = run(project, "profile", *flags, cwd=folder / answers["workload"], before=before)
    assert done.code == 0, done.err[-3000:]
    page = (folder / answers["workload"] / "trace/profile.md").read_text()
    assert page in done.out
    return page


@pytest.mark.parametrize("answers", pairwise("workload", "framework"), ids=name)
@pytest.mark.cover(1, "framework")
def test_every_workload_has_its_layers(answers: dict[str, str], place: Path) -> None:
    page = profiled(place, **answers)
    assert re.match(r"# Profile: (input|Python|memory|compute)-bound\n", page)
    assert "Try" not in page, "nothing is advised without a measurement"
    shares = [
        float(share)
        for share in re.findall(r"(?:data|compute|Python) (\d+)%", page.splitlines()[4])
    ]
    assert len(shares) == 3
    assert 98 <= sum(shares) <= 102
    table = page.partition("## Layers")[2].partition("##")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]
    ]
    kinds = {row[0].partition(" ")[0]: row for row in rows}
    assert "(optimizer)" in kinds
    assert any(float(row[1]) > 0 and float(row[2]) > 0 for row in rows if row[0][0] != "(")
    calls = [
        int(count) for count in re.findall(r"(\d+) \|$", page.partition("## Operations")[2], re.M)
    ]
    assert sum(int(row[5]) for row in rows) > 0.75 * sum(
        calls
    )  # the rest is of layers that are not shown
    trace = json.loads(
        gzip.decompress((place / answers["workload"] / "trace/trace.json.gz").read_bytes())
    )
    ranges = {
        event["name"]
        for event in trace["traceEvents"]
        if str(event.get("name")).startswith("layer: ")
    }
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
    done = run(project, "profile", "--steps", "3", "--no-advice", cwd=folder, before=as_on_a_gpu)
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
    events = sorted(
        found.events(), key=lambda event: (event.time_range.start, -event.time_range.end)
    )
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
        return SimpleNamespace(
            name=name, sequence_nr=number, cpu_parent=parent, cpu_children=[], **times
        )

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
        *(
            event(f"{profiling.BACKWARD}AccumulateGrad", 128),
            event("Optimizer.step#AdamW.step", 256),
        ),
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


@pytest.mark.parametrize(
    ("split", "products", "cuda", "kind", "why"),
    [
        ((0.5, 0.4, 0.1), 0.9, True, "input", "50% of a step waits for data"),
        ((0.0, 0.3, 0.7), 0.9, True, "launch", "70% of a step the GPU has nothing to do"),
        (
            (0.0, 0.3, 0.7),
            0.9,
            False,
            "launch",
            "70% of a step passes between operations, in Python",
        ),
        (
            (0.0, 0.9, 0.1),
            0.2,
            True,
            "memory",
            "80% of the computing moves data, 20% is arithmetic",
        ),
        ((0.05, 0.9, 0.05), 0.8, True, "compute", "80% of the computing is arithmetic"),
    ],
)
def test_verdicts(
    split: tuple[float, ...], products: float, cuda: bool, kind: str, why: str
) -> None:
    verdict = imported(render(workload="tabular"), "measure.profiling").verdict
    found = verdict(dict(zip(("data", "compute", "idle"), split, strict=True)), products, cuda)
    assert found[0] == kind
    assert found[1].startswith(why)


def test_a_cpu_has_no_idle_time_and_its_page_says_what_is_there_instead() -> None:
    profiling = imported(render(workload="tabular"), "measure.profiling")
    split = {"data": 0.1, "compute": 0.3, "idle": 0.6}
    nothing = Counter[str]()
    profile = profiling.Profile(torch.device("cpu"), 0.01, split, 0.9, [], [], nothing, nothing)
    page = profiling.page(profile, [], 5)
    assert page.startswith("# Profile: Python-bound\n")
    assert "data 10%, compute 30%, Python 60%." in page
    assert "Python is what passes between operations" in page
    assert "idle" not in page


# ---- advice --------------------------------------------------------------------------------------


def settings(**data: Any) -> Any:
    training = SimpleNamespace(
        precision=data.pop("precision", "auto"),
        gradient_accumulation_steps=data.pop("groups", 1),
        gradient_checkpointing=False,
    )
    compiles = SimpleNamespace(enabled=data.pop("compiled", "auto"))
    data = {"batch_size": 8, "chunk_size_gb": "auto", "resident": "auto"} | data
    return SimpleNamespace(data=SimpleNamespace(**data), training=training, compile=compiles)


def loader(*without: str, workers: int = 2, count: int = 1000) -> Any:
    return SimpleNamespace(
        WITHOUT_EFFECT=without, workers=workers, order=SimpleNamespace(count=count)
    )


def flags(
    kind: str, products: float, given: Any, reader: Any, capability: Any = (9, 0)
) -> list[str]:
    """The candidates, as one would type them."""
    module = imported(render(workload="tabular"), "measure.advice")
    found = module.candidates(kind, products, given, reader, capability)
    return [candidate.flag.strip("`").removeprefix("--") for candidate in found]


def test_what_may_help_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported(render(workload="tabular"), "measure.advice"), "cores", lambda: 4)
    workers = ["data.num_workers 0", "data.num_workers 1", "data.num_workers 4"]
    assert flags("input", 0.9, settings(), loader()) == workers
    chunks = loader("num_workers")
    assert flags("input", 0.9, settings(chunk_size_gb=2.0), chunks) == ["data.chunk_size_gb 4.0"]
    assert flags("input", 0.9, settings(), chunks) == []
    batch = "data.batch_size 16"
    assert flags("launch", 0.9, settings(), loader()) == [batch, "compile.mode reduce-overhead"]
    assert flags("launch", 0.9, settings(groups=2), loader()) == [batch]
    assert flags("launch", 0.9, settings(compiled=False), loader(count=15)) == [
        "compile.enabled true"
    ]
    assert flags("memory", 0.2, settings(precision="fp32"), loader()) == ["training.precision auto"]
    assert flags("memory", 0.2, settings(compiled=False), loader()) == ["compile.enabled true"]
    assert flags("compute", 0.8, settings(precision="tf32"), loader()) == [
        "training.precision auto"
    ]
    assert flags("compute", 0.8, settings(precision="bf16"), loader()) == []


def test_a_cpu_tries_no_compiler_and_no_other_precision() -> None:
    for kind, products in (("memory", 0.2), ("compute", 0.8)):
        assert flags(kind, products, settings(precision="fp32"), loader(), None) == []
    assert flags("launch", 0.9, settings(), loader(), None) == ["data.batch_size 16"]


@pytest.mark.parametrize("present", [0, 1, 2, 3, 8, 16])
@pytest.mark.parametrize("cores", [1, 2, 4, 16])
def test_never_more_workers_than_cores(present: int, cores: int) -> None:
    numbers = imported(render(workload="tabular"), "measure.advice").worker_numbers(present, cores)
    assert present not in numbers
    assert max(numbers, default=0) <= cores
    assert (min(numbers, default=0) < present) == (present > 0), "fewer may be faster, too"
    assert (max(numbers, default=0) > present) == (2 * present <= cores)


def tried(
    monkeypatch: pytest.MonkeyPatch, rates: dict[int, list[Any]]
) -> tuple[list[str], list[int]]:
    """What is said of numbers of workers with these samples per second in three turns; how they were asked.

    rates: of 2 workers, which are the present ones, too. An error is raised.
    """
    module = imported(render(workload="tabular"), "measure.advice")
    turns = {number: iter(found) for number, found in rates.items()}
    asked = []

    def samples_per_second(given: Any) -> float:
        asked.append(given.data.num_workers)
        found = next(turns[given.data.num_workers])
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(module, "samples_per_second", samples_per_second)
    given = imported(render(workload="tabular"), "config").load(
        overrides=[("data.num_workers", "2")]
    )
    found = [module.Candidate("data.num_workers", number) for number in rates if number != 2]
    return module.advice(module.try_candidates(given, found), "input", loader()), asked


def test_advice_is_what_was_faster_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {2: [100, 90, 110], 0: [200, 190, 180], 1: [150, 105, 150], 4: [48, 45, 50]}
    lines, asked = tried(monkeypatch, rates)
    assert asked == [2, 0, 1, 4] * 3, "in turns"
    assert lines == [
        "Try `--data.num_workers 0`: 2.00× as fast (1.64-2.11) in 3 turns here.",
        "Measured, and no faster beyond the noise: `--data.num_workers 1` 1.36× as fast (1.17-1.50), "
        "`--data.num_workers 4` 0.48× as fast (0.45-0.50).",
    ]


def test_a_gain_too_small_to_matter_is_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = tried(monkeypatch, {2: [100.0, 100.1, 100.2], 4: [102.0, 102.0, 102.0]})
    assert lines == [
        "Measured, and no faster beyond the noise: `--data.num_workers 4` 1.02× as fast (1.02-1.02)."
    ]


def test_what_cannot_be_measured_is_named_and_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    full = RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")
    lines, asked = tried(monkeypatch, {2: [100, 100, 100], 4: [full]})
    assert lines == ["Could not be measured: `--data.num_workers 4`: too little memory."]
    assert asked.count(4) == 1, "it is not tried again"
    with pytest.raises(KeyError):  # an error of the code itself is no matter of a setting
        tried(monkeypatch, {2: [100], 4: [KeyError("features")]})


def test_without_a_setting_to_try_nothing_is_measured_and_nothing_advised() -> None:
    module = imported(render(workload="tabular"), "measure.advice")
    assert module.try_candidates(None, []) == []
    assert module.advice([], "compute", loader()) == ["There is no setting to try."]
    said = " ".join(module.advice([], "input", loader("num_workers")))
    assert "`dataloader`" in said
    assert "neither was measured" in said


def test_samples_per_second_of_a_turn_count_real_samples_and_no_first_steps() -> None:
    """By a clock that steps move: the first four take four times as long. 100 samples are in 4 batches."""
    module = imported(render(workload="tabular"), "measure.advice")
    now = [0.0]
    taken = [0]

    class Step:
        project = SimpleNamespace(
            settings=SimpleNamespace(
                training=SimpleNamespace(gradient_accumulation_steps=2),
                data=SimpleNamespace(prefetch_factor=2),
            ),
            device=torch.device("cpu"),
        )

        class loader:
            workers, order = 1, SimpleNamespace(count=100)

            def __len__(self) -> int:
                return 4

        def __call__(self) -> None:
            taken[0] += 1
            now[0] += 0.5 if taken[0] <= 4 else 0.125

    step = Step()
    step.loader = Step.loader()
    assert module.timed(step, lambda: now[0]) == 50 / 0.125
    assert taken[0] > 4 + 3


@pytest.mark.parametrize(
    "together", [True, False], ids=["workers read together", "workers are in each other's way"]
)
def test_the_advice_of_a_real_profile_is_measured(together: bool, tmp_path: Path) -> None:
    """Four workers read four batches at once, or take twice as long as one for all that they read."""

    def slow() -> None:
        advice = importlib.import_module(f"{PACKAGE}.measure.advice")
        advice.TURNS, advice.TURN_SECONDS = 1, 0.3
        advice.worker_numbers = lambda present, available: [4]
        reader = importlib.import_module(f"{PACKAGE}.engine.loader").Reader
        read = reader.__getitem__

        def waiting(self: Any, work: Any) -> Any:
            worker = get_worker_info()
            several = worker is not None and worker.num_workers > 1
            time.sleep(1.6 if several and not together else 0.2)
            return read(self, work)

        reader.__getitem__ = waiting

    page = profiled(tmp_path, slow, "--data.num_workers", "1", workload="tabular")
    assert page.startswith("# Profile: input-bound\n")
    advised = re.findall(r"Try `--data.num_workers (\d)`", page)
    assert ("4" in advised) == together, page[:800]
    assert (
        bool(re.search(r"no faster beyond the noise: .*`--data.num_workers 4` 0\.", page))
        != together
    )


def test_shares_of_a_step() -> None:
    shares = imported(render(workload="tabular"), "measure.profiling").shares
    gpu = shares(seconds=0.1, waited=0.02, busy=0.05, traced=0.4, cuda=True)
    assert gpu == pytest.approx({"data": 0.2, "compute": 0.5, "idle": 0.3})
    cpu = shares(seconds=0.1, waited=0.02, busy=0.2, traced=0.4, cuda=False)
    assert cpu == pytest.approx({"data": 0.2, "compute": 0.4, "idle": 0.4})
    full = shares(seconds=0.1, waited=0.02, busy=0.2, traced=0.4, cuda=True)  # two streams at once
    assert full == pytest.approx({"data": 0.2, "compute": 0.8, "idle": 0.0})
