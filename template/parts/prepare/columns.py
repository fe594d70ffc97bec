"""Detect what each column of a table holds (numbers or categories), and read its cells."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..engine.errors import UserError
from .rows import Table
from .tables import FLOAT32_MAX, STRING, Block, Source, number, place_of

if TYPE_CHECKING:
    from ..engine.data.store import StoreWriter

FIX = "fix the cell, or see --missing, --decimal, --category, --drop and --task"
FEW = 20  # so many different numbers may be classes
MOST_CELLS = 10_000  # these first ones decide what the texts of a column are
# Signs in cells that are meant as numbers: commas, percent, currencies.
SIGNS = re.compile("[,%‰$¢£¥\u20a0-\u20c0]")
# A date, maybe with a clock: 2024-01-31, 31.1.24, 1/31/2024 3:30 PM, 31-Jan-2024, Jan 31, 2024
DATE = re.compile(
    r"(\d{4}|\d{1,2}|[A-Z][a-z]{2})[-/. ](\d{1,2}|[A-Z][a-z]{2})[-/. ,]+\d{1,4}([T ].*)?"
)


def read_table(
    writer: StoreWriter, source: Source, target: str = "", kinds: dict[str, str] | None = None
) -> Table:
    """Read all rows into arrays, which `writer` keeps on disk until it closes.

    kinds: what the columns hold; None detects it in the first block. Raises `UserError`, with row
    and column, for an invalid cell.
    """
    code_of: dict[str, dict[str, int]] = defaultdict(dict)  # by category and value
    for block in source.blocks():
        kinds = kinds or survey(block)
        numbers = []
        codes = []
        for name, kind in kinds.items():
            if kind == "category":
                values = number_values(block.column(name), code_of[name])
                is_missing = values == 0
                codes.append(values)
            else:
                values = block.numbers(name, FIX)
                is_missing = np.isnan(values)
                numbers.append(values)
            if name == target and is_missing.any():
                row = int(is_missing.argmax())
                remedy = "fill it in, or remove the row"
                raise block.error("the target is missing", row, name, remedy)
        # `reshape` keeps the number of rows even if there is no column.
        writer.append(".numbers", np.array(numbers, np.float32).reshape(-1, block.num_rows).T)
        writer.append(".codes", np.array(codes, np.int32).reshape(-1, block.num_rows).T)

    levels = {name: list(values) for name, values in code_of.items()}
    names = [name for name in kinds or {} if name not in levels]
    return Table(names, levels, target, writer.appended(".numbers"), writer.appended(".codes"))


def number_values(column: pa.Array, code_of: dict[str, int]) -> np.ndarray:
    """Return codes (rows,) int32, 0 for missing cells; add values that are new to `code_of`."""
    encoded = column.cast(STRING).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = [code_of.setdefault(value, len(code_of) + 1) for value in values]
    places = encoded.indices.fill_null(-1).to_numpy()
    return np.array([*codes, 0], np.int32)[places]


# --- what a column holds


def survey(block: Block) -> dict[str, str]:
    """Detect in the first block what each column holds: `number` or `category`; the target last."""
    flags = block.source.flags
    target = flags["target"]
    for name in [target, *flags["category"], *flags["drop"]]:
        place_of(name, block.columns, block.path)
    kinds = {}
    for name in block.columns:
        if name in [target, *flags["drop"]]:
            continue
        kind = "category" if name in flags["category"] else kind_of(block, name)
        if kind:
            kinds[name] = kind
    if not kinds:
        what = "no column besides the target"
        raise UserError(what, str(block.path), "add a column to predict it from")
    kinds[target] = kind_of_target(block, target)
    return kinds


def kind_of_target(block: Block, name: str) -> str:
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


def kind_of(block: Block, name: str) -> str:
    """Return the kind of a column: a number if at least half of its known cells are numbers.

    Times have none, and are left out.
    """
    where = f"{block.path}, column '{name}'"
    maybe_id = f"note: {where}: if it is an id, add --drop '{name}' or --category '{name}'"
    values = block.parse(name)
    numbers = values[np.abs(values) < FLOAT32_MAX]
    if 2 * len(numbers) >= (~np.isnan(values)).sum():
        whole = numbers[numbers % 1 == 0]
        is_counting = len(numbers) > FEW and (np.diff(numbers) == 1).all()
        if is_counting or (np.float32(whole) != whole).any():
            print(maybe_id)
        return "number"

    column = block.column(name)[:MOST_CELLS]
    cells = column.cast(STRING).unique().drop_null().to_pylist()
    dates = [cell for cell in cells if DATE.fullmatch(cell)]
    if 2 * len(dates) > len(cells):
        what = f"column '{name}' holds times, so it is left out"
        print(f"note: {what}: add what matters, such as the hour, or --category '{name}'")
        return ""
    signed = [cell for cell in cells if SIGNS.search(cell) and number(SIGNS.sub("", cell)) < np.inf]
    if 2 * len(signed) > len(cells):
        remedy = "remove separators and signs, or see --decimal and --category"
        raise UserError(f"'{signed[0]}' is not a number", where, remedy)
    if len(cells) > max(len(column) // 2, FEW):
        print(maybe_id)
    return "category"
