"""The results of `benchmark`: in benchmark.json, compared in benchmark.md and benchmark.png.

A row is compared with the first row of its table. Its results are over the steps of all its
processes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.compute.gpus import Card
from ..engine.files import read_json, replacing, write_json, write_text
from ..engine.monitoring.report import show, table
from .trials import Failed, Overrides, Trials, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

PLOT = "benchmark.png"
TITLES = {
    "cumulative": "Cumulative",
    "leave_one_out": "One changed, against everything on",
}
LIMIT = 3.0  # allowed distance from fp32's loss, in standard deviations between fp32's seeds
# Student's t for 90 % of values (two-sided), with 1, 2, ... degrees of freedom.
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
# Environment variables that affect speed.
SPEED = (
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
)
QUERY = "driver_version,power.limit,clocks.max.sm,clocks.max.mem"
RANGE = (
    "In parentheses: the range of the gain in nine of ten repeats of this benchmark. "
    "If the range includes 1, the gain may be noise. "
    "To narrow the range, raise --processes and --steps, and run nothing else on the machine."
)
SPEED_COLUMNS = (
    "",
    "precision",
    "ms/step",
    "p10-p90",
    "samples/s",
    "gain",
    "memory MB",
    "data wait",
    "start s",
    "loss",
)


class Plan(NamedTuple):
    """A row to measure."""

    table: str
    name: str
    switch: str
    overrides: Overrides


class Measurements:
    """The folder `benchmark_results/`.

    plans: the rows, the first one in strict fp32. about: the conditions `protocol`, `environment`
    and `state`, then `headlines` and `skipped`. An interrupted benchmark under the same conditions
    is resumed. Otherwise, everything is measured again.
    """

    def __init__(self, folder: Path, plans: list[Plan], about: Row):
        self.folder = folder
        self.plans = plans
        self.about = about
        self.protocol = about["protocol"]
        self.trials: dict[str, list[Row]] = {}
        before = read_json(folder / "benchmark.json", trials=dict)
        conditions = ("protocol", "environment", "state")
        is_same = all(before.get(name) == about[name] for name in conditions)
        if is_same and not before.get("complete", True):
            self.trials = before.get("trials", {})

    def of(self, plan: Plan) -> list[Row]:
        """Return the row's trials, one per seed; rows of several tables may share them."""
        key = json.dumps(plan.overrides, sort_keys=True)
        return self.trials.setdefault(key, [])

    def missing(self) -> Iterator[Plan]:
        """Yield the rows to run next: the first process of every row, then the second ones."""
        for number in range(self.protocol["processes"]):
            for plan in self.plans:
                if len(self.of(plan)) == number and not failure(self.of(plan)):
                    yield plan

    def measure(self, trials: Trials, warmup: int, steps: int) -> None:
        """Run the missing processes; write the results after each one."""
        from tqdm import tqdm

        self.folder.mkdir(exist_ok=True)
        distinct = {id(self.of(plan)): self.of(plan) for plan in self.plans}
        bar = tqdm(
            total=len(distinct) * self.protocol["processes"],
            initial=sum(map(len, distinct.values())),
            unit="run",
            dynamic_ncols=True,
        )
        with bar:
            for plan in self.missing():
                bar.set_postfix_str(f"{plan.table.replace('_', ' ')}, {plan.name}")
                self.run(plan, trials, warmup, steps)
                self.write()
                bar.update()

    def run(self, plan: Plan, trials: Trials, warmup: int, steps: int) -> None:
        """Run the row's next process."""
        done = self.of(plan)
        seed = {"reproducibility.seed": self.protocol["first seed"] + len(done)}
        try:
            done.append(trials(plan.overrides | seed, warmup, steps))
        except Failed as error:
            done.append({"failed": str(error)})

    def rows(self) -> list[Row]:
        """Return all rows with at least one trial and no failed one."""
        rows: list[Row] = []
        # The first row of each table; if it failed, it is empty and there are no gains.
        firsts: dict[str, Row] = {}
        for plan in self.plans:
            trials = self.of(plan)
            if not trials or failure(trials):
                firsts.setdefault(plan.table, {})
                continue
            row = figures_of(plan, trials)
            first = firsts.setdefault(plan.table, row)
            losses = [trial["loss"] for trial in trials]
            row["flag"] = strayed(losses, self.losses_of_fp32(plan))
            row |= gain_of(row, first)
            rows.append(row)
        return rows

    def losses_of_fp32(self, plan: Plan) -> list[float]:
        """Return the losses of the first fp32 row with the same order of samples."""
        order = plan.overrides.get("data.order")
        for other in self.plans:
            trials = self.of(other)
            if not trials or failure(trials) or other.overrides.get("data.order") != order:
                continue
            if trials[0]["state"].get("precision") == "fp32":
                return [trial["loss"] for trial in trials]
        return []

    def write(self) -> None:
        """Write benchmark.json and benchmark.md; once all is measured, also the plot."""
        rows = self.rows()
        not_measured = dict(self.about["skipped"])
        for plan in self.plans:
            if failure(self.of(plan)):
                not_measured[plan.name] = failure(self.of(plan))
        result = {
            "protocol": self.protocol,
            "environment": self.about["environment"],
            "state": self.about["state"],
            "rows": rows,
            "headlines": [compared(claim, rows) for claim in self.about["headlines"]],
            "not_measured": not_measured,
            "complete": not any(self.missing()),
            "trials": self.trials,
        }
        write_json(self.folder / "benchmark.json", result)
        if result["complete"]:
            with replacing(self.folder / PLOT) as file:
                draw(rows).savefig(file)
        write_text(self.folder / "benchmark.md", page(result))


