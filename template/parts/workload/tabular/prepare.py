"""Turn a CSV file into the data folder that training reads."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Table

MISSING = ("", "NA")
BLOCK_ROWS = 4096
OTHERWISE = "leave it empty where the value is missing, or prepare with --category or --drop for it"
FLOAT32_MAX = 3.4e38
TEXT, BEYOND = -math.inf, math.inf
MOSTLY = 0.5  # a column with this share of numbers is numeric, and a text in it a mistake


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add, dtypes = parser.add_argument, ["float32", "float16", "bfloat16"]
    add("--input", required=True, metavar="FILE", help="CSV file with a header line, UTF-8, also .gz")
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    add("--task", required=True, choices=["regression", "classification"], help="of a number, or a class")
    shares = "shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=shares)
    add("--seed", type=int, default=0, metavar="N", help="of the shuffle before the split (default: 0)")
    add("--keep-order", action="store_true", help="do not shuffle: the last rows of the file are for test")
    add("--category", action="append", default=[], metavar="COLUMN", help="its numbers are names; repeatable")
    add("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out; repeatable")
    add("--delimiter", default=",", choices=[",", ";", "|", "tab"], help="between cells (default: comma)")
    add("--max-levels", type=int, default=1000, metavar="N", help="most values of a category (default: 1000)")
    halves = "halves store the numeric columns standardised, in half the space (default: %(default)s)"
    add("--dtype", default="float32", choices=dtypes, help=halves)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads the file twice: to learn what each column holds, then to keep it."""
    import numpy as np

    from ..dataset import describe, write

    folder, path = Path(load().data.path), Path(arguments.input)
    if arguments.seed < 0:
        raise UserError(f"a seed cannot be {arguments.seed}", "--seed", "give a whole number from 0 on")
    source = Source(path, "\t" if arguments.delimiter == "tab" else arguments.delimiter)
    kinds, count = survey(source, arguments)
    sizes = split_sizes(arguments.split, count)
    table = read_table(source, kinds, arguments.target, arguments.max_levels, {})
    order = np.arange(count)
    if not arguments.keep_order:
        order = np.random.default_rng(arguments.seed).permutation(count)
    *rows, unused = np.split(order, np.cumsum(sizes))
    splits = dict(zip(("train", "validation", "test"), rows, strict=True))
    table, facts = describe(table, splits["train"])
    if len(facts["target"].get("classes", "any")) < 2:
        raise UserError("all training rows have one class", f"{path}, column '{arguments.target}'")
    origin = {"file": path.name, "rows": count, "seed": None if arguments.keep_order else arguments.seed}
    write(folder, table, facts, splits, arguments.dtype, origin)
    for title, columns in (("numeric", facts["features"]), ("category", facts["categories"])):
        print(f"{title + ' columns:':18}{', '.join(column['name'] for column in columns) or 'none'}")
    parts = [f"{len(rows)} {name}" for name, rows in splits.items()]
    print(f"{'rows:':18}{', '.join(parts)}" + (f", {len(unused)} left out" if len(unused) else ""))
    print(f"{'written to:':18}{folder}")


