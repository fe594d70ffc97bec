"""Time frames: a series resampled into bars, their metadata, and their arrays.

The prepared dataset has an array for each frame, (rows, C), oldest first. The first frame has the
targets. For each further frame, `<name>.closed` counts the bars that have closed at each row of the
first frame. So no window sees a bar before its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.data.store import StoreWriter
from ..engine.errors import UserError
from .scaling import BLOCK_ROWS
from .series import JITTER, Series, count_windows, describe, describe_frame, is_close
from .splits import Lines, borders

TEMPORARY = (".values", ".times")  # arrays of the series, which are deleted after resampling
UNITS = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 604800}
MOSTLY = 0.95  # a grid needs this fraction of the rows in their places
STEPS = [seconds for seconds in range(1, 86401) if 86400 % seconds == 0]  # parts of a day


@dataclass(frozen=True)
class Frame:
    """The bars of a time frame."""

    name: str
    history: int  # bars in a window
    bars: Series
    closed: np.ndarray  # (N,) how many of them have closed when a row of the first frame closes


def make_frames(
    series: Series, histories: dict[str, int], rules: dict[str, str], usual_step: int | None = None
) -> list[Frame]:
    """Return the frames of these names, finest first; `rows` is the series without resampling.

    histories: how many bars a window has, by frame. rules: how to resample a column, if its name
    has no default in `BY_NAME`. usual_step: that of earlier files.
    """
    row_step, tolerance = find_grid(series, usual_step)
    series = replace(series, step=row_step)
    frames: list[Frame] = []
    for name, history in histories.items():
        step = series.step if name == "rows" else seconds(name)
        finer_step = frames[-1].bars.step if frames else 0
        if step <= finer_step or step % series.step:
            remedy = f"choose multiples of {series.step} s, the distance of rows, finest first"
            raise UserError(f"a frame of {step} s does not fit here", f"--frames {name}", remedy)
        bars = resample(series, step, rules, tolerance)
        base = frames[0].bars if frames else bars
        closed = np.searchsorted(bars.times, base.times + base.step - step, "right")
        frames.append(Frame(name, history, bars, closed))
    return frames


def seconds(name: str) -> int:
    """Return the seconds of a frame's name, such as 900 for `M15`."""
    match = re.fullmatch(r"([SMHDW])([1-9]\d*)", name.upper())
    if not match:
        remedy = "use names like M1, M15, H4, D1"
        raise UserError(f"no time frame '{name}'", "--frames, --max-gap", remedy)
    return UNITS[match[1]] * int(match[2])


# --- resampling


