"""`layout: script`: every wrong flag, variable and file is one line that says what to do.

A script gets all of its wrong inputs in one process, since none of them may train.
"""

import contextlib
import csv
import gzip
import io
import json
import re
import shlex
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from running import Result, one_error
from scripts import CASES, run_script, script
from test_script import every_script, load_script

Content = str | bytes | Callable[[Path], None]

# Words of the command line, and the reason that the line names.
EVERYWHERE = {
    "--widht 3": "unrecognized arguments: --widht 3: see --width",
    "--training.max_steps 5": "unrecognized arguments: --training.max_steps 5: see --max_steps",
    "--MaxSteps=5": "unrecognized arguments: --MaxSteps=5: see --max",
    "--epoch 5": "unrecognized arguments: --epoch 5: see --epochs",
    "–epochs 5": "unrecognized arguments: –epochs 5: see --epochs",
    "--no-fused": "unrecognized arguments: --no-fused: see --fused",
    "--colour red": "unrecognized arguments: --colour red: see --help",
    "5": "unrecognized arguments: 5",
    "https://me:secret@host/a.csv": "https:/…@host/a.csv",
    "--width": "--width: expected one argument",
    "--batch-size 1.5": "--batch-size/--batch_size: invalid int value: '1.5'",
    "--seed 5000000000": "out of range: --seed: use 0 to 4294967295",
    "--width 0": "0 is out of range: --width: use 1 to",
    "--learning_rate nan": "nan is out of range: --learning_rate",
    "--learning_rate 2": "out of range: --learning_rate: use 0 to 1",
    "--precision fp8": "invalid choice: 'fp8' (choose from",
    "--fused maybe": "'maybe' is neither on nor off",
    "--no-optimize=1": "--no-optimize",
    "--benchmark --rounds 0": "0 is out of range: --rounds",
    "--resume": "settings.json: check --resume",
    "--resume nowhere": "'nowhere/settings.json'): nowhere/settings.json: check --resume",
    f"--resume {'x' * 5000}": "no run to resume ([Errno",
    "--resume cut": "no run to resume (",
    "--resume list": "no run to resume (",
    "--resume other": "no run to resume (",
    "--resume null": "no run to resume (",
    "--data no": "no",
    "--data ~/no": f"{Path.home()}/no",
    f"--data {'x' * 5000}": "",
}
# settings.json of a run, by the name of its folder
BROKEN = {"cut": "", "list": "[]", "other": '{"widht": 3}', "null": '{"width": null}'}
ONE_FILE = {"--data .": "s a directory"}
SPLITS = {
    "--split 0.6,0.2,0.1": "use fractions that add up to 1",
    "--split a,b,c": "'a,b,c' does not split",
    "--split nan,1,0": "'nan,1,0' does not split",
    "--split=-0.5,1,0.5": "does not split",
    "--split 1e99,1,1": "does not split",
}
# Of a CSV file, by its name.
TABLES: dict[str, tuple[Content, str]] = {
    "empty": ("", "no table: empty: write rows after a header"),
    "header": ("a,b\n", "no table: header: write rows after a header"),
    "pandas": (",a,b\n1,2,3\n", "no table: pandas: write rows after a header"),
    "twice": ("a,b,b\n1,2,3\n", "3 cells for 2 different column names: twice, row 1"),
    "short": ("a,b\n1,2\n3\n", "1 cells for 2 different column names: short, row 3"),
    "latin": (b"a,b\xff\n1,2\n", "cannot read the file ('utf-8' codec"),
    "field": (f"a,b\n1,{'9' * 200_000}\n", "cannot read the file (field larger than"),
    "sep": ("sep=;\na;b\n1;2\n", "no table: sep: .*separated by commas; remove `sep=`"),
    "comment": ("# of 2024\na,b\n1,2\n", "no table: comment: .*comments above it"),
    "commented": ("# by me, of 2024\na,b,c\n1,2,3\n", "names: commented, row 2: .*and comments"),
    "last_comma": ("a,b,\n1,2,\n", "no table: last_comma: .*empty names (a last comma"),
    "longer": ("a,b\n1,2,\n", "names: longer, row 2: .*remove a last comma"),
    "tabs": ('a\tb\n1\t"2"\n', "no table: tabs: .*separated by commas"),
}
STOCK = "date,open,high,low,close,volume\n"
DAYS = "".join(f"{day},1,1,1,1,7\n" for day in np.arange("2024", "2025", dtype="M8[D]"))


