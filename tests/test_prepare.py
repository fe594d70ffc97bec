"""What becomes of odd files: read right, refused by one line, or a line says what is odd; none is silent."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from importing import imported
from rendering import render
from stocks import dates, prices, write_folder
from variants import choices

ROWS = 200
TABULAR = ("--target", "price", "--task", "regression")
SERIES = ("--history", "24", "--horizon", "6")


def prepare(folder: Path, workload: str, path: str, *flags: str, data: str = "data") -> int:
    """Exit code of `prepare`, in this process."""
    main = imported(render(workload=workload), "__main__").main
    words = TABULAR if workload == "tabular" else SERIES if workload == "timeseries" else ()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("config.yaml").touch()
        return main(["prepare", "--input", path, *words, *flags, "--data.path", data])


def store(folder: Path, workload: str = "tabular", data: str = "data") -> Any:
    return imported(render(workload=workload), "engine.store").Store.open(folder / data)


def contents(folder: Path, workload: str = "tabular", data: str = "data") -> dict[str, Any]:
    """Facts, borders and the bytes of every array."""
    opened = store(folder, workload, data)
    arrays = {name: array.rows().tobytes() for name, array in opened.arrays.items()}
    return {**arrays, "facts": opened.facts, "splits": opened.splits}


def columns(count: int = ROWS) -> dict[str, list]:
    random = np.random.default_rng(0)
    size, age = random.normal(100, 20, count).round(3), random.normal(50, 9, count).round(2)
    return {
        "size": size.tolist(),
        "age": age.tolist(),
        "colour": random.choice(["red", "green", "blue"], count).tolist(),
        "price": (3 * size + age).round(3).tolist(),
    }


def lines(found: dict[str, list], mark: str = ",") -> str:
    rows = zip(*found.values(), strict=True)
    return "".join(mark.join(map(str, row)) + "\n" for row in [found, *rows])


def with_column(**more: list) -> str:
    return lines(columns() | more)


def with_cell(name: str, cell: str, row: int = 7) -> str:
    """The table with another cell; rows count from 1."""
    found = columns()
    found[name][row - 1] = cell
    return lines(found)


MONTHS = [f"2024-{1 + row % 12:02}-15 {row % 24:02}:30:00" for row in range(ROWS)]
COMMAS = lines(
    {name: [str(cell).replace(".", ",") for cell in cells] for name, cells in columns().items()},
    ";",
)

# name: file, flags, what it says in an error (exit code 2), or in a note where it begins with "note"
ODD: dict[str, tuple[str | bytes, tuple[str, ...], tuple[str, ...]]] = {
    "ids beyond float32": (
        with_column(id=[10**18 + row for row in range(ROWS)]),
        (),
        ("note: column 'id' has whole numbers beyond 2\\^24", "--drop 'id'"),
    ),
    "timestamps": (
        with_column(when=MONTHS),
        ("--time-features", "hour,weekday,month"),
        ("note when hour",),
    ),
    "timestamps without a flag": (
        with_column(
            when=[f"2024-01-{1 + row // 24:02}T{row % 24:02}:30:00" for row in range(ROWS)]
        ),
        (),
        ("note: column 'when' has 200 different values in 200 rows", "see --time-features"),
    ),
    "dates without a flag": (
        with_column(day=[str(np.datetime64("2020-01-01") + row) for row in range(ROWS)]),
        (),
        (
            "note: column 'day' has 200 different values in 200 rows",
            "--drop 'day'",
            "--time-features",
        ),
    ),
    "an id": (
        with_column(id=[f"x{row}" for row in range(ROWS)]),
        (),
        ("note: column 'id' has 200 different",),
    ),
    "thousands": (
        with_column(sold=[f'"{1 + row % 9},{row:03}"' for row in range(ROWS)]),
        (),
        ("'1,000' is not a number", "column 'sold'", "--decimal", "--category 'sold'"),
    ),
    "one of thousands": (
        with_cell("size", '"1,000"'),
        (),
        ("'1,000' is not a number", "row 7, column 'size'"),
    ),
    "NUL in a category": (with_cell("colour", "re\0d"), (), ("NUL byte", "row 7, column 'colour'")),
    "NUL in a number": (
        with_cell("size", "1\0002"),
        (),
        ("is not a number", "row 7, column 'size'"),
    ),
    "constant column": (
        with_column(site=[3] * ROWS),
        (),
        ("note: one value in all training rows, which tells nothing: site\n",),
    ),
    "constant in training alone": (
        with_column(site=[3] * (ROWS - 1) + [4]),
        ("--keep-order",),
        ("note: one value in all training rows, which tells nothing: site\n",),
    ),
    "no test rows": (
        with_column(),
        ("--split", "0.8,0.2"),
        ("note: nothing is left to test: `evaluate` needs",),
    ),
    "constant target": (
        with_column(price=[5] * ROWS),
        (),
        ("note: the target is 5 in every training row",),
    ),
    "latin-1": (
        with_cell("colour", "röt").encode("latin-1"),
        (),
        ("not UTF-8", "--encoding latin-1"),
    ),
    "latin-1 in the header": (
        with_column(größe=[1, 2] * 100).encode("latin-1"),
        (),
        ("--encoding latin-1",),
    ),
    "UTF-16": (with_column().encode("utf-16"), (), ("UTF-16", "--encoding utf-16")),
    "no encoding": (
        with_column(),
        ("--encoding", "latin-99"),
        ("unknown encoding: latin-99", "--encoding"),
    ),
    "NaN": (
        with_cell("size", "NaN"),
        (),
        ("'NaN' is not a finite number", "row 7, column 'size'", "--missing 'NaN'"),
    ),
    "None": (with_cell("size", "None"), (), ("'None' is not a number", "--missing 'None'")),
    "delimiter and decimal commas": (
        COMMAS,
        (),
        ("note: --delimiter ';' --decimal , found in the first rows",),
    ),
    "tabs": (lines(columns(), "\t"), (), ("note: --delimiter tab --decimal . found",)),
    "not decimal points": (
        COMMAS,
        ("--decimal", "."),
        ("is not a number", "row 1, column 'price'", "--decimal ,"),
    ),
    "decimal commas in more cells than a category has": (
        lines(columns() | {"more": [f'"{row},5"' for row in range(ROWS)]}),
        ("--max-levels", "150"),
        ("more than 150 different", "column 'more'", "--decimal ,"),
    ),
    "decimal commas, then a point": (
        COMMAS.rsplit("\n", 2)[0] + "\n1.5;2,5;red;3,5\n",
        (),
        ("'1.5' is not a number", "row 200", "with ',' like the others", "--decimal \\."),
    ),
    "a short row among semicolons": (
        lines(columns(), ";") + "1;2\n",
        (),
        ("2 cells where the header has 4", "row 201"),
    ),
    "a short row, and no delimiter that is said": (
        COMMAS,
        ("--delimiter", ","),
        ("4 cells where the header has 1", "row 1", "--delimiter ';'"),
    ),
    "points among decimal commas": (
        COMMAS.replace("red", "green", 1).replace(",", ".", 1),
        ("--delimiter", ";", "--decimal", ","),
        ("is not a number", "row 1, column 'size'"),
    ),
    "another delimiter": (
        lines(columns(), ";"),
        ("--delimiter", ","),
        ("no commas between the names", "--delimiter ';'"),
    ),
    "a picture": (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 9,
        (),
        ("a binary file, where a table is expected", "odd.csv", "export it"),
    ),
    "a workbook": (b"PK\3\4" + bytes(99), (), ("an Excel workbook", "odd.csv", "export it")),
    "a short row that cannot be decoded": (
        (lines(columns()) + "röt,2\n").encode("latin-1"),
        (),
        ("not UTF-8 text", "--encoding latin-1"),
    ),
    "delimiters that are none": (
        with_column(),
        ("--delimiter", ",,"),
        ("not two characters", "--delimiter ';'"),
    ),
    "float classes": (
        with_column(),
        ("--task", "classification", "--max-levels", "50"),
        ("more than 50 different values", "column 'price'"),
    ),
    "an open quote": (
        with_column() + '1,2,"red,3\n4,5,green,6\n',
        (),
        ("quote is opened and never closed",),
    ),
    "an open quote in the last column": (
        with_column() + '1,2,red,"3\n4,5,green,6\n',
        (),
        ("quote is opened",),
    ),
    "40 zeros": (
        with_cell("size", "1" + 40 * "0"),
        (),
        ("not a finite number", "row 7, column 'size'"),
    ),
    "two rows": (lines(columns(2)), (), ("note: the target is .* in every training row",)),
    "a header alone": ("size,price", (), ("no rows under the header",)),
    "a folder without tables": ("", ("--input", "empty"), ("file in the folder", "empty")),
    "no part of a time": (
        with_column(),
        ("--time-features", "minute"),
        ("no part of a time", "--time-features"),
    ),
    "a parquet that is cut": (b"PAR1" + b"x" * 99, (), ("cannot read the file", "odd.csv")),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_are_not_silent(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, flags, says = ODD[name]
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    code = prepare(tmp_path, "tabular", "odd.csv", *flags)
    out, err = capsys.readouterr()
    if says[0].startswith("note"):
        assert (code, err) == (0, "")
        assert all(re.search(part.removeprefix("note "), out) for part in says), out
        return
    assert code == 2, out
    assert re.fullmatch(r"error: .*\n", err), err
    assert all(re.search(part, err) for part in says), err
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


def same_tables(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Ways to write one table: a path, and the flags that it takes."""
    plain = lines(columns())
    texts = {name: [str(cell) for cell in cells] for name, cells in columns().items()}
    rows = pa.table(columns())
    files: dict[str, tuple[bytes, tuple[str, ...]]] = {
        "plain.csv": (plain.encode(), ()),
        "crlf.csv": (plain.replace("\n", "\r\n").encode("utf-8-sig"), ()),
        "latin-1.csv": (plain.encode("latin-1"), ("--encoding", "latin-1")),
        "utf-16.csv": (plain.encode("utf-16"), ("--encoding", "utf-16")),
        "german.csv": (COMMAS.encode(), ("--delimiter", ";", "--decimal", ",")),
        "tabs.tsv": (lines(columns(), "\t").encode(), ("--delimiter", "tab")),
        "stars.csv": (lines(columns(), "*").encode(), ("--delimiter", "*")),
        "packed.csv.gz": (gzip.compress(plain.encode()), ()),
        "named.csv.gz": (plain.encode(), ()),
        "quoted.csv": (
            lines({f'"{key}"': [f'"{cell}"' for cell in x] for key, x in texts.items()}).encode(),
            (),
        ),
        "spaces.csv": (lines(texts, " , ").encode(), ()),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    pyarrow.parquet.write_table(rows, folder / "rows.parquet", row_group_size=37)
    pyarrow.feather.write_feather(rows, folder / "rows.feather")
    coded = rows.set_column(2, "colour", rows["colour"].dictionary_encode())
    pyarrow.feather.write_feather(
        coded, folder / "coded.arrow", compression="uncompressed", chunksize=50
    )
    (folder / "several").mkdir()
    (folder / "several/1.csv").write_text(
        lines({name: cells[:90] for name, cells in columns().items()})
    )
    (folder / "several/2.csv").write_text(
        lines({name: cells[90:] for name, cells in columns().items()})
    )
    (folder / "several/notes.md").write_text("no table")
    pyarrow.parquet.write_to_dataset(rows, folder / "dataset")
    others = dict.fromkeys(
        ("rows.parquet", "rows.feather", "coded.arrow", "several", "dataset"), ()
    )
    return {name: flags for name, (_, flags) in files.items()} | others


def test_every_kind_of_file_gives_the_same_arrays_and_facts(tmp_path: Path) -> None:
    found = {}
    for number, (path, flags) in enumerate(same_tables(tmp_path).items()):
        assert prepare(tmp_path, "tabular", path, *flags, data=f"data{number}") == 0, path
        found[path] = contents(tmp_path, data=f"data{number}")
    assert [path for path, content in found.items() if content != found["plain.csv"]] == []


def quoted(cells: list[str]) -> list[str]:
    return ['"' + cell.replace('"', '""') + '"' for cell in cells]


WORDS = ["a, b", 'say "no"', "two\nlines", "plain"] * 50
GAPS = [None if row % 9 == 4 else row / 8 for row in range(ROWS)]
RARE = ["rare" if row in (3, 88) else "usual" for row in range(ROWS)]
ZEROS = [f"{row % 20:03}" for row in range(ROWS)]
# name: the column as a CSV has it, the same as a Parquet file has it, flags
READ_RIGHT: dict[str, tuple[list[str], Any, tuple[str, ...]]] = {
    "quoted commas, quotes and newlines": (quoted(WORDS), WORDS, ()),
    "empty cells and NA": (
        ["" if row % 2 else "NA" if cell is None else str(cell) for row, cell in enumerate(GAPS)],
        [None if row % 2 else cell for row, cell in enumerate(GAPS)],
        (),
    ),
    "booleans": (["true", "false"] * 100, [True, False] * 100, ()),
    "a rare class": (RARE, RARE, ()),
    "leading zeros of numbers": (ZEROS, [int(cell) for cell in ZEROS], ()),
    "leading zeros of names": (ZEROS, ZEROS, ("--category", "more")),
}


@pytest.mark.parametrize("name", READ_RIGHT)
def test_odd_cells_are_those_of_a_parquet(name: str, tmp_path: Path) -> None:
    cells, values, flags = READ_RIGHT[name]
    (tmp_path / "odd.csv").write_text(with_column(more=cells), newline="")
    pyarrow.parquet.write_table(pa.table(columns() | {"more": values}), tmp_path / "odd.parquet")
    for kind in ("csv", "parquet"):
        assert prepare(tmp_path, "tabular", f"odd.{kind}", *flags, data=kind) == 0
    assert contents(tmp_path, data="csv") == contents(tmp_path, data="parquet")
    known = {str(value) for value in values if isinstance(value, str)}
    found = [column["values"] for column in store(tmp_path, data="csv").facts["categories"]]
    assert not known or set(found[-1]) == known


@pytest.mark.parametrize("workload", ["tabular", "timeseries"])
def test_gaps_of_a_parquet_are_those_of_the_csv(workload: str, tmp_path: Path) -> None:
    """With nulls, times, dates, booleans, whole numbers and columns in another order."""
    numbers = np.arange(70_000)  # more than a block
    when = np.datetime64("2020-01-01T00:00", "s") + 3600 * numbers
    rows = pa.table(
        {"when": when, "x": numbers % 977 / 7, "n": pa.array(numbers % 13, mask=numbers % 10 == 3)}
    )
    if workload == "tabular":
        more = {
            "day": when.astype("datetime64[D]").astype("datetime64[D]"),
            "price": numbers % 101 + 0.5,
        }
        rows = rows.drop_columns("when").append_column("good", pa.array(numbers % 3 == 0))
        rows = rows.append_column("price", pa.array(more["price"]))
    pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet", row_group_size=10_001)
    pyarrow.csv.write_csv(rows, tmp_path / "rows.csv")
    flags = () if workload == "tabular" else ("--fill", "last", "--frames", "H1,H4,D1")
    for name in ("parquet", "csv"):
        assert prepare(tmp_path, workload, f"rows.{name}", *flags, data=name) == 0
    assert contents(tmp_path, workload, "parquet") == contents(tmp_path, workload, "csv")


def test_a_text_that_comes_late_has_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind the first block; or the column is one of texts all the same, when all of it is looked at."""
    found = {"a": [str(row) for row in range(70_000)], "price": list(range(70_000))}
    found["a"][69_000] = "many"
    (tmp_path / "late.csv").write_text(lines(found))
    assert prepare(tmp_path, "tabular", "late.csv") == 2
    assert "'many' is not a number: late.csv, row 69001, column 'a'" in capsys.readouterr().err
    found["a"] = ["" if row < 66_000 else f"kind {row % 3}" for row in range(70_000)]
    (tmp_path / "late.csv").write_text(lines(found))
    assert prepare(tmp_path, "tabular", "late.csv") == 0
    assert store(tmp_path).facts["categories"] == [
        {"name": "a", "values": ["kind 0", "kind 1", "kind 2"]}
    ]


DAYS = [np.datetime64("2024-01-01") + 2 * row for row in range(ROWS)]  # more than a year


def days(pattern: str, unpadded: bool = False, these: list[Any] = DAYS) -> list[str]:
    """By strftime; with commas in quotes."""
    cells = [day.astype(object).strftime(pattern) for day in these]
    cells = [re.sub(r"(?<!\d)0", "", cell) for cell in cells] if unpadded else cells
    return [f'"{cell}"' if "," in cell else cell for cell in cells]


ISO = [str(day) for day in DAYS]
EARLY = [day for day in DAYS if day.astype(object).day <= 12]
EARLY = (EARLY * 3)[:ROWS]  # each of them may be a day or a month
WRONG = ["31.02.2024" if row == 8 else cell for row, cell in enumerate(days("%d.%m.%Y"))]
FEATURES = ("--time-features", "month,weekday,hour")
# name: cells of a column, flags, the same in ISO 8601
TIMES: dict[str, tuple[list[str], tuple[str, ...], list[str]]] = {
    "points": (days("%d.%m.%Y"), (), ISO),
    "unpadded slashes": (days("%m/%d/%Y", unpadded=True), (), ISO),
    "the day first": (days("%d/%m/%Y"), (), ISO),
    "two digits of a year": (days("%d.%m.%y"), (), ISO),
    "a name of a month": (days("%d-%b-%Y"), (), ISO),
    "unpadded ISO": (days("%Y-%m-%d", unpadded=True), (), ISO),
    "noon": (days("%m/%d/%Y 12:30 PM"), (), [f"{day} 12:30" for day in ISO]),
    "a comma": (days("%b %d, %Y"), (), ISO),
    "decided by the flag": (
        days("%d/%m/%Y", these=EARLY),
        ("--time-format", "%d/%m/%Y"),
        list(map(str, EARLY)),
    ),
    "decided otherwise": (
        days("%m/%d/%Y", these=EARLY),
        ("--time-format", "%m/%d/%Y"),
        list(map(str, EARLY)),
    ),
    "a format of one's own": (
        days("%Y week %U, %d %m"),
        ("--time-format", "%Y week %U, %d %m"),
        ISO,
    ),
    "some are missing": (
        ["" if row % 9 == 4 else cell for row, cell in enumerate(days("%d.%m.%Y"))],
        (),
        ["NA" if row % 9 == 4 else cell for row, cell in enumerate(ISO)],
    ),
}


@pytest.mark.parametrize("name", TIMES)
def test_times_are_read_by_the_format_that_fits_all_of_them(name: str, tmp_path: Path) -> None:
    cells, flags, iso = TIMES[name]
    (tmp_path / "odd.csv").write_text(with_column(day=cells))
    (tmp_path / "iso.csv").write_text(with_column(day=iso))
    for kind, more in {"odd": flags, "iso": ()}.items():
        assert prepare(tmp_path, "tabular", f"{kind}.csv", *FEATURES, *more, data=kind) == 0
    found = contents(tmp_path, data="odd")
    assert found == contents(tmp_path, data="iso")
    assert found["facts"]["times"] == {"day": ["month", "weekday", "hour"]}
    known = [day for day in iso if day != "NA"]
    months = store(tmp_path, data="odd").arrays["features"].rows()[:, 2]
    expected = np.bincount([int(day[5:7]) for day in known], minlength=13)
    assert (
        np.bincount(months[np.isfinite(months)].astype(int), minlength=13).tolist()
        == expected.tolist()
    )


# name: cells of a column, flags, what it says
NO_TIMES: dict[str, tuple[list[str], tuple[str, ...], tuple[str, ...]]] = {
    "ambiguous": (
        days("%d/%m/%Y", these=EARLY),
        (),
        (
            "'03/01/2024' may be 2024-01-03 or 2024-03-01",
            "odd.csv, column 'day'",
            "--time-format '%d/%m/%Y' or --time-format '%m/%d/%Y'",
        ),
    ),
    "two digits of a year, first or last": (
        days("%d/%m/%y"),
        (),
        ("'01/01/24' may be 2024-01-01 or 2001-01-24", "--time-format '%y/%m/%d'"),
    ),
    "no such day": (WRONG, (), ("'31.02.2024' is not a time", "row 9, column 'day'", "'%d.%m.%Y'")),
    "a word": (["soon", *ISO[1:]], (), ("'soon' is not a time", "row 1, column 'day'")),
    "another format": (
        ISO,
        ("--time-format", "day"),
        ("'day' is no format of a date", "--time-format"),
    ),
    "words alone": (
        ["a", "b"] * 100,
        (),
        ("no column of times", "--time-features", "--time-format"),
    ),
    "a flag that fits none": (
        days("%d.%m.%Y"),
        ("--time-format", "%d/%m/%Y"),
        ("no column of times", "odd.csv"),
    ),
}


@pytest.mark.parametrize("name", NO_TIMES)
def test_times_that_cannot_be_read_are_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, flags, says = NO_TIMES[name]
    (tmp_path / "odd.csv").write_text(with_column(day=cells))
    assert prepare(tmp_path, "tabular", "odd.csv", *FEATURES, *flags) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"error: .*\n", err), err
    assert all(part in err for part in says), err


def test_a_later_row_tells_days_from_months(tmp_path: Path) -> None:
    """Behind the first block, which could be read in two ways."""
    count = 66_000
    for pattern in ("%d/%m/%Y", "%m/%d/%Y"):
        cells = [
            *(days(pattern, these=EARLY) * 330)[: count - 1],
            *days(pattern, these=DAYS[10:11]),
        ]
        found = {"a": list(range(count)), "day": cells, "price": list(range(count))}
        (tmp_path / "late.csv").write_text(lines(found))
        assert (
            prepare(tmp_path, "tabular", "late.csv", "--time-features", "month", "--keep-order")
            == 0
        )
        assert store(tmp_path).arrays["features"].rows()[1, 1] == EARLY[1].astype(object).month


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_rows_without_a_target_are_left_out_and_counted(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = columns() | {"kind": ["a", "b"] * 100}
    target = "price" if task == "regression" else "kind"
    kept = [row for row in range(ROWS) if row not in (0, 50, 199)]
    (tmp_path / "less.csv").write_text(
        lines({name: [cells[row] for row in kept] for name, cells in found.items()})
    )
    for row, cell in ((0, ""), (50, "NA"), (199, "nan")):
        found[target][row] = cell
    (tmp_path / "gaps.csv").write_text(lines(found))
    words = ("--target", target, "--task", task)
    assert prepare(tmp_path, "tabular", "less.csv", *words, data="less") == 0
    assert "without a target" not in capsys.readouterr().out
    assert (
        prepare(tmp_path, "tabular", "gaps.csv", *words, "--drop-missing-targets", data="gaps") == 0
    )
    assert "30 test, 3 without a target left out" in capsys.readouterr().out
    assert contents(tmp_path, data="gaps") == contents(tmp_path, data="less")


def test_pairs_without_a_target_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [{"source": f"{row}", "target": f"{row} again"} for row in range(ROWS)]
    odd = [
        *pairs[:9],
        {"source": "x", "target": None},
        {"source": "y"},
        {"source": "z", "target": " "},
        *pairs[9:],
    ]
    (tmp_path / "less.tsv").write_text(
        "".join(f"{pair['source']}\t{pair['target']}\n" for pair in pairs)
    )
    (tmp_path / "gaps.tsv").write_text("x\t\ny\t\nz\t \n" + (tmp_path / "less.tsv").read_text())
    (tmp_path / "gaps.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in odd))
    pyarrow.parquet.write_table(pa.Table.from_pylist(odd), tmp_path / "gaps.parquet")
    assert prepare(tmp_path, "seq2seq", "less.tsv", data="less") == 0
    assert "without a target" not in capsys.readouterr().out
    for name in ("gaps.tsv", "gaps.jsonl", "gaps.parquet"):
        assert prepare(tmp_path, "seq2seq", name, data="gaps") == 2
        assert prepare(tmp_path, "seq2seq", name, "--drop-missing-targets", data="gaps") == 0
        assert re.search("left out: +3 pairs without a target", capsys.readouterr().out)
        assert contents(tmp_path, "seq2seq", "gaps") == contents(tmp_path, "seq2seq", "less")


def test_a_column_of_lists_is_named_and_can_be_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = columns() | {"tags": [[1, 2]] * ROWS, "box": [{"a": 1}] * ROWS, "raw": [b"\xff"] * ROWS}
    pyarrow.parquet.write_table(pa.table(found), tmp_path / "odd.parquet")
    (tmp_path / "plain.csv").write_text(lines(columns()))
    drop: tuple[str, ...] = ()
    for name in ("tags", "box", "raw"):
        assert prepare(tmp_path, "tabular", "odd.parquet", *drop) == 2
        err = capsys.readouterr().err
        assert re.fullmatch(
            f"error: cells of type .*odd.parquet, column '{name}': .*--drop '{name}'\n", err
        ), err
        drop += ("--drop", name)
    assert prepare(tmp_path, "tabular", "odd.parquet", *drop) == 0
    assert prepare(tmp_path, "tabular", "plain.csv", data="plain") == 0
    assert contents(tmp_path) == contents(tmp_path, data="plain")


def test_a_header_may_begin_as_the_files_of_another_format_do(tmp_path: Path) -> None:
    for name in ("PARK", "ARROW", "PK"):
        (tmp_path / "odd.csv").write_text(lines({name: [1, 2] * 100, **columns()}))
        assert prepare(tmp_path, "tabular", "odd.csv") == 0


def a_table(workload: str, german: bool) -> str:
    """As people write it here or there, with a cell that is called missing where the workload takes one."""
    mark, point, pattern = (";", ",", "%d.%m.%Y") if german else (",", ".", "%Y-%m-%d")
    if workload == "graph":
        values = prices(1, 60)["ant"]
        found = dict(
            zip(("open", "high", "low", "close", "volume"), values.round(6).T.tolist(), strict=True)
        )
        found = {"date": [day.astype(object).strftime(pattern) for day in dates(60)], **found}
    elif workload == "timeseries":
        found = {"wann": days(pattern), "größe": columns()["size"], "age": columns()["age"]}
        found["age"][30] = "weg"
    else:
        found = columns() | {"day": days(pattern), "farbe": ["röt", "grün"] * 100}
        found["age"][30] = "weg"
    found = {
        name: [str(cell).replace(".", point) if isinstance(cell, float) else cell for cell in cells]
        for name, cells in found.items()
    }
    return lines(found, mark)


def read_again(
    workload: str, trained: Any, path: Path, folder: Path, **flags: Any
) -> dict[str, Any]:
    """What `predict --input` makes of a file with the data of a run: arrays."""
    predict = imported(render(workload=workload), "commands.predict")
    make = {"tabular": "new_rows", "timeseries": "new_store", "graph": "new_days"}[workload]
    getattr(predict, make)(path, flags, trained, folder)
    opened = imported(render(workload=workload), "engine.store").Store.open(folder)
    return {name: array.rows().tobytes() for name, array in opened.arrays.items()}


ALL_TRAIN: dict[str, tuple[str, ...]] = {
    "tabular": ("--keep-order", "--time-features", "month", "--split", "0.7,0.3,0"),
    "timeseries": ("--fill", "last", "--split", "0.7,0.3,0"),
    "graph": ("--window", "10", "--neighbors", "1", "--correlation-days", "20"),
}


@pytest.mark.parametrize("workload", ALL_TRAIN)
def test_predict_reads_files_as_prepare_did(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Delimiter, decimal mark, encoding, missing cells and times; other ones are said by flags, or found."""
    (tmp_path / "german.csv").write_bytes(a_table(workload, german=True).encode("latin-1"))
    (tmp_path / "plain.csv").write_bytes(a_table(workload, german=False).encode())
    marks = () if workload == "graph" else ("--missing", "weg")
    flags = (*ALL_TRAIN[workload], *marks)
    assert prepare(tmp_path, workload, "german.csv", *flags, "--encoding", "latin-1") == 0
    assert (
        "note: --delimiter ';' --decimal , found in the first rows of german.csv"
        in capsys.readouterr().out
    )
    assert prepare(tmp_path, workload, "plain.csv", *flags, data="plain") == 0
    assert "found in" not in capsys.readouterr().out
    german, plain = contents(tmp_path, workload), contents(tmp_path, workload, "plain")
    if workload != "graph":  # the ticker is the file's name
        assert german == plain

    trained = store(tmp_path, workload)
    as_prepared = read_again(workload, trained, tmp_path / "german.csv", tmp_path / "new")
    assert "found in" not in capsys.readouterr().out
    said = {"encoding": "utf-8", "delimiter": ",", "decimal": ".", "time_format": "%Y-%m-%d"}
    by_flags = read_again(workload, trained, tmp_path / "plain.csv", tmp_path / "said", **said)
    assert as_prepared == by_flags
    from_plain = store(tmp_path, workload, "plain")
    found = read_again(
        workload, from_plain, tmp_path / "german.csv", tmp_path / "found", encoding="latin-1"
    )
    assert found == by_flags
    with pytest.raises(
        imported(render(workload=workload), "engine.errors").UserError, match="--delimiter ';'"
    ):
        read_again(workload, trained, tmp_path / "german.csv", tmp_path / "wrong", delimiter=",")


@pytest.mark.parametrize(("workload", "column"), [("timeseries", "wann"), ("graph", "date")])
def test_times_of_a_series_that_may_be_two_are_one_line(
    workload: str, column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rows = a_table(workload, german=False).splitlines()
    these = np.datetime64("2024-01-01") + np.arange(9)
    cells = [
        [day, *row.split(",")[1:]]
        for day, row in zip(days("%d/%m/%Y", these=list(these)), rows, strict=False)
    ]
    (tmp_path / "odd.csv").write_text("\n".join([header, *map(",".join, cells)]))
    words = ("--history", "2", "--horizon", "1") if workload == "timeseries" else ("--window", "2")
    assert prepare(tmp_path, workload, "odd.csv", *words) == 2
    err = capsys.readouterr().err
    assert f"'02/01/2024' may be 2024-01-02 or 2024-02-01: odd.csv, column '{column}'" in err
    if workload == "timeseries":
        assert prepare(tmp_path, workload, "odd.csv", *words, "--time-format", "%d/%m/%Y") == 0
        assert store(tmp_path, workload).facts["frames"][0]["step"] == 86400


def test_an_error_in_a_folder_has_the_file_and_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parts").mkdir()
    for name in ("a", "b", "c"):
        content = with_cell("size", "large", row=12) if name == "b" else with_column()
        (tmp_path / f"parts/{name}.csv").write_text(content)
    assert prepare(tmp_path, "tabular", "parts") == 2
    assert "parts/b.csv, row 12, column 'size'" in capsys.readouterr().err
    (tmp_path / "parts/b.csv").write_text(with_column().replace("size", "length"))
    assert prepare(tmp_path, "tabular", "parts") == 2
    assert re.search("other columns than in a.csv: .*b.csv", capsys.readouterr().err)
    pyarrow.parquet.write_table(pa.table(columns()), tmp_path / "parts/b.csv")
    assert prepare(tmp_path, "tabular", "parts") == 2
    assert re.fullmatch(
        "error: other types of columns than in a.csv .*b.csv.*\n", capsys.readouterr().err
    )


def test_cells_that_are_called_missing(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text(with_cell("size", "?"))
    (tmp_path / "plain.csv").write_text(with_cell("size", ""))
    assert prepare(tmp_path, "tabular", "odd.csv", "--missing", "?", data="odd") == 0
    assert prepare(tmp_path, "tabular", "plain.csv", data="plain") == 0
    assert contents(tmp_path, data="odd") == contents(tmp_path, data="plain")


def test_parts_of_times(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(with_column(when=MONTHS))
    assert (
        prepare(
            tmp_path,
            "tabular",
            "times.csv",
            "--time-features",
            "month,hour,weekday",
            "--keep-order",
        )
        == 0
    )
    opened = store(tmp_path)
    names = [column["name"] for column in opened.facts["features"]]
    assert names == ["size", "age", "when month", "when hour", "when weekday"]
    stored = opened.arrays["features"].rows()[:, 2:]
    when = np.array(MONTHS, "datetime64[s]").astype(object)
    expected = [[time.month, time.hour, time.weekday()] for time in when]
    np.testing.assert_array_equal(stored, expected)


def an_input(workload: str, folder: Path) -> str:
    """A file or folder that the workload's `prepare` takes; its name."""
    if workload == "graph":
        return write_folder(folder / "prices").name
    path = folder / {"windows": "rows.h5", "llm": "rows.txt", "seq2seq": "rows.tsv"}.get(
        workload, "rows.csv"
    )
    if workload == "windows":
        with h5py.File(path, "w") as file:
            file["features"], file["targets"] = np.ones((ROWS, 6, 2)), np.ones((ROWS, 3))
    elif workload == "llm":
        path.write_text("some words\n" * 99)
    elif workload == "seq2seq":
        path.write_text("".join(f"{number}\t{number} again\n" for number in range(ROWS)))
    else:
        found = (
            columns()
            if workload == "tabular"
            else {"when": list(range(ROWS)), "x": columns()["size"]}
        )
        path.write_text(lines(found))
    return path.name


@pytest.mark.parametrize("workload", choices("workload"))
def test_a_dry_run_says_everything_and_writes_nothing(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = an_input(workload, tmp_path)
    assert prepare(tmp_path, workload, name, "--dry-run") == 0
    out = capsys.readouterr().out
    assert not (tmp_path / "data").exists()
    assert prepare(tmp_path, workload, name) == 0
    assert out == capsys.readouterr().out.replace(
        "written to: data", "written to: nowhere, by --dry-run"
    )
    if workload in ("tabular", "timeseries"):
        assert re.search(r"(size|x) +number +\S+ +\S+ +0.0%", out)
    assert re.search(r"size: .*any loader\n", out)
    before = contents(tmp_path, workload)
    assert prepare(tmp_path, workload, name, "--split", "0.5,0.25,0.25", "--dry-run") == 0
    assert contents(tmp_path, workload) == before


def test_an_interrupt_leaves_the_data_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.csv").write_text(with_column())
    assert prepare(tmp_path, "tabular", "rows.csv") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    for module, name in (("tables", "halves"), ("engine.store", "checksums")):
        with monkeypatch.context() as patch:
            patch.setattr(
                imported(render(workload="tabular"), "dataset" if name == "halves" else module),
                name,
                interrupt,
            )
            assert prepare(tmp_path, "tabular", "rows.csv", "--seed", "1") == 130
        assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


MEMORY = """
import re, sys, threading, time
sys.path.insert(0, sys.argv[1])
import my_training.commands.prepare, my_training.dataset, my_training.engine.loader
from my_training.__main__ import main
peak, over = 0, False
def watch():
    global peak
    while not over:
        peak = max(peak, int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]))
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
code = main(sys.argv[2:])
over = True
thread.join()
print("peak", code, peak // 1024)
"""


def many_rows(workload: str, folder: Path, count: int) -> Path:
    if workload == "graph":  # of a CSV, pyarrow reads 32 MB ahead
        table: dict[str, Any] = dict(
            zip(("open", "high", "low", "close"), prices(1, 2000)["ant"].T, strict=False)
        )
        table |= {"volume": np.arange(2000), "date": dates(2000)}
        table = {name: np.tile(column, count // 2000) for name, column in table.items()}
        table["ticker"] = np.repeat(np.arange(count // 2000).astype(str), 2000)
        pyarrow.parquet.write_table(pa.table(table), folder / "rows.parquet", row_group_size=50_000)
        return folder / "rows.parquet"
    path = folder / ("rows.csv" if workload == "tabular" else "rows.tsv")
    some = columns(50_000)
    head, part = lines({f"x{n}": some["size"] for n in range(8)} | some).split("\n", 1)
    with open(path, "w") as file:
        if workload == "tabular":
            file.write(head + "\n" + part * (count // 50_000))
        else:
            file.writelines(f"what is said about number {n}\tword {n}\n" for n in range(count))
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no RssAnon")
@pytest.mark.parametrize(
    ("workload", "rows", "grows"),
    [("tabular", 400_000, 9), ("seq2seq", 30_000, 24), ("graph", 200_000, 0)],
)
@pytest.mark.first(1)
def test_memory_does_not_grow_with_the_file(
    workload: str, rows: int, grows: int, tmp_path: Path
) -> None:
    """Shuffled, with a category: beside some bytes a row for splits and copies, four times the rows take no
    more."""
    project, found = render(workload=workload), {}
    words = TABULAR if workload == "tabular" else ()
    for count in (rows, 4 * rows):
        path = many_rows(workload, tmp_path, count)
        flags = ("prepare", "--input", path.name, *words, "--data.path", str(tmp_path / "data"))
        command = [sys.executable, "-c", MEMORY, str(project / "src"), *flags]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        code, peak = done.stdout.split("peak")[1].split()
        assert code == "0"
        found[count] = int(peak) - grows * count / 2**20
    assert found[4 * rows] < 1.1 * found[rows], found
    assert found[4 * rows] < 400, found