def failure(trials: list[Row]) -> str:
    return next((trial["failed"] for trial in trials if "failed" in trial), "")


# --- arithmetic


def ratio(value: float | None, reference: float | None) -> float | None:
    if value is None or not reference:
        return None
    return value / reference


def figures_of(plan: Plan, trials: list[Row]) -> Row:
    """Return the results of a row, not yet compared with other rows."""
    step = spread([ms for trial in trials for ms in trial["step_ms"]])
    rates = [1000 * trial["samples"] / median(trial["step_ms"]) for trial in trials]
    row = plan._asdict() | {
        "precision": trials[0]["state"].get("precision"),
        "processes": len(trials),
        "step_ms": step,
        "samples_per_second": 1000 * trials[0]["samples"] / step["median"],
        "processes_per_second": rates,
        "peak_memory_bytes": max(trial["peak_memory_bytes"] for trial in trials),
    }
    for name in ("data_wait_fraction", "start_s", "loss"):
        row[name] = mean(trial[name] for trial in trials)
    for name in trials[0]["rates"]:
        row[name] = mean(trial["rates"][name] for trial in trials)
    return row


def gain_of(row: Row, first: Row) -> Row:
    """Return the gain over the first row of the table, and its range over repeats.

    The range is None if it is unknown.
    """
    gain = ratio(row["samples_per_second"], first.get("samples_per_second"))
    factor = repeats(row["processes_per_second"], first.get("processes_per_second", []))
    if gain is None or factor is None:
        return {"gain": gain, "gain_low": None, "gain_high": None}
    # Use a factor, not a difference, since a ratio is never below 0.
    return {"gain": gain, "gain_low": gain / factor, "gain_high": gain * factor}


def repeats(rates: list[float], reference: list[float]) -> float | None:
    """Return the factor within which nine in ten repeated gains stay; None for one process.

    rates: the rate of each process of a row. reference: the rates of the row to compare with.
    Processes that ran one after the other form a pair, so that a slowdown of both does not count.
    """
    ratios = [math.log(one / other) for one, other in zip(rates, reference, strict=False)]
    count = len(ratios)
    if count < 2:
        return None
    # Both benchmarks vary: twice the variance. A median's variance is up to pi / 2 of a mean's.
    student = STUDENT[min(count, len(STUDENT) + 1) - 2]
    return math.exp(student * stdev(ratios) * math.sqrt(math.pi / count))


def gain_text(row: Row) -> str:
    """Format a gain as `1.04 (1.01-1.07)`, without the range if it is unknown or empty."""
    if row["gain"] is None:
        return ""
    text = f"{row['gain']:.2f}"
    low = row["gain_low"]
    high = row["gain_high"]
    if low is None or low == high:
        return text
    return f"{text} ({low:.2f}-{high:.2f})"


def strayed(losses: list[float], strict: list[float]) -> str | None:
    """Return a warning if the losses differ too much from fp32's.

    losses, strict: the losses with the same seeds, of a row and of fp32.
    """
    if len(strict) < 2:
        return None
    distance = abs(mean(a - b for a, b in zip(losses, strict, strict=False)))
    between = stdev(strict)
    if distance <= LIMIT * between:  # false for nan
        return None
    return f"loss is {show(distance, 2)} from fp32's, whose seeds differ by {show(between, 2)}"


def compared(claim: Row, rows: list[Row]) -> Row:
    """Add the ratio that was measured here to a reported speedup; None if it was not measured."""
    with_it, without_it = rows_of(claim, rows)
    name = claim["of"]
    return claim | {"measured": ratio(with_it.get(name), without_it.get(name))}


