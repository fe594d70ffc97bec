"""Detect what each column of a table holds (numbers or categories), and read its cells."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from unicodedata import normalize

import numpy as np
import pyarrow as pa

from ..engine.errors import UserError
from .dates import PARTS, date_parts, fitting_formats, have_format
from .rows import KEYS, Facts, Table
from .tables import FLOAT32_MAX, HIDDEN, STRING, RowBlock, Source, place_of

if TYPE_CHECKING:
    from ..engine.loading.store import StoreWriter

FIX = "fix the cell, or see --missing and --decimal; `prepare` has --category, --drop and --task"
FIX_TARGET = "fill it in, or remove the row; if it is a name, such as NA, add --keep-na"
KINDS = ("number", "category")  # the kind of a column of dates is their format
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
# A date, maybe with a clock: 2024-01-31, 31.1.24, 1/31/2024 3:30 PM, 31-Jan-2024, May 31, 2024
DATE = re.compile(
    r"(\d{4}|\d{1,2}|[A-Z][a-z]{2,8})[-/. ]+(\d{1,2}|[A-Z][a-z]{2,8})[-/. ,]+\d{1,4}([T ].*)?"
)


def read_table(
    writer: StoreWriter,
    sources: Sequence[Source],
    kinds: dict[str, str] | None = None,
    known: Iterable[Facts] = (),
) -> Table:
    """Read all rows into arrays, which `writer` keeps on disk until it closes.

    kinds: what the columns hold; None detects it in the first block. known: categories of the
    training data. Raises `UserError`, with row and column, for an invalid cell.
    """
    categories: dict[str, dict[str, str]] = defaultdict(dict)
    for column in known:
        add_codes(pa.array(column["values"]), sources[0], categories[column["name"]])
    for source in sources:
        row = 0
        for block in source.blocks():
            kinds = kinds or survey(block)
            numbers, codes = read_block(block, kinds, categories)
            dtype = sources[0].style["dtype"] or np.float32
            writer.append(".numbers", numbers.astype(dtype))
            writer.append(".codes", codes.astype(np.int32))
            writer.append(".row", np.arange(row, row + block.num_rows))
            row += block.num_rows

    levels = {name: [*values.values()] for name, values in categories.items()}
    names = [name for name, kind in (kinds or {}).items() if kind == "number"]
    dates = {name: kind for name, kind in (kinds or {}).items() if kind not in KINDS}
    parts = [f"{name} {part}" for name in dates for part in PARTS]
    targets = find_targets(block)
    min_count = sources[0].flags.get("min_count", 1)
    return Table(
        [*parts, *names],
        levels,
        targets,
        writer.appended(".numbers"),
        writer.appended(".codes"),
        writer.appended(".row"),
        dates,
        min_count=min_count,
    )


def read_block(
    block: RowBlock, kinds: dict[str, str], categories: dict[str, dict[str, str]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers and codes of some rows, (rows, columns) each."""
    # Each array begins with no column, so that it has its rows even without any other.
    numbers = [np.empty((0, block.num_rows))]
    codes = [np.empty((0, block.num_rows))]
    for name, kind in kinds.items():
        if kind == "category":
            is_id = name == block.source.flags.get("id")
            values = add_codes(block.column(name), block.source, categories[name], is_id)
            is_missing = values == 0
            codes.append(values[None])
        elif kind == "number":
            values = block.numbers(name, FIX)
            is_missing = np.isnan(values)
            numbers.append(values[None])
        else:
            numbers.append(read_dates(block, name, kind).T)
        if name in find_targets(block) and is_missing.any():
            raise block.error("the target is missing", int(is_missing.argmax()), name, FIX_TARGET)
    return np.concatenate(numbers).T, np.concatenate(codes).T


def read_dates(block: RowBlock, name: str, date_format: str) -> np.ndarray:
    """Return the parts of each date (rows, 4) float64; NaN for missing cells."""
    cells = block.column(name).cast(STRING).dictionary_encode()
    parts = date_parts(cells.dictionary.to_pylist(), date_format)
    values = np.vstack([parts, np.full(len(PARTS), np.nan)])[cells.indices.fill_null(-1)]
    is_wrong = np.isinf(values[:, 0])
    if is_wrong.any():
        row = int(is_wrong.argmax())
        what = f"{str(cells[row])!r} is no date in the format {date_format}"
        remedy = "fix the cell, or see --time-format; `prepare` has --drop"
        raise block.error(what, row, name, remedy)
    return values