def write(content: Content, path: Path) -> None:
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)


def in_folder(content: Content) -> Content:
    """A folder with one stock whose file has this content, and one without a fault."""

    def make(path: Path) -> None:
        path.mkdir()
        write(content, path / "A.csv")
        write(STOCK + DAYS, path / "B.csv")

    return make


def hdf5(**arrays: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values

    return write


def damaged_gzip(path: Path) -> None:
    """HDF5 whose compressed values are damaged."""
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(0).random((100, 4, 2))
        file.create_dataset("features", data=values, compression="gzip")
        file["targets"] = TARGETS
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(100) + content[middle + 100 :])


FEATURES = np.ones((100, 4, 2))
TARGETS = np.ones((100, 1))
PAIRS = "".join(f"a{row}\tb{row}\n" for row in range(60))
FILES: dict[str, dict[str, tuple[Content, str]]] = {
    "timeseries": {
        **TABLES,
        "gap": ("time,a\n2024-01-01,1\n2024-01-02,\n", "not a finite number: gap, row 3"),
        "large": ("time,a\n1,1e39\n", "not a finite number: large, row 2: fix this row"),
        "month": ("time,a\n2024-31-01,1\n", "month must be in 1..12"),
        "naive": ("time,a\n2024-01-01,1\n2024-01-02T00Z,2\n", "naive and .*: naive, row 3"),
        "mixed": ("time,a\n2024-01-01,1\n1704153600,2\n", "mixed, row 3: fix this row"),
        "hour": ("time,a\n" + 2 * "2024-10-27 02:30,1\n", "hour, row 3: .*an hour comes twice"),
        "clock": ("date,clock,a\n2024-01-01,00:00,1\n", "'00:00' is not .*date and clock in one"),
        "dollar": ("time,a\n1,1\n2,$5\n", "'$5' is not a finite number: dollar, row 3"),
        "percent": ("time,a\n1,5%\n", "'5%' is not a finite number"),
        "unit": ("time,a\n1,5 kg\n", "'5 kg' is not a finite number: .*without a unit"),
        "decimal": ('time,a\n1,"0,500"\n', "'0,500' is not a finite number"),
        "back": ("time,a\n2024-01-02,1\n2024-01-01,1\n", "the time does not increase: back, row 3"),
        "no_time": ("time,a\nNaT,1\n", "Invalid isoformat string: .*no_time, row 2"),
        "huge": (f"time,a\n{'9' * 50},1\n", "huge, row 2: fix this row"),
        "few": ("time,a\n1,1\n2,1\n3,1\n", "use a smaller --history"),
    },
    "tabular": {
        **TABLES,
        "gap": ("a,b\n1,1\n2,\n", "cannot read '': gap, row 3, column 'b': .*remove the row"),
        "category": ("name,b\nx,1\n,2\ny,3\n", "cannot read '': category, row 3, column 'name'"),
        "mark": ("a,b\n?,1\n2,2\n", "cannot read '?': mark, row 2, column 'a': write a number"),
        "dollar": ("a,b\n$5,1\n$6,2\n", "cannot read '$5': dollar, row 2, column 'a'"),
        "currency": ("a,b\n1 EUR,1\n2 EUR,2\n", "cannot read '1 EUR'"),
        "percent": ("a,b\n1,2\n5%,1\n6 %,2\n", "cannot read '5%': percent, row 3, column 'a'"),
        "unit": ("a,b\n5 kg,1\n6kg,2\n", "cannot read '5 kg': .*unit or currency"),
        "words": ("a,b\n5 bananas,1\n6 bananas,2\n", "cannot read '5 bananas'"),
        "decimal": ('a,b\n"1,5",1\n"2,5",2\n', "cannot read '1,5'"),
        "underscore": ("a,b\n1_2,1\n2,2\n", "cannot read '1_2'"),
        "text": ("a,b\n1,x\n2,y\n3,x\n", "column 'b' has text: --task: use classification"),
        "one_row": ("a,b\n1,2\n", "does not split 1 rows"),
    },
    "llm": {
        "empty": ("", "no data: empty: check --data"),
        "short": ("abc", "train has 4 tokens: --block_size: use a smaller one"),
    },
    "seq2seq": {
        "tabs": ("a\tb\nc\n", "not source, tab, target: tabs, line 2: fix this line"),
        "no_target": ("a\t\n", "not source, tab, target: no_target, line 1"),
        "latin": (b"a\tb\xff\n", "not UTF-8 at byte 3: latin: save it as UTF-8"),
        "gzip": (gzip.compress(PAIRS.encode()), "not UTF-8 at byte 1: gzip"),
        "empty": ("", "does not split 0 rows"),
        "same": ("a\tb\n" * 50, "--split"),
    },
    "windows": {
        "text": ("no HDF5", "cannot read the file ("),
        "damaged": (damaged_gzip, "filter"),
        "rows": (hdf5(features=FEATURES, targets=TARGETS[1:]), "targets (99, 1): rows: write"),
        "missing": (hdf5(features=FEATURES), "cannot read the file ("),
        "texts": (hdf5(features="x", targets=TARGETS), "wrong features () or targets (100, 1)"),
        "whole": (hdf5(features=FEATURES.astype(int), targets=TARGETS), "write floats"),
        "axes": (hdf5(features=TARGETS, targets=TARGETS), "wrong features (100, 1)"),
        "no_rows": (hdf5(features=FEATURES[:0], targets=TARGETS[:0]), "wrong features (0, 4, 2)"),
        "no_column": (hdf5(features=FEATURES[:, :, :0], targets=TARGETS), "wrong features"),
        "nan": (hdf5(features=FEATURES * np.nan, targets=TARGETS), "is not a finite number: nan"),
        "julian": (
            hdf5(features=2_460_000 + np.arange(800).reshape(100, 4, 2) / 24, targets=TARGETS),
            "float32 is too coarse for a column: julian: subtract its mean",
        ),
        "target": (
            hdf5(features=FEATURES, targets=TARGETS * np.inf),
            "not a finite number: target",
        ),
        "one": (hdf5(features=FEATURES[:1], targets=TARGETS[:1]), "does not split 1 rows"),
    },
    "graph": {
        "table.csv": (STOCK + DAYS, "no .csv or .csv.gz file in the folder: table.csv"),
        "nothing": (Path.mkdir, "no .csv or .csv.gz file in the folder: nothing: check --data"),
        "column": (
            in_folder(f"{STOCK[:-8]}\n1,1,1,1,1\n"),
            "no column 'volume': column/A.csv",
        ),
        "month": (in_folder(f"{STOCK}2024-31-01,1,1,1,1,9\n"), "month must be in 1..12"),
        "dollar": (in_folder(f"{STOCK}2024-01-02,$5,1,1,1,9\n"), "'$5' is not a finite number"),
        "price": (in_folder(f"{STOCK}2024-01-02,1,1,0,1,9\n"), "a price of 0 or below"),
        "day": (in_folder(STOCK + 2 * "2024-01-02,1,1,1,1,9\n"), "or a date twice: day/A.csv"),
        "few": (in_folder(f"{STOCK}2024-01-02,1,1,1,1,9\n"), "1 stocks have --window 20 days: add"),
    },
}
for name, (content, reason) in TABLES.items():
    FILES["graph"][name] = (in_folder(content), reason.replace(f": {name}", f": {name}/A.csv"))
