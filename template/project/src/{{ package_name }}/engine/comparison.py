"""Several runs next to each other, for `report --compare`: a table, and a plot of their losses.

Reads files only and imports no torch, as `report.py` does. What is written is in `runs/`, and is no
run, as it is no folder.
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
    markdown,
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

PAGE = "compare.md"
PLOT = "compare.png"
HEADER = (
    "run",
    "state",
    "best validation loss",
    "at step",
    "steps",
    "duration",
    "settings that differ",
)
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
    """Write compare.md and compare.png into the folder `target`.

    Returns the lines that the terminal shows, and the path of the page. Raises OSError where it
    cannot write.
    """
    entries = [read_entry(folder, name) for name, folder in named(folders).items()]
    entries.sort(key=by_loss)
    rows = cells_of(entries)
    target.mkdir(exist_ok=True)
    image = [f"![validation losses of the runs]({PLOT})"]
    notes = remarks(entries)
    undrawn = draw_comparison(target / PLOT, entries)
    if undrawn:
        image = []
        notes.append(undrawn)

    sections = [
        ["# Runs compared"],
        image,
        table("Runs, the lowest validation loss first", HEADER, rows),
        listed("Notes", notes),
    ]
    page = target / PAGE
    write_text(page, markdown(sections))
    lines = [*aligned([HEADER, *rows]), *(f"note: {note}" for note in notes)]
    return lines, page


def named(folders: Sequence[Path]) -> dict[str, Path]:
    """Return each folder once, under its name; under its path where several have the same name."""
    unique = {folder.resolve(): folder for folder in folders}
    count = Counter(path.name for path in unique)
    names = {}
    for path, folder in unique.items():
        name = path.name if count[path.name] == 1 else str(folder)
        names[name] = folder
    return names


def by_loss(entry: Entry) -> tuple[bool, float, str]:
    """Sort by the lowest validation loss; runs without one come last."""
    return not entry.best, entry.best.get("loss", 0.0), entry.name


# --- reading


def read_entry(folder: Path, name: str) -> Entry:
    """Return what the comparison shows of a run, also of one whose files make no sense."""
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
    """Return the settings of a run by dotted key; empty where they cannot be read."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), loader)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return dict(flat(tree)) if isinstance(tree, dict) else {}


def flat(tree: Row, prefix: str = "") -> list[tuple[str, Any]]:
    """Return (dotted key, value) of everything in a tree."""
    pairs = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            pairs += flat(value, f"{key}.")
        else:
            pairs.append((key, value))
    return pairs


def problems_of(record: Record, settings: Row) -> list[str]:
    """Say why a row of the table is not, or not yet, what the run will be."""
    problems = damaged_files(record, settings)
    state = record.status.get("state")
    if state == "running":
        problems.append(f"{STATES['running'].lower()}{last_entry(record)}")
    elif state == "failed":
        problems.append(f"failed: {record.status.get('reason')}")
    broken = broken_lines(record)
    if broken:
        problems.append(f"{broken} damaged line{'s' if broken > 1 else ''} in metrics.jsonl")
    if not record.history and not record.evaluations:
        problems.append("nothing was logged")
    elif not best_row(record.evaluations):
        problems.append("no finite validation loss")
    return problems


def damaged_files(record: Record, settings: Row) -> list[str]:
    """Name the files that every run writes and that are missing or damaged."""
    contents = {SETTINGS: settings, "status.json": record.status, "env.json": record.environment}
    problems = []
    for name in WRITTEN:
        if not contents[name]:
            is_there = (record.folder / name).exists()
            problems.append(f"{name} is damaged" if is_there else f"there is no {name}")
    return problems


def last_entry(record: Record) -> str:
    rows = [*record.history, *record.evaluations]
    times = [row["time"] for row in rows if "time" in row]
    if not times:
        return ""
    return f"; its last log entry is of {datetime.fromtimestamp(max(times)):%Y-%m-%d %H:%M:%S}"


def broken_lines(record: Record) -> int:
    """Count the lines of metrics.jsonl that are no entries."""
    path = record.folder / "metrics.jsonl"
    if not path.exists():
        return 0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return len(lines) - len(record.history) - len(record.evaluations)


# --- what is shown


def cells_of(entries: list[Entry]) -> list[Cells]:
    """Return the rows of the table."""
    keys = differing_keys(entries)
    rows = []
    for entry in entries:
        seconds = "" if entry.seconds is None else duration(entry.seconds)
        settings = []
        for key in keys:
            if key in entry.settings:
                settings.append(f"{key} {value_of(entry.settings[key])}")
        row = (
            entry.name,
            entry.state,
            entry.best.get("loss"),
            entry.best.get("step"),
            entry.steps,
            seconds,
            ", ".join(settings),
        )
        rows.append(row)
    return rows


def differing_keys(entries: list[Entry]) -> list[str]:
    """Return the settings that are not the same in all runs whose settings can be read."""
    trees = [entry.settings for entry in entries if entry.settings]
    differing = []
    for key in dict.fromkeys(key for tree in trees for key in tree):
        first = trees[0].get(key)
        if any(key not in tree or tree[key] != first for tree in trees):
            differing.append(key)
    return differing


def value_of(value: Any) -> str:
    """Return a setting as one would type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def remarks(entries: list[Entry]) -> list[str]:
    """Say what is damaged, running or failed, and which runs have other data than the best one."""
    lines = []
    for entry in entries:
        if entry.problems:
            lines.append(f"{entry.name}: {'; '.join(entry.problems)}")
    known = [entry for entry in entries if entry.data]
    others = [entry.name for entry in known if entry.data != known[0].data]
    if others:
        what = f"trained on other data than {known[0].name}, so that losses may not compare"
        lines.append(f"{', '.join(others)}: {what}")
    return lines


def aligned(rows: Sequence[Cells]) -> list[str]:
    """Return the lines of a table in columns, for the terminal."""
    texts = [[show(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        cells = [f"{text:<{width}}" for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def draw_comparison(path: Path, entries: list[Entry]) -> str:
    """Draw compare.png; return why not, where it cannot. An earlier one does not stay."""
    path.unlink(missing_ok=True)
    drawn = [entry for entry in entries if entry.curve]
    if not drawn:
        return "no run has a finite validation loss, so there is no plot"
    return draw(path, lambda: loss_curves(drawn))


def loss_curves(entries: list[Entry]) -> Figure:
    """Plot the validation loss of each run over the steps; of many runs the best ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    shown = entries[:MOST_CURVES]
    title = "validation loss"
    if len(shown) < len(entries):
        title += f", the best {len(shown)} of {len(entries)} runs"
    tidy(axes, title, "step")
    late: list[float] = []
    for number, entry in enumerate(shown):
        name = entry.name.replace("$", r"\$")  # else matplotlib takes it for a formula
        label = f"{entry.best['loss']:.4g}  {name}"
        plot(axes, entry.curve, f"C{number}", label, smooth=False)
        # Of each run by itself: a short one would else be among the first steps of a long one.
        late += late_values(entry.curve)
    set_scale(axes, late)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False, fontsize=9, title="lowest loss, run", title_fontsize=9)
    return figure
