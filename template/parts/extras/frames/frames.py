"""Time frames: a series resampled into bars, their metadata, and their arrays.

The prepared dataset has an array for each frame, (rows, C), oldest first. The first frame has the
targets. For each further frame, `<name>.closed` counts the bars that have closed at each row of the
first frame. So no window sees a bar before its end.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.data.store import StoreWriter
from ..engine.errors import UserError
from .scaling import BLOCK_ROWS, Scaler
from .series import JITTER, Series, blocks_of, longest_step
from .splits import Lines

UNITS = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 604800}
RULES = ("first", "max", "min", "last", "sum")
# Default rules by column name; all other columns take their last value.
BY_NAME = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
REDUCE = {"max": np.maximum, "min": np.minimum, "sum": np.add}
Splits = dict[str, list[int]]
MOSTLY = 0.95  # a grid needs this fraction of the rows in their places
DAY = 86400
STEPS = [seconds for seconds in range(1, DAY + 1) if DAY % seconds == 0]  # usual ones


@dataclass(frozen=True)
class Frame:
    """The bars of a time frame, and how many of them a window contains."""

    name: str
    bars: Series
    history: int


# --- resampling


def make_frames(
    series: Series,
    names: list[str],
    histories: list[int],
    rules: dict[str, str],
    usual_step: int | None = None,
) -> list[Frame]:
    """Return a frame for each name, finest first; `rows` is the series without resampling.

    rules: how to resample a column, if its name has no default in `BY_NAME`. usual_step: that of
    earlier files.
    """
    step, tolerance = find_exact_step(series.times, usual_step)
    series = replace(series, step=step)
    frames = []
    finer_step = 0  # the step of the previous frame
    for name, history in zip(names, histories, strict=True):
        step = series.step if name == "rows" else seconds(name)
        if step <= finer_step or step % series.step:
            remedy = f"choose multiples of {series.step} s, the distance of rows, finest first"
            raise UserError(f"a frame of {step} s does not fit here", f"--frames {name}", remedy)
        bars = resample(series, step, rules, tolerance)
        if len(bars) < history:
            what = f"{len(bars)} rows are shorter than a history of {history}"
            remedy = f"give at least {history} such rows, or `prepare` with a smaller --history"
            raise UserError(what, f"time frame '{name}'", remedy)
        frames.append(Frame(name, bars, history))
        finer_step = step
    return frames


def seconds(name: str, flag: str = "--frames") -> int:
    """Return the seconds of a frame's name, such as 900 for `M15`."""
    match = re.fullmatch(r"([SMHDW])(\d+)", name.upper())
    if not match or not int(match[2]):
        raise UserError(f"no time frame '{name}'", flag, "use names like M1, M15, H4, D1")
    return UNITS[match[1]] * int(match[2])


def resample(series: Series, step: int, rules: dict[str, str], tolerance: int = 0) -> Series:
    """Return the closed bars of `step` seconds, each with its start time.

    A row that is early by `tolerance` seconds belongs to the next bar. If a row is known only after
    the end of its bar, because rows are irregular, the bar's time is later. So a row that is early
    may come into the next bar, but never into one that has closed.
    """
    if step == series.step:
        return series
    bar_of_row = (series.times + tolerance) // step
    begins = np.flatnonzero(np.diff(bar_of_row, prepend=bar_of_row[0] - 1))
    last_rows = np.append(begins[1:], len(series)) - 1
    earliest_times = series.times[last_rows] + series.step - step
    times = np.maximum(bar_of_row[begins] * step, earliest_times)
    columns = []
    for name, column in zip(series.names, series.values.T, strict=True):
        rule = rules.get(name) or BY_NAME.get(name.lower(), "last")
        columns.append(_reduce(column, begins, last_rows, rule))
    is_closed = times + step <= series.times[-1] + series.step
    return Series(series.names, times[is_closed], np.stack(columns, 1)[is_closed], step)


def _reduce(column: np.ndarray, begins: np.ndarray, last_rows: np.ndarray, rule: str) -> np.ndarray:
    """Reduce a column (n,) to (bars,); begins and last_rows (bars,) are the rows of the bars."""
    if rule in REDUCE:
        return REDUCE[rule].reduceat(column, begins)
    if rule == "first":
        return column[begins]
    return column[last_rows]


# --- the grid of the rows


def find_exact_step(times: np.ndarray, usual_step: int | None = None) -> tuple[int, int]:
    """Return the distance of rows, and how early a row may be; print a note about longer gaps.

    The distance is the most frequent one, and the shorter one of two, unless the times jitter
    around a grid.
    """
    counts = Counter[int]()
    for start in range(0, len(times) - 1, BLOCK_ROWS):
        counts.update(np.diff(times[start : start + BLOCK_ROWS + 1]).tolist())
    step = min(counts, key=lambda distance: (-counts[distance], distance), default=1)
    tolerance = 0
    is_exact = all(distance % step == 0 for distance in counts)
    if counts and not (is_exact and usual_step in (None, step)):
        step, tolerance = find_grid(times[:BLOCK_ROWS], usual_step) or (step, 0)

    return step, tolerance


