"""What `benchmark` has measured: kept in benchmark.json, compared in benchmark.md, drawn in benchmark.png.

A row is compared with the first of its table. Its figures are over the steps of all of its processes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from ..engine.files import read_json, replacing, write_json, write_text
from ..engine.gpus import Card
from ..engine.report import show, table
from .trials import Failed, Overrides, Trials, spread

Row = dict[str, Any]

TITLES = {
    "cumulative": "One upon the other",
    "leave_one_out": "One changed, against everything on",
    "target": "To the same loss",
}
TABLES = ("cumulative", "leave_one_out")  # of speed
TARGET = 5  # a run to the target loss is so many times as long as a row's
MARGIN = 0.01  # by which the loss to reach is above the lowest that every process of the first row reached
SMOOTH = 10  # logged losses of which the target table takes the mean
WIDE = 1.1  # a gain whose repeats may be beyond so many times of it says little
BEYOND = 1.5  # longest bars that an axis has room for
LIMIT = 3.0  # spreads of fp32's loss between seeds that a row may be away from it
# Student's t that nine of ten values stay within, for 1, 2, ... degrees of freedom.
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
# What changes speed behind the settings' back.
SPEED = [
    *(
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
    ),
    *(
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_VISIBLE_DEVICES",
    ),
]
RANGE = (
    "In brackets: the range that nine of ten repeats of this benchmark stay within. "
    "A gain whose range has 1 in it may be noise."
)
NARROWER = (
    "the range is wide; more --processes and --steps, and nothing else on the machine, "
    "make it narrower."
)
QUERY = "driver_version,power.limit,clocks.max.sm,clocks.max.mem"


class Plan(NamedTuple):
    """A row to measure."""

    table: str
    name: str
    switch: str
    overrides: Overrides


class Measurements:
    """The folder `benchmark_results/`. Figures of another protocol, machine or configuration do not count.

    plans: the rows, the first one in strict fp32. about: `protocol`, `environment`, `state` (what else the
    figures depend on), `headlines` and `skipped`. A benchmark that was complete begins anew, one that was
    interrupted goes on.
    """

    def __init__(self, folder: Path, plans: list[Plan], about: Row, restart: bool = False):
        self.folder, self.plans, self.about = folder, plans, about
        self.protocol, self.target = about["protocol"], about["state"]["target"]
        before = read_json(folder / "benchmark.json")
        same = all(before.get(name) == about[name] for name in ("protocol", "environment", "state"))
        keep = same and not restart and not before["complete"]
        self.trials: dict[str, list[Row]] = before["trials"] if keep else {}

    def of(self, plan: Plan) -> list[Row]:
        """The row's trials, one for each seed; rows of several tables may share them."""
        key = json.dumps([plan.table == "target", plan.overrides], sort_keys=True)
        return self.trials.setdefault(key, [])

    def missing(self) -> Iterator[Plan]:
        """Rows to run next: the first process of each before the second of any."""
        for number in range(self.protocol["processes"]):
            for plan in self.plans:
                if len(self.of(plan)) == number and not failure(self.of(plan)):
                    yield plan

    def measure(self, trials: Trials, warmup: int, steps: int) -> None:
        """Runs what is missing, writes after each process, and draws at the end, also after Ctrl-C."""
        from tqdm import tqdm

        self.folder.mkdir(exist_ok=True)
        if not any(self.trials.values()):  # a plot that is there is another benchmark's
            (self.folder / "benchmark.png").unlink(missing_ok=True)
        keys = {id(self.of(plan)): self.of(plan) for plan in self.plans}
        total = len(keys) * self.protocol["processes"]
        bar = tqdm(
            total=total, initial=sum(map(len, keys.values())), unit="run", dynamic_ncols=True
        )
        try:
            for plan in self.missing():
                done = self.of(plan)
                bar.set_postfix_str(f"{plan.table.replace('_', ' ')}, {plan.name}")
                seed = {"reproducibility.seed": self.protocol["first seed"] + len(done)}
                try:
                    length = steps * (TARGET if plan.table == "target" else 1)
                    done.append(trials(plan.overrides | seed, warmup, length))
                except Failed as error:
                    done.append({"failed": str(error)})
                self.write()
                bar.update()
        finally:
            bar.close()
            draw(self.folder / "benchmark.png", self)
            self.write()  # the page links the plot from now on

    def rows(self) -> list[Row]:
        """All rows that have a trial and none that failed."""
        rows: list[Row] = []
        firsts: dict[
            str, Row
        ] = {}  # of each table; empty where that one failed, and there is no gain then
        target = self.target
        whole: Row = next(
            (plan.overrides for plan in self.plans if plan.table == "leave_one_out"), {}
        )
        for plan in self.plans:
            if not (trials := self.of(plan)) or failure(trials):
                firsts.setdefault(plan.table, {})
                continue
            row = figures_of(plan, trials)
            if plan.table == "leave_one_out":  # what differs from everything on
                row["overrides"] = {
                    key: x for key, x in plan.overrides.items() if whole.get(key) != x
                }
            first = firsts.setdefault(plan.table, row)
            if plan.table == "target":
                target = target or (1 + MARGIN) * max(
                    min(smooth(trial["curve"])) for trial in trials
                )
                row |= reached([trial["curve"] for trial in trials], target)
                row["gain"] = ratio(first.get("seconds_to_target"), row["seconds_to_target"])
            else:
                row["flag"] = strayed([trial["loss"] for trial in trials], self.strict(plan))
                row["gain"] = ratio(row["samples_per_second"], first.get("samples_per_second"))
                rates = first.get("processes_per_second", [])
                row |= gain_range(row["gain"], repeats(row["processes_per_second"], rates))
            rows.append(row)
        return rows

    def strict(self, plan: Plan) -> list[float]:
        """Losses of the first fp32 row that sees the samples in the same order."""
        order = plan.overrides.get("data.order")
        for other in self.plans:
            if other.table != "target" and other.overrides.get("data.order") == order:
                trials = self.of(other)
                if trials and not failure(trials) and trials[0]["state"].get("precision") == "fp32":
                    return [trial["loss"] for trial in trials]
        return []

    def write(self) -> None:
        """benchmark.json and benchmark.md."""
        rows, about = self.rows(), dict(self.about)
        failed = {plan.name: why for plan in self.plans if (why := failure(self.of(plan)))}
        headlines, skipped = beside(about.pop("headlines"), rows), about.pop("skipped")
        result = about | {"rows": rows, "headlines": headlines, "not_measured": skipped | failed}
        result |= {"complete": not any(self.missing()), "trials": self.trials}
        write_json(self.folder / "benchmark.json", result)
        plot = (self.folder / "benchmark.png").exists()
        write_text(self.folder / "benchmark.md", page(result, plot))


