"""The report of a run, `report.md` with `curves.png`, and the layout of tables and plots.

Nothing here imports torch, so the report of a crashed run can be written on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .files import replacing, write_text
from .metrics_file import write_table
from .plugins import discover
from .record import Record, Row, Series, numbers, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cells = tuple[Any, ...]
"""The cells of one line of a table."""


def steady(values: list[float]) -> float:
    """Return the median without the first value, which includes compilation and cold caches."""
    return median(values[1:] or values)


# For each name in the metrics: its label in the report, and the function that summarizes it.
SPEED: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "samples_per_second": ("samples/s, median", steady),
    "tokens_per_second": ("tokens/s, median", steady),
    "step_ms": ("ms per step, median", steady),
    "data_wait_fraction": ("data wait, median fraction of the time", steady),
    "mfu": ("MFU, median", steady),
    "skipped_steps": ("steps skipped because of fp16 overflow", sum),
    "memory_mb": ("GPU memory in use, peak MB", max),
    "memory_reserved_mb": ("GPU memory reserved, peak MB", max),
}
CURVES = ("learning_rate", "samples_per_second", "gradient_norm")  # plotted next to the losses
FEW_POINTS = 50  # a curve with more points has no markers


def write_report(folder: Path) -> Record:
    """Write `report.md`, `curves.png` and `metrics.csv` of a run; return what they show.

    Raises OSError if a file cannot be written.
    """
    record = read_run(folder)
    image = draw(folder / "curves.png", lambda: curves(record))
    write_text(folder / "report.md", page(record, image))
    write_table(folder)
    return record


def page(record: Record, image: str) -> str:
    """Return the text of report.md. image: its line for curves.png."""
    environment = record.environment
    lines = [f"- {name}: {text}" for name, text in summary(record)]
    sections = [[f"# Run {record.folder.resolve().name}", "", *lines], [image]]
    sections.append(table("Losses and metrics", *losses(record)))
    sections.append(evaluation(record.result))
    sections += parts_of_extras(record.folder)

    sections.append(table("Speed and memory", ("", ""), speed(record.history)))
    optimizations = [tuple(row.values()) for row in environment.get("optimizations", [])]
    sections.append(table("Optimizations", ("", "state", "why"), optimizations))
    changed = [tuple(row.values()) for row in environment.get("changed", [])]
    header = ("setting", "value", "default", "from")
    sections.append(table("Settings that differ from the defaults", header, changed))
    sections.append(table("Machine and versions", ("", ""), machine(environment)))
    return markdown(sections)


def parts_of_extras(folder: Path) -> list[list[str]]:
    """Return the lines that hooks and commands add through a function `report_lines(run)`."""
    modules = [*discover("hooks", "report_lines"), *discover("commands", "report_lines")]
    return [module.report_lines(folder) for module in modules]


def summary(record: Record) -> list[tuple[str, str]]:
    """Return (name, text) of the state, the best evaluation, the duration, alerts and notes."""
    state = f"{record.state}, at step {record.step:,}"
    reason = record.status.get("reason")
    if reason:
        state += f": {reason}"
    lines = [("state", state), ("best", best_line(record))]
    started = record.environment.get("started")
    if started is not None and record.seconds is not None:
        when = f"{datetime.fromtimestamp(started):%Y-%m-%d %H:%M}"
        lines.append(("duration", f"{duration(record.seconds)} from {when} to the last log entry"))
    for step in record.status.get("resumes", []):
        lines.append(("resumed", f"from step {step:,}"))
    for alert in record.of_kind("alert"):
        lines.append(("alert", f"step {alert['step']:,}: {alert['text']}"))
    for note in record.environment.get("notes", []):
        lines.append(("note", note))
    return lines


def best_line(record: Record) -> str:
    """Describe the evaluation with the lowest loss."""
    best = record.best
    if not record.evaluations:
        return "none: no evaluation ran yet"
    if not best:
        return "no evaluation with a finite loss yet"
    line = f"{best['split']} loss {show(best['loss'])} at step {best['step']:,}"
    if record.baseline is not None:
        line += f" (baseline {show(record.baseline)})"
    for name in record.metrics:
        line += f", {name} {show(best.get(name))}"
    return line


def losses(record: Record) -> tuple[Cells, list[Cells]]:
    """Return header and rows: first and last of training, best and last evaluation, baseline."""
    rows: dict[str, Row] = {}
    if record.history:
        rows["training, first"] = record.history[0]
        rows["training, last"] = record.history[-1]
    if record.evaluations:
        rows["validation, best"] = record.best
        rows["validation, last"] = record.evaluations[-1]
    if record.baseline is not None:
        rows["baseline, without a model"] = {"loss": record.baseline}
    return side_by_side(rows, ["step", "loss", *record.metrics])


def evaluation(result: Row) -> list[str]:
    """Return the table of the last `evaluate`: metrics of the model and of simple baselines."""
    if not result:
        return []
    title = f"Evaluation on {result['split']} at step {result['step']}"
    if result.get("weights", "trained") != "trained":
        title += f", {result['weights']} weights"
    return table(title, *side_by_side({"model": result["metrics"], **result["baselines"]}))


def side_by_side(rows: dict[str, Row], names: Sequence[str] = ()) -> tuple[Cells, list[Cells]]:
    """Return header and cells of a table: a line for each row, a column for each of the names."""
    names = names or list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [(title, *(row.get(name) for name in names)) for title, row in rows.items()]
    return ("", *names), cells


def speed(history: list[Row]) -> list[Cells]:
    """Summarize the speed and memory of the logged steps, as SPEED defines it."""
    rows = []
    for name, (label, sum_up) in SPEED.items():
        values = [value for _, value in numbers(history, name)]
        if values:
            rows.append((label, f"{sum_up(values):,.4g}"))
    return rows


def machine(environment: Row) -> list[Cells]:
    return [
        ("device", environment.get("gpu")),
        *environment.get("versions", {}).items(),
        ("git", environment.get("git")),
        ("command", " ".join(environment.get("argv", []))),
    ]


# --- text


def markdown(sections: list[list[str]]) -> str:
    """Join sections, each a list of lines; empty ones are left out."""
    texts = ["\n".join(lines) for lines in sections if lines]
    return "\n\n".join(texts) + "\n"


def table(title: str, header: Cells, rows: Sequence[Cells]) -> list[str]:
    """Return a heading with a Markdown table, or nothing if there are no rows."""
    if not rows:
        return []
    lines = [f"## {title}", ""]
    for row in [header, ("---",) * len(header), *rows]:
        cells = [show(cell).replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def aligned(header: Cells, rows: Sequence[Cells]) -> list[str]:
    """Return the lines of a table in columns, for the terminal."""
    texts = [[show(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def show(value: Any, digits: int = 5) -> str:
    """Format a cell: floats with so many significant digits, large ones without decimals."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        is_large = 1e3 <= abs(value) < 1e15
        return f"{value:,.0f}" if is_large else f"{value:.{digits}g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("\n", " ")