def find_grid(times: np.ndarray, usual_step: int | None) -> tuple[int, int] | None:
    """Return the step of the grid that times jitter around, and how early a row may be.

    None if there is no such grid. The step is `usual_step` or a usual part of a day.
    """
    distances = np.diff(times)
    typical = np.median(distances)
    step = min(STEPS, key=lambda seconds: abs(seconds - typical))
    if usual_step and abs(usual_step - typical) <= 2 * JITTER * usual_step:
        step = usual_step
    if abs(step - typical) > 2 * JITTER * typical:
        return None

    # The mean place of the rows between two multiples of the step, on a circle.
    angles = 2j * np.pi * (times % step) / step
    phase = round(np.angle(np.exp(angles).mean()) * step / (2 * np.pi))
    is_on_clock = abs(phase) <= JITTER / 2 * step
    if is_on_clock:
        phase = 0
    late = (times - phase + step // 2) % step - step // 2
    is_near = np.abs(late) <= JITTER * step
    is_apart = distances >= (1 - 2 * JITTER) * step
    if min(is_near.mean(), is_apart.mean()) < MOSTLY:
        return None

    furthest = np.abs(late[is_near]).max()
    if furthest:
        print(f"note: times are up to {furthest} s off a grid of {step} s, and are taken for it")
    return step, int(JITTER * step) if is_on_clock else 0


# --- what a window may see


def count_closed(bars: Series, base: Series, times: np.ndarray) -> np.ndarray:
    """Count the bars that have closed when a row of the first frame, with its time, closes."""
    return np.searchsorted(bars.times, times + base.step - bars.step, "right")


def find_reach(frames: list[Frame]) -> int:
    """Return the first row with a complete history in all frames."""
    base = frames[0].bars
    reach = 0
    for frame in frames:
        # The time of the row at which the bar closes that completes the history.
        end = frame.bars.times[frame.history - 1] + frame.bars.step - base.step
        reach = max(reach, int(np.searchsorted(base.times, end)) + 1)
    return reach


def find_windows(base: Frame, horizon: int, max_gap: int) -> np.ndarray:
    """Return the rows of first targets whose windows cross no gap of more than `max_gap` seconds.

    A window is the history and the targets in the first frame.
    """
    jitter = longest_step(base.bars.step) - base.bars.step
    is_gap = np.diff(base.bars.times) > max_gap + jitter
    begins = [0, *(np.flatnonzero(is_gap) + 1).tolist()]
    ends = [*begins[1:], len(base.bars)]
    rows = []
    for begin, end in zip(begins, ends, strict=True):
        rows.append(np.arange(begin + base.history, end - horizon + 1))
    return np.concatenate(rows)


# --- metadata and arrays


def describe(
    frames: list[Frame], border: int, targets: list[int], horizon: int
) -> tuple[dict[str, Any], Lines]:
    """Return the metadata that a model is built from, and a summary line for each column.

    Scales come from what is known before row `border` of the first frame, whose columns `targets`
    are to be forecast.
    """
    base = frames[0].bars
    scaled = []
    columns = []
    for frame in frames:
        scaler = learn_scale(frame.bars, base, border)
        mean, std = scaler.scale()
        fact = {"name": frame.name, "history": frame.history, "step": frame.bars.step}
        scaled.append({**fact, "mean": mean.tolist(), "std": std.tolist()})
        columns.append(scaler.columns(base.names))

    facts = {
        "columns": base.names,
        "targets": targets,
        "horizon": horizon,
        "frames": scaled,
        "target_mean": [[scaled[0]["mean"][place] for place in targets]],
        "target_std": [[scaled[0]["std"][place] for place in targets]],
    }
    return facts, columns[0]


def learn_scale(bars: Series, base: Series, border: int) -> Scaler:
    """Compute the scale of the bars that have closed before row `border` of the first frame."""
    scaler = Scaler(len(base.names))
    num_closed = count_closed(bars, base, base.times[border - 1])
    for values in blocks_of(bars.values[:num_closed]):
        scaler.add(values)
    return scaler


def write_frames(
    writer: StoreWriter,
    frames: list[Frame],
    splits: Splits,
    facts: dict[str, Any],
    max_gap: str | None = None,
) -> None:
    """Write frames with the metadata that `describe` returned for these or for earlier data.

    max_gap: the longest gap that a window may cross, such as `H2`.
    """
    base = frames[0].bars
    if max_gap:
        write_windows(writer, frames, splits, facts["horizon"], max_gap)
    for frame in frames:
        for values in blocks_of(frame.bars.values):
            writer.append(frame.name, values)
    for times in blocks_of(base.times):
        writer.append("time", times)
        for frame in frames[1:]:
            writer.append(f"{frame.name}.closed", count_closed(frame.bars, base, times))
    writer.facts = {**facts, "reach": find_reach(frames)}
    writer.splits = splits


def write_windows(
    writer: StoreWriter, frames: list[Frame], splits: Splits, horizon: int, max_gap: str
) -> None:
    """Write the rows of first targets whose windows cross no longer gap, and count the others.

    Raises `UserError` if a split that must have a window has none.
    """
    base = frames[0].bars
    where = f"--max-gap {max_gap}"
    longest = seconds(max_gap, "--max-gap")
    if longest < base.step:
        what = f"{longest} s is less than the distance of rows, {base.step} s"
        raise UserError(what, where, "allow a longer gap")
    if "input" in splits:
        horizon = 0
    rows = find_windows(frames[0], horizon, longest)
    reach = find_reach(frames)
    for name, (first, last) in splits.items():
        is_inside = (rows >= max(first, reach)) & (rows <= last - horizon)
        if name != "test" and not is_inside.any():
            what = f"each window of the split {name} crosses a longer gap"
            raise UserError(what, where, "allow a longer gap, or use a smaller --history")
    writer.append("windows", rows)
    left_out = len(base) - frames[0].history - horizon + 1 - len(rows)
    print(f"note: windows left out, across gaps longer than {max_gap}: {left_out:,}")
