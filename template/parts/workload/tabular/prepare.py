"""Turn a table (CSV, Parquet, Feather) into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..prepare.splits import add_input, borders, destination, print_summary

if TYPE_CHECKING:
    from ..engine.data.store import StoreWriter
    from ..prepare.rows import Table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a table")
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    tasks = ["regression", "classification"]
    add("--task", required=True, choices=tasks, help="predict a number, or a class")

    text = "fractions that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)
    text = "leave out rows without a target, which are an error otherwise"
    add("--drop-missing-targets", action="store_true", help=text)
    text = "seed of the shuffle before the split (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=text)
    text = "do not shuffle: the last rows of the file become the test split"
    add("--keep-order", action="store_true", help=text)

    text = "treat the numbers of a column as names; repeatable"
    add("--category", action="append", default=[], metavar="COLUMN", help=text)
    text = "leave a column out; repeatable"
    add("--drop", action="append", default=[], metavar="COLUMN", help=text)
    text = "replace times by numbers, in UTC if they have an offset: hour,weekday,month, or some"
    add("--time-features", default="", metavar="NAMES", help=text)
    text = "maximum number of values of a category (default: 1000)"
    add("--max-levels", type=int, default=1000, metavar="N", help=text)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read the file once, compute the metadata from the training rows, then write all rows."""
    from ..engine.data.store import StoreWriter
    from ..prepare.columns import MISSING, Columns, survey
    from ..prepare.tables import Source
    from ..settings import WORKLOAD

    if arguments.seed < 0:
        what = f"a seed cannot be {arguments.seed}"
        raise UserError(what, "--seed", "use 0 or a larger whole number")
    parts = time_parts(arguments.time_features)
    source = Source(Path(arguments.input), MISSING, vars(arguments))
    blocks = source.blocks()
    first = next(blocks)
    target = arguments.target
    kinds = survey(first, target, arguments.task, arguments.category, arguments.drop, parts)

    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            blocks = chain([first], blocks)
            read = Columns(kinds, target, arguments.max_levels).read_table
            table = read(writer, blocks, arguments.drop_missing_targets)
            columns = fill(writer, table, arguments)
            writer.source = {
                "file": source.path.name,
                "files": source.places,
                "rows": len(table),
                "seed": None if arguments.keep_order else arguments.seed,
                **source.written,
            }
        report(writer, table)
        print_summary(writer, arguments.dry_run, columns)


def time_parts(given: str) -> list[str]:
    """Return the names in `--time-features`."""
    from ..prepare.columns import TIMES

    parts = [name.strip() for name in given.split(",") if name.strip()]
    if not {*TIMES} >= {*parts}:
        what = f"'{given}' is not a time feature"
        raise UserError(what, "--time-features", f"choose from {','.join(TIMES)}")
    return list(dict.fromkeys(parts))


def fill(writer: StoreWriter, table: Table, arguments: argparse.Namespace) -> list[tuple[str, ...]]:
    """Split the rows and write them, with metadata from the training rows.

    Returns a summary line for each column.
    """
    import numpy as np

    from ..prepare.rows import describe, telling_columns, write

    splits = borders(arguments.split, len(table))
    order = np.arange(len(table))
    if not arguments.keep_order:
        np.random.default_rng(arguments.seed).shuffle(order)
    train = np.zeros(len(table), bool)
    train[order[: splits["train"][1]]] = True

    facts, columns = describe(table, train)
    check(table, facts, arguments)
    for name in telling_columns(table, train):
        what = f"column '{name}' alone predicts the target"
        print(f"note: {what}: if it is known only with the target, add --drop '{name}'")
    write(writer, table, facts, order[: splits["test"][1]])
    writer.splits = splits
    return columns


def check(table: Table, facts: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Raise `UserError` for data that cannot be right, and print a note for suspicious columns."""
    from ..prepare.tables import marked_number

    path = arguments.input
    if len(facts["target"].get("classes", [])) == 1:
        where = f"{path}, column '{arguments.target}'"
        raise UserError("all training rows have one class", where, "check --target and --split")

    for name, cells in table.levels.items():
        marked = marked_number(cells)
        if marked is not None and name not in arguments.category:
            cell, remedy = marked
            remedy += f", or add --category '{name}'"
            raise UserError(f"'{cell}' is not a number", f"{path}, column '{name}'", remedy)
        if name != table.target and len(cells) > max(len(table) // 2, 20):
            print(
                f"note: column '{name}' has {len(cells):,} different values in {len(table):,} rows:"
                f" if it is an id, add --drop '{name}'; for times, see --time-format"
            )


def report(writer: StoreWriter, table: Table) -> None:
    """Print the names of the columns and the numbers of rows."""
    for title, fact in (("numeric", "features"), ("category", "categories")):
        names = ", ".join(column["name"] for column in writer.facts[fact])
        print(f"{title + ' columns:':18}{names or 'none'}")

    counts = [f"{last - first} {name}" for name, (first, last) in writer.splits.items()]
    unused = len(table) - writer.splits["test"][1]
    if unused:
        counts.append(f"{unused} left out")
    if table.rows_read > len(table):
        counts.append(f"{table.rows_read - len(table):,} without a target left out")
    print(f"{'rows:':18}{', '.join(counts)}")
