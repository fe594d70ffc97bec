"""Detect what each column of a table holds (numbers or categories), and read its cells."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING
from unicodedata import normalize

import numpy as np
import pyarrow as pa

from ..engine.errors import UserError
from .rows import Facts, Table
from .tables import FLOAT32_MAX, HIDDEN, STRING, RowBlock, Source, place_of

if TYPE_CHECKING:
    from ..engine.loading.store import StoreWriter

FIX = "fix the cell, or see --missing, --decimal, --category, --drop and --task"
FIX_TARGET = "fill it in, or remove the row; if it is a name, such as NA, add --keep-na"
FEW = 20  # so many different numbers may be classes
FEW_UNITS = 4  # so many different numbers with a unit may be names, such as 4WD
MOST_CELLS = 10_000  # these first ones decide what the texts of a column are
# A number with a unit or a currency: 5 kg, 20 °C, $5, or with signs that are not read: 1,00,000.
UNIT = re.compile(
    r"(?=.*[^\d.\s])[-+(\u2212]*"
    r"((?:[A-Za-z]{0,3}[$\u00a2-\u00a5\u20a0-\u20c0]|USD|EUR|GBP|CHF|JPY|CNY|INR)?)"
    r"[-+(\u2212\s]*\d[\d.,'\u2019\s]*([-)]|[^\d\s:/.–+-].*)?$"
)
# A number that may have other spellings; not a code, such as 01 or 1E5. float64 distinguishes
# numbers of up to 15 digits.
NUMERAL = re.compile(r"[-+(\u2212]?(?!0\d)[\d.,'\u2019 ]{1,15}[-)]?")
# A date, maybe with a clock: 2024-01-31, 31.1.24, 1/31/2024 3:30 PM, 31-Jan-2024, Jan 31, 2024
DATE = re.compile(
    r"(\d{4}|\d{1,2}|[A-Z][a-z]{2})[-/. ](\d{1,2}|[A-Z][a-z]{2})[-/. ,]+\d{1,4}([T ].*)?"
)


def read_table(
    writer: StoreWriter,
    source: Source,
    target: str = "",
    kinds: dict[str, str] | None = None,
    known: Iterable[Facts] = (),
) -> Table:
    """Read all rows into arrays, which `writer` keeps on disk until it closes.

    kinds: what the columns hold; None detects it in the first block. known: categories of the
    training data. Raises `UserError`, with row and column, for an invalid cell.
    """
    categories: dict[str, dict[str, str]] = defaultdict(dict)
    for column in known:
        add_codes(pa.array(column["values"]), source, categories[column["name"]])
    for block in source.blocks():
        kinds = kinds or survey(block)
        numbers = []
        codes = []
        for name, kind in kinds.items():
            if kind == "category":
                values = add_codes(block.column(name), source, categories[name])
                is_missing = values == 0
                codes.append(values)
            else:
                values = block.numbers(name, FIX)
                is_missing = np.isnan(values)
                numbers.append(values)
            if name == target and is_missing.any():
                raise block.error(
                    "the target is missing", int(is_missing.argmax()), name, FIX_TARGET
                )
        # `reshape` keeps the number of rows even if there is no column.
        shape = (-1, block.num_rows)
        dtype = source.style["dtype"] or np.float32
        writer.append(".numbers", np.array(numbers, dtype).reshape(shape).T)
        writer.append(".codes", np.array(codes, np.int32).reshape(shape).T)

    levels = {name: [*values.values()] for name, values in categories.items()}
    names = [name for name in kinds or {} if name not in levels]
    return Table(names, levels, target, writer.appended(".numbers"), writer.appended(".codes"))


def add_codes(column: pa.Array, source: Source, values: dict[str, str]) -> np.ndarray:
    """Return codes (rows,) int32, from 1 on, or 0 for missing cells; add new values.

    values: the first cell that has a value, by its plain spelling.
    """
    encoded = column.cast(STRING).dictionary_encode()
    spellings = []
    for cell in encoded.dictionary.to_pylist():
        spellings.append(plain(cell, source))
        values.setdefault(spellings[-1], cell)
    code_of = {spelling: code for code, spelling in enumerate(values, 1)}
    codes = [code_of[spelling] for spelling in spellings]
    return np.array([*codes, 0], np.int32)[encoded.indices.fill_null(-1)]


def plain(cell: str, source: Source) -> str:
    """Return one spelling for all of a value: 1 for 1.0 and True, but not for the code 01."""
    text = " ".join(normalize("NFC", HIDDEN.sub("", cell)).split())
    text = {"true": "1", "false": "0"}.get(text.lower(), text)
    if NUMERAL.fullmatch(text) and source.number(text) < np.inf:
        return f"{source.number(text):.15g}"
    return text


# --- what a column holds


def survey(block: RowBlock) -> dict[str, str]:
    """Detect in the first block what each column holds: `number` or `category`.

    The target is the last one. The group is the first one, a category.
    """
    flags = block.source.flags
    target = flags["target"]
    groups = [flags["group"]] if "group" in flags else []
    for name in [target, *groups, *flags["category"], *flags["drop"]]:
        place_of(name, block.columns, block.path)
        if name in flags["drop"] and name in [target, *groups, *flags["category"]]:
            raise UserError("the column is needed", f"--drop '{name}'", "remove one of the flags")
        if name in groups and name in [target, *flags["category"]]:
            what = "the column is a group and no feature or target"
            raise UserError(what, f"--group '{name}'", "name another column")
    kinds = {}
    for name in block.columns:
        if name in [target, *groups, *flags["drop"]]:
            continue
        kind = "category" if name in flags["category"] else column_kind(block, name)
        if kind:
            kinds[name] = kind
    if not kinds:
        what = "no column besides the target"
        raise UserError(what, str(block.path), "add a column to predict it from")
    kinds[target] = target_kind(block, target)
    for name in kinds:
        block.choose_type(name)
    return {**dict.fromkeys(groups, "category"), **kinds}


def target_kind(block: RowBlock, name: str) -> str:
    """Return the kind of the target. Raises `UserError` if the task does not fit the cells."""
    flags = block.source.flags
    if flags["task"] == "regression":
        return "number"
    values = block.parse(name)
    numbers = np.unique(values[np.isfinite(values)])
    is_continuous = (numbers % 1 != 0).any() or block.num_rows < 10 * len(numbers)
    if len(numbers) > FEW and is_continuous and name not in flags["category"]:
        what = f"{len(numbers):,} different numbers in {block.num_rows:,} rows are no classes"
        remedy = f"use --task regression, or add --category '{name}' if they are names"
        raise UserError(what, f"{block.path}, column '{name}'", remedy)
    return "category"


def column_kind(block: RowBlock, name: str) -> str:
    """Return the kind of a column: a number if at least half of its known cells are numbers.

    Times have none, and are left out.
    """
    source = block.source
    where = f"{block.path}, column '{name}'"
    maybe_id = f"note: {where}: if it is an id, add --drop '{name}' or --category '{name}'"
    values = block.parse(name)
    numbers = values[np.abs(values) < FLOAT32_MAX]
    if 2 * len(numbers) >= (~np.isnan(values)).sum():
        whole = numbers[numbers % 1 == 0]
        is_id = len(np.unique(whole)) == block.num_rows > FEW
        if is_id or (np.float32(whole) != whole).any():
            print(maybe_id)
        return "number"

    column = block.column(name)[:MOST_CELLS]
    cells = column.cast(STRING).unique().drop_null().to_pylist()
    dates = [cell for cell in cells if DATE.fullmatch(cell)]
    if 2 * len(dates) > len(cells):
        what = f"column '{name}' holds times, so it is left out"
        print(f"note: {what}: add what matters, such as the hour, or --category '{name}'")
        return ""
    measured = [cell for cell in cells if UNIT.match(cell) and source.number(cell) == np.inf]
    units = {UNIT.sub(r"\1\2", cell) for cell in measured}
    if len(measured) > max(len(cells) // 2, 2 * len(units), FEW_UNITS):
        remedy = "remove units, currencies and other signs, or see --decimal and --category"
        raise UserError(f"'{measured[0]}' is not a number", where, remedy)
    if len(cells) > max(len(column) // 2, FEW):
        print(maybe_id)
    return "category"
