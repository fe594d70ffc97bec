"""At which times the rows of a series come: at each step, in some hours of a week, or in months.

A grid numbers these times, so that rows without a gap have numbers next to each other. What is
absent, and when the rows after the last one come, follows from the numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from ..engine.errors import UserError

DAY = 86400
WEEK = 7 * DAY
MONTH = 365.2425 * DAY / 12
MOST_SLOTS = 10_080  # of a week: its minutes
SHORTEST = 4 * WEEK  # a shorter file does not show how its weeks are
RARE = 0.1  # a slot with fewer rows than this fraction of the usual number is closed
USUAL = 0.2  # the fraction of distances that makes one the usual one
JITTER = 0.2  # distances of rows may differ from the usual one by this fraction
UNITS = {"S": 1, "M": 60, "H": 3600, "D": DAY, "W": WEEK}
SAMPLE = 1 << 20  # rows that show the grid


@dataclass(frozen=True)
class Grid:
    """Numbers the times at which rows are expected."""

    step: int  # seconds between rows, or 1 for rows that have no times
    months: int = 0  # between rows, instead of a step
    phase: int = 0  # of the first row: a time below a step, or a month below `months`
    shift: int = 0  # a day if rows are at the ends of months, for they begin the next one then
    open: tuple[int, ...] = ()  # the slots of a week that have rows, if not all of them have
    zone: str = ""  # whose clocks decide when a day begins; times are those of the clocks below

    def numbers(self, times: np.ndarray) -> np.ndarray:
        """Return the number of each time; one between two slots has that of the nearest one."""
        if self.months:
            month = (times + self.shift).astype("M8[s]").astype("M8[M]").astype(np.int64)
            return (month - self.phase) // self.months
        slots = (times - self.phase + self.step // 2) // self.step
        per_week = WEEK // self.step
        # A closed slot has the number of the next open one.
        places = np.searchsorted(self.open, slots % per_week)
        return slots // per_week * len(self.open) + places

    def times(self, numbers: np.ndarray) -> np.ndarray:
        """Return the times that have these numbers."""
        if self.months:
            month = (numbers * self.months + self.phase).astype("M8[M]")
            return month.astype("M8[s]").astype(np.int64) - self.shift
        places = np.array(self.open)[numbers % len(self.open)]
        slots = numbers // len(self.open) * (WEEK // self.step) + places
        return slots * self.step + self.phase

    def after(self, times: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the times of rows which come so many `rows` after rows of these times."""
        if not self.months and not self.open:
            return times + rows * self.step
        numbers = self.numbers(times)
        offsets = times - self.times(numbers)
        if self.open:
            is_closed = self.is_closed(times)
            return self.times(numbers + rows - is_closed) + np.where(is_closed, 0, offsets)
        # The 31st of a month is the last day of a shorter one.
        months = (self.times(numbers + rows) + self.shift).astype("M8[s]").astype("M8[M]")
        last_days = (months + 1).astype("M8[s]").astype(np.int64) - self.shift - DAY
        return np.minimum(self.times(numbers + rows) + offsets, last_days + offsets % DAY)

    def absent(self, times: np.ndarray) -> np.ndarray:
        """Return how many rows are missing between each row and the next one."""
        if self.open:
            steps = np.diff(self.numbers(times)) + self.is_closed(times[:-1])
        elif self.months:
            steps = np.diff(self.numbers(times))
        else:  # by distances, for a clock may be a little fast or slow
            steps = (np.diff(times) + self.step // 2) // self.step
        return np.maximum(steps - 1, 0)

    def is_closed(self, times: np.ndarray) -> np.ndarray:
        """Whether a row is in a closed slot, and so before the one whose number it has."""
        return self.times(self.numbers(times)) - times > self.step // 2


def seconds(name: str) -> int:
    """Return the seconds of a distance in time, such as 7200 for `H2`."""
    match = re.fullmatch(r"([SMHDW])([1-9]\d*)", name.upper())
    if not match:
        remedy = "use names like M30, H4, D2, W1"
        raise UserError(f"no distance in time '{name}'", "--max-gap", remedy)
    return UNITS[match[1]] * int(match[2])


def find_grid(times: np.ndarray, ends: np.ndarray, zone: str = "") -> Grid:
    """Return the grid of the times (N,) of several series, in any order.

    ends: those of the series. zone: whose clocks decide when a day begins; steps below a day do not
    follow clocks, which repeat an hour in autumn.
    """
    num_series = max(int(np.searchsorted(ends, SAMPLE, side="right")), 1)
    series = np.repeat(np.arange(num_series), np.diff(ends[:num_series], prepend=0))
    times = np.array(times[: len(series)])
    grid = grid_of(times, series)
    if zone and grid.step >= DAY:
        from .clocks import to_local

        grid = replace(grid_of(to_local(times, zone), series), zone=zone)
    return grid


def grid_of(times: np.ndarray, series: np.ndarray) -> Grid:
    """Return the grid of times. series: the number of the series of each one, ascending."""
    times = times[np.lexsort([times, series])]
    # Two rows may have one time, which is an error later.
    is_next = (np.diff(series, prepend=-1) == 0) & (np.diff(times, prepend=times[0]) > 0)
    distances = np.diff(times, prepend=0)[is_next]
    if not len(distances):
        return Grid(1)
    values, counts = np.unique(distances, return_counts=True)
    step = int(np.median(distances))
    if counts.max() > USUAL * len(distances):  # more robust than the median if rows are absent
        step = int(values[counts.argmax()])
    else:  # the mean of jittered distances is more exact than their median
        is_usual = np.abs(distances - step) <= JITTER * step
        step = round(distances[is_usual].mean())
    return find_months(times, is_next, step) or find_week(times, step)


def find_months(times: np.ndarray, is_next: np.ndarray, step: int) -> Grid | None:
    """Return a grid of one or several months, if the rows are in different months."""
    months = round(step / MONTH)
    if not months or abs(step / MONTH - months) > 0.1 or (12 % months and months % 12):
        return None  # it is no part of a year, and no number of years
    next_day = (times + DAY).astype("M8[s]")
    is_last_day = next_day - next_day.astype("M8[M]") < np.timedelta64(DAY, "s")
    shift = DAY if is_last_day.all() else 0
    numbers = Grid(step, 1, 0, shift).numbers(times)
    grid = Grid(step, months, int(numbers[0] % months), shift)
    is_apart = np.diff(grid.numbers(times), prepend=0)[is_next] > 0
    return grid if is_apart.all() else None


def find_week(times: np.ndarray, step: int) -> Grid:
    """Return a grid of a step, without the nights or weekends that have no rows."""
    regular = Grid(step)
    per_week = WEEK // step
    phase = int(times[0] % step)
    is_long = times.max() - times.min() >= SHORTEST
    if WEEK % step or per_week > MOST_SLOTS or not is_long or (times % step != phase).any():
        return regular
    counts = np.bincount((times - phase) // step % per_week, minlength=per_week)
    is_open = counts > RARE * np.median(counts[counts > 0])
    if is_open.all():
        return regular
    return Grid(step, phase=phase, open=tuple(np.flatnonzero(is_open).tolist()))
