"""The one page of a run: `report.md` and `curves.png`, from the files that lie in its folder.

Reads files only and imports no torch, so that a run which crashed, was killed or is still going gets
its page too. Whatever is missing or cut off is left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from .files import read_json, read_rows, replacing, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
Cells = tuple[Any, ...]
"""Of a line in a table."""
Series = list[tuple[int, float]]
"""(step, value) of rows that have a finite number."""

# Others are said as they are.
STATES = {"stopped": "Stopped early", "running": "Still running, or killed before it could write its end"}


def steady(values: list[float]) -> float:
    """The median without the first one, which holds compilation and cold caches."""
    return median(values[1:] or values)


SPEED: dict[str, tuple[str, Callable[[list[float]], float], float, str]] = {
    # of a row of metrics: its name on the page, what sums it up, factor and unit
    "samples_per_second": ("samples/s, median", steady, 1, ""),
    "tokens_per_second": ("tokens/s, median", steady, 1, ""),
    "step_ms": ("time of a step, median", steady, 1, " ms"),
    "data_wait_fraction": ("waiting for data, median", steady, 100, " %"),
    "mfu": ("MFU, median", steady, 100, " %"),
    "skipped_steps": ("steps skipped, for an overflow of fp16", sum, 1, ""),
    "memory_mb": ("GPU memory, peak", max, 1, " MB"),
    "memory_reserved_mb": ("GPU memory, reserved", max, 1, " MB"),
}
PANELS = {  # of curves.png, below the losses: title, and whether it begins at 0
    "learning_rate": ("learning rate", True),
    "samples_per_second": ("samples/s", True),
    "gradient_norm": ("gradient norm", False),
}
COLUMNS = 3  # of panels
TIMED = ("checkpoint", "pictures")  # events with seconds; those of pictures are a part of an evaluation's
NO_METRICS = ("step", "split", "loss", "seconds", "time")  # of an evaluation's row
REPORTS = "def report(run: Path) -> list[str]:"  # as commands and hooks with a part of the page declare it
COLORS = {"training": "C0", "validation": "C1"}
ASIDE: dict[str, Any] = {"loc": "right", "fontsize": 8, "color": "0.4"}  # of a panel's title
MARKED_POINTS = 50  # a curve of more has no markers
MANY_POINTS = 150  # a curve of more is drawn with its moving mean


class Record(NamedTuple):
    """What the files in the folder of a run say; empty where they are missing or damaged."""

    folder: Path
    history: list[Row]
    evaluations: list[Row]
    events: list[Row]
    environment: Row
    status: Row
    result: Row

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def losses(self) -> dict[str, Series]:
        """Of training and of each evaluated split."""
        series = {"training": numbers(self.history, "loss")}
        for split in dict.fromkeys(row["split"] for row in self.evaluations):
            rows = [row for row in self.evaluations if row["split"] == split]
            series[split] = numbers(rows, "loss")
        return series

    @property
    def baseline(self) -> float | None:
        """The loss without a model, where the run measured it."""
        losses = [row.get("loss") for row in self.events if row.get("event") == "naive"]
        return losses[0] if losses else None

    @property
    def alerts(self) -> list[str]:
        alerts = [row for row in self.events if row.get("event") == "alert"]
        return [f"step {row['step']:,}: {row.get('text')}" for row in alerts]

    @property
    def notes(self) -> list[str]:
        return [*self.environment.get("notes", []), *self.status.get("notes", [])]

    @property
    def resumes(self) -> list[int]:
        """The steps from which the run was resumed."""
        steps: list[int] = self.status.get("resumes", [])
        return steps

    @property
    def step(self) -> int:
        """The last one that is known: the status of a killed run is as old as its start."""
        steps: list[int] = [row["step"] for row in self.history]
        return max([self.status.get("step") or 0, *steps])

    @property
    def state(self) -> str:
        """How the run ended, with the reason."""
        state = self.status.get("state", "running")
        words = STATES.get(state, state.capitalize())
        reason = self.status.get("reason")
        return f"{words}: {reason}" if reason else words

    @property
    def seconds(self) -> float | None:
        """From the start to the last entry of its logs, pauses before a resume included."""
        started: float | None = self.environment.get("started")
        times: list[float] = [row.get("time", 0) for row in (*self.history, *self.evaluations, *self.events)]
        if started is None or not times or max(times) < started:
            return None
        return max(times) - started


def read_run(folder: Path) -> Record:
    """Reads what a training left in the folder of its run."""
    history, evaluations = read_metrics(folder / "metrics.jsonl")
    events = read_rows(folder / "events.jsonl")
    environment, status, result = (
        read_json(folder / f"{name}.json") for name in ("env", "status", "evaluation")
    )
    return Record(folder, history, evaluations, events, environment, status, result)


def write_report(folder: Path) -> None:
    """Writes `report.md` and `curves.png` into the folder of a run, and what extras have to say of it.

    Raises OSError where it cannot.
    """
    record = read_run(folder)
    undrawn = draw(folder / "curves.png", lambda: curves(record))
    write_text(folder / "report.md", page(record, undrawn))


def page(record: Record, undrawn: str) -> str:
    """The text of report.md. undrawn: why there is no curves.png; empty where there is one."""
    environment = record.environment
    optimizations = [row.values() for row in environment.get("optimizations", [])]
    changed = [row.values() for row in environment.get("changed", [])]
    notes = [*record.notes, undrawn] if undrawn else record.notes
    parts = [
        [f"# Run {record.name}", "", headline(record)],
        listed("Alerts", record.alerts),
        [] if undrawn else ["![losses, metrics, learning rate, speed and gradient norm](curves.png)"],
        table("Losses", ("", "loss", "step"), losses(record.losses, record.baseline)),
        table(*validation_table(record.evaluations)),
        table(*result_table(record.result)),
        *parts_of_extras(record.folder),
        table("Speed and memory", ("", ""), speed(record.history)),
        table("Time", ("", "", "share", ""), times(spent(record.history, record.evaluations, record.events))),
        table("Optimizations", ("", "state", "why"), optimizations),
        table("Settings that differ from the defaults", ("setting", "value", "default", "from"), changed),
        table("Checkpoints", ("", "step", "MB", ""), checkpoints(record.folder / "checkpoints")),
        table("Machine and versions", ("", ""), machine(environment)),
        listed("Notes", notes),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def parts_of_extras(folder: Path) -> list[list[str]]:
    """What each hook and command with a function `report(run)` adds to the page."""
    from .config import found

    modules = [*found("hooks", REPORTS), *found("commands", REPORTS)]
    return [module.report(folder) for module in modules]


def summary(record: Record) -> list[str]:
    """The lines that the terminal shows of a run: state, best evaluation, duration, alerts and notes."""
    rows = [
        ("run", record.name),
        ("state", f"{record.state}, at step {record.step:,}"),
        ("best", best_line(record)),
        ("evaluated", result_line(record.result)),
        ("duration", duration_line(record)),
        *(("alert", text) for text in record.alerts or ["none"]),
        *(("note", text) for text in record.notes),
    ]
    return [f"{name:<11}{text}" for name, text in rows if text]


def best_line(record: Record) -> str:
    """The lowest validation loss with its step and the metrics there; without one, that of training."""
    row = best_row(record.evaluations)
    if row:
        baseline = "" if record.baseline is None else f" (baseline {show(record.baseline)})"
        same = same_as_loss(record.evaluations)
        metrics = [f", {name} {show(row[name])}" for name in metrics_of([row]) if name not in same]
        return f"{row['split']} loss {show(row['loss'])} at step {row['step']:,}{baseline}{''.join(metrics)}"
    missing = "no finite loss in any evaluation" if record.evaluations else "no evaluation yet"
    pairs = record.losses["training"]
    if not pairs:
        return f"{missing}, no loss of training"
    step, loss = min(pairs, key=lambda pair: pair[1])
    return f"{missing}; lowest training loss {show(loss)} at step {step:,}"


def result_line(result: Row) -> str:
    """The metrics of the last `evaluate`; empty where there was none."""
    metrics = [f"{name} {show(value)}" for name, value in result.get("metrics", {}).items()]
    return f"{', '.join(metrics)} on {result.get('split')} at step {result.get('step')}" if metrics else ""


def duration_line(record: Record) -> str:
    if record.seconds is None:
        return "unknown"
    pauses = ", with the pauses before it was resumed" if record.resumes else ""
    return f"{duration(record.seconds)} from the start to the last log entry{pauses}"


def read_metrics(path: Path) -> tuple[list[Row], list[Row]]:
    """(training steps, evaluations); lines that a crash cut off are left out."""
    rows = read_rows(path)
    return [row for row in rows if "split" not in row], [row for row in rows if "split" in row]


def numbers(rows: Iterable[Row], name: str) -> Series:
    """(step, value) of the rows that have a finite number of this name."""
    pairs = [(row["step"], row.get(name)) for row in rows]
    return [(step, x) for step, x in pairs if isinstance(x, int | float) and math.isfinite(x)]


def headline(record: Record) -> str:
    """One sentence: how it ended, where and when."""
    last = record.history[-1] if record.history else {}
    state, colon, reason = record.state.partition(": ")
    line = f"**{state}**{colon}{reason}, at step {record.step:,}"
    line += f" of epoch {last['epoch']}" if "epoch" in last else ""
    if begun := record.environment.get("started"):
        line += f"; started {datetime.fromtimestamp(begun):%Y-%m-%d %H:%M}"
        passed = last.get("time", 0) - begun
        line += f", last step logged {duration(passed)} later" if passed >= 0 else ""
    if record.resumes:
        line += f"; resumed from step {', '.join(f'{step:,}' for step in record.resumes)}"
    return line + "."


def duration(seconds: float) -> str:
    """`3.2 s`, from a minute on `1:02:03`."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def losses(series: dict[str, Series], baseline: float | None = None) -> list[Cells]:
    """First, best and last of training and of each split, with their steps; and the baseline, if known."""
    rows: list[Cells] = [] if baseline is None else [("baseline, without a model", baseline, "")]
    for name, pairs in series.items():
        if pairs:
            best = min(pairs, key=lambda pair: pair[1])
            points = {"first": pairs[0], "best": best, "last": pairs[-1]}
            rows += [(f"{name}, {which}", loss, step) for which, (step, loss) in points.items()]
    return rows