def find_grid(series: Series, usual_step: int | None) -> tuple[int, int]:
    """Return the distance of rows, and how early a row may be.

    The distance is the most frequent one, and the shorter one of two, unless the times jitter
    around a grid, whose step is `usual_step` or a part of a day.
    """
    if len(series) < 2:
        return 1, 0
    distances, counts = np.unique(np.diff(series.times), return_counts=True)
    step = int(distances[counts.argmax()])
    if usual_step in (None, step) and not (distances % step).any():
        return step, 0

    grid = min(STEPS, key=lambda seconds: abs(seconds - series.step))
    if usual_step and is_close(series.step, usual_step):
        grid = usual_step
    times = series.times[:BLOCK_ROWS]
    # The mean place of the rows between two multiples of the step, on a circle.
    angles = 2j * np.pi * (times % grid) / grid
    phase = round(np.angle(np.exp(angles).mean()) * grid / (2 * np.pi))
    is_on_clock = abs(phase) <= JITTER / 2 * grid
    if is_on_clock:
        phase = 0
    late = (times - phase + grid // 2) % grid - grid // 2
    is_grid = is_close(series.step, grid) and (np.abs(late) <= JITTER * grid).mean() >= MOSTLY
    if not is_grid:
        return step, 0
    print(f"note: times jitter around a grid of {grid} s, and are taken for it")
    return grid, int(JITTER * grid) if is_on_clock else 0


def last_of(column: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Return the last value of each bar. begins: the first rows of the bars."""
    return column[np.roll(begins, -1) - 1]  # `begins` starts with 0, and row −1 is the last one


RULES: dict[str, Any] = {
    "first": np.take,
    "max": np.maximum.reduceat,
    "min": np.minimum.reduceat,
    "last": last_of,
    "sum": np.add.reduceat,
}
# Default rules by column name; all other columns take their last value.
BY_NAME = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}


def resample(series: Series, step: int, rules: dict[str, str], tolerance: int) -> Series:
    """Return the closed bars of `step` seconds, each with its start time.

    A row that is early by `tolerance` seconds belongs to the next bar. If a row is known only after
    the end of its bar, because rows are irregular, the bar's time is later. So a row that is early
    may come into the next bar, but never into one that has closed.
    """
    if step == series.step:
        return series
    bar_of_row = (series.times + tolerance) // step
    begins = np.flatnonzero(np.diff(bar_of_row, prepend=bar_of_row[0] - 1))
    earliest_times = last_of(series.times, begins) + series.step - step
    times = np.maximum(bar_of_row[begins] * step, earliest_times)
    columns = []
    for name, column in zip(series.names, series.values.T, strict=True):
        rule = rules.get(name) or BY_NAME.get(name.lower(), "last")
        columns.append(RULES[rule](column, begins))
    is_closed = times + step <= series.times[-1] + series.step
    return Series(series.names, times[is_closed], np.stack(columns, 1)[is_closed], step)


# --- windows and arrays


def find_windows(base: Frame, horizon: int, max_gap: str | None) -> np.ndarray:
    """Return the rows of the first targets of all windows that cross no longer gap than `max_gap`.

    A window is the history and the targets in the first frame, `base`.
    """
    rows = np.arange(base.history, len(base.bars) - horizon + 1)
    if max_gap is None:
        return rows
    longest = seconds(max_gap) + 2 * JITTER * base.bars.step
    is_gap = np.diff(base.bars.times) > longest
    num_gaps = np.append(0, np.cumsum(is_gap))  # before each row
    is_whole = num_gaps[rows - base.history] == num_gaps[rows + horizon - 1]
    num_left_out = len(rows) - np.count_nonzero(is_whole)
    print(f"note: windows left out, across gaps longer than {max_gap}: {num_left_out:,}")
    return rows[is_whole]


def write_frames(
    writer: StoreWriter,
    frames: list[Frame],
    splits: dict[str, list[int]],
    horizon: int,
    max_gap: str | None,
) -> list[str]:
    """Write the arrays of frames; return how many windows each split has.

    max_gap: the longest gap that a window may cross, such as `H2`.
    """
    base, *others = frames
    # The first row with a complete history in all frames.
    reach = max(int(np.searchsorted(frame.closed, frame.history)) + 1 for frame in frames)
    first_targets = find_windows(base, horizon, max_gap)
    counts = count_windows(first_targets[first_targets >= reach], splits, horizon)
    if max_gap:
        writer.append("windows", first_targets)
    writer.append(base.name, base.bars.values)
    writer.append("time", base.bars.times)
    for frame in others:
        writer.append(frame.name, frame.bars.values)
        writer.append(f"{frame.name}.closed", frame.closed)
    writer.splits = splits
    writer.facts["reach"] = reach
    return counts


def fill(
    writer: StoreWriter,
    frames: list[Frame],
    targets: list[int],
    horizon: int,
    split: str,
    max_gap: str | None = None,
) -> tuple[list[str], Lines]:
    """Split, write and describe frames; return the numbers of windows, and a line for each column.

    targets: the columns of the first frame to forecast.
    """
    base = frames[0].bars
    splits = borders(split, len(base))
    counts = write_frames(writer, frames, splits, horizon, max_gap)
    described = []
    for frame in frames:
        num_known = frame.closed[splits["train"][1] - 1]
        described.append(describe_frame(frame.name, frame.bars, frame.history, num_known))
    writer.facts |= describe(base.names, targets, horizon, [facts for facts, _ in described])
    return counts, described[0][1]
