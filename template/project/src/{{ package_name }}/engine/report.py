"""The one page of a run: `report.md` and `curves.png`, from the files in its folder.

Reads files only and imports no torch, so that a run which crashed, was killed or is still running
gets its page too. Whatever is missing or cut off is left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from inspect import signature
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from .files import read_json, read_rows, replacing, write_text
from .plugins import discover

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
Cells = tuple[Any, ...]
"""Of a line in a table."""
Series = list[tuple[int, float]]
"""(step, value) of rows that have a finite number."""

# Other states are shown as they are.
STATES = {
    "stopped": "Stopped early",
    "running": "Still running, or killed before it could write its end",
}


def steady(values: list[float]) -> float:
    """Return the median without the first value, which holds compilation and cold caches."""
    return median(values[1:] or values)


# Of each name in a row of metrics: its name on the page, what sums it up, factor and unit.
SPEED: dict[str, tuple[str, Callable[[list[float]], float], float, str]] = {
    "samples_per_second": ("samples/s, median", steady, 1, ""),
    "tokens_per_second": ("tokens/s, median", steady, 1, ""),
    "step_ms": ("time of a step, median", steady, 1, " ms"),
    "data_wait_fraction": ("waiting for data, median", steady, 100, " %"),
    "mfu": ("MFU, median", steady, 100, " %"),
    "skipped_steps": ("steps skipped, for an overflow of fp16", sum, 1, ""),
    "memory_mb": ("GPU memory, peak", max, 1, " MB"),
    "memory_reserved_mb": ("GPU memory, reserved", max, 1, " MB"),
}
# Of each panel below the losses in curves.png: title, and whether its axis begins at 0.
PANELS = {
    "learning_rate": ("learning rate", True),
    "samples_per_second": ("samples/s", True),
    "gradient_norm": ("gradient norm", False),
}
COLUMNS = 3  # of panels
NO_METRICS = ("step", "split", "loss", "seconds", "time")  # of an evaluation's row
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
        """The losses of training and of each evaluated split."""
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
        """The last known step: the status of a killed run is as old as its start."""
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
        rows = [*self.history, *self.evaluations, *self.events]
        times: list[float] = [row.get("time", 0) for row in rows]
        last = max(times, default=0)
        if started is None or not times or last < started:
            return None
        return last - started


def read_run(folder: Path) -> Record:
    """Read what a training left in the folder of its run."""
    history, evaluations = read_metrics(folder / "metrics.jsonl")
    return Record(
        folder,
        history,
        evaluations,
        events=read_rows(folder / "events.jsonl"),
        environment=read_json(folder / "env.json"),
        status=read_json(folder / "status.json"),
        result=read_json(folder / "evaluation.json"),
    )


def write_report(folder: Path) -> None:
    """Write `report.md` and `curves.png` into the folder of a run.

    Raises OSError where it cannot.
    """
    record = read_run(folder)
    undrawn = draw(folder / "curves.png", lambda: curves(record))
    write_text(folder / "report.md", page(record, undrawn))


def page(record: Record, undrawn: str) -> str:
    """Return the text of report.md.

    undrawn: why there is no curves.png; empty where there is one.
    """
    image = ["![losses, metrics, learning rate, speed and gradient norm](curves.png)"]
    notes = record.notes
    if undrawn:
        image = []
        notes = [*notes, undrawn]

    sections = [
        [f"# Run {record.name}", "", headline(record)],
        listed("Alerts", record.alerts),
        image,
        table("Losses", ("", "loss", "step"), losses(record.losses, record.baseline)),
        table(*validation_table(record.evaluations)),
        table(*result_table(record.result)),
        *parts_of_extras(record.folder),
        *conditions(record),
        listed("Notes", notes),
    ]
    return markdown(sections)


def conditions(record: Record) -> list[list[str]]:
    """Return the sections on speed, settings, checkpoints and machine."""
    environment = record.environment
    time = times(spent(record.history, record.evaluations, record.events))
    optimizations = [tuple(row.values()) for row in environment.get("optimizations", [])]
    changed = [tuple(row.values()) for row in environment.get("changed", [])]
    differ = "Settings that differ from the defaults"
    return [
        table("Speed and memory", ("", ""), speed(record.history)),
        table("Time", ("", "", "share", ""), time),
        table("Optimizations", ("", "state", "why"), optimizations),
        table(differ, ("setting", "value", "default", "from"), changed),
        table("Checkpoints", ("", "step", "MB", ""), checkpoints(record.folder / "checkpoints")),
        table("Machine and versions", ("", ""), machine(environment)),
    ]


def markdown(sections: list[list[str]]) -> str:
    """Join sections, each a list of lines; empty ones are left out."""
    texts = ["\n".join(lines) for lines in sections if lines]
    return "\n\n".join(texts) + "\n"


def parts_of_extras(folder: Path) -> list[list[str]]:
    """Return what each hook and command with a function `report(run)` adds to the page."""
    modules = [*discover("hooks", "report"), *discover("commands", "report")]
    functions = [module.report for module in modules]
    return [lines_of(folder) for lines_of in functions if len(signature(lines_of).parameters) == 1]


def summary(record: Record) -> list[str]:
    """Return what the terminal shows: state, best evaluation, duration, alerts and notes."""
    rows = [
        ("run", record.name),
        ("state", f"{record.state}, at step {record.step:,}"),
        ("best", best_line(record)),
        ("evaluated", result_line(record.result)),
        ("duration", duration_line(record)),
    ]
    for text in record.alerts or ["none"]:
        rows.append(("alert", text))
    for text in record.notes:
        rows.append(("note", text))
    return [f"{name:<11}{text}" for name, text in rows if text]


def best_line(record: Record) -> str:
    """Describe the lowest validation loss, with its metrics; without one, that of training."""
    row = best_row(record.evaluations)
    if row:
        line = f"{row['split']} loss {show(row['loss'])} at step {row['step']:,}"
        if record.baseline is not None:
            line += f" (baseline {show(record.baseline)})"
        same = same_as_loss(record.evaluations)
        for name in metrics_of([row]):
            if name not in same:
                line += f", {name} {show(row[name])}"
        return line

    missing = "no evaluation yet"
    if record.evaluations:
        missing = "no finite loss in any evaluation"
    pairs = record.losses["training"]
    if not pairs:
        return f"{missing}, no loss of training"
    step, loss = lowest(pairs)
    return f"{missing}; lowest training loss {show(loss)} at step {step:,}"


def lowest(pairs: Series) -> tuple[int, float]:
    """Return the step and the value of the lowest value."""
    return min(pairs, key=lambda pair: pair[1])


def result_line(result: Row) -> str:
    """Return the metrics of the last `evaluate`; empty where there was none."""
    metrics = [f"{name} {show(value)}" for name, value in result.get("metrics", {}).items()]
    if not metrics:
        return ""
    return f"{', '.join(metrics)} on {result.get('split')} at step {result.get('step')}"


def duration_line(record: Record) -> str:
    if record.seconds is None:
        return "unknown"
    pauses = ", with the pauses before it was resumed" if record.resumes else ""
    return f"{duration(record.seconds)} from the start to the last log entry{pauses}"


def read_metrics(path: Path) -> tuple[list[Row], list[Row]]:
    """Return (training steps, evaluations); lines that a crash cut off are left out."""
    rows = read_rows(path)
    steps = [row for row in rows if "split" not in row]
    evaluations = [row for row in rows if "split" in row]
    return steps, evaluations


def numbers(rows: Iterable[Row], name: str) -> Series:
    """Return (step, value) of the rows that have a finite number of this name."""
    series = []
    for row in rows:
        step = row["step"]
        value = row.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            series.append((step, value))
    return series


def headline(record: Record) -> str:
    """Say in one sentence how the run ended, where and when."""
    last = record.history[-1] if record.history else {}
    state, colon, reason = record.state.partition(": ")
    line = f"**{state}**{colon}{reason}, at step {record.step:,}"
    if "epoch" in last:
        line += f" of epoch {last['epoch']}"

    started = record.environment.get("started")
    if started:
        line += f"; started {datetime.fromtimestamp(started):%Y-%m-%d %H:%M}"
        seconds = last.get("time", 0) - started
        if seconds >= 0:
            line += f", last step logged {duration(seconds)} later"

    if record.resumes:
        steps = [f"{step:,}" for step in record.resumes]
        line += f"; resumed from step {', '.join(steps)}"
    return line + "."


def duration(seconds: float) -> str:
    """`3.2 s`, from a minute on `1:02:03`."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def losses(series: dict[str, Series], baseline: float | None = None) -> list[Cells]:
    """Return first, best and last loss of training and of each split, with their steps.

    baseline: the loss without a model, if known.
    """
    rows: list[Cells] = []
    if baseline is not None:
        rows.append(("baseline, without a model", baseline, ""))
    for name, pairs in series.items():
        if not pairs:
            continue
        points = {"first": pairs[0], "best": lowest(pairs), "last": pairs[-1]}
        for which, (step, loss) in points.items():
            rows.append((f"{name}, {which}", loss, step))
    return rows


