"""Turn a table (CSV, Parquet, Feather) into the data folder that training reads."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..splits import add_input, conclude, destination, split_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Table
    from ..engine.store import StoreWriter
    from ..tables import Block, Source

MISSING = ("", "NA")
OTHERWISE = (
    "mend the cell, leave it empty where the value is missing, or prepare with --category or --drop"
)
TARGET = "mend the cell, or use --task classification"
GAP = ("the target is missing", "fill it in, remove the row, or say --drop-missing-targets")
MOSTLY = 0.5  # a column with this share of numbers is numeric, and a text in it an error
EXACT = 1 << 24  # float32 tells whole numbers apart up to here
TIMES = ("hour", "weekday", "month")
Kinds = dict[str, Any]
"""What a column holds: `number`, `category`, or the parts of a time that are to be kept."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a table")
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    tasks = ["regression", "classification"]
    add("--task", required=True, choices=tasks, help="of a number, or a class")

    text = "shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)
    text = "leave rows without a target out; without it they are an error"
    add("--drop-missing-targets", action="store_true", help=text)
    text = "of the shuffle before the split (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=text)
    text = "do not shuffle: the last rows of the file are for test"
    add("--keep-order", action="store_true", help=text)

    text = "its numbers are names; repeatable"
    add("--category", action="append", default=[], metavar="COLUMN", help=text)
    text = "leave a column out; repeatable"
    add("--drop", action="append", default=[], metavar="COLUMN", help=text)
    text = f"numbers in place of each column of times: {','.join(TIMES)}, or some of these"
    add("--time-features", default="", metavar="NAMES", help=text)
    text = "most values of a category (default: 1000)"
    add("--max-levels", type=int, default=1000, metavar="N", help=text)
    text = "halves store the numeric columns standardised, in half the space (default: %(default)s)"
    add("--dtype", default="float32", choices=["float32", "float16", "bfloat16"], help=text)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read the file once, learn from the training rows, then write all of them."""
    from ..engine.store import StoreWriter
    from ..settings import WORKLOAD
    from ..tables import Source

    if arguments.seed < 0:
        what = f"a seed cannot be {arguments.seed}"
        raise UserError(what, "--seed", "give a whole number from 0 on")
    parts = time_parts(arguments.time_features)
    source = Source(Path(arguments.input), MISSING, vars(arguments))
    blocks = source.blocks("reading")
    first = next(blocks)
    kinds = survey([first], arguments, parts)

    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            blocks = chain([first], blocks)
            table, kinds = read_surely(writer, source, blocks, kinds, arguments)
            columns, sizes = fill(writer, table, kinds, arguments)
            writer.source = {
                "file": source.path.name,
                "rows": len(table),
                "seed": None if arguments.keep_order else arguments.seed,
                **source.written,
            }
        report(writer, table, sizes)
        conclude(writer, arguments.dry_run, columns)


def time_parts(given: str) -> list[str]:
    """The names of `--time-features`."""
    parts = [name.strip() for name in given.split(",") if name.strip()]
    if not {*TIMES} >= {*parts}:
        what = f"'{given}' is no part of a time"
        raise UserError(what, "--time-features", f"take of {','.join(TIMES)}")
    return parts


def survey(blocks: Iterable[Block], arguments: argparse.Namespace, parts: list[str]) -> Kinds:
    """What each column to keep holds, by some blocks or all.

    It is `number`, `category`, or parts of a time. A column is numeric if most of the cells that
    are not missing are numbers.
    """
    from ..tables import TEXT, place_of

    target = arguments.target
    numbers = Counter[str]()
    texts = Counter[str]()
    for block in blocks:
        header = block.table.column_names
        path = block.source.path
        for name in [target, *arguments.category, *arguments.drop]:
            place_of(name, header, path)
        names = [name for name in header if name not in arguments.drop]
        for name in names:
            values, _ = block.parse(name)
            numbers[name] += int((values > TEXT).sum())
            texts[name] += int((values == TEXT).sum())

    if target not in names:
        raise UserError("the target cannot be dropped", f"--drop '{target}'")
    if len(names) == 1:
        what = "no column besides the target"
        raise UserError(what, str(path), "a model needs something to go by")

    kinds: Kinds = {}
    for name in names:
        known = numbers[name] + texts[name]
        if name == target:
            kinds[name] = "number" if arguments.task == "regression" else "category"
        elif name in arguments.category:
            kinds[name] = "category"
        elif parts and texts[name] and block.is_time(name):
            kinds[name] = parts
        elif texts[name] and numbers[name] < MOSTLY * known:
            kinds[name] = "category"
        else:
            kinds[name] = "number"
    return kinds


def read_surely(
    writer: StoreWriter,
    source: Source,
    blocks: Iterable[Block],
    kinds: Kinds,
    arguments: argparse.Namespace,
) -> tuple[Table, Kinds]:
    """The table; and what its columns hold, by all blocks where the first one was wrong."""

    def read(blocks: Iterable[Block], kinds: Kinds) -> Table:
        drop = arguments.drop_missing_targets
        limit = arguments.max_levels
        return read_table(writer, blocks, kinds, arguments.target, limit, drop_missing=drop)

    parts = time_parts(arguments.time_features)
    try:
        table = read(blocks, kinds)
    except UserError:
        first_kinds = kinds
        kinds = survey(source.blocks("checking"), arguments, parts)
        if kinds == first_kinds:
            raise
        table = read(source.blocks("reading"), kinds)
    if parts and parts not in kinds.values():
        remedy = "write them as 2024-01-31, or say how they are written by --time-format"
        raise UserError("no column of times", f"{source.path}, --time-features", remedy)
    return table, kinds


def fill(
    writer: StoreWriter, table: Table, kinds: Kinds, arguments: argparse.Namespace
) -> tuple[list[tuple[str, ...]], list[int]]:
    """Split the rows, learn from those that train, write them all.

    Returns a line for each column, and the sizes of the splits.
    """
    import numpy as np

    from ..dataset import describe, write

    # split
    sizes = split_sizes(arguments.split, len(table))
    borders = pairwise(accumulate(sizes, initial=0))
    names = ("train", "validation", "test")
    writer.splits = dict(zip(names, map(list, borders), strict=True))
    order = np.arange(len(table))
    if not arguments.keep_order:
        np.random.default_rng(arguments.seed).shuffle(order)
    train = np.zeros(len(table), bool)
    train[order[: sizes[0]]] = True

    # learn
    facts, columns = describe(table, train)
    times = {name: kind for name, kind in kinds.items() if isinstance(kind, list)}
    if times:
        facts["times"] = times

    write(writer, table, facts, order[: sum(sizes)], arguments.dtype)
    check(table, facts, columns, arguments)
    return columns, sizes


def report(writer: StoreWriter, table: Table, sizes: list[int]) -> None:
    """Print which columns and how many rows there are."""
    for title, fact in (("numeric", "features"), ("category", "categories")):
        names = ", ".join(column["name"] for column in writer.facts[fact])
        print(f"{title + ' columns:':18}{names or 'none'}")

    counts = [f"{size} {name}" for size, name in zip(sizes, writer.splits, strict=True)]
    unused = len(table) - sum(sizes)
    if unused:
        counts.append(f"{unused} left out")
    if len(table.left_out):
        counts.append(f"{len(table.left_out):,} without a target left out")
    print(f"{'rows:':18}{', '.join(counts)}")


def read_table(
    writer: StoreWriter,
    blocks: Iterable[Block],
    kinds: Kinds,
    target: str,
    limit: int,
    known: dict[str, list[str]] | None = None,
    drop_missing: bool = False,
) -> Table:
    """The columns of `kinds` as arrays that `writer` has for the time being.

    limit: how many values a category may have. known: the values that earlier data had in
    categories, in the order of their codes. drop_missing: leaves rows without a target out. Raises
    `UserError` that names row and column for a cell that does not belong there.
    """
    import numpy as np

    from ..dataset import Table, as_rows

    columns = Columns(kinds, target, limit, known, drop_missing)
    scratch = f".{len(writer.arrays)}"
    left_out = [np.zeros(0, np.int64)]
    for block in blocks:
        rows = as_rows(columns.read(block))
        if drop_missing:
            targets = rows["target"][:, 0]
            missing = targets == 0 if target in columns.codes else np.isnan(targets)
            left_out.append(block.first + np.flatnonzero(missing))
            rows = rows[~missing]
        writer.append(scratch, rows, f"V{rows.itemsize}")

    columns.print_notes()
    mapped = np.asarray(writer.appended(scratch)).view(rows.dtype)
    levels = columns.levels()
    classes = levels.pop(target, None)
    return Table(mapped, columns.names, levels, target, classes, np.concatenate(left_out))


class Columns:
    """Reads the columns of a table from its blocks; knows the values of its categories so far."""

    def __init__(
        self,
        kinds: Kinds,
        target: str,
        limit: int,
        known: dict[str, list[str]] | None,
        drop_missing: bool,
    ):
        """As of `read_table`."""
        self.kinds = kinds
        self.target = target
        self.limit = limit
        self.drop_missing = drop_missing
        self.is_learning = not known
        self.coarse = set[str]()  # columns of whole numbers that float32 rounds
        self.codes: dict[str, dict[str, int]] = {}  # of the cells, by category
        for name, kind in kinds.items():
            if kind == "category":
                self.codes[name] = {}
        for name, cells in (known or {}).items():
            self.codes[name] = {cell: code for code, cell in enumerate(cells, 1)}
        self.names = list[str]()  # of the features
        for name, kind in kinds.items():
            if isinstance(kind, list):
                self.names += [f"{name} {part}" for part in kind]
            elif kind == "number" and name != target:
                self.names.append(name)

    def read(self, block: Block) -> dict[str, list[np.ndarray]]:
        """Columns (rows,) of `features`, `categories` and `target`; a category as codes."""
        for name in self.kinds:
            if name not in block.table.column_names:
                remedy = "the model was trained with it"
                raise UserError(f"no column '{name}'", str(block.source.path), remedy)

        columns: dict[str, list[np.ndarray]] = {"features": [], "categories": [], "target": []}
        for name, kind in self.kinds.items():
            if name in self.codes:
                group = "target" if name == self.target else "categories"
                columns[group].append(self._category(block, name))
            elif kind == "number":
                group = "target" if name == self.target else "features"
                columns[group].append(self._number(block, name))
            else:
                columns["features"] += time_features(block, name, kind)
        return columns

    def _category(self, block: Block, name: str) -> np.ndarray:
        import numpy as np

        places, cells = block.texts(name)
        codes = self.codes[name]
        missing = block.source.missing
        if name == self.target:
            missing += ("nan", "NaN")

        # Values that training has not seen have the code 0.
        for cell in cells:
            if cell not in missing:
                codes.setdefault(cell, len(codes) + 1 if self.is_learning else 0)
        if self.is_learning and len(codes) > self.limit:
            self._refuse_levels(block, name)

        codes_of_cells = [0 if cell in missing else codes[cell] for cell in cells]
        codes_of_cells.append(0)  # for place -1
        values = np.array(codes_of_cells, np.int32).take(places)
        if name == self.target and not self.drop_missing and not values.all():
            row = int((values == 0).argmax())
            raise block.error(GAP[0], row, name, GAP[1])
        return values

    def _refuse_levels(self, block: Block, name: str) -> None:
        from ..tables import has_commas

        remedy = f"leave it out with --drop '{name}', or raise --max-levels"
        if has_commas(list(self.codes[name])):
            commas = "take commas of thousands out, or say --decimal , for decimal ones"
            remedy = f"{commas}; {remedy}"
        elif block.is_time(name):
            remedy += "; of times, see --time-features"
        what = f"more than {self.limit} different values in a category"
        raise UserError(what, f"{block.source.path}, column '{name}'", remedy)

    def _number(self, block: Block, name: str) -> np.ndarray:
        import numpy as np

        from ..tables import largest

        if name != self.target:
            values = block.numbers(name, OTHERWISE)
        elif self.drop_missing:
            values = block.numbers(name, TARGET, takes_nan=True)
        else:
            values = block.numbers(name, TARGET, GAP)

        if not largest(values) <= EXACT:  # or some are missing
            large = values[np.abs(values) > EXACT]
            is_rounded = (large == large // 1) & (large != np.float32(large))
            if is_rounded.any():
                self.coarse.add(name)
        return values

    def levels(self) -> dict[str, list[str]]:
        """The values of each category, in the order of their codes."""
        levels = {}
        for name, codes in self.codes.items():
            levels[name] = [cell for cell, code in codes.items() if code]
        return levels

    def print_notes(self) -> None:
        """Print a note for each column that may not be meant so."""
        for name in self.coarse:
            what = "whole numbers beyond 2^24, which float32 rounds"
            print(f"note: column '{name}' has {what}: --category '{name}' or --drop '{name}'?")
        for name, codes in self.codes.items():
            unknown = [value for value, code in codes.items() if not code]
            if unknown:
                what = f"values that training had not, such as '{unknown[0]}'"
                print(f"note: column '{name}' has {what}")


def time_features(block: Block, name: str, parts: list[str]) -> list[np.ndarray]:
    """(rows,) for each part of a column of times; NaN where a cell is missing."""
    import numpy as np

    seconds, is_known = block.known_times(name)
    columns = [part_of(part, seconds) for part in parts]
    if is_known.all():
        return columns
    return [np.where(is_known, values, np.nan) for values in columns]


def part_of(part: str, seconds: np.ndarray) -> np.ndarray:
    """The hour from 0, the weekday from 0 (Monday) or the month from 1, of seconds since 1970."""
    if part == "hour":
        return seconds // 3600 % 24
    if part == "weekday":
        return (seconds // 86400 + 3) % 7
    months = seconds.astype("datetime64[s]").astype("datetime64[M]")
    return months.astype(int) % 12 + 1


def check(
    table: Table,
    facts: dict[str, Any],
    columns: list[tuple[str, ...]],
    arguments: argparse.Namespace,
) -> None:
    """Raise `UserError` for what cannot be meant, and print what may not be."""
    from ..tables import has_commas

    path = arguments.input
    target = facts["target"]
    if "classes" in target and len(target["classes"]) < 2:
        where = f"{path}, column '{arguments.target}'"
        raise UserError("all training rows have one class", where)
    for name, kind, *_ in columns:
        if name == arguments.target and kind == "constant":
            what = f"the target is {target['mean']:g} in every training row"
            print(f"note: {what}, so there is nothing to learn")

    for name, cells in table.levels.items():
        if name not in arguments.category and has_commas(cells):
            remedy = f"take commas of thousands out, say --decimal , or --category '{name}'"
            raise UserError(f"'{cells[0]}' is not a number", f"{path}, column '{name}'", remedy)
        if len(cells) > max(len(table) // 2, 20):
            what = f"{len(cells):,} different values in {len(table):,} rows"
            remedy = f"an id tells nothing: --drop '{name}'; of times, see --time-features"
            print(f"note: column '{name}' has {what}; {remedy}")
