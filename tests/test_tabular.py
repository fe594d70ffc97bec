"""The workload `tabular`: what becomes of a CSV file, what the model makes of a batch, real data sets."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from importing import imported
from rendering import REPOSITORY, render
from running import Result, one_error, run
from torch import Tensor

PREPARE = ("prepare", "--input", "table.csv", "--target", "price", "--task", "regression")
SMALL = (
    "--model.width",
    "16",
    "--data.batch_size",
    "8",
    "--training.max_steps",
    "30",
    "--schedule.warmup_steps",
    "5",
)
LOADERS = ("dataloader", "memmap")


def module(name: str):
    return imported(render(workload="tabular"), name)


def prepare(
    folder: Path, content: bytes | str, *flags: str, words: tuple[str, ...] = PREPARE
) -> Result:
    """Writes `table.csv` into the folder and prepares it."""
    content = content.encode() if isinstance(content, str) else content
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.csv").write_bytes(content)
    return run(render(workload="tabular"), *words, *flags, cwd=folder)


def store(folder: Path, data: str = "data"):
    return module("engine.store").Store.open(folder / data)


def contents(folder: Path) -> dict[str, bytes | dict]:
    """Facts, borders and the bytes of every array."""
    opened = store(folder)
    arrays = {name: array.rows().tobytes() for name, array in opened.arrays.items()}
    return {**arrays, "facts": opened.facts, "splits": opened.splits}


def table(count: int = 60, seed: int = 0, **columns: list) -> str:
    """A CSV of size, age, colour and price, some cells of age and colour empty; `columns` replace or add."""
    random = np.random.default_rng(seed)
    size, age = random.normal(100, 20, count), random.normal(2010, 5, count)
    colour = random.choice(["red", "green", "blue"], count)
    price = 3 * size - 10 * (age - 2010) + 50 * (colour == "red") + random.normal(0, 5, count)
    found: dict[str, list] = {
        "size": [f"{value:.3f}" for value in size],
        "age": ["" if row % 10 == 3 else f"{value:.2f}" for row, value in enumerate(age)],
        "colour": ["NA" if row % 10 == 7 else value for row, value in enumerate(colour)],
        "price": [f"{value:.2f}" for value in price],
        **columns,
    }
    return lines(found)


def lines(columns: dict[str, list]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(",".join(map(str, row)) + "\n" for row in [columns, *rows])


def replaced(row: int, column: str, cell: str) -> str:
    """The table with another cell; rows count from 1."""
    rows = [line.split(",") for line in table().splitlines()]
    rows[row][rows[0].index(column)] = cell
    return "\n".join(map(",".join, rows)) + "\n"


KINDS = ["cat"] * 50 + ["dog"] * 10
CLASSES = ("--target", "kind", "--task", "classification")
BAD = {
    "empty": ("", (), ["the file is empty", "table.csv"]),
    "header only": ("size,price\n", (), ["no rows", "table.csv"]),
    "one row": ("size,price\n1,2\n", (), ["no row is left for validation", "1 rows"]),
    "only the target": ("price\n1\n2\n3\n", (), ["no column besides the target"]),
    "missing target column": (
        table().replace("price", "prise"),
        (),
        ["no column 'price'", "did you mean 'prise'"],
    ),
    "not the delimiter": (
        table().replace(",", ";"),
        ("--delimiter", ","),
        ["no commas between the names", "--delimiter ';'"],
    ),
    "two columns of a name": (table().replace("age", "size"), (), ["two columns are named 'size'"]),
    "no name": (table().replace("age", ""), (), ["column 2 has no name", "index=False"]),
    "text in a number": (
        replaced(7, "age", "old"),
        (),
        ["'old' is not a number", "row 7, column 'age'"],
    ),
    "underscore": (replaced(7, "age", "1_0"), (), ["'1_0' is not a number", "row 7, column 'age'"]),
    "underscore among numbers": (
        replaced(7, "size", "1_0"),
        (),
        ["'1_0' is not a number", "row 7"],
    ),
    "nan": (
        replaced(9, "size", "nan"),
        (),
        ["'nan' is not a finite number", "row 9, column 'size'"],
    ),
    "infinity": (
        replaced(9, "size", "-inf"),
        (),
        ["'-inf' is not a finite number", "row 9, column 'size'"],
    ),
    "too large": (
        replaced(9, "size", "1e39"),
        (),
        ["'1e39' is not a finite number", "row 9, column 'size'"],
    ),
    "missing target": (
        replaced(4, "price", ""),
        (),
        ["the target is missing", "row 4, column 'price'", "--drop-missing-targets"],
    ),
    "missing target, no number": (
        replaced(4, "price", "dear"),
        ("--drop-missing-targets",),
        ["'dear' is not a number", "row 4"],
    ),
    "nan as target": (
        replaced(4, "price", "NaN"),
        (),
        ["the target is missing", "row 4, column 'price'"],
    ),
    "text as target": (
        replaced(4, "price", "dear"),
        (),
        ["'dear' is not a number", "row 4", "task classification"],
    ),
    "missing class": (
        replaced(4, "colour", "NA"),
        ("--target", "colour", *CLASSES[2:]),
        ["missing", "row 4"],
    ),
    "one class": (table(kind=["cat"] * 60), CLASSES, ["one class", "column 'kind'"]),
    "class of test rows behind a missing one": (
        table(kind=["cat"] * 20 + [""] + KINDS[21:]),
        (*CLASSES, "--keep-order", "--drop-missing-targets"),
        ["class 'dog' is in no training", "row 51"],
    ),
    "class of test rows": (
        table(kind=KINDS),
        (*CLASSES, "--keep-order"),
        ["class 'dog' is in no training", "row 51"],
    ),
    "nothing in a column": (
        table(extra=[""] * 60),
        (),
        ["no training row has a value", "column 'extra'", "--drop"],
    ),
    "many levels": (
        table(code=[f"x{n}" for n in range(60)]),
        ("--max-levels", "59"),
        ["column 'code'", "--max-levels"],
    ),
    "ragged": (table() + "1,2,red\n", (), ["3 cells where the header has 4", "row 61"]),
    "open quote": (table() + '"1,2,red,4\n', (), ["a quote is opened and never closed", "row 61"]),
    "not UTF-8": (
        table().replace("red", "röd").encode("latin-1"),
        (),
        ["not UTF-8", "--encoding latin-1"],
    ),
    "UTF-16": (table().encode("utf-16"), (), ["UTF-16", "--encoding utf-16"]),
    "cut gzip": (gzip.compress(table().encode())[:-30], (), ["cannot read the file", "Truncated"]),
    "no such file": (table(), ("--input", "other.csv"), ["No such file", "other.csv"]),
    "empty training split": (table(), ("--split", "0,0.5,0.5"), ["no row is left for training"]),
    "empty validation split": (table(), ("--split", "1,0,0"), ["no row is left for validation"]),
    "shares beyond 1": (table(), ("--split", "0.7,0.2,0.2"), ["'0.7,0.2,0.2' splits nothing"]),
    "negative share": (table(), ("--split", "1.5,-0.5,0"), ["splits nothing"]),
    "words": (table(), ("--split", "most,some,few"), ["splits nothing"]),
    "more than there are": (table(), ("--split", "50,10,1"), ["needs 61 rows", "there are 60"]),
    "unknown column to drop": (
        table(),
        ("--drop", "colours"),
        ["no column 'colours'", "did you mean 'colour'"],
    ),
    "dropped target": (table(), ("--drop", "price"), ["the target cannot be dropped"]),
    "negative seed": (table(), ("--seed", "-1"), ["a seed cannot be -1"]),
    "data folder is a file": (
        table(),
        ("--data.path", "table.csv/data"),
        ["cannot write into the folder"],
    ),
    "too large for halves": (
        replaced(60, "size", "1e8"),
        ("--keep-order", "--dtype", "float16"),
        ["too large for float16", "row 60, column 'size'"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    content, flags, parts = BAD[case]
    one_error(prepare(tmp_path, content, *flags), *map(re.escape, parts))
    assert not list(tmp_path.glob("data/*"))
    assert not list(tmp_path.glob("data/.*"))


def test_a_failed_prepare_leaves_the_data_that_were_there(tmp_path: Path) -> None:
    assert prepare(tmp_path, table()).code == 0
    before = contents(tmp_path)
    one_error(prepare(tmp_path, replaced(60, "size", "1e8"), "--keep-order", "--dtype", "float16"))
    assert contents(tmp_path) == before


def test_ways_to_write_the_same_table_make_the_same_data(tmp_path: Path) -> None:
    plain = table()
    quoted = "".join(
        ",".join(f'"{cell}"' for cell in line.split(",")) + "\n" for line in plain.splitlines()
    )
    ways = {
        "plain": plain.encode(),
        "CRLF": plain.replace("\n", "\r\n").encode(),
        "BOM": plain.encode("utf-8-sig"),
        "BOM and CRLF": plain.replace("\n", "\r\n").encode("utf-8-sig"),
        "gzip": gzip.compress(plain.encode()),
        "no last newline": plain.rstrip().encode(),
        "blank lines": ("\n" + plain.replace("\n", "\n\n")).encode(),
        "spaces": plain.replace(",", " , ").encode(),
        "quotes": quoted.encode(),
    }
    for name, content in ways.items():
        assert prepare(tmp_path / name, content).code == 0
    assert prepare(tmp_path / "tab", plain.replace(",", "\t"), "--delimiter", "tab").code == 0
    expected = contents(tmp_path / "plain")
    assert [name for name in [*ways, "tab"] if contents(tmp_path / name) != expected] == []


def test_paths_with_spaces_and_letters_of_all_kinds(tmp_path: Path) -> None:
    folder = tmp_path / "Müller & Söhne 数据"
    folder.mkdir()
    (folder / "größe 1.csv.gz").write_bytes(gzip.compress(table(größe=["1", "2"] * 30).encode()))
    result = run(
        render(workload="tabular"),
        "prepare",
        "--input",
        "größe 1.csv.gz",
        *PREPARE[3:],
        "--data.path",
        "mes données",
        cwd=folder,
    )
    assert result.code == 0, result.err
    assert "größe" in [column["name"] for column in store(folder, "mes données").facts["features"]]


def test_every_row_is_in_one_split_and_whole(tmp_path: Path) -> None:
    columns = {
        "a": list(range(50)),
        "b": [2 * row for row in range(50)],
        "price": [-row for row in range(50)],
    }
    orders = []
    for name, flags in {
        "0": (),
        "again": (),
        "1": ("--seed", "1"),
        "kept": ("--keep-order",),
    }.items():
        assert prepare(tmp_path / name, lines(columns), *flags, "--split", "30,12,5").code == 0
        opened = store(tmp_path / name)
        features, target = (opened.arrays[array].rows() for array in ("features", "target"))
        assert opened.splits == {"train": [0, 30], "validation": [30, 42], "test": [42, 47]}
        np.testing.assert_array_equal(features, np.stack([-target, -2 * target], 1))
        assert len(set(target.tolist())) == 47
        orders.append(features[:, 0].tolist())
    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == list(range(47))


@pytest.mark.parametrize(
    ("split", "count", "expected"),
    [
        ("0.7,0.15,0.15", 442, [310, 66, 66]),
        ("0.8,0.2", 10, [8, 2, 0]),
        ("0.9,0.1,0", 11, [10, 1, 0]),
        ("0.333333,0.333333,0.333334", 100, [33, 34, 33]),
        ("1,1,1", 5, [1, 1, 1]),
        ("0.7,0.15,0.15", 2, [1, 1, 0]),
    ],
)
def test_split_sizes(split: str, count: int, expected: list[int]) -> None:
    sizes = module("prepare.splits").split_sizes(split, count)
    assert sum(sizes) == (count if "." in split else 3)
    assert np.abs(np.subtract(sizes, expected)).max() <= 1
    if count < 100:
        assert sizes == expected


def test_facts_come_from_the_training_rows_alone(tmp_path: Path) -> None:
    clean = [line.split(",") for line in table().splitlines()]
    noisy = [[*row] for row in clean]
    for number, row in enumerate(noisy[43:]):  # 42 rows of 60 train
        row[:] = [f"{1000 * number}", "" if number % 2 else "3", f"colour {number}", "1e6"]
    noisy[43][0] = ""
    for name, rows in {"clean": clean, "noisy": noisy}.items():
        content = "\n".join(map(",".join, rows))
        assert prepare(tmp_path / name, content, "--keep-order").code == 0
    before, after = store(tmp_path / "clean"), store(tmp_path / "noisy")
    assert before.splits["train"] == [0, 42]
    assert before.facts == after.facts
    assert (after.arrays["categories"].rows()[42:] == 0).all()  # values that training has not seen
    size = before.facts["features"][0]
    assert after.arrays["features"].rows()[42, 0] == np.float32(
        size["mean"]
    )  # a gap where training had none


def test_scaler_is_that_of_the_known_training_cells(tmp_path: Path) -> None:
    assert prepare(tmp_path, table(constant=["2015"] * 60), "--keep-order").code == 0
    with open(tmp_path / "table.csv") as file:
        rows = list(csv.DictReader(file))[:42]
    facts = store(tmp_path).facts
    for column in [*facts["features"], facts["target"]]:
        known = np.array([float(row[column["name"]]) for row in rows if row[column["name"]]])
        found = [column[name] for name in ("mean", "std", "missing")]
        expected = [known.mean(), known.std() or 1.0, 42 - len(known)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert [column["name"] for column in facts["features"]] == ["size", "age", "constant"]
    assert facts["categories"] == [{"name": "colour", "values": ["blue", "green", "red"]}]


def test_categories_are_numbered_and_missing_is_zero(tmp_path: Path) -> None:
    codes = [str(row % 12) for row in range(60)]
    assert prepare(tmp_path, table(code=codes), "--category", "code", "--keep-order").code == 0
    opened = store(tmp_path)
    with open(tmp_path / "table.csv") as file:
        rows = list(csv.DictReader(file))
    columns = {column["name"]: ["", *column["values"]] for column in opened.facts["categories"]}
    assert columns["code"] == ["", *map(str, range(12))]  # by number, not by letter
    for place, name in enumerate(columns):
        found = [columns[name][code] for code in opened.arrays["categories"].rows()[:, place]]
        assert found == [row[name].replace("NA", "") for row in rows]


def test_classes_have_names_and_numbers(tmp_path: Path) -> None:
    kinds = [("cat", "dog", "10", "9")[row % 4] for row in range(60)]
    assert prepare(tmp_path, table(kind=kinds), *CLASSES).code == 0
    opened = store(tmp_path)
    target = opened.arrays["target"].rows()
    assert (opened.facts["task"], target.dtype) == ("classification", np.int64)
    assert opened.facts["target"]["classes"] == ["cat", "dog", "9", "10"]
    assert (
        opened.facts["target"]["counts"]
        == np.bincount(target[slice(*opened.splits["train"])]).tolist()
    )
    assert np.bincount(target).tolist() == [15] * 4


def test_classes_of_digits_are_in_the_order_of_numbers_however_long() -> None:
    by_number = module("prepare.rows")._by_number
    values = ["cat", "+3", "-10", "-2", "0", "00", "007", "7", "10", "9", "1.5", "12", "2"]
    expected = sorted(values, key=lambda value: (int(value) if value.isdecimal() else -1, value))
    assert sorted(values, key=by_number) == expected
    assert sorted(["1" * 5000, "9", "a"], key=by_number) == ["a", "9", "1" * 5000]


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_halves_keep_years_apart(tmp_path: Path, dtype: str, digits: float) -> None:
    assert prepare(tmp_path / "full", table()).code == 0
    assert prepare(tmp_path / "half", table(), "--dtype", dtype).code == 0
    full, half = store(tmp_path / "full"), store(tmp_path / "half")
    assert half.facts == full.facts
    assert half.arrays["features"].row_bytes * 2 == full.arrays["features"].row_bytes
    expected, found = batch_of(full, "train"), batch_of(half, "train")
    gaps = expected["features"].isnan()
    assert gaps.any()
    assert torch.equal(found["features"].isnan(), gaps)
    std = torch.tensor([column["std"] for column in full.facts["features"]])
    error = ((found["features"] - expected["features"]) / std)[~gaps].abs()
    assert 0 < error.max() < digits
    assert found["features"].dtype == torch.float32


def settings(**model: float) -> SimpleNamespace:
    sizes = {"width": 16, "depth": 3, "dropout": 0.0, "category_width": 4} | model
    return SimpleNamespace(model=SimpleNamespace(**sizes))


def batch_of(opened, split: str, indices: np.ndarray | None = None) -> dict[str, Tensor]:
    """What a loader gives, read here without one; the whole split without `indices`."""
    seams, samples = module("engine.seams"), module("dataset").Samples(opened, None, split)
    indices = np.arange(len(samples)) if indices is None else indices
    rows = {}
    for name, span in samples.spans(indices, 0).items():
        array = opened.arrays[name]
        values = array.rows()[span.starts][:, None]
        values[span.lengths == 0] = 0
        tensor = torch.from_numpy(values)
        tensor = tensor.view(torch.bfloat16) if array.dtype == "bfloat16" else tensor
        rows[name] = seams.Rows(tensor, torch.from_numpy(span.lengths))
    index = torch.from_numpy(indices)
    return {**samples.batch(rows), "index": index, "present": index >= 0}


@functools.cache
def prepared(task: str, base: Path, *flags: str):
    folder = base / "-".join([task, *flags])
    kinds = [("cat", "dog", "emu")[row % 3] for row in range(60)]
    target = CLASSES if task == "classification" else ()
    assert prepare(folder, table(kind=kinds), *target, *flags).code == 0
    return store(folder)


@pytest.fixture(params=["regression", "classification"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return prepared(request.param, tmp_path_factory.getbasetemp())


def built(opened, **model: float) -> torch.nn.Module:
    torch.manual_seed(0)
    return module("model").build_model(settings(**model), opened.facts)


def gradients(model: torch.nn.Module, *batches: dict[str, Tensor]) -> list[Tensor]:
    """Of loss × weight summed over the batches, divided by all targets."""
    model.zero_grad()
    total = 0.0
    for batch in batches:
        output = model(batch)
        (output.loss * output.weight).backward()
        total += output.weight.item()
    return [parameter.grad / max(total, 1) for parameter in model.parameters()]


def test_filled_rows_contribute_nothing(opened) -> None:
    model = built(opened)
    indices = np.arange(10)
    plain, filled = model(batch_of(opened, "train", indices)), np.array([*indices, *[-1] * 6])
    output = model(batch_of(opened, "train", filled))
    assert output.weight == plain.weight == 10
    torch.testing.assert_close(output.loss, plain.loss)
    both = [gradients(model, batch_of(opened, "train", rows)) for rows in (indices, filled)]
    torch.testing.assert_close(*both)
    nothing = batch_of(opened, "train", np.full(4, -1))
    output = model(nothing)
    assert (output.loss, output.weight) == (0, 0)
    assert all((gradient == 0).all() for gradient in gradients(model, nothing))
    with torch.no_grad():
        metrics = model.eval()(nothing).metrics.values()
    assert all(float(total) == float(count) == 0 for total, count in metrics)


def test_ragged_accumulation_equals_one_batch(opened) -> None:
    model = built(opened)
    whole = gradients(model, batch_of(opened, "train"))
    pieces = [np.arange(0, 17), np.arange(17, 20), np.array([*range(20, 42), -1, -1])]
    parts = gradients(model, *(batch_of(opened, "train", piece) for piece in pieces))
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_training_computes_no_metrics_and_evaluation_the_right_ones(opened) -> None:
    model, batch = built(opened), batch_of(opened, "test")
    assert model(batch).metrics == {}
    model.eval()
    with torch.no_grad():
        output, found = model(batch), model.predict(batch)
    metrics = {name: float(total) / float(count) for name, (total, count) in output.metrics.items()}
    prediction, target = found["prediction"].numpy(), batch["target"].numpy()
    if opened.facts["task"] == "regression":
        error, std = prediction.astype(np.float64) - target, opened.facts["target"]["std"]
        expected = {"mse_original": np.mean(error**2), "mae_original": np.mean(np.abs(error))}
        expected |= {
            "mse": expected["mse_original"] / std**2,
            "mae": expected["mae_original"] / std,
        }
    else:
        probability = found["probability"].numpy()
        np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-5)
        expected = {"accuracy": np.mean(prediction == target)}
        expected["log_loss"] = -np.log(probability[np.arange(len(target)), target]).mean()
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4), name
    assert float(output.loss) == pytest.approx(
        expected.get("mse", expected.get("log_loss")), rel=1e-4
    )


def test_baselines_and_finished_metrics(opened) -> None:
    dataset = module("dataset")
    found = dataset.baselines(opened, None, "validation")
    first, last = opened.splits["validation"]
    target = opened.arrays["target"].rows()[first:last].astype(np.float64)
    if opened.facts["task"] == "classification":
        shares = np.array(opened.facts["target"]["counts"]) / sum(opened.facts["target"]["counts"])
        assert found["majority"]["accuracy"] == np.mean(target == shares.argmax())
        assert found["majority"]["log_loss"] == pytest.approx(
            -np.log(shares[target.astype(int)]).mean()
        )
        assert dataset.finish({"accuracy": 0.5}, opened, "validation") == {"accuracy": 0.5}
        return
    model, batch = built(opened).eval(), batch_of(opened, "validation")
    with torch.no_grad():
        sums, prediction = model(batch).metrics, model.predict(batch)["prediction"].numpy()
    metrics = {name: float(total) / float(count) for name, (total, count) in sums.items()}
    assert found["mean"].keys() == dataset.finish(metrics, opened, "validation").keys()
    assert found["mean"]["mse_original"] == pytest.approx(
        np.mean((target - opened.facts["target"]["mean"]) ** 2)
    )
    from sklearn.metrics import r2_score

    r2 = dataset.finish(metrics, opened, "validation")["r2"]
    assert r2 == pytest.approx(r2_score(target, prediction), rel=1e-4)


def test_a_missing_number_is_the_mean_and_says_so(opened) -> None:
    model, batch = built(opened).eval(), batch_of(opened, "train")
    place = [column["name"] for column in opened.facts["features"]].index("age")
    mean = torch.tensor(opened.facts["features"][place]["mean"])
    filled = batch | {"features": batch["features"].nan_to_num(float(mean))}
    rows = batch["features"][:, place].isnan()
    assert 0 < rows.sum() < len(rows)

    def outputs(batch: dict[str, Tensor]) -> Tensor:
        return model.outputs(batch).detach()

    assert (outputs(batch)[rows] != outputs(filled)[rows]).all()
    assert torch.equal(outputs(batch)[~rows], outputs(filled)[~rows])
    with torch.no_grad():
        model.first.weight[:, 0] = 0  # the input that says so
    torch.testing.assert_close(outputs(batch), outputs(filled))


def test_unknown_categories_start_at_zero(opened) -> None:
    model = built(opened)
    assert (model.embedding.weight[model.offsets] == 0).all()
    assert len(model.embedding.weight) == sum(
        len(column["values"]) + 1 for column in opened.facts["categories"]
    )


def test_the_scaler_travels_with_the_weights(opened) -> None:
    model, other = built(opened).eval(), built(opened).eval()
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(model.state_dict())
    batch = batch_of(opened, "test")
    torch.testing.assert_close(other.predict(batch), model.predict(batch), rtol=0, atol=0)


def test_losses_are_float32_under_autocast(opened) -> None:
    model, batch = built(opened), batch_of(opened, "train")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, raw = model(batch), model.outputs(batch)
    assert output.loss.dtype == output.weight.dtype == raw.dtype == torch.float32


def test_blocks_are_classes_of_the_project() -> None:
    facts = {"task": "regression", "target": {"mean": 0.0, "std": 1.0}, "categories": []}
    facts["features"] = [{"name": "x", "mean": 0.0, "std": 1.0, "missing": 0}]
    build, block = module("model").build_model, module("model").Block
    for depth in (1, 2, 5):
        blocks = build(settings(depth=depth), facts).blocks()
        assert len(blocks) == depth - 1
        assert all(type(each) is block for each in blocks)


def test_only_categories_is_a_table_too(tmp_path: Path) -> None:
    columns = {"a": ["x", "y"] * 20, "b": ["p", "q", "", "r"] * 10, "price": list(range(40))}
    assert prepare(tmp_path, lines(columns)).code == 0
    for loader in LOADERS:
        result = run(render(workload="tabular", loader=loader), "train", *SMALL, cwd=tmp_path)
        assert result.code == 0, result.err


def test_synthetic_data_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        module("dataset").synthesize(tmp_path / name, None)
        time.sleep(1.1)  # HDF5 can keep times, in seconds
    assert contents_of(tmp_path / "a") == contents_of(tmp_path / "b")
    opened = module("engine.store").Store.open(tmp_path / "a")
    assert opened.facts["categories"]
    assert any(column["missing"] for column in opened.facts["features"])
    assert sum(last - first for first, last in opened.splits.values()) == 20_000


def contents_of(folder: Path) -> str:
    return module("engine.store").Store.open(folder).fingerprint


def trained(folder: Path, project: Path, content: str, *flags: str) -> None:
    result = prepare(folder, content, *flags)
    assert result.code == 0, result.err
    result = run(project, "train", *SMALL, cwd=folder)
    assert result.code == 0, result.err


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.first(2)
def test_predictions_of_new_rows_equal_those_of_the_split(
    tmp_path: Path, loader: str, dtype: str
) -> None:
    project = render(workload="tabular", loader=loader)
    trained(tmp_path, project, table(), "--keep-order", "--dtype", dtype)
    header, *rows = table().splitlines()
    order = [3, 2, 1, 0]  # other columns' order, a column more; the target may be there or not
    new = [
        "id," + ",".join(line.split(",")[place] for place in order) for line in [header, *rows[-9:]]
    ]
    (tmp_path / "new.csv").write_text("\n".join(new))
    (tmp_path / "no target.csv").write_text(
        "\n".join(",".join(line.split(",")[:3]) for line in [header, *rows[-9:]])
    )
    found = []
    for flags in (
        (),
        ("--input", "new.csv"),
        ("--input", "no target.csv"),
        ("--input", "new.csv", "--run", ""),
    ):
        if "--run" in flags:
            (tmp_path / "data").rename(tmp_path / "away")  # the run folder is enough for new rows
        result = run(project, "predict", *flags, "--output", "p.npz", cwd=tmp_path)
        assert result.code == 0, result.err
        with np.load(tmp_path / "p.npz") as file:
            found.append(dict(file))
    assert found[0].keys() == {"prediction", "target"}
    np.testing.assert_allclose(
        found[0]["target"], [float(row.split(",")[-1]) for row in rows[-9:]], rtol=1e-6
    )
    for other in found[1:]:
        np.testing.assert_array_equal(other["prediction"], found[0]["prediction"])
    one_error(run(project, "predict", "--output", "p.npz", cwd=tmp_path), "no prepared data")
    (tmp_path / "away").rename(tmp_path / "data")
    assert run(project, "predict", "--split", "train", "--output", "p.npz", cwd=tmp_path).code == 0
    with np.load(tmp_path / "p.npz") as file:  # more batches than a loader has buffers
        np.testing.assert_allclose(
            file["target"], [float(row.split(",")[-1]) for row in rows[:42]], rtol=1e-6
        )
    assert run(project, "predict", "--output", "p.csv", cwd=tmp_path).code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["row"]) for line in lines] == list(range(1, 10))
    np.testing.assert_array_equal(
        np.float32([line["prediction"] for line in lines]), found[0]["prediction"]
    )


def test_predictions_of_classes_have_names_and_probabilities(tmp_path: Path) -> None:
    kinds = ["cat" if row % 3 else "emu" for row in range(60)]
    project = render(workload="tabular")
    trained(tmp_path, project, table(kind=kinds), *CLASSES, "--keep-order")
    (tmp_path / "new.csv").write_text(replaced(2, "colour", "pink"))
    result = run(project, "predict", "--input", "new.csv", "--output", "p.csv", cwd=tmp_path)
    assert result.code == 0, result.err
    assert "such as 'pink'" in result.out
    with open(tmp_path / "p.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["row", "prediction", "probability of cat", "probability of emu"]
    for line in lines:
        shares = {name: float(line[f"probability of {name}"]) for name in ("cat", "emu")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert line["prediction"] == max(shares, key=shares.get)
    assert run(project, "predict", "--output", "p.npz", cwd=tmp_path).code == 0
    with np.load(tmp_path / "p.npz") as file:
        assert file["probability"].shape == (9, 2)
        assert file["classes"].tolist() == ["cat", "emu"]


def test_bad_predictions_are_one_line(tmp_path: Path) -> None:
    project = render(workload="tabular")
    one_error(run(project, "predict", cwd=tmp_path), "no run")
    trained(tmp_path, project, table())
    files = {"text.csv": replaced(5, "age", "old"), "less.csv": table().replace("age", "years")}
    files["none.csv"] = "size,age,colour"
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    before = sorted(tmp_path.rglob("*"))
    bad = [
        (("--input", "text.csv"), "row 5, column 'age'"),
        (("--input", "less.csv"), "no column 'age'"),
        (("--input", "none.csv"), "no rows"),
        (("--input", "absent.csv"), "No such file"),
        (("--output", "p.txt"), "use .npz or .csv"),
        (("--output", "absent/p.csv"), "no such folder"),
        (("--split", "tests"), "invalid choice: .tests"),
    ]
    for flags, part in bad:
        one_error(run(project, "predict", *flags, cwd=tmp_path), part)
    assert sorted(tmp_path.rglob("*")) == before


def test_trains_on_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert prepare(tmp_path, table()).code == 0
    before = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    for path in data.iterdir():
        path.chmod(0o444)
    data.chmod(0o555)
    try:
        for loader in LOADERS:
            result = run(render(workload="tabular", loader=loader), "train", *SMALL, cwd=tmp_path)
            assert result.code == 0, result.err
            assert (
                run(render(workload="tabular", loader=loader), "evaluate", cwd=tmp_path).code == 0
            )
    finally:
        data.chmod(0o755)
    after = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    after.pop("verified.json", None)  # root may write anywhere; what was prepared is as it was
    assert after == before


def test_learns_what_the_columns_say_and_nothing_from_shuffled_targets(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    honest = [line.split(",") for line in table(400).splitlines()]
    shuffled = [[*row] for row in honest]
    for row, other in zip(shuffled[1:], random.permutation(400), strict=True):
        row[3] = honest[1 + other][3]
    r2 = {}
    for name, rows in {"honest": honest, "shuffled": shuffled}.items():
        trained_on = "\n".join(map(",".join, rows))
        assert prepare(tmp_path / name, trained_on).code == 0
        assert (
            run(
                render(workload="tabular"), "train", "--training.epochs", "20", cwd=tmp_path / name
            ).code
            == 0
        )
        r2[name] = evaluation(tmp_path / name)["metrics"]["r2"]
    assert r2["honest"] > 0.9
    assert r2["shuffled"] < 0.2


def evaluation(folder: Path) -> dict:
    result = run(render(workload="tabular"), "evaluate", cwd=folder)
    assert result.code == 0, result.err
    newest = max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    return json.loads((newest / "evaluation.json").read_text())


DOCUMENT = REPOSITORY / "docs/tabular.md"
SEEDS = (42, 43, 44)


def documented(kind: str) -> str:
    return re.search(rf"```{kind}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[1]


def commands() -> dict[str, list[str]]:
    """The documented commands by verb, their words after `python -m my_training`."""
    words = [line.split()[3:] for line in documented("sh").splitlines()]
    return {line[0]: line for line in words}


def scikit_learn(opened, estimator) -> list[float]:
    """Test scores of five seeds on the very rows of a store."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    parts = {}
    for name, (first, last) in opened.splits.items():
        parts[name] = [
            np.asarray(opened.arrays[array].rows()[first:last]) for array in ("features", "target")
        ]
    scores = []
    for seed in range(5):
        model = make_pipeline(StandardScaler(), estimator(seed)).fit(*parts["train"])
        prediction, target = model.predict(parts["test"][0]), parts["test"][1]
        right = opened.facts["task"] == "classification"
        scores.append(
            np.mean(prediction == target) if right else np.mean((prediction - target) ** 2)
        )
    return scores


