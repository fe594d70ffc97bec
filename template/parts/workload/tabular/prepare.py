"""Turn a table (CSV, Parquet, Feather) into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..prepare.splits import add_input, print_next


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a table", times=False)
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    tasks = ["regression", "classification"]
    add("--task", required=True, choices=tasks, help="predict a number, or a class")

    text = "fractions that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)
    text = "seed of the shuffle before the split (default: 0)"
    add("--seed", type=int, default=0, help=text)
    text = "keep rows of one value, such as a customer, in one split; the column is no feature"
    add("--group", metavar="COLUMN", help=text)
    text = "do not shuffle: the last rows of the file become the test split"
    add("--keep-order", action="store_true", help=text)

    text = "treat the numbers of a column as names; repeatable"
    add("--category", action="append", default=[], metavar="COLUMN", help=text)
    text = "leave a column out; repeatable"
    add("--drop", action="append", default=[], metavar="COLUMN", help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read the file once, compute the metadata from the training rows, then write all rows."""
    import numpy as np

    from ..engine.loading.store import StoreWriter, check_folder
    from ..prepare.columns import read_table
    from ..prepare.partition import arrange, take_group
    from ..prepare.rows import describe, print_columns, print_copies, write
    from ..prepare.tables import Source
    from ..settings import WORKLOAD

    source = Source(Path(arguments.input), vars(arguments))
    folder = check_folder(load().data.path, arguments.input)
    with StoreWriter(folder, WORKLOAD) as writer:
        table = read_table(writer, source, arguments.target)
        group = None
        if arguments.group:
            table, group = take_group(table, arguments.group)
        order, splits = arrange(table, group, arguments.split, arguments.seed, arguments.keep_order)
        train = np.zeros(len(table), bool)
        train[order[: splits["train"][1]]] = True

        facts = describe(table, train)
        print_copies(table, order, splits)
        write(writer, table, facts, order)
        writer.splits = splits
        writer.source = {"file": source.path.name, **source.style}
    counts = [f"{last - first:,} {name}" for name, (first, last) in splits.items()]
    print(f"rows:       {', '.join(counts)}")
    print_columns(facts)
    print_next(folder)