def metrics_of(evaluations: list[Row]) -> list[str]:
    """Return the names of what was measured in addition to the loss."""
    names = dict.fromkeys(name for row in evaluations for name in row)
    return [name for name in names if name not in NO_METRICS]


def best_row(evaluations: list[Row]) -> Row:
    """Return the evaluation with the lowest loss; empty where there is none."""
    finite = [row for row in evaluations if numbers([row], "loss")]
    return min(finite, key=lambda row: row["loss"], default={})


def best_of(evaluations: list[Row]) -> int:
    """Return the step of the lowest loss; 0 where there is none."""
    step: int = best_row(evaluations).get("step", 0)
    return step


def validation_table(evaluations: list[Row]) -> tuple[str, Cells, list[Cells]]:
    """Show every metric at the best evaluation and at the last one."""
    best = best_of(evaluations)
    last = evaluations[-1]["step"] if evaluations else 0
    at_best = first_at(best, evaluations)
    at_last = first_at(last, evaluations)
    rows: list[Cells] = []
    for name in metrics_of(evaluations):
        rows.append((name, at_best.get(name), at_last.get(name)))
    return "Validation", ("metric", f"best, step {best:,}", f"last, step {last:,}"), rows


def first_at(step: int, evaluations: list[Row]) -> Row:
    """Return the first evaluation at a step; empty where there is none."""
    return next((row for row in evaluations if row["step"] == step), {})