def failure(trials: list[Row]) -> str:
    return next((trial["failed"] for trial in trials if "failed" in trial), "")


# --- arithmetic


def ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value is not None and reference else None


def figures_of(plan: Plan, trials: list[Row]) -> Row:
    """A row of the result, not yet compared with others."""
    step = spread([ms for trial in trials for ms in trial["step_ms"]])
    row = plan._asdict() | {
        "precision": trials[0]["state"].get("precision"),
        "processes": len(trials),
        "step_ms": step,
        "samples_per_second": 1000 * trials[0]["samples"] / step["median"],
        "processes_per_second": [1000 * t["samples"] / median(t["step_ms"]) for t in trials],
        "peak_memory_bytes": max(trial["peak_memory_bytes"] for trial in trials),
        "flag": None,
    }
    for name in ("data_wait_fraction", "start_s", "loss"):
        row[name] = mean(trial[name] for trial in trials)
    return row | {
        name: mean(trial["rates"][name] for trial in trials) for name in trials[0]["rates"]
    }


def repeats(rates: list[float], reference: list[float]) -> float | None:
    """By which factor the gains of nine in ten other benchmarks differ at most; None for one process.

    rates: of each process of a row. reference: of those of the row that it is compared with. Processes that
    ran one after the other are a pair, so that what slows both down does not count. A factor, and no
    difference, since a ratio is never below 0.
    """
    ratios = [math.log(one / other) for one, other in zip(rates, reference, strict=False)]
    count = len(ratios)
    if count < 2:
        return None
    # Two benchmarks differ, hence twice the variance; a median's is up to pi / 2 of a mean's.
    student = STUDENT[min(count, len(STUDENT) + 1) - 2]
    return math.exp(student * stdev(ratios) * math.sqrt(math.pi / count))


def gain_range(gain: float | None, factor: float | None) -> Row:
    """The ends of the range that repeats of a gain stay within; None where they are not known."""
    if gain is None or factor is None:
        return {"gain_low": None, "gain_high": None}
    return {"gain_low": gain / factor, "gain_high": gain * factor}


