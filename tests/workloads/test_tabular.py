"""The workload `tabular`: what becomes of a table, what the model makes of a batch, real data
sets."""

import csv
import functools
import json
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_up import ROWS, columns, lines, prepare, prepared, store, written
from pyarrow.csv import read_csv
from rendering import REPOSITORY
from running import EXAMPLES, newest_run, one_error
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    mean_absolute_error,
    mean_squared_error,
    roc_auc_score,
)
from torch.nn.functional import nll_loss
from workload import Workload

SMALL = (
    *("--model.width", "16", "--data.batch_size", "8"),
    *("--training.max_steps", "30", "--schedule.warmup_steps", "5"),
)
CLASSES = "--target kind --task classification"
KINDS = ["cat", "dog", "emu", "10", "9"] * 40


TABLES = Workload("tabular")
module = TABLES.module


def done(folder, *words):
    return TABLES.done(*words, cwd=folder).out


def table(**others):
    """A table in which some cells of `age` and `colour` are empty."""
    made = columns()
    made["age"] = ["" if row % 10 == 3 else age for row, age in enumerate(made["age"])]
    made["colour"] = ["NA" if row % 10 == 7 else name for row, name in enumerate(made["colour"])]
    return made | others


# ---- prepare -------------------------------------------------------------------------------------