def add_codes(
    column: pa.Array, source: Source, values: dict[str, str], is_id: bool = False
) -> np.ndarray:
    """Return codes (rows,) int32, from 1 on, or 0 for missing cells; add new values.

    values: the first cell that has a value, by its plain spelling. Ids have one spelling only: 1.1
    and 1.10 are two.
    """
    encoded = column.cast(STRING).dictionary_encode()
    spellings = []
    for cell in encoded.dictionary.to_pylist():
        spellings.append(cell if is_id else plain(cell, source))
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


def find_targets(block: RowBlock) -> list[str]:
    """Return the columns in `--target`; none for rows to predict.

    Raises `UserError` for several classes.
    """
    flags = block.source.flags
    text = flags.get("target", "")
    if text in block.columns:
        return [text]
    names = [name.strip() for name in text.split(",")]
    names = [*dict.fromkeys(filter(None, names))]
    if len(names) > 1 and flags["task"] == "classification":
        what = "several targets must be numbers"
        raise UserError(what, f"--target {text}", "name one column, or use --task regression")
    return names


def survey(block: RowBlock) -> dict[str, str]:
    """Detect in the first block what each column holds: `number`, `category`, or a date's format.

    The first ones are those of the flags `KEYS`, as categories; then dates. Targets are the last.
    """
    flags = block.source.flags
    keys = [flags[flag] for flag in KEYS if flag in flags]
    targets = find_targets(block)
    others = {*targets, *flags["category"], *flags["drop"]}
    for name in [*keys, *others]:
        place_of(name, block.columns, block.path)
        if name in flags["drop"] and name in [*targets, *flags["category"]]:
            raise UserError("the column is needed", f"--drop '{name}'", "remove one of the flags")
        if name in keys and (name in others or keys.count(name) > 1):
            what = "an id, a group or a time has no other use"
            raise UserError(what, f"column '{name}'", "name it in one flag only")
    kinds = {}
    for name in block.columns:
        if name in [*targets, *keys, *flags["drop"]]:
            continue
        kind = "category" if name in flags["category"] else column_kind(block, name)
        if kind:
            kinds[name] = kind
    if not kinds:
        what = "no column besides the target"
        raise UserError(what, str(block.path), "add a column to predict it from")
    for name in targets:
        kinds[name] = target_kind(block, name)
    for name in kinds:
        block.choose_type(name)
    dates = {name: kind for name, kind in kinds.items() if kind not in KINDS}
    return {**dict.fromkeys(keys, "category"), **dates, **kinds}


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

    It is empty for dates that are left out.
    """
    where = f"{block.path}, column '{name}'"
    maybe_id = f"note: {where}: if it is an id, add --drop '{name}' or --category '{name}'"
    column = block.column(name)[:MOST_CELLS]
    cells = column.cast(STRING).unique().drop_null().to_pylist()
    values = block.parse(name)
    numbers = values[np.abs(values) < FLOAT32_MAX]
    is_number = 2 * len(numbers) >= np.sum(~np.isnan(values))
    given = block.source.flags.get("time_format") or ""
    is_given = have_format(cells, given, is_number)
    if is_number and not is_given:
        whole = numbers[numbers % 1 == 0]
        is_id = len(np.unique(whole)) == block.num_rows > FEW
        if is_id or (np.float32(whole) != whole).any():
            print(maybe_id)
        return "number"

    dates = [cell for cell in cells if DATE.fullmatch(cell)]
    if is_given or 2 * len(dates) > len(cells):
        formats = [given] if is_given else fitting_formats(cells)
        if len(formats) == 1:
            print(f"note: column '{name}' is a date ({formats[0]}): {', '.join(PARTS)}")
            return formats[0]
        what = f"column '{name}' has dates of no clear format, such as '{cells[0]}'"
        print(f"note: {what}, so it is left out: add --time-format, such as %d/%m/%Y")
        return ""
    measured = [cell for cell in cells if UNIT.match(cell) and block.source.number(cell) == np.inf]
    units = {UNIT.sub(r"\1\2", cell) for cell in measured}
    if len(measured) > max(len(cells) // 2, 2 * len(units), FEW_UNITS):
        remedy = "remove units, currencies and other signs, or see --decimal and --category"
        raise UserError(f"'{measured[0]}' is not a number", where, remedy)
    if len(cells) > max(len(column) // 2, FEW):
        print(maybe_id)
    return "category"
