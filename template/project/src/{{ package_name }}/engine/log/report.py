"""The report of a run, `report.md` with `curves.png`, and the layout of tables and plots.

Nothing here imports torch, so the report of a crashed run can be written on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import replacing, write_text
from ..plugins import discover
from .record import Record, Row, Series, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cells = tuple[Any, ...]
"""The cells of one line of a table."""

NO_METRICS = ("split", "samples_per_second", "seconds", "time")  # in the record of an evaluation
FEW_POINTS = 50  # a curve with more points has no markers


def write_report(folder: Path) -> list[tuple[str, str]]:
    """Write `report.md` and `curves.png` of a run; return its summary.

    Raises OSError if a file cannot be written.
    """
    record = Record(folder)
    lines = summary(record)
    changed = record.environment.get("changed", [])
    header = ("setting", "value", "default", "from")
    sections = [
        [f"# Run {folder.resolve().name}", "", *(f"- {name}: {text}" for name, text in lines)],
        [draw(folder / "curves.png", lambda: plots(curves(record)))],
        table("Settings that differ from the defaults", header, changed),
    ]
    for module in discover("hooks", "report_lines") + discover("commands", "report_lines"):
        sections.append(module.report_lines(folder))
    write_text(folder / "report.md", markdown(sections))
    return lines


def summary(record: Record) -> list[tuple[str, str]]:
    """Return (name, text) of the state, the best evaluation with its metrics, alerts and notes."""
    state = f"{record.state}, at step {record.step:,}"
    reason = record.status.get("reason")
    if reason:
        state += f": {reason}"
    best = "no evaluation with a finite loss yet"
    if record.best:
        best = f"validation loss {show(record.best['loss'])} at step {record.best['step']:,}"
    if record.baseline is not None:
        best += f" (baseline {show(record.baseline)})"
    lines = [("state", state), ("best", best)]
    of_best = []
    for name, value in record.best.items():
        if name not in (*NO_METRICS, "step", "loss"):
            of_best.append(f"{name} {show(value)}")
    if of_best:
        lines.append(("metrics", f"{', '.join(of_best)} (of the best step)"))
    for event in record.events:
        if event.get("event") == "alert":
            lines.append(("alert", f"step {event['step']:,}: {event['text']}"))
    for note in record.environment.get("notes", []):
        lines.append(("note", note))
    return lines


def side_by_side(rows: dict[str, Row]) -> tuple[Cells, list[Cells]]:
    """Return header and cells of a table: a line for each row, a column for each number."""
    names = [name for row in rows.values() for name in row if name not in NO_METRICS]
    names = list(dict.fromkeys(names))
    repeated = repeated_column(names, list(rows.values()))
    names = [name for name in names if name != repeated]
    cells = [(title, *(row.get(name) for name in names)) for title, row in rows.items()]
    return ("", *names), cells


def repeated_column(names: list[str], rows: list[Row]) -> str:
    """Return `loss`, or a metric that is the same number; of both, the one in fewer rows."""
    with_loss = [row for row in rows if "loss" in row]
    for name in names:
        with_name = [row for row in rows if name in row]
        pairs = [(show(row["loss"]), show(row[name])) for row in with_name if "loss" in row]
        if name != "loss" and pairs and all(loss == value for loss, value in pairs):
            return "loss" if len(with_name) > len(with_loss) else name
    return ""


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


def curves(record: Record) -> dict[str, dict[str, Series]]:
    """Return the curves of a run by the title of their plot: losses and learning rate."""
    losses = {
        "training": numbers(record.training, "loss"),
        "validation": numbers(record.evaluations, "loss"),
    }
    if record.baseline is not None:
        losses["baseline"] = [(row["step"], record.baseline) for row in record.evaluations]
    rates = {"training": numbers(record.training, "learning_rate")}
    return {"loss": losses, "learning_rate": rates}


def plots(titles: dict[str, dict[str, Series]]) -> Figure:
    """Plot curves over the steps, two plots in a line."""
    # pyplot is avoided because of its global state.
    from matplotlib.figure import Figure

    num_lines = -(-len(titles) // 2)
    figure = Figure(figsize=(12, 3 * num_lines), layout="constrained")
    for place, (title, series) in enumerate(titles.items(), start=1):
        axes = figure.add_subplot(num_lines, 2, place)
        tidy(axes, title.replace("_", " "), "step")
        plot(axes, series)
    return figure


def tidy(axes: Any, title: str, x: str = "", y: str = "") -> None:
    """Give a plot its title, axis labels and a pale grid."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def plot(axes: Any, series: dict[str, Series]) -> None:
    """Plot curves without their first tenth, whose values would flatten the others."""
    for label, pairs in series.items():
        late = [(step, value) for step, value in pairs if step >= pairs[-1][0] / 10]
        steps = [step for step, _ in late]
        values = [value for _, value in late]
        marker = "." if len(late) <= FEW_POINTS else ""
        axes.plot(steps, values, label=label, marker=marker)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
