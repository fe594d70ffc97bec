"""How the cells of a table are written, found in its rows: delimiter, decimal mark, times."""

from __future__ import annotations

import csv
import io
import re
from codecs import getincrementaldecoder
from collections import Counter
from contextlib import suppress
from datetime import datetime
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .engine.errors import UserError

SAMPLE_BYTES = 64 << 10  # from the beginning of a file
SAMPLE_ROWS = 100
DELIMITERS = ",;\t|"
NAMES = {"\t": "tab"}  # of delimiters, as `--delimiter` takes them
CONTROL = re.compile("[\0-\x08\x0e-\x1f]")
BINARY = 1 / 20  # a text has fewer control characters than this fraction

COMMA_NUMBER = re.compile(r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")

ISO = ""  # the format of ISO 8601, and of whole seconds
DATES = [f"%Y{mark}%m{mark}%d" for mark in "-/."]
DATES += [f"%d{mark}%m{mark}%{year}" for year in "Yy" for mark in "./-"]
# With points, the day is the first.
DATES += [f"%m{mark}%d{mark}%{year}" for year in "Yy" for mark in "/-"]
DATES += [f"%y{mark}%m{mark}%d" for mark in "/-"]
DATES += ["%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y"]
CLOCKS = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"]
FORMATS = [date + clock for date in DATES for clock in CLOCKS]
FIRST_CELLS = 64  # different ones, which say what formats are possible
ISO_BEGINNING = r"^\d{4}-\d\d-\d\d"
LAST_DAYS = r"(^|[^0-9])(29|30|31)([^0-9]|$)"
SECONDS = pa.timestamp("s")


class Sample(NamedTuple):
    """The beginning of a CSV file."""

    text: str
    is_whole: bool

    @classmethod
    def read(cls, file: Any, encoding: str) -> Sample:
        """The sample of an open file. Raises LookupError for an encoding that there is not.

        Characters that are none in `encoding` are replaced: reading the table names them.
        """
        content = file.read(SAMPLE_BYTES)
        text = getincrementaldecoder(encoding)("replace").decode(content)
        return cls(text.removeprefix("\ufeff"), len(content) < SAMPLE_BYTES)

    def is_binary(self) -> bool:
        """Whether this is a picture, an archive or another file that is no text."""
        return len(CONTROL.findall(self.text)) > BINARY * len(self.text)

    def rows(self, delimiter: str) -> list[list[str]]:
        """The first rows that are not blank, header included."""
        rows = list[list[str]]()
        with suppress(csv.Error):
            reader = csv.reader(io.StringIO(self.text, ""), delimiter=delimiter)
            rows += islice(reader, SAMPLE_ROWS)
        is_cut = not self.is_whole and 1 < len(rows) < SAMPLE_ROWS
        if is_cut:
            rows.pop()
        return [row for row in rows if row]

    def delimiter(self, expected: str) -> str:
        """What separates cells: `expected` if it can, else what gives rows the header's length."""
        for mark in (expected, *DELIMITERS.replace(expected, "")):
            rows = self.rows(mark)
            if not rows or len(rows[0]) < 2:
                continue
            header, *others = rows
            alike = sum(len(row) == len(header) for row in others)
            if 2 * alike >= len(others):
                return mark
        return expected

    def decimal(self, delimiter: str) -> str:
        """A comma if a column has numbers with one and nothing else, and none has a point.

        `1,234` alone does not decide: the comma may separate thousands.
        """
        mark = "."
        for column in zip(*self.rows(delimiter)[1:], strict=False):
            cells = [cell.strip() for cell in column if cell.strip()]
            if any(POINT_NUMBER.fullmatch(cell) for cell in cells):
                return "."
            has_commas = any("," in cell and not THOUSANDS.fullmatch(cell) for cell in cells)
            if has_commas and all(COMMA_NUMBER.fullmatch(cell) for cell in cells):
                mark = ","
        return mark


def check_time_format(time_format: str) -> None:
    """Raise `UserError` for what cannot be the format of a time."""
    try:
        pc.strptime(pa.array(["2024"]), format=time_format, unit="s", error_is_null=True)
        is_format = re.search("%[YyDFsc]", time_format) is not None
    except pa.ArrowException:
        is_format = False
    if not is_format:
        what = f"'{time_format}' is no format of a date"
        raise UserError(what, "--time-format", "such as %d.%m.%Y or '%m/%d/%Y %H:%M'")


class Readings:
    """How many cells of a column each format of times reads, and what two read differently."""

    def __init__(self, given: str | None):
        """given: the only format besides ISO 8601; None for the usual ones."""
        self.given = given
        self.formats = FORMATS if given is None else [given]
        self.cells = 0
        self.counts = Counter[str]()
        # By two formats: a cell, and what each makes of it.
        self.differing: dict[tuple[str, str], tuple[str, str, str]] = {}

    def add(self, column: pa.ChunkedArray) -> None:
        """column: without missing cells."""
        self.cells += len(column)
        if self.given and not pa.types.is_temporal(column.type):
            with suppress(pa.ArrowException, ValueError):
                to_seconds(column, self.given)
                self.counts[self.given] += len(column)
                return
        with suppress(pa.ArrowException, ValueError):
            to_seconds(column, ISO)
            self.counts[ISO] += len(column)
            return
        if pa.types.is_string(column.type):
            self._add_texts(column)

    def _add_texts(self, column: pa.ChunkedArray) -> None:
        values, counts = pc.value_counts(column).flatten()
        texts = pc.utf8_trim_whitespace(values)
        self.counts[ISO] += _count(pc.match_substring_regex(texts, ISO_BEGINNING), counts)

        # The first texts say what formats are possible.
        beginning = texts[:FIRST_CELLS]
        read = {}
        for time_format in self.formats:
            if _seconds_by(beginning, time_format).null_count < len(beginning):
                read[time_format] = _seconds_by(texts, time_format)
        for time_format, seconds in read.items():
            self.counts[time_format] += _count(seconds.is_valid(), counts)

        for one, other in combinations(read, 2):
            unequal = pc.fill_null(pc.not_equal(read[one], read[other]), False)
            place = pc.index(unequal, True).as_py()
            if place >= 0:
                example = (str(texts[place]), _day(read[one][place]), _day(read[other][place]))
                self.differing.setdefault((one, other), example)

    def best(self) -> str:
        """The format that reads most cells; ISO 8601 where no other one reads more."""
        return max((ISO, *self.formats), key=lambda time_format: self.counts[time_format])

    def conflict(self) -> tuple[str, str, tuple[str, str, str]] | None:
        """Two formats that read as many cells, some of them differently, and such a cell."""
        best = self.best()
        if best == ISO:
            return None
        most = self.counts[best]
        for (one, other), example in self.differing.items():
            if self.counts[one] == self.counts[other] == most:
                return one, other, example
        return None


def _day(seconds: pa.Scalar) -> str:
    return str(seconds.cast(SECONDS).cast(pa.date32()))


def _count(is_read: pa.Array, counts: pa.Array) -> int:
    return int(pc.sum(pc.filter(counts, is_read)).as_py() or 0)


def to_seconds(column: pa.ChunkedArray, time_format: str) -> np.ndarray:
    """(n,) int64: seconds since 1970, or whole numbers.

    Raises ArrowInvalid or ValueError for what is no time.
    """
    if column.null_count:
        raise ValueError
    if time_format == ISO or pa.types.is_temporal(column.type):
        return _iso_seconds(column)
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    seconds = _seconds_by(texts, time_format)
    if seconds.null_count:
        raise ValueError
    return seconds.to_numpy()


def _iso_seconds(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_temporal(column.type):
        column = column.cast(SECONDS, safe=False)
    elif pa.types.is_string(column.type) and len(column):
        column = pc.utf8_trim_whitespace(column)
        is_number = str(column[0]).lstrip("-").isdecimal()
        try:
            column = column.cast(pa.int64() if is_number else SECONDS)
        except pa.ArrowInvalid:
            if is_number:
                raise
            # Other ways of ISO 8601.
            return np.array(column.to_pylist(), "datetime64[s]").astype(np.int64)
    return column.cast(pa.int64()).to_numpy()


def _seconds_by(texts: Any, time_format: str) -> Any:
    """int64 seconds, null where a text does not have the format.

    strptime reads 31.02. as 2 March and 2-digit years as those of the first century: neither is a
    time here.
    """
    times = pc.strptime(texts, format=time_format, unit="s", error_is_null=True)
    wrong = pc.less(pc.year(times), 1000)
    may_be_late = pc.match_substring_regex(texts, LAST_DAYS)
    suspicious = pc.and_(pc.less_equal(pc.day(times), 3), may_be_late)
    if pc.any(suspicious).as_py():
        cells = pc.if_else(pc.fill_null(suspicious, False), texts, None).to_pylist()
        no_dates = [cell is not None and not _is_date(cell, time_format) for cell in cells]
        wrong = pc.or_(wrong, pa.array(no_dates))
    return pc.if_else(pc.fill_null(wrong, False), None, times.cast(pa.int64()))


def _is_date(cell: str, time_format: str) -> bool:
    try:
        datetime.strptime(cell, time_format)
    except ValueError:
        return False
    return True
