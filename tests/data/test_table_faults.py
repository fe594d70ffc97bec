"""Tables that were read in silence or refused without a remedy, and what is told of rare
classes."""

import csv
import re

import numpy as np
import pytest
import torch
from made_up import (
    ROWS,
    columns,
    contents,
    lines,
    prepare,
    prepared,
    store,
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


# ---- paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", ["timeseries", "forecast", "llm", "seq2seq"])
def test_a_path_that_is_no_file_is_one_line(workload, tmp_path):
    one_error(prepare(tmp_path, workload, "https://example.org/a.tsv"), "no such file or folder: ")


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


def test_dates_become_numbers(tmp_path):
    """With the clock, also in a format of people and with gaps; unclear ones are left out."""
    times = np.datetime64("2023-12-25T06:00") + 9 * np.arange(ROWS) * np.timedelta64(1, "h")
    dates = times.astype(object)
    flags = "--keep-order --drop size --drop age --drop colour"
    expected = np.array([[d.year, d.month, d.weekday()] for d in dates])
    elapsed = (times - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    for form in ("%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M+00:00"):
        cells = [d.strftime(form) for d in dates]
        cells[50] = ""
        out = prepared(tmp_path, "tabular", with_column(when=cells), flags).out
        assert "note: column 'when' is a date (" in out
        features = store(tmp_path, "tabular").arrays["features"].rows()
        assert np.isnan(features[50]).all()
        kept = np.arange(ROWS) != 50
        np.testing.assert_array_equal(features[kept, :3], expected[kept])
        np.testing.assert_allclose(features[kept, 3], elapsed[kept], atol=2e-3)

    unclear = [f"{1 + row % 12}/{1 + row % 7}/2024" for row in range(ROWS)]
    out = prepared(tmp_path, "tabular", with_column(when=unclear)).out
    assert "note: column 'when' has dates of no clear format, such as '" in out
    assert "left out: add --time-format" in out
    assert "when" not in str(store(tmp_path, "tabular").facts)
    prepared(tmp_path, "tabular", with_column(when=unclear), f"{flags} --time-format %m/%d/%Y")
    months = store(tmp_path, "tabular").arrays["features"].rows()[:, 1]
    np.testing.assert_array_equal(months, 1 + np.arange(ROWS) % 12)

    prepared(tmp_path, "tabular", BY_DAY, "--category day")
    assert store(tmp_path, "tabular").facts["categories"][0]["name"] == "day"


def test_a_given_format_is_that_of_the_columns_that_it_fits(tmp_path):
    """Other dates are detected as ever, and 45 is no clock; `predict` reads the same dates."""
    days = [np.datetime64("2024-01-01") + row for row in range(ROWS)]
    days = [day.astype(object) for day in days]
    two = [10 + row % 2 for row in range(ROWS)]
    for form in ("%Y%m%d", "%B_%d_%Y", "%d/%m/%y", "%H%M"):
        cells = {"when": [day.strftime(form) for day in days], "iso": days, "two": two}
        content = with_column(**cells)
        out = prepared(tmp_path, "tabular", content, f"--time-format {form}").out
        for name, known in (("when", form), ("iso", "ISO 8601")):
            assert f"note: column '{name}' is a date ({known})" in out
        assert "column 'two'" not in out
    TABLES.done("train", *SMALL.split(), cwd=tmp_path)
    for words in ((), ("--time-format", form)):
        TABLES.done("predict", "--input", "table.csv", *words, cwd=tmp_path)
    refused = TABLES.run("predict", "--input", "table.csv", "--time-format", "%d %b", cwd=tmp_path)
    one_error(
        refused, "'0000' is no date in the format %d %b: .*, row 1, column 'when': fix .*; `p"
    )


def test_the_summary_of_a_wide_table_is_short(tmp_path):
    text = ['"' + 60 * "long\n" + f'{row % 9}"' for row in range(ROWS)]
    wide = {f"column {number}": ["x", "y"] * (ROWS // 2) for number in range(98)}
    out = prepared(tmp_path, "tabular", with_column(text=text, **wide)).out
    assert "long" not in out.splitlines()
    lines_of_columns = [line for line in out.splitlines() if line.startswith("  ")]
    assert lines_of_columns[-1] == "  … and 52 more features"
    assert len(lines_of_columns) == 52


def test_a_count_of_rows_and_a_name_a_row_may_be_ids(tmp_path):
    """A count may have gaps."""
    rows = [*range(ROWS)]
    gap = [*range(ROWS - 1), 5 * ROWS]
    content = with_column(number=rows, name=[f"row {n}" for n in rows], gap=gap)
    noted = re.findall("column '(.*)': if it is an id", prepared(tmp_path, "tabular", content).out)
    assert noted == ["number", "name", "gap"]


# ---- rows of the user's file ---------------------------------------------------------------------

SMALL = "--model.width 8 --training.max_steps 3 --schedule.warmup_steps 1 --data.batch_size 64"


def predicted(folder, *words):
    TABLES.done("predict", "--output", "p.csv", *words, cwd=folder)
    with open(folder / "p.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_and_the_worst_rows_have_the_rows_of_the_file(tmp_path, monkeypatch):
    """Shuffled; the rows of a folder count through its files."""
    monkeypatch.setenv(EXAMPLES, "1")
    table = columns()
    prices = {str(row): price for row, price in enumerate(table["price"], 1)}
    for name, rows in (("a.csv", slice(120)), ("b.csv", slice(120, ROWS))):
        part = {column: cells[rows] for column, cells in table.items()}
        written(tmp_path / "several", lines(part), name)
    assert prepare(tmp_path, "tabular", "several").code == 0
    TABLES.done("train", *SMALL.split(), cwd=tmp_path)

    rows = predicted(tmp_path)
    assert len(rows) == 30
    for row in rows:
        assert float(row["target"]) == pytest.approx(prices[row["row"]])
    worst = (newest_run(tmp_path) / "examples/worst.md").read_text().splitlines()[2:]
    header, _, *cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in worst]
    for line in cells:
        row = dict(zip(header, line, strict=True))
        assert float(row["truth"]) == pytest.approx(prices[row["row"]], rel=1e-4)

    of_input = predicted(tmp_path, "--input", "several")
    by_row = {row["row"]: float(row["prediction"]) for row in of_input}
    assert by_row.keys() == prices.keys()
    for row in rows:
        assert float(row["prediction"]) == pytest.approx(by_row[row["row"]], rel=1e-5)


# ---- lines that are no pairs ---------------------------------------------------------------------


def test_a_header_is_no_pair(tmp_path):
    """On the first line only."""
    pairs = "".join(f"{row}\t{row} again\n" for row in range(60))
    header = '\ufeff\u200bEnglish\t "french"\r\n'
    flags = "--source-key english --target-key French"
    made = {}
    for name, content in (("plain", pairs), ("odd", header + pairs), ("end", pairs + header)):
        path = written(tmp_path, content, f"{name}.tsv")
        out = prepare(tmp_path, "seq2seq", path, flags * (name == "odd"), name).out
        assert ("note: the first line of odd.tsv is a header: " in out) == (name == "odd")
        made[name] = contents(tmp_path, "seq2seq", name)
    assert made["plain"] == made["odd"] != made["end"]
    exchanged = "".join(f"{row} again\t{row}\n" for row in range(60))
    written(tmp_path, "french\tenglish\n" + exchanged, "exchanged.tsv")
    prepare(tmp_path, "seq2seq", "exchanged.tsv", flags, "exchanged")
    assert contents(tmp_path, "seq2seq", "exchanged") == made["plain"]


def test_quotes_of_a_csv_file_are_no_text(tmp_path):
    """Those of a speaker are, if the file as a whole is no CSV file. What may be both is an error."""
    pairs = [f"{row}\t{row} again" for row in range(60)]
    spoken = '"Go!" she said\tgo'
    stored = {}
    for name, lines_of in {
        "spoken": [spoken, '"Go!"\t"Va !"', '5" or 6""\tinches'],
        "table": ['"He said ""go"""\tgo', '"Go!"\t"Va !"', '5" or 6""\tinches'],
        "plain": ['He said "go"\tgo', "Go!\tVa !", '5" or 6""\tinches'],
    }.items():
        path = written(tmp_path, "\n".join([*pairs, *lines_of]), f"{name}.tsv")
        assert prepare(tmp_path, "seq2seq", path, "", name).code == 0
        stored[name] = contents(tmp_path, "seq2seq", name)
    assert stored["table"] == stored["plain"] != stored["spoken"]
    unclear = (
        [spoken, '"He said ""go"""\tgo'],
        [spoken, '"He said \\"go\\""\t"go"'],
        ['"I came.\tJe suis venu.', 'I saw."\tJe vis.'],
    )
    for lines_of in unclear:
        path = written(tmp_path, "\n".join([*pairs, *lines_of]), "unclear.tsv")
        says = "quotes that may be those of a CSV file, .*, line 62: write the texts as .jsonl"
        one_error(prepare(tmp_path, "seq2seq", path), says)


# ---- many classes -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 21])
def test_the_class_table_is_of_all_rows_and_says_what_it_lacks(count):
    classes = TABLES.module("classes")
    added = TABLES.module("engine.training.evaluation").added
    codes = torch.arange(count).repeat_interleave(3)
    logits = torch.eye(count)[codes]
    counts = classes.sum_by_class(logits, codes, torch.ones(len(codes), dtype=torch.bool))
    sums = {name: added(groups) for name, groups in counts.items()}
    text = "\n".join(classes.class_table(sums, [f"kind {code}" for code in range(count)]))
    assert f"## Classes of all {3 * count} rows" in text
    assert text.count("| 3 | 1 | 1 | 1 | 1 | 1 |") == count
    assert ("as kind 3" in text) == (count == 20)
    assert ("too many for a confusion matrix" in text) == (count == 21)


# ---- rare classes -------------------------------------------------------------------------------


def rare(classes, count=3000):
    """2 % of the rows are of other classes, and a column hints at them."""
    random = np.random.default_rng(0)
    kind = random.choice(classes, count, p=[0.98] + [0.02 / (classes - 1)] * (classes - 1))
    hint = kind + random.normal(0, 0.7, count)
    names = np.array(["no", "yes", "perhaps"])[kind]
    return lines({"hint": hint.round(2).tolist(), "noise": [*hint[::-1]], "kind": names.tolist()})


def test_the_class_table_of_the_report_is_that_of_the_best_step(tmp_path, monkeypatch):
    """A model that learns the training rows by heart is best long before its end."""
    monkeypatch.setenv(EXAMPLES, "1")
    prepared(tmp_path, "tabular", rare(3, 300), "--target kind --task classification")
    steps = "--training.max_steps 120 --evaluation.every_steps 5 --schedule.warmup_steps 1"
    often = f"{steps} --optimizer.learning_rate 0.03 --model.width 64 --model.dropout 0"
    TABLES.done("train", *often.split(), cwd=tmp_path)
    page = report_of(tmp_path)
    (best,) = re.findall(r"^- best: .* at step (\d+)", page, re.MULTILINE)
    assert int(best) < 60
    assert f"## Examples: validation at step {best}\n" in page

    of_split = TABLES.predicted(tmp_path, "--split", "validation")
    table = re.findall(r"^\| (no|yes|perhaps) \| ([1-9]\S*) \| \S* \| (\S*) ", page, re.MULTILINE)
    recalls = {name: float(recall) for name, _, recall in table}
    names = list(recalls)
    assert names == sorted(set(of_split["target"].tolist())), "those with rows"
    expected = recall_score(of_split["target"], of_split["prediction"], average=None, labels=names)
    assert list(recalls.values()) == pytest.approx(expected, abs=1e-4)
