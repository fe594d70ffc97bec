"""Splits of the workload `tabular`: ids, times, files and folds; and the balance of classes."""

import csv
import importlib
import json
import os
import signal
from shlex import split
from typing import Any

import numpy as np
import pytest
import torch
from made_up import lines, prepare, prepared, store, written
from ranks import run_ranks
from rendering import render
from running import PACKAGE, check_run, one_error
from workload import Workload

TABLES = Workload("tabular")
FOLDS = Workload("tabular+folds")
CLASSES = "--target left --task classification"
COUNT = 300
SMALL = split(
    "--model.width 16 --data.batch_size 32 --training.max_steps 12 --schedule.warmup_steps 2"
    " --monitor.every_steps 1 --evaluation.every_steps 6 --checkpoint.every_steps 4"
)


# 0.2 and 0.20 are two ids.
NUMBERS = [
    f"{row:05d}ä" if row % 2 else f"{row // 40}.{row % 40}"
    for row in np.random.default_rng(5).permutation(COUNT)
]


def customers(**others):
    """Customers with several rows each, of whom few have left. The spend tells it."""
    random = np.random.default_rng(4)
    left = random.random(COUNT) < 0.1
    made = {
        "customer": [f"c{number}" for number in random.integers(0, 80, COUNT)],
        "since": (np.datetime64("2023-01-01") + random.integers(0, 90, COUNT)).astype(str).tolist(),
        "city": random.choice(["Ulm", "Rom", "Bonn"], COUNT).tolist(),
        "spend": (random.normal(size=COUNT) + 2 * left).round(3).tolist(),
        "left": np.where(left, "yes", "no").tolist(),
    }
    return {name: cells for name, cells in (made | others).items() if cells}


def picked(made, rows):
    return {name: [cells[row] for row in rows] for name, cells in made.items()}


def csv_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def names(facts):
    return [column["name"] for kind in ("features", "categories") for column in facts[kind]]


def rows_of(opened):
    """The rows of each split in the file."""
    rows = opened.arrays["row"].rows()
    return {name: rows[first:last] for name, (first, last) in opened.splits.items()}


def with_noise(made, rows):
    """Other numbers, categories and dates in these rows."""
    noisy = {name: list(cells) for name, cells in made.items()}
    for row in rows:
        noisy["spend"][row] = 1e5 + row
        noisy["city"][row] = f"city {row}"
    return noisy


# ---- ids, times, files ---------------------------------------------------------------------------


def test_an_id_is_in_predictions_and_no_feature(tmp_path):
    made = customers(number=NUMBERS)
    prepared(tmp_path, "tabular", lines(made), f"{CLASSES} --id number --group customer")
    facts = store(tmp_path, "tabular").facts
    dates = [f"since {part}" for part in ("year", "month", "weekday", "elapsed days")]
    assert names(facts) == [*dates, "spend", "city"]
    TABLES.done("train", *SMALL, cwd=tmp_path)
    TABLES.done("predict", "--output", "p.csv", cwd=tmp_path)
    whole = csv_of(tmp_path / "p.csv")
    rows = [int(row["row"]) - 1 for row in whole]
    assert [row["number"] for row in whole] == [made["number"][row] for row in rows]
    new = picked(made, rows)
    new.pop("customer")
    written(tmp_path, lines(new), "new.csv")
    TABLES.done("predict", "--input", "new.csv", "--output", "p.csv", cwd=tmp_path)
    for one, other in zip(csv_of(tmp_path / "p.csv"), whole, strict=True):
        assert one["number"] == other["number"]
        assert one["prediction"] == other["prediction"]

    new["since"][2] = "soon"
    written(tmp_path, lines(new), "new.csv")
    one_error(
        TABLES.run("predict", "--input", "new.csv", cwd=tmp_path),
        "'soon' is no date in the format ISO 8601: new.csv, row 3, column 'since': fix the cell",
    )


