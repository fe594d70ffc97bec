"""Measure what each optimization gains here; write tables and a plot to benchmark_results/.

Without names, it compares everything off with everything on. Each process of a row is a short run.
The processes of all rows alternate, so that a slower machine slows down every row. Results are
written after each process; the same command resumes an interrupted benchmark.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ..engine.compute.gpus import Card, features, resolve_precision
from ..engine.errors import UserError
from ..measure.measurements import Measurements, Plan, environment
from ..measure.trials import LOADER, Overrides, Trials, card_here

if TYPE_CHECKING:
    from ..settings import Settings

OUTPUT = Path("benchmark_results")
OWN = Path(__file__).with_suffix(".yml")
MODES = ("max-autotune-no-cudagraphs", "reduce-overhead", "max-autotune")
PRECISION = "training.precision"
BATCH = "data.batch_size"
GROUPS = "training.gradient_accumulation_steps"


class Switch(NamedTuple):
    """One optimization, off and on; `why_not` is the reason if it cannot be measured here."""

    name: str
    off: Overrides
    on: Overrides
    why_not: str
    enabled: bool  # whether `train` has it on


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    names = "switches to measure one by one; --list shows them"
    add("names", nargs="*", metavar="NAME", help=names)
    add("--all", action="store_true", help="measure every switch")
    add("--list", action="store_true", help="print the switches and whether they are on, and stop")
    size = f"use a model size of {OWN.name} instead of the configured model"
    add("--model-size", metavar="SIZE", help=size)
    steps = "timed steps per process (default: 100)"
    add("--steps", type=int, default=100, metavar="N", help=steps)
    warmup = "untimed steps before them (default: 20)"
    add("--warmup", type=int, default=20, metavar="N", help=warmup)
    processes = "processes per row (default: 3)"
    add("--processes", type=int, default=3, metavar="N", help=processes)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Measure the missing rows; write benchmark.json and benchmark.md."""
    settings = load()
    if min(arguments.warmup, arguments.steps, arguments.processes) < 1:
        what = "--steps, --warmup and --processes must be at least 1"
        raise UserError(what, "command line", "use a larger number")
    own: Any = yaml.safe_load(OWN.read_text(encoding="utf-8"))
    size = arguments.model_size
    if size and size not in own["sizes"]:
        remedy = f"choose from {', '.join(own['sizes'])}"
        raise UserError(f"unknown model size {size!r}", "--model-size", remedy)
    if size:
        settings = settings.replaced(own["sizes"][size], "--model-size")

    from ..assemble import open_store

    card = card_here()
    known = switches(settings, card, own["switches"])
    if arguments.list:
        print_switches(known)
        return 0
    plans = plan(known, arguments.names, arguments.all)
    store = open_store(settings)
    trials = Trials(settings, store.folder, card.capability is not None)
    about = {
        "protocol": protocol(arguments, settings, trials),
        "environment": environment(card),
        "state": {"data": store.fingerprint, "settings": settings.model_dump(mode="json")},
        "headlines": own["headlines"],
        "skipped": {switch.name: switch.why_not for switch in known if switch.why_not},
    }
    results = Measurements(OUTPUT, plans, about)
    results.measure(trials, arguments.warmup, arguments.steps)
    print((OUTPUT / "benchmark.md").read_text(encoding="utf-8"), end="")
    return 0


def print_switches(known: list[Switch]) -> None:
    for switch in known:
        state = "on" if switch.enabled else "off"
        if switch.why_not:
            state = f"cannot be measured here: {switch.why_not}"
        print(f"{switch.name:36}{state}")


def protocol(arguments: argparse.Namespace, settings: Settings, trials: Trials) -> dict[str, Any]:
    """Describe how the rows are measured; results of another protocol do not count."""
    gain = "no range, since there is one process"
    loss = "not compared, since there is one seed"
    if arguments.processes > 1:
        gain = "with the range of nine in ten repeats in parentheses"
        loss = "compared with the loss of fp32 over the same seeds"
    return {
        "warm-up steps": arguments.warmup,
        "timed steps": arguments.steps,
        "processes": arguments.processes,
        "steps between two times": trials.window,
        "order": "one process of every row, then the next",
        "first seed": settings.reproducibility.seed,
        "memory": "largest allocated on the GPU; without a GPU, largest resident set",
        "gain": gain,
        "loss": loss,
        "model size": arguments.model_size or "as configured",
    }


def switches(settings: Settings, card: Card, own: dict[str, Any]) -> list[Switch]:
    """Return all switches, in the order in which the cumulative table turns them on.

    own: switches of the workload.
    """
    made = Switches(settings, card)
    made.add_precisions()
    made.add_compilation()
    made.add_flag("fused_optimizer", "optimizer.fused")
    made.add_loading()
    for name, changes in own.items():
        made.add(name, changes["without"], changes["with"])
    made.add_accumulation()
    made.add_flag("checkpointing", "training.gradient_checkpointing")
    made.add_flag("cudnn_benchmark", "training.cudnn_benchmark", made.no_gpu)
    exact = {"reproducibility.deterministic": True, "training.cudnn_benchmark": False}
    made.add("deterministic", {"reproducibility.deterministic": False}, exact)
    return made.known


