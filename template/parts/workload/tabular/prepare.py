"""Turn a table (CSV, Parquet, Feather) into the data folder that training reads."""

from __future__ import annotations

import argparse
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
    from ..tables import Block

MISSING = ("", "NA")
OTHERWISE = "mend the cell, leave it empty where the value is missing, or prepare with --category or --drop"
TARGET = "mend the cell, or use --task classification"
MOSTLY = 0.5  # a column with this share of numbers is numeric, and a text in it a mistake
EXACT = 1 << 24  # float32 tells whole numbers apart up to here
TIMES = ("hour", "weekday", "month")
Kinds = dict[str, Any]
"""What a column holds: `number`, `category`, or the parts of a time that are to be kept."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add, dtypes = parser.add_argument, ["float32", "float16", "bfloat16"]
    add_input(parser, "a table")
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    add("--task", required=True, choices=["regression", "classification"], help="of a number, or a class")
    shares = "shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=shares)
    add("--seed", type=int, default=0, metavar="N", help="of the shuffle before the split (default: 0)")
    add("--keep-order", action="store_true", help="do not shuffle: the last rows of the file are for test")
    add("--category", action="append", default=[], metavar="COLUMN", help="its numbers are names; repeatable")
    add("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out; repeatable")
    times = f"numbers in place of each column of times: {','.join(TIMES)}, or some of these"
    add("--time-features", default="", metavar="NAMES", help=times)
    add("--max-levels", type=int, default=1000, metavar="N", help="most values of a category (default: 1000)")
    halves = "halves store the numeric columns standardised, in half the space (default: %(default)s)"
    add("--dtype", default="float32", choices=dtypes, help=halves)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads the file once, learns from the training rows, then writes all of them."""
    import numpy as np

    from ..dataset import describe, write
    from ..engine.store import StoreWriter
    from ..settings import WORKLOAD
    from ..tables import Source

    target, given = arguments.target, arguments.time_features
    if arguments.seed < 0:
        raise UserError(f"a seed cannot be {arguments.seed}", "--seed", "give a whole number from 0 on")
    parts = [name.strip() for name in given.split(",") if name.strip()]
    if not {*TIMES} >= {*parts}:
        raise UserError(f"'{given}' is no part of a time", "--time-features", f"take of {','.join(TIMES)}")
    source = Source(Path(arguments.input), MISSING, vars(arguments))
    blocks = source.blocks("reading")
    first = next(blocks)
    kinds = survey([first], arguments, parts)
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            try:
                table = read_table(writer, chain([first], blocks), kinds, target, arguments.max_levels)
            except UserError:
                before, kinds = kinds, survey(source.blocks("checking"), arguments, parts)
                if kinds == before:
                    raise
                table = read_table(writer, source.blocks("reading"), kinds, target, arguments.max_levels)
            sizes, order = split_sizes(arguments.split, len(table)), np.arange(len(table))
            marks = pairwise(accumulate(sizes, initial=0))
            writer.splits = dict(zip(("train", "validation", "test"), map(list, marks), strict=True))
            if not arguments.keep_order:
                np.random.default_rng(arguments.seed).shuffle(order)
            train = np.zeros(len(table), bool)
            train[order[: sizes[0]]] = True
            facts, columns = describe(table, train)
            if times := {name: kind for name, kind in kinds.items() if isinstance(kind, list)}:
                facts["times"] = times
            write(writer, table, facts, order[: sum(sizes)], arguments.dtype)
            check(table, facts, columns, arguments)
            seed = None if arguments.keep_order else arguments.seed
            writer.source = {"file": source.path.name, "rows": len(table), "seed": seed}
        for title, found in (("numeric", facts["features"]), ("category", facts["categories"])):
            print(f"{title + ' columns:':18}{', '.join(column['name'] for column in found) or 'none'}")
        counts = [f"{size} {name}" for size, name in zip(sizes, writer.splits, strict=True)]
        counts += [f"{unused} left out"] if (unused := len(order) - sum(sizes)) else []
        print(f"{'rows:':18}{', '.join(counts)}")
        conclude(writer, arguments.dry_run, columns)


def survey(blocks: Iterable[Block], arguments: argparse.Namespace, parts: list[str]) -> Kinds:
    """What each column to keep holds, by some blocks or all: `number`, `category`, or parts of a time.

    A column is numeric if most of the cells that are not missing are numbers.
    """
    import numpy as np

    from ..tables import TEXT, place_of

    target, totals = arguments.target, np.zeros(2, np.int64)
    for block in blocks:
        names, path = block.table.column_names, block.source.path
        for name in [target, *arguments.category, *arguments.drop]:
            place_of(name, names, path)
        found = [((values > TEXT).sum(), (values == TEXT).sum()) for values, _ in map(block.parse, names)]
        totals = totals + found
    kinds: Kinds = {}
    for name, (numbers, texts) in zip(names, totals.tolist(), strict=True):
        kinds[name] = "category" if texts and numbers < MOSTLY * (numbers + texts) else "number"
        if parts and not numbers and block.is_time(name):
            kinds[name] = parts
    kinds |= dict.fromkeys(arguments.category, "category")
    kinds[target] = "number" if arguments.task == "regression" else "category"
    for name in arguments.drop:
        kinds.pop(name, None)
    if target not in kinds:
        raise UserError("the target cannot be dropped", f"--drop '{target}'")
    if len(kinds) == 1:
        raise UserError("no column besides the target", str(path), "a model needs something to go by")
    return kinds