OWN: dict[str, dict[str, str]] = {
    "timeseries": {
        "--history 0": "out of range: --history",
        "--history 999999": "no window fits: --split 0.7,0.15,0.15: use a smaller --history",
        "--targets other": "no column 'other': --targets: use load, price",
        "--targets ,": "no column '': --targets",
        **ONE_FILE,
        **SPLITS,
    },
    "tabular": {
        "--target other": "no column 'other': --target: use one of rain",
        "--data mark --category a,c": "no column 'c': --category: use a, b",
        "--task other": "invalid choice: 'other'",
        "--task classification": "a class has no training row: --target harvest: remove its rows",
        "--num_workers 1 --prefetch_factor 0": "out of range: --prefetch_factor",
        **ONE_FILE,
        **SPLITS,
    },
    "llm": {
        "--width 6": "heads do not fit: --width: use a multiple of 8",
        "--phase 2": "there is no phase 2: --phase: add it to PHASES",
        "--init_from nowhere": "no weights of this model: nowhere: check --init_from",
        **ONE_FILE,
    },
    "seq2seq": {
        "--data pairs --pretrained nowhere": "cannot load (",
        "--data pairs --pretrained bert": "bert is no T5: --pretrained",
        "--max_source 0": "out of range: --max_source",
        "--feed_forward silu": "invalid choice: 'silu'",
        "--optimizer sgd": "invalid choice: 'sgd'",
        **ONE_FILE,
        **{f"--data pairs {words}": reason for words, reason in SPLITS.items()},
    },
    "windows": {
        "--purge 9990": "no window is left: --split 0.7,0.15,0.15: use a smaller --purge",
        "--purge -2": "out of range: --purge",
        "--chunk_size_gb nan": "nan is out of range: --chunk_size_gb",
        **ONE_FILE,
        **SPLITS,
    },
    "graph": {
        "--width 9": "9 is no multiple of --heads 4: --width: fix one",
        "--window 901": "0 stocks have --window 901 days: add more",
        "--horizon 999": "does not split 0 rows",
        "--horizon 500": "no day is left",
        "--refresh 0": "out of range: --refresh",
        "--target other": "invalid choice: 'other'",
        **SPLITS,
    },
}


