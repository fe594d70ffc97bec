"""Tables that were read in silence or refused without a remedy, and what is told of rare
classes."""

import csv
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from made_up import (
    ROWS,
    columns,
    contents,
    lines,
    prepare,
    prepared,
    store,
    with_cell,
    with_column,
    written,
)
from running import EXAMPLES, newest_run, one_error, report_of
from sklearn.metrics import recall_score
from workload import Workload

TABLES = Workload("tabular")
CLASSES = "--task classification"
DAYS = [str(np.datetime64("2001-01-01") + row) for row in range(700)]
BY_DAY = lines({"day": DAYS, "size": [row**0.5 for row in range(700)], "price": [*range(700)]})
EUROS = [f"€{row / 8}" for row in range(ROWS)]
PERCENT = [f"{row % 9 / 2} %" for row in range(ROWS)]


# ---- what `prepare` refuses ----------------------------------------------------------------------

# name: file, flags, the error
REFUSED: dict[str, tuple[str, str, str]] = {
    "an odd decimal mark": (with_column(), "--decimal x", "invalid choice: 'x' .*'.', ','"),
    "currency": (
        with_column(paid=EUROS),
        "",
        "'€0.0' is not a number: .*column 'paid': remove .*signs.*--category",
    ),
    "percent": (with_column(rate=PERCENT), "", "'0.0 %' is not a number: .*'rate': remove"),
    "currency, mostly": (
        with_column(paid=["free" if row % 9 == 3 else cell for row, cell in enumerate(EUROS)]),
        "",
        "'€0.0' is not a number: .*column 'paid'",
    ),
    "one of currency": (with_cell("size", "$5"), "", "'\\$5' is not a finite number: .*row 7"),
    "currency in the target": (
        with_column(price=EUROS),
        "",
        "'€0.0' is not a finite number: .*row 1, column 'price'",
    ),
    "a continuous target": (
        with_column(),
        CLASSES,
        "200 different numbers in 200 rows are no classes: .*'price': use --task regression, or "
        "add --category 'price'",
    ),
    "a whole number a row": (with_column(price=[*range(ROWS)]), CLASSES, "use --task regression"),
    "times alone": (lines({"day": DAYS, "price": [*range(700)]}), "", "no column besides"),
    "no file": ("", "--input absent.csv", "no such file or folder: .*absent.csv: check the path"),
    "an endless path": ("", f"--input {'a' * 5000}", "no such file or folder"),
    "columns without a name": (with_column().replace("size", ""), "", "without a name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_odd_tables_are_refused_in_a_line(name, tmp_path):
    content, flags, says = REFUSED[name]
    one_error(prepare(tmp_path, "tabular", written(tmp_path, content), flags), says)
    assert {path.name for path in tmp_path.glob("data/*")} <= {".lock"}


@pytest.mark.parametrize("workload", ["timeseries", "llm", "seq2seq"])
@pytest.mark.parametrize("path", ["absent.tsv", "https://example.org/a.tsv"])
def test_a_path_that_is_no_file_is_one_line(workload, path, tmp_path):
    one_error(prepare(tmp_path, workload, path), "no such file or folder: ")


@pytest.mark.parametrize("workload", ["tabular", "llm"])
def test_a_path_may_begin_at_home(workload, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, with_column())
    assert prepare(tmp_path, workload, "~/table.csv").code == 0


# ---- what it reads, and says so ------------------------------------------------------------------


def test_numbers_may_be_names_of_classes(tmp_path):
    ratings = [row % 40 / 4 for row in range(ROWS)]
    flags = f"{CLASSES} --category price --split 180,10,10"
    prepared(tmp_path, "tabular", with_column(price=ratings), flags)
    assert len(store(tmp_path, "tabular").facts["target"]["classes"]) == 40
    few = with_column(price=[row % 4 / 2 for row in range(ROWS)])
    prepared(tmp_path, "tabular", few, CLASSES)


def test_missing_marks_are_those_of_a_csv_in_texts_of_a_parquet(tmp_path):
    table = columns()
    for row, cell in enumerate(table["age"]):
        table["age"][row] = ("-999", "-999.0")[row % 2] if row % 9 == 4 else str(cell)
    written(tmp_path, lines(table), "rows.csv")
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "rows.parquet")
    for kind in ("csv", "parquet"):
        assert prepare(tmp_path, "tabular", f"rows.{kind}", "--missing -999", kind).code == 0
    of_csv = contents(tmp_path, "tabular", "csv")
    assert of_csv == contents(tmp_path, "tabular", "parquet")
    assert of_csv["facts"]["features"][1]["missing"] > 9


def test_times_are_left_out_unless_a_flag_says_what_they_are(tmp_path):
    out = prepared(tmp_path, "tabular", BY_DAY).out
    assert "note: column 'day' holds times, so it is left out: see --time-features, or" in out
    facts = store(tmp_path, "tabular").facts
    assert (facts["categories"], len(facts["features"])) == ([], 1)

    assert "left out" not in prepared(tmp_path, "tabular", BY_DAY, "--time-features month").out
    prepared(tmp_path, "tabular", BY_DAY, "--category day")
    assert store(tmp_path, "tabular").facts["categories"][0]["name"] == "day"


def test_a_count_of_rows_and_a_name_a_row_may_be_ids(tmp_path):
    """A count with a gap is none."""
    rows = [*range(ROWS)]
    gap = [*range(ROWS - 1), 5 * ROWS]
    content = with_column(number=rows, name=[f"row {n}" for n in rows], gap=gap)
    noted = re.findall("column '(.*)': if it is an id", prepared(tmp_path, "tabular", content).out)
    assert noted == ["number", "name"]


# ---- rows of the user's file ---------------------------------------------------------------------

SMALL = "--model.width 8 --training.max_steps 3 --schedule.warmup_steps 1 --data.batch_size 64"


def predicted(folder: Path, *words: str) -> list[dict[str, str]]:
    TABLES.done("predict", "--output", "p.csv", *words, cwd=folder)
    with open(folder / "p.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("several", [False, True])
def test_predictions_and_the_worst_rows_have_the_rows_of_the_file(several, tmp_path, monkeypatch):
    """Shuffled, also with rows that are left out, and in the files of a folder."""
    monkeypatch.setenv(EXAMPLES, "1")
    table = columns()
    table["price"][3] = ""
    first = {name: cells[:120] for name, cells in table.items()}
    second = {name: cells[120:] for name, cells in table.items()}
    written(tmp_path / "several", lines(first), "a.csv")
    written(tmp_path / "several", lines(second), "b.csv")
    path = "several" if several else written(tmp_path, lines(table))
    assert prepare(tmp_path, "tabular", path, "--drop-missing-targets").code == 0
    TABLES.done("train", *SMALL.split(), cwd=tmp_path)

    def price(row: dict[str, str]) -> float:
        part = {"a.csv": first, "b.csv": second}[row["file"]] if several else table
        return float(part["price"][int(row["row"]) - 1])

    rows = predicted(tmp_path)
    assert len(rows) == 30
    assert [float(row["target"]) for row in rows] == pytest.approx([price(row) for row in rows])
    worst = (newest_run(tmp_path) / "examples/worst.md").read_text().splitlines()[2:]
    header, _, *cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in worst]
    for line in cells:
        row = dict(zip(header, line, strict=True))
        assert float(row["truth"]) == pytest.approx(price(row), rel=1e-4)

    of_input = predicted(tmp_path, "--input", path)
    assert [row["row"] for row in of_input[:3]] == ["1", "2", "3"]
    assert of_input[-1]["row"] == ("80" if several else "200")
    by_place = {(row.get("file"), row["row"]): row["prediction"] for row in of_input}
    for row in rows:
        expected = float(by_place[row.get("file"), row["row"]])
        assert float(row["prediction"]) == pytest.approx(expected, rel=1e-5)


# ---- rare classes -------------------------------------------------------------------------------


def rare(classes: int, count: int = 3000) -> str:
    """2 % of the rows are of other classes, and a column hints at them."""
    random = np.random.default_rng(0)
    kind = random.choice(classes, count, p=[0.98] + [0.02 / (classes - 1)] * (classes - 1))
    hint = kind + random.normal(0, 0.7, count)
    names = np.array(["no", "yes", "perhaps"])[kind]
    return lines({"hint": hint.round(2).tolist(), "noise": [*hint[::-1]], "kind": names.tolist()})


@pytest.mark.parametrize("words", ["", "--evaluation.patience 3"])
def test_the_class_table_of_the_report_is_that_of_the_best_step(words, tmp_path, monkeypatch):
    """A model that learns the training rows by heart is best long before its end."""
    monkeypatch.setenv(EXAMPLES, "1")
    prepared(tmp_path, "tabular", rare(3, 300), "--target kind --task classification")
    steps = "--training.max_steps 120 --evaluation.every_steps 5 --schedule.warmup_steps 1"
    often = f"{steps} --optimizer.learning_rate 0.03 --model.width 64 --model.dropout 0 {words}"
    TABLES.done("train", *often.split(), cwd=tmp_path)
    page = report_of(tmp_path)
    (best,) = re.findall(r"^- best: .* at step (\d+)", page, re.MULTILINE)
    assert int(best) < 60
    assert f"## Examples: validation at step {best}\n" in page

    of_split = TABLES.predicted(tmp_path, "--split", "validation")
    classes = of_split["classes"].tolist()
    table = re.findall(r"^\| (no|yes|perhaps) \| (\S*) \| (\S*) ", page, re.MULTILINE)
    recalls = recall_score(
        of_split["target"], of_split["prediction"], average=None, labels=[0, 1, 2]
    )
    for name, _, recall in table:
        assert float(recall) == pytest.approx(recalls[classes.index(name)], abs=1e-4)
