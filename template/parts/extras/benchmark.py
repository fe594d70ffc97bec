"""Measure what each optimization gives on this machine: tables in benchmark_results/.

Without names: everything off against everything on. Each process of a row is a short run, and the
processes of all rows alternate, so that a machine that slows down slows down every row. Results are
written after each process; the same command resumes a benchmark that was interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ..engine.errors import UserError
from ..engine.gpus import Card, features, resolve_precision
from ..measure.measurements import Measurements, Plan, environment
from ..measure.trials import LOADER, Overrides, Trials, card_here, changed

if TYPE_CHECKING:
    from ..config import Settings

OUTPUT = Path("benchmark_results")
OWN = Path(__file__).with_suffix(".yml")
MODES = ("max-autotune-no-cudagraphs", "reduce-overhead", "max-autotune")
PRECISION = "training.precision"
BATCH = "data.batch_size"
GROUPS = "training.gradient_accumulation_steps"


class Switch(NamedTuple):
    """One optimization, off and on; `why_not` says why it cannot be measured here."""

    name: str
    off: Overrides
    on: Overrides
    why_not: str
    enabled: bool  # whether `train` has it on


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command, in addition to the common ones."""
    add = parser.add_argument
    names = "switches to leave out or to add; --list shows them"
    add("names", nargs="*", metavar="NAME", help=names)
    add("--all", action="store_true", help="every switch")
    add("--list", action="store_true", help="print the switches and whether they are on, and stop")
    size = f"a size of {OWN.name} instead of the configured model"
    add("--model-size", metavar="SIZE", help=size)
    steps = "timed steps of a process (default: 100)"
    add("--steps", type=int, default=100, metavar="N", help=steps)
    warmup = "steps before them (default: 20)"
    add("--warmup", type=int, default=20, metavar="N", help=warmup)
    processes = "processes of a row (default: 3)"
    add("--processes", type=int, default=3, metavar="N", help=processes)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Measure the rows that are missing; write benchmark.json and benchmark.md."""
    settings = load()
    if settings.phases:
        settings = settings.phase(1)
    if min(arguments.warmup, arguments.steps, arguments.processes) < 1:
        what = "--steps, --warmup and --processes count from 1"
        raise UserError(what, "command line", "raise it")
    own = yaml.safe_load(OWN.read_text(encoding="utf-8"))
    size = arguments.model_size
    if size and size not in own["sizes"]:
        remedy = f"choose of {', '.join(own['sizes'])}"
        raise UserError(f"unknown model size {size!r}", "--model-size", remedy)
    if size:
        settings = changed(settings, own["sizes"][size])

    from ..assemble import open_store
    from ..engine.loader import Loader

    card = card_here()
    known = switches(settings, card, Loader.WITHOUT_EFFECT, own["switches"])
    if arguments.list:
        print_switches(known)
        return 0
    plans = plan(known, arguments.names, arguments.all)
    store = open_store(settings)
    trials = Trials(settings, store.folder, card.capability is not None)
    about = {
        "protocol": protocol(arguments, settings, trials),
        "environment": environment(card),
        "state": {"data": store.fingerprint, "settings": settings.resolved()},
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
    """Say how the rows are measured; results of another protocol do not count."""
    gain = "one process: no range"
    loss = "not compared: one seed"
    if arguments.processes > 1:
        gain = "in brackets what nine of ten repeats stay within"
        loss = "compared with fp32's over the same seeds"
    return {
        "warm-up steps": arguments.warmup,
        "timed steps": arguments.steps,
        "processes": arguments.processes,
        "steps between two times": trials.window,
        "order": "one process of every row, then the next",
        "first seed": settings.reproducibility.seed,
        "memory": "largest allocated on the GPU; without one, largest resident set",
        "gain": gain,
        "loss": loss,
        "model size": arguments.model_size or "as configured",
    }


def switches(
    settings: Settings, card: Card, unused: Sequence[str], own: dict[str, Any]
) -> list[Switch]:
    """List all switches, in the order in which the cumulative table turns them on.

    unused: data settings that this project's loader has no use for. own: those of the workload.
    """
    made = Switches(settings, card, unused)
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

    def __init__(self, settings: Settings, card: Card, unused: Sequence[str]):
        from ..engine.optimization import compiles

        self.settings = settings
        self.card = card
        self.unused = unused
        self.known: list[Switch] = []
        self.no_gpu = "" if card.capability else "there is no GPU"
        training = settings.training
        self.precision, _ = resolve_precision(
            training.precision, card.capability, card.hip, training.fp8_emulation
        )
        self.compiled, _ = compiles(settings, card.capability)
        # What `auto` becomes here.
        self.resolved: Overrides = {
            PRECISION: self.precision,
            "compile.enabled": self.compiled,
            LOADER: "own",
        }

    def add(self, name: str, off: Overrides, on: Overrides, why_not: str = "") -> None:
        now = {}
        for key in on:
            now[key] = self.resolved[key] if key in self.resolved else self.settings.value(key)
        if any(key.removeprefix("data.") in self.unused for key in on):
            why_not = "this project's loader has no use for it"
        self.known.append(Switch(name, off, on, why_not, now == on))

    def add_flag(self, name: str, key: str, why_not: str = "") -> None:
        self.add(name, {key: False}, {key: True}, why_not)

    def add_precisions(self) -> None:
        """Add a ladder: each format is compared with the one below it that the card has."""
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
                why_not = self.no_gpu or f"{self.card.name} has no {precision}"
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
        if "num_workers" not in self.unused:
            plain["data.num_workers"] = 0
        self.add("loader", plain, {LOADER: "own"})
        resident = "data.resident"
        self.add("resident", {resident: False}, {resident: "auto"}, self.no_gpu)
        workers = {"data.num_workers": self.settings.data.num_workers or 4}
        self.add("workers", {"data.num_workers": 0}, workers)
        self.add_flag("pinned_memory", "data.pin_memory", self.no_gpu)

    def add_accumulation(self) -> None:
        """Add one micro-batch a step against several of the same samples."""
        batch = self.settings.data.batch_size
        groups = self.settings.training.gradient_accumulation_steps
        together = {BATCH: batch * groups, GROUPS: 1}
        apart = {BATCH: batch, GROUPS: groups}
        if groups == 1:
            apart = {BATCH: batch // 2, GROUPS: 2}
        self.add("accumulation", together, apart, "" if batch > 1 else "a batch is one sample")


def plan(known: list[Switch], names: list[str], everything: bool) -> list[Plan]:
    """Return the rows. Raises `UserError` for a name that is unknown or cannot be measured here."""
    by_name = {switch.name: switch for switch in known}
    for name in names:
        if name not in by_name:
            remedy = "`benchmark --list` shows all"
            raise UserError(f"unknown switch {name!r}", "command line", remedy)
        if by_name[name].why_not:
            what = f"{name} cannot be measured here"
            raise UserError(what, by_name[name].why_not, "leave it out")

    enabled = [switch for switch in known if switch.enabled and not switch.why_not]
    nothing: Overrides = {}
    # If several switches turn one setting, `off` of the first one counts.
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