def gain_text(row: Row) -> str:
    """`1.04 (1.01-1.07)`; without the range where it is not known, and where the gain is the reference's."""
    if row.get("gain") is None:
        return ""
    text = f"{row['gain']:.2f}"
    low, high = row.get("gain_low"), row.get("gain_high")
    if low is None or high is None or low == high:
        return text
    return f"{text} ({low:.2f}-{high:.2f})"


def strayed(losses: list[float], strict: list[float]) -> str | None:
    """Why a loss is not fp32's: further from it, over the same seeds, than LIMIT spreads between seeds."""
    if len(strict) < 2:
        return None
    distance, between = (
        abs(mean(a - b for a, b in zip(losses, strict, strict=False))),
        stdev(strict),
    )
    if distance <= LIMIT * between:  # and so not for nan
        return None
    return f"loss is {show(distance, 2)} from fp32's, whose seeds differ by {show(between, 2)}"


def smooth(curve: list) -> list[float]:
    """Of each place in [(seconds, loss)] from the SMOOTH-th on: the mean of so many losses."""
    losses = [loss for _, loss in curve]
    width = min(SMOOTH, len(losses))
    return [mean(losses[end - width : end]) for end in range(width, len(losses) + 1)]


def reached(curves: list[list], target: float) -> Row:
    """Seconds of training to the target loss, mean over the processes; None where one does not get there."""
    seconds = []
    for curve in curves:
        means = smooth(curve)
        times = [second for second, _ in curve][len(curve) - len(means) :]
        seconds.append(
            next((time for time, loss in zip(times, means, strict=True) if loss <= target), None)
        )
    there = [time for time in seconds if time is not None]
    return {
        "target_loss": target,
        "seconds_to_target": mean(there) if len(there) == len(seconds) else None,
    }


def beside(headlines: list[Row], rows: list[Row]) -> list[Row]:
    """What others reported, and the same ratio here, with the switch to without it; None if unmeasured."""
    every, single = ([row for row in rows if row["table"] == name] for name in TABLES)
    steps = {row["switch"]: (row, before) for before, row in itertools.pairwise(every)}
    pairs = {"all": (every[-1], every[0])} if len(every) > 1 else {}
    for row in single[1:]:
        added = row["name"].startswith("with ")
        pairs[row["switch"]] = (row, single[0]) if added else (single[0], row)
    found = []
    for claim in headlines:
        known = steps if claim.get("table") == "cumulative" else pairs
        ours, theirs = known.get(claim["switch"], ({}, {}))
        found.append(claim | {"measured": ratio(ours.get(claim["of"]), theirs.get(claim["of"]))})
    return found


def environment(card: Card) -> Row:
    """What decides speed beside the settings."""
    import torch

    from ..engine.runs import git_state, versions

    found: Row = {"device": card.name}
    if card.capability:
        found |= {"capability": card.sm, "memory GB": round(card.memory_gb, 1)}
        try:
            identity = (
                f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"  # its own numbers are others
            )
            command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", identity]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
            found |= dict(zip(QUERY.split(","), done.stdout.strip().split(", "), strict=True))
        except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
            found["nvidia-smi"] = "not available"
    found |= versions() | {
        "cpu": f"{os.cpu_count()} cores, {platform.machine()}",
        "git": git_state(),
    }
    installed = {each.metadata["Name"].lower(): each.version for each in metadata.distributions()}
    names = ("triton", "lightning", "accelerate")
    found |= {name: installed[name] for name in names if name in installed}
    return found | {f"${name}": os.environ[name] for name in SPEED if name in os.environ}


# --- the page and the picture


