"""Turn a table (CSV, Parquet, Feather) into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.runs import typed_path
from ..prepare.splits import add_input, print_next


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a table")
    for name in ("validation", "test"):
        text = f"file with the rows of the {name} split; --input then has only those of the others"
        add(f"--{name}", type=typed_path, metavar="PATH", help=text)
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    tasks = ["regression", "classification"]
    add("--task", required=True, choices=tasks, help="predict a number, or a class")

    text = "fractions that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)
    text = "seed of the shuffle before the split (default: 0)"
    add("--seed", type=int, default=0, help=text)
    text = "keep rows of one value, such as a customer, in one split; the column is no feature"
    add("--group", metavar="COLUMN", help=text)
    text = "column that tells rows apart; it is in predictions, and no feature"
    add("--id", metavar="COLUMN", help=text)
    text = "time: train on the oldest rows and test on the newest ones (default: random)"
    add("--split-by", choices=["random", "time"], default="random", help=text)
    text = "column of times or numbers for --split-by time; it is no feature"
    add("--time-column", metavar="COLUMN", help=text)
    text = "hold out each of N parts of the rows in turn, apart from the test split"
    add("--folds", type=int, metavar="N", help=text)
    text = "do not shuffle: the last rows of the file become the test split"
    add("--keep-order", action="store_true", help=text)

    text = "treat the numbers of a column as names; repeatable"
    add("--category", action="append", default=[], metavar="COLUMN", help=text)
    text = "leave a column out; repeatable"
    add("--drop", action="append", default=[], metavar="COLUMN", help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read the file once, compute the metadata from the training rows, then write all rows."""
    from ..engine.loading.store import StoreWriter, check_folder
    from ..prepare.columns import read_table
    from ..prepare.folds import write_folds
    from ..prepare.partition import arrange, check_flags, check_ids, check_parts, take_keys
    from ..prepare.rows import print_columns, write_parts
    from ..prepare.tables import Source
    from ..settings import WORKLOAD

    flags = vars(arguments)
    check_flags(flags)
    paths = [path for path in (flags["input"], flags["validation"], flags["test"]) if path]
    sources = [Source(Path(path), flags) for path in paths]
    folder = check_folder(load().data.path, *paths)
    with StoreWriter(folder, WORKLOAD) as writer:
        table, keys = take_keys(read_table(writer, sources, arguments.target), flags)
        if "id" in keys:
            check_ids(keys["id"], arguments.id)
        parts = arrange(table, keys, flags)
        check_parts(table, keys, parts, arguments.folds or 0)
        if arguments.folds:
            facts = write_folds(writer, table, parts)
        else:
            facts = write_parts(writer, table, parts)
            writer.splits = facts.pop("splits")
            writer.facts = facts
        writer.source = {
            "file": sources[0].path.name,
            "dates": table.dates,
            **sources[0].style,
        }
    counts = [f"{len(rows):,} {name}" for name, rows in parts.items()]
    print(f"rows:       {', '.join(counts)}")
    print_columns(facts)
    print_next(folder, " --fold all" if arguments.folds else "")