@pytest.mark.parametrize("style", ["iso", "german", "numbers"])
def test_a_split_by_time_tests_on_the_newest_rows(style, tmp_path):
    """Equal times are in one split; what is noise in later rows changes no fact."""
    made = customers()
    days = np.array(made["since"], "M8[D]")
    if style == "german":
        made["since"] = [day.strftime("%d.%m.%Y") for day in days.astype(object)]
    if style == "numbers":
        made["since"] = (days.astype(int) / 4).tolist()
    flags = f"{CLASSES} --split-by time --time-column since"
    prepared(tmp_path / "clean", "tabular", lines(made), flags)
    opened = store(tmp_path / "clean", "tabular")
    rows = rows_of(opened)
    train, validation, test = (days[rows[name]] for name in ("train", "validation", "test"))
    assert train.max() < validation.min()
    assert validation.max() < test.min()
    sizes = [len(part) for part in (train, validation, test)]
    assert sum(sizes) == COUNT
    assert sizes == pytest.approx([210, 45, 45], abs=6)
    assert not [name for name in names(opened.facts) if "since" in name]

    noisy = with_noise(made, [*rows["validation"], *rows["test"]])
    prepared(tmp_path / "noisy", "tabular", lines(noisy), flags)
    assert store(tmp_path / "noisy", "tabular").facts == opened.facts


def test_files_of_splits(tmp_path):
    """Rows and ids are those of each file, and scales and categories those of the input."""
    made = customers(customer=[], number=NUMBERS)
    parts = {"a": range(180), "v": range(180, 240), "t": range(240, COUNT)}
    flags = f"{CLASSES} --id number --validation v.csv --test t.csv"
    opened = {}
    for name, noise in (("clean", ()), ("noisy", range(180, COUNT))):
        for file, rows in parts.items():
            content = picked(with_noise(made, noise), rows)
            # A file may have its columns in another order, and another delimiter.
            if file == "t":
                content = dict(reversed(content.items()))
            written(tmp_path / name, lines(content, ";" if file == "t" else ","), f"{file}.csv")
        assert prepare(tmp_path / name, "tabular", "a.csv", flags).code == 0
        opened[name] = store(tmp_path / name, "tabular")
    clean = opened["clean"]
    assert opened["noisy"].facts == clean.facts
    assert clean.splits == {"train": [0, 180], "validation": [180, 240], "test": [240, COUNT]}
    assert rows_of(clean)["test"].tolist() == list(range(60))
    ids = np.char.decode(clean.arrays["id"].rows(), "utf-8").tolist()
    assert ids[180:] == made["number"][180:]
    assert sorted(ids[:180]) == sorted(made["number"][:180])

    # One of the two: the input is divided among the other splits.
    out = prepare(tmp_path / "clean", "tabular", "a.csv", f"{CLASSES} --test t.csv --id number")
    assert "rows:       153 train, 27 validation, 60 test" in out.out


