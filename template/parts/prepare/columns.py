"""Detect what each column of a table holds (numbers, categories, times), and read its values."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError
from .rows import Facts, Table, describe, write
from .splits import Lines, borders
from .tables import FLOAT32_MAX, STRING, Block, Source, encode, number, place_of
from .times import find_format

if TYPE_CHECKING:
    from ..engine.data.store import StoreWriter

FIX = "fix the cell, or see --missing, --decimal, --category, --drop and --task"
FEW = 20  # so many different numbers may be classes
# Signs in cells that are meant as numbers: commas, percent, currencies.
SIGNS = re.compile("[,%‰$¢£¥\u20a0-\u20c0]")
# Hours count from 0, weekdays from 0 (Monday), months from 1.
TIMES = {"hour": pc.hour, "weekday": pc.day_of_week, "month": pc.month}
Kinds = dict[str, Any]
"""What each column holds: `number`, `category`, or a list of time features."""


def fill(
    writer: StoreWriter, source: Source, flags: dict[str, Any], facts: Facts | None = None
) -> tuple[Table, Lines]:
    """Read and write a table; return it, and a summary line for each column.

    facts: the metadata of the training data, for rows to predict; None computes them from the
    training rows.
    """
    blocks = source.blocks()
    if facts:
        table = Columns(facts["columns"]).read_table(writer, blocks)
        write(writer, table, facts, np.arange(len(table)))
        writer.splits = {"input": [0, len(table)]}
        lines: Lines = []
    else:
        first = next(blocks)
        reader = Columns(survey(first, flags), flags["target"], flags["max_levels"])
        blocks = chain([first], blocks)
        table = reader.read_table(writer, blocks, flags["drop_missing_targets"])
        lines = split_and_write(writer, table, flags)
    writer.source |= {"file": source.path.name, **source.style}
    return table, lines


def split_and_write(writer: StoreWriter, table: Table, flags: dict[str, Any]) -> Lines:
    """Split the rows and write them, with metadata from the training rows."""
    splits = borders(flags["split"], len(table))
    order = np.arange(len(table))
    if not flags["keep_order"]:
        np.random.default_rng(abs(flags["seed"])).shuffle(order)
    train = np.zeros(len(table), bool)
    train[order[: splits["train"][1]]] = True

    facts, lines = describe(table, train)
    write(writer, table, facts, order[: splits["test"][1]])
    writer.splits = splits
    return lines


# --- what a column holds


def survey(block: Block, flags: dict[str, Any]) -> Kinds:
    """Detect in the first block what each column holds."""
    target = flags["target"]
    drop = flags["drop"]
    for name in [target, *flags["category"], *drop]:
        place_of(name, block.columns, block.path)
    if target in drop:
        raise UserError("the target cannot be dropped", f"--drop '{target}'", "remove the flag")
    features = [name.strip() for name in flags["time_features"].split(",") if name.strip()]
    if not {*TIMES} >= {*features}:
        what = f"'{flags['time_features']}' is not a time feature"
        raise UserError(what, "--time-features", f"choose from {','.join(TIMES)}")

    kinds: Kinds = {}
    for name in block.columns:
        if name == target:
            kinds[name] = kind_of_target(block, flags)
        elif name in flags["category"]:
            kinds[name] = "category"
        elif name not in drop:
            kinds[name] = kind_of(block, name, features)
    kinds = {name: kind for name, kind in kinds.items() if kind}
    if len(kinds) == 1:
        what = "no column besides the target"
        raise UserError(what, str(block.path), "add a column to predict it from")
    if features and features not in kinds.values():
        remedy = "describe the format of times with --time-format"
        raise UserError("no column of times", f"{block.path}, --time-features", remedy)
    return kinds


def kind_of_target(block: Block, flags: dict[str, Any]) -> str:
    """Return the kind of the target. Raises `UserError` if the task does not fit the cells."""
    if flags["task"] == "regression":
        return "number"
    name = flags["target"]
    values = block.parse(name)
    cells = values[np.isfinite(values)]
    numbers = np.unique(cells)
    is_continuous = (numbers % 1 != 0).any() or len(cells) < 10 * len(numbers)
    if len(numbers) > FEW and is_continuous and name not in flags["category"]:
        what = f"{len(numbers):,} different numbers in {len(cells):,} rows are no classes"
        remedy = f"use --task regression, or add --category '{name}' if they are names"
        raise UserError(what, f"{block.path}, column '{name}'", remedy)
    return "category"


def kind_of(block: Block, name: str, features: list[str]) -> Any:
    """Return the kind of a column: numeric if at least half of its known cells are numbers."""
    where = f"{block.path}, column '{name}'"
    values = block.parse(name)
    is_number = np.abs(values) < FLOAT32_MAX
    if 2 * is_number.sum() >= (~np.isnan(values)).sum():
        numbers = values[is_number]
        whole = numbers[numbers % 1 == 0]
        is_counting = len(numbers) > FEW and (np.diff(numbers) == 1).all()
        if is_counting or (np.float32(whole) != whole).any():
            print(f"note: {where}: if it is an id, add --drop '{name}' or --category '{name}'")
        return "number"

    column = block.column(name)
    if column.type != STRING or find_format(column, where, block.source.flags["time_format"]):
        if not features:
            what = f"column '{name}' holds times, so it is left out"
            print(f"note: {what}: see --time-features, or add --category '{name}'")
        return features
    cells = column.unique().drop_null().to_pylist()
    signed = [cell for cell in cells if SIGNS.search(cell) and number(SIGNS.sub("", cell)) < np.inf]
    if 2 * len(signed) >= len(cells):
        remedy = "remove separators and signs, or see --decimal and --category"
        raise UserError(f"'{signed[0]}' is not a number", where, remedy)
    if len(cells) > max(block.num_rows // 2, FEW):
        print(f"note: {where}: if it is an id, add --drop '{name}'; for times, see --time-format")
    return "category"


# --- reading


class Columns:
    """Reads the columns of a table block by block, and numbers the values of its categories."""

    def __init__(self, kinds: Kinds, target: str = "", limit: float = math.inf):
        """Set what to read. limit: the maximum number of values of a category."""
        self.kinds = kinds
        self.target = target
        self.limit = limit
        self.codes: dict[str, dict[str, int]] = defaultdict(dict)  # codes of cells, by category

    def read_table(
        self, writer: StoreWriter, blocks: Iterable[Block], drop_missing: bool = False
    ) -> Table:
        """Read all blocks into arrays, which `writer` keeps on disk until it closes.

        drop_missing: leave out rows without a target. Raises `UserError`, with row and column, for
        an invalid cell.
        """
        num_rows = 0
        files = []
        for block in blocks:
            numbers, codes, has_target = self.read(block)
            if not drop_missing and not has_target.all():
                row = int(has_target.argmin())
                remedy = "fill it in, remove the row, or add --drop-missing-targets"
                raise block.error("the target is missing", row, self.target, remedy)
            if not block.first:
                files.append((num_rows, block.path.name))
            writer.append(".numbers", numbers[has_target])
            writer.append(".codes", codes[has_target])
            writer.append(".rows", num_rows + np.flatnonzero(has_target))
            num_rows += block.num_rows

        if drop_missing:
            left_out = num_rows - len(writer.appended(".rows"))
            print(f"note: rows without a target, which are left out: {left_out:,}")
        levels = {name: list(codes) for name, codes in self.codes.items()}
        arrays = [writer.appended(name) for name in (".numbers", ".codes", ".rows")]
        writer.source = {"files": files}
        return Table(self.kinds, levels, self.target, *arrays)

    def read(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return numbers (rows, columns), codes (rows, categories) and has_target (rows,)."""
        numbers = []
        codes = []
        has_target = np.ones(block.num_rows, bool)
        for name, kind in self.kinds.items():
            if kind == "category":
                codes.append(self._category(block, name))
                is_known = codes[-1] > 0
            elif kind == "number":
                numbers.append(block.numbers(name, FIX))
                is_known = ~np.isnan(numbers[-1])
            else:
                times = pa.array(block.times(name))
                for feature in kind:
                    numbers.append(TIMES[feature](times).to_numpy(zero_copy_only=False))
            if name == self.target:
                has_target = is_known
        # `reshape` keeps the number of rows even if there is no numeric column.
        table = np.array(numbers, np.float32).reshape(-1, block.num_rows).T
        return table, np.array(codes, np.int32).reshape(-1, block.num_rows).T, has_target

    def _category(self, block: Block, name: str) -> np.ndarray:
        """Return codes (rows,), 0 for missing cells; number the values that are new."""
        places, cells = encode(block.column(name))
        codes = self.codes[name]
        for cell in cells:
            codes.setdefault(cell, len(codes) + 1)
        if len(codes) > self.limit:
            remedy = f"leave it out with --drop '{name}', or raise --max-levels"
            what = f"more than {self.limit} different values in a category"
            raise UserError(what, f"{block.path}, column '{name}'", remedy)
        return np.array([*(codes[cell] for cell in cells), 0], np.int32)[places]
