"""Adds to report.md what it leaves out: metrics, speed, memory, optimizations, versions.

`metrics.csv` has the records of `metrics.jsonl` as a table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ..engine.files import NUMBER, read_json, read_rows, replacing, write_text
from ..engine.monitoring.report import (
    NO_METRICS,
    Cells,
    Record,
    Row,
    duration,
    markdown,
    numbers,
    plot,
    table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def report_lines(folder: Path) -> list[str]:
    """Write `metrics.csv` and `details.png` of a run; return tables for report.md."""
    record = Record(folder)
    environment = read_json(folder / "env.json", argv=list, versions=dict, optimizations=list)
    write_csv(folder / "metrics.csv", read_rows(folder / "metrics.jsonl"))
    with replacing(folder / "details.png") as file:
        curves(record).savefig(file)
    optimizations = []
    for row in environment.get("optimizations", []):
        if isinstance(row, dict):
            optimizations.append(tuple(row.values()))
    sections = [
        ["![details](details.png)"],
        table("Losses and metrics", *losses(record)),
        evaluation(read_json(folder / "evaluation.json", metrics=dict)),
        table("Speed and memory", ("", ""), speed(record.training)),
        table("Optimizations", ("", "state", "why"), optimizations),
        table("Machine and versions", ("", ""), machine(record, environment)),
    ]
    return markdown(sections).splitlines()


def write_csv(path: Path, records: list[Row]) -> None:
    """Write a line for each record, and a column for each name."""
    names = dict.fromkeys(name for record in records for name in record if name != "bits")
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write_text(path, text.getvalue())


def curves(record: Record) -> Figure:
    """Plot the gradient norm, the speed and each metric, two plots in a line."""
    from matplotlib.figure import Figure

    series = {}
    for name in ("gradient_norm", "samples_per_second"):
        series[name] = numbers(record.training, name)
    names = dict.fromkeys(name for row in record.evaluations for name in row)
    for name in names:
        if name not in (*NO_METRICS, "step", "loss"):
            series[name] = numbers(record.evaluations, name)

    num_lines = -(-len(series) // 2)
    figure = Figure(figsize=(12, 3 * num_lines), layout="constrained")
    for place, (name, values) in enumerate(series.items(), start=1):
        axes = figure.add_subplot(num_lines, 2, place)
        axes.set(xlabel="step")
        title = name.replace("_", " ").encode(errors="replace").decode()
        axes.set_title(title, parse_math=False)  # a damaged name may have a $, or half a character
        plot(axes, name, values)
    return figure


def losses(record: Record) -> tuple[Cells, list[Cells]]:
    """Return header and rows: training, best and last evaluation, baseline."""
    rows: dict[str, Row] = {}
    if record.evaluations:
        rows["validation, best"] = record.best
        rows["validation, last"] = record.evaluations[-1]
    if record.training:
        rows["training, last"] = {name: record.training[-1].get(name) for name in ("step", "loss")}
    if record.baseline is not None:
        rows["baseline, without a model"] = {"loss": record.baseline}
    return side_by_side(rows)


def side_by_side(rows: dict[str, Row]) -> tuple[Cells, list[Cells]]:
    """Return header and cells of a table: a line for each row, a column for each number."""
    names = [name for row in rows.values() for name in row if name not in NO_METRICS]
    names = list(dict.fromkeys(names))
    cells = [(title, *(row.get(name) for name in names)) for title, row in rows.items()]
    return ("", *names), cells


def evaluation(result: Row) -> list[str]:
    """Return the table of the last `evaluate`: metrics of the model, and the baseline's loss."""
    if "metrics" not in result:
        return []
    title = f"Evaluation on {result.get('split')} at step {result.get('step')}"
    if result.get("weights", "trained") != "trained":
        title += f", {result['weights']} weights"
    rows = {"model": result["metrics"]}
    if result.get("baseline_loss") is not None:
        rows["baseline, without a model"] = {"loss": result["baseline_loss"]}
    return table(title, *side_by_side(rows))


def speed(records: list[Row]) -> list[Cells]:
    """Summarize the speed and memory of the logged steps, as SPEED defines it."""
    rows = []
    for name, (label, sum_up) in SPEED.items():
        values = list(numbers(records, name).values())
        if values:
            rows.append((label, f"{sum_up(values):,.4g}"))
    return rows


def machine(record: Record, environment: Row) -> list[Cells]:
    """Return when, where and how the run was trained. environment: of env.json."""
    resumed = [row["step"] for row in record.events if row.get("event") == "resumed"]
    return [
        ("device", environment.get("gpu")),
        *environment.get("versions", {}).items(),
        ("git", environment.get("git")),
        ("command", " ".join(map(str, environment.get("argv", [])))),
        ("resumed from steps", ", ".join(f"{step:,}" for step in resumed)),
        ("duration", f"{duration(seconds(record))} from the start to the last log entry"),
    ]


def seconds(record: Record) -> float:
    """Return the seconds from the start to the last log entry, including pauses."""
    entries = record.training + record.evaluations + record.events
    times = [row["time"] for row in entries if isinstance(row.get("time"), NUMBER)]
    started = read_json(record.folder / "env.json", started=NUMBER).get("started")
    if started is None or not times:
        return 0.0
    return float(max(max(times) - started, 0))
