"""Time frames: a series resampled into bars, their metadata, and their arrays.

The prepared dataset has an array for each frame, (rows, C), oldest first. The first frame has the
targets. For each further frame, `<name>.closed` counts the bars that have closed at each row of the
first frame. So no window sees a bar before its end. `windows` has the rows of the first targets of
all windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.errors import UserError
from ..engine.loading.store import StoreWriter
from .series import (
    JITTER,
    Series,
    count_windows,
    describe,
    describe_frame,
    is_close,
    seconds,
    without_gaps,
)
from .splits import borders

TEMPORARY = (".values", ".times")  # arrays of the series, which are deleted after resampling
GRIDS = [seconds for seconds in range(1, 86401) if 86400 % seconds == 0]  # parts of a day


@dataclass(frozen=True)
class Frame:
    """The bars of a time frame."""

    name: str
    history: int  # bars in a window
    bars: Series
    closed: np.ndarray  # (N,) how many of them have closed when a row of the first frame closes


def make_frames(series: Series, histories: dict[str, int], rules: dict[str, str]) -> list[Frame]:
    """Return the frames of these names, finest first; `rows` is the series without resampling.

    histories: how many bars a window has, by frame. rules: how to resample a column, if its name
    has no default in `BY_NAME`.
    """
    series = replace(series, step=find_grid(series))
    frames: list[Frame] = []
    for name, history in histories.items():
        step = series.step if name == "rows" else seconds(name)
        finer_step = frames[-1].bars.step if frames else 0
        if step <= finer_step or step % series.step:
            remedy = f"choose multiples of {series.step} s, the distance of rows, finest first"
            raise UserError(f"a frame of {step} s does not fit here", f"--frames {name}", remedy)
        bars = resample(series, step, rules)
        base = frames[0].bars if frames else bars
        closed = np.searchsorted(bars.times, base.times + base.step - step, "right")
        frames.append(Frame(name, history, bars, closed))
    return frames


# --- resampling


def find_grid(series: Series) -> int:
    """Return the distance of rows; if times jitter, the nearest part of a day."""
    is_exact = not (np.diff(series.times) % series.step).any()
    grid = min(GRIDS, key=lambda seconds: abs(seconds - series.step))
    if is_exact or not is_close(series.step, grid):
        return series.step
    print(f"note: times jitter around a grid of {grid} s, and are taken for it")
    return grid


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
BY_NAME = {"open": "first", "high": "max", "low": "min", "volume": "sum"}


def resample(series: Series, step: int, rules: dict[str, str]) -> Series:
    """Return the closed bars of `step` seconds, each with its start time.

    A row that is early by jitter belongs to the next bar. If a row is known only after the end of
    its bar, because rows are irregular, the bar's time is later. So a row that is early may come
    into the next bar, but never into one that has closed.
    """
    if step == series.step:
        return series
    bar_of_row = (series.times + int(JITTER / 2 * series.step)) // step
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
    first_targets = np.arange(reach, len(base.bars) - horizon + 1)
    if max_gap:
        first_targets = without_gaps(first_targets, base.bars, base.history, horizon, max_gap)
    writer.append("windows", first_targets)
    writer.append(base.name, base.bars.values)
    writer.append("time", base.bars.times)
    for frame in others:
        writer.append(frame.name, frame.bars.values)
        writer.append(f"{frame.name}.closed", frame.closed)
    writer.splits = splits
    return count_windows(first_targets, splits, horizon)


def fill(
    writer: StoreWriter,
    frames: list[Frame],
    targets: list[int],
    horizon: int,
    split: str,
    max_gap: str | None = None,
) -> list[str]:
    """Split, write and describe frames; return how many windows each split has.

    targets: the columns of the first frame to forecast.
    """
    base = frames[0].bars
    splits = borders(split, len(base))
    counts = write_frames(writer, frames, splits, horizon, max_gap)
    described = []
    for frame in frames:
        num_known = frame.closed[splits["train"][1] - 1]
        described.append(describe_frame(frame.name, frame.bars, frame.history, num_known))
    writer.facts = describe(base.names, targets, horizon, described)
    return counts
