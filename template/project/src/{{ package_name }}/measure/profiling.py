"""The measurements of `profile`: layers, operations, and waits.

In forward, an operation belongs to the innermost module that runs it. In backward, it belongs to
the module of the forward operation with the same sequence number of autograd.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from ..engine.monitoring.report import show, table
from ..engine.training.environment import device_line
from ..optimizer import learning_rate
from ..train import take_step

if TYPE_CHECKING:
    from ..engine.training.run import Run

RANGE = "layer: "
BACKWARD = "autograd::engine::evaluate_function: "
NO_OPERATION = (RANGE, "Optimizer.", "[memory]", "ProfilerStep", "enumerate(")
WARMUP = 3  # steps before the clock starts
TRACED = 3  # steps under the profiler
PRODUCTS = 0.50  # of the compute time: with less arithmetic, a step is bound by memory
# The names of arithmetic operations; all others mostly move bytes.
ARITHMETIC = re.compile(
    r"mm$|matmul|linear|conv|attention|lstm|gru|rnn|bmm|flash|gemm", re.IGNORECASE
)
TUNE = "To find faster settings, use the extra `tune`."

Shares = dict[str, float]


class Profile(NamedTuple):
    """The results; all times are per step."""

    device: torch.device
    seconds: float
    split: Shares
    products: float  # the fraction of the compute time that is arithmetic
    layers: list[Layer]
    operations: list[tuple[str, float, float]]  # name, milliseconds, calls

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


def measure(run: Run, folder: Path, number: int) -> Profile:
    """Time `number` steps, then trace some; write trace.json.gz and memory.pickle."""
    device = run.project.device
    cuda = device.type == "cuda"
    bar = tqdm(total=WARMUP + number + TRACED, unit="step")
    take_steps(run, WARMUP, bar)
    run.meter.restart(run.step)
    seconds = take_steps(run, number, bar)
    waited = run.meter.waited / number
    if cuda:
        torch.cuda.memory._record_memory_history(max_entries=200_000)
    with tracing(run.project.model, cuda) as traced:
        traced_seconds = take_steps(run, TRACED, bar)
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


def take_steps(run: Run, count: int, bar: tqdm) -> float:
    """Take `count` steps; return the mean seconds of one."""
    device = run.project.device
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        rate = learning_rate(run.step, run.num_steps, run.settings)
        run.end_step(take_step(run, rate))
        bar.update()
    synchronize(device)
    return (time.perf_counter() - start) / count


@contextmanager
def tracing(model: torch.nn.Module, cuda: bool) -> Iterator[Any]:
    """While open, run torch.profiler with a range for each layer."""
    activities = [ProfilerActivity.CPU]
    if cuda:
        activities.append(ProfilerActivity.CUDA)
    else:  # hide the profiler's own lines, among them errors, but only those of a GPU matter
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with layers(model), profile(activities=activities, profile_memory=True) as traced:
        yield traced


def page(profiled: Profile, shown: int) -> str:
    """Return the content of profile.md. shown: the maximum number of rows in a table."""
    kind, why = verdict(profiled.split, profiled.products, profiled.cuda)
    name = kind
    if kind == "launch" and not profiled.cuda:
        name = "Python"
    last = "kernels" if profiled.cuda else "operations"
    columns = ("layer", "forward ms", "backward ms", "kept MB", "fraction", last)
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
        table("Operations", ("", "ms", "fraction", "calls"), calls),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def times_line(profiled: Profile) -> str:
    """Return a line with the device, and the time of a step with its parts.

    A CPU has no idle time, since it has no queue of kernels; the remaining time is Python.
    """
    names = {"data": "data", "compute": "compute", "idle": "idle"}
    meaning = ""
    if not profiled.cuda:
        names["idle"] = "Python"
        meaning = (
            " Python is the time between operations, in Python and in PyTorch itself. "
            "It is an estimate from steps under the profiler, which slows Python down. "
            "Without the profiler, it is shorter."
        )
    parts = [f"{names[name]} {fraction:.0%}" for name, fraction in profiled.split.items()]
    step = f"{show(1000 * profiled.seconds, 4)} ms/step: {', '.join(parts)}"
    return f"{device_line(profiled.device)}; {step}.{meaning}"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def layers(model: torch.nn.Module) -> Iterator[None]:
    """While open, each module's forward is a range in the trace; a compiled block is one range."""
    inside: set[int] = set()  # modules of compiled blocks
    before: list[tuple[torch.nn.Module, str, Any]] = []
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        attribute = "forward"
        if module._compiled_call_impl is not None:
            # Ranges inside a compiled block would become part of its graph.
            inside |= {id(inner) for inner in module.modules()}
            attribute = "_compiled_call_impl"
        before.append((module, attribute, vars(module).get(attribute)))
        label = RANGE + (name or type(module).__name__)
        setattr(module, attribute, record_function(label)(getattr(module, attribute)))
    yield
    for module, attribute, function in before:
        if function is None:  # the method of the class was in use
            delattr(module, attribute)
        else:
            setattr(module, attribute, function)