BAD = {
    "column": ("--test b.csv", {"spend": []}, r"no column 'spend': b\.csv"),
    "class": ("--validation b.csv", {"left": ["maybe"] * COUNT}, "class 'maybe' is in no training"),
    "target": ("--validation b.csv", {"left": [""] * COUNT}, "target is missing: b.csv, row 1"),
    "file": ("--validation c.csv", {}, r"no such file or folder: c\.csv"),
    "group": ("--test b.csv --group customer", {}, "the group 'c[0-9]+' is in two splits: --group"),
    "id": ("--test b.csv --id number", {}, "the id '.*' repeats: rows 1 and 301, column 'number'"),
    "id twice": ("--id customer", {}, "the id 'c[0-9]+' repeats: rows [0-9]+ and [0-9]+, column"),
    "id name": (
        "--id target",
        {},
        "predictions have a column 'target' of their own: --id 'target'",
    ),
    "id gap": ("--id gap", {}, "the id is missing: row 2, column 'gap': fill it in"),
    "time gap": ("--split-by time --time-column gap", {}, "the time is missing: row 2, column"),
    "classes": ("--target left,city", {}, "several targets must be numbers: --target left,city"),
    "target twice": (
        "--group left",
        {},
        "an id, a group or a time has no other use: column 'left'",
    ),
    "no time": ("--split-by time --time-column city", {}, "the format of times such as .* is not"),
    "times": ("--split-by time --time-column since --group city", {}, "a split by time may cut"),
    "time": ("--split-by time", {}, "--split-by time needs --time-column"),
    "few rows": ("--folds 40", {}, r"the class 'yes' has [0-9]+ rows: --folds 40: use fewer folds"),
    "few groups": (
        "--folds 9 --group city",
        {},
        "3 groups or times are too few for 10 splits: --group",
    ),
    "one fold": ("--folds 1", {}, "one fold leaves no rows to train on"),
    "folds by time": ("--folds 3 --split-by time --time-column since", {}, "train on the future"),
    "folds with file": ("--folds 3 --validation b.csv", {}, "the held-out fold is the validation"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_splits_are_one_line_and_leave_nothing(name, tmp_path):
    flags, others, says = BAD[name]
    gap = ["x", "", *["y"] * (COUNT - 2)]
    made = customers(gap=gap, number=list(range(COUNT)), target=list(range(COUNT)))
    path = written(tmp_path, lines(made))
    other = {name: cells for name, cells in (made | others).items() if cells}
    written(tmp_path, lines(other), "b.csv")
    one_error(prepare(tmp_path, FOLDS.name, path, f"{CLASSES} {flags}"), says)
    assert not list((tmp_path / "data").glob("*.json"))


def test_a_class_that_a_split_lacks_is_a_note(tmp_path):
    made = customers()
    path = written(tmp_path, lines(made))
    only = [row for row in range(COUNT) if made["left"][row] == "no"]
    written(tmp_path, lines(picked(made, only)), "v.csv")
    result = prepare(tmp_path, "tabular", path, f"{CLASSES} --validation v.csv")
    assert "note: no row of validation has the class yes" in result.out
    assert result.code == 0


# ---- folds ---------------------------------------------------------------------------------------


def fold(opened, number):
    return FOLDS.module("engine.loading.folds").fold_of(opened, number)


@pytest.mark.parametrize("flags", ["", "--group customer", "--keep-order --split 0.8,0.2"])
def test_each_fold_is_held_out_once_and_unseen(flags, tmp_path):
    """By rows, classes, groups, and by noise in each fold and in the test split."""
    made = customers()
    flags = f"{CLASSES} --folds 4 {flags}"
    prepared(tmp_path / "clean", FOLDS.name, lines(made), flags)
    opened = store(tmp_path / "clean", FOLDS.name)
    held_out = []
    for number in range(1, 5):
        one = fold(opened, number)
        rows = rows_of(one)
        everything = np.concatenate([*rows.values()])
        assert sorted(everything) == list(range(COUNT))
        assert len(rows["test"]) == (0 if "0.8" in flags else pytest.approx(45, abs=9))
        target = one.arrays["target"].rows()
        labels = [one.facts["target"]["classes"][label] for label in target]
        assert labels == [made["left"][row] for row in everything]
        if "--keep" not in flags:
            assert (target[slice(*one.splits["validation"])] == 1).sum() >= 3
        if "--group" in flags:
            groups = [{made["customer"][row] for row in part} for part in rows.values()]
            assert sum(map(len, groups)) == len(set().union(*groups))
        held_out.append(rows["validation"])

        noisy = with_noise(made, [*rows["validation"], *rows["test"]])
        prepared(tmp_path / "noisy", FOLDS.name, lines(noisy), flags)
        again = store(tmp_path / "noisy", FOLDS.name)
        assert fold(again, number).facts == one.facts
        other = 1 + number % 4
        assert fold(again, other).facts != fold(opened, other).facts
    joined = sorted(np.concatenate([*held_out, rows["test"]]))
    assert joined == list(range(COUNT))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds")
    flags = f"{CLASSES} --folds 3 --id number"
    prepared(folder, FOLDS.name, lines(customers(number=NUMBERS)), flags)
    return folder / "data"


@pytest.fixture
def place(data, tmp_path):
    (tmp_path / "data").symlink_to(data)
    return tmp_path


def kill_at(folder, step):
    """Kill the process after this step of this fold."""

    def armed():
        run_module: Any = importlib.import_module(f"{PACKAGE}.engine.training.run")
        end_step = run_module.Run.end_step

        def killed_after_step(run, norm):
            end_step(run, norm)
            if run.step == step and run.folder.name == folder:
                os.kill(os.getpid(), signal.SIGKILL)

        run_module.Run.end_step = killed_after_step

    return armed


def states(run):
    found = {}
    for path in sorted(run.glob("fold-*")):
        records = [json.loads(line) for line in (path / "metrics.jsonl").open()]
        losses = [(row["step"], row.get("split"), row["loss"]) for row in records]
        state = torch.load(max((path / "checkpoints").glob("step-*")), weights_only=True)
        weights = {name: tensor.tolist() for name, tensor in state["model"].items()}
        found[path.name] = (losses, weights)
    return found


def resumed_after_a_kill(place, *words):
    """Train all folds twice, the second time with a kill; return the states, which are equal."""
    FOLDS.done("train", "--name", "whole", *words, cwd=place)
    killed = FOLDS.run("train", "--name", "k", *words, cwd=place, before=kill_at("fold-2", 7))
    assert killed.code == -signal.SIGKILL
    assert [*states(place / "runs/k")] == ["fold-1", "fold-2"]
    FOLDS.done("train", "--resume", "k", cwd=place)
    expected = states(place / "runs/whole")
    assert [*expected] == ["fold-1", "fold-2", "fold-3"]
    assert states(place / "runs/k") == expected
    return expected


@pytest.mark.full
@pytest.mark.parametrize("balance", ["none", "weights"])
def test_folds_resume_with_each_balance(balance, place):
    resumed_after_a_kill(place, "--fold", "all", *SMALL, "--data.balance", balance)


def test_folds_resume_after_a_kill_and_are_evaluated_together(place):
    """Bit for bit; with mean, spread and one prediction for each row that is not tested."""
    words = ("--fold", "all", *SMALL, "--data.balance", "sampling")
    expected = resumed_after_a_kill(place, *words)

    # One fold alone is the same, and another one can follow in its folder.
    FOLDS.done("train", "--name", "single", *words, "--fold", "2", cwd=place)
    assert states(place / "runs/single") == {"fold-2": expected["fold-2"]}
    FOLDS.done("train", "--resume", "single/fold-2", "--fold", "3", cwd=place)
    assert [*states(place / "runs/single")] == ["fold-2", "fold-3"]

    out = FOLDS.done("evaluate", "whole", cwd=place).out
    assert "## Held-out rows of 3 folds" in out
    metrics = json.loads((place / "runs/whole/evaluation.json").read_text())["metrics"]
    path = place / "runs/whole/fold-2"
    FOLDS.done("evaluate", str(path), "--split", "validation", cwd=place)
    alone = json.loads((path / "evaluation.json").read_text())["metrics"]
    assert {name: metrics["fold-2"][name] for name in alone} == alone
    losses = [metrics[f"fold-{number}"]["loss"] for number in (1, 2, 3)]
    assert metrics["mean"]["loss"] == pytest.approx(np.mean(losses))
    assert metrics["std"]["loss"] == pytest.approx(np.std(losses))

    out = FOLDS.done("report", "whole", cwd=place).out
    text = (place / "runs/whole/report.md").read_text()
    best = [min(loss for _, split, loss in losses if split) for losses, _ in expected.values()]
    assert f"mean       loss {np.mean(best):.5g} ± {np.std(best):.5g}" in out
    for number, loss in enumerate(best, 1):
        assert f"| fold-{number} | {loss:.5g} |" in text
        assert f"fold-{number}     best: validation loss {loss:.5g} at step" in out

    predicted = csv_of(place / "runs/whole/predictions.csv")
    made = customers(number=NUMBERS)
    rows = [int(row["row"]) - 1 for row in predicted]
    tested = rows_of(fold(FOLDS.store(place / "data"), 1))["test"]
    assert sorted([*rows, *tested]) == list(range(COUNT))
    assert [row["number"] for row in predicted] == [made["number"][row] for row in rows]
    assert [row["target"] for row in predicted] == [made["left"][row] for row in rows]
    of_fold = [row for row in predicted if row["fold"] == "fold-2"]
    hits = np.mean([row["target"] == row["prediction"] for row in of_fold])
    assert hits == pytest.approx(metrics["fold-2"]["accuracy"])


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "ddp"])
def test_folds_train_alike_in_each_framework_and_on_two_ranks(framework, place):
    words = ("train", "--fold", "all", *SMALL, "--model.dropout", "0", "--training.max_steps", "4")
    FOLDS.done(*words, "--name", "one", cwd=place)
    if framework == "ddp":
        project = render(workload="tabular", extras=["folds"], distributed="ddp")
        size = ("--data.batch_size", "16")
        for result in run_ranks(project, *words, *size, "--name", "other", cwd=place):
            assert result.code == 0, result.err
        for result in run_ranks(project, "evaluate", "other", cwd=place):
            one_error(result, "evaluate of folds runs in one process only")
    else:
        project = render(workload="tabular", extras=["folds"], framework=framework)
        check_run(project, *words, "--name", "other", cwd=place)
    losses = {}
    for name in ("one", "other"):
        losses[name] = {fold: found for fold, (found, _) in states(place / "runs" / name).items()}
    if framework == "ddp":
        for one, other in zip(losses["one"].values(), losses["other"].values(), strict=True):
            assert other[-1][2] == pytest.approx(one[-1][2], rel=1e-4)
    else:
        assert losses["other"] == losses["one"]