def test_copies_in_several_splits_are_counted(tmp_path):
    """Of whole rows, also of those with gaps; another target makes another row."""
    made = table()
    made["age"] = [*made["age"][:-1], ""]
    flags = "--keep-order --split 0.7,0.15,0.15"
    assert "copies" not in prepared(tmp_path, "tabular", lines(made), flags).out
    rows = len(made["age"])
    last = range(rows - 3, rows)
    for name, cells in made.items():
        made[name] = [*(cells[row] for row in last), *cells[3:]]
    made["price"][0] = 1e6
    out = prepared(tmp_path, "tabular", lines(made), flags).out
    assert "note: 2 rows of test are copies of rows in an earlier split" in out
    assert "rows of validation are copies" not in out
    made = {name: cells[:20] * (rows // 20) for name, cells in made.items()}
    out = prepared(tmp_path, "tabular", lines(made), "").out
    for name in ("validation", "test"):
        assert f"rows of {name} are copies" in out


def test_every_row_is_in_one_split_and_whole(tmp_path):
    rows = np.arange(50)
    made = lines({"a": rows.tolist(), "b": (2 * rows).tolist(), "price": (-rows).tolist()})
    orders = {}
    for flags in ("", "--seed 0", "--seed 1", "--keep-order"):
        prepared(tmp_path, "tabular", made, f"{flags} --split 30,12,5")
        opened = store(tmp_path, "tabular")
        features = opened.arrays["features"].rows()
        target = opened.arrays["target"].rows()
        assert opened.splits == {"train": [0, 30], "validation": [30, 42], "test": [42, 47]}
        np.testing.assert_array_equal(features, np.stack([-target, -2 * target], 1))
        assert len(set(target.tolist())) == 47
        orders[flags] = features[:, 0].tolist()
    assert orders[""] == orders["--seed 0"] != orders["--seed 1"]
    assert orders["--keep-order"] == list(range(47))


def split_columns(opened, made):
    """The cells of a table by split, by the rows in the store."""
    rows = opened.arrays["row"].rows()
    return {
        name: {column: np.array(cells)[rows[first:last]] for column, cells in made.items()}
        for name, (first, last) in opened.splits.items()
    }


def test_each_split_has_its_fraction_of_each_class(tmp_path):
    """Also of rare ones; a class of one row trains. In order, rows stay where they are."""
    kinds = ["once"] + ["often"] * 400 + ["seldom"] * 20 + ["rare"] * 4
    made = {"a": list(range(425)), "kind": kinds}
    orders = {}
    for flags in ("", "--seed 3", "--keep-order"):
        if flags == "--keep-order":
            made["kind"] = kinds[::2] + kinds[1::2]
        prepared(tmp_path, "tabular", lines(made), f"{CLASSES} {flags}")
        opened = store(tmp_path, "tabular")
        orders[flags] = opened.arrays["row"].rows().tolist()
        if flags == "--keep-order":
            continue
        splits = split_columns(opened, made)
        assert [len(columns["a"]) for columns in splits.values()] == [298, 63, 64]
        for kind, count in (("often", 400), ("seldom", 20), ("rare", 4), ("once", 1)):
            of_kind = [int((columns["kind"] == kind).sum()) for columns in splits.values()]
            expected = count * np.array([0.7, 0.15, 0.15])
            assert of_kind == pytest.approx(expected, abs=1), kind
        assert (splits["train"]["kind"] == "once").any()
    assert sorted(orders[""]) == sorted(orders["--seed 3"]) == orders["--keep-order"]
    assert orders[""] != orders["--seed 3"]


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("flags", ["", "--keep-order", "--split 500,70,30"])
def test_a_group_is_in_one_split_and_no_feature(task, flags, tmp_path):
    """Of sizes from 1 to 60; what is noise in the rows of other splits changes no fact."""
    random = np.random.default_rng(1)
    sizes = random.integers(1, 60, 40)
    customers = random.permutation(np.arange(40).repeat(sizes))
    count = len(customers)
    kinds = np.where(random.random(count) < 0.06, "left", "stayed")
    made = {
        "a": random.normal(size=count).round(4).tolist(),
        "customer": [f"customer {number}" for number in customers],
        "price": random.normal(size=count).round(4).tolist(),
        "kind": kinds.tolist(),
    }
    target = "--target kind --task classification" if task == "classification" else ""
    flags = f"--group customer {target} {flags}"
    prepared(tmp_path / "clean", "tabular", lines(made), flags)
    opened = store(tmp_path / "clean", "tabular")
    splits = split_columns(opened, made)
    names = [set(columns["customer"].tolist()) for columns in splits.values()]
    assert all(names)
    assert sum(map(len, names)) == len(set().union(*names))
    if "500" not in flags:
        assert set().union(*names) == set(made["customer"])
        fractions = [len(columns["a"]) / count for columns in splits.values()]
        assert fractions == pytest.approx([0.7, 0.15, 0.15], abs=0.04)
        if task == "classification" and "order" not in flags:
            shares = [(columns["kind"] == "left").mean() for columns in splits.values()]
            assert min(shares) > 0.02
    known = [column["name"] for name in ("features", "categories") for column in opened.facts[name]]
    assert "customer" not in known

    noisy = {name: list(cells) for name, cells in made.items()}
    for row, name in enumerate(made["customer"]):
        if name not in names[0]:
            noisy["a"][row] = 1e5 + row
            if task == "regression":
                noisy["price"][row] = 1e6
                noisy["kind"][row] = f"kind {row}"
    prepared(tmp_path / "noisy", "tabular", lines(noisy), flags)
    assert store(tmp_path / "noisy", "tabular").facts == opened.facts


def test_few_groups_are_enough_for_the_splits_or_one_line(tmp_path):
    made = {"a": list(range(40)), "site": ["x", "y", "z", "y"] * 10, "price": list(range(40))}
    prepared(tmp_path, "tabular", lines(made), "--group site")
    sites = split_columns(store(tmp_path, "tabular"), made)
    assert sorted(len(set(columns["site"])) for columns in sites.values()) == [1, 1, 1]
    prepared(tmp_path, "tabular", lines(made), "--group site --split 0.9,0.1")
    sites = split_columns(store(tmp_path, "tabular"), made)
    assert [len(set(columns["site"])) for columns in sites.values()] == [2, 1, 0]

    two = written(tmp_path, lines(made | {"site": ["x", "y"] * 20}), "two.csv")
    gap = written(tmp_path, lines(made | {"site": [*["x", "y", "z", "v"] * 9, "x", "", "x", "y"]}))
    before = store(tmp_path, "tabular").fingerprint
    other_use = "an id, a group or a time has no other use"
    for path, flags, says in (
        (
            two,
            "--group site",
            "2 groups or times are too few for 3 splits: --group, .*: name another",
        ),
        (gap, "--group site", "the group is missing: row 38, column 'site': fill it in"),
        (two, "--group price", f"{other_use}: column 'price': name it in one flag only"),
        (two, "--group site --category site", f"{other_use}: column 'site'"),
        (two, "--group site --drop site", f"{other_use}: column 'site'"),
        (two, "--group site --id site", f"{other_use}: column 'site'"),
        (two, "--id price", f"{other_use}: column 'price'"),
        (two, "--split-by time --time-column price", f"{other_use}: column 'price'"),
        (two, "--group sites", "no column 'sites': two.csv: did you mean one of site"),
    ):
        one_error(prepare(tmp_path, "tabular", path, flags), says)
        assert store(tmp_path, "tabular").fingerprint == before, "the earlier data stay"


def test_a_model_of_groups_predicts_new_rows_without_the_group(tmp_path):
    made = table(customer=[f"c{row % 31}" for row in range(ROWS)])
    prepared(tmp_path, "tabular", lines(made), "--group customer")
    done(tmp_path, "train", *SMALL)
    whole = TABLES.predicted(tmp_path)
    rows = [row - 1 for row in whole["row"].tolist()]
    fewer = {name: [cells[row] for row in rows] for name, cells in table().items()}
    written(tmp_path, lines(fewer), "new.csv")
    new = TABLES.predicted(tmp_path, "--input", "new.csv")
    np.testing.assert_array_equal(new["prediction"], whole["prediction"])


@pytest.mark.parametrize(
    ("split", "count", "expected"),
    [
        ("0.7,0.15,0.15", 442, [309, 67, 66]),
        ("0.8,0.2", 10, [8, 2, 0]),
        ("0.9,0.1,0", 11, [10, 1, 0]),
        ("1,1,1", 5, [1, 1, 1]),
        ("0.7,0.15,0.15", 2, [1, 1, 0]),
    ],
)
def test_split_sizes(split, count, expected):
    assert module("prepare.splits").split_sizes(split, count) == expected


def test_facts_come_from_the_training_rows_alone(tmp_path):
    noisy = table()
    for row in range(140, ROWS):  # 140 rows of 200 train
        for name, cell in (("size", 1000 * row), ("age", 3), ("colour", "x"), ("price", 1e6)):
            noisy[name][row] = cell
    noisy["size"][140] = ""
    for name, made in (("clean", table()), ("noisy", noisy)):
        prepared(tmp_path / name, "tabular", lines(made), "--keep-order")
    after = store(tmp_path / "noisy", "tabular")
    assert after.splits["train"] == [0, 140]
    assert after.facts == store(tmp_path / "clean", "tabular").facts
    assert (after.arrays["categories"].rows()[140:] == 0).all()  # training has not seen the value
    mean = after.facts["features"][0]["mean"]  # in place of a gap where training had none
    assert after.arrays["features"].rows()[140, 0] == np.float32(mean)


def test_scales_and_categories_are_those_of_the_cells(tmp_path):
    made = table(code=[str(row % 12) for row in range(ROWS)], constant=[2015] * ROWS)
    prepared(tmp_path, "tabular", lines(made), "--category code --keep-order")
    opened = store(tmp_path, "tabular")
    features = opened.facts["features"]
    assert [column["name"] for column in features] == ["size", "age", "constant"]
    for column in [*features, opened.facts["target"]]:
        known = np.array([cell for cell in made[column["name"]][:140] if cell != ""], float)
        expected = [known.mean(), known.std() or 1.0, 140 - len(known)]
        actual = [column[name] for name in ("mean", "std", "missing")]
        np.testing.assert_allclose(actual, expected, rtol=1e-6)

    colour, code = opened.facts["categories"]
    assert colour["values"] == ["blue", "green", "red"]
    assert code["values"] == [str(number) for number in range(12)]  # by number, not by letter
    for column, codes in zip((colour, code), opened.arrays["categories"].rows().T, strict=True):
        names = ["NA", *column["values"]]
        assert [names[number] for number in codes] == made[column["name"]]


def test_classes_have_names_and_numbers(tmp_path):
    prepared(tmp_path, "tabular", lines(table(kind=KINDS)), f"{CLASSES} --keep-order")
    opened = store(tmp_path, "tabular")
    target = opened.arrays["target"].rows()
    classes = opened.facts["target"]["classes"]
    assert classes == ["cat", "dog", "emu", "9", "10"]
    assert [classes[number] for number in target] == KINDS
    assert opened.facts["target"]["counts"] == np.bincount(target[:140]).tolist()


# ---- the model -----------------------------------------------------------------------------------


def batch_of(opened, split):
    """The whole split in one batch."""
    first, last = opened.splits[split]
    (batch,) = TABLES.batches(opened, split, "--data.batch_size", str(last - first))
    return batch


@functools.cache
def example(task, base):
    folder = base / task
    flags = CLASSES if task == "classification" else ""
    prepared(folder, "tabular", lines(table(kind=KINDS)), flags)
    return store(folder, "tabular")


@pytest.fixture(params=["regression", "classification"])
def opened(request, tmp_path_factory):
    return example(request.param, tmp_path_factory.getbasetemp())


def built(opened, **model):
    sizes = {"width": 16, "depth": 3, "dropout": 0.0, "category_width": 4} | model
    torch.manual_seed(0)
    data = SimpleNamespace(balance="none")
    settings = SimpleNamespace(model=SimpleNamespace(**sizes), data=data)
    return module("model").build_model(settings, opened.facts)


def test_metrics_are_those_of_the_predictions(opened):
    model = built(opened).eval()
    batch = batch_of(opened, "test")
    with torch.no_grad():
        output = model(batch)
        predicted = model.predict(batch)
    metrics = {name: float(total) / float(count) for name, (total, count) in output.metrics.items()}
    if "mean" in opened.facts["target"]:
        std = opened.facts["target"]["std"]
        mse = mean_squared_error(batch["target"], predicted["prediction"])
        mae = mean_absolute_error(batch["target"], predicted["prediction"])
        loss = mse / std**2
        expected = {"mse_original": mse, "mae_original": mae, "mse": loss, "mae": mae / std}
    else:
        loss = float(nll_loss(predicted["probability"].log(), batch["target"]))
        accuracy = accuracy_score(batch["target"], predicted["prediction"])
        expected = {"accuracy": accuracy, "log_loss": loss}
    assert metrics == pytest.approx(expected, rel=1e-4)
    assert float(output.loss) == pytest.approx(loss, rel=1e-4)
    finished = module("dataset").finish(metrics, opened, "test", {})
    if "mse_original" in metrics:
        r2 = 1 - metrics["mse_original"] / batch["target"].double().numpy().var()
        assert finished.pop("r2") == pytest.approx(r2)
    assert finished == metrics


def class_sums(logits, target, batch_size=700):
    """What an evaluation adds up, with padding in the last batch."""
    added = module("engine.training.evaluation").added
    sums = {}
    for start in range(0, len(logits) + 1, batch_size):
        rows = torch.arange(start, start + batch_size)
        present = rows < len(logits)
        rows = rows * present
        counts = module("classes").sum_by_class(logits[rows], target[rows] * present, present)
        sums = {name: sums.get(name, 0) + added(groups) for name, groups in counts.items()}
    return sums


@pytest.mark.parametrize(
    ("num_classes", "count", "spread", "shift"),
    [(2, 9000, 1, 0), (2, 4000, 3, -6), (2, 300, 1, -4), (3, 2000, 1, 9), (12, 4000, 2, 0)],
    ids=["two", "rare", "few rows", "sure", "many"],
)
def test_metrics_of_classes_are_those_of_scikit_learn(num_classes, count, spread, shift):
    """Areas from histograms are off by less than 0.001; of two classes, the second is meant."""
    random = torch.Generator().manual_seed(count)
    noise = torch.randn(count, num_classes, generator=random)
    truth = noise + 1.5 * torch.randn(count, num_classes, generator=random)
    truth[:, 1] += min(shift, 0) / 2
    target = truth.argmax(1)
    logits = spread * noise
    logits[:, 1] += shift
    metrics = module("classes").overall(class_sums(logits, target))
    scores = logits.double().softmax(1).numpy()
    is_class = np.eye(num_classes)[target]
    if num_classes == 2:
        scores = scores[:, 1]
        is_class = is_class[:, 1]
    expected = {
        "balanced_accuracy": balanced_accuracy_score(target, logits.argmax(1)),
        "roc_auc": roc_auc_score(is_class, scores),
        "pr_auc": average_precision_score(is_class, scores),
    }
    assert metrics == pytest.approx(expected, abs=1e-3)


def test_equal_scores_are_one_threshold_and_an_absent_class_is_no_number():
    levels = torch.arange(6).repeat(50)
    target = (torch.arange(300) % 7 < levels).long()
    logits = torch.stack([torch.zeros(300), levels - 2.5], 1)
    metrics = module("classes").overall(class_sums(logits, target))
    assert metrics["roc_auc"] == pytest.approx(roc_auc_score(target, levels), abs=1e-9)
    expected = average_precision_score(target, levels)
    assert metrics["pr_auc"] == pytest.approx(expected, abs=1e-9)
    three = torch.cat([logits, torch.full((300, 1), -9.0)], 1)  # no row of the third
    sums = class_sums(three, target)
    of_class = module("classes").by_class(sums)
    without = [name for name, values in of_class.items() if values[2].isnan()]
    assert without == ["recall", "roc_auc", "pr_auc"]
    recalls = of_class["recall"][:2].mean()
    assert module("classes").overall(sums)["balanced_accuracy"] == pytest.approx(float(recalls))


def test_a_missing_number_is_the_mean_and_is_marked(opened):
    model = built(opened).eval()
    batch = batch_of(opened, "train")
    place = [column["name"] for column in opened.facts["features"]].index("age")
    mean = opened.facts["features"][place]["mean"]
    filled = batch | {"features": batch["features"].nan_to_num(mean)}
    rows = batch["features"][:, place].isnan()
    assert 0 < rows.sum() < len(rows)

    def outputs(batch):
        return model.outputs(batch).detach()

    assert (outputs(batch)[rows] != outputs(filled)[rows]).all()
    assert torch.equal(outputs(batch)[~rows], outputs(filled)[~rows])
    with torch.no_grad():
        model.first.weight[:, 0] = 0  # the input that marks a gap
    torch.testing.assert_close(outputs(batch), outputs(filled))


def test_unknown_categories_start_at_zero(opened):
    model = built(opened)
    assert (model.embedding.weight[model.offsets] == 0).all()


def test_losses_are_float32_under_autocast(opened):
    model = built(opened)
    batch = batch_of(opened, "train")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
        raw = model.outputs(batch)
    assert output.loss.dtype == output.total_weight.dtype == raw.dtype == torch.float32


# ---- training ------------------------------------------------------------------------------------


def test_only_categories_is_a_table_too(tmp_path):
    made = {"a": ["x", "y"] * 20, "b": ["p", "q", "", "r"] * 10, "price": list(range(40))}
    prepared(tmp_path, "tabular", lines(made))
    done(tmp_path, "train", *SMALL)
    done(tmp_path, "evaluate")


def test_predictions_of_new_rows_equal_those_of_the_split(tmp_path):
    made = table()
    prepared(tmp_path, "tabular", lines(made), "--keep-order")
    done(tmp_path, "train", *SMALL)
    whole = TABLES.predicted(tmp_path)
    np.testing.assert_allclose(whole["target"], made["price"][-30:], rtol=1e-6)
    assert whole["row"].tolist() == list(range(171, 201))

    # Other columns' order and one more; the target may be there or not. The run folder is enough.
    (tmp_path / "data").rename(tmp_path / "away")
    last = {name: cells[-30:] for name, cells in made.items()}
    reordered = {"id": range(30)} | dict(reversed(last.items()))
    written(tmp_path, lines(reordered), "new.csv")
    written(tmp_path, lines({name: last[name] for name in ("size", "age", "colour")}), "less.csv")
    for name in ("new.csv", "less.csv"):
        new = TABLES.predicted(tmp_path, "--input", name)
        np.testing.assert_array_equal(new["prediction"], whole["prediction"])
    one_error(TABLES.run("predict", cwd=tmp_path), "no prepared data")


def test_python_predicts_a_table_as_the_command_does_from_any_folder(tmp_path, monkeypatch, capsys):
    """A run is found by its path and by its name; moved away from its data, it still predicts."""
    made = table()
    prepared(tmp_path, "tabular", lines(made), "--keep-order")
    done(tmp_path, "train", *SMALL)
    written(tmp_path, lines(made), "new.csv")
    command = TABLES.predicted(tmp_path, "--input", "new.csv")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("TRAINING_ROOT", str(tmp_path))
    trained = module("trained")
    run = newest_run(tmp_path)
    for name in (None, run.name, run, f"../runs/{run.name}"):
        project = trained.load_run(name)
        split = trained.collected(project, project.loader("test"))["prediction"]
        assert not capsys.readouterr().err
    new_rows = read_csv(tmp_path / "new.csv").drop(["price"]).to_pydict()
    new = TABLES.predicted_in_python(project, new_rows)
    np.testing.assert_array_equal(new["prediction"], np.float32(command["prediction"]))
    np.testing.assert_array_equal(new["prediction"][-30:], split)
    assert len(trained.collected(project, project.loader("test"))["index"]) == 30

    (tmp_path / "data").rename(tmp_path / "away")
    project = trained.load_run(run.rename(elsewhere / "copy"))
    assert "note: no prepared data: data: " in capsys.readouterr().err
    moved = TABLES.predicted_in_python(project, new_rows, "--missing", "x")
    np.testing.assert_array_equal(moved["prediction"], new["prediction"])
    with pytest.raises(Exception, match=r"the rows of '\w+' are not here"):
        trained.collected(project, project.loader("test"))
    with pytest.raises(Exception, match="no run"):
        trained.load_run("nothere")


def test_predictions_of_classes_have_names_and_probabilities(tmp_path):
    made = table(kind=["cat", "cat", "emu", "cat"] * 50)
    prepared(tmp_path, "tabular", lines(made), f"{CLASSES} --keep-order")
    done(tmp_path, "train", *SMALL)
    made["colour"][1] = "pink"
    written(tmp_path, lines(made), "new.csv")
    out = done(tmp_path, "predict", "--input", "new.csv", "--output", "p.csv")
    assert "such as 'pink'" in out
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "prediction", "probability of cat", "probability of emu"]
    for row in rows:
        shares = {name: float(row[f"probability of {name}"]) for name in ("cat", "emu")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == max(shares, key=lambda name: shares[name])
    assert TABLES.predicted(tmp_path)["target"].tolist() == made["kind"][-30:]


def test_metrics_of_classes_are_those_of_all_rows_and_may_decide(tmp_path, monkeypatch):
    """Of the rows that `predict` writes, also where the report drew its examples."""
    monkeypatch.setenv(EXAMPLES, "1")
    random = np.random.default_rng(0)
    kind = random.random(16_000) < 0.1
    hint = (kind + random.normal(0, 1, 16_000)).round(2)
    made = {"hint": hint.tolist(), "kind": np.where(kind, "yes", "no").tolist()}
    prepared(tmp_path, "tabular", lines(made), CLASSES)
    words = ("--data.batch_size", "512", "--evaluation.metric", "pr_auc")
    done(tmp_path, "train", *SMALL, *words)
    out = done(tmp_path, "evaluate", "--split", "validation")
    metrics = json.loads((newest_run(tmp_path) / "evaluation.json").read_text())["metrics"]
    rows = TABLES.predicted(tmp_path, "--split", "validation")
    is_yes = rows["target"] == "yes"
    expected = {
        "balanced_accuracy": balanced_accuracy_score(is_yes, rows["prediction"] == "yes"),
        "roc_auc": roc_auc_score(is_yes, rows["probability of yes"]),
        "pr_auc": average_precision_score(is_yes, rows["probability of yes"]),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-3)
    assert f"## Classes of all {len(is_yes):,} rows" in out
    shown = (newest_run(tmp_path) / "examples/classes.md").read_text()
    assert shown in out
    records = (newest_run(tmp_path) / "metrics.jsonl").read_text()
    assert '"best_by": "pr_auc"' in records


def test_several_targets_are_measured_one_by_one_and_together(tmp_path, monkeypatch):
    """A column in predictions for each; the loss is the mean of theirs, as numpy computes it."""
    monkeypatch.setenv(EXAMPLES, "1")
    random = np.random.default_rng(1)
    rent = [round(900 + 2 * size + random.normal(), 2) for size in columns()["size"]]
    made = table(**{"rent,EUR": rent, "deposit": [3 * value for value in rent]})
    prepared(tmp_path, "tabular", lines(made, ";"), "--target price,deposit")
    opened = store(tmp_path, "tabular")
    assert [column["name"] for column in opened.facts["features"]] == ["size", "age", "rent,EUR"]
    done(tmp_path, "train", *SMALL)
    done(tmp_path, "evaluate")
    metrics = json.loads((newest_run(tmp_path) / "evaluation.json").read_text())["metrics"]
    done(tmp_path, "predict", "--output", "p.csv")
    predicted = read_csv(tmp_path / "p.csv").to_pydict()
    scores = []
    for number, name in enumerate(("price", "deposit")):
        truth = np.array(made[name])[np.array(predicted["row"]) - 1]
        assert predicted[f"target of {name}"] == pytest.approx(truth, rel=1e-6)
        guess = predicted[f"prediction of {name}"]
        assert metrics[f"mae_original of {name}"] == pytest.approx(
            mean_absolute_error(truth, guess), rel=1e-4
        )
        error = mean_squared_error(truth, guess)
        assert metrics[f"r2 of {name}"] == pytest.approx(1 - error / truth.var(), rel=1e-3)
        scores.append(error / opened.facts["target"]["std"][number] ** 2)
    assert metrics["loss"] == pytest.approx(np.mean(scores), rel=1e-4)
    assert metrics["r2"] == pytest.approx(
        np.mean([metrics["r2 of price"], metrics["r2 of deposit"]])
    )
    worst = (newest_run(tmp_path) / "examples/worst.md").read_text()
    assert "| row | truth of price | truth of deposit |" in worst

    rows = [row - 1 for row in predicted["row"]]
    new = {name: [cells[row] for row in rows] for name, cells in made.items()}
    del new["price"]
    written(tmp_path, lines(new, ";"), "new.csv")
    done(tmp_path, "predict", "--input", "new.csv", "--output", "n.csv")
    again = read_csv(tmp_path / "n.csv").to_pydict()
    assert again["prediction of deposit"] == predicted["prediction of deposit"]

    # A name with a comma is one column.
    prepared(tmp_path, "tabular", lines(made, ";"), "--target rent,EUR")


def test_rare_and_new_categories_count_as_missing_and_are_counted(tmp_path):
    made = table(city=[f"city {row}" if row < 20 else "Ulm" for row in range(ROWS)])
    out = prepared(tmp_path, "tabular", lines(made), "--min-count 2 --keep-order").out
    named = {column["name"]: column for column in store(tmp_path, "tabular").facts["categories"]}
    assert named["city"]["values"] == ["Ulm"]
    assert "note: column 'city' has 20 rows with values that too few training rows have" in out
    assert f"cells of rows 1, {ROWS // 2 + 1}, {ROWS}" in out
    assert re.search(r"  city +1 values +20 missing +city 0 \| Ulm \| Ulm\n", out)
    done(tmp_path, "train", *SMALL)
    written(tmp_path, lines(table(city=["Rom", "city 1", *["Ulm"] * (ROWS - 2)])), "new.csv")
    out = done(tmp_path, "predict", "--input", "new.csv")
    assert "note: column 'city' has 2 rows with values that too few training rows have" in out


def test_bad_predictions_are_one_line(tmp_path):
    one_error(TABLES.run("predict", cwd=tmp_path), "no run")
    prepared(tmp_path, "tabular", lines(table()))
    done(tmp_path, "train", *SMALL, "--max-steps", "1")
    made = table()
    made["age"][4] = "old"
    written(tmp_path, lines(made), "text.csv")
    written(tmp_path, lines(made).replace("age", "years"), "less.csv")
    written(tmp_path / "parts", lines(table()), "new.csv")
    (tmp_path / "link.csv").symlink_to("parts/new.csv")
    replaces = "this would replace the input: .*name another file"
    before = sorted(tmp_path.rglob("*"))
    bad = [
        ("--input parts/new.csv --output parts/new.csv", replaces),
        ("--input parts/new.csv --output ./parts/../parts/new.csv", replaces),
        ("--input parts/new.csv --output link.csv", replaces),
        ("--input link.csv --output parts/new.csv", replaces),
        ("--input parts --output parts/new.csv", replaces),
        ("--input text.csv", "row 5, column 'age'"),
        ("--input less.csv", "no column 'age'"),
        ("--input absent.csv", "no such file"),
        ("--output p.txt", "need a .csv file"),
        ("--output absent/p.csv", "a folder that exists: .*name another file"),
        ("--split tests", "invalid choice: .tests"),
    ]
    for words, says in bad:
        one_error(TABLES.run("predict", *words.split(), cwd=tmp_path), says)
    assert sorted(tmp_path.rglob("*")) == before


def test_numbers_far_from_zero_keep_their_digits(tmp_path, monkeypatch):
    """Julian dates, UTM coordinates and seconds since 1970: everything as in float64."""
    monkeypatch.setenv(EXAMPLES, "1")
    random = np.random.default_rng(0)
    made = {
        "julian": 2_459_000.5 + np.arange(400) / 1440,
        "north": 5_812_345.125 + 20 * random.standard_normal(400),
        "stamp": np.where(np.arange(400) % 9 == 4, np.nan, 1.7e9 + random.random(400).round(3)),
        "far": 2_459_000.5 + random.random(400).round(4),
    }
    cells = {name: column.tolist() for name, column in made.items()}
    flags = "--target far --drop price --keep-order"
    prepared(tmp_path, "tabular", lines(cells | {"price": [0] * 400}), flags)
    opened = store(tmp_path, "tabular")
    for place, column in enumerate(list(made.values())[:3]):
        np.testing.assert_array_equal(opened.arrays["features"].rows()[:, place], column)
        facts = opened.facts["features"][place]
        known = column[:280][~np.isnan(column[:280])]
        assert [facts["mean"], facts["std"]] == pytest.approx([known.mean(), known.std()], rel=1e-9)
    far = made["far"]
    of_mean = np.mean((far[280:340] - far[:280].mean()) ** 2) / far[:280].var()
    baseline = module("dataset").baseline_loss(opened, "validation")
    assert baseline == pytest.approx(of_mean, rel=1e-9)

    done(tmp_path, "train", *SMALL)
    metrics = TABLES.evaluated(tmp_path)["metrics"]
    whole = TABLES.predicted(tmp_path)
    np.testing.assert_array_equal(whole["target"], far[340:])
    error = whole["prediction"] - far[340:]
    expected = [np.mean(error**2), np.abs(error).mean(), 1 - np.mean(error**2) / far[340:].var()]
    names = ("mse_original", "mae_original", "r2")
    assert [metrics[name] for name in names] == pytest.approx(expected, rel=1e-4)
    assert len(np.unique(whole["prediction"])) > 50
    assert 0 < metrics["mse_original"] < 1
    written(tmp_path, lines({name: column[-60:] for name, column in cells.items()}), "new.csv")
    of_input = TABLES.predicted(tmp_path, "--input", "new.csv")
    np.testing.assert_array_equal(of_input["prediction"], whole["prediction"])
    worst = (newest_run(tmp_path) / "examples/worst.md").read_text()
    assert "| 2,459,00" in worst


# ---- real data -----------------------------------------------------------------------------------


DOCUMENT = (REPOSITORY / "docs/how-to/tabular.md").read_text(encoding="utf-8")
SEEDS = (42, 43, 44)


def documented(kind):
    block = re.search(rf"```{kind}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert block
    return block[1]


def commands():
    """The documented commands by name: their words after `python -m my_training`."""
    words = [line.split()[3:] for line in documented("sh").splitlines()]
    return {line[0]: line for line in words}


def trained_means(folder, metric):
    """Mean over seeds of the test metric, by the documented commands."""
    scores = []
    for seed in SEEDS:
        done(folder, *commands()["train"], "--reproducibility.seed", str(seed))
        scores.append(TABLES.evaluated(folder)["metrics"][metric])
    return float(np.mean(scores))


def scikit_learn(opened, estimator):
    """Mean test score of five seeds on the very rows of a store."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    parts = {}
    for name, (first, last) in opened.splits.items():
        arrays = [opened.arrays[array].rows()[first:last] for array in ("features", "target")]
        parts[name] = [np.asarray(array) for array in arrays]
    features, target = parts["test"]
    scores = []
    for seed in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the iterations do not always converge
            model = make_pipeline(StandardScaler(), estimator(seed)).fit(*parts["train"])
        error = model.predict(features) - target
        is_class = "classes" in opened.facts["target"]
        scores.append(np.mean(error == 0) if is_class else np.mean(error**2))
    return float(np.mean(scores))


@pytest.mark.full
def test_documented_example_is_as_good_as_scikit_learn(tmp_path):
    from sklearn.neural_network import MLPRegressor

    subprocess.run([sys.executable, "-c", documented("python")], cwd=tmp_path, check=True)
    words = commands()
    assert list(words) == ["prepare", "train", "evaluate", "predict"]
    done(tmp_path, *words["prepare"])
    ours = trained_means(tmp_path, "mse_original")
    done(tmp_path, *words["predict"])
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 443

    opened = store(tmp_path, "tabular")
    theirs = scikit_learn(opened, lambda seed: MLPRegressor(max_iter=1000, random_state=seed))
    first, last = opened.splits["test"]
    assert f"on the {last - first} test rows" in DOCUMENT
    target = opened.arrays["target"].rows()[first:last].astype(np.float64)
    mean = np.mean((target - opened.facts["target"]["mean"]) ** 2)
    figures = re.findall(r"^\| .+ \| (\d+) \|$", DOCUMENT, flags=re.MULTILINE)
    assert [mean, theirs, ours] == pytest.approx([int(figure) for figure in figures], rel=0.02)
    assert ours <= 1.05 * theirs
    assert ours < 0.8 * mean


def test_wine_is_told_apart_as_well_as_by_scikit_learn(tmp_path):
    from sklearn.datasets import load_wine
    from sklearn.neural_network import MLPClassifier

    data = load_wine()
    wine = dict(zip(data.feature_names, data.data.T.tolist(), strict=True))
    wine["cultivar"] = [f"cultivar {number}" for number in data.target]
    flags = "--target cultivar --task classification --split 0.6,0.15,0.25"
    prepared(tmp_path, "tabular", lines(wine), flags)
    ours = trained_means(tmp_path, "accuracy")
    opened = store(tmp_path, "tabular")
    theirs = scikit_learn(opened, lambda seed: MLPClassifier(random_state=seed))
    first, last = opened.splits["test"]
    assert f"({ours:.2f} and {theirs:.2f} on {last - first} test rows)" in DOCUMENT
    assert ours >= 0.95 * theirs
