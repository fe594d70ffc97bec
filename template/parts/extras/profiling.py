"""What the verb `profile` measures: layers, operations, idle time, waits for the device, recompilations.

An operation belongs to the innermost module whose forward it ran in. Backward has no modules: an operation
there belongs to the forward operation that autograd numbered alike.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from ..engine.report import show, table
from ..engine.runs import device_line
from .steps import Steps

Shares = dict[str, float]

SOURCE = Path(__file__).absolute().parents[1]
RANGE, BACKWARD = "layer: ", "autograd::engine::evaluate_function: "
WARMUP, TRACED = 3, 3  # steps before the clock starts, steps under the profiler
# Shares from which on a step is bound by its input, by launches, by products.
INPUT, IDLE, PRODUCTS = 0.10, 0.40, 0.50
# Where the work is arithmetic; all other operations mostly move bytes.
ARITHMETIC = re.compile(
    r"mm$|matmul|linear|conv|attention|lstm|gru|rnn|bmm|flash|gemm", re.IGNORECASE
)
SYNCS = {  # operations whose result the host waits for
    *(
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::masked_select",
        "aten::equal",
        "aten::_unique2",
    ),
    *("aten::unique_dim", "aten::unique_consecutive", "aten::is_nonzero"),
}


class Profile(NamedTuple):
    """What was measured; times are of a step."""

    device: torch.device
    seconds: float
    split: Shares
    products: float  # the fraction of the computing that is arithmetic
    layers: list[Layer]
    operations: list[tuple[str, float, float]]  # name, milliseconds, calls
    waits: Counter[str]
    recompiled: Counter[str]

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


def measure(step: Steps, folder: Path, number: int) -> Profile:
    """Times `number` steps, then traces some; writes trace.json.gz and memory.pickle into the folder."""
    device = step.project.device
    cuda = device.type == "cuda"

    def run(count: int) -> float:
        """Seconds of so many optimizer steps."""
        synchronize(device)
        begun = time.perf_counter()
        for _ in range(count):
            step()
            bar.update()
        synchronize(device)
        return time.perf_counter() - begun

    with (
        Recompilations() as recompiled,
        tqdm(total=WARMUP + number + 1 + TRACED, unit="step") as bar,
    ):
        run(WARMUP)
        step.waited = 0.0
        seconds, waited = run(number) / number, step.waited / number
        with torch.compiler.set_stance("force_eager"), Syncs() as syncs:
            run(1)
        with (
            memory_history(folder / "memory.pickle", cuda),
            tracing(step.project.model, cuda) as found,
        ):
            traced = run(TRACED) / TRACED
    found.export_chrome_trace(str(folder / "trace.json.gz"))
    events = [event for event in found.events() if event.device_type.name == "CPU"]
    events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
    operations = by_operation(events, cuda)
    busy = sum(ms for _, ms, _ in operations) or 1e-9
    return Profile(
        device=device,
        seconds=seconds,
        split=shares(seconds, waited, busy / 1000, traced, cuda),
        products=sum(ms for name, ms, _ in operations if ARITHMETIC.search(name)) / busy,
        layers=attribute(events, cuda),
        operations=operations,
        waits=syncs.places,
        recompiled=recompiled.places,
    )


@contextmanager
def memory_history(path: Path, cuda: bool) -> Iterator[None]:
    """While open: a GPU's memory is recorded, for pytorch.org/memory_viz."""
    if not cuda:
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=200_000)
    yield
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)