def test_wrong_folds_are_one_line(place):
    (place / "runs/folds").mkdir(parents=True)
    settings = FOLDS.settings().replaced({"data.fold": "all"}, "a test")
    (place / "runs/folds/config.resolved.yaml").write_text(settings.to_yaml())
    for words, says in (
        ("train", "the data have 3 folds, and data.fold is 0: data: train with --fold all"),
        ("train --fold 4", "the data have 3 folds, and data.fold is 4"),
        ("train --fold half", "data.fold"),
        ("train --fold all --minutes 1", "each fold has its own number of steps: --minutes"),
        ("train --fold all --data.resident true", "data.resident"),
        ("predict folds", "the run has a model for each fold: runs/folds: name one, such as"),
    ):
        one_error(FOLDS.run(*words.split(), cwd=place), says)
    (place / "config.yaml").unlink()
    one_error(TABLES.run("train", cwd=place), "the data have folds: data: .* add the extra")
    (place / "data").unlink()
    prepared(place, FOLDS.name, lines(customers()), CLASSES)
    one_error(FOLDS.run("train", "--fold", "all", cwd=place), "the data have 0 folds")
    assert [path.name for path in (place / "runs").iterdir()] == ["folds"]


# ---- balance -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    prepared(folder, "tabular", lines(customers()), CLASSES)
    return store(folder, "tabular")