def metrics_of(evaluations: list[Row]) -> list[str]:
    """What was measured beside the loss."""
    names = dict.fromkeys(name for row in evaluations for name in row)
    return [name for name in names if name not in NO_METRICS]


def best_row(evaluations: list[Row]) -> Row:
    """The evaluation with the lowest loss; empty where there is none."""
    finite = [row for row in evaluations if numbers([row], "loss")]
    return min(finite, key=lambda row: row["loss"], default={})


def best_of(evaluations: list[Row]) -> int:
    """The step of the lowest loss; 0 where there is none."""
    step: int = best_row(evaluations).get("step", 0)
    return step


def validation_table(evaluations: list[Row]) -> tuple[str, Cells, list[Cells]]:
    """Every metric at the best evaluation and at the last one."""
    best, last = best_of(evaluations), evaluations[-1]["step"] if evaluations else 0
    found = [next((row for row in evaluations if row["step"] == step), {}) for step in (best, last)]
    rows = [(name, *(row.get(name) for row in found)) for name in metrics_of(evaluations)]
    return "Validation", ("metric", f"best, step {best:,}", f"last, step {last:,}"), rows


def result_table(result: Row) -> tuple[str, Cells, list[Cells]]:
    """The last evaluation by command, with the trivial predictors beside the model."""
    metrics, baselines = result.get("metrics", {}), result.get("baselines", {})
    title = f"Evaluation on {result.get('split')} at step {result.get('step')}"
    rows = [(name, x, *(other.get(name) for other in baselines.values())) for name, x in metrics.items()]
    return title, ("metric", "model", *baselines), rows


