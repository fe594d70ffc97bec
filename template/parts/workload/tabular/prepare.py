"""Turn a CSV file into the data folder that training reads."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from difflib import get_close_matches
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
    add = parser.add_argument
    add("--input", required=True, metavar="FILE", help="CSV file with a header line, UTF-8, also .gz")
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    add("--task", required=True, choices=["regression", "classification"], help="of a number, or a class")
    add(
        "--split",
        default="0.7,0.15,0.15",
        metavar="TRAIN,VALIDATION,TEST",
        help="shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the shuffle before the split (default: 0)")
    add("--keep-order", action="store_true", help="do not shuffle: the last rows of the file are for test")
    add("--category", action="append", default=[], metavar="COLUMN", help="its numbers are names; repeatable")
    add("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out; repeatable")
    add("--delimiter", default=",", choices=[",", ";", "|", "tab"], help="between cells (default: comma)")
    add("--max-levels", type=int, default=1000, metavar="N", help="most values of a category (default: 1000)")
    add(
        "--dtype",
        default="float32",
        choices=["float32", "float16", "bfloat16"],
        help="halves store the numeric columns standardised, in half the space (default: %(default)s)",
    )


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads the file twice: to learn what each column holds, then to keep it."""
    import numpy as np

    from ..dataset import describe, write

    folder, path = Path(load().data.path), Path(arguments.input)
    if arguments.seed < 0:
        raise UserError(f"a seed cannot be {arguments.seed}", "--seed", "give a whole number from 0 on")
    source = Source(path, "\t" if arguments.delimiter == "tab" else arguments.delimiter)
    regression = arguments.task == "regression"
    kinds, count = survey(source, arguments)
    sizes = split_sizes(arguments.split, count)
    table = read_table(source, kinds, arguments.target, regression, limit=arguments.max_levels)
    order = np.arange(count)
    if not arguments.keep_order:
        order = np.random.default_rng(arguments.seed).permutation(count)
    *rows, unused = np.split(order, np.cumsum(sizes))
    splits = dict(zip(("train", "validation", "test"), rows, strict=True))
    table, facts = describe(table, splits["train"])
    if not regression and len(facts["target"]["classes"]) < 2:
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
        """(rows before, column names, columns of stripped cells) block by block; the first has no rows.

        Blank lines are skipped. Raises `UserError`, with the line, for what is no table.
        """
        from tqdm import tqdm

        reader = None
        with ExitStack() as stack:
            try:
                raw = stack.enter_context(open(self.path, "rb"))
                packed = raw.peek(2)[:2] == b"\x1f\x8b"
                plain = gzip.GzipFile(fileobj=raw) if packed else raw
                text = stack.enter_context(io.TextIOWrapper(plain, "utf-8-sig", newline=""))
                size = self.path.stat().st_size
                bar = stack.enter_context(tqdm(None, title, size, unit="B", unit_scale=True, disable=None))
                reader = csv.reader(text, delimiter=self.delimiter, strict=True)
                names = [name.strip() for name in next((row for row in reader if row), [])]
                self._check_header(names)
                yield 0, names, [()] * len(names)
                before, rows = 0, []
                for row in reader:
                    if row and len(row) != len(names):
                        what = f"{len(row)} cells where the header has {len(names)}"
                        raise UserError(what, f"{self.path}, line {reader.line_num}", "mend the line")
                    if row:
                        rows.append(row)
                    if len(rows) == BLOCK_ROWS:
                        yield before, names, _columns(rows)
                        before, rows = before + len(rows), []
                        bar.update(raw.tell() - bar.n)
                if rows:
                    yield before, names, _columns(rows)
                bar.update(size - bar.n)
            except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
                what = f"not a readable CSV file ({error})"
                what = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else what
                where = f"{self.path}, line {reader.line_num + 1 if reader else 1} or later"
                raise UserError(what, where, "mend or convert the file") from error
            except OSError as error:
                what = f"cannot read the file ({error.strerror or error})"
                raise UserError(what, str(self.path), "check --input") from error

    def _check_header(self, names: list[str]) -> None:
        if not names:
            raise UserError("the file is empty", str(self.path), "it needs a header line and rows")
        for place, name in enumerate(names):
            if not name or name in names[:place]:
                what = f"two columns are named '{name}'" if name else f"column {place + 1} has no name"
                remedy = "rename one" if name else "name it; from pandas, export with index=False"
                raise UserError(what, f"{self.path}, line 1", remedy)

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """A mistake in a cell; rows count from 1, without the header."""
        return UserError(what, f"{self.path}, row {row + 1}, column '{column}'", remedy)