def test_sampling_draws_each_class_equally_often(whole):
    """A pure function of seed and epoch, equal in all loaders, from any batch on."""
    flags = ("--data.balance", "sampling", "--data.batch_size", "16")
    epochs = {}
    for loader in ("memmap", "dataloader", "chunk"):
        made = TABLES.loader(whole, "train", *flags, train=True, loader=loader)
        for epoch in (0, 1, 0):
            found = [batch["target"].clone() for batch in made.epoch(epoch)]
            indices = torch.cat([batch["index"].clone() for batch in made.epoch(epoch)])
            assert torch.equal(torch.cat(found), epochs.setdefault(epoch, torch.cat(found)))
        late = [batch["index"].clone() for batch in made.epoch(0, 5)]
        assert torch.equal(torch.cat(late), indices[5 * 16 :])
        made.close()
    drawn = torch.cat([epochs[0], epochs[1]])
    assert float((drawn == 1).double().mean()) == pytest.approx(0.5, abs=0.07)
    assert not torch.equal(epochs[0], epochs[1])
    assert len(set(indices.tolist()) - {-1}) < 210
    evaluated = TABLES.batches(whole, "validation", *flags)
    indices = torch.cat([batch["index"] for batch in evaluated])
    assert indices[indices >= 0].tolist() == list(range(45))


