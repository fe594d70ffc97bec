"""Where the splits of each series are, and which pieces of it may contain windows.

A piece is a series, or a part of it between two gaps that are longer than `--max-gap`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..engine.errors import UserError
from .panel import Panel
from .splits import SPLITS, split_shares, split_sizes


class Windows(NamedTuple):
    """What a window is, in rows."""

    history: int
    horizon: int
    season: int  # after how many rows values are alike
    stride: int = 1  # from one window of validation and test to the next


def find_borders(panel: Panel, split: str, split_by: str) -> np.ndarray:
    """Return where each series begins and where its splits end, (S, 4) rows."""
    if split_by == "end":
        train, _, rows = split.partition(",")
        if train.strip() != "rest" or "." in rows:
            remedy = "give the rest and rows of each series, such as rest,48,48"
            raise UserError(f"'{split}' is not a split by end", "--split", remedy)
        _, validation, test = split_shares(f"0,{rows}")
        return borders_by_end(panel, [int(validation), int(test)])
    if split_by == "series":
        return borders_by_series(panel, split)
    if len(panel.keys) > 1 and sum(split_shares(split)) > 1.5:
        remedy = "give fractions, or rows of each series with --split-by end"
        raise UserError("rows of which series?", f"--split {split}", remedy)
    num_rows = panel.ends - panel.firsts
    sizes = split_sizes(split, int(num_rows.sum()))
    return borders_by_time(panel, sizes)


def borders_by_end(panel: Panel, sizes: list[int]) -> np.ndarray:
    """Return the borders of splits that are the last rows of each series.

    sizes: rows of the validation and the test split.
    """
    validation, test = sizes
    test_begins = np.maximum(panel.ends - test, panel.firsts)
    validation_begins = np.maximum(test_begins - validation, panel.firsts)
    return np.stack([panel.firsts, validation_begins, test_begins, panel.ends], 1)


def borders_by_series(panel: Panel, split: str) -> np.ndarray:
    """Return the borders of splits that have different series, which are drawn at random."""
    num_series = len(panel.keys)
    sizes = split_sizes(split, num_series)
    split_of = np.repeat(np.arange(3), sizes)  # fewer than the series, if the sizes are numbers
    order = np.random.RandomState(0).permutation(num_series)
    borders = np.repeat(panel.firsts[:, None], 4, 1)
    for number, place in zip(order, split_of, strict=False):
        borders[number, place + 1 :] = panel.ends[number]
    return borders


def borders_by_time(panel: Panel, sizes: list[int]) -> np.ndarray:
    """Return the borders of splits that begin at the same times in all series.

    sizes: how many rows each split has, of all series together. The time before which so many rows
    with targets are is found without sorting them.
    """
    first = int(panel.times.min())
    last = int(panel.times.max())
    times = range(first, last + 1)

    def rows_until(time: int) -> int:
        rows = rows_before(panel, time + 1) - panel.firsts
        return int(rows.sum())

    columns = [panel.firsts]
    for num_rows in np.cumsum(sizes).tolist():
        time = first + bisect_right(times, num_rows, key=rows_until)
        columns.append(rows_before(panel, time))
    return np.stack(columns, 1)


def rows_before(panel: Panel, time: int) -> np.ndarray:
    """Return, for each series, the first of its rows with targets that is not before a time (S,).

    All series are searched at once: each step halves what is left of them.
    """
    low = panel.firsts.copy()
    high = panel.ends.copy()
    last = len(panel.times) - 1
    while (low < high).any():
        middle = (low + high) // 2
        times = panel.times[np.minimum(middle, last)]
        is_before = (low < high) & (times < time)
        low = np.where(is_before, middle + 1, low)
        high = np.where(is_before, high, middle)
    return low


def find_pieces(panel: Panel, borders: np.ndarray) -> np.ndarray:
    """Return the pieces (P, 7), in rows: four borders, the ends of targets and rows; the series.

    The rows to forecast are in the last piece of a series, which is the only one that ends after
    its targets.
    """
    starts = np.unique([*panel.firsts, *panel.breaks])
    ends = np.append(starts[1:], len(panel.times))
    series = np.searchsorted(panel.firsts, starts, side="right") - 1
    limits = np.column_stack([borders, panel.ends])
    within = np.clip(limits[series], starts[:, None], ends[:, None])
    return np.column_stack([within, ends, series])


def first_targets(
    pieces: np.ndarray, split: str, history: int, horizon: int, stride: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of the first window's first target, and the number of windows, (P,) each.

    A window belongs to the split that contains all its targets, and lies in one piece. Two further
    splits need no targets: `future`, the rows after the last target of each series, and `every`,
    the rows after each history. stride: rows from window to window; the last window of a piece
    always counts.
    """
    *borders, ends, stops, _ = pieces.T
    firsts = borders[0] + history
    if split in SPLITS:
        place = SPLITS.index(split)
        firsts = np.maximum(firsts, borders[place])
        lasts = borders[place + 1] - horizon
    else:
        lasts = np.minimum(ends, stops - horizon)
    if split == "future":
        firsts = np.maximum(firsts, ends)
    counts = np.maximum(lasts - firsts + stride, 0) // stride
    return lasts - (counts - 1) * stride, counts


def count_windows(pieces: np.ndarray, keys: Sequence[str], windows: Windows) -> list[str]:
    """Return how many windows each split has, such as `8,521 train`.

    Raises `UserError` if a split has none, except for a test split without rows. Prints the series
    without one.
    """
    history = windows.history
    horizon = windows.horizon
    *borders, _, _, series = pieces.T
    counts = []
    for place, name in enumerate(SPLITS):
        stride = windows.stride if place else 1
        _, of_pieces = first_targets(pieces, name, history, horizon, stride)
        count = of_pieces.sum()
        sizes = borders[place + 1] - borders[place]
        if count == 0 and (name != "test" or sizes.any()):
            longest = sizes.max()
            flag = "--horizon" if longest < horizon else "--history"
            most = f"at most {longest:,} rows of a series"
            what = f"no window fits into the split {name}, which has {most}"
            remedy = f"give it more rows, or `prepare` with a smaller {flag}"
            raise UserError(what, flag, remedy)
        counts.append(f"{count:,} {name}")
    _, of_pieces = first_targets(pieces, "every", history, horizon)
    of_series = np.bincount(series, of_pieces, minlength=len(keys))
    short = np.flatnonzero(of_series == 0)
    if len(short):
        names = ", ".join(keys[number] for number in short[:5])
        more = ", …" if len(short) > 5 else ""
        print(f"note: series too short for any window: {len(short):,} ({names}{more})")
    return counts
