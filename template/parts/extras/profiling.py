"""What `profile` measures: layers, operations, and waiting.

An operation belongs to the innermost module whose forward it ran in. Backward has no modules: an
operation there belongs to the forward operation to which autograd gave the same number.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from ..engine.report import show, table
from ..engine.runs import device_line
from .steps import Steps

RANGE = "layer: "
BACKWARD = "autograd::engine::evaluate_function: "
NO_OPERATION = (RANGE, "Optimizer.", "[memory]", "ProfilerStep", "enumerate(")
WARMUP = 3  # steps before the clock starts
TRACED = 3  # steps under the profiler
# Fractions above which a step is bound by its input, by launches, by products.
INPUT = 0.10
IDLE = 0.40
PRODUCTS = 0.50
# Where the work is arithmetic; all other operations mostly move bytes.
ARITHMETIC = re.compile(
    r"mm$|matmul|linear|conv|attention|lstm|gru|rnn|bmm|flash|gemm", re.IGNORECASE
)
TUNE = "The extra `tune` measures other settings, and keeps those that are faster."

Shares = dict[str, float]


class Profile(NamedTuple):
    """What was measured; times are of a step."""

    device: torch.device
    seconds: float
    split: Shares
    products: float  # the fraction of the computing that is arithmetic
    layers: list[Layer]
    operations: list[tuple[str, float, float]]  # name, milliseconds, calls

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


def measure(step: Steps, folder: Path, number: int) -> Profile:
    """Time `number` steps, then trace some; write trace.json.gz and memory.pickle."""
    device = step.project.device
    cuda = device.type == "cuda"
    bar = tqdm(total=WARMUP + number + TRACED, unit="step")

    def run(count: int) -> float:
        """Return the seconds of a step, as a mean over so many."""
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            step()
            bar.update()
        synchronize(device)
        return (time.perf_counter() - start) / count

    run(WARMUP)
    step.waited = 0.0
    seconds = run(number)
    waited = step.waited / number
    if cuda:
        torch.cuda.memory._record_memory_history(max_entries=200_000)
    with tracing(step.project.model, cuda) as traced:
        traced_seconds = run(TRACED)
    if cuda:  # for pytorch.org/memory_viz
        torch.cuda.memory._dump_snapshot(str(folder / "memory.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)
    bar.close()

    traced.export_chrome_trace(str(folder / "trace.json.gz"))
    events = [event for event in traced.events() if event.device_type.name == "CPU"]
    events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
    operations = by_operation(events, cuda)
    busy = sum(ms for _, ms, _ in operations) or 1e-9
    products = sum(ms for name, ms, _ in operations if ARITHMETIC.search(name))
    return Profile(
        device=device,
        seconds=seconds,
        split=shares(seconds, waited, busy / 1000, traced_seconds, cuda),
        products=products / busy,
        layers=attribute(events, cuda),
        operations=operations,
    )


@contextmanager
def tracing(model: torch.nn.Module, cuda: bool) -> Iterator[Any]:
    """While open: torch.profiler, with a range for each layer."""
    activities = [ProfilerActivity.CPU]
    if cuda:
        activities.append(ProfilerActivity.CUDA)
    with layers(model), profile(activities=activities, profile_memory=True) as traced:
        yield traced


def page(profiled: Profile, shown: int) -> str:
    """Return profile.md. shown: layers and operations in a table."""
    kind, why = verdict(profiled.split, profiled.products, profiled.cuda)
    name = kind
    if kind == "launch" and not profiled.cuda:
        name = "Python"
    last = "kernels" if profiled.cuda else "operations"
    columns = ("layer", "forward ms", "backward ms", "kept MB", "share", last)
    busy = sum(ms for _, ms, _ in profiled.operations) or 1e-9
    calls = []
    for operation, ms, count in profiled.operations[:shown]:
        calls.append((operation, f"{ms:.3f}", f"{ms / busy:.1%}", round(count)))
    parts = [
        [f"# Profile: {name}-bound"],
        [f"{why}."],
        [TUNE],
        [times_line(profiled)],
        table("Layers", columns, [layer.cells() for layer in profiled.layers[:shown]]),
        table("Operations", ("", "ms", "share", "calls"), calls),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def times_line(profiled: Profile) -> str:
    """Return the device and the time of a step with its parts.

    A CPU has no queue of work that could be empty.
    """
    names = {"data": "data", "compute": "compute", "idle": "idle"}
    meaning = ""
    if not profiled.cuda:
        names["idle"] = "Python"
        meaning = (
            " Python is what passes between operations, in Python and PyTorch itself. "
            "It is an estimate from steps under the profiler, which slows Python down: "
            "without it there is rather less."
        )
    parts = [f"{names[name]} {fraction:.0%}" for name, fraction in profiled.split.items()]
    step = f"{show(1000 * profiled.seconds, 4)} ms/step: {', '.join(parts)}"
    return f"{device_line(profiled.device)}; {step}.{meaning}"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def layers(model: torch.nn.Module) -> Iterator[None]:
    """While open: every module's forward is a range of the trace. A compiled block is one range."""
    inside: set[int] = set()  # modules of compiled blocks
    before: list[tuple[torch.nn.Module, str, Any]] = []
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        attribute = "forward"
        if module._compiled_call_impl is not None:
            # Ranges of its parts would become part of the graph.
            inside |= {id(inner) for inner in module.modules()}
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