def _columns(rows: list[list[str]]) -> list[tuple[str, ...]]:
    return [tuple(map(str.strip, cells)) for cells in zip(*rows, strict=True)]


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

    try:
        values = np.array(list(map(float, cells)))
        if (np.abs(values) < FLOAT32_MAX).all() and "_" not in "".join(cells):
            return values
    except ValueError:
        pass
    return np.array([number(cell) for cell in cells])


def survey(source: Source, arguments: argparse.Namespace) -> tuple[dict[str, str], int]:
    """What each column to keep holds, `number` or `category`, and the number of rows.

    A column is numeric if every cell that is not missing is a finite number.
    """
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # numbers, texts
    target, count = arguments.target, 0
    for before, names, columns in source.blocks("checking"):
        if not count:
            for name in [target, *arguments.category, *arguments.drop]:
                if name not in names:
                    likely = get_close_matches(name, names, 1)
                    hint = f"did you mean '{likely[0]}'?" if likely else f"it has {', '.join(names[:20])}"
                    hint = "see --delimiter: there is only one column" if len(names) == 1 else hint
                    raise UserError(f"no column '{name}'", str(source.path), hint)
        for name, cells in zip(names, columns, strict=True):
            values = parse(cells)
            counts[name][0] += int((values > TEXT).sum())
            counts[name][1] += int((values == TEXT).sum())
        count = before + len(columns[0])
    if not count:
        raise UserError("no rows under the header", str(source.path), "it needs at least two")
    kinds = {
        name: "category" if texts and found < MOSTLY * (found + texts) else "number"
        for name, (found, texts) in counts.items()
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
    source: Source,
    kinds: dict[str, str],
    target: str = "",
    regression: bool = True,
    known: dict[str, list[str]] | None = None,
    limit: int = 1000,
) -> Table:
    """The columns of `kinds` as arrays. `known`: the values of each category in the order of their codes.

    Raises `UserError` that names row and column for a cell that does not belong there.
    """
    import numpy as np

    from ..dataset import Levels, Table

    values: dict[str, list[np.ndarray]] = {name: [] for name in kinds}
    codes = {name: array("i") for name in kinds}
    places: dict[str, dict[str, int]] = {name: dict.fromkeys(MISSING, 0) for name in kinds}
    for name, levels in (known or {}).items():
        places[name] |= {value: place + 1 for place, value in enumerate(levels)}
    for before, names, columns in source.blocks("reading"):
        if absent := [name for name in kinds if name not in names]:
            raise UserError(f"no column '{absent[0]}'", str(source.path), "the model was trained with it")
        for name in kinds:
            cells, place = columns[names.index(name)], places[name]
            gaps = (row for row, cell in enumerate(cells) if cell in MISSING or cell.lower() == "nan")
            if name == target and (row := next(gaps, None)) is not None:
                raise source.error("the target is missing", before + row, name, "remove the row")
            if kinds[name] == "number":
                values[name].append(parse(cells).astype(np.float32))
                if (wrong := np.flatnonzero(np.isinf(values[name][-1]))).size:
                    cell = cells[wrong[0]]
                    what = f"'{cell}' is not a {'number' if number(cell) == TEXT else 'finite number'}"
                    remedy = "or use --task classification" if name == target else OTHERWISE
                    raise source.error(what, before + wrong[0], name, f"mend the cell, {remedy}")
                continue
            codes[name].extend(place.setdefault(cell, 0 if known else len(place) - 1) for cell in cells)
            if not known and len(place) - len(MISSING) > limit:
                what = f"more than {limit} different values in a category"
                remedy = f"leave it out with --drop '{name}', or raise --max-levels"
                raise UserError(what, f"{source.path}, column '{name}'", remedy)
    for name in known or ():
        if unknown := [value for value, code in places[name].items() if not code and value not in MISSING]:
            print(f"note: column '{name}' has values that training had not, such as '{unknown[0]}'")
    features = {name: np.concatenate(values[name]) for name in kinds if kinds[name] == "number"}
    categories = {
        name: Levels(np.array(codes[name], np.int32), [value for value, code in places[name].items() if code])
        for name in kinds
        if kinds[name] == "category"
    }
    answer = features.pop(target, None) if regression else categories.pop(target, None)
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
