"""Detect what each column of a table holds (numbers, categories, times), and read its values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError
from .formats import SECONDS
from .rows import Table
from .tables import TEXT, encode, marked_number, place_of

if TYPE_CHECKING:
    from ..engine.data.store import StoreWriter
    from .tables import Block

MISSING = ("", "NA")
NO_TARGET = ("nan", "NaN")  # count as missing in the target column, too
OTHERWISE = "fix the cell, leave it empty if the value is missing, or use --category or --drop"
TARGET = "fix the cell, or use --task classification"
FEW = 20  # so many different numbers may be classes
MOSTLY = 0.5  # a column with this fraction of numbers is numeric, and a text in it is an error
EXACT = 1 << 24  # float32 represents all whole numbers up to here
# Hours count from 0, weekdays from 0 (Monday), months from 1.
TIMES = {"hour": pc.hour, "weekday": pc.day_of_week, "month": pc.month}
Kinds = dict[str, Any]
"""What each column holds: `number`, `category`, or a list of time features."""


def survey(
    block: Block,
    target: str,
    task: str,
    categories: list[str],
    drop: list[str],
    features: list[str],
) -> Kinds:
    """Detect in the first block what each column holds.

    categories: columns whose numbers are names. drop: columns to leave out. features: time features
    that replace each column of times.
    """
    header = block.table.column_names
    for name in [target, *categories, *drop]:
        place_of(name, header, block.source.path)
    names = [name for name in header if name not in drop]
    if target not in names:
        raise UserError("the target cannot be dropped", f"--drop '{target}'", "remove the flag")
    check_target(block, target, task, target in categories)

    kinds: Kinds = {}
    for name in names:
        if name == target:
            kinds[name] = "number" if task == "regression" else "category"
        elif name in categories:
            kinds[name] = "category"
        else:
            kinds[name] = kind_of(block, name, features)
        if kinds[name] == []:
            del kinds[name]
            what = f"column '{name}' holds times, so it is left out"
            print(f"note: {what}: see --time-features, or add --category '{name}'")
    if len(kinds) == 1:
        what = "no column besides the target"
        raise UserError(what, str(block.source.path), "add a column to predict it from")
    if features and features not in kinds.values():
        remedy = "write times as 2024-01-31, or describe their format with --time-format"
        raise UserError("no column of times", f"{block.source.path}, --time-features", remedy)
    return kinds


def check_target(block: Block, name: str, task: str, are_names: bool) -> None:
    """Raise `UserError` if the task does not fit the cells. are_names: because of `--category`."""
    if task == "regression":
        if are_names:
            what = "the target is a number, because of --task regression"
            remedy = "remove the flag, or use --task classification"
            raise UserError(what, f"--category '{name}'", remedy)
        return
    values, is_known = block.parse(name)
    cells = values[is_known & ~np.isnan(values)]
    numbers = np.unique(cells)
    if are_names or len(numbers) <= FEW or TEXT in numbers:
        return
    has_fractions = bool((numbers % 1 != 0).any())
    if has_fractions or len(cells) < 10 * len(numbers):
        what = f"{len(numbers):,} different numbers in {len(cells):,} rows are no classes"
        remedy = f"use --task regression, or add --category '{name}' if they are names"
        raise UserError(what, f"{block.source.path}, column '{name}'", remedy)


def kind_of(block: Block, name: str, features: list[str]) -> Any:
    """Return the kind of a column: numeric if at least half of its known cells are numbers."""
    values, is_known = block.parse(name)
    texts = is_known & (values == TEXT)
    is_text = texts.sum() > MOSTLY * is_known.sum()
    may_be_time = texts.any() if features else is_text
    if may_be_time and block.is_time(name):
        return features
    if is_text:
        return "category"
    if len(values) > FEW and values[0] in (0, 1) and (np.diff(values) == 1).all():
        what = f"column '{name}' is the number of the row"
        print(f"note: {what}: unless it means something, add --drop '{name}'")
    return "number"


class Columns:
    """Reads the columns of a table block by block, and numbers the values of its categories."""

    def __init__(self, kinds: Kinds, target: str = "", limit: float = math.inf):
        """Set what to read. limit: the maximum number of values of a category."""
        self.kinds = kinds
        self.target = target
        self.limit = limit
        self.rounded = set[str]()  # columns of whole numbers that float32 rounds
        self.codes: dict[str, dict[str, int]] = defaultdict(dict)  # codes of cells, by category

    def read_table(
        self, writer: StoreWriter, blocks: Iterable[Block], drop_missing: bool = False
    ) -> Table:
        """Read all blocks into arrays, which `writer` keeps on disk until it closes.

        drop_missing: leave out rows without a target. Raises `UserError`, with row and column, for
        an invalid cell.
        """
        num_rows = 0
        for block in blocks:
            numbers, codes, has_target = self.read(block)
            if not drop_missing and not has_target.all():
                row = int(has_target.argmin())
                remedy = "fill it in, remove the row, or add --drop-missing-targets"
                raise block.error("the target is missing", row, self.target, remedy)
            writer.append(".numbers", numbers[has_target])
            writer.append(".codes", codes[has_target])
            writer.append(".rows", num_rows + np.flatnonzero(has_target))
            num_rows += len(has_target)

        for name in self.rounded:
            print(
                f"note: column '{name}' has whole numbers beyond 2^24, which float32 rounds: "
                f"try --category '{name}' or --drop '{name}'"
            )
        levels = {name: list(codes) for name, codes in self.codes.items()}
        numbers = writer.appended(".numbers")
        codes = writer.appended(".codes")
        file_rows = writer.appended(".rows")
        return Table(self.kinds, numbers, codes, levels, self.target, num_rows, file_rows)

    def read(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return numbers (rows, columns), codes (rows, categories) and has_target (rows,)."""
        numbers = []
        codes = []
        rows = len(block.table)
        has_target = np.ones(rows, bool)
        for name, kind in self.kinds.items():
            place_of(name, block.table.column_names, block.source.path)
            cells = block.with_missing(NO_TARGET) if name == self.target else block
            if kind == "category":
                codes.append(self._category(cells, name))
                is_known = codes[-1] > 0
            elif kind == "number":
                numbers.append(self._number(cells, name))
                is_known = ~np.isnan(numbers[-1])
            else:
                numbers += time_features(block, name, kind)
            if name == self.target:
                has_target = is_known
        # `reshape` keeps the number of rows even if there is no numeric column.
        table = np.array(numbers, np.float32).reshape(-1, rows).T
        return table, np.array(codes, np.int32).reshape(-1, rows).T, has_target

    def _category(self, block: Block, name: str) -> np.ndarray:
        """Return codes (rows,), 0 for missing cells; number the values that are new."""
        places, cells = encode(block.column(name))
        codes = self.codes[name]
        for cell in cells:
            codes.setdefault(cell, len(codes) + 1)
        if len(codes) > self.limit:
            remedy = f"leave it out with --drop '{name}', or raise --max-levels"
            marked = marked_number(list(codes))
            if marked is not None:
                remedy = f"{marked[1]}; {remedy}"
            what = f"more than {self.limit} different values in a category"
            raise UserError(what, f"{block.source.path}, column '{name}'", remedy)
        return np.array([*(codes[cell] for cell in cells), 0], np.int32)[places]

    def _number(self, block: Block, name: str) -> np.ndarray:
        values = block.numbers(name, TARGET if name == self.target else OTHERWISE)
        large = values[np.abs(values) > EXACT]
        if ((large == large // 1) & (large != np.float32(large))).any():
            self.rounded.add(name)
        return values


def time_features(block: Block, name: str, features: list[str]) -> list[np.ndarray]:
    """Return an array (rows,) for each time feature of a column, with NaN for missing cells."""
    seconds, is_known = block.times(name)
    times = pa.array(seconds, mask=~is_known).cast(SECONDS)
    return [TIMES[feature](times).to_numpy(zero_copy_only=False) for feature in features]
