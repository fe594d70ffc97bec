"""Read a long table, and bring the rows of each series together.

The table may be larger than memory; each series must fit. The result is the same for a table sorted
by date, by series, or not at all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.errors import UserError
from ..engine.loading.store import StoreWriter
from .complete import Completing
from .grid import Grid, find_grid, seconds
from .panel import Panel, Roles, chunks

if TYPE_CHECKING:
    from .tables import RowBlock, Source

Facts = dict[str, Any]
NO_TIME = (
    "fix it, or give the format, such as --time-format '%d.%m.%Y', or the unit of numbers, such as "
    "--time-format ms; give all times an offset, or none; see also --time-column"
)


def read_panel(
    writer: StoreWriter, source: Source, horizon: int, trained: Facts | None = None
) -> Panel:
    """Write the arrays `.rows` and `time` of a table.

    Each series ends with `horizon` rows to forecast; the table may have them, with known columns
    and without targets. trained: the facts of the training data, whose roles and codes apply.
    Raises `UserError` for a table that is not a panel.
    """
    roles, number_of = read_table(writer, source, trained)
    keys = check_names(number_of, trained["series"] if trained else [])
    order = [number_of[key] for key in keys]
    times, values, ends = arrange(writer, order, has_times=roles.time != "none")
    zone = source.style["timezone"] or ""
    grid = Grid(**trained["grid"]) if trained else find_grid(times, ends, zone)
    fill = source.flags.get("fill")
    max_gap = source.flags.get("max_gap")
    longest = seconds(max_gap) if max_gap else None
    completing = Completing(writer, source.path, roles, grid, horizon, fill, longest)
    first = 0
    for key, end in zip(keys, ends, strict=True):
        completing.add(key, times[first:end], values[first:end])
        first = end
    return completing.finish(keys)


# --- reading


def read_table(
    writer: StoreWriter, source: Source, trained: Facts | None
) -> tuple[Roles, dict[str, int]]:
    """Write the rows as they come; return the roles of columns, and the series by name.

    Series are numbered in the order in which they appear.
    """
    from .clocks import utc_times
    from .overview import Column, print_columns
    from .roles import choose_roles, read_column

    roles = Roles(**trained["roles"]) if trained else None
    number_of: dict[str, int] = {}
    are_files = source.path.is_dir() or (trained is not None and trained["series"] != [""])
    repeated: dict[int, int] = {}
    overview: dict[str, Column] = {}
    for block in source.blocks():
        if roles is None:
            roles = choose_roles(block, source.flags)
        series = number_series(block, roles, number_of, are_files)
        writer.append(".series", series)
        if roles.time != "none":
            writer.append(".times", utc_times(block, roles.time, NO_TIME, series, repeated))
        columns = {}
        for name in [*roles.values, *roles.static]:
            columns[name] = read_column(block, name, roles, is_new=trained is None)
        dtype = source.style["dtype"] or np.float32
        writer.append(".values", np.stack(list(columns.values()), 1, dtype=dtype))
        for name, column in columns.items():
            if name not in roles.texts:
                overview.setdefault(name, Column()).add(column)
    assert roles is not None  # `blocks` raises an error for an empty table
    if trained is None:
        print_columns(overview)
    writer.source = remembered(source, roles)
    return roles, number_of


def remembered(source: Source, roles: Roles) -> Facts:
    """Return what later files are read with, too."""
    flags = {flag: source.flags.get(flag) for flag in ("fill", "max_gap")}
    return {"file": source.path.name, "time_column": roles.time, **source.style, **flags}


def number_series(
    block: RowBlock, roles: Roles, number_of: dict[str, int], are_files: bool
) -> np.ndarray:
    """Return the number of each row's series (rows,) int64; give new series the next numbers.

    are_files: whether each file is a series, if no column names them.
    """
    from .roles import series_names

    if not roles.series:
        name = file_name(block) if are_files else ""
        number = number_of.setdefault(name, len(number_of))
        return np.full(block.num_rows, number)
    names = series_names(block, roles.series).dictionary_encode()
    found = names.dictionary.to_pylist()
    numbers = [number_of.setdefault(name, len(number_of)) for name in found]
    return np.array(numbers)[names.indices.to_numpy()]


def file_name(block: RowBlock) -> str:
    """Return the path of a file in its folder, without endings."""
    from .tables import TABLE

    path = block.source.path
    folder = path if path.is_dir() else path.parent
    found = TABLE.fullmatch(block.path.relative_to(folder).as_posix())
    return found[1] if found else block.path.stem


def check_names(names: Iterable[str], trained: Iterable[str]) -> list[str]:
    """Return the names of the series, sorted.

    trained: those in the training data. Raises `UserError` for two spellings of one name.
    """
    spelling: dict[str, str] = {}
    for name in sorted({*names, *trained}):
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        plain = re.sub(r"\.0+(?=/|$)|(?<![\d.])0+(?=\d)", "", plain)  # 1.0 and 01 are 1
        if plain in spelling:
            what = f"'{spelling[plain]}' and '{name}' seem to be one series"
            raise UserError(what, "--series", "write its name in one way")
        spelling[plain] = name
    return sorted(names)


# --- one series after the other


def arrange(
    writer: StoreWriter, order: list[int], has_times: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times and values in temporary files, series by series, and the ends of the series.

    The rows of a series stay in the order of the table. order: the numbers of the series, in the
    order that they get.
    """
    series = writer.appended(".series")
    values = writer.appended(".values")
    place_of = np.argsort(order)
    counts = np.zeros(len(order), np.int64)
    for chunk in chunks(len(series)):
        counts += np.bincount(place_of[series[chunk]], minlength=len(order))
    ends = np.cumsum(counts)
    firsts = ends - counts
    # The folder of the writer is deleted at the end.
    folder = writer.path("").parent
    all_values = np.memmap(folder / "values", values.dtype, "w+", shape=values.shape)
    all_times = np.memmap(folder / "times", np.int64, "w+", shape=series.shape)
    free = firsts.copy()  # the next row of each series
    for chunk in chunks(len(series)):
        numbers = place_of[series[chunk]]
        by_series, places = sort_by_series(numbers, free)
        all_values[places] = values[chunk][by_series]
        times = places - firsts[numbers[by_series]]
        if has_times:
            times = writer.appended(".times")[chunk][by_series]
        all_times[places] = times
    return all_times, all_values, ends


def sort_by_series(series: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of rows (n,) in which series follow each other, and the place of each one.

    free: the next free place of each series (S,), which moves on.
    """
    order = np.argsort(series, kind="stable")
    ordered = series[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))  # where a series begins
    sizes = np.diff(begins, append=len(ordered))
    found = ordered[begins]
    shifts = np.repeat(free[found] - begins, sizes)
    free[found] += sizes
    return order, np.arange(len(ordered)) + shifts