def speed(history: list[Row]) -> list[Cells]:
    """Medians over the logged steps, and what else sums them up."""
    rows = []
    for name, (label, digest, scale, unit) in SPEED.items():
        if values := [x for _, x in numbers(history, name)]:
            rows.append((label, f"{show(scale * digest(values), 3)}{unit}"))
    return rows


def spent(history: list[Row], evaluations: list[Row], events: list[Row]) -> list[tuple[str, float, str]]:
    """What took time, its seconds, and how often it came."""
    steps, training = [row for row in history if row.get("step_ms")], 0.0
    for before, row in pairwise([{"step": 0}, *steps]):
        training += max(row["step"] - before["step"], 0) * row["step_ms"] / 1000
    measured = [row.get("seconds") or 0 for row in evaluations]
    saves, drawings = ([x.get("seconds") or 0 for x in events if x.get("event") == name] for name in TIMED)
    return [
        ("training", training, ""),
        ("evaluation", max(sum(measured) - sum(drawings), 0.0), f"{len(measured):,} times"),
        ("pictures", sum(drawings), f"{len(drawings):,} times"),
        ("checkpoints", sum(saves), f"{len(saves):,} saved"),
    ]


def times(parts: list[tuple[str, float, str]]) -> list[Cells]:
    """Where the time went, without what took none."""
    total = sum(seconds for _, seconds, _ in parts)
    return [(name, duration(x), f"{x / total:.1%}", often) for name, x, often in parts if x]


