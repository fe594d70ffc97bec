"""The ledger of experiments, and its page: which edits were kept, and how sure that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.files import parse, read_text, replacing, write_text
from ..engine.monitoring.report import Cells, markdown, table
from ..engine.runs import RUNS
from .paired import ENOUGH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = RUNS / "experiments"
LEDGER = FOLDER / "verdicts.jsonl"
PAGE = FOLDER / "experiments.md"
HEADER = ("verdict", "edit", "parent", "gain", "seeds", "steps", "minutes", "why")
Row = dict[str, Any]


def verdicts() -> list[Row]:
    """Return the rows of the ledger, the newest last; one that was repeated counts once."""
    rows = [parse(line, {"key": str, "verdict": str}) for line in read_text(LEDGER).split("\n")]
    return list({row["key"]: row for row in rows if "key" in row}.values())


def final_uses() -> int:
    """Return how often the test split has been used."""
    return sum(row["split"] == "test" for row in verdicts())


def add_verdict(row: Row) -> Path:
    """Add a row to the ledger, and write the page; return its path."""
    write_text(LEDGER, f"{read_text(LEDGER)}{json.dumps(row)}\n")
    rows = verdicts()
    with replacing(PAGE.with_suffix(".png")) as file:
        plot(rows).savefig(file)
    lines = table("Experiments, the newest last", HEADER, [cells(row) for row in rows])
    picture = f"![gains of the kept edits]({PAGE.stem}.png)"
    write_text(PAGE, markdown([["# Experiments"], [summary(rows)], [picture], lines]))
    return PAGE


def report_lines(folder: Path) -> list[str]:
    """Return the kept edits, for the report of a run."""
    rows = verdicts()
    kept = [cells(row) for row in rows if row["verdict"] == "keep"]
    return table(f"Experiments: {summary(rows)}", HEADER, kept)


def summary(rows: list[Row]) -> str:
    """Return how many edits were kept, and how many that would be if none helped."""
    kept = sum(row["verdict"] == "keep" for row in rows)
    false = sum(ENOUGH ** (-1 if row["no_confirm"] else -2) for row in rows)
    return f"{kept} of {len(rows)} edits kept; if none helped, {false:.2g} at most are expected"


def sentence(row: Row) -> str:
    """Return a verdict as one line."""
    parts = [gain_of(row), row["why"]]
    if row["seeds"]:
        steps = " and ".join(map(str, dict.fromkeys(row["steps"])))
        parts.append(f"{row['seeds']} seeds of {steps} steps")
    parts.append(f"{row['trainings']} trainings, {row['minutes']} minutes")
    start = "final, on the test split: " if row["split"] == "test" else ""
    return f"{row['verdict']}: {start}{'; '.join(filter(None, parts))}"


def gain_of(row: Row) -> str:
    """Return the median gain with its interval."""
    if row["effect"] is None:
        return ""
    direction = "better" if row["effect"] > 0 else "worse"
    gain = f"{row['metric']} {abs(row['effect']):.3g} % {direction}"
    if row["effect"] == 0:
        gain = f"{row['metric']} equal"
    if row["interval"]:
        low, high = row["interval"]
        gain += f" (90 % interval {low:+.3g} to {high:+.3g} %)"
    return gain


def cells(row: Row) -> Cells:
    numbers = (row["seeds"], row["steps"][0], row["minutes"])
    return (row["verdict"], row["edit"], row["parent"], gain_of(row), *numbers, row["why"])


def plot(rows: list[Row]) -> Figure:
    """Plot the gains of the kept edits in their order, with intervals and numbers of seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="0.5")
    for place, row in enumerate(rows, start=1):
        if row["verdict"] == "keep":
            axes.plot([place, place], row["interval"], color="C0")
            axes.plot(place, row["effect"], "o", color="C0")
            axes.annotate(f" n {row['seeds']}", (place, row["effect"]))
        else:
            axes.plot(place, 0, "|", color="0.5")
    axes.set(title=summary(rows), xlabel="experiment", ylabel="gain of kept edits, in percent")
    return figure