class Source(NamedTuple):
    """A CSV file, plain or gzipped."""

    path: Path
    delimiter: str = ","

    def blocks(self, title: str) -> Iterator[tuple[int, list[str], list[tuple[str, ...]]]]:
        """(rows before, column names, columns of stripped cells) block by block; blank lines are skipped.

        Raises `UserError`, with the line, for what is no table.
        """
        from tqdm import tqdm

        reader, before = None, 0
        try:
            size = self.path.stat().st_size
            bar = tqdm(None, title, size, unit="B", unit_scale=True, disable=None)
            with open(self.path, "rb") as raw, bar:
                packed = raw.peek(2)[:2] == b"\x1f\x8b"
                plain = gzip.GzipFile(fileobj=raw) if packed else raw
                text = io.TextIOWrapper(plain, "utf-8-sig", newline="")
                reader = csv.reader(text, delimiter=self.delimiter, strict=True)
                rows = ((reader.line_num, row) for row in reader if row)
                names = [name.strip() for name in next(rows, (0, []))[1]]
                self._check_header(names)
                while block := list(islice(rows, BLOCK_ROWS)):
                    for line, row in block:
                        if len(row) != len(names):
                            what = f"{len(row)} cells where the header has {len(names)}"
                            raise UserError(what, f"{self.path}, line {line}", "mend the line")
                    columns = zip(*(row for _, row in block), strict=True)
                    yield before, names, [tuple(map(str.strip, cells)) for cells in columns]
                    before += len(block)
                    bar.update(raw.tell() - bar.n)
        except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
            readable = not isinstance(error, UnicodeDecodeError)
            what = f"not a readable CSV file ({error})" if readable else "not UTF-8 text"
            where = f"{self.path}, line {reader.line_num + 1 if reader else 1} or later"
            raise UserError(what, where, "mend or convert the file") from error
        except OSError as error:
            what = f"cannot read the file ({error.strerror or error})"
            raise UserError(what, str(self.path), "check --input") from error
        if not before:
            raise UserError("no rows under the header", str(self.path), "there is nothing to go by")

    def _check_header(self, names: list[str]) -> None:
        if not names:
            raise UserError("the file is empty", str(self.path), "it needs a header line and rows")
        for place, name in enumerate(names):
            if not name or name in names[:place]:
                what = f"two columns are named '{name}'" if name else f"column {place + 1} has no name"
                raise UserError(what, f"{self.path}, line 1", "name it; from pandas, export with index=False")

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """A mistake in a cell; rows count from 1, without the header."""
        return UserError(what, f"{self.path}, row {row + 1}, column '{column}'", remedy)


def number(cell: str) -> float:
    """A cell's number, NaN where it is missing, `TEXT`, or `BEYOND` for nan, infinity and beyond float32."""
    if cell in MISSING:
        return math.nan
    try:
        value = float(cell.replace("_", "x"))  # Python reads 1_2 as 12
    except ValueError:
        return TEXT
    return value if abs(value) < FLOAT32_MAX else BEYOND


def parse(cells: tuple[str, ...]) -> np.ndarray:
    """(rows,) float64, `number` of each cell; five times as fast where all of them are numbers."""
    import numpy as np

    with suppress(ValueError):
        values = np.array(list(map(float, cells)))
        if (np.abs(values) < FLOAT32_MAX).all() and "_" not in "".join(cells):
            return values
    return np.array(list(map(number, cells)))


def survey(source: Source, arguments: argparse.Namespace) -> tuple[dict[str, str], int]:
    """What each column to keep holds, `number` or `category`, and the number of rows.

    A column is numeric if every cell that is not missing is a finite number.
    """
    import numpy as np

    target, totals = arguments.target, np.zeros(2, np.int64)
    for before, names, columns in source.blocks("checking"):
        for name in [target, *arguments.category, *arguments.drop]:
            if name not in names:
                likely = get_close_matches(name, names, 1)
                hint = f"did you mean '{likely[0]}'?" if likely else f"it has {', '.join(names[:20])}"
                hint = "see --delimiter: there is only one column" if len(names) == 1 else hint
                raise UserError(f"no column '{name}'", str(source.path), hint)
        found = [((values > TEXT).sum(), (values == TEXT).sum()) for values in map(parse, columns)]
        totals, count = totals + found, before + len(columns[0])
    kinds = {
        name: "category" if texts and numbers < MOSTLY * (numbers + texts) else "number"
        for name, (numbers, texts) in zip(names, totals.tolist(), strict=True)
    }
    kinds |= dict.fromkeys(arguments.category, "category")
    kinds[target] = "number" if arguments.task == "regression" else "category"
    for name in arguments.drop:
        kinds.pop(name, None)
    if target not in kinds:
        raise UserError("the target cannot be dropped", f"--drop '{target}'")
    if len(kinds) == 1:
        raise UserError("no column besides the target", str(source.path), "a model needs something to go by")
    return kinds, count


