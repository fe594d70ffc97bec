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
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from PIL import Image
from running import Result, one_error
from scripts import CASES, run_script, script
from test_script import every_script, load_script

Content = str | bytes | Callable[[Path], None]
Files = dict[str, tuple[Content, str]]  # by name: the content, and the reason of the line

TABLE = yaml.safe_load(Path(__file__).with_name("inputs.yml").read_text(encoding="utf-8"))
LONG = "x" * 5000
# Words of the command line, and the reason that the line names.
EVERYWHERE = TABLE["everywhere"] | {
    f"--resume {LONG}": "no run to resume ([Errno",
    f"--data {LONG}": "",
    "--data ~/no": f"{Path.home()}/no",
}
STOCK = "date,open,high,low,close,volume\n"
DAYS = "".join(f"{day},1,1,1,1,7\n" for day in np.arange("2024", "2025", dtype="M8[D]"))


def write(content, path):
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)


def in_folder(content):
    """A folder with one stock whose file has this content, and one without a fault."""

    def make(path):
        path.mkdir()
        write(content, path / "A.csv")
        write(STOCK + DAYS, path / "B.csv")

    return make


def hdf5(**arrays):
    def write(path):
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values

    return write


def damaged_gzip(path):
    """HDF5 whose compressed values are damaged."""
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(0).random((100, 4, 2))
        file.create_dataset("features", data=values, compression="gzip")
        file["targets"] = TARGETS
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(100) + content[middle + 100 :])


def unwritten(path):
    """HDF5 whose second half nobody wrote, as of a job that was ended."""
    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (100, 4, 2), "f4", chunks=(10, 4, 2))
        features[:50] = 1
        file["targets"] = TARGETS


FEATURES = np.ones((100, 4, 2))
TARGETS = np.ones((100, 1))
JULIAN = 2_460_000 + np.arange(800).reshape(100, 4, 2) / 24
PAIRS = "".join(f"a{row}\tb{row}\n" for row in range(60))
TABLES: Files = TABLE["tables"] | {
    "latin": (b"a,b\xff\n1,2\n", "cannot read the file ('utf-8' codec"),
    "open": ('a,b\n1,"2\n3,4\n', "cannot read the file (unexpected end of data): open"),
    "field": (f"a,b\n1,{'9' * 200_000}\n", "cannot read the file (field larger than"),
}
WINDOWS: Files = {
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
    "julian": (hdf5(features=JULIAN, targets=TARGETS), "too coarse for a column: julian: subtract"),
    "target": (hdf5(features=FEATURES, targets=TARGETS * np.inf), "not a finite number: target"),
    "unwritten": (unwritten, "some rows were never written, and would be read as 0: unwritten: "),
    "one": (hdf5(features=FEATURES[:1], targets=TARGETS[:1]), "does not split 1 rows"),
}


def images(**arrays: np.ndarray):
    """An .npz file."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def array(values: np.ndarray) -> bytes:
    """An .npy file."""
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def damaged_image(folder: Path) -> None:
    """A folder of two classes, one of which has a file that is no image."""
    for kind in "ab":
        (folder / kind).mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / kind / "1.png")
    (folder / "b/2.jpg").write_text("no image")


def real_image(folder: Path) -> None:
    """An image of numbers from 0 to 1, which Pillow makes black."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(9):
            Image.new("F", (8, 8), 0.5).save(folder / name / f"{number}.tiff")


def moved_image(folder: Path) -> None:
    """A folder with images, and without a folder for each class."""
    folder.mkdir()
    Image.new("L", (8, 8)).save(folder / "1.png")


def cut_idx(folder: Path) -> None:
    """A folder with a file of MNIST's that ends in its header."""
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0\0")