class Layer(NamedTuple):
    """All modules of one name, in a step.

    kept_bytes: what forward leaves in memory. kernels: on a CPU operations.
    """

    name: str
    modules: int
    share: float
    forward_ms: float
    backward_ms: float
    kept_bytes: float
    kernels: float

    def cells(self) -> tuple:
        """Return the cells of its row in the table."""
        name = self.name
        if self.modules > 1:
            name += f" ({self.modules} modules)"
        return (
            name,
            f"{self.forward_ms:.3f}",
            f"{self.backward_ms:.3f}",
            f"{self.kept_bytes / 2**20:,.2f}",
            f"{self.share:.1%}",
            round(self.kernels),
        )


def attribute(events: list[Any], cuda: bool) -> list[Layer]:
    """Return a row for each kind of module (`layers.*.hidden`), and for what belongs to none.

    Shares sum to 1.
    """
    # Milliseconds of forward and of backward, bytes, kernels.
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    modules: dict[str, set[str]] = defaultdict(set)
    for event, module, in_backward in with_modules(events):
        kind = re.sub(r"\.\d+(?=\.|$)", ".*", module) or "(outside)"
        modules[kind].add(module)
        sums[kind][in_backward] += own_time(event, cuda) / 1000 / TRACED
        if not in_backward:
            kept = event.self_device_memory_usage if cuda else event.self_cpu_memory_usage
            sums[kind][2] += kept / TRACED
        kernels = len(event.kernels) if cuda else not event.cpu_children
        sums[kind][3] += kernels / TRACED
    total = sum(forward + backward for forward, backward, _, _ in sums.values()) or 1.0
    rows = []
    for kind, columns in sums.items():
        share = (columns[0] + columns[1]) / total
        rows.append(Layer(kind, len(modules[kind]), share, *columns))
    return sorted(rows, key=lambda row: -row.share)


def with_modules(events: list[Any]) -> Iterator[tuple[Any, str, bool]]:
    """Yield each event with its module and whether it is in backward.

    events: parents before their children, forward before backward.
    """
    owner: dict[int, tuple[str, bool]] = {}  # by the event's id
    numbered: dict[int, str] = {}  # module by autograd's number
    for event in events:
        module, in_backward = owner.get(id(event.cpu_parent), ("", False))
        if event.name.startswith(RANGE):
            module = event.name.removeprefix(RANGE)  # recomputed, it stays in backward
        elif event.name.startswith(BACKWARD):
            module = numbered.get(event.sequence_nr, "(gradients)")
            in_backward = True
        elif event.name.startswith("Optimizer."):
            module = "(optimizer)"
        elif event.sequence_nr >= 0 and module and not in_backward:
            # The last operation of a number is the one that took it.
            numbered[event.sequence_nr] = module
        owner[id(event)] = (module, in_backward)
        yield event, module, in_backward


def own_time(event: Any, cuda: bool) -> float:
    """Return microseconds of an event without those in it: of its kernels on a GPU."""
    return event.self_device_time_total if cuda else event.self_cpu_time_total


def by_operation(events: list[Any], cuda: bool) -> list[tuple[str, float, float]]:
    """Return (operation, milliseconds, calls) of a step, the longest first."""
    milliseconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        if not event.name.startswith(NO_OPERATION):
            milliseconds[event.name] += own_time(event, cuda) / 1000 / TRACED
            calls[event.name] += 1
    return [(name, ms, calls[name] / TRACED) for name, ms in milliseconds.most_common()]


def shares(seconds: float, waited: float, busy: float, traced: float, cuda: bool) -> Shares:
    """Return the fractions of a step without the profiler.

    They are waiting for data, computing, and idle: Python and launches. On a GPU kernels take as
    long under the profiler as without it. On a CPU everything takes longer there, so that only the
    fraction of the operations counts.
    """
    data = waited / seconds
    compute = busy / seconds if cuda else busy / traced * (1 - data)
    compute = min(compute, 1 - data)
    return {"data": data, "compute": compute, "idle": 1 - data - compute}


def verdict(split: Shares, products: float, cuda: bool) -> tuple[str, str]:
    """Return what bounds a step (input, launch, memory or compute), and how one sees that.

    products: the fraction of the computing that is arithmetic.
    """
    if split["data"] > INPUT:
        return "input", f"{split['data']:.0%} of a step waits for data"
    if split["idle"] > IDLE:
        why = "passes between operations, in Python"
        if cuda:
            why = "the GPU has nothing to do: Python is late with the next"
        return "launch", f"{split['idle']:.0%} of a step {why}"
    if products < PRODUCTS:
        moved = f"{1 - products:.0%} of the computing moves data"
        return "memory", f"{moved}, {products:.0%} is arithmetic"
    return "compute", f"{products:.0%} of the computing is arithmetic"
