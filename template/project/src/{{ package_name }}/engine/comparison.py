"""Several runs side by side, for `report --compare`: a table, and a plot of their validation losses.

Reads files only and imports no torch, as `report.py` does. What is written lies in `runs/`, and is no run,
as it is no folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from .files import read_json, write_text
from .report import (
    STATES,
    Cells,
    Record,
    Row,
    Series,
    best_row,
    draw,
    duration,
    late_values,
    listed,
    numbers,
    plot,
    read_run,
    set_scale,
    show,
    table,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, PLOT = "compare.md", "compare.png"
HEADER = ("run", "state", "best validation loss", "at step", "steps", "duration", "settings that differ")
MOST_CURVES = 10  # as many as there are colors
SETTINGS = "config.resolved.yaml"
WRITTEN = (SETTINGS, "status.json", "env.json")  # by every run


class Entry(NamedTuple):
    """A run in the comparison."""

    name: str
    state: str
    best: Row  # the evaluation with the lowest loss; empty where there is none
    curve: Series
    steps: int
    seconds: float | None
    settings: Row  # by dotted key
    data: frozenset[str]  # fingerprints
    problems: list[str]


def write_comparison(folders: Sequence[Path], target: Path) -> tuple[list[str], Path]:
    """Writes compare.md and compare.png into the folder `target`.

    Returns the lines that the terminal shows, and the path of the page. Raises OSError where it cannot write.
    """
    entries = sorted((read_entry(folder, name) for name, folder in named(folders).items()), key=by_loss)
    rows = cells_of(entries)
    target.mkdir(exist_ok=True)
    undrawn = draw_comparison(target / PLOT, entries)
    notes = [*remarks(entries), *([undrawn] if undrawn else [])]
    parts = [
        ["# Runs compared"],
        [] if undrawn else [f"![validation losses of the runs]({PLOT})"],
        table("Runs, the lowest validation loss first", HEADER, rows),
        listed("Notes", notes),
    ]
    write_text(target / PAGE, "\n\n".join("\n".join(part) for part in parts if part) + "\n")
    return [*aligned([HEADER, *rows]), *(f"note: {note}" for note in notes)], target / PAGE


def named(folders: Sequence[Path]) -> dict[str, Path]:
    """Each folder once, under its name; under its path where several have the same name."""
    unique = {folder.resolve(): folder for folder in folders}
    often = Counter(path.name for path in unique)
    return {path.name if often[path.name] == 1 else str(folder): folder for path, folder in unique.items()}


def by_loss(entry: Entry) -> tuple[bool, float, str]:
    """Sorts by the lowest validation loss; runs without one come last."""
    return not entry.best, entry.best.get("loss", 0.0), entry.name


# --- reading


def read_entry(folder: Path, name: str) -> Entry:
    """What the comparison shows of a run; one whose files make no sense is an entry, too."""
    try:
        return entry_of(read_run(folder), name)
    except Exception as error:  # a single damaged run must not hide all others
        why = f"its files cannot be read: {type(error).__name__}: {error}"
        return Entry(name, "damaged", {}, [], 0, None, {}, frozenset(), [why])


def entry_of(record: Record, name: str) -> Entry:
    settings = read_settings(record.folder / SETTINGS)
    return Entry(
        name=name,
        state=state_of(record),
        best=best_row(record.evaluations),
        curve=numbers(record.evaluations, "loss"),
        steps=record.step,
        seconds=record.seconds,
        settings=settings,
        data=frozenset(read_json(record.folder / "data.json")),
        problems=problems_of(record, settings),
    )


def state_of(record: Record) -> str:
    """One word, or two."""
    state = record.status.get("state")
    if state is None:
        return "unknown"
    return "running or killed" if state == "running" else str(state)


def read_settings(path: Path) -> Row:
    """The settings of a run by dotted key; empty where the file is missing or damaged."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), loader)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return dict(flat(tree)) if isinstance(tree, dict) else {}