def result_table(result: Row) -> tuple[str, Cells, list[Cells]]:
    """Show the last evaluation by command, with the trivial predictors next to the model."""
    baselines = result.get("baselines", {})
    title = f"Evaluation on {result.get('split')} at step {result.get('step')}"
    rows: list[Cells] = []
    for name, value in result.get("metrics", {}).items():
        others = [baseline.get(name) for baseline in baselines.values()]
        rows.append((name, value, *others))
    return title, ("metric", "model", *baselines), rows


def speed(history: list[Row]) -> list[Cells]:
    """Sum up the logged steps: medians of most, see SPEED."""
    rows = []
    for name, (label, sum_up, factor, unit) in SPEED.items():
        values = [value for _, value in numbers(history, name)]
        if values:
            rows.append((label, f"{show(factor * sum_up(values), 3)}{unit}"))
    return rows


def spent(
    history: list[Row], evaluations: list[Row], events: list[Row]
) -> list[tuple[str, float, str]]:
    """Return what took time, its seconds, and how often it came."""
    training = 0.0
    previous = 0
    for row in history:
        if row.get("step_ms"):
            training += max(row["step"] - previous, 0) * row["step_ms"] / 1000
            previous = row["step"]

    measured = [row.get("seconds") or 0 for row in evaluations]
    saves = seconds_of(events, "checkpoint")
    drawings = seconds_of(events, "pictures")  # a part of an evaluation's
    evaluation = max(sum(measured) - sum(drawings), 0.0)
    return [
        ("training", training, ""),
        ("evaluation", evaluation, f"{len(measured):,} times"),
        ("pictures", sum(drawings), f"{len(drawings):,} times"),
        ("checkpoints", sum(saves), f"{len(saves):,} saved"),
    ]