def test_weights_count_each_class_the_same(whole):
    """In training with `weights`, and in evaluations with both, whose baseline is log 2."""
    flags = ("--data.batch_size", "64", "--model.width", "16", "--model.dropout", "0")
    batch = TABLES.batches(whole, "train", *flags)[-1]  # with padding
    present = batch["present"]
    target = batch["target"][present]
    counts = torch.tensor(whole.facts["target"]["counts"])
    rates = (counts.sum() / (2.0 * counts))[target]
    for balance in ("none", "weights", "sampling"):
        settings = TABLES.settings(*flags, "--data.balance", balance)
        torch.manual_seed(0)
        model = TABLES.module("model").build_model(settings, whole.facts)
        logits = model.outputs(batch)[present]
        surprises = torch.nn.functional.cross_entropy(logits, target, reduction="none")
        weighted = (surprises * rates).sum() / rates.sum()
        for is_training in (True, False):
            output = model.train(is_training)(batch)
            is_weighted = balance == "weights" or (balance == "sampling" and not is_training)
            expected = weighted if is_weighted else surprises.mean()
            assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
            total = rates.sum() if is_weighted else len(target)
            assert output.total_weight.item() == pytest.approx(float(total), rel=1e-5)
        log_loss, count = output.metrics["log_loss"]
        assert (log_loss / count).item() == pytest.approx(surprises.mean().item(), rel=1e-5)
        baseline = output.metrics.get("baseline_loss", (0, 1))
        assert float(baseline[0] / baseline[1]) == pytest.approx(
            0 if balance == "none" else np.log(2)
        )


def test_balance_finds_more_of_the_rare_class(tmp_path):
    made = customers(customer=[], since=[])
    prepared(tmp_path, "tabular", lines(made), f"{CLASSES} --split 0.4,0.6")
    recalls = {}
    for balance in ("none", "weights", "sampling"):
        words = ("--training.max_steps", "40", "--optimizer.learning_rate", "0.01")
        balanced = ("--data.balance", balance, "--name", balance)
        TABLES.done("train", *SMALL, *words, *balanced, cwd=tmp_path)
        records = (tmp_path / "runs" / balance / "metrics.jsonl").open()
        evaluated = [row for row in map(json.loads, records) if "split" in row]
        recalls[balance] = evaluated[-1]["balanced_accuracy"]
    assert min(recalls["weights"], recalls["sampling"]) > recalls["none"] + 0.05

    prepared(tmp_path, "tabular", lines(customers()), "--target spend --task regression")
    for balance in ("weights", "sampling"):
        result = TABLES.run("train", *SMALL, "--data.balance", balance, cwd=tmp_path)
        one_error(result, "a number has no classes: data.balance: set it to none")


def test_two_ranks_measure_classes_as_one(whole, tmp_path):
    (tmp_path / "data").symlink_to(whole.folder)
    project = render(workload="tabular", distributed="ddp")
    for balance in ("none", "sampling"):
        words = ("train", *SMALL, "--data.balance", balance, "--model.dropout", "0")
        size = ("--data.batch_size", "16")
        for result in run_ranks(project, *words, *size, "--name", "two", cwd=tmp_path):
            assert result.code == 0, result.err
        TABLES.done(*words, "--name", "one", cwd=tmp_path)
        metrics = []
        for name in ("one", "two"):
            path = tmp_path / "runs" / name
            records = [json.loads(line) for line in (path / "metrics.jsonl").open()]
            metrics.append([row for row in records if "split" in row][-1])
            path.rename(tmp_path / f"{name}-{balance}")
        for name in ("loss", "accuracy", "balanced_accuracy", "roc_auc", "pr_auc", "log_loss"):
            assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-4, abs=1e-3), name
