"""What each column of a table of series is: time, name of a series, target, known future, static.

A table is *long*: a row has the values of one series at one time. A table without `--series` is one
series; in a folder, each file is one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError
from .clocks import default_time
from .panel import MOST_TEXTS, Roles
from .tables import STRING, RowBlock, Source, place_of

CALENDAR = ("hour", "weekday", "day", "month", "yearday")
NAME_IT = "give each row the name of its series; if NA is a name, add --keep-na"
FIX = "fix it, or see --series for names, --known and --static for texts, --drop and --missing"


def listed(flags: dict[str, Any], name: str) -> list[str]:
    """Return the columns in a flag, which commas separate."""
    text = flags.get(name) or ""
    names = [part.strip() for part in text.split(",")]
    return [name for name in names if name]


def choose_roles(block: RowBlock, flags: dict[str, Any]) -> Roles:
    """Return the roles that flags give to the columns of a table.

    Columns without another role are in `values`. Raises `UserError` for a column that is missing or
    has two roles.
    """
    series = listed(flags, "series")
    time = flags.get("time_column") or default_time(block, series)
    drop = flags.get("drop") or []
    static = listed(flags, "static")
    known = listed(flags, "known")
    targets = listed(flags, "targets")
    named = [] if time == "none" else [time]
    apart = {"time-column": named, "series": series, "static": static, "drop": drop}
    check_roles(block, {**apart, "known": known, "targets": targets})
    others = [*named, *series, *static, *drop]
    values = [name for name in block.columns if name not in others]
    targets = targets or [name for name in values if name not in known]
    if not targets:
        raise UserError("no column to forecast", "--targets", "name one, or several with commas")
    calendar = [*dict.fromkeys(listed(flags, "calendar"))]
    for unit in calendar:
        if unit not in CALENDAR or time == "none":
            remedy = f"choose from {', '.join(CALENDAR)}, for rows with times"
            raise UserError(f"no '{unit}' here", "--calendar", remedy)
    texts = find_texts(block.source, [*known, *static])
    for name in [*values, *static]:
        if name not in texts:
            block.choose_type(name)
    return Roles(time, series, targets, known, static, values, calendar, texts)


def check_roles(block: RowBlock, roles: dict[str, list[str]]) -> None:
    """Raise `UserError` for a column that is missing, or that two flags name."""
    flag_of: dict[str, str] = {}
    for flag, names in roles.items():
        for name in names:
            place_of(name, block.columns, block.path)
            if name in flag_of:
                what = f"the column is also in --{flag_of[name]}"
                raise UserError(what, f"--{flag} {name}", "give it one role")
            flag_of[name] = flag


# --- cells


def series_names(block: RowBlock, columns: list[str]) -> pa.Array:
    """Return the name of each row's series; several columns are joined by `/`."""
    parts = []
    for name in columns:
        column = block.column(name).cast(STRING)
        row = pc.index(column.is_null(), True).as_py()
        if row >= 0:
            raise block.error("an empty cell", row, name, NAME_IT)
        parts.append(column)
    return pc.binary_join_element_wise(*parts, "/")


def find_texts(source: Source, names: list[str]) -> dict[str, dict[str, int]]:
    """Return which of the columns have texts, which are categories: the code, from 1, of each text.

    All rows are read, for a column may be empty in the first ones, such as of holidays, or have
    numbers there, such as 0 and later `a`.
    """
    if not names:
        return {}
    seen: dict[str, set[str]] = defaultdict(set)  # by column
    with_numbers = set()
    with_texts = []
    for block in source.blocks():
        for name in names:
            if len(seen[name]) <= MOST_TEXTS:
                cells = cells_of(block, name)
                seen[name].update(cells.unique().to_pylist())
            values = block.parse(name)
            if np.isfinite(values).any():
                with_numbers.add(name)
            is_text = np.isinf(values)
            if is_text.any() and name not in with_texts:
                with_texts.append(name)
                text = block.column(name)[int(is_text.argmax())]
                print(f"note: column '{name}' is read as categories, such as '{text}'")
    texts = {}
    empty = [name for name in names if name not in {*with_numbers, *with_texts}]
    for name in [*with_texts, *empty]:
        if len(seen[name]) > MOST_TEXTS:
            what = f"more than {MOST_TEXTS:,} different texts"
            where = f"{source.path}, column '{name}'"
            raise UserError(what, where, f"are they numbers? If not, --drop {name}")
        codes = enumerate(sorted(seen[name]), start=1)
        texts[name] = {text: code for code, text in codes}
    return texts


def cells_of(block: RowBlock, name: str) -> pa.Array:
    """Return the texts of a column (rows,), empty for missing cells."""
    return block.column(name).cast(STRING).fill_null("")


def read_column(block: RowBlock, name: str, roles: Roles) -> np.ndarray:
    """Return numbers (rows,) float64, or the codes of texts, from 1; 0 for an unknown text."""
    if name not in roles.texts:
        return block.numbers(name, FIX)
    code_of = roles.texts[name]
    cells = cells_of(block, name).dictionary_encode()
    texts = cells.dictionary.to_pylist()
    codes = np.array([code_of.get(text, 0) for text in texts], np.float64)
    return codes[cells.indices.to_numpy()]
