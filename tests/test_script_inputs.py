"""`layout: script`: every wrong flag, variable and file is one line that says what to do.

A script gets all of its wrong inputs in one process, since none of them may train.
"""

import contextlib
import gzip
import io
import json
import shlex
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from running import one_error
from test_script import CASES, every_script, run_script, script

Content = str | bytes | Callable[[Path], None]

# Words of the command line, and the reason that the line names.
EVERYWHERE = {
    "--widht 3": "unrecognized arguments: --widht 3: see --help",
    "5": "unrecognized arguments: 5",
    "https://me:secret@host/a.csv": "https:/…@host/a.csv",
    "--width": "--width: expected one argument",
    "--width x": "--width: invalid int value: 'x'",
    "--width 0": "0 is out of range: --width: use 1 to",
    "--batch_size -3": "-3 is out of range: --batch_size",
    "--batch-size 1.5": "--batch-size/--batch_size: invalid int value: '1.5'",
    "--max_steps 1e3": "invalid int value: '1e3'",
    "--max_steps -1": "out of range: --max_steps",
    "--epochs 0": "out of range: --epochs",
    "--seed ''": "--seed: invalid int value: ''",
    "--seed 5000000000": "out of range: --seed: use 0 to 4294967295",
    "--learning_rate nan": "nan is out of range: --learning_rate",
    "--learning_rate 2": "out of range: --learning_rate: use 0 to 1",
    "--dropout inf": "inf is out of range: --dropout",
    "--warmup_steps -2": "out of range: --warmup_steps",
    "--gradient_clip -1": "out of range: --gradient_clip",
    "--log_every 0": "out of range: --log_every",
    "--precision fp8": "invalid choice: 'fp8' (choose from",
    "--compile fast": "invalid choice: 'fast'",
    "--fused maybe": "'maybe' is neither on nor off",
    "--no-optimize=1": "--no-optimize",
    "--benchmark --rounds 0": "0 is out of range: --rounds",
    "--resume": "settings.json: check --resume",
    "--resume nowhere": "'nowhere/settings.json'): nowhere/settings.json: check --resume",
    f"--resume {'x' * 5000}": "no run to resume ([Errno",
    "--resume broken": "no run to resume (",
    "--data no": "no",
    "--data ~/no": f"{Path.home()}/no",
    f"--data {'x' * 5000}": "",
}
ONE_FILE = {"--data .": "s a directory"}
SPLITS = {
    "--split 0.6,0.2,0.1": "use fractions that add up to 1",
    "--split 1": "'1' does not split",
    "--split a,b,c": "'a,b,c' does not split",
    "--split nan,1,0": "'nan,1,0' does not split",
    "--split 0,0.5,0.5": "does not split",
    "--split=-0.5,1,0.5": "does not split",
    "--split 1e99,1,1": "does not split",
    "--split 10.5,3,2": "does not split",
}
# Of a CSV file, by its name.
TABLES: dict[str, tuple[Content, str]] = {
    "empty": ("", "no table: empty: write rows after a header"),
    "header": ("a,b\n", "no table: header: write rows after a header"),
    "semicolon": ("a;b\n1;2\n", "no table: semicolon: write rows after a header"),
    "pandas": (",a,b\n1,2,3\n", "no table: pandas: write rows after a header"),
    "twice": ("a,b,b\n1,2,3\n", "3 cells for 2 different column names: twice, row 1"),
    "short": ("a,b\n1,2\n3\n", "1 cells for 2 different column names: short, row 3"),
    "latin": (b"a,b\xff\n1,2\n", "cannot read the file ('utf-8' codec"),
    "utf16": ("a,b\n1,2\n".encode("utf-16"), "cannot read the file ('utf-8' codec"),
    "field": (f"a,b\n1,{'9' * 200_000}\n", "cannot read the file (field larger than"),
}
STOCK = "date,open,high,low,close,volume\n"
DAYS = "".join(f"{day},1,1,1,1,7\n" for day in np.arange("2024", "2025", dtype="M8[D]"))


