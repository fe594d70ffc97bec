"""Splits of the rows, the end of a summary, and flags of several commands."""

from __future__ import annotations

import argparse
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path

from ..engine.errors import UserError
from ..engine.runs import typed_path

SPLITS = ("train", "validation", "test")


def split_shares(split: str) -> list[float]:
    """Return the three numbers in `--split`: fractions, which add up to 1, or counts.

    The last number may be left out.
    """
    numbers = [-1.0]
    with suppress(ValueError):
        numbers = [float(text) for text in split.split(",")]
    numbers += [0.0] * (3 - len(numbers))
    is_whole = all(number.is_integer() for number in numbers)
    is_valid = is_whole or abs(sum(numbers) - 1) < 1e-6
    if len(numbers) > 3 or min(numbers) < 0 or not is_valid:
        remedy = "give fractions that add up to 1, such as 0.8,0.1,0.1, or three whole numbers"
        raise UserError(f"'{split}' is not a valid split", "--split", remedy)
    return numbers


def split_sizes(split: str, count: int, rounded: int = 0) -> list[int]:
    """Return the sizes of the training, validation and test split of `count` rows, days or tokens.

    rounded: which of the first two fractions is rounded; the other split gets what is left.
    """
    numbers = split_shares(split)
    sizes = [int(number) for number in numbers]
    if sum(numbers) < 2:  # fractions
        sizes = [round(count * fraction) for fraction in numbers]
        sizes[1 - rounded] += count - sum(sizes)
    if min(sizes[:2]) < 1 or sum(sizes) > count:
        what = f"{count} cannot be split into {', '.join(map(str, sizes))}"
        remedy = "training and validation need at least one"
        raise UserError(what, f"--split {split}", remedy)
    return sizes


def borders(split: str, count: int) -> dict[str, list[int]]:
    """Return the first and last + 1 row of each split, for rows that stay in order."""
    ends = accumulate(split_sizes(split, count), initial=0)
    return dict(zip(SPLITS, map(list, pairwise(ends)), strict=True))


def print_next(folder: str | Path) -> None:
    """Print where the data are, and the next command."""
    package = (__package__ or "").partition(".")[0]
    print(f"written to: {folder}")
    print(f"next:       python -m {package} train")


def add_input(
    parser: argparse.ArgumentParser, title: str, required: bool = True, times: bool = True
) -> None:
    """Add the flags of commands that read a table: `prepare` and `predict`.

    times: whether the table may have a column of times.
    """
    add = parser.add_argument
    add(
        "--input",
        required=required,
        type=typed_path,
        metavar="PATH",
        help=f"{title}: CSV (also compressed) with a header, Parquet, Feather, Arrow, or a folder"
        " of them",
    )
    add(
        "--delimiter",
        help="delimiter of a CSV file (default: detected in the header)",
    )
    add(
        "--decimal",
        choices=[".", ","],
        metavar="SIGN",
        help="decimal mark of a CSV file, `.` or `,` (default: detected in the first rows)",
    )
    add(
        "--encoding",
        help="encoding of a CSV file, such as latin-1 (default: utf-8, or as in `prepare`)",
    )
    add(
        "--missing",
        action="append",
        help="text of a missing cell, such as `?`, besides empty, NA, nan and null; repeatable",
    )
    text = "count NA, nan and null in texts as names, such as of a country, not as missing"
    add("--keep-na", action="store_true", default=None, help=text)
    if times:
        add(
            "--time-format",
            help="format of times, such as %%d.%%m.%%Y, or the unit of numbers: s, ms, us or ns"
            " (default: ISO 8601)",
        )