def checkpoints(folder: Path) -> list[Cells]:
    """Name, step, size in MB of each, and the loss of the best."""
    best, rows = read_json(folder / "best.json"), []
    for manifest in sorted(folder.glob("step-*/manifest.json")):
        name, step = manifest.parent.name, read_json(manifest).get("step")
        size = sum(file.stat().st_size for file in manifest.parent.iterdir() if file.is_file())
        mark = f"best, loss {show(best.get('loss'))}" if best.get("checkpoint") == name else ""
        rows.append((name, step, f"{size / 1e6:.1f}", mark))
    return rows


def machine(environment: Row) -> list[Cells]:
    versions, command = environment.get("versions", {}), " ".join(environment.get("argv", []))
    known = {"device": environment.get("gpu"), **versions, "git": environment.get("git"), "command": command}
    return [row for row in known.items() if row[1]]


def table(title: str, header: Cells, rows: Sequence[Cells]) -> list[str]:
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


def print_lines(lines: Iterable[str]) -> None:
    """Prints; a character that the terminal's encoding does not have becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding))


def draw(path: Path, curves: Callable[[], Figure | None]) -> str:
    """Draws the curves; returns why not, where there is nothing to draw or it does not work."""
    try:
        if (figure := curves()) is None:
            return "no step was logged, so there are no curves"
        with replacing(path) as file:
            figure.savefig(file, format="png", dpi=120)
    except Exception as error:  # the page matters more than its picture, above all after a crash
        return f"{path.name} was not drawn: {type(error).__name__}: {error}"
    return ""


def curves(record: Record) -> Figure | None:
    """All of it over the steps, without pyplot and its global state; None where nothing was logged.

    The losses on top; below them what PANELS names, and each metric of the evaluations.
    """
    if not record.history and not record.evaluations:
        return None
    from matplotlib.figure import Figure

    same = same_as_loss(record.evaluations)
    small = small_panels(record, same)
    rows = math.ceil(len(small) / COLUMNS)
    figure = Figure(figsize=(11, 3.8 + 2.2 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, COLUMNS, height_ratios=[1.7, *[1] * rows])
    top, best = figure.add_subplot(grid[0, :]), best_of(record.evaluations)
    panel(top, record.losses, " = ".join(["loss", *same]), best=best)
    if record.baseline is not None:
        draw_baseline(top, record.baseline)
    top.legend(frameon=False)
    for place, (series, title, from_zero) in enumerate(small):
        axes = figure.add_subplot(grid[1 + place // COLUMNS, place % COLUMNS], sharex=top)
        panel(axes, series, title, from_zero, best)
    mark_resumes(figure, record.resumes)
    return figure


def same_as_loss(evaluations: list[Row]) -> list[str]:
    """Names of the metrics that equal the loss in every evaluation."""
    names = []
    for name in metrics_of(evaluations):
        pairs = [(row.get(name) or 0.0, row.get("loss") or 0.0) for row in evaluations]
        if all(math.isclose(*pair, rel_tol=1e-5) for pair in pairs):
            names.append(name)
    return names


def small_panels(record: Record, without: list[str]) -> list[tuple[dict[str, Series], str, bool]]:
    """Curves, title, and whether the axis begins at 0, of each panel below the losses.

    without: metrics of the evaluations that need no panel.
    """
    panels = []
    for name, (title, from_zero) in PANELS.items():
        panels.append(({"training": numbers(record.history, name)}, title, from_zero))
    for name in metrics_of(record.evaluations):
        if name not in without:
            panels.append(({"validation": numbers(record.evaluations, name)}, name, False))
    return panels


def draw_baseline(axes: Any, baseline: float) -> None:
    """A line at the loss without a model; where that is not on the axis, the legend says so."""
    low, high = axes.get_ylim()
    label = f"baseline {baseline:.4g}"
    if low <= baseline <= high:
        axes.axhline(baseline, color="0.5", linewidth=1, linestyle="--", label=label)
        return
    side = "above" if baseline > high else "below"
    axes.plot([], [], linestyle="none", label=f"{label}, {side} this plot")


def mark_resumes(figure: Figure, steps: list[int]) -> None:
    """A dotted line in each panel where the run was resumed."""
    for axes in figure.axes:
        for step in steps:
            axes.axvline(step, color="0.5", linewidth=0.9, linestyle=":")
    if steps:
        figure.supxlabel("dotted: resumed", fontsize=9, color="0.4")


def tidy(axes: Any, title: str, x: str = "", y: str = "") -> None:
    """The look of all pictures: title, names of the axes, a pale grid."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def panel(axes: Any, series: dict[str, Series], title: str, from_zero: bool = False, best: int = 0) -> None:
    """Curves in the scale of the last nine tenths of the run: its first values would flatten all others.

    best: the step of an evaluation that gets a mark and its value.
    """
    tidy(axes, title, "step")
    for label, pairs in series.items():
        plot(axes, pairs, COLORS.get(label, "C2"), label, smooth=title != "learning rate")
        if label != "training" and best in (values := dict(pairs)):
            named = f"best {values[best]:.4g}, step {best:,}"
            axes.plot(best, values[best], "*", color="C3", markersize=11, label=named)
            axes.set_title(f"best {values[best]:.4g}", **ASIDE)
    set_scale(axes, late_values([pair for pairs in series.values() for pair in pairs]), from_zero)
    for step, x in series.get("training", [])[:1]:
        if x > axes.get_ylim()[1]:
            axes.set_title(f"above: {x:.4g} at step {step:,}", **ASIDE)
    axes.yaxis.set_major_formatter("{x:,g}")