@contextmanager
def tracing(model: torch.nn.Module, cuda: bool) -> Iterator[Any]:
    """While open: torch.profiler, with a range for each layer."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with layers(model), profile(activities=activities, profile_memory=True) as found:
        yield found


def page(profiled: Profile, advice: Sequence[str], shown: int) -> str:
    """profile.md. advice: paragraphs. shown: layers and operations in a table."""
    cuda = profiled.cuda
    kind, why = verdict(profiled.split, profiled.products, cuda)
    name = "Python" if kind == "launch" and not cuda else kind
    busy = sum(ms for _, ms, _ in profiled.operations) or 1e-9
    columns = (
        "layer",
        "forward ms",
        "backward ms",
        "kept MB",
        "share",
        "kernels" if cuda else "operations",
    )
    calls = []
    for operation, ms, often in profiled.operations[:shown]:
        calls.append((operation, f"{ms:.3f}", f"{ms / busy:.1%}", round(often)))
    parts = [
        [f"# Profile: {name}-bound"],
        [f"{why}."],
        *([line] for line in advice),
        [times_line(profiled)],
        table("Layers", columns, [layer.cells() for layer in profiled.layers[:shown]]),
        table("Operations", ("", "ms", "share", "calls"), calls),
        table(
            "Where the host waits for the device",
            ("", "times a step"),
            profiled.waits.most_common(shown),
        ),
        table("Compiled again", ("", "times"), profiled.recompiled.most_common(shown)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def times_line(profiled: Profile) -> str:
    """The device, the time of a step, and its parts; a CPU has no queue of work that could be empty."""
    split = profiled.split
    names = {"data": "data", "compute": "compute", "idle": "idle"}
    meaning = ""
    if not profiled.cuda:
        names["idle"] = "Python"
        meaning = (
            " Python is what passes between operations, in Python and PyTorch itself. It is an estimate from "
            "steps under the profiler, which slows Python down: without it there is rather less."
        )
    parts = ", ".join(f"{names[name]} {fraction:.0%}" for name, fraction in split.items())
    return f"{device_line(profiled.device)}; {show(1000 * profiled.seconds, 4)} ms/step: {parts}.{meaning}"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def layers(model: torch.nn.Module) -> Iterator[None]:
    """While open: every module's forward is a range of the trace. A compiled block is one range."""
    inside: set[int] = set()
    before: list[tuple[torch.nn.Module, str, Any]] = []
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        attribute = "forward"
        if (
            module._compiled_call_impl is not None
        ):  # ranges of its parts would become part of the graph
            inside |= {id(part) for part in module.modules()}
            attribute = "_compiled_call_impl"
        before.append((module, attribute, vars(module).get(attribute)))
        label = RANGE + (name or type(module).__name__)
        setattr(module, attribute, record_function(label)(getattr(module, attribute)))
    yield
    for module, attribute, function in before:
        if function is None:  # it was the class's
            delattr(module, attribute)
        else:
            setattr(module, attribute, function)


class Syncs(TorchDispatchMode):
    """While open: counts the lines of this project at which the host waits, or would wait, for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function._schema.name
        moves = (
            name == "aten::_to_copy"
            and args[0].is_cuda
            and str((kwargs or {}).get("device")) == "cpu"
        )
        places = (
            args[1] if name.startswith("aten::index") and isinstance(args[1], list | tuple) else ()
        )
        picks = any(getattr(place, "dtype", None) == torch.bool for place in places)
        if name in SYNCS or moves or picks:
            frames = [
                f for f in traceback.extract_stack() if Path(f.filename).is_relative_to(SOURCE)
            ]
            own = [f for f in frames if not f.filename.endswith("profiling.py")][-1:]
            self.places[
                f"{place(own[0].filename, own[0].lineno) if own else 'backward'}: {name[6:]}"
            ] += 1
        return function(*args, **(kwargs or {}))


class Recompilations(logging.Handler):
    """While open: counts which functions are compiled again, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()
        self.logger = logging.getLogger("torch._dynamo.guards.__recompiles")

    def __enter__(self) -> Recompilations:
        torch._logging.set_logs(recompiles=True)
        self.before = (self.logger.handlers, self.logger.propagate)
        self.logger.handlers, self.logger.propagate = [self], False
        return self

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(
            r"Recompiling function (\S+) in (.+):(\d+)\n(.*)", record.getMessage(), re.DOTALL
        )
        if found:
            reason = found[4].strip().splitlines()[-1].strip(" -")
            self.places[f"{place(found[2], found[3])} ({found[1]}): {reason}"] += 1

    def __exit__(self, *error: object) -> None:
        self.logger.handlers, self.logger.propagate = self.before
        torch._logging.set_logs()


def place(file: str, line: Any) -> str:
    """`model.py:71`, below the package where it lies there."""
    path = Path(file)
    return f"{path.relative_to(SOURCE) if path.is_relative_to(SOURCE) else path}:{line}"


