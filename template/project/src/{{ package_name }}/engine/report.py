"""The one page of a run: `report.md` and `curves.png`, from the files that lie in its folder.

Reads files only and imports no torch, so that a run which crashed, was killed or is still going gets
its page too. Whatever is missing or cut off is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from .files import read_json, read_rows, replacing, write_text

Row = dict[str, Any]

STATES = {
    "finished": "Finished",
    "stopped": "Stopped early",
    "failed": "Failed",
    "running": "Running, or ended without a word (killed, out of memory, power lost)",
}

MEDIANS = {  # of a row of metrics: its name, factor and unit on the page
    "samples_per_second": ("samples/s", 1, ""),
    "tokens_per_second": ("tokens/s", 1, ""),
    "step_ms": ("time of a step", 1, " ms"),
    "data_wait_fraction": ("waiting for data", 100, " %"),
    "mfu": ("MFU", 100, " %"),
}
REPORTS = "def report(run: Path) -> list[str]:"  # as commands and hooks with a part of the page declare it
MARKED_POINTS = 50  # a curve of more has no markers
MANY_POINTS = 150  # a curve of more is drawn with its moving mean


def write_report(run: Path) -> None:
    """Writes `report.md` and `curves.png` into the folder of a run, and what extras have to say of it.

    Raises OSError where it cannot.
    """
    from .config import found

    history, evaluations = read_metrics(run / "metrics.jsonl")
    events = read_rows(run / "events.jsonl")
    environment, status, result = (read_json(run / f"{x}.json") for x in ("env", "status", "evaluation"))
    notes = [*environment.get("notes", []), *status.get("notes", [])]
    picture = draw(run / "curves.png", history, evaluations, status.get("resumes", []), notes)
    alerts = [f"step {x['step']:,}: {x.get('text')}" for x in events if x.get("event") == "alert"]
    optimizations = columns(environment, "optimizations", "name", "state", "why")
    changed = columns(environment, "changed", "name", "value", "default", "origin")
    more = [part.report(run) for folder in ("hooks", "commands") for part in found(folder, REPORTS)]
    parts = [
        [f"# Run {run.resolve().name}", "", headline(history, environment, status)],
        listed("Alerts", alerts),
        ["![loss, learning rate, speed and gradient norm over the steps](curves.png)"] if picture else [],
        table("Losses", ("", "loss", "step"), losses(history, evaluations)),
        table(*result_table(result)),
        table("Speed and memory", ("", ""), speed(history)),
        table("Time", ("", "", "share", ""), shares(spent(history, evaluations, events))),
        *more,
        table("Optimizations", ("", "state", "why"), optimizations),
        table("Settings that differ from the defaults", ("setting", "value", "default", "from"), changed),
        table("Checkpoints", ("", "step", "MB", ""), checkpoints(run / "checkpoints")),
        table("Machine and versions", ("", ""), machine(environment)),
        listed("Notes", notes),
    ]
    write_text(run / "report.md", "\n\n".join("\n".join(part) for part in parts if part) + "\n")


def read_metrics(path: Path) -> tuple[list[Row], list[Row]]:
    """(training steps, evaluations); lines that a crash cut off are left out."""
    rows = read_rows(path)
    return [row for row in rows if "split" not in row], [row for row in rows if "split" in row]


def numbers(rows: Iterable[Row], name: str) -> list[tuple[int, float]]:
    """(step, value) of the rows that have a finite number of this name."""
    pairs = [(row["step"], row.get(name)) for row in rows]
    return [(step, x) for step, x in pairs if isinstance(x, int | float) and math.isfinite(x)]


def headline(history: list[Row], environment: Row, status: Row) -> str:
    """One sentence: how it ended, where and when."""
    last = history[-1] if history else {}
    state = status.get("state", "running")
    line = f"**{STATES.get(state, state)}**" + (f": {status['reason']}" if status.get("reason") else "")
    step = max(status.get("step") or 0, last.get("step", 0))  # a killed run's status is as old as its start
    line += f", at step {step:,}"
    line += f" of epoch {last['epoch']}" if "epoch" in last else ""
    begun, ended = environment.get("started"), last.get("time")
    if begun is not None:
        line += f"; started {datetime.fromtimestamp(begun):%Y-%m-%d %H:%M}"
        line += f", last step logged {duration(ended - begun)} later" if ended and ended >= begun else ""
    if steps := status.get("resumes", []):
        line += f"; resumed from step {', '.join(f'{step:,}' for step in steps)}"
    return line + "."


def duration(seconds: float) -> str:
    """`3725` → `1 h 02 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def losses(history: list[Row], evaluations: list[Row]) -> list[tuple]:
    """First, last and best of each split, with their steps."""
    rows = []
    if series := numbers(history, "loss"):
        (first_step, first), (last_step, last) = series[0], series[-1]
        rows += [("training, first", first, first_step), ("training, last", last, last_step)]
    for split, series in by_split(evaluations).items():
        if series:
            best_step, best = min(series, key=lambda pair: pair[1])
            rows += [(f"{split}, best", best, best_step), (f"{split}, last", series[-1][1], series[-1][0])]
    return rows


def result_table(result: Row) -> tuple[str, tuple, list[tuple]]:
    """The last evaluation by command, with the trivial predictors beside the model."""
    metrics, baselines = result.get("metrics", {}), result.get("baselines", {})
    title = f"Evaluation on {result.get('split')} at step {result.get('step')}"
    rows = [(name, x, *(other.get(name) for other in baselines.values())) for name, x in metrics.items()]
    return title, ("metric", "model", *baselines), rows


def speed(history: list[Row]) -> list[tuple]:
    """Medians over the logged steps; the largest memory."""
    names, rows = dict.fromkeys(name for row in history for name in row), []
    found = {name: [x for _, x in numbers(history, name)] for name in names}
    for name, (label, scale, unit) in MEDIANS.items():
        if values := found.get(name):
            # The first logged step holds compilation and cold caches.
            rows.append((f"{label}, median", f"{show(scale * median(values[1:] or values), 3)}{unit}"))
    if skipped := found.get("skipped_steps"):
        rows.append(("steps skipped, for an overflow of fp16", f"{sum(skipped):,.0f}"))
    for name, label in (("memory_mb", "peak"), ("memory_reserved_mb", "reserved")):
        if values := found.get(name):
            rows.append((f"GPU memory, {label}", f"{max(values):,.0f} MB"))
    return rows


def spent(history: list[Row], evaluations: list[Row], events: list[Row]) -> dict[str, tuple[float, str]]:
    """Where the time went: seconds, and how often."""
    steps, training = [row for row in history if row.get("step_ms")], 0.0
    for before, row in zip([{"step": 0}, *steps], steps, strict=False):
        training += max(row["step"] - before["step"], 0) * row["step_ms"] / 1000
    measured = [row.get("seconds") or 0 for row in evaluations]
    saves = [event.get("seconds") or 0 for event in events if event.get("event") == "checkpoint"]
    return {
        "training": (training, ""),
        "evaluation": (sum(measured), f"{len(measured):,} times"),
        "checkpoints": (sum(saves), f"{len(saves):,} saved"),
    }


def shares(parts: dict[str, tuple[float, str]]) -> list[tuple]:
    """Of the time, without parts that took none."""
    total = sum(seconds for seconds, _ in parts.values())
    return [(name, duration(x), f"{x / total:.1%}", often) for name, (x, often) in parts.items() if x]


def columns(environment: Row, name: str, *wanted: str) -> list[tuple]:
    """A list of objects in env.json as rows."""
    return [tuple(entry.get(column) for column in wanted) for entry in environment.get(name, [])]


def checkpoints(folder: Path) -> list[tuple]:
    """Name, step, size in MB of each, and the loss of the best."""
    best = read_json(folder / "best.json")
    rows = []
    for manifest in sorted(folder.glob("step-*/manifest.json")):
        size = sum(file.stat().st_size for file in manifest.parent.iterdir() if file.is_file())
        name, step = manifest.parent.name, read_json(manifest).get("step")
        mark = f"best, loss {show(best.get('loss'))}" if best.get("checkpoint") == name else ""
        rows.append((name, step, f"{size / 1e6:.1f}", mark))
    return rows


def machine(environment: Row) -> list[tuple]:
    rows = [("device", environment.get("gpu")), *environment.get("versions", {}).items()]
    rows += [("git", environment.get("git")), ("command", " ".join(environment.get("argv", [])))]
    return [row for row in rows if row[1]]


def table(title: str, header: tuple, rows: list[tuple]) -> list[str]:
    """A heading with a Markdown table; nothing where there are no rows."""
    if not rows:
        return []
    lines = [header, ("---",) * len(header), *rows]
    return [f"## {title}", "", *("| " + " | ".join(map(show, line)) + " |" for line in lines)]


def listed(title: str, lines: list[str]) -> list[str]:
    """A heading with a list; nothing where there are no lines."""
    return [f"## {title}", "", *(f"- {line}" for line in lines)] if lines else []


def show(value: Any, digits: int = 5) -> str:
    """A cell of a table: floats by their significant digits, large ones without a fraction."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.{digits}g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def draw(
    path: Path, history: list[Row], evaluations: list[Row], resumes: list[int], notes: list[str]
) -> bool:
    """Draws the curves; False where there is nothing to draw, or with a note where it does not work."""
    if not history and not evaluations:
        notes.append("no step was logged, so there are no curves")
        return False
    try:
        figure = curves(history, evaluations, resumes)
        with replacing(path) as file:
            figure.savefig(file, format="png", dpi=120)
    except Exception as error:  # the page matters more than its picture, above all after a crash
        notes.append(f"curves.png was not drawn: {type(error).__name__}: {error}")
        return False
    return True


def curves(history: list[Row], evaluations: list[Row], resumes: list[int]) -> Any:
    """Four panels over the steps, as a matplotlib Figure without pyplot and its global state."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    figure = Figure(figsize=(11, 6.6), layout="constrained")
    panels = {
        "loss": "loss",
        "learning_rate": "learning rate",
        "samples_per_second": "samples/s",
        "gradient_norm": "gradient norm, before clipping",
    }
    for axes, (name, title) in zip(figure.subplots(2, 2, sharex=True).flat, panels.items(), strict=True):
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        drawn = plot(axes, numbers(history, name), "C0", "training", smooth=name != "learning_rate")
        if name == "loss":
            for number, (split, series) in enumerate(by_split(evaluations).items(), start=1):
                drawn += plot(axes, series, f"C{number}", split)
            axes.legend(frameon=False)
        if name in ("learning_rate", "samples_per_second"):
            axes.set_ylim(bottom=0)
        elif drawn and min(drawn) > 0 and max(drawn) > 20 * min(drawn):
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axes.yaxis.set_minor_formatter("{x:,g}")
        axes.yaxis.set_major_formatter("{x:,g}")
        for step in resumes:
            axes.axvline(step, color="0.5", linewidth=0.9, linestyle=":")
    if resumes:
        figure.supxlabel("dotted: resumed", fontsize=9, color="0.4")
    return figure


def plot(
    axes: Any, series: list[tuple[int, float]], color: str, label: str, smooth: bool = True
) -> list[float]:
    """One curve; a long one pale, with its moving mean on top. Returns the values drawn."""
    steps, values = [step for step, _ in series], [x for _, x in series]
    if len(series) <= MANY_POINTS or not smooth:
        marker = "o" if len(series) <= MARKED_POINTS else ""
        axes.plot(steps, values, color=color, label=label, linewidth=1.5, marker=marker, markersize=3)
        return values
    width = len(series) // 50
    sums = [0.0, *accumulate(values)]
    mean = [(sums[i + width] - sums[i]) / width for i in range(len(values) - width + 1)]
    axes.plot(steps, values, color=color, alpha=0.3, linewidth=0.8)
    middle = steps[width // 2 :][: len(mean)]
    axes.plot(middle, mean, color=color, label=f"{label}, mean of {width}", linewidth=1.5)
    return values


def by_split(evaluations: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """The losses of each split that was evaluated."""
    splits = dict.fromkeys(row["split"] for row in evaluations)
    return {split: numbers((row for row in evaluations if row["split"] == split), "loss") for split in splits}