def flat(tree: Row, prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of everything in a tree."""
    pairs = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        pairs += flat(value, f"{key}.") if isinstance(value, dict) else [(key, value)]
    return pairs


def problems_of(record: Record, settings: Row) -> list[str]:
    """Why a row of the table is not, or not yet, what the run will be."""
    problems = []
    readable = {SETTINGS: settings, "status.json": record.status, "env.json": record.environment}
    for name in WRITTEN:
        if not readable[name]:
            there = (record.folder / name).exists()
            problems.append(f"{name} is damaged" if there else f"there is no {name}")
    if record.status.get("state") == "running":
        problems.append(f"{STATES['running'].lower()}{last_entry(record)}")
    elif record.status.get("state") == "failed":
        problems.append(f"failed: {record.status.get('reason')}")
    if broken := broken_lines(record):
        problems.append(f"{broken} damaged line{'s' if broken > 1 else ''} in metrics.jsonl")
    if not record.history and not record.evaluations:
        problems.append("nothing was logged")
    elif not best_row(record.evaluations):
        problems.append("no finite validation loss")
    return problems


def last_entry(record: Record) -> str:
    times = [row["time"] for row in (*record.history, *record.evaluations) if "time" in row]
    if not times:
        return ""
    return f"; its last log entry is of {datetime.fromtimestamp(max(times)):%Y-%m-%d %H:%M:%S}"


def broken_lines(record: Record) -> int:
    """Lines of metrics.jsonl that are no entries."""
    path = record.folder / "metrics.jsonl"
    if not path.exists():
        return 0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return len(lines) - len(record.history) - len(record.evaluations)


# --- what is shown


def cells_of(entries: list[Entry]) -> list[Cells]:
    """The rows of the table."""
    keys = differing_keys(entries)
    rows = []
    for entry in entries:
        loss, step = entry.best.get("loss"), entry.best.get("step")
        seconds = "" if entry.seconds is None else duration(entry.seconds)
        settings = [f"{key} {value_of(entry.settings[key])}" for key in keys if key in entry.settings]
        rows.append((entry.name, entry.state, loss, step, entry.steps, seconds, ", ".join(settings)))
    return rows


def differing_keys(entries: list[Entry]) -> list[str]:
    """The settings that are not the same in all runs whose settings can be read."""
    trees = [entry.settings for entry in entries if entry.settings]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return [key for key in keys if any(key not in tree or tree[key] != trees[0].get(key) for tree in trees)]


def value_of(value: Any) -> str:
    """A setting as one would type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def remarks(entries: list[Entry]) -> list[str]:
    """What is damaged, running or failed; and runs whose losses are of other data than the best one's."""
    lines = [f"{entry.name}: {'; '.join(entry.problems)}" for entry in entries if entry.problems]
    known = [entry for entry in entries if entry.data]
    others = [entry.name for entry in known if entry.data != known[0].data]
    if others:
        names = ", ".join(others)
        lines.append(f"{names}: trained on other data than {known[0].name}, so that losses may not compare")
    return lines


def aligned(rows: Sequence[Cells]) -> list[str]:
    """Lines of a table in columns, for the terminal."""
    texts = [[show(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        cells = [f"{text:<{width}}" for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def draw_comparison(path: Path, entries: list[Entry]) -> str:
    """Draws compare.png; returns why not, where it cannot. An earlier comparison's does not stay."""
    path.unlink(missing_ok=True)
    drawn = [entry for entry in entries if entry.curve]
    if not drawn:
        return "no run has a finite validation loss, so there is no plot"
    return draw(path, lambda: loss_curves(drawn))


def loss_curves(entries: list[Entry]) -> Figure:
    """The validation loss of each run over the steps; of many runs the best ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    shown = entries[:MOST_CURVES]
    count = "" if len(shown) == len(entries) else f", the best {len(shown)} of {len(entries)} runs"
    tidy(axes, f"validation loss{count}", "step")
    late: list[float] = []
    for number, entry in enumerate(shown):
        name = entry.name.replace("$", r"\$")  # else matplotlib takes it for a formula
        plot(axes, entry.curve, f"C{number}", f"{entry.best['loss']:.4g}  {name}", smooth=False)
        # Of each run by itself: a short one would else be among the first steps of a long one.
        late += late_values(entry.curve)
    set_scale(axes, late)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False, fontsize=9, title="lowest loss, run", title_fontsize=9)
    return figure
