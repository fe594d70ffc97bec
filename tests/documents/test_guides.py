"""Guides for what people search: their files and commands work as the pages print them."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
import transformers
from forking import run_file
from importing import catalogue_of
from rendering import document, render, replace
from running import (
    check_run,
    documented,
    evaluation_of,
    newest_run,
)
from shells import shell
from test_from_elsewhere import quoted, replace_model_settings
from test_own_data import CODE
from variants import choices

FILES = ("dataset.py", "model.py", "commands/prepare.py")
PREDICT = CODE[-1]  # of the page on your own data, for all of these


def with_files(folder, name, line, value):
    """A project with the files of a page, and what it says is left of its settings."""
    project = Path(shutil.copytree(render(workload="tabular", extras=["check"]), folder / name))
    package = project / "src/my_training"
    shutil.rmtree(package / "prepare")
    (package / "examples.py").unlink()
    (package / "commands/predict.py").write_text(PREDICT, encoding="utf-8")
    for file, text in zip(FILES, quoted(name), strict=True):
        (package / file).write_text(text, encoding="utf-8")
    shell(project, "ruff", "check", "src")
    shell(project, "ruff", "format", "--check", "src")
    replace_model_settings(project, line, value, name)
    return project


def followed(project, name, folder, *short):
    """What the commands of a page print, one after the other; a training has few steps."""
    shutil.copy(project / "config.yaml", folder)
    for words in documented(document(name)):
        more = short if words[0] == "train" else ()
        yield check_run(project, *words, *more, cwd=folder).out


def patch(project, text):
    """Apply the diff of a page; every place must be there once."""
    (diff,) = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    pieces = re.split(r"^--- (\S+)\n", diff, flags=re.MULTILINE)[1:]
    for name, lines in zip(pieces[::2], pieces[1::2], strict=True):
        old = "".join(f"{line[1:]}\n" for line in lines.splitlines() if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines.splitlines() if line[0] != "-")
        replace(project / name, old, new)


def printed(code, folder, project=None):
    """What a program of a page prints, in a folder."""
    path = folder / "program.py"
    path.write_text(code, encoding="utf-8")
    sources = str(project / "src") if project else ""
    done = run_file(path, cwd=folder, before=lambda: sys.path.insert(0, sources))
    assert done.code == 0, done.err
    return done.out


# ---- an encoder of Hugging Face ------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with a small BERT and its tokenizer, as `save_pretrained` writes them, and a table."""
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "the"]
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=len(words), hidden_size=32, **sizes)
    transformers.BertModel(config).save_pretrained(folder / "bert")
    vocabulary = {word: number for number, word in enumerate(words)}
    transformers.BertTokenizer(vocabulary).save_pretrained(folder / "bert")
    texts = []
    for number in range(120):
        texts.append("the " * (number % 7) + ("bad film", "good film")[number % 2])
    table = pyarrow.table({"text": texts, "label": ["negative", "positive"] * 60})
    pyarrow.parquet.write_table(table, folder / "train.parquet")
    return folder


def test_a_pretrained_encoder_gets_a_head(encoder, tmp_path):
    name = "hugging-face"
    project = with_files(tmp_path, name, 'pretrained: str = ""', 'pretrained: ""')
    shutil.copy(project / "config.yaml", encoder)
    checked = check_run(project, "check", cwd=encoder)
    assert "failed" not in checked.out
    short = ("--training.max_steps", "40", "--optimizer.learning_rate", "0.003")
    for words in documented(document(name)):
        given = [word.replace("google-bert/bert-base-uncased", "bert") for word in words]
        more = short if words[0] == "train" else ()
        result = check_run(project, *given, *more, cwd=encoder)
        if words[0] == "prepare":
            assert result.out == "120 texts\n"
    assert evaluation_of(encoder)["metrics"]["accuracy"] > 0.9


# ---- classes of different sizes ------------------------------------------------------------------


def test_class_weights_find_the_rare_class(tmp_path):
    """2 % of the rows are of it, and a column hints at them."""
    random = np.random.default_rng(0)
    kinds = np.where(random.random(3000) < 0.02, "yes", "no")
    hints = (kinds == "yes") + random.normal(0, 0.5, len(kinds))
    table = pyarrow.table({"hint": hints, "kind": kinds})
    pyarrow.csv.write_csv(table, tmp_path / "table.csv")
    project = render(workload="tabular")
    prepare, train, predict, balanced = documented(document("imbalance"))
    metrics, thresholds = quoted("imbalance")
    check_run(project, *prepare, cwd=tmp_path)
    scores = []
    for words in (train, balanced):
        result = check_run(project, *words, "--training.max_steps", "300", cwd=tmp_path)
        assert "lower optimizer.learning_rate" not in result.out, "an alert of divergence"
        check_run(project, *predict, cwd=tmp_path)
        scores.append(float(printed(metrics, newest_run(tmp_path)).split()[0]))
    assert scores[1] > scores[0] + 0.1
    recalls = re.findall(r"recall (\S+),", printed(thresholds, newest_run(tmp_path)))
    assert len(recalls) == 4
    assert recalls == sorted(recalls)