def rows_of(claim: Row, rows: list[Row]) -> tuple[Row, Row]:
    """Return the rows with and without a claim's switch; both are empty if one is missing."""
    cumulative = [row for row in rows if row["table"] == "cumulative"]
    single = [row for row in rows if row["table"] == "leave_one_out"]
    switch = claim["switch"]
    if switch == "all" and len(cumulative) > 1:
        return cumulative[-1], cumulative[0]
    if claim.get("table") == "cumulative":
        pairs = [(row, before) for before, row in itertools.pairwise(cumulative)]
        return next((pair for pair in pairs if pair[0]["switch"] == switch), ({}, {}))
    for row in single[1:]:
        if row["switch"] == switch:
            is_added = row["name"].startswith("with ")
            return (row, single[0]) if is_added else (single[0], row)
    return {}, {}


def environment(card: Card) -> Row:
    """Return what affects speed in addition to the settings."""
    from ..engine.training.environment import git_state, versions

    facts: Row = {"device": card.name}
    if card.capability:
        facts["capability"] = card.sm
        facts["memory GB"] = round(card.memory_gb, 1)
        facts[QUERY] = ask_driver()
    facts |= versions()
    for name in ("triton", "lightning", "accelerate"):
        with suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    facts["cpu"] = f"{os.cpu_count()} cores, {platform.machine()}"
    facts["git"] = git_state()
    for name in SPEED:
        if name in os.environ:
            facts[f"${name}"] = os.environ[name]
    return facts


def ask_driver() -> str:
    """Return the answer of nvidia-smi about the first GPU that torch sees."""
    import torch

    try:
        # Use the UUID, because nvidia-smi may number GPUs differently from torch.
        identity = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", identity]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError, AttributeError):
        return "not available"
    return done.stdout.strip()


# --- the page and its plot


def draw(rows: list[Row]) -> Figure:
    """Plot the gain of each row, with its range, one table next to the other."""
    from matplotlib.figure import Figure

    of_tables = {name: [row for row in rows if row["table"] == name] for name in TITLES}
    shown = {name: found for name, found in of_tables.items() if found}
    longest = max(map(len, shown.values()), default=1)
    figure = Figure(figsize=(7 * max(len(shown), 1), 1.5 + 0.4 * longest), layout="constrained")
    for place, (name, found) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(1, len(shown), place)
        axes.set(title=TITLES[name], xlabel="samples per second, relative to the first row")
        for number, row in enumerate(found):
            gain = row["gain"] or 0.0
            axes.barh(number, gain, color="C0")
            low = row["gain_low"] or gain
            high = row["gain_high"] or gain
            axes.plot([low, high], [number, number], color="black")
            axes.annotate(f" {gain_text(row)}", (high, number), va="center")
        axes.set_yticks(range(len(found)), [row["name"] for row in found])
        axes.axvline(1, color="0.5", linestyle=":")
        axes.margins(x=0.3)  # room for the numbers
        axes.invert_yaxis()
    return figure


def page(result: Row) -> str:
    """Return benchmark.md."""
    rows = result["rows"]
    parts = [["# Benchmark"]]
    if not result["complete"]:
        parts.append(["Not complete: run the same command again to continue."])
    else:
        parts.append([f"![gains]({PLOT})"])
    if any(row["gain_low"] is not None for row in rows):
        parts.append([RANGE])
    for name in TITLES:
        of_table = [row for row in rows if row["table"] == name]
        parts.append(table(TITLES[name], SPEED_COLUMNS, [cells(row) for row in of_table]))
        parts.append([f"**{row['name']}**: {row['flag']}." for row in of_table if row["flag"]])
    claims = []
    for claim in result["headlines"]:
        measured = claim["measured"] or "not measured"
        claims.append((claim["claim"], claim["of"], claim["ratio"], measured))
    parts.append(table("What others reported", ("", "ratio of", "there", "here"), claims))
    parts.append(table("Not measured", ("", "reason"), list(result["not_measured"].items())))
    parts.append(table("Protocol", ("", ""), list(result["protocol"].items())))
    parts.append(table("Machine", ("", ""), list(result["environment"].items())))
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row in the table of speed."""
    step = {name: show(value, 3) for name, value in row["step_ms"].items()}
    loss = show(row["loss"], 4)
    if row["flag"]:
        loss += " (!)"
    return (
        row["name"],
        row["precision"],
        step["median"],
        f"{step['p10']}-{step['p90']}",
        show(row["samples_per_second"], 3),
        gain_text(row),
        f"{row['peak_memory_bytes'] / 2**20:,.0f}",
        f"{row['data_wait_fraction']:.1%}",
        f"{row['start_s']:.1f}",
        loss,
    )
