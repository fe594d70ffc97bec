"""What the model and the metrics know of the series: means, deviations, seasonal differences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..engine.errors import UserError
from .grid import DAY, WEEK, Grid
from .panel import Panel
from .splits import SPLITS

Texts = dict[str, dict[str, int]]  # by column and text: the code
TINY = np.finfo(np.float32).tiny
ROUNDING = 1e-13  # relative; sums of equal float64 numbers may be off by less


def find_season(panel: Panel, borders: np.ndarray, history: int, given: int | None) -> int:
    """Return after how many rows values are alike: a day of hours, a week of days, and so on.

    given: the number in --season. Raises `UserError` if no window, or no series, has so many rows.
    """
    longest = int((borders[:, 1] - borders[:, 0]).max())
    most = min(history, longest - 1)
    if given is None or longest < 2:  # without training rows, the split is what is wrong
        season = rows_of_season(panel.grid, panel.roles.time != "none")
        if season > most:
            print(f"note: a season of {season} rows is longer than --history, so none is used")
        return season if season <= most else 1
    if not 1 <= given <= most:
        what = f"a window has {history:,} rows of history, a series up to {longest:,} in training"
        remedy = f"give at most {most:,}, such as 24 for hours, or a larger --history"
        raise UserError(what, f"--season {given}", remedy)
    return given


def rows_of_season(grid: Grid, has_times: bool) -> int:
    """Return the rows of a day, of a week of days, or of a year of weeks or months."""
    if not has_times:
        return 1
    if grid.months:
        return max(12 // grid.months, 1)
    if grid.step == WEEK:
        return 52
    slots = np.array(grid.open or range(WEEK // grid.step))
    if grid.step == DAY:
        return len(slots)
    if DAY % grid.step:
        return 1
    return len(slots) // len(np.unique(slots * grid.step // DAY))  # of the hours that are open


def training_rows(panel: Panel, borders: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number and the training rows of each series that has some, float64."""
    for number, (first, end, *_) in enumerate(borders.tolist()):
        if end > first:
            yield number, panel.values[first:end].astype(np.float64)


def trained_texts(panel: Panel, borders: np.ndarray) -> Texts:
    """Return the texts in the training rows, with their codes; to a model, all others are one."""
    roles = panel.roles
    seen: dict[str, set[float]] = {name: set() for name in roles.texts}
    for number, values in training_rows(panel, borders):
        for name in roles.texts:
            if name in roles.static:
                codes = panel.static[[number], roles.static.index(name)]
            else:
                codes = np.unique(values[:, roles.values.index(name)])
            seen[name].update(codes.tolist())
    texts = {}
    for name, code_of in roles.texts.items():
        texts[name] = {text: code for text, code in code_of.items() if code in seen[name]}
    return texts


def measure(panel: Panel, borders: np.ndarray, history: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each series in its training rows (S, 2, C), and of all (2, C).

    Missing values are left out. A series without training rows has those of its first `history`
    rows, which each of its windows knows. What it lacks there is that of all.
    """
    is_trained = borders[:, 1:2] > borders[:, :1]
    counts, means, squares = moments(panel, with_first_history(borders, history))
    of_training = counts * is_trained
    total = np.maximum(of_training.sum(0), 1)
    mean = (of_training * means).sum(0) / total
    around_mean = is_trained * squares + of_training * np.square(means - mean)
    std = usable(np.sqrt(around_mean.sum(0) / total), mean)
    for_constant = np.where(is_trained, 1, std)
    stds = usable(np.sqrt(squares / np.maximum(counts, 1)), means, for_constant)
    has_rows = counts > 0
    of_series = [np.where(has_rows, means, mean), np.where(has_rows, stds, std)]
    return np.stack(of_series, 1), np.stack([mean, std])


def with_first_history(borders: np.ndarray, history: int) -> np.ndarray:
    """Return the borders; a series without training rows gets its first `history` rows as such."""
    first = borders[:, 0]
    end = borders[:, 1]
    end_of_history = np.minimum(first + history, borders[:, 3])
    known = borders.copy()
    known[:, 1] = np.where(end > first, end, end_of_history)
    return known


def moments(panel: Panel, borders: np.ndarray) -> np.ndarray:
    """Return the counts, means, and sums of squares around them, of each series: (3, S, C)."""
    found = np.zeros((3, len(panel.keys), len(panel.roles.values)))
    counts, means, squares = found
    for number, values in training_rows(panel, borders):
        counts[number] = (~np.isnan(values)).sum(0)
        means[number] = np.nansum(values, 0) / np.maximum(counts[number], 1)
        squares[number] = np.nansum(np.square(values - means[number]), 0)
    return found


def usable(std: np.ndarray, mean: np.ndarray, for_constant: np.ndarray | float = 1) -> np.ndarray:
    """Return `std`, with another value where a column is constant."""
    is_constant = std <= TINY + ROUNDING * np.abs(mean)
    return np.where(is_constant, for_constant, std)


def season_errors(panel: Panel, borders: np.ndarray, season: int) -> np.ndarray:
    """Return the mean absolute seasonal difference of each series (S, 3, G), for MASE.

    That of a split comes from the rows before it, that of training from the training rows, and that
    of a series which begins in the split from the rows of the split. Nan: there is none.
    """
    targets = panel.roles.places(panel.roles.targets)
    errors = np.full((len(borders), len(SPLITS), len(targets)), np.nan)
    for number, (first, *ends) in enumerate(borders.tolist()):
        values = panel.values[first : ends[2], targets].astype(np.float64)
        for place, before in enumerate([ends[0], ends[0], ends[1]]):
            end = before if before > first else ends[place]
            errors[number, place] = season_error(values[: end - first], season)
    return errors


def season_error(values: np.ndarray, season: int) -> np.ndarray:
    """Return the mean absolute difference (G,) of rows a season apart, or of neighbours."""
    lag = season if len(values) > season else 1
    changes = np.abs(values[lag:] - values[:-lag])
    counts = (~np.isnan(changes)).sum(0)
    return np.where(counts, np.nansum(changes, 0) / np.maximum(counts, 1), np.nan)
