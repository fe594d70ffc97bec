"""Measure what each optimization gives on this machine: tables and a picture in benchmark_results/.

Without names: everything off against everything on. Each process of a row is a short run, and the processes
of all rows alternate, so that a machine that slows down slows down every row. Results are written after each
process; an interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ..engine.errors import UserError
from ..engine.files import read_json
from ..engine.gpus import Card, features, resolve_precision
from ..engine.report import print_lines, table
from ..measure.measurements import Measurements, Plan, environment, gain_text
from ..measure.trials import LOADER, Overrides, Trials, card_here, changed

if TYPE_CHECKING:
    from ..config import Settings

OUTPUT = Path("benchmark_results")
OWN = Path(__file__).with_suffix(".yml")
LOWER = ("fp16", "bf16")
MODES = ("max-autotune-no-cudagraphs", "reduce-overhead", "max-autotune")
FULL, QUICK = (20, 100, 3), (5, 10, 2)  # warm-up steps, timed steps, processes


class Switch(NamedTuple):
    """One optimization, off and on; `why_not` says why it cannot be measured here."""

    name: str
    off: Overrides
    on: Overrides
    why_not: str
    enabled: bool  # whether `train` has it on


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    add, (warmup, steps, processes) = parser.add_argument, FULL
    add(
        "names",
        nargs="*",
        metavar="NAME",
        help="switches to leave out or to add; --list shows them",
    )
    add("--all", action="store_true", help="every switch, and two runs to the same loss")
    add("--list", action="store_true", help="print the switches and whether they are on, and stop")
    add(
        "--model-size", metavar="SIZE", help=f"a size of {OWN.name} instead of the configured model"
    )
    add("--steps", type=int, metavar="N", help=f"timed steps of a process (default: {steps})")
    add("--warmup", type=int, metavar="N", help=f"steps before them (default: {warmup})")
    add("--processes", type=int, metavar="N", help=f"processes of a row (default: {processes})")
    add(
        "--quick",
        action="store_true",
        help=f"try it: {QUICK[2]} processes of {QUICK[0]} + {QUICK[1]} steps",
    )
    add(
        "--target",
        type=float,
        metavar="LOSS",
        help="measure the time to it (default: what fp32 reaches)",
    )
    add("--restart", action="store_true", help="forget what an interrupted benchmark has measured")


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Measures the rows that are missing; writes benchmark.json, .md and .png."""
    settings = load()
    settings = settings.phase(1) if settings.phases else settings
    own = yaml.safe_load(OWN.read_text(encoding="utf-8"))
    given = arguments.warmup, arguments.steps, arguments.processes
    usual = QUICK if arguments.quick else FULL
    warmup, steps, processes = (y if x is None else x for x, y in zip(given, usual, strict=True))
    if min(warmup, steps, processes) < 1:
        raise UserError(
            "--steps, --warmup and --processes count from 1", "command line", "raise it"
        )

    from ..assemble import open_store
    from ..engine.loader import Loader

    if size := arguments.model_size:
        if size not in own["sizes"]:
            remedy = f"choose of {', '.join(own['sizes'])}"
            raise UserError(f"unknown model size {size!r}", "--model-size", remedy)
        settings = changed(settings, own["sizes"][size])
    card = card_here()
    found = list(switches(settings, card, Loader.WITHOUT_EFFECT, own["switches"]))
    if arguments.list:
        states = {s.name: f"cannot be measured here: {s.why_not}" for s in found if s.why_not}
        print(
            "\n".join(
                f"{s.name:36}{states.get(s.name, 'on' if s.enabled else 'off')}" for s in found
            )
        )
        return 0
    plans, store = plan(found, arguments.names, arguments.all), open_store(settings)
    trials = Trials(settings, store.folder, card.capability is not None)
    several = processes > 1
    protocol = {
        "warm-up steps": warmup,
        "timed steps": steps,
        "processes": processes,
        "steps between two times": trials.window,
        "order": "one process of every row, then the next",
        "first seed": settings.reproducibility.seed,
        "memory": "largest allocated on the GPU" if card.capability else "largest resident set",
        "gain": "in brackets what nine of ten repeats stay within"
        if several
        else "one process: no range",
        "loss": "compared with fp32's over the same seeds" if several else "not compared: one seed",
        "model size": size or "as configured",
    }
    state = {"data": store.fingerprint, "settings": settings.resolved(), "target": arguments.target}
    about = {"protocol": protocol, "environment": environment(card), "state": state}
    about |= {
        "headlines": own["headlines"],
        "skipped": {s.name: s.why_not for s in found if s.why_not},
    }
    results = Measurements(OUTPUT, plans, about, arguments.restart)
    results.measure(trials, warmup, steps)
    print_lines((OUTPUT / "benchmark.md").read_text(encoding="utf-8").splitlines())
    return 0