class Layer(NamedTuple):
    """Of all modules of one name, a step: milliseconds, bytes that forward leaves, kernels (operations)."""

    name: str
    modules: int
    share: float
    forward_ms: float
    backward_ms: float
    kept_bytes: float
    kernels: float

    def cells(self) -> tuple:
        """Of its row in the table."""
        name = self.name + (f" ({self.modules} modules)" if self.modules > 1 else "")
        times = f"{self.forward_ms:.3f}", f"{self.backward_ms:.3f}"
        return (
            name,
            *times,
            f"{self.kept_bytes / 2**20:,.2f}",
            f"{self.share:.1%}",
            round(self.kernels),
        )


def attribute(events: list[Any], cuda: bool) -> list[Layer]:
    """A row for each kind of module (`layers.*.hidden`), and for what belongs to none; shares sum to 1."""
    owner: dict[
        int, tuple[str, bool]
    ] = {}  # of the event with this id: (module, whether in backward)
    numbered: dict[int, str] = {}  # autograd's number → module
    # Milliseconds of forward and of backward, bytes, kernels.
    figures: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    names: dict[str, set[str]] = defaultdict(set)
    for event in events:  # parents come before their children, forward before backward
        module, backward = owner.get(id(event.cpu_parent), ("", False))
        if event.name.startswith(RANGE):
            module = event.name.removeprefix(RANGE)  # under recomputation it stays in backward
        elif event.name.startswith(BACKWARD):
            module, backward = numbered.get(event.sequence_nr, "(gradients)"), True
        elif event.name.startswith("Optimizer."):
            module = "(optimizer)"
        elif event.sequence_nr >= 0 and module and not backward:
            numbered[event.sequence_nr] = module  # the last one of a number is the one that took it
        owner[id(event)] = (module, backward)
        kind = re.sub(r"\.\d+(?=\.|$)", ".*", module) or "(outside)"
        names[kind].add(module)
        row = figures[kind]
        row[backward] += own_time(event, cuda) / 1000 / TRACED
        if not backward:
            kept = event.self_device_memory_usage if cuda else event.self_cpu_memory_usage
            row[2] += kept / TRACED
        row[3] += (len(event.kernels) if cuda else not event.cpu_children) / TRACED
    total = sum(row[0] + row[1] for row in figures.values()) or 1.0
    rows = (
        Layer(kind, len(names[kind]), (row[0] + row[1]) / total, *row)
        for kind, row in figures.items()
    )
    return sorted(rows, key=lambda row: -row.share)


def own_time(event: Any, cuda: bool) -> float:
    """Microseconds of an event without those in it: of its kernels on a GPU."""
    return event.self_device_time_total if cuda else event.self_cpu_time_total


def by_operation(events: list[Any], cuda: bool) -> list[tuple[str, float, float]]:
    """(operation, milliseconds, calls) a step, without Python between operations; the longest first."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        if not event.name.startswith(
            (RANGE, "Optimizer.", "[memory]", "ProfilerStep", "enumerate(")
        ):
            found[event.name][0] += own_time(event, cuda) / 1000 / TRACED
            found[event.name][1] += 1 / TRACED
    rows = [(name, ms, calls) for name, (ms, calls) in found.items()]
    return sorted(rows, key=lambda row: -row[1])


def shares(seconds: float, waited: float, busy: float, traced: float, cuda: bool) -> Shares:
    """Of a step without the profiler: waiting for data, computing, and idle, that is Python and launches.

    On a GPU kernels take as long under the profiler as without it. On a CPU everything takes longer there, so
    that only the share of the operations counts.
    """
    data = waited / seconds
    compute = busy / seconds if cuda else busy / traced * (1 - data)
    compute = min(compute, 1 - data)
    return {"data": data, "compute": compute, "idle": 1 - data - compute}


def verdict(split: Shares, products: float, cuda: bool) -> tuple[str, str]:
    """What bounds a step (input, launch, memory or compute), and in what one sees that.

    products: the fraction of the computing that is arithmetic.
    """
    if split["data"] > INPUT:
        return "input", f"{split['data']:.0%} of a step waits for data"
    if split["idle"] > IDLE and cuda:
        return (
            "launch",
            f"{split['idle']:.0%} of a step the GPU has nothing to do: Python is late with the next",
        )
    if split["idle"] > IDLE:
        return "launch", f"{split['idle']:.0%} of a step passes between operations, in Python"
    if products < PRODUCTS:
        return (
            "memory",
            f"{1 - products:.0%} of the computing moves data, {products:.0%} is arithmetic",
        )
    return "compute", f"{products:.0%} of the computing is arithmetic"