class Layer(NamedTuple):
    """The modules that share a name, over one step.

    kept_bytes: memory that forward leaves allocated. kernels: on a CPU, operations.
    """

    name: str
    modules: int
    share: float
    forward_ms: float
    backward_ms: float
    kept_bytes: float
    kernels: float

    def cells(self) -> tuple:
        """Return the cells of the layer's row in the table."""
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
    """Return a row for each kind of module (`layers.*.hidden`), and one for all other operations.

    The fractions add up to 1.
    """
    # [milliseconds of forward, milliseconds of backward, bytes, kernels]
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
            module = event.name.removeprefix(RANGE)  # with checkpointing, it may run in backward
        elif event.name.startswith(BACKWARD):
            module = numbered.get(event.sequence_nr, "(gradients)")
            in_backward = True
        elif event.name.startswith("Optimizer."):
            module = "(optimizer)"
        elif event.sequence_nr >= 0 and module and not in_backward:
            # If several operations have this number, the last one owns it.
            numbered[event.sequence_nr] = module
        owner[id(event)] = (module, in_backward)
        yield event, module, in_backward


def own_time(event: Any, cuda: bool) -> float:
    """Return the microseconds of an event without its children; on a GPU, of its kernels."""
    return event.self_device_time_total if cuda else event.self_cpu_time_total


def by_operation(events: list[Any], cuda: bool) -> list[tuple[str, float, float]]:
    """Return (operation, milliseconds, calls) per step, the longest first."""
    milliseconds: Any = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        if not event.name.startswith(NO_OPERATION):
            milliseconds[event.name] += own_time(event, cuda) / 1000 / TRACED
            calls[event.name] += 1
    return [(name, ms, calls[name] / TRACED) for name, ms in milliseconds.most_common()]


def shares(seconds: float, waited: float, busy: float, traced: float, cuda: bool) -> Shares:
    """Return the fractions of a step without the profiler: data, compute and idle.

    Idle is the time of Python and launches. On a GPU, kernels take as long under the profiler as
    without it. On a CPU, the profiler slows down everything, so use the fraction of the operations.
    """
    data = waited / seconds
    compute = busy / seconds if cuda else busy / traced * (1 - data)
    compute = min(compute, 1 - data)
    return {"data": data, "compute": compute, "idle": 1 - data - compute}


def verdict(split: Shares, products: float, cuda: bool) -> tuple[str, str]:
    """Return what bounds a step (input, launch, memory or compute), and the evidence.

    The largest of the fractions decides. products: the fraction of the compute time that is
    arithmetic.
    """
    largest = max(split, key=lambda name: split[name])
    if largest == "data":
        return "input", f"{split['data']:.0%} of a step waits for data"
    if largest == "idle":
        why = "only Python runs, between operations"
        if cuda:
            why = "the GPU is idle, because Python launches kernels too slowly"
        return "launch", f"For {split['idle']:.0%} of a step, {why}"
    if products < PRODUCTS:
        moved = f"{1 - products:.0%} of the compute time moves data"
        return "memory", f"{moved}, and {products:.0%} is arithmetic"
    return "compute", f"{products:.0%} of the compute time is arithmetic"