def in_folder(content: str | bytes) -> Callable[[Path], None]:
    """A folder with one stock whose file has this content, and one without a fault."""

    def write(path: Path) -> None:
        path.mkdir()
        (path / "A.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        (path / "B.csv").write_text(STOCK + DAYS)

    return write


def hdf5(**arrays: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                if values is None:
                    file.create_group(name)
                else:
                    file.create_dataset(name, data=values)

    return write


def damaged_gzip(path: Path) -> None:
    """HDF5 whose compressed values are damaged."""
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(0).random((100, 4, 2))
        features = file.create_dataset("features", data=values, compression="gzip")
        offset = features.id.get_chunk_info(0).byte_offset
        file["targets"] = np.zeros((100, 1))
    content = bytearray(path.read_bytes())
    content[offset + 20 : offset + 40] = bytes(20)
    path.write_bytes(content)


FEATURES = np.ones((100, 4, 2))
TARGETS = np.ones((100, 1))
PAIRS = "".join(f"a{row}\tb{row}\n" for row in range(60))
FILES: dict[str, dict[str, tuple[Content, str]]] = {
    "timeseries": {
        **TABLES,
        "gap": ("time,a\n2024-01-01,1\n2024-01-02,\n", "not a finite number: gap, row 3"),
        "underscore": ("time,a\n1,1_2\n", "not a finite number: underscore, row 2"),
        "infinite": ("time,a\n1,inf\n", "not a finite number: infinite, row 2"),
        "large": ("time,a\n1,1e39\n", "not a finite number: large, row 2: fix this row"),
        "month": ("time,a\n2024-31-01,1\n", "Month out of range"),
        "back": ("time,a\n2024-01-02,1\n2024-01-01,1\n", "the time does not increase: back, row 3"),
        "no_time": ("time,a\nNaT,1\n", "the time does not increase: no_time, row 2"),
        "huge": (f"time,a\n{'9' * 30},1\n", "too big to convert: huge, row 2"),
        "few": ("time,a\n1,1\n2,1\n3,1\n", "use a smaller --history"),
    },
    "tabular": {
        **TABLES,
        "gap": ("a,b\n1,1\n2,\n", "cannot read '': gap, row 3, column 'b': fix it, remove"),
        "category": ("name,b\nx,1\n,2\ny,3\n", "cannot read '': category, row 3, column 'name'"),
        "mark": ("a,b\n?,1\n2,2\n", "cannot read '?': mark, row 2, column 'a': fix it, remove"),
        "underscore": ("a,b\n1_2,1\n2,2\n", "cannot read '1_2'"),
        "infinite": ("a,b\ninf,1\n2,2\n", "cannot read 'inf'"),
        "large": ("a,b\n1e39,1\n2,2\n", "cannot read '1e39'"),
        "text": ("a,b\n1,x\n2,y\n3,x\n", "column 'b' has text: --task: use classification"),
        "one_row": ("a,b\n1,2\n", "does not split 1 rows"),
    },
    "llm": {
        "empty": ("", "no data: empty: check --data"),
        "short": ("abc", "train has 4 tokens: --block_size: use a smaller one"),
    },
    "seq2seq": {
        "tabs": ("a\tb\nc\n", "not source, tab, target: tabs, line 2: fix this line"),
        "three": ("a\tb\tc\n", "not source, tab, target: three, line 1"),
        "no_target": ("a\t\n", "not source, tab, target: no_target, line 1"),
        "zeros": (bytes(99), "not source, tab, target: zeros, line 1"),
        "latin": (b"a\tb\xff\n", "not UTF-8 at byte 3: latin: save it as UTF-8"),
        "gzip": (gzip.compress(PAIRS.encode()), "not UTF-8 at byte 1: gzip"),
        "empty": ("", "does not split 0 rows"),
        "same": ("a\tb\n" * 50, "--split"),
        "one": ("a\tb\n", "--split"),
    },
    "windows": {
        "text": ("no HDF5", "cannot read the file ("),
        "empty": ("", "cannot read the file ("),
        "damaged": (damaged_gzip, "filter"),
        "rows": (hdf5(features=FEATURES, targets=TARGETS[1:]), "targets (99, 1): rows: write"),
        "missing": (hdf5(features=FEATURES), "cannot read the file ("),
        "group": (hdf5(features=None), "cannot read the file ("),
        "texts": (hdf5(features="x", targets=TARGETS), "wrong features () or targets (100, 1)"),
        "whole": (hdf5(features=FEATURES.astype(int), targets=TARGETS), "write floats"),
        "axes": (hdf5(features=TARGETS, targets=TARGETS), "wrong features (100, 1)"),
        "no_rows": (hdf5(features=FEATURES[:0], targets=TARGETS[:0]), "wrong features (0, 4, 2)"),
        "no_column": (hdf5(features=FEATURES[:, :, :0], targets=TARGETS), "wrong features"),
        "no_time": (hdf5(features=FEATURES[:, :0], targets=TARGETS), "wrong features"),
        "no_target": (hdf5(features=FEATURES, targets=TARGETS[:, :0]), "targets (100, 0)"),
        "nan": (hdf5(features=FEATURES * np.nan, targets=TARGETS), "is not a finite number: nan"),
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
        "month": (in_folder(f"{STOCK}2024-31-01,1,1,1,1,9\n"), "Month out of range"),
        "price": (in_folder(f"{STOCK}2024-01-02,1,1,0,1,9\n"), "a price of 0 or below"),
        "day": (in_folder(STOCK + 2 * "2024-01-02,1,1,1,1,9\n"), "or a date twice: day/A.csv"),
        "letters": (in_folder(f"{STOCK}2024-01-02,x,1,1,1,9\n"), "'x' is not a finite number"),
        "infinite": (in_folder(f"{STOCK}2024-01-02,inf,1,1,1,9\n"), "'inf' is not a finite number"),
        "underscore": (in_folder(f"{STOCK}2024-01-02,1_0,1,1,1,9\n"), "underscore/A.csv, row 2"),
        "few": (in_folder(f"{STOCK}2024-01-02,1,1,1,1,9\n"), "1 stocks have --window 20 days: add"),
    },
}
for name, (content, reason) in TABLES.items():
    FILES["graph"][name] = (in_folder(content), reason.replace(f": {name}", f": {name}/A.csv"))
OWN: dict[str, dict[str, str]] = {
    "timeseries": {
        "--history 0": "out of range: --history",
        "--history 999999": "no window fits: --split 0.7,0.15,0.15: use a smaller --history",
        "--horizon 999999": "use a smaller --history",
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
        "--num_workers -1": "out of range: --num_workers",
        "--num_workers 1 --prefetch_factor 0": "out of range: --prefetch_factor",
        "--allow_unsafe_dataloader maybe": "neither on nor off",
        **ONE_FILE,
        **SPLITS,
    },
    "llm": {
        "--width 6": "heads do not fit: --width: use a multiple of 8",
        "--heads 0": "out of range: --heads",
        "--heads 3": "heads do not fit: --width: use a multiple of 6",
        "--block_size 0": "out of range: --block_size",
        "--layers 0": "out of range: --layers",
        "--init_from nowhere": "no weights of this model: nowhere: check --init_from",
        **ONE_FILE,
    },
    "seq2seq": {
        "--data pairs --pretrained nowhere": "cannot load (",
        "--data pairs --pretrained pairs": "cannot load (",
        "--data pairs --pretrained bert": "bert is no T5: --pretrained",
        "--data pairs --pretrained a/b/c/d": "cannot load (",
        "--heads 0": "out of range: --heads",
        "--max_source 0": "out of range: --max_source",
        "--feed_forward silu": "invalid choice: 'silu'",
        "--optimizer sgd": "invalid choice: 'sgd'",
        **ONE_FILE,
        **{f"--data pairs {words}": reason for words, reason in SPLITS.items()},
    },
    "windows": {
        "--purge 9990": "no window is left: --split 0.7,0.15,0.15: use a smaller --purge",
        "--purge -2": "out of range: --purge",
        "--shuffle_block 0": "out of range: --shuffle_block",
        "--chunk_size_gb nan": "nan is out of range: --chunk_size_gb",
        "--chunk_size_gb -1": "out of range: --chunk_size_gb",
        "--num_workers -1": "out of range: --num_workers",
        **ONE_FILE,
        **SPLITS,
    },
    "graph": {
        "--width 9": "9 is no multiple of --heads 4: --width: fix one",
        "--window 901": "0 stocks have --window 901 days: add more",
        "--horizon 999": "does not split 0 rows",
        "--horizon 500": "no day is left",
        "--neighbors 0": "out of range: --neighbors",
        "--refresh 0": "out of range: --refresh",
        "--target other": "invalid choice: 'other'",
        "--frequencies -1": "out of range: --frequencies",
        **SPLITS,
    },
}


def write_files(workload: str, folder: Path) -> dict[str, str]:
    """Write the wrong files of a workload, and return the words that use them."""
    (folder / "broken").mkdir()
    (folder / "broken/settings.json").write_text("[]")
    (folder / "pairs").write_text(PAIRS)
    (folder / "bert").mkdir()
    (folder / "bert/config.json").write_text(json.dumps({"model_type": "bert"}))
    for name, (content, _) in FILES[workload].items():
        if callable(content):
            content(folder / name)
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return {f"--data {name}": reason for name, (_, reason) in FILES[workload].items()}


def outcome(train: Any, words: str) -> tuple[int, list[str]]:
    """The exit code, and what is printed on stderr."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = train.main(shlex.split(words))
        except Exception:
            traceback.print_exc()
            code = 1
    return code, printed.getvalue().splitlines()


def is_right(code: int, lines: list[str], reason: str) -> bool:
    """Tell whether the last line is the error with this reason; a library may warn before it."""
    *notes, error = lines or [""]
    has_traceback = any("Traceback" in line or line.startswith("error: ") for line in notes)
    is_error = error.startswith("error: ") and reason in error
    return code == 2 and is_error and not has_traceback


@every_script
def test_a_wrong_input_is_one_line(workload, tmp_path):
    wrong = {**EVERYWHERE, **OWN[workload], **write_files(workload, tmp_path)}
    assert len(wrong) >= 25 + 10

    def try_all(train: Any) -> None:
        outcomes = {words: outcome(train, words) for words in wrong}
        Path("outcomes.json").write_text(json.dumps(outcomes))

    assert run_script(script(workload), "--help", cwd=tmp_path, before=try_all).code == 0
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert {
        words: seen for words, seen in outcomes.items() if not is_right(*seen, wrong[words])
    } == {}
    assert not (tmp_path / "runs").exists()


@every_script
def test_a_wrong_variable_is_one_line(workload, tmp_path, monkeypatch):
    monkeypatch.setenv("SEED", "x")
    one_error(run_script(script(workload), cwd=tmp_path), "--seed: invalid int value: 'x'")


DAMAGES = ("zeros", "cut", "checksum", "no gzip")


@pytest.mark.parametrize("workload", ["tabular", "timeseries", "graph"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_gzip_file_is_one_line(workload, damage, tmp_path):
    """The other scripts read no compressed CSV file."""
    source = tmp_path / "data.file"
    CASES[workload].write(source)
    if source.is_dir():
        source = source / "S0.csv"
    plain = source.read_bytes()
    content = bytearray(gzip.compress(plain))
    middle = len(content) // 2
    if damage == "zeros":
        content[middle : middle + 1000] = bytes(1000)
    elif damage == "cut":
        del content[middle:]
    elif damage == "checksum":
        content[-8] ^= 1
    else:
        content = bytearray(plain)
    source.with_name("data.csv.gz").write_bytes(content)
    path = "data.file" if workload == "graph" else "data.csv.gz"
    line = one_error(
        run_script(script(workload), "--data", path, cwd=tmp_path),
        "cannot read the file",
        "data.csv.gz: check --data",
    )
    assert "free space" not in line