class Switches:
    """Collects the switches of one configuration on one card."""

    def __init__(self, settings: Settings, card: Card):
        from ..engine.compute.optimization import compiles

        self.settings = settings
        self.card = card
        self.known: list[Switch] = []
        self.no_gpu = "" if card.capability else "there is no GPU"
        all_settings: Any = settings
        emulate = getattr(all_settings.training, "fp8_emulation", False)
        self.precision, _ = resolve_precision(settings.training.precision, card, emulate)
        self.compiled, _ = compiles(settings, card.capability)
        # The values that `auto` resolves to here.
        self.resolved: Overrides = {
            PRECISION: self.precision,
            "compile.enabled": self.compiled,
            LOADER: "own",
        }

    def add(self, name: str, off: Overrides, on: Overrides, why_not: str = "") -> None:
        now: Overrides = {}
        for key in on:
            if key in self.resolved:
                now[key] = self.resolved[key]
            elif key in self.settings.origins:
                now[key] = self.settings.value(key)
            else:
                why_not = "this project's loader does not have it"
        self.known.append(Switch(name, off, on, why_not, now == on))

    def add_flag(self, name: str, key: str, why_not: str = "") -> None:
        self.add(name, {key: False}, {key: True}, why_not)

    def add_precisions(self) -> None:
        """Add the precisions, each compared with the next lower one that the card supports."""
        native: frozenset[str] = frozenset()
        if self.card.capability:
            native = features(self.card.capability, self.card.hip)
        half = "bf16"
        if self.precision in ("fp16", "bf16"):
            half = self.precision
        elif native and "bf16" not in native:
            half = "fp16"
        rungs = ["fp32", "tf32", half, "fp8"]
        below = "fp32"
        for name, precision in zip(("tf32", "half_precision", "fp8"), rungs[1:], strict=True):
            why_not = ""
            if precision not in native and precision != self.precision:
                why_not = self.no_gpu or f"{self.card.name} does not support {precision}"
            elif name == "fp8" and "training.fp8_emulation" not in self.settings.origins:
                why_not = "this project was made without fp8"
            # bf16 includes TF32, and fp8 includes both.
            enabled = rungs.index(self.precision) >= rungs.index(precision)
            rung = Switch(name, {PRECISION: below}, {PRECISION: precision}, why_not, enabled)
            self.known.append(rung)
            if not why_not:
                below = precision

    def add_compilation(self) -> None:
        self.add_flag("compile", "compile.enabled", "" if self.compiled else self.no_gpu)
        for mode in MODES:
            why_not = self.no_gpu
            accumulates = self.settings.training.gradient_accumulation_steps > 1
            if accumulates and mode != MODES[0]:
                why_not = why_not or "CUDA graphs overwrite accumulated gradients"
            on = {"compile.enabled": True, "compile.mode": mode}
            self.add(f"compile_{mode}", {"compile.mode": "default"}, on, why_not)

    def add_loading(self) -> None:
        plain: Overrides = {LOADER: "plain"}
        num_workers = getattr(self.settings.data, "num_workers", None)
        if num_workers is not None:
            plain["data.num_workers"] = 0
        self.add("loader", plain, {LOADER: "own"})
        resident = "data.resident"
        self.add("resident", {resident: False}, {resident: "auto"}, self.no_gpu)
        workers = {"data.num_workers": num_workers or 4}
        self.add("workers", {"data.num_workers": 0}, workers)
        self.add_flag("pinned_memory", "data.pin_memory", self.no_gpu)

    def add_accumulation(self) -> None:
        """Compare one micro-batch per step with several, over the same samples."""
        batch = self.settings.data.batch_size
        groups = self.settings.training.gradient_accumulation_steps
        together = {BATCH: batch * groups, GROUPS: 1}
        apart = {BATCH: batch, GROUPS: groups}
        if groups == 1:
            apart = {BATCH: batch // 2, GROUPS: 2}
        self.add("accumulation", together, apart, "" if batch > 1 else "a batch has one sample")


def plan(known: list[Switch], names: list[str], everything: bool) -> list[Plan]:
    """Return the rows to measure. Raises `UserError` for an unknown or unmeasurable name."""
    by_name = {switch.name: switch for switch in known}
    for name in names:
        if name not in by_name:
            remedy = "run `benchmark --list` to see all switches"
            raise UserError(f"unknown switch {name!r}", "command line", remedy)
        if by_name[name].why_not:
            what = f"{name} cannot be measured here"
            raise UserError(what, by_name[name].why_not, "leave it out")

    enabled = [switch for switch in known if switch.enabled and not switch.why_not]
    nothing: Overrides = {}
    # If several switches change the same setting, `off` of the first one counts.
    for switch in reversed(enabled):
        nothing |= switch.off
    on = nothing
    rows = [Plan("cumulative", "everything off", "", nothing)]
    for switch in enabled:
        on = on | switch.on
        if everything:
            rows.append(Plan("cumulative", f"+ {spoken(switch.name)}", switch.name, on))
    if not everything:
        rows.append(Plan("cumulative", "everything on", "", on))

    if everything or names:
        rows.append(Plan("leave_one_out", "everything on", "", on))
    for switch in known:
        if switch.why_not or not (everything or switch.name in names):
            continue
        name = f"with {spoken(switch.name)}"
        change = switch.on
        if switch.enabled:
            name = f"without {spoken(switch.name)}"
            change = switch.off
        rows.append(Plan("leave_one_out", name, switch.name, on | change))
    return rows


def spoken(name: str) -> str:
    return name.replace("_", " ").replace("tf32", "TF32")