def read_table(
    writer: StoreWriter,
    blocks: Iterable[Block],
    kinds: Kinds,
    target: str,
    limit: int,
    known: dict[str, list[str]] | None = None,
) -> Table:
    """The columns of `kinds` as arrays that `writer` has for the time being; a category may have up to
    `limit` values.

    known: the values that earlier data had in categories, in the order of their codes. Raises `UserError`
    that names row and column for a cell that does not belong there.
    """
    import numpy as np

    from ..dataset import Table, as_rows
    from ..tables import largest

    codes: dict[str, dict[str, int]] = {name: {} for name, kind in kinds.items() if kind == "category"}
    codes |= {name: {cell: at for at, cell in enumerate(cells, 1)} for name, cells in (known or {}).items()}
    scratch, coarse = f".{len(writer.arrays)}", set[str]()
    gap = "the target is missing", "remove the row"
    for block in blocks:
        path = block.source.path
        if absent := [name for name in kinds if name not in block.table.column_names]:
            raise UserError(f"no column '{absent[0]}'", str(path), "the model was trained with it")
        names = list[str]()
        found: dict[str, list[np.ndarray]] = {"features": [], "categories": [], "target": []}
        for name, kind in kinds.items():
            if name in codes:
                at, cells = block.texts(name)
                level = codes[name]
                missing = block.source.missing + (("nan", "NaN") if name == target else ())
                for cell in filter(lambda cell: cell not in missing, cells):
                    level.setdefault(cell, 0 if known else len(level) + 1)
                if not known and len(level) > limit:
                    what, where = f"more than {limit} different values in a category", f"column '{name}'"
                    remedy = f"leave it out with --drop '{name}', or raise --max-levels"
                    remedy += "; of times, see --time-features" if block.is_time(name) else ""
                    raise UserError(what, f"{path}, {where}", remedy)
                values = np.array([*(0 if x in missing else level[x] for x in cells), 0], np.int32).take(at)
                if name == target and not values.all():
                    raise block.error(gap[0], int((values == 0).argmax()), name, gap[1])
                found["target" if name == target else "categories"].append(values)
            elif kind == "number":
                remedy = TARGET if name == target else OTHERWISE
                values = block.numbers(name, remedy, gap if name == target else None)
                if not largest(values) <= EXACT:  # or some are missing
                    large = values[np.abs(values) > EXACT]
                    if ((large == large // 1) & (large != np.float32(large))).any():
                        coarse.add(name)
                names += [name] * (name != target)
                found["target" if name == target else "features"].append(values)
            else:
                names += [f"{name} {part}" for part in kind]
                found["features"] += map(part_of, kind, [block.times(name)] * len(kind))
        rows = as_rows(found)
        writer.append(scratch, rows, f"V{rows.itemsize}")
    for name in coarse:
        what = "whole numbers beyond 2^24, which float32 rounds"
        print(f"note: column '{name}' has {what}: --category '{name}' or --drop '{name}'?")
    for name in known or {}:
        if unknown := [value for value, code in codes[name].items() if not code]:
            print(f"note: column '{name}' has values that training had not, such as '{unknown[0]}'")
    levels = {name: [cell for cell, code in level.items() if code] for name, level in codes.items()}
    classes = levels.pop(target, None)
    mapped = np.asarray(writer.appended(scratch)).view(rows.dtype)
    return Table(mapped, names, levels, target, classes)


def part_of(part: str, seconds: np.ndarray) -> np.ndarray:
    """Of times, seconds since 1970: the hour from 0, the weekday from 0 (Monday), the month from 1."""
    if part == "month":
        return seconds.astype("datetime64[s]").astype("datetime64[M]").astype(int) % 12 + 1
    return seconds // 3600 % 24 if part == "hour" else (seconds // 86400 + 3) % 7


def check(
    table: Table, facts: dict[str, Any], columns: list[tuple[str, ...]], arguments: argparse.Namespace
) -> None:
    """Raises `UserError` for what cannot be meant, and prints what may not be."""
    from ..tables import TEXT, number

    target, path = facts["target"], arguments.input
    if len(target.get("classes", "any")) < 2:
        raise UserError("all training rows have one class", f"{path}, column '{arguments.target}'")
    if ("constant", arguments.target) in [(kind, name) for name, kind, *_ in columns]:
        print(f"note: the target is {target['mean']:g} in every training row, so there is nothing to learn")
    for name, cells in table.levels.items():
        if name not in arguments.category and all(number(cell.replace(",", "")) != TEXT for cell in cells):
            remedy = f"take commas of thousands out, say --decimal , or --category '{name}'"
            raise UserError(f"'{cells[0]}' is not a number", f"{path}, column '{name}'", remedy)
        if len(cells) > max(len(table) // 2, 20):
            remedy = f"an id tells nothing: --drop '{name}'; of times, see --time-features"
            print(
                f"note: column '{name}' has {len(cells):,} different values in {len(table):,} rows; {remedy}"
            )