def seconds_of(events: list[Row], name: str) -> list[float]:
    """Return the seconds of each event of this name."""
    return [row.get("seconds") or 0 for row in events if row.get("event") == name]


def times(parts: list[tuple[str, float, str]]) -> list[Cells]:
    """Show where the time went, without what took none."""
    total = sum(seconds for _, seconds, _ in parts)
    rows: list[Cells] = []
    for name, seconds, often in parts:
        if seconds:
            rows.append((name, duration(seconds), f"{seconds / total:.1%}", often))
    return rows


def checkpoints(folder: Path) -> list[Cells]:
    """Show name, step and size in MB of each, and the loss of the best."""
    best = read_json(folder / "best.json")
    rows = []
    for manifest in sorted(folder.glob("step-*/manifest.json")):
        checkpoint = manifest.parent
        step = read_json(manifest).get("step")
        size = sum(file.stat().st_size for file in checkpoint.iterdir() if file.is_file())
        mark = ""
        if best.get("checkpoint") == checkpoint.name:
            mark = f"best, loss {show(best.get('loss'))}"
        rows.append((checkpoint.name, step, f"{size / 1e6:.1f}", mark))
    return rows


def machine(environment: Row) -> list[Cells]:
    known = {"device": environment.get("gpu")}
    known |= environment.get("versions", {})
    known["git"] = environment.get("git")
    known["command"] = " ".join(environment.get("argv", []))
    return [(name, value) for name, value in known.items() if value]


