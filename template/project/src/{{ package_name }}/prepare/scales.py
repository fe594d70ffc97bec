"""What the model and the metrics know of the series: means, deviations, seasonal differences."""

from __future__ import annotations

from collections import defaultdict
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
    sizes = borders[:, 1] - borders[:, 0]
    longest = int(sizes.max())
    most = min(history, longest - 1)
    if given is None or longest < 2:  # without training rows, the split is what is wrong
        has_times = panel.roles.time != "none"
        season = rows_of_season(panel.grid, has_times)
        if season <= most:
            return season
        print(f"note: a season of {season} rows is longer than --history, so none is used")
        return 1
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
    per_week = WEEK // grid.step
    slots = np.array(grid.open or range(per_week))
    if grid.step == DAY:
        return len(slots)
    if DAY % grid.step:
        return 1
    days = np.unique(slots * grid.step // DAY)
    return len(slots) // len(days)  # of the hours that are open


def training_rows(panel: Panel, borders: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number and the training rows of each series that has some, float64."""
    for number, (first, end, *_) in enumerate(borders.tolist()):
        if end > first:
            rows = panel.values[first:end]
            yield number, rows.astype(np.float64)


def trained_texts(panel: Panel, borders: np.ndarray) -> Texts:
    """Return the texts in the training rows, with their codes; to a model, all others are one."""
    roles = panel.roles
    seen: dict[str, set[float]] = defaultdict(set)  # codes by column
    for number, values in training_rows(panel, borders):
        for name in roles.texts:
            if name in roles.static:
                place = roles.static.index(name)
                seen[name].add(panel.static[number, place])
            else:
                place = roles.values.index(name)
                codes = np.unique(values[:, place])
                seen[name].update(codes)
    texts = {}
    for name, code_of in roles.texts.items():
        trained = seen[name]
        texts[name] = {text: code for text, code in code_of.items() if code in trained}
    return texts


def measure(panel: Panel, borders: np.ndarray, history: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each series in its training rows (S, 2, C), and of all (2, C).

    Missing values are left out. A series without training rows has those of its first `history`
    rows, which each of its windows knows. What it lacks there is that of all.
    """
    first, end, _, last = borders.T
    end_of_history = np.minimum(first + history, last)
    known = np.where(end > first, end, end_of_history)
    rows = np.column_stack([first, known])
    counts, means, squares = moments(panel, rows)

    is_trained = (end > first)[:, None]
    of_training = counts * is_trained
    total = np.maximum(of_training.sum(0), 1)
    mean = (of_training * means).sum(0) / total
    distances = np.square(means - mean)
    around_mean = is_trained * squares + of_training * distances
    variance = around_mean.sum(0) / total
    std = usable(np.sqrt(variance), mean)

    variances = squares / np.maximum(counts, 1)
    for_constant = np.where(of_training > 0, 1, std)
    stds = usable(np.sqrt(variances), means, for_constant)
    means = np.where(counts > 0, means, mean)
    of_series = np.stack([means, stds], 1)
    return of_series, np.stack([mean, std])


def moments(panel: Panel, borders: np.ndarray) -> np.ndarray:
    """Return the counts, means, and sums of squares around them, of each series: (3, S, C)."""
    shape = (3, len(panel.keys), len(panel.roles.values))
    results = np.zeros(shape)
    for number, values in training_rows(panel, borders):
        is_known = ~np.isnan(values)
        count = is_known.sum(0)
        mean = np.nansum(values, 0) / np.maximum(count, 1)
        squares = np.square(values - mean)
        results[:, number] = [count, mean, np.nansum(squares, 0)]
    return results


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
    shape = (len(borders), len(SPLITS), len(targets))
    errors = np.full(shape, np.nan)
    for number, (first, train, validation, end) in enumerate(borders.tolist()):
        values = panel.values[first:end, targets].astype(np.float64)
        before_validation = train if train > first else validation
        before_test = validation if validation > first else end
        for place, last in enumerate([train, before_validation, before_test]):
            rows = values[: last - first]
            errors[number, place] = season_error(rows, season)
    return errors


def season_error(values: np.ndarray, season: int) -> np.ndarray:
    """Return the mean absolute difference (G,) of rows a season apart, or of neighbours."""
    lag = season if len(values) > season else 1
    changes = np.abs(values[lag:] - values[:-lag])
    counts = (~np.isnan(changes)).sum(0)
    means = np.nansum(changes, 0) / np.maximum(counts, 1)
    return np.where(counts, means, np.nan)
