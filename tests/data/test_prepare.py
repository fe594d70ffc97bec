"""What becomes of odd files: read right, refused by one line, or a line says what is odd; none is
silent."""

import bz2
import gzip
import io
import lzma
import pickle
import re
import shutil
import tarfile
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from importing import imported
from made_up import (
    ROWS,
    columns,
    contents,
    lines,
    prepare,
    prepared,
    store,
    values,
    with_cell,
    with_column,
    written,
)
from rendering import render
from running import flip_bit, one_error

NUMBERS = np.arange(ROWS)
HOURS = np.datetime64("2024-01-01T00:30") + np.timedelta64(1, "h") * NUMBERS
TEXTS = {name: [str(cell) for cell in cells] for name, cells in columns().items()}
COMMAS = lines(
    {name: [cell.replace(".", ",") for cell in cells] for name, cells in TEXTS.items()}, ";"
)
CATS = ["cat"] * 190 + ["dog"] * 10
CLASSES = "--target kind --task classification"

# name: file, flags, the error (exit code 2)
REFUSED: dict[str, tuple[str | bytes, str, str]] = {
    "lakhs": (
        with_column(sold=[f'"{1 + row % 9},{row % 100:02},000"' for row in range(ROWS)]),
        "",
        "'1,00,000' is not a number: .*column 'sold': .*--decimal and --category",
    ),
    "one decimal comma": (
        with_cell("size", '"1,00"'),
        "",
        "'1,00' is not a finite number: .*row 7, column 'size': .*--decimal",
    ),
    "a target that is left out": (
        with_column(),
        "--drop price",
        "the column is needed: --drop 'price': remove one of the flags",
    ),
    "a NUL": (with_cell("colour", "re\0d"), "", "a NUL byte, .*binary file"),
    "latin-1": (
        with_cell("colour", "röt").encode("latin-1"),
        "",
        "invalid UTF8 .*--encoding .such as latin-1",
    ),
    "a name in latin-1": (
        with_column(größe=[row / 8 for row in range(ROWS)]).encode("latin-1"),
        "",
        "column names are not in utf-8: .*line 1: add --encoding",
    ),
    "UTF-16": (with_column().encode("utf-16"), "", "--encoding utf-16"),
    "currency": (
        with_column(paid=[f"€{row / 8}" for row in range(ROWS)]),
        "",
        "'€0.0' is not a number: .*column 'paid': remove .*signs.*--category",
    ),
    "a continuous target": (
        with_column(),
        "--task classification",
        "200 different numbers in 200 rows are no classes: .*'price': use --task regression, or "
        "add --category 'price'",
    ),
    "infinity": (with_cell("size", "-inf"), "", "'-inf' is not a finite .*row 7, column 'size'"),
    "a short row among semicolons": (
        lines(columns(), ";") + "1;2\n",
        "",
        "Row #202: Expected 4 columns, got 2: .*--delimiter",
    ),
    "no delimiter": (with_column(), "--delimiter ,,", "must be a 1-character string.*--delimiter"),
    "an open quote": (
        with_column() + '1,2,"red,3\n4,5,green,6\n',
        "",
        "got 3: .*quotes",
    ),
    "empty": ("", "", "cannot read the file .Empty CSV"),
    "a header alone": ("size,price\n", "", "a table without rows"),
    "one row": ("size,price\n1,2\n", "", "1 cannot be split into 1, 0, 0"),
    "only the target": ("price\n1\n2\n3\n", "", "no column besides the target"),
    "no target column": (
        with_column().replace("price", "prise"),
        "",
        "no column 'price': .*did you mean one of prise, ",
    ),
    "two columns of a name": (
        with_column().replace("age", "size"),
        "",
        "two columns have one name, .*: size, size, colour, price: ",
    ),
    "no name": (with_column().replace("age", ""), "", "one has none: .*index=False"),
    "a name that is seen twice": (
        with_column().replace("age", "size\u200b"),
        "",
        "two columns have one name, .*: size, size, colour, price: ",
    ),
    "a folder without tables": ("", "--input empty", "file in the folder: .*empty"),
    "endless row": (
        gzip.compress(with_column().encode() + 3_000_000 * b"9"),
        "",
        "cannot read the file .*quotes",
    ),
    "cut gzip": (
        gzip.compress(with_column().encode())[:-30],
        "",
        "cannot read the file.*Truncated",
    ),
    "a missing target": (
        with_cell("price", "nan"),
        "",
        "target is missing: .*row 7, column 'price': fill it in",
    ),
    "one class": (with_column(kind=["cat"] * ROWS), CLASSES, "one class: .*column 'kind'"),
    "a class of test rows": (
        with_column(kind=CATS),
        f"{CLASSES} --keep-order",
        "class 'dog' is in no training row: column 'kind'",
    ),
    "nothing in a column": (
        with_column(extra=[""] * ROWS),
        "",
        "no training row .*'extra': .*--drop",
    ),
    "shares beyond 1": (with_column(), "--split 0.7,0.2,0.2", "'0.7,0.2,0.2' is not a valid split"),
    "a folder that is a file": (
        with_column(),
        "--data.path odd.csv/x",
        "Not a directory",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line_and_leaves_nothing(name, tmp_path):
    content, flags, says = REFUSED[name]
    (tmp_path / "empty").mkdir()
    name = "odd.csv.gz" if content[:2] == b"\x1f\x8b" else "odd.csv"
    one_error(prepare(tmp_path, "tabular", written(tmp_path, content, name), flags), says)
    assert {path.name for path in tmp_path.glob("data/*")} <= {".lock"}


# name: file, flags, the note
NOTED: dict[str, tuple[str, str, str]] = {
    "ids beyond float32": (
        with_column(id=[10**18 + row for row in range(ROWS)]),
        "",
        ".*column 'id': if it is an id, add --drop 'id'",
    ),
    "timestamps": (
        with_column(when=HOURS.astype(str).tolist()),
        "",
        r"column 'when' is a date \(ISO 8601\): year, month, weekday, elapsed days",
    ),
    "decimal commas": (COMMAS, "", "delimiter ';' and decimal mark ',' found in table.csv"),
    "tabs": (lines(columns(), "\t"), "", r"delimiter '\\t' and decimal mark '.' found"),
}


@pytest.mark.parametrize("name", NOTED)
def test_odd_tables_are_not_silent(name, tmp_path):
    content, flags, says = NOTED[name]
    assert re.search(f"note: {says}", prepared(tmp_path, "tabular", content, flags).out)


def test_a_constant_is_called_so(tmp_path):
    content = with_column(site=[3] * (ROWS - 1) + [4], price=[5] * ROWS)
    out = prepared(tmp_path, "tabular", content, "--keep-order").out
    for name in ("site", "price"):
        assert f"note: column '{name}' is constant in the training rows" in out


def same_tables(folder):
    """Ways to write one table: a path, and the flags that it takes."""
    plain = lines(columns())
    quoted = {f'"{name}"': [f'"{cell}"' for cell in cells] for name, cells in TEXTS.items()}
    files: dict[str, tuple[str | bytes, str]] = {
        "plain.csv": (plain.rstrip(), ""),
        "blank.csv": (("\n" + plain).replace("\n", "\r\n\r\n").encode("utf-8-sig"), ""),
        "utf-16.csv": (plain.encode("utf-16"), "--encoding utf-16"),
        "excel.csv": ("\ufeffsep=;\r\n" + lines(columns(), ";").replace("\n", "\r\n"), ""),
        "quoted sep.csv": ('"sep=\t"\n' + lines(columns(), "\t"), ""),
        "comments.csv": ('# Monday, 6 May\n\n#"x" of 5" pipes\n' + lines(columns(), ";"), ""),
        "other comments.csv": ("% from a, b, c, d\n// 2nd line\n" + plain, ""),
        "ends.csv": (plain.replace("\n", ",\n"), ""),
        "blank columns.csv": (lines(columns(), ";").replace("\n", ";;;\n"), ""),
        "hidden.csv": (
            plain.replace("size,age,colour", "\u200bsize,a\u00adge,\u00a0col\ufeffour"),
            "",
        ),
        "german.csv": (COMMAS, "--delimiter ; --decimal ,"),
        "packed.csv.gz": (gzip.compress(plain.encode()), ""),
        "packed.csv.bz2": (bz2.compress(plain.encode()), ""),
        "packed without its name.csv": (pa.compress(plain.encode(), "zstd", asbytes=True), ""),
        "quoted.csv": (lines(quoted)[:-2] + '\n"\n', ""),
        "quoted.tsv": (lines(quoted, "\t"), ""),
        "größe 1.csv": (lines(TEXTS, " , "), ""),
        "several/1.csv.bak": ("no table", ""),
        "several/1.csv": (lines({name: cells[:90] for name, cells in TEXTS.items()}), ""),
        "several/2/deep.CSV": (lines({name: cells[90:] for name, cells in TEXTS.items()}), ""),
        "several/.hidden.csv": ("no table", ""),
    }
    (folder / "several/2").mkdir(parents=True)
    (folder / "several/2/up").symlink_to("..")
    (folder / "several/3").symlink_to("2")
    (folder / "several/4.csv").symlink_to("1.csv")
    (folder / "several/5.csv").symlink_to("nowhere.csv")
    for name, (content, _) in files.items():
        written(folder, content, name)
    rows = pa.table(columns())
    coded = rows.set_column(2, "colour", rows["colour"].dictionary_encode())
    pyarrow.parquet.write_table(rows, folder / "rows.parquet", row_group_size=37)
    pyarrow.feather.write_feather(coded, folder / "coded.arrow", "uncompressed", chunksize=50)
    shutil.copy(folder / "rows.parquet", folder / "rows.parquet.gzip")  # as pandas' pages do
    shutil.copy(folder / "coded.arrow", folder / "coded")
    with pa.ipc.new_stream(folder / "stream.arrow", rows.schema) as stream:
        stream.write_table(rows, 50)
    flags = {name: given for name, (_, given) in files.items() if "/" not in name}
    names = ["rows.parquet", "rows.parquet.gzip", "coded.arrow", "coded", "stream.arrow", "several"]
    return flags | dict.fromkeys(names, "")


def test_every_kind_of_file_gives_the_same_arrays_and_facts(tmp_path):
    by_path = {}
    for path, flags in same_tables(tmp_path).items():
        data = f"data of {path}"
        result = prepare(tmp_path, "tabular", path, flags, data)
        assert result.code == 0, (path, result.err)
        by_path[path] = contents(tmp_path, "tabular", data)
    assert "note: 2 files read in several, 2 ignored\n" in result.out
    assert [path for path, content in by_path.items() if content != by_path["plain.csv"]] == []


def other_files():
    """Files that people name by mistake, and the kind that a line calls them."""
    plain = lines(columns()).encode()
    packed = {name: io.BytesIO() for name in ("tar", "zip", "npz", "xlsx", "parquet")}
    with tarfile.open(fileobj=packed["tar"], mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.csv"))
    for name, inside in (("zip", "a.csv"), ("xlsx", "[Content_Types].xml")):
        with zipfile.ZipFile(packed[name], "w") as archive:
            archive.writestr(inside, plain)
    np.savez(packed["npz"], NUMBERS)
    pyarrow.parquet.write_table(pa.table(columns()), packed["parquet"])
    content = {name: stream.getvalue() for name, stream in packed.items()}
    return {
        "texts.tar.gz": (content["tar"], "cannot read an archive: .*unpack it"),
        "table.csv.zip": (content["zip"], "cannot read a ZIP archive: .*unpack it"),
        "arrays.npz": (content["npz"], "npz archive of NumPy: .*load it"),
        "book.xlsx": (content["xlsx"], "office document: .*export sheets as CSV"),
        "table.parquet.gz": (gzip.compress(content["parquet"]), "a Parquet file: .*decompress it"),
        "table.csv.xz": (lzma.compress(plain), "compressed with xz: .*unxz"),
        "array.npy": (b"\x93NUMPY\1\0v\0", "NumPy array"),
        "table.pickle": (pickle.dumps(plain), "pickle: .*where you trust it"),
        "base.sqlite": (b"SQLite format 3\0" + bytes(80), "SQLite database"),
        "rows.json": (b'[\n {"size": 1}\n]\n', "JSON document: .*jq -c"),
        "rows.json.gz": (gzip.compress(b'{\n "size": 1}\n'), "JSON document: .*jq -c"),
        "large.csv": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    }


def test_a_file_of_another_kind_says_what_it_is(tmp_path):
    for name, (content, says) in other_files().items():
        written(tmp_path, content, name)
        for workload in ("tabular", "timeseries", "forecast", "llm", "seq2seq"):
            one_error(prepare(tmp_path, workload, name), says, name)
        says = "signature not found" if "gz" in name else says
        one_error(prepare(tmp_path, "windows", name), says, name)
    written(tmp_path, '{"size": 1, "price": 2}\n', "rows.ndjson")
    one_error(prepare(tmp_path, "tabular", "rows.ndjson"), "JSON lines: .*read_json.*to_csv")
    assert not list(tmp_path.glob("data/*.json"))


def test_prepared_data_are_not_put_among_other_files(tmp_path):
    for workload, name in (("tabular", "a.csv"), ("llm", "a.txt"), ("windows", "a.h5")):
        for other in ("src/model.py", "src/manifest.json", "src/deep/x"):
            folder = tmp_path / workload / other.replace("/", "_")
            path = folder / other
            path.parent.mkdir(parents=True)
            path.write_text('{"name": "app"}')
            written(folder, with_column(), name)
            line = one_error(prepare(folder, workload, name, data="src"), "other files, such as")
            assert "--data.path src" in line
            assert [file for file in folder.rglob("src/**/*") if file.is_file()] == [path]

    # The input may be there, folders of prepared data, and earlier data, also damaged ones.
    written(tmp_path / "data/raw", with_column(), "a.csv")
    assert prepare(tmp_path, "tabular", "data/raw", data="data/synthetic").code == 0
    for _ in range(2):
        assert prepare(tmp_path, "tabular", "data/raw").code == 0
    written(tmp_path / "data", "", "notes.md")
    assert prepare(tmp_path, "tabular", "data/raw").code == 0
    (tmp_path / "data/notes.md").unlink()
    flip_bit(tmp_path / "data/manifest.json", 0)
    assert prepare(tmp_path, "tabular", "data/raw").code == 0


PAIRS = "".join(f"word {number}\tWort {number}\n" for number in range(40))
HOURLY = lines({"date": HOURS.tolist(), "flow": NUMBERS.tolist(), "rain": NUMBERS.tolist()})
STORES = lines(
    {
        "store": ["Ulm", "Bonn"] * (ROWS // 2),
        "date": [str(day)[:10] for day in np.repeat(HOURS[0] + 24 * (HOURS - HOURS[0]), 2)[:ROWS]],
        "sold": NUMBERS.tolist(),
    }
)
TALKS = "".join(
    f'{{"messages": [{{"role": "user", "content": "Double {number}"}}, '
    f'{{"role": "assistant", "content": "{2 * number}"}}]}}\n'
    for number in range(40)
)
# workload: file, its content, flags, what `prepare` shows of it
SHOWN: dict[str, tuple[str, str, str, list[str]]] = {
    "timeseries": (
        "flow.csv",
        HOURLY,
        "--targets flow",
        [
            "a window:   24 rows of 2 columns → 6 rows of 1\n",
            "window:     … [23. 23.] → 2024-01-02 00:30:00 [24.] …\n",
            "window:     … [193. 193.] → 2024-01-09 02:30:00 [194.] …\n",
        ],
    ),
    "forecast": (
        "stores.csv",
        STORES,
        "--series store",
        [
            "series Bonn: 100 rows, sold 1 (2024-01-01 00:00:00) … 199 (2024-04-09 00:00:00)\n",
            "series Ulm: 100 rows, sold 0 (2024-01-01 00:00:00) … 198 (2024-04-09 00:00:00)\n",
        ],
    ),
    "llm": (
        "text.txt",
        PAIRS,
        "--split 0.5,0.5,0",
        ["train:        begins with 'word 0", "validation:   begins with '"],
    ),
    "seq2seq": ("pairs.tsv", PAIRS, "", ["pair:         'word ", "' → 'Wort "]),
    "chat": (
        "talks.jsonl",
        TALKS,
        "",
        [
            "conversation 1: sees '<|im_start|>user\\nDouble 0<|im_end|>\\n<|im_start|>assistant\\n"
            "\\n', predicts '0<|im_end|>'\n",
            "conversation 40: sees '",
        ],
    ),
}


@pytest.mark.parametrize("workload", SHOWN)
def test_prepare_shows_what_it_read(workload, tmp_path):
    """Swapped columns, other keys, times read in another way are visible."""
    name, content, flags, shown = SHOWN[workload]
    result = prepare(tmp_path, workload, written(tmp_path, content, name), flags)
    assert result.code == 0, result.err
    for line in shown:
        assert line in result.out


QUOTED = ["a, b", 'say "no"', "two\nlines", "plain"] * 50
GAPS = [None if row % 9 == 4 else row / 8 for row in range(ROWS)]
MARKED = [("-9", "-9.0")[row % 2] if row % 9 == 4 else str(row / 8) for row in range(ROWS)]
ZEROS = [f"{row % 20:03}" for row in range(ROWS)]
# name: the column as a CSV has it, the same as a Parquet file has it, flags
READ_RIGHT: dict[str, tuple[list[str], Any, str]] = {
    "quoted commas, quotes and newlines": (
        ['"' + cell.replace('"', '""') + '"' for cell in QUOTED],
        QUOTED,
        "",
    ),
    "empty cells and NA": (
        ["NA" if cell is None else str(cell) if row % 2 else "" for row, cell in enumerate(GAPS)],
        [cell if row % 2 else None for row, cell in enumerate(GAPS)],
        "",
    ),
    "marked gaps": (MARKED, GAPS, "--missing -9"),
    "marked gaps in texts": (MARKED, MARKED, "--missing -9"),
    "numbers for gaps": (MARKED, [float(cell) for cell in MARKED], "--missing -9"),
    "leading zeros of names": (ZEROS, ZEROS, "--category more"),
}


@pytest.mark.parametrize("name", READ_RIGHT)
def test_odd_cells_are_those_of_a_parquet(name, tmp_path):
    cells, values, flags = READ_RIGHT[name]
    written(tmp_path, with_column(more=cells), "odd.csv")
    pyarrow.parquet.write_table(pa.table(columns(more=values)), tmp_path / "odd.parquet")
    for kind in ("csv", "parquet"):
        assert prepare(tmp_path, "tabular", f"odd.{kind}", flags, kind).code == 0
    of_csv = contents(tmp_path, "tabular", "csv")
    assert of_csv == contents(tmp_path, "tabular", "parquet")
    if of_csv["facts"]["categories"][-1]["name"] == "more":
        assert set(of_csv["facts"]["categories"][-1]["values"]) == set(values)


def test_gaps_of_a_parquet_are_those_of_the_csv(tmp_path):
    """With nulls, dates as whole numbers and whole numbers, over more rows than a block has."""
    numbers = np.arange(70_000)
    when = np.datetime64("1950-01-01") + numbers
    digits = [int(str(day).replace("-", "")) for day in when]
    gaps = pa.array(numbers % 13, mask=numbers % 10 == 3)
    rows = pa.table({"when": when, "x": numbers % 977 / 7, "n": gaps})
    pyarrow.csv.write_csv(rows, tmp_path / "rows.csv")
    rows = rows.set_column(0, "when", [digits])
    pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet", row_group_size=10_001)
    for name in ("parquet", "csv"):
        flags = "--fill last --frames D1=96,D4=96,W1=96"
        assert prepare(tmp_path, "timeseries+frames", f"rows.{name}", flags, name).code == 0
    of_csv = contents(tmp_path, "timeseries+frames", "csv")
    assert of_csv == contents(tmp_path, "timeseries+frames", "parquet")


def test_a_text_that_comes_late_has_its_row(tmp_path):
    """Behind the first block, which decides what a column holds."""
    table = {"a": [str(row) for row in range(70_000)], "price": list(range(70_000))}
    table["a"][69_000] = "many"
    path = written(tmp_path, lines(table))
    refused = prepare(tmp_path, "tabular", path)
    one_error(
        refused, "'many' is not a finite number: table.csv, row 69001, column 'a': .*--category"
    )
    prepared(tmp_path, "tabular", lines(table), "--category a")


NAMES = [f"c{row}" + 300 * "x" for row in range(300)]  # longer together than a block of a file
HEADERS = {
    "long.csv": [*NAMES, "code"],
    "long.csv.gz": [*NAMES, "code"],
    "lines.csv": ['"si\nze; (kg)"', '"age,\n (years)"', "code"],
    "more lines.csv": [*(f'"{name}\r\n(kg)"' for name in NAMES), "code"],
    "a long name.csv": [f'"{200_000 * "x"}"', "age", "code"],
}


def test_a_header_of_any_length_leaves_every_cell_a_text(tmp_path):
    """Else `01` and `1` become one class."""
    codes = ["01", "001", "010", "10"]
    for path, names in HEADERS.items():
        cells = [codes[row % 4] for row in range(80)]
        rows = "".join("1;" * (len(names) - 1) + code + "\n" for code in cells)
        content = (";".join(names) + "\n" + rows).encode()
        packed = gzip.compress(content, 1) if path.endswith(".gz") else content
        flags = "--task classification --target code"
        assert prepare(tmp_path, "tabular", written(tmp_path, packed, path), flags).code == 0
        assert sorted(store(tmp_path, "tabular").facts["target"]["classes"]) == sorted(codes)


NO_HEADERS = {
    "a title": ("Prices of May\n\n" + with_column(), "got 4.*as many cells as the header"),
    "a header in a comment": (
        "# " + lines({"price": [*range(ROWS)], "b": [*range(ROWS)]}).replace("price", "prize"),
        "no column 'price': .*did you mean one of # prize",
    ),
    "a name that only rows lack": (
        with_column().replace("\n", ",", 1) + "\n1,2,red,4\n",
        "Expected .* columns, got",
    ),
    "cells without a name": (
        with_column().replace("\n", ",9\n").replace(",9", ",", 1),
        "one has none: size, age, colour, price, :",
    ),
    "a hidden sign in a flag": (with_column(), r"no column 'si.u200bze': .*one of size"),
}


def test_what_is_no_header_is_one_line(tmp_path):
    for name, (content, says) in NO_HEADERS.items():
        flags = "--drop si\u200bze" if "flag" in name else ""
        one_error(prepare(tmp_path, "tabular", written(tmp_path, content), flags), says)


def test_quotes_of_a_tsv_take_no_rows(tmp_path):
    """Those around a cell are no part of it. Nothing closes the others, or a quote far below."""
    table = columns(more=["red", "blue"] * 100)
    right = {
        "plain": table["more"],
        "around": ['"red"', '"blue"'] * 100,
        "inside": ['5" red', 'bl"ue"'] * 100,
        "lines": ['"red\nor ""rose"""', "blue"] * 100,
    }
    for name, cells in right.items():
        path = written(tmp_path, lines(table | {"more": cells}, "\t"), f"{name}.tsv")
        assert prepare(tmp_path, "tabular", path, "", name).code == 0
    values = [contents(tmp_path, "tabular", name)["facts"]["categories"][-1] for name in right]
    assert values[0] == values[1]
    assert [set(column["values"]) for column in values[2:]] == [
        {'5" red', 'bl"ue"'},
        {'red\nor "rose"', "blue"},
    ]
    wrong = {
        "at once": ['"red', "blue"] * 100,
        "far below": ['"red', *(["blue"] * 120), '"red', *(["blue"] * 78)],
    }
    for case, cells in wrong.items():
        path = written(tmp_path, lines(table | {"more": cells}, "\t"), "open.tsv")
        says = "an open quote: open.tsv, row 1, column 'more': quote the cell"
        one_error(prepare(tmp_path, "tabular", path), says)
        # A text of several lines may have a comma.
        path = written(tmp_path, lines(table | {"more": cells}), f"{case}.csv")
        done = prepare(tmp_path, "tabular", path, "", case)
        assert done.code == 0, done.err
        assert f"note: {case}.csv, column 'more': cells of several lines: " in done.err


# ---- damaged files -------------------------------------------------------------------------------


def tables_without_rows(folder):
    none = pa.table({"size": pa.array([], pa.float64()), "price": pa.array([], pa.float64())})
    tables = {"rows": none, "columns": pa.table({}), "both": pa.table({"size": [1]}).select([])}
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, folder / f"no {name}.parquet")
        pyarrow.feather.write_feather(table, folder / f"no {name}.feather")
    return sorted(path.name for path in folder.iterdir())


def damaged(content):
    """Cut, without bytes in the middle, and with others there."""
    random = np.random.default_rng(0)
    for place in random.integers(len(content), size=5):
        yield content[:place]
        yield content[:place] + bytes(40) + content[place + 40 :]
        yield content[:place] + random.bytes(9) + content[place:]


def test_empty_and_damaged_tables_are_one_line(tmp_path):
    """No error ends the process, as reading beyond the end of a buffer does."""
    for path in tables_without_rows(tmp_path):
        one_error(prepare(tmp_path, "tabular", path), f"a table without rows: {path}")
    table = pa.table(columns())
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    pyarrow.feather.write_feather(table, tmp_path / "a.feather", "uncompressed")
    written(tmp_path, gzip.compress(with_column().encode()), "a.csv.gz")
    for name in ("a.parquet", "a.feather", "a.csv.gz"):
        codes = []
        for content in (b"", b"no table, but a line", *damaged((tmp_path / name).read_bytes())):
            result = prepare(tmp_path, "tabular", written(tmp_path, content, f"odd {name}"))
            codes.append(result.code)
            if result.code:
                one_error(result, f"odd {name}")
        assert codes[:2] == [2, 2]
        assert set(codes) <= {0, 2}


# ---- signs in numbers ----------------------------------------------------------------------------

WHOLE = [1000 * (row - 100) for row in range(ROWS)]
SIGNS = ["\u2212" if number < 0 else "" for number in WHOLE]
SPELLINGS = {
    "commas": [f"{number:,}" for number in WHOLE],
    "no-break spaces": [f"{number:,}".replace(",", "\u00a0") for number in WHOLE],
    "narrow spaces": [f"{number:,}".replace(",", "\u202f") for number in WHOLE],
    "apostrophes": [f"{number:,}".replace(",", "'’"[number % 3 == 0]) for number in WHOLE],
    "brackets": [f"({-number:,})" if number < 0 else f"{number}" for number in WHOLE],
    "minus behind": [f"{-number}-" if number < 0 else f" {number}" for number in WHOLE],
    "minus signs": [f"{sign}{abs(n):,}.0" for sign, n in zip(SIGNS, WHOLE, strict=True)],
    "thin spaces": [f"{number:,}".replace(",", "\u2009") for number in WHOLE],
}
GERMAN = {
    "points": [f"{number:,},0".replace(",", ".", f"{number:,}".count(",")) for number in WHOLE],
    "points alone": [f"{number:,}".replace(",", ".") for number in WHOLE],
    "spaces": [f"{number:,},50".replace(",", " ", f"{number:,}".count(",")) for number in WHOLE],
}


@pytest.mark.parametrize("workload", ["tabular", "timeseries", "forecast"])
def test_signs_of_numbers_are_read_in_each_column_of_a_table(workload, tmp_path):
    """As features, targets and series, in `prepare` and in `predict`."""
    time = {"time": [*range(ROWS)]}
    flags = "--drop time" if workload == "tabular" else "--time-column none --drop time"
    for mark, spelled in ((",", SPELLINGS), (";", GERMAN)):
        table = dict.fromkeys(spelled, WHOLE)
        if mark == ";":
            table["spaces"] = [number + (0.5 if number >= 0 else -0.5) for number in WHOLE]
        price = next(iter(spelled))
        quoted = {name: [f'"{cell}"' for cell in cells] for name, cells in spelled.items()}
        written(tmp_path, lines(time | quoted | {"price": quoted[price]}, mark), "odd.csv")
        written(tmp_path, lines(time | table | {"price": table[price]}), "plain.csv")
        for name in ("odd", "plain"):
            assert prepare(tmp_path, workload, f"{name}.csv", flags, name).code == 0
        assert contents(tmp_path, workload, "odd") == contents(tmp_path, workload, "plain")
        trained = store(tmp_path, workload, "odd")
        of_odd = read_again(workload, trained, tmp_path / "odd.csv", tmp_path / "new")
        of_plain = {"delimiter": ",", "decimal": "."}
        assert of_odd == read_again(
            workload, trained, tmp_path / "plain.csv", tmp_path / "said", **of_plain
        )


UNITS = ["{} kg", "{}%", "{} °C", "${}", "€ {}", "-{} km/h", "USD {}", "({} $)", "{:,}.5 m²", "{}g"]


def test_units_are_refused_with_their_first_cell(tmp_path):
    """In a column, a target and a series; names with few numbers are no units."""
    for unit in UNITS:
        cells = [unit.format(1000 + row) for row in range(ROWS)]
        path = written(tmp_path, with_column(more=[f'"{cell}"' for cell in cells]))
        first = re.escape(cells[0])
        says = f"'{first}' is not a number: table.csv, column 'more': remove units, currencies"
        one_error(prepare(tmp_path, "tabular", path), says)
        says = f"'{first}' is not a finite number: table.csv, row 1, column 'more': "
        one_error(prepare(tmp_path, "tabular", path, "--target more"), says)
        one_error(prepare(tmp_path, "timeseries", path, "--time-column none --drop colour"), says)
    names = {"wheels": ["4WD", "2WD", "FWD", "RWD"] * 50, "term": ["36 months", "60 months"] * 100}
    codes = {"version": [f"1.{row % 20}.3" for row in range(ROWS)], "room": ["room 1"] * ROWS}
    prepared(tmp_path, "tabular", with_column(**names, **codes))


def test_signs_in_names_and_numbers_separate_no_cells(tmp_path):
    """The header and the row below it decide; a comma is the last choice."""
    rows = [*range(40)]
    german = [f"{row},5" for row in rows]
    tables = {
        ";": {"costs, net": german},
        "\t": {"costs, net, in EUR": german, "days": rows},
        "|": {"costs, net": german},
        ",": {"a;b;c": [row + 0.5 for row in rows]},
    }
    for sign, made in tables.items():
        content = lines(made | {"y": rows}, sign).replace("\n", "\n\n", 1)
        prepared(tmp_path, "tabular", content, "--target y --task regression --keep-order")
        data = store(tmp_path, "tabular")
        assert [feature["name"] for feature in data.facts["features"]] == [*made]
        assert data.arrays["features"].rows()[1, 0] == 1.5


# ---- spellings of one value ----------------------------------------------------------------------

SAME = {
    "number": ["1", "1.0", "2", "1.00", "2.50", "2.5", "01", "+1", "1e0", "1,000"],
    "truth": ["True", "TRUE", "false", "true", "False", "FALSE", "yes", "1", "0.0", "No"],
    "space": ["New York", "New\u00a0York", " New  York", "Oslo", "Oslo\u202f", "oslo"] + ["?"] * 4,
    "accent": ["caf\u00e9", "cafe\u0301", "cafe", "\u212bs", "\u00c5s", "A\u030as"] + ["?"] * 4,
}
CODES = {
    "number": [1, 1, 2, 1, 3, 3, 4, 1, 5, 6],
    "truth": [1, 1, 2, 1, 2, 2, 3, 1, 2, 4],
    "space": [1, 1, 1, 2, 2, 3, 4, 4, 4, 4],
    "accent": [1, 1, 2, 3, 3, 3, 4, 4, 4, 4],
}


def test_columns_of_numbers_tell_the_decimal_mark(tmp_path):
    """Never a text, and never digits that have a value with both marks."""
    rows = [*range(40)]
    whole = {"y": rows}
    note = {"note": ["1,5", "1.234.567", "12,5 kg", "ok"] * 10}
    kept = {  # the columns, and the numbers in the first of them
        "a note": ({"lat": [f"48.{row + 100}" for row in rows], "east": [0.5] * 40, **note}, 48.1),
        "thousands": ({"sum": ["1.101", "850"] * 20, "kg": ["0,5"] * 40}, 1101.0),
        "three places": ({"lon": [f"11,{row + 100}" for row in rows], "kg": ["2,25"] * 40}, 11.1),
    }
    for name, (made, first) in kept.items():
        content = lines(made | whole, ";")
        prepared(tmp_path, "tabular", content, "--target y --task regression --keep-order")
        assert store(tmp_path, "tabular").arrays["features"].rows()[0, 0] == np.float32(first), name
    unclear = "may have a decimal mark, or separate thousands: table.csv: add --decimal"
    refused = {
        "thousands": ({"sum": ["1.101", "850"] * 20}, unclear),
        "three places": ({"lon": [f"11,{row + 100}" for row in rows]}, unclear),
        "both": ({"a": ["0,5"] * 40, "b": ["0.5"] * 40}, "columns have different decimal marks"),
    }
    for made, line in refused.values():
        path = written(tmp_path, lines(made | whole, ";"))
        one_error(prepare(tmp_path, "tabular", path, "--target y --task regression"), line)
        given = "--target y --task regression --keep-order --decimal ."
        assert prepare(tmp_path, "tabular", path, given).code == 0


def test_spellings_of_a_value_are_one_category(tmp_path):
    """One class, too; `predict` knows those that training had not."""
    repeated = {name: [f'"{cell}"' for cell in cells] * 20 for name, cells in SAME.items()}
    flags = "--category number --keep-order"
    for target in SAME:
        classes = f"{flags} --task classification --target {target}"
        prepared(tmp_path, "tabular", with_column(**repeated), f"{classes} --drop price")
        names = store(tmp_path, "tabular").facts["target"]["classes"]
        assert len(names) == max(CODES[target])
        places = [
            names.index(SAME[target][code]) for code in map(CODES[target].index, CODES[target])
        ]
        target_codes = store(tmp_path, "tabular").arrays["target"].rows()[:10]
        assert target_codes.tolist() == places

    prepared(tmp_path, "tabular", with_column(**repeated), flags)
    trained = store(tmp_path, "tabular")
    told = dict(zip([*columns(), *SAME], trained.arrays["categories"].rows().T, strict=False))
    assert len(told) == 5
    other = {"number": "001.0", "truth": "tRUE", "space": "New\u2009York", "accent": "?"}
    row = columns(1) | {name: [cell] for name, cell in other.items()}
    read_again(
        "tabular", trained, tmp_path / written(tmp_path, lines(row), "new.csv"), tmp_path / "n"
    )
    codes = store(tmp_path, "tabular", "n").arrays["categories"].rows()[0, 1:]
    for name, code in zip(SAME, codes.tolist(), strict=True):
        values = next(one["values"] for one in trained.facts["categories"] if one["name"] == name)
        expected = {"number": 0, "truth": "True", "space": "New York", "accent": "?"}[name]
        assert code == (values.index(expected) + 1 if expected else 0)


def test_truth_and_numbers_in_two_files_are_one_class(tmp_path):
    (tmp_path / "parts").mkdir()
    truth = [row % 3 == 0 for row in range(ROWS)]
    for number, cells in enumerate((truth, [int(cell) for cell in truth])):
        rows = pa.table(columns(kind=cells, flag=cells))
        pyarrow.parquet.write_table(rows, tmp_path / f"parts/{number}.parquet")
    assert prepare(tmp_path, "tabular", "parts", f"{CLASSES} --keep-order").code == 0
    opened = store(tmp_path, "tabular")
    assert opened.facts["target"]["classes"] == ["false", "true"]
    is_true = opened.arrays["target"].rows() == 1
    np.testing.assert_array_equal(is_true, 2 * truth)
    np.testing.assert_array_equal(is_true, opened.arrays["features"].rows()[:, -1])


# ---- names that mean missing, indices, folders ---------------------------------------------------


def test_na_is_a_name_if_a_flag_says_so(tmp_path):
    """A country or a class; a number that is NA stays missing. `predict` reads as `prepare` did."""
    country = ["NA", "DE", "null", ""] * 50
    more = {"country": country, "kind": ["NA", "nan"] * 100, "many": ["NA", 1.5] * 100}
    says = "the target is missing: table.csv, row 1, column 'kind': .*--keep-na"
    path = written(tmp_path, with_column(**more))
    one_error(prepare(tmp_path, "tabular", path, CLASSES), says)
    flags = f"{CLASSES} --keep-na --keep-order"
    assert prepare(tmp_path, "tabular", path, flags).code == 0
    trained = store(tmp_path, "tabular")
    assert trained.facts["target"]["classes"] == ["NA", "nan"]
    (_, of_country), many = trained.facts["categories"], trained.facts["features"][-1]
    assert (of_country["values"], of_country["missing"]) == (["DE", "NA", "null"], 35)
    assert (many["mean"], many["missing"]) == (1.5, 70)
    again = read_again("tabular", trained, tmp_path / path, tmp_path / "new")
    assert again["categories"] == trained.arrays["categories"].rows().tobytes()

    flags = f"{CLASSES} --keep-na --missing null"
    one_error(prepare(tmp_path, "tabular", path, f"{flags} --missing NA"), "the target is missing")
    assert prepare(tmp_path, "tabular", path, f"{flags} --target country --drop price").code == 2


def test_an_index_is_named(tmp_path):
    """That of pandas, or an id with gaps, shuffled, or from the last to the first."""
    shuffled = np.random.default_rng(0).permutation(ROWS)
    indices = {
        "Unnamed: 0": [3 * row for row in range(ROWS)],
        "__index_level_0__": shuffled.tolist(),
        "id": [row**2 for row in range(ROWS, 0, -1)],
    }
    counts = {"rooms": [row % 90 for row in range(ROWS)], "wave": values(ROWS)[:, 0].tolist()}
    out = prepared(tmp_path, "tabular", with_column(**indices, **counts)).out
    assert re.findall("column '(.*)': if it is an id, add", out) == list(indices)
    flags = "--time-column none --drop colour"
    out = prepared(tmp_path, "timeseries", with_column(**indices, **counts), flags).out
    noted = re.findall("column '(.*)': if it is an index of pandas, add --drop", out)
    assert noted == list(indices)[:2]


@pytest.mark.parametrize("workload", ["tabular", "timeseries", "forecast"])
def test_a_column_that_the_first_file_lacks_is_named(workload, tmp_path):
    for number in range(3):
        content = with_column(extra=[*range(ROWS)]) if number == 1 else with_column()
        written(tmp_path / "parts", content, f"{number}.csv")
    flags = "" if workload == "tabular" else "--time-column none --drop colour"
    out = prepare(tmp_path, workload, "parts", flags).out
    assert out.count("note: parts/1.csv: columns that the first file lacks: ['extra']") == 1


# ---- times ---------------------------------------------------------------------------------------

DAYS = [np.datetime64("2024-01-01") + 2 * row for row in range(ROWS)]  # more than a year
HISTORY = "--history 4 --horizon 1"


def days(pattern):
    """By strftime."""
    return [day.astype(object).strftime(pattern) for day in DAYS]


ISO = days("%Y-%m-%d")
# name: cells of a column, --time-format, the same in ISO 8601
FORMATS: dict[str, tuple[list[str], str, list[str]]] = {
    "points": (days("%d.%m.%Y"), "%d.%m.%Y", ISO),
    "unpadded slashes": (days("%-m/%-d/%Y"), "%m/%d/%Y", ISO),
    "noon": (days("%m/%d/%Y_12:30_PM"), "%m/%d/%Y_%I:%M_%p", [f"{day} 12:30" for day in ISO]),
    "whole numbers": (days("%Y%m%d"), "", ISO),
    "a zone": (days("%Y-%m-%d 00:00:00+00:00"), "", ISO),
}


def series(cells):
    return lines({"day": cells, "size": list(range(len(cells)))})


@pytest.mark.parametrize("name", FORMATS)
def test_times_are_iso_or_have_the_format_of_the_flag(name, tmp_path):
    cells, time_format, iso = FORMATS[name]
    flags = f"{HISTORY} --time-format {time_format}" if time_format else HISTORY
    for kind, column, given in (("odd", cells, flags), ("iso", iso, HISTORY)):
        path = written(tmp_path, series(column), f"{kind}.csv")
        assert prepare(tmp_path, "timeseries", path, given, kind).code == 0
    assert contents(tmp_path, "timeseries", "odd") == contents(tmp_path, "timeseries", "iso")


WRONG = ["31.02.2024" if row == 8 else cell for row, cell in enumerate(days("%d.%m.%Y"))]
# name: cells of a column, --time-format, what it says
NO_TIMES: dict[str, tuple[list[str], str, str]] = {
    "not ISO": (
        days("%d/%m/%Y"),
        "",
        "'01/01/2024' is not a time in the format ISO 8601 .2024-01-31 16:00:00.: odd.csv, row 1, "
        "column 'day': fix it, or give the format, such as --time-format '%d.%m.%Y %H:%M'",
    ),
    "no such day": (
        WRONG,
        "%d.%m.%Y",
        "'31.02.2024' is not a time in the format %d.%m.%Y: .*row 9, column 'day'",
    ),
    "words alone": (["a", "b"] * 100, "", "'a' is not a time .*row 1, .*--time-format"),
    "a flag that names a part twice": (days("%d.%m.%Y"), "%m.%m.%Y", "is not a time .*%m.%m.%Y"),
}


@pytest.mark.parametrize("name", NO_TIMES)
def test_times_that_cannot_be_read_are_one_line(name, tmp_path):
    cells, time_format, says = NO_TIMES[name]
    flags = f"{HISTORY} --time-format {time_format}" if time_format else HISTORY
    path = written(tmp_path, series(cells), "odd.csv")
    one_error(prepare(tmp_path, "timeseries", path, flags), says)


# ---- columns and folders -------------------------------------------------------------------------


def test_a_column_of_lists_is_named_and_can_be_dropped(tmp_path):
    odd = {"tags": [[1, 2]] * ROWS, "box": [{"a": 1}] * ROWS, "raw": [b"\xff"] * ROWS}
    pyarrow.parquet.write_table(pa.table(columns(**odd)), tmp_path / "odd.parquet")
    drop = ""
    for name in odd:
        says = f"a cell of type .*odd.parquet, row 1, column '{name}': .*--drop '{name}'"
        one_error(prepare(tmp_path, "tabular", "odd.parquet", drop), says)
        drop += f" --drop {name}"
    assert prepare(tmp_path, "tabular", "odd.parquet", drop).code == 0
    prepared(tmp_path / "plain", "tabular", with_column())
    assert contents(tmp_path, "tabular") == contents(tmp_path / "plain", "tabular")


def test_an_error_in_a_folder_has_the_file_and_its_row(tmp_path):
    for name in ("a", "b", "c"):
        content = with_cell("size", "large", row=12) if name == "b" else with_column()
        written(tmp_path / "parts", content, f"{name}.csv")
    one_error(prepare(tmp_path, "tabular", "parts"), "parts/b.csv, row 12, column 'size'")
    written(tmp_path / "parts", with_column().replace("size", "length"), "b.csv")
    one_error(prepare(tmp_path, "tabular", "parts"), "no column 'size': parts/b.csv")


# ---- predict reads as prepare did ----------------------------------------------------------------


def a_table(workload, german):
    """As people write it here or there, with a cell that is called missing."""
    cells = days("%d.%m.%Y" if german else "%Y-%m-%d")
    table = columns(day=cells, farbe=["röt", "grün"] * 100)
    if workload != "tabular":
        table = {"wann": cells, "größe": table["size"], "age": table["age"]}
    table["age"][30] = "weg"
    if not german:
        return lines(table)
    for name, cells in table.items():
        is_number = isinstance(cells[0], float)
        table[name] = [str(cell).replace(".", ",") if is_number else cell for cell in cells]
    return lines(table, ";")


def read_again(workload, trained, path, folder, **flags):
    """What `predict --input` makes of a file with the data of a run: arrays."""
    module = "commands.predict" if workload == "tabular" else "dataset"
    imported(render(workload=workload), module).write_new(path, flags, trained, folder)
    opened = store(folder, workload, "")
    return {name: array.rows().tobytes() for name, array in opened.arrays.items()}


ALL_TRAIN = {
    "tabular": "--keep-order --split 0.7,0.3,0 --missing weg",
    "timeseries": "--fill last --split 0.7,0.3,0 --missing weg",
    "forecast": "--fill last --split 0.7,0.3,0 --missing weg",
}


@pytest.mark.parametrize("workload", ALL_TRAIN)
def test_predict_reads_files_as_prepare_did(workload, tmp_path, capsys):
    """Delimiter, decimal mark, encoding, missing cells and times; flags override them."""
    flags = ALL_TRAIN[workload]
    written(tmp_path, a_table(workload, german=True).encode("latin-1"), "german.csv")
    written(tmp_path, a_table(workload, german=False), "plain.csv")
    times = "" if workload == "tabular" else " --time-format %d.%m.%Y"
    german = prepare(tmp_path, workload, "german.csv", f"{flags} --encoding latin-1{times}")
    assert "delimiter ';' and decimal mark ',' found in german.csv" in german.out
    assert "found in" not in prepare(tmp_path, workload, "plain.csv", flags, "plain").out
    assert contents(tmp_path, workload) == contents(tmp_path, workload, "plain")

    trained = store(tmp_path, workload)
    as_prepared = read_again(workload, trained, tmp_path / "german.csv", tmp_path / "new")
    assert "found in" not in capsys.readouterr().out
    said = {"encoding": "utf-8", "delimiter": ",", "decimal": ".", "time_format": "%Y-%m-%d"}
    by_flags = read_again(workload, trained, tmp_path / "plain.csv", tmp_path / "said", **said)
    assert as_prepared == by_flags
