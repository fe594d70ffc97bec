"""Settings that may make a step faster, each measured here before `profile` advises it.

A setting is advised only where it was faster than the present ones in every turn, and by more than GAIN.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm import tqdm

from ..engine.errors import UserError
from ..engine.explanations import missing_memory
from ..engine.gpus import Capability
from ..engine.optimization import compiles
from .profiling import PRODUCTS, synchronize
from .steps import Steps, stepping

if TYPE_CHECKING:
    from ..config import Settings

TURNS = (
    3  # of every setting, one after the other, so that a machine that slows down does so for all
)
TURN_SECONDS = 1.0
WARM_STEPS, LEAST_STEPS = (
    3,
    3,
)  # of a turn: before the clock starts, and behind that whatever they take
ROUNDS = 4  # of all workers in a turn, at least
GAIN = 1.03  # a smaller one is not worth a setting
LARGER_BATCH = "a larger batch is another training: look at the loss, too"


class Candidate(NamedTuple):
    """A setting to try, by its dotted key. caution: what else it changes."""

    key: str
    value: Any
    caution: str = ""

    @property
    def flag(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        return f"`--{self.key} {value}`"


class Trial(NamedTuple):
    """A candidate with samples per second over those of the present settings, in each turn."""

    candidate: Candidate
    ratios: list[float]
    faster: bool
    why_not: str = ""  # it could not be measured

    @property
    def text(self) -> str:
        """`1.42× as fast (1.38-1.47)`."""
        return f"{median(self.ratios):.2f}× as fast ({min(self.ratios):.2f}-{max(self.ratios):.2f})"


# --- what to try


def candidates(
    kind: str, products: float, settings: Settings, loader: Any, capability: Capability | None
) -> list[Candidate]:
    """The settings that may help a step that is bound by its input, by launches, by memory or by computing.

    products: the fraction of the computing that is arithmetic. capability: of the GPU; None is a CPU.
    """
    if kind == "input":
        return reading_candidates(settings, loader)
    found = []
    compiled, _ = compiles(settings, capability)
    batch = settings.data.batch_size
    if kind == "launch":
        if 2 * batch * settings.training.gradient_accumulation_steps <= loader.order.count:
            found.append(Candidate("data.batch_size", 2 * batch, LARGER_BATCH))
        if capability and compiled and settings.training.gradient_accumulation_steps == 1:
            found.append(Candidate("compile.mode", "reduce-overhead"))
    elif capability and settings.training.precision in ("fp32", "tf32"):
        found.append(Candidate("training.precision", "auto", "rounds more: look at the loss, too"))
    if capability and not compiled and (kind == "launch" or products < PRODUCTS):
        found.append(Candidate("compile.enabled", True))
    return found


def reading_candidates(settings: Settings, loader: Any) -> list[Candidate]:
    """Other numbers of workers, larger chunks, or all samples on the device, where the loader can."""
    data = settings.data
    found = []
    if "num_workers" not in loader.WITHOUT_EFFECT:
        numbers = worker_numbers(loader.workers, cores())
        found += [Candidate("data.num_workers", number) for number in numbers]
    if "chunk_size_gb" not in loader.WITHOUT_EFFECT and data.chunk_size_gb != "auto":
        found.append(Candidate("data.chunk_size_gb", 2 * data.chunk_size_gb))
    if (
        "resident" not in loader.WITHOUT_EFFECT
        and data.resident is False
        and torch.cuda.is_available()
    ):
        found.append(Candidate("data.resident", "auto"))
    return found


def worker_numbers(present: int, available: int) -> list[int]:
    """Numbers of workers to try: more and fewer than now, and never more than there are cores."""
    more = (2 * present or 1, 4 * present or 2)
    fewer = (present // 2, 0)
    return sorted({number for number in (*more, *fewer) if number <= available} - {present})


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- trying it


def try_candidates(settings: Settings, found: Sequence[Candidate]) -> list[Trial]:
    """Measures each candidate and the present settings in turns; the fastest first."""
    present: list[float] = []
    rates: dict[Candidate, list[float]] = {candidate: [] for candidate in found}
    why_not: dict[Candidate, str] = {}
    bar = tqdm(
        total=TURNS * (1 + len(found)),
        desc="trying settings",
        unit="turn",
        leave=False,
        disable=None,
    )
    for _ in range(TURNS if found else 0):
        present.append(samples_per_second(settings))
        bar.update()
        for candidate in found:
            if candidate not in why_not:
                try:
                    rates[candidate].append(samples_per_second(with_value(settings, candidate)))
                except Exception as error:
                    why_not[candidate] = reason(error)
            bar.update()
    bar.close()
    trials = [
        compared(candidate, rates[candidate], present, why_not.get(candidate, ""))
        for candidate in found
    ]
    return sorted(trials, key=lambda trial: -median(trial.ratios or [0.0]))


def compared(
    candidate: Candidate, rates: list[float], present: list[float], why_not: str = ""
) -> Trial:
    """Whether a setting is faster beyond the noise: its slowest turn beats the fastest present one."""
    if why_not:
        return Trial(candidate, [], False, why_not)
    ratios = [rate / before for rate, before in zip(rates, present, strict=True)]
    return Trial(candidate, ratios, min(rates) > max(present) and median(ratios) >= GAIN)


def reason(error: Exception) -> str:
    """Why a setting could not be tried, in a line. Raises the error again where no setting makes it."""
    if missing_memory(error):
        return "too little memory"
    if isinstance(error, (UserError, ValueError, RuntimeError)):
        return str(error).strip().partition("\n")[0]
    raise error


def with_value(settings: Settings, candidate: Candidate) -> Settings:
    """The settings with another value for one of them."""
    tree = settings.resolved()
    section, _, name = candidate.key.partition(".")
    tree[section][name] = candidate.value
    return type(settings).model_validate(tree)


def samples_per_second(settings: Settings) -> float:
    """Of steps with these settings, of a fresh model."""
    torch.compiler.reset()  # else compiled code of earlier turns counts against the limit of recompilations
    try:
        with stepping(settings) as step:
            return timed(step)
    finally:
        gc.collect()  # the next model needs the memory
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def timed(step: Steps, clock: Callable[[], float] = time.perf_counter) -> float:
    """Samples per second of a turn, without its first steps and without the batches that were read before."""
    settings, loader, device = step.project.settings, step.loader, step.project.device
    accumulation = settings.training.gradient_accumulation_steps
    workers = getattr(loader, "workers", 0)
    ahead = workers * settings.data.prefetch_factor
    for _ in range(WARM_STEPS + -(-ahead // accumulation)):
        step()
    synchronize(device)
    # Workers that began together deliver together: a few rounds of them.
    least = max(LEAST_STEPS, ROUNDS * workers // accumulation)
    begun, count = clock(), 0
    while count < least or clock() - begun < TURN_SECONDS:
        step()
        count += 1
    synchronize(device)
    # An epoch's last batch may be incomplete.
    steps_of_epoch = -(-len(loader) // accumulation)
    return count * loader.order.count / steps_of_epoch / (clock() - begun)


# --- what is said


def advice(trials: Sequence[Trial], kind: str, loader: Any) -> list[str]:
    """The paragraphs of the page: what was faster, what was not, and what could not be measured."""
    faster = [trial for trial in trials if trial.faster]
    others = [f"{t.candidate.flag} {t.text}" for t in trials if t.ratios and not t.faster]
    failed = [f"{trial.candidate.flag}: {trial.why_not}" for trial in trials if trial.why_not]
    lines = []
    for trial in faster:
        caution = f"; {trial.candidate.caution}" if trial.candidate.caution else ""
        lines.append(f"Try {trial.candidate.flag}: {trial.text} in {TURNS} turns here{caution}.")
    if others:
        lines.append(f"Measured, and no faster beyond the noise: {', '.join(others)}.")
    if failed:
        lines.append(f"Could not be measured: {'; '.join(failed)}.")
    if not trials:
        lines.append("There is no setting to try.")
    if kind == "input" and "num_workers" in loader.WITHOUT_EFFECT and not faster:
        lines.append(
            "This loader reads in the process that trains. A faster disk may help, or the loader "
            "`dataloader`, whose workers read ahead (`copier update -d loader=dataloader`); "
            "neither was measured."
        )
    return lines