def read_table(
    source: Source, kinds: dict[str, str], target: str, limit: int, known: dict[str, list[str]]
) -> Table:
    """The columns of `kinds` as arrays; a category may have up to `limit` values.

    known: the values that earlier data had in categories, in the order of their codes. Raises `UserError`
    that names row and column for a cell that does not belong there.
    """
    import numpy as np

    from ..dataset import Levels, Table

    values: dict[str, list[np.ndarray]] = {name: [] for name, kind in kinds.items() if kind == "number"}
    codes = {name: array("i") for name, kind in kinds.items() if kind == "category"}
    places = {name: dict.fromkeys(MISSING, 0) for name in codes}
    for name, levels in known.items():
        places[name] |= {value: place + 1 for place, value in enumerate(levels)}
    for before, names, columns in source.blocks("reading"):
        if absent := [name for name in kinds if name not in names]:
            raise UserError(f"no column '{absent[0]}'", str(source.path), "the model was trained with it")
        for name in kinds:
            cells = columns[names.index(name)]
            gaps = (row for row, cell in enumerate(cells) if cell in MISSING or cell.lower() == "nan")
            if name == target and (row := next(gaps, None)) is not None:
                raise source.error("the target is missing", before + row, name, "remove the row")
            if name in codes:
                place = places[name]
                codes[name].extend(place.setdefault(cell, 0 if known else len(place) - 1) for cell in cells)
                if not known and len(place) - len(MISSING) > limit:
                    what, where = f"more than {limit} different values in a category", f"column '{name}'"
                    remedy = f"leave it out with --drop '{name}', or raise --max-levels"
                    raise UserError(what, f"{source.path}, {where}", remedy)
                continue
            values[name].append(parse(cells).astype(np.float32))
            if (wrong := np.flatnonzero(np.isinf(values[name][-1]))).size:
                cell = cells[wrong[0]]
                what = f"'{cell}' is not a {'number' if number(cell) == TEXT else 'finite number'}"
                remedy = "or use --task classification" if name == target else OTHERWISE
                raise source.error(what, before + wrong[0], name, f"mend the cell, {remedy}")
    for name in known:
        if unknown := [value for value, code in places[name].items() if not code and value not in MISSING]:
            print(f"note: column '{name}' has values that training had not, such as '{unknown[0]}'")
    features = {name: np.concatenate(parts) for name, parts in values.items()}
    categories = {
        name: Levels(np.array(column, np.int32), [value for value, code in places[name].items() if code])
        for name, column in codes.items()
    }
    answer = features.pop(target, categories.pop(target, None))
    return Table(features, categories, target, answer)


def split_sizes(split: str, count: int) -> list[int]:
    """Rows of train, validation and test: `0.7,0.15,0.15` of them, or as many as `--split` says."""
    try:
        parts = [float(part) for part in split.split(",")]
        parts += [0.0] * (3 - len(parts))
        shares = abs(sum(parts) - 1) < 1e-6
        if len(parts) != 3 or any(part < 0 or not (shares or part.is_integer()) for part in parts):
            raise ValueError
    except ValueError:
        remedy = "give three shares that add up to 1, such as 0.7,0.15,0.15, or three numbers of rows"
        raise UserError(f"'{split}' splits nothing", "--split", remedy) from None
    rows = [int(part) for part in parts]
    if shares:
        last = round(count * parts[2])
        first = min(round(count * parts[0]), count - last)
        rows = [first, count - last - first, last]
    for name, left in zip(("training", "validation"), rows, strict=False):
        if left < 1:
            where = f"--split {split}, {count} rows"
            raise UserError(f"no row is left for {name}", where, "give it at least one row")
    if sum(rows) > count:
        raise UserError(f"the split needs {sum(rows)} rows", f"--split {split}", f"the file has {count}")
    return rows