def write_files(workload: str, folder: Path) -> dict[str, str]:
    """Write the wrong files of a workload, and return the words that use them."""
    for name, content in BROKEN.items():
        (folder / name).mkdir()
        (folder / name / "settings.json").write_text(content)
    (folder / "pairs").write_text(PAIRS)
    (folder / "bert").mkdir()
    (folder / "bert/config.json").write_text('{"model_type": "bert"}')
    reasons = {}
    for name, (content, reason) in FILES[workload].items():
        write(content, folder / name)
        reasons[f"--data {name}"] = reason
    return reasons


def outcome(train: Any, words: str) -> tuple[int, str, str]:
    """The exit code, and what is printed."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = train.main(shlex.split(words))
        except Exception:
            traceback.print_exc()
            code = 1
    return code, "", printed.getvalue()


@every_script
def test_a_wrong_input_is_one_line(workload, tmp_path):
    wrong = {**EVERYWHERE, **OWN[workload], **write_files(workload, tmp_path)}

    def try_all(train: Any) -> None:
        csv.field_size_limit(131_072)  # Python's own, in case that this process has used a package
        outcomes = {words: outcome(train, words) for words in wrong}
        Path("outcomes.json").write_text(json.dumps(outcomes))

    assert run_script(script(workload), "--help", cwd=tmp_path, before=try_all).code == 0
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    for words, reason in wrong.items():
        one_error(Result(*outcomes[words]), ".*".join(map(re.escape, reason.split(".*"))))
    assert not (tmp_path / "runs").exists()


@every_script
def test_a_wrong_variable_is_one_line(workload, tmp_path, monkeypatch):
    monkeypatch.setenv("USE_AMP", "maybe")
    one_error(run_script(script(workload), cwd=tmp_path), "'maybe' .*use 1 or 0")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda content: content[:1000] + bytes(1000) + content[2000:],
    "cut": lambda content: content[: len(content) // 2],
    "checksum": lambda content: content[:-8] + bytes(8),
    "no gzip": gzip.decompress,
}


@pytest.mark.parametrize("workload", ["tabular", "timeseries", "graph"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_gzip_file_is_one_line(workload, damage, tmp_path):
    """The other scripts read no compressed CSV file."""
    source = tmp_path / "data.file"
    CASES[workload].write(source)
    path = "data.csv.gz"
    if workload == "graph":
        source = source / "ant.csv"
        path = "data.file"
    content = gzip.compress(source.read_bytes())
    source.with_name("data.csv.gz").write_bytes(DAMAGES[damage](content))
    done = run_script(script(workload), "--data", path, cwd=tmp_path)
    one_error(done, "cannot read the file", "data.csv.gz: check --data")


# --- inputs that are read right

NUMBERS: dict[str, float] = {
    "1,000": 1000,
    "1,000,000.5": 1_000_000.5,
    "1 000": 1000,
    "1\u00a0000": 1000,
    "1\u202f000": 1000,
    "1\u2009000": 1000,
    "1'000": 1000,
    "1’000": 1000,
    "\u22125": -5,
    "(1,000)": -1000,
    "( 5 )": -5,
    "5-": -5,
    "+5": 5,
    "1e3": 1000,
}


def quoted(values: Iterable[Any]) -> str:
    return "".join(f'{row},"{value}"\n' for row, value in enumerate(values))


def test_numbers_and_times_are_read_in_all_spellings(tmp_path, monkeypatch):
    train = load_script("timeseries", monkeypatch)
    path = tmp_path / "series.csv"

    def read(text: str) -> list[float]:
        path.write_text(text)
        return train.read_csv(path)[1][:, 0].tolist()

    assert read("time,a\n" + quoted(NUMBERS)) == [*NUMBERS.values()]
    for first, second in (
        ("2024-01-01 00:00:00.25", "2024-01-01 00:00:00.5"),
        ("1700000000.0", "1700000000.5"),
        ("1.7e9", "1.8e9"),
        ("2024-01-01 00:00:00-05:00", "2024-01-02 00:00:00-05:00"),
        ("2024-10-27 02:30:00+02:00", "2024-10-27 02:30:00+01:00"),
        ("2024-01", "2024-02"),
        ("20240131", "20240201"),
    ):
        assert read(f"time,a\n{first},1\n{second},2\n") == [1, 2], first
    path.write_text("time,lo\u200bad\u00a0\n1,2\n")
    assert train.read_csv(path)[0] == ["load"]


def test_a_stock_s_day_is_the_one_where_it_trades(tmp_path, monkeypatch):
    train = load_script("graph", monkeypatch)
    for offset in ("+09:00", "-05:00", "Z", ""):
        path = tmp_path / "A.csv"
        path.write_text(STOCK + DAYS.replace(",1,1,1", f" 00:00:00{offset},1,1,1"))
        dates = train.read_stock(path).dates
        assert dates.tolist() == np.arange("2024", "2025", dtype="M8[D]").tolist(), offset


def test_float32_is_not_too_coarse_for_julian_dates(tmp_path, monkeypatch):
    """Features and targets have as many values as the file, and those of other rows."""
    julian = 2_460_000 + np.arange(2000) / 24
    seconds = 1_700_000_000 + np.arange(2000)
    lines = [
        f"{row},{day},{second}\n"
        for row, day, second in zip(range(2000), julian, seconds, strict=True)
    ]
    (tmp_path / "data.csv").write_text("time,julian,second\n" + "".join(lines))
    for workload in ("timeseries", "tabular"):
        train = load_script(workload, monkeypatch)
        data = train.Data(train.Settings(data=str(tmp_path / "data.csv")))
        if workload == "timeseries":
            columns = data.series.numpy().T
        else:
            shuffle = np.random.default_rng(0).permutation(2000)
            target = data.arrays["target"]
            columns = [data.arrays["features"][:, 1], target]
            np.testing.assert_allclose(np.diff(np.sort(target)), target.std() / 577.35, rtol=0.01)
            assert (np.argsort(target) == np.argsort(shuffle)).all()
        assert [len(np.unique(values)) for values in columns] == [2000, 2000], workload


def test_all_spellings_of_a_category_are_one(tmp_path, monkeypatch, capsys):
    """A cell such as NaN is a value like any other, which a note says."""
    train = load_script("tabular", monkeypatch)

    def classes(*cells: str) -> list[str]:
        path = tmp_path / "table.csv"
        path.write_text("a,b\n" + quoted(list(cells) * 10))
        settings = train.Settings(data=str(path), task="classification")
        return train.Data(settings).facts["b"]

    assert classes("1", "1.0", "2", "2.00", "1000", "1,000") == ["1", "2", "1000"]
    assert classes("True", "TRUE", "true", "False", "FALSE") == ["False", "True"]
    assert classes("New York", "New\u00a0York", " New  York", "x") == ["New York", "x"]
    assert classes("Z\u00fcrich", "Zu\u0308rich", "x", "x\u200b") == ["Z\u00fcrich", "x"]
    assert classes("01", "001", "1", "10") == ["1", "01", "10", "001"]
    assert not capsys.readouterr().out
    assert classes("NaN", "x", "y") == ["NaN", "x", "y"]
    assert "note: column 'b' has cells 'NaN', which are a value" in capsys.readouterr().out