def table(title: str, header: Cells, rows: Sequence[Cells]) -> list[str]:
    """Return a heading with a Markdown table; nothing where there are no rows."""
    if not rows:
        return []
    lines = [f"## {title}", ""]
    for row in [header, ("---",) * len(header), *rows]:
        cells = [show(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def listed(title: str, lines: list[str]) -> list[str]:
    """Return a heading with a list; nothing where there are no lines."""
    if not lines:
        return []
    return [f"## {title}", "", *(f"- {line}" for line in lines)]


def show(value: Any, digits: int = 5) -> str:
    """Write a cell: floats by their significant digits, large ones without a fraction."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        is_large = 1e3 <= abs(value) < 1e15
        return f"{value:,.0f}" if is_large else f"{value:.{digits}g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def print_lines(lines: Iterable[str]) -> None:
    """Print; a character that the terminal's encoding does not have becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding))


# --- curves.png


def draw(path: Path, curves: Callable[[], Figure | None]) -> str:
    """Draw the curves; return why not, where there is nothing to draw or it does not work."""
    try:
        figure = curves()
        if figure is None:
            return "no step was logged, so there are no curves"
        with replacing(path) as file:
            figure.savefig(file, format="png", dpi=120)
    except Exception as error:  # the page matters more than its plot, above all after a crash
        return f"{path.name} was not drawn: {type(error).__name__}: {error}"
    return ""


def curves(record: Record) -> Figure | None:
    """Plot all of it over the steps; None where nothing was logged.

    The losses are on top; below them is what PANELS names, and each metric of the evaluations.
    """
    if not record.history and not record.evaluations:
        return None
    # Without pyplot and its global state.
    from matplotlib.figure import Figure

    same = same_as_loss(record.evaluations)
    best = best_of(record.evaluations)
    small = small_panels(record, same)
    rows = math.ceil(len(small) / COLUMNS)
    figure = Figure(figsize=(11, 3.8 + 2.2 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, COLUMNS, height_ratios=[1.7, *[1] * rows])

    top = figure.add_subplot(grid[0, :])
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
    """Return the names of the metrics that equal the loss in every evaluation."""
    names = []
    for name in metrics_of(evaluations):
        pairs = [(row.get(name) or 0.0, row.get("loss") or 0.0) for row in evaluations]
        if all(math.isclose(*pair, rel_tol=1e-5) for pair in pairs):
            names.append(name)
    return names


def small_panels(record: Record, without: list[str]) -> list[tuple[dict[str, Series], str, bool]]:
    """Return curves, title, and whether the axis begins at 0, of each panel below the losses.

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
    """Draw a line at the loss without a model; off the axis, the legend says it instead."""
    low, high = axes.get_ylim()
    label = f"baseline {baseline:.4g}"
    if low <= baseline <= high:
        axes.axhline(baseline, color="0.5", linewidth=1, linestyle="--", label=label)
        return
    side = "above" if baseline > high else "below"
    axes.plot([], [], linestyle="none", label=f"{label}, {side} this plot")


def mark_resumes(figure: Figure, steps: list[int]) -> None:
    """Draw a dotted line in each panel where the run was resumed."""
    for axes in figure.axes:
        for step in steps:
            axes.axvline(step, color="0.5", linewidth=0.9, linestyle=":")
    if steps:
        figure.supxlabel("dotted: resumed", fontsize=9, color="0.4")


def tidy(axes: Any, title: str, x: str = "", y: str = "") -> None:
    """Give a plot the look of all: title, names of the axes, a pale grid."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def panel(
    axes: Any, series: dict[str, Series], title: str, from_zero: bool = False, best: int = 0
) -> None:
    """Plot curves in the scale of the last nine tenths of the run.

    Its first values would flatten all others. best: the step of an evaluation that gets a mark and
    its value.
    """
    tidy(axes, title, "step")
    points: Series = []
    for label, pairs in series.items():
        plot(axes, pairs, COLORS.get(label, "C2"), label, smooth=title != "learning rate")
        if label != "training":
            mark_best(axes, pairs, best)
        points += pairs
    set_scale(axes, late_values(points), from_zero)
    mark_first(axes, series.get("training", []))
    axes.yaxis.set_major_formatter("{x:,g}")


def mark_best(axes: Any, pairs: Series, best: int) -> None:
    """Mark the best evaluation with a star, and name its value."""
    values = dict(pairs)
    if best in values:
        label = f"best {values[best]:.4g}, step {best:,}"
        axes.plot(best, values[best], "*", color="C3", markersize=11, label=label)
        axes.set_title(f"best {values[best]:.4g}", **ASIDE)


def mark_first(axes: Any, pairs: Series) -> None:
    """Name the first value where it is above the axis."""
    for step, value in pairs[:1]:
        if value > axes.get_ylim()[1]:
            axes.set_title(f"above: {value:.4g} at step {step:,}", **ASIDE)


def late_values(points: Series) -> list[float]:
    """Return the values of the last nine tenths of the steps."""
    border = max(points, default=(0, 0.0))[0] / 10
    return [value for step, value in points if step >= border]


def set_scale(axes: Any, values: list[float], from_zero: bool = False) -> None:
    """Let an axis show these values; logarithmic where their range is wide."""
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
    """Draw one curve; a long one pale, with its moving mean on top."""
    steps = [step for step, _ in pairs]
    values = [value for _, value in pairs]
    if smooth and len(pairs) > MANY_POINTS:
        axes.plot(steps, values, color=color, alpha=0.3, linewidth=0.8)
        width = len(pairs) // 50
        values = moving_mean(values, width)
        steps = steps[width // 2 :][: len(values)]
        label = f"{label}, mean of {width}"
    marker = "o" if len(values) <= MARKED_POINTS else ""
    axes.plot(steps, values, color=color, label=label, linewidth=1.5, marker=marker, markersize=3)


def moving_mean(values: list[float], width: int) -> list[float]:
    """Return the mean of each `width` values in a row."""
    sums = [0.0, *accumulate(values)]
    return [(end - start) / width for start, end in zip(sums, sums[width:], strict=False)]