def switches(
    settings: Settings, card: Card, without: Sequence[str], own: dict[str, Any]
) -> Iterator[Switch]:
    """All of them, in the order in which the cumulative table switches them on.

    without: data settings that this project's loader has no use for. own: those of the workload.
    """
    from ..engine.optimization import compiles

    data, training = settings.data, settings.training
    gpu = "" if card.capability else "there is no GPU"
    has = features(card.capability, card.hip) if card.capability else frozenset()
    resolved = resolve_precision(
        training.precision, card.capability, card.hip, training.fp8_emulation
    )[0]
    half = resolved if resolved in LOWER else "fp16" if has and "bf16" not in has else "bf16"
    rungs = ("fp32", "tf32", half, "fp8")
    compiled, _ = compiles(settings, card.capability)
    values = {"training.precision": resolved, "compile.enabled": compiled, LOADER: "own"}

    def switch(name: str, off: Overrides, on: Overrides, why_not: str = "") -> Switch:
        now = {key: values[key] if key in values else settings.value(key) for key in on}
        if any(key.removeprefix("data.") in without for key in on):
            why_not = "this project's loader has no use for it"
        return Switch(name, off, on, why_not, now == on)

    def flip(name: str, key: str, why_not: str = "") -> Switch:
        return switch(name, {key: False}, {key: True}, why_not)

    below = "fp32"
    for name, precision in zip(("tf32", "half_precision", "fp8"), rungs[1:], strict=True):
        there = precision in has or precision == resolved
        lacking = "" if there else gpu or f"{card.name} has no {precision}"
        rung = switch(
            name, {"training.precision": below}, {"training.precision": precision}, lacking
        )
        yield rung._replace(enabled=rungs.index(resolved) >= rungs.index(precision))
        below = precision if not lacking else below
    yield flip("compile", "compile.enabled", "" if compiled else gpu)
    for mode in MODES:
        graphs = mode != MODES[0] and training.gradient_accumulation_steps > 1
        on = {"compile.enabled": True, "compile.mode": mode}
        why_not = gpu or ("CUDA graphs overwrite accumulated gradients" if graphs else "")
        yield switch(f"compile_{mode}", {"compile.mode": "default"}, on, why_not)
    yield flip("fused_optimizer", "optimizer.fused")
    alone = {} if "num_workers" in without else {"data.num_workers": 0}
    yield switch("loader", {LOADER: "plain"} | alone, {LOADER: "own"})
    yield switch("resident", {"data.resident": False}, {"data.resident": "auto"}, gpu)
    yield switch("workers", {"data.num_workers": 0}, {"data.num_workers": data.num_workers or 4})
    yield flip("pinned_memory", "data.pin_memory", gpu)
    for name, changes in own.items():
        yield switch(name, changes["without"], changes["with"])
    batch, groups = data.batch_size, training.gradient_accumulation_steps
    sizes = ((batch * groups, 1), (batch, groups) if groups > 1 else (batch // 2, 2))
    keys = ("data.batch_size", "training.gradient_accumulation_steps")
    together, apart = (dict(zip(keys, size, strict=True)) for size in sizes)
    yield switch("accumulation", together, apart, "" if batch > 1 else "a batch is one sample")
    yield flip("checkpointing", "training.gradient_checkpointing")
    yield flip("cudnn_benchmark", "training.cudnn_benchmark", gpu)
    exact = {"reproducibility.deterministic": True, "training.cudnn_benchmark": False}
    yield switch("deterministic", {"reproducibility.deterministic": False}, exact)


def plan(found: list[Switch], names: list[str], everything: bool) -> list[Plan]:
    """The rows. Raises `UserError` for a name that is unknown or that cannot be measured here."""
    known = {switch.name: switch for switch in found}
    for name in names:
        if name not in known:
            raise UserError(
                f"unknown switch {name!r}", "command line", "`benchmark --list` shows all"
            )
        if known[name].why_not:
            raise UserError(f"{name} cannot be measured here", known[name].why_not, "leave it out")
    enabled = [switch for switch in found if switch.enabled and not switch.why_not]
    nothing: Overrides = {}
    for switch in reversed(enabled):  # where several turn one setting, the first one's `off` counts
        nothing |= switch.off
    state, rows = nothing, [Plan("cumulative", "everything off", "", nothing)]
    for switch in enabled:
        state = state | switch.on
        if everything or switch is enabled[-1]:
            name = f"+ {spoken(switch.name)}" if everything else "everything on"
            rows.append(Plan("cumulative", name, switch.name if everything else "", state))
    if everything or names:
        rows.append(Plan("leave_one_out", "everything on", "", state))
    for switch in found:
        if not switch.why_not and (everything or switch.name in names):
            kind, change = ("without", switch.off) if switch.enabled else ("with", switch.on)
            rows.append(
                Plan("leave_one_out", f"{kind} {spoken(switch.name)}", switch.name, state | change)
            )
    if everything:
        rows += [
            Plan("target", "everything off", "", nothing),
            Plan("target", "everything on", "", state),
        ]
    return rows


def spoken(name: str) -> str:
    return name.replace("_", " ").replace("tf32", "TF32")


def report(run: Path) -> list[str]:
    """What each change gives on this machine; nothing where `benchmark` has not run."""
    rows = []
    for row in read_json(OUTPUT / "benchmark.json").get("rows", []):
        if (
            row.get("table") == "leave_one_out"
            and row.get("overrides")
            and row.get("gain") is not None
        ):
            rows.append((row["name"], gain_text(row), row.get("flag")))
    return table("Speed against everything on, by benchmark", ("", "times as fast", ""), rows)