@pytest.mark.full
def test_documented_example_is_as_good_as_scikit_learn(tmp_path: Path) -> None:
    from sklearn.neural_network import MLPRegressor

    subprocess.run([sys.executable, "-c", documented("python")], cwd=tmp_path, check=True)
    assert len(documented("python").splitlines()) == 3
    found = []
    verbs = commands()
    assert list(verbs) == ["prepare", "train", "evaluate", "predict"]
    assert verbs["evaluate"] == ["evaluate"]  # what evaluation() runs
    assert run(render(workload="tabular"), *verbs["prepare"], cwd=tmp_path).code == 0
    for seed in SEEDS:
        assert (
            run(
                render(workload="tabular"),
                *verbs["train"],
                "--reproducibility.seed",
                str(seed),
                cwd=tmp_path,
            ).code
            == 0
        )
        found.append(evaluation(tmp_path))
    assert run(render(workload="tabular"), *verbs["predict"], cwd=tmp_path).code == 0
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 443
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1,000 iterations nearly converge
        scores = scikit_learn(
            store(tmp_path), lambda seed: MLPRegressor(max_iter=1000, random_state=seed)
        )
    theirs = np.mean(scores)
    ours = np.mean([result["metrics"]["mse_original"] for result in found])
    mean = found[0]["baselines"]["mean"]["mse_original"]
    print(f"ours {ours:.0f}, scikit-learn {theirs:.0f}, mean {mean:.0f}")
    first, last = store(tmp_path).splits["test"]
    assert f"on the {last - first} test rows" in DOCUMENT.read_text(encoding="utf-8")
    figures = re.findall(
        r"^\| .+ \| (\d+) \|$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert [round(mean), round(theirs), round(ours)] == pytest.approx(
        [int(figure) for figure in figures], rel=0.02
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unfinished = scikit_learn(store(tmp_path), lambda seed: MLPRegressor(random_state=seed))
    assert np.mean(unfinished) > mean  # of 200 iterations
    assert ours <= 1.05 * theirs
    assert ours < 0.8 * mean


def test_wine_is_told_apart_as_well_as_by_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_wine
    from sklearn.neural_network import MLPClassifier

    data = load_wine()
    names = [f"cultivar {number}" for number in data.target]
    columns = dict(zip(data.feature_names, data.data.T.tolist(), strict=True))
    words = (
        *PREPARE[:3],
        "--target",
        "cultivar",
        "--task",
        "classification",
        "--split",
        "0.6,0.15,0.25",
    )
    assert prepare(tmp_path, lines({**columns, "cultivar": names}), words=words).code == 0
    found = []
    for seed in SEEDS:
        words = commands()["train"]
        assert (
            run(
                render(workload="tabular"),
                *words,
                "--reproducibility.seed",
                str(seed),
                cwd=tmp_path,
            ).code
            == 0
        )
        found.append(evaluation(tmp_path)["metrics"]["accuracy"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 200 iterations do not converge
        theirs = np.mean(
            scikit_learn(store(tmp_path), lambda seed: MLPClassifier(random_state=seed))
        )
    print(f"ours {np.mean(found):.3f}, scikit-learn {theirs:.3f}")
    first, last = store(tmp_path).splits["test"]
    said = f"({np.mean(found):.2f} and {theirs:.2f} on {last - first} test rows)"
    assert said in DOCUMENT.read_text(encoding="utf-8")
    assert np.mean(found) >= 0.95 * theirs
