"""Reads what a run has written, and makes its report: `report.md` with `curves.png`.

A run that crashed, was killed or is still training can be read, too: missing and truncated entries
are left out. Nothing here imports torch, so the report can be written on another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import NUMBER, read_json, read_rows, replacing, write_text
from ..plugins import discover

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
Series = dict[int, float]
"""The values of the rows that have one, by step."""

Cells = tuple[Any, ...]
"""The cells of one line of a table."""

# In the record of an evaluation.
NO_METRICS = ("split", "samples_per_second", "seconds", "time", "best_by")


class Record:
    """The files of a run; empty where they are missing or damaged."""

    def __init__(self, folder: Path):
        self.folder = folder
        rows = read_rows(folder / "metrics.jsonl")
        self.training = [row for row in rows if "split" not in row]
        self.evaluations = [row for row in rows if "split" in row]
        self.events = read_rows(folder / "events.jsonl")
        # Where the time went until the last checkpoint: seconds by kind.
        self.times: Any = Counter()
        for event in self.events:
            for kind, seconds in event.get("times", {}).items():
                if isinstance(seconds, NUMBER) and 0 < seconds < 1e9:
                    # A Counter may hold fractions; typeshed knows it with integers only.
                    self.times[kind] = seconds  # type: ignore[assignment]
        self.environment = read_json(folder / "env.json", changed=list, notes=list)
        self.status = read_json(folder / "status.json", step=int)

    @property
    def state(self) -> str:
        """How the run ended, in a word or two."""
        state = str(self.status.get("state", "running"))
        return "running or killed" if state == "running" else state

    @property
    def step(self) -> int:
        """The last known step. The status of a killed run is old, so the log counts, too."""
        logged = [row["step"] for row in self.training]
        return int(max([self.status.get("step", 0), *logged]))

    @property
    def best(self) -> Row:
        """The best evaluation so far; empty if there is none.

        Each one that was better than those before it names the metric.
        """
        best = [row for row in self.evaluations if row.get("best_by")]
        return best[-1] if best else {}

    @property
    def baseline(self) -> float | None:
        """The loss without a model, if the run measured it."""
        events = [row for row in self.events if row.get("event") == "baseline_loss"]
        return events[0].get("loss") if events else None


def numbers(rows: Iterable[Row], name: str) -> Series:
    """Return the values `name` of the rows that have a number; None stands for nan and infinity."""
    return {row["step"]: row[name] for row in rows if isinstance(row.get(name), NUMBER)}


# --- the report


def write_report(folder: Path) -> list[tuple[str, str]]:
    """Write `report.md` and `curves.png` of a run; return its summary.

    Raises OSError if a file cannot be written.
    """
    record = Record(folder)
    lines = summary(record)
    rows = record.environment.get("changed", [])
    changed = [tuple(row) for row in rows if isinstance(row, list)]
    header = ("setting", "value", "default", "from")
    with replacing(folder / "curves.png") as file:
        curves(record).savefig(file)
    sections = [
        [f"# Run {folder.resolve().name}", "", *(f"- {name}: {text}" for name, text in lines)],
        ["![curves](curves.png)"],
        table("Settings that differ from the defaults", header, changed),
    ]
    for module in discover("hooks", "report_lines") + discover("commands", "report_lines"):
        sections.append(module.report_lines(folder))
    write_text(folder / "report.md", markdown(sections))
    return lines


def summary(record: Record) -> list[tuple[str, str]]:
    """Return (name, text) of state, best evaluation with its metrics, time, alerts and notes."""
    state = f"{record.state}, at step {record.step:,}"
    reason = record.status.get("reason")
    if reason:
        state += f": {reason}"
    best = "no finite evaluation yet"
    metric = str(record.best.get("best_by", "loss"))
    if record.best:
        value = show(record.best.get(metric))
        best = f"validation {metric} {value} at step {record.best['step']:,}"
    if record.baseline is not None:
        of_loss = "" if metric == "loss" else "loss "
        best += f" ({of_loss}baseline {show(record.baseline)})"
    lines = [("state", state), ("best", best)]
    of_best = []
    for name, value in record.best.items():
        if name not in (*NO_METRICS, "step", metric):
            of_best.append(f"{name} {show(value)}")
    if of_best:
        lines.append(("metrics", f"{', '.join(of_best)} (of the best step)"))
    if record.times:
        seconds = record.times.total()
        parts = [f"{kind} {part / seconds:.0%}" for kind, part in record.times.most_common()]
        lines.append(("time", f"{duration(seconds)}: {', '.join(parts)}"))
    for event in record.events:
        if event.get("event") == "alert":
            lines.append(("alert", f"step {event['step']:,}: {event.get('text')}"))
    for note in record.environment.get("notes", []):
        lines.append(("note", note))
    return lines


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


def show(value: object, digits: int = 5) -> str:
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
    """Format seconds as `1:02:03`, from a day on as `12 days, 1:02:03`."""
    return str(timedelta(seconds=round(min(seconds, 1e13))))


# --- plots


def curves(record: Record) -> Figure:
    """Plot the losses, with the baseline, the learning rate, and where the time went."""
    # pyplot is avoided because of its global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 3.5), layout="constrained")
    losses, rates, times = figure.subplots(1, 3)
    losses.set(title="loss", xlabel="step")
    plot(losses, "training", numbers(record.training, "loss"))
    plot(losses, "validation", numbers(record.evaluations, "loss"))
    if record.baseline is not None:
        losses.axhline(record.baseline, color="0.5", label="baseline")
    losses.legend()
    rates.set(title="learning rate", xlabel="step")
    plot(rates, "training", numbers(record.training, "learning_rate"))
    times.set(title="where the time went, in seconds")
    times.barh([*record.times], [*record.times.values()])
    return figure


def plot(axes: Axes, label: str, series: Series) -> None:
    """Plot a curve without its first tenth, whose values would flatten the others."""
    first = max(series, default=0) / 10
    steps = [step for step in series if step >= first]
    axes.plot(steps, [series[step] for step in steps], ".-", markersize=3, label=label)
