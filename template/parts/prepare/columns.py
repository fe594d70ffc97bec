"""Detect what each column of a table holds (numbers, categories, times), and read its values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError
from .rows import Facts, Table, describe, telling_columns, write
from .splits import Lines, borders
from .tables import TEXT, Block, Source, encode, marked_number, place_of

if TYPE_CHECKING:
    from ..engine.data.store import StoreWriter

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
    writer.source = {
        "file": source.path.name,
        "files": [(first_row, path.name) for first_row, path in source.starts],
        "rows": len(table),
        **source.written,
    }
    return table, lines


def split_and_write(writer: StoreWriter, table: Table, flags: dict[str, Any]) -> Lines:
    """Split the rows and write them, with metadata from the training rows."""
    splits = borders(flags["split"], len(table))
    order = np.arange(len(table))
    if not flags["keep_order"]:
        np.random.default_rng(flags["seed"]).shuffle(order)
    train = np.zeros(len(table), bool)
    train[order[: splits["train"][1]]] = True

    facts, lines = describe(table, train)
    check(table, facts, flags)
    for name in telling_columns(table, train):
        what = f"column '{name}' alone predicts the target"
        print(f"note: {what}: if it is known only with the target, add --drop '{name}'")
    write(writer, table, facts, order[: splits["test"][1]])
    writer.splits = splits
    return lines


def check(table: Table, facts: Facts, flags: dict[str, Any]) -> None:
    """Raise `UserError` for data that cannot be right, and print a note for suspicious columns."""
    path = flags["input"]
    if len(facts["target"].get("classes", [])) == 1:
        where = f"{path}, column '{table.target}'"
        raise UserError("all training rows have one class", where, "check --target and --split")

    for name, cells in table.levels.items():
        marked = marked_number(cells)
        if marked is not None and name not in flags["category"]:
            cell, remedy = marked
            remedy += f", or add --category '{name}'"
            raise UserError(f"'{cell}' is not a number", f"{path}, column '{name}'", remedy)
        if name != table.target and len(cells) > max(len(table) // 2, 20):
            print(
                f"note: column '{name}' has {len(cells):,} different values in {len(table):,} rows:"
                f" if it is an id, add --drop '{name}'; for times, see --time-format"
            )


# --- what a column holds


def survey(block: Block, flags: dict[str, Any]) -> Kinds:
    """Detect in the first block what each column holds."""
    header = block.table.column_names
    target = flags["target"]
    drop = flags["drop"]
    features = time_features(flags["time_features"])
    for name in [target, *flags["category"], *drop]:
        place_of(name, header, block.source.path)
    if target in drop:
        raise UserError("the target cannot be dropped", f"--drop '{target}'", "remove the flag")
    check_target(block, target, flags["task"], target in flags["category"])

    kinds: Kinds = {}
    for name in header:
        if name in drop:
            continue
        if name == target:
            kinds[name] = "number" if flags["task"] == "regression" else "category"
        elif name in flags["category"]:
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


def time_features(given: str) -> list[str]:
    """Return the names in `--time-features`, each of which replaces a column of times."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not {*TIMES} >= {*names}:
        what = f"'{given}' is not a time feature"
        raise UserError(what, "--time-features", f"choose from {','.join(TIMES)}")
    return list(dict.fromkeys(names))


def check_target(block: Block, name: str, task: str, are_names: bool) -> None:
    """Raise `UserError` if the task does not fit the cells. are_names: because of `--category`."""
    if task == "regression":
        if are_names:
            what = "the target is a number, because of --task regression"
            remedy = "remove the flag, or use --task classification"
            raise UserError(what, f"--category '{name}'", remedy)
        return
    values = block.parse(name)
    cells = values[np.isfinite(values)]
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
    values = block.parse(name)
    texts = values == TEXT
    is_text = texts.sum() > MOSTLY * (~np.isnan(values)).sum()
    may_be_time = texts.any() if features else is_text
    if may_be_time and block.is_time(name):
        return features
    if is_text:
        return "category"
    if len(values) > FEW and values[0] in (0, 1) and (np.diff(values) == 1).all():
        what = f"column '{name}' is the number of the row"
        print(f"note: {what}: unless it means something, add --drop '{name}'")
    return "number"


# --- reading


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
        arrays = [writer.appended(name) for name in (".numbers", ".codes", ".rows")]
        return Table(self.kinds, levels, self.target, num_rows, *arrays)

    def read(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return numbers (rows, columns), codes (rows, categories) and has_target (rows,)."""
        numbers = []
        codes = []
        rows = len(block.table)
        has_target = np.ones(rows, bool)
        for name, kind in self.kinds.items():
            place_of(name, block.table.column_names, block.source.path)
            missing = NO_TARGET if name == self.target else ()
            if kind == "category":
                codes.append(self._category(block, name, missing))
                is_known = codes[-1] > 0
            elif kind == "number":
                numbers.append(self._number(block, name, missing))
                is_known = ~np.isnan(numbers[-1])
            else:
                numbers += parts_of_times(block, name, kind)
            if name == self.target:
                has_target = is_known
        # `reshape` keeps the number of rows even if there is no numeric column.
        table = np.array(numbers, np.float32).reshape(-1, rows).T
        return table, np.array(codes, np.int32).reshape(-1, rows).T, has_target

    def _category(self, block: Block, name: str, missing: tuple[str, ...]) -> np.ndarray:
        """Return codes (rows,), 0 for missing cells; number the values that are new."""
        places, cells = encode(block.column(name, missing))
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

    def _number(self, block: Block, name: str, missing: tuple[str, ...]) -> np.ndarray:
        values = block.numbers(name, TARGET if name == self.target else OTHERWISE, missing)
        large = values[np.abs(values) > EXACT]
        if ((large == large // 1) & (large != np.float32(large))).any():
            self.rounded.add(name)
        return values


def parts_of_times(block: Block, name: str, features: list[str]) -> list[np.ndarray]:
    """Return an array (rows,) for each time feature of a column, with NaN for missing cells."""
    seconds, is_known = block.times(name)
    times = pa.array(seconds, mask=~is_known).cast(pa.timestamp("s"))
    return [TIMES[feature](times).to_numpy(zero_copy_only=False) for feature in features]