def late_values(points: Series) -> list[float]:
    """The values of the last nine tenths of the steps."""
    border = max(points, default=(0, 0.0))[0] / 10
    return [x for step, x in points if step >= border]


def set_scale(axes: Any, values: list[float], from_zero: bool = False) -> None:
    """An axis that shows these values; logarithmic where their range is wide."""
    low = min(values, default=0.0)
    high = max(values, default=0.0)
    if from_zero:
        axes.set_ylim(bottom=0)
    elif low > 0 and high > 20 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
    else:
        margin = 0.06 * ((high - low) or abs(high) or 1)
        axes.set_ylim(low - margin, high + margin)


def plot(axes: Any, pairs: Series, color: str, label: str, smooth: bool) -> None:
    """One curve; a long one pale, with its moving mean on top."""
    steps, values = [step for step, _ in pairs], [x for _, x in pairs]
    if smooth and len(pairs) > MANY_POINTS:
        axes.plot(steps, values, color=color, alpha=0.3, linewidth=0.8)
        width, sums = len(pairs) // 50, [0.0, *accumulate(values)]
        values = [(end - start) / width for start, end in zip(sums, sums[width:], strict=False)]
        steps, label = steps[width // 2 :][: len(values)], f"{label}, mean of {width}"
    marker = "o" if len(values) <= MARKED_POINTS else ""
    axes.plot(steps, values, color=color, label=label, linewidth=1.5, marker=marker, markersize=3)