PIXELS = np.zeros((8, 6, 6), np.uint8)
KINDS = np.arange(8) % 2
# As many labels as images, but of other splits.
MIXED = images(x_train=PIXELS[:5], y_train=KINDS[:6], x_test=PIXELS[:4], y_test=KINDS[:3])
IMAGES: Files = {
    "text": ("no zip", "cannot read the images ("),
    "cut.npz": (images(x=PIXELS, y=KINDS)[:200], "cannot read the images ("),
    "array.npy": (array(PIXELS), "cannot read the images ("),
    "alone.npz": (images(x=PIXELS), "8 images and 0 labels of train"),
    "fewer.npz": (images(x=PIXELS, y=KINDS[:6]), "8 images and 6 labels of train"),
    "mixed.npz": (MIXED, "5 images and 6 labels of train"),
    "one.npz": (images(x=PIXELS, y=0 * KINDS), "8 images and 1 classes: one.npz"),
    "floats.npz": (images(x=PIXELS / 1.0, y=KINDS), "array x is no (N, H, W) or (N, H"),
    "first.npz": (images(x=np.stack([PIXELS] * 3, 1), y=KINDS), "array x is no (N, H, W) or"),
    "mnist": (cut_idx, "cannot read the images (.*mnist: check --data"),
    "real": (real_image, "its pixels have neither 8 nor 16 bits): real/"),
    "damaged": (damaged_image, "cannot read the image (.*2.jpg: remove or replace it"),
    "moved": (moved_image, "0 images and 0 classes: moved: give a folder with a folder"),
}


def stocks():
    files: Files = {
        "table.csv": (STOCK + DAYS, "no .csv or .csv.gz file in the folder: table.csv"),
        "nothing": (Path.mkdir, "no .csv or .csv.gz file in the folder: nothing: check --data"),
        "column": (in_folder(f"{STOCK[:-8]}\n1,1,1,1,1\n"), "no column 'volume': column/A.csv"),
    }
    for name, (rows, reason) in TABLE["files"]["graph"].items():
        files[name] = (in_folder(STOCK + rows), reason)
    for name, (content, reason) in TABLES.items():
        files[name] = (in_folder(content), reason.replace(f": {name}", f": {name}/A.csv"))
    return files


FILES: dict[str, Files] = {
    "timeseries": TABLES | TABLE["files"]["timeseries"],
    "forecast": TABLES | TABLE["files"]["forecast"],
    "tabular": TABLES | TABLE["files"]["tabular"],
    "llm": TABLE["files"]["llm"],
    "seq2seq": TABLE["files"]["seq2seq"]
    | {
        "same": ("a\tb\n" * 50, "--split"),
        "latin": (b"a\tb\xff\n", "not UTF-8 at byte 3: latin: save it as UTF-8"),
        "gzip": (gzip.compress(PAIRS.encode()), "not UTF-8 at byte 1: gzip"),
    },
    "windows": WINDOWS,
    "graph": stocks(),
    "vision": IMAGES,
}


def wrong_words(workload):
    """Of the command line, for any file."""
    words = EVERYWHERE | TABLE["own"][workload]
    data = "--data pairs " if workload == "seq2seq" else ""
    if workload != "llm":
        words |= {f"{data}{split}": reason for split, reason in TABLE["split"].items()}
    is_folder = workload in ("graph", "vision")
    return words | ({} if is_folder else {"--data .": "s a directory"})


def write_files(workload, folder):
    """Write the wrong files of a workload, and return the words that use them."""
    for name, content in TABLE["broken"].items():
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


def outcome(train, words):
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
    wrong = wrong_words(workload) | write_files(workload, tmp_path)

    def try_all(train):
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


@pytest.mark.parametrize("workload", ["tabular", "timeseries", "forecast", "graph"])
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


def quoted(values):
    return "".join(f'{row},"{value}"\n' for row, value in enumerate(values))


def test_numbers_and_times_are_read_in_all_spellings(tmp_path, monkeypatch):
    train = load_script("timeseries", monkeypatch)
    path = tmp_path / "series.csv"

    def read(text):
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

    def classes(*cells):
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


def test_a_folder_whose_name_ends_like_an_image_is_none(tmp_path, monkeypatch):
    train = load_script("vision", monkeypatch)
    for kind in ("cat", "dog.jpg"):
        (tmp_path / kind / "scans.png").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / kind / "scans.png/1.png")
    source = train.read_source(tmp_path)
    assert source.labels == ["cat", "dog.jpg"]
    assert [path.name for path in source.items] == ["1.png", "1.png"]
