"""The report of a run with folds: each fold, and the mean and standard deviation of all.

As in `report.py`, nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..files import replacing, write_text
from . import report
from .report import NO_METRICS, Record, numbers, plot

Metrics = dict[str, dict[str, float]]
"""The metrics of each fold, by its name."""


def fold_folders(folder: Path) -> list[Path]:
    """Return the runs of the folds of a run, in order; none if it has no folds."""
    return sorted(folder.glob("fold-*"), key=lambda path: (len(path.name), path.name))


def with_spread(metrics: Metrics) -> Metrics:
    """Add the mean and the standard deviation over the folds."""
    values = [[*of_fold.values()] for of_fold in metrics.values()]
    names = [*next(iter(metrics.values()))]
    mean = dict(zip(names, np.mean(values, 0).tolist(), strict=True))
    std = dict(zip(names, np.std(values, 0).tolist(), strict=True))
    return {**metrics, "mean": mean, "std": std}


def fold_table(title: str, metrics: Metrics) -> list[str]:
    """Return the lines of a table with a row for each fold, the mean and the deviation."""
    names = [*next(iter(metrics.values()))]
    rows = [(name, *of_fold.values()) for name, of_fold in metrics.items()]
    return report.table(title, ("", *names), rows)


def write_reports(folder: Path) -> list[tuple[str, str]]:
    """Write the report of a run; of one with folds, that of each fold and a common one.

    Return its summary.
    """
    folds = fold_folders(folder)
    if not folds:
        return report.write_report(folder)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.set(title="validation loss of each fold", xlabel="step")
    lines = []
    metrics = {}
    for path in folds:
        for name, text in report.write_report(path):
            if name in ("state", "best", "alert"):
                lines.append((path.name, f"{name}: {text}"))
        record = Record(path)
        plot(axes, path.name, numbers(record.evaluations, "loss"))
        if record.best:
            unused = (*NO_METRICS, "step")
            metrics[path.name] = {
                name: value for name, value in record.best.items() if name not in unused
            }
    axes.legend()
    with replacing(folder / "curves.png") as file:
        figure.savefig(file)

    table = []
    if metrics:
        metrics = with_spread(metrics)
        table = fold_table("Best evaluation of each fold", metrics)
        for name, mean in metrics["mean"].items():
            spread = report.show(metrics["std"][name])
            lines.append(("mean", f"{name} {report.show(mean)} ± {spread}"))
    sections = [
        [f"# Run {folder.resolve().name}", "", *(f"- {name}: {text}" for name, text in lines)],
        ["![curves](curves.png)"],
        table,
        [f"- [{path.name}]({path.name}/report.md)" for path in folds],
    ]
    write_text(folder / "report.md", report.markdown(sections))
    return lines