def duration(seconds: float) -> str:
    """Format seconds as `3.2 s`, from a minute on as `1:02:03` or `12 days, 1:02:03`."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


# --- plots


def draw(path: Path, make_figure: Callable[[], Figure]) -> str:
    """Save a figure; return its line of Markdown, or why it was not drawn."""
    try:
        with replacing(path) as file:
            make_figure().savefig(file, format="png", dpi=120)
    except Exception as error:  # the report matters more than its plot, above all after a crash
        return f"{path.name} was not drawn: {type(error).__name__}: {error}"
    return f"![{path.stem}]({path.name})"


def curves(record: Record) -> Figure:
    """Plot the losses, the curves in CURVES, and the metrics of the evaluations over the steps."""
    # pyplot is avoided because of its global state.
    from matplotlib.figure import Figure

    panels = {"loss": loss_series(record)}
    for name in CURVES:
        panels[name] = {"training": numbers(record.history, name)}
    for name in record.metrics:
        panels[name] = {"validation": numbers(record.evaluations, name)}

    num_rows = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(11, 3 * num_rows), layout="constrained")
    for place, (name, series) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(num_rows, 2, place)
        tidy(axes, name.replace("_", " "), "step")
        plot(axes, series)
    return figure


def loss_series(record: Record) -> dict[str, Series]:
    """Return the losses by name, with the best one and the baseline as curves of their own."""
    series = {
        "training": numbers(record.history, "loss"),
        "validation": numbers(record.evaluations, "loss"),
    }
    best = record.best
    if best:
        name = f"best {best['loss']:.4g}, step {best['step']:,}"
        series[name] = [(best["step"], best["loss"])]
    if record.baseline is not None:
        name = f"baseline {record.baseline:.4g}"
        series[name] = [(1, record.baseline), (record.step, record.baseline)]
    return series


def tidy(axes: Any, title: str, x: str = "", y: str = "") -> None:
    """Give a plot its title, axis labels and a pale grid."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def plot(axes: Any, series: dict[str, Series]) -> None:
    """Plot curves, scaled to the last nine tenths of each, as first values would flatten them."""
    late: list[float] = []
    for label, pairs in series.items():
        steps = [step for step, _ in pairs]
        values = [value for _, value in pairs]
        marker = "." if len(pairs) <= FEW_POINTS else ""
        axes.plot(steps, values, label=label, marker=marker)
        border = max(steps, default=0) / 10
        late += [value for step, value in pairs if step >= border]

    low = min(late, default=0.0)
    high = max(late, default=1.0)
    margin = 0.06 * ((high - low) or abs(high) or 1)
    axes.set_ylim(low - margin, high + margin)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