def test_folds_of_customers(tmp_path):
    """Of a file as spreadsheets write it: no customer is in two folds."""
    printed(quoted("folds")[0], tmp_path)
    project = render(workload="tabular", extras=["folds"])
    outputs = followed(project, "folds", tmp_path, "--training.max_steps", "8")
    prepared, _, evaluated = outputs
    assert "column 'since' is a date (%d.%m.%Y)" in prepared
    assert "## Held-out rows of 5 folds" in evaluated
    customers = pyarrow.csv.ParseOptions(delimiter=";")
    table = pyarrow.csv.read_csv(tmp_path / "customers.csv", parse_options=customers).to_pydict()
    predicted = pyarrow.csv.read_csv(tmp_path / "runs/folds/predictions.csv").to_pydict()
    folds = {}
    for row, fold in zip(predicted["row"], predicted["fold"], strict=True):
        folds.setdefault(table["customer"][row - 1], set()).add(fold)
    assert {len(names) for names in folds.values()} == {1}
    assert len(predicted["row"]) == pytest.approx(1700, abs=20)


# ---- many series ---------------------------------------------------------------------------------


def write_m4(folder):
    """Files like those of M4: a series a row, and the values after it in another file."""
    random = np.random.default_rng(0)
    for part, size in (("train", 400), ("test", 48)):
        lines = [",".join(["V1", *(f"V{number}" for number in range(2, size + 2))])]
        for number in (1, 2, 10):
            values = random.normal(100, 10, size - number * (part == "train")).round(1)
            lines.append(",".join([f"H{number}", *map(str, values)]))
        (folder / f"Hourly-{part}.csv").write_text("\n".join(lines), encoding="utf-8")


def test_many_series_are_forecast_with_dates(tmp_path):
    """With the tutorial's file, in which one shop has closed; then with M4's."""
    printed(quoted("many-series")[0], tmp_path)
    sales = (tmp_path / "sales.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in sales if ",shop 3,," not in line]
    (tmp_path / "sales.csv").write_text("\n".join(kept), encoding="utf-8")
    write_m4(tmp_path)
    printed(quoted("forecast")[-1], tmp_path)
    project = render(workload="forecast")
    outputs = []
    for words in documented(document("forecast")):
        more = ("--training.max_steps", "2") if words[0] == "train" else ()
        outputs.append(check_run(project, *words, *more, cwd=tmp_path).out)
    ended = "note: series that end without rows to forecast, without a forecast: 1 (shop 3)\n"
    assert sum(ended in out for out in outputs) == 3
    forecast = pyarrow.parquet.read_table(tmp_path / "forecast.parquet").to_pylist()
    assert len(forecast) == 11 * 14
    assert [str(row["time"].date()) for row in forecast[:2]] == ["2026-01-01", "2026-01-02"]
    assert all(row["q0.1"] <= row["prediction"] <= row["q0.9"] for row in forecast)
    assert len(np.load(tmp_path / "all.npz")["prediction"]) > 100 * len(forecast)
    assert {"mase", "smape"} <= set(evaluation_of(tmp_path)["metrics"])


# ---- notebooks, early stopping, debuggers --------------------------------------------------------


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A folder with a short run of a `timeseries` project, and new.csv with the same columns."""
    folder = tmp_path_factory.mktemp("series")
    rows = [f"{number},{np.sin(number / 4):.3f}" for number in range(1000)]
    (folder / "new.csv").write_text("\n".join(["time,load", *rows]), encoding="utf-8")
    project = render(workload="timeseries")
    check_run(project, "prepare", "--input", "new.csv", "--time-format", "s", cwd=folder)
    check_run(project, "train", "--training.max_steps", "5", cwd=folder)
    return folder


def test_a_notebook_loads_a_run_predicts_and_plots(series):
    project = render(workload="timeseries")
    predict, *_ = documented(document("notebook"))
    check_run(project, "predict", "--output", "split.npz", cwd=series)
    check_run(project, *predict, cwd=series)
    first, new, second = quoted("notebook")
    same = "\nimport numpy\nsplit = numpy.load('split.npz')\n"
    same += "equal = (rows['prediction'].ravel() == split['prediction']).all()\n"
    same += "print(equal, len(plt.gca().lines))"
    assert printed(first + same, series, project) == "True 2\n"
    assert re.fullmatch(r"\(\d+,\)\n", printed(second, series))
    table = pyarrow.csv.read_csv(series / "new.csv")
    pyarrow.parquet.write_table(table, series / "new.parquet")
    equal = "\nimport numpy\nfile = numpy.load('forecast.npz')\n"
    equal += "print(all((arrays[name] == file[name]).all() for name in file))"
    assert printed(new + equal, series, project).endswith("True\n")


def test_a_run_stops_early_and_a_resume_with_more_patience_continues_it(tmp_path):
    words, by_metric = documented(document("early-stopping"))
    project = render(workload="tabular")
    short = ("--evaluation.every_steps", "1", "--optimizer.learning_rate", "1e-30")
    result = check_run(project, *words, *short, "--training.max_steps", "20", cwd=tmp_path)
    assert "finished at step 6 of 20" in result.out
    more = check_run(project, "train", "--resume", "--evaluation.patience", "8", cwd=tmp_path)
    assert "finished at step 9 of 20" in more.out
    other = tmp_path / "other"
    other.mkdir()
    check_run(project, *by_metric, "--training.max_steps", "1", cwd=other)


def test_the_words_for_a_debugger_train(tmp_path):
    (launch,) = json.loads(quoted("debugging", "json")[0])["configurations"]
    words = (*launch["args"], "--training.max_steps", "2")
    check_run(render(workload="tabular"), *words, cwd=tmp_path)


# ---- names elsewhere ---------------------------------------------------------------------------


def test_every_name_of_ours_is_a_setting():
    known = set()
    for loader in choices("loader"):
        known |= set(catalogue_of(render(loader=loader, extras=["finetune"])))
    text = document("names").read_text(encoding="utf-8")
    cells = re.findall(r"^\| `.+? \| (.+?) \|$", text, re.MULTILINE)
    ours = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", "".join(cells)))
    assert len(ours) >= 25
    assert ours <= known