def page(result: Row, plot: bool) -> str:
    """benchmark.md. plot: whether there is a benchmark.png."""
    parts = [["# Benchmark"]]
    if not result["complete"]:
        parts.append(["Not complete: the same command again continues."])
    if plot:
        parts.append(["![the rows](benchmark.png)"])
    if any(row.get("gain_low") is not None for row in result["rows"]):
        parts.append([RANGE])
    columns = "precision,ms/step,p10-p90,samples/s,gain,memory MB,data wait,start s,loss"
    header = ("", *columns.split(","))
    for name in TABLES:
        rows = [row for row in result["rows"] if row["table"] == name]
        parts.append(table(TITLES[name], header, [cells(row) for row in rows]))
        parts.append([f"**{row['name']}**: {row['flag']}." for row in rows if row["flag"]])
        wide = [
            row["name"]
            for row in rows
            if row["gain"] and (row["gain_high"] or 0) > WIDE * row["gain"]
        ]
        parts.append([f"**{', '.join(wide)}**: {NARROWER}"] * bool(wide))
    names = ("name", "target_loss", "seconds_to_target", "gain")
    rows = [
        tuple(row[name] for name in names) for row in result["rows"] if row["table"] == "target"
    ]
    parts.append(table(TITLES["target"], ("", "loss", "seconds", "gain"), rows))
    claims = [
        (c["claim"], c["of"], c["ratio"], c["measured"] or "not measured")
        for c in result["headlines"]
    ]
    parts.append(table("Beside what others reported", ("", "ratio of", "there", "here"), claims))
    parts.append(table("Not measured", ("", "because"), list(result["not_measured"].items())))
    parts.append(table("Protocol", ("", ""), list(result["protocol"].items())))
    parts.append(table("Machine", ("", ""), list(result["environment"].items())))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def cells(row: Row) -> tuple:
    step = {name: show(value, 3) for name, value in row["step_ms"].items()}
    rate, gain = show(row["samples_per_second"], 3), gain_text(row)
    speed = step["median"], f"{step['p10']}-{step['p90']}", rate, gain
    memory, wait = f"{row['peak_memory_bytes'] / 2**20:,.0f}", f"{row['data_wait_fraction']:.1%}"
    loss = show(row["loss"], 4) + (" (!)" if row["flag"] else "")
    return row["name"], row["precision"], *speed, memory, wait, f"{row['start_s']:.1f}", loss


def draw(path: Path, results: Measurements) -> None:
    """A panel for each table with more than one row."""
    from matplotlib.figure import Figure

    rows = results.rows()
    groups = {name: [row for row in rows if row["table"] == name] for name in TITLES}
    groups = {name: group for name, group in groups.items() if len(group) > 1}
    if not groups:
        return
    heights = [
        3.2 if name == "target" else 0.9 + 0.32 * len(group) for name, group in groups.items()
    ]
    figure = Figure(figsize=(10, 0.4 + sum(heights)), layout="constrained")
    figure.suptitle(
        "{device}, torch {torch}".format(**results.about["environment"]), fontsize=9, color="0.35"
    )
    panels = figure.subplots(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (name, group) in zip(panels, groups.items(), strict=True):
        axes.set_title(TITLES[name], loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="both" if name == "target" else "x", alpha=0.25, linewidth=0.6)
        if name == "target":
            curves = [
                (p.name, [t["curve"] for t in results.of(p)])
                for p in results.plans
                if p.table == name
            ]
            draw_curves(axes, curves, group[0]["target_loss"])
        else:
            draw_bars(axes, group)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120)


def draw_bars(axes: Any, rows: list[Row]) -> None:
    """samples/s over the first row's, with whiskers over the range that the gain's repeats stay within; where
    one process cannot tell, from the 10th to the 90th percentile of its steps."""
    values = [row["samples_per_second"] / rows[0]["samples_per_second"] for row in rows]
    end = BEYOND * max(values)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        low, high = whiskers(row, value)
        high = min(high, end)  # a range that says nothing would flatten all bars
        color = "C0" if place else "0.7"
        if row["flag"]:
            color = "C3"
        axes.barh(place, value, height=0.6, color=color, zorder=2)
        axes.errorbar(
            value, place, xerr=[[value - low], [high - value]], color="0.25", lw=1, capsize=2.5
        )
        text = gain_text(row) if place else "reference"
        text += "  loss strays from fp32's" if row["flag"] else ""
        axes.annotate(
            text, (high, place), (7, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.set_xlabel("samples/s, the first row is 1", fontsize=9)


def whiskers(row: Row, value: float) -> tuple[float, float]:
    """Ends of the whiskers of a bar."""
    if row["gain_low"] is not None:
        return row["gain_low"], row["gain_high"]
    step = row["step_ms"]
    return value * step["median"] / step["p90"], value * step["median"] / step["p10"]


def draw_curves(axes: Any, curves: list[tuple[str, list]], target: float) -> None:
    """Smoothed loss over seconds, a line for each process, a colour for each row."""
    for color, (name, processes) in zip(("0.55", "C0"), curves, strict=True):
        for number, curve in enumerate(processes):
            losses = smooth(curve)
            seconds = [second for second, _ in curve][-len(losses) :]
            axes.plot(seconds, losses, color=color, label="" if number else name, linewidth=1.3)
    axes.axhline(
        target, color="0.3", linewidth=0.9, linestyle="--", label=f"target {show(target, 4)}"
    )
    axes.set(xlabel="seconds of training", ylabel="loss")
    axes.legend(frameon=False, fontsize=9)
