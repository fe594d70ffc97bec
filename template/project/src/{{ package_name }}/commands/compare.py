"""Compare several runs: write a table and a plot of their evaluations to runs/compare.md."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import read_json, replacing, write_text
from ..engine.monitoring.report import (
    Cells,
    Record,
    duration,
    markdown,
    numbers,
    plot,
    show,
    table,
)
from ..engine.runs import RUNS, all_runs, find_run, typed_run
from ..engine.sources import read
from ..hooks.details import seconds
from ..settings import Evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("at step", "steps", "duration", "settings that differ")
MOST_CURVES = 10  # the number of colors


def arguments(parser: argparse.ArgumentParser) -> None:
    runs_help = "names or folders of runs (default: all runs)"
    add = partial(parser.add_argument, type=typed_run, metavar="RUN")
    add("runs", nargs="*", default=argparse.SUPPRESS, help=runs_help)
    add("--run", "--runs", dest="runs", nargs="+", help="the same")


def main(arguments: argparse.Namespace, load: Any) -> None:
    """Write the page and its plot; print the table and the path of the page."""
    # If there is no run at all, `find_run` raises the error.
    folders = [find_run(name) for name in arguments.runs or all_runs()] or [find_run()]
    print("\n".join(write_comparison(folders, RUNS)))


def write_comparison(folders: Sequence[Path], target: Path) -> list[str]:
    """Write compare.md and compare.png into the folder `target`.

    Returns the lines that the terminal shows. Raises OSError if it cannot read or write.
    """
    records = [Record(folder) for folder in dict.fromkeys(folders)]
    metric = metric_of(records)
    records.sort(key=lambda record: cost(record, metric))
    header = ("run", "state", f"best {metric}", *COLUMNS)
    rows = table_rows(records, metric)
    target.mkdir(exist_ok=True)
    with replacing(target / "compare.png") as file:
        curves(records, metric).savefig(file)
    page = target / "compare.md"
    title = f"Runs, the best validation {metric} first"
    write_text(page, markdown([["![compare](compare.png)"], table(title, header, rows)]))
    return [*aligned(header, rows), "", str(page)]


def metric_of(records: list[Record]) -> str:
    """Return the metric that decides in all runs; the loss if they differ."""
    metrics = {str(record.best.get("best_by", "loss")) for record in records if record.best}
    return metrics.pop() if len(metrics) == 1 else "loss"


def cost(record: Record, metric: str) -> float:
    """Return the metric of the best evaluation so that lower is better; inf if there is none."""
    value = record.best.get(metric)
    if value is None:
        return math.inf
    return float(-value if metric in Evaluation.higher_is_better else value)


def table_rows(records: list[Record], metric: str) -> list[Cells]:
    """Return the cells of each run, with the settings that differ between runs."""
    settings = [read_settings(record.folder) for record in records]
    known = [values for values in settings if values]
    keys = dict.fromkeys(key for values in known for key in values)
    differing = [key for key in keys if len({values.get(key) for values in known}) > 1]
    rows = []
    for record, values in zip(records, settings, strict=True):
        row = (
            record.folder,
            record.state,
            record.best.get(metric),
            record.best.get("step"),
            record.step,
            duration(seconds(record)),
            ", ".join(f"{key} {values[key]}" for key in differing if key in values),
        )
        rows.append(row)
    return rows


def aligned(header: Cells, rows: Sequence[Cells]) -> list[str]:
    """Return the lines of a table in columns, for the terminal."""
    texts = [[show(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def read_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a run by dotted key, and the seal of its data's manifest.

    The result is empty if the run has no readable settings.
    """
    settings: dict[str, str] = {}
    with suppress(OSError, UnicodeError, UserError):
        tree = read(folder / "config.resolved.yaml")
        if not tree:
            return {}
        for section, values in tree.items():
            if isinstance(values, dict):
                for name, value in values.items():
                    settings[f"{section}.{name}"] = str(value)
            else:
                settings[section] = str(values)
        settings["data"] = read_json(folder / "data.json", seal=str).get("seal", "")[:12]
    return settings


def curves(records: list[Record], metric: str) -> Figure:
    """Plot a metric of the validation over the steps, for at most the ten best runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    axes.set(title=f"validation {metric} of the best {MOST_CURVES} runs", xlabel="step")
    for record in records[:MOST_CURVES]:
        label = f"{show(record.best.get(metric), 4)}  {record.folder}"
        plot(axes, label, numbers(record.evaluations, metric))
    axes.legend()
    return figure
