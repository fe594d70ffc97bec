"""Figures of the guides: what a page's commands print and write, next to what its text says.

`figures.yml` has pieces of the text in which `#` is a figure, and what a measurement here calls
each one. Counts are equal; all other figures may differ by 2 % and by the last digit, because
another machine rounds otherwise. Foreign data are in the folder FASTTRAIN_DATA, by the names of
`given`; without them a test skips, and without that folder the longest ones, which need no data.
"""

import gzip
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from rendering import document, render
from running import PACKAGE, evaluation_of, rows, start
from scripts import start_script
from sizes import GPT2
from variants import gpus
from workload import Workload

Found = dict[str, float]  # by name; an int is a count
FIGURE = r"(−?[\d,]*\.?\d+(?:e-\d+)?)"
HOUR = 3600.0


def source(page):
    return document(page).read_text(encoding="utf-8")


def text(page):
    """A page with its lines joined."""
    return " ".join(source(page).split())


def block(page, mark):
    """The commands of the project in the one block of a page that has `mark` in it, as words."""
    blocks = re.findall(r"```sh\n(.+?)```", source(page), flags=re.DOTALL)
    (marked,) = (commands for commands in blocks if mark in commands)
    marked = marked.replace("\\\n", " ")
    lines = [line for line in marked.splitlines() if line.startswith(f"python -m {PACKAGE} ")]
    return [shlex.split(line)[3:] for line in lines]


def given(place, *names):
    """Links to files of FASTTRAIN_DATA; skips the test without that, or where one is not there."""
    folder = os.environ.get("FASTTRAIN_DATA", "")
    if not folder:
        pytest.skip("FASTTRAIN_DATA names no folder: any will do where a test has its own data")
    for name in names:
        if not (Path(folder) / name).exists():
            pytest.skip(f"FASTTRAIN_DATA={folder} names no folder with {name}")
        (place / Path(name).name).symlink_to((Path(folder) / name).resolve())


def done(workload, *words, place):
    """What a command of the project prints."""
    result = start(render(workload=workload), *words, cwd=place).wait(HOUR)
    assert result.code == 0, result.err[-2000:]
    return result.out


def evaluated(workload, *words, place):
    """The model's metrics and `baseline_loss`, by name."""
    done(workload, *words, place=place)
    evaluation = evaluation_of(place)
    return evaluation["metrics"] | {"baseline_loss": evaluation["baseline_loss"]}


def by_script(workload, line, place):
    """What `python train.py …` measures on the test split."""
    words = line.split()[2:]
    project = render(workload=workload, layout="script")
    result = start_script(project, *words, cwd=place).wait(HOUR)
    assert result.code == 0, result.err[-2000:]
    return next(row for row in rows(place) if row.get("split") == "test")


def parameters(out):
    return int(re.findall(r"([\d,]+) parameters", out)[0].replace(",", "")) / 1e6


def followed(workload, mark, place, *trainings):
    """Counts of samples, parameters, and the metrics of each split.

    trainings: more flags of each; its metrics also begin with the last word of them.
    """
    prepare, train, evaluate, *_ = block(workload, mark)
    out = done(workload, *prepare, place=place)
    counts = re.findall(r"(\d[\d,]*) (\w+)", out)
    counts += [(days, split) for split, days in re.findall(r"(\w+): +(\d+) days", out)]
    figures: Found = {name: int(count.replace(",", "")) for count, name in counts}
    for flags in trainings or ("",):
        out = done(workload, *train, *flags.split(), place=place)
        figures["parameters"] = parameters(out)
        for split in ("validation", "test"):
            scores = evaluated(workload, *evaluate, "--split", split, place=place)
            for prefix in ("", f"{split} ", f"{flags.rpartition(' ')[2]} "):
                figures |= {f"{prefix}{name}": x for name, x in scores.items()}
    return figures


# ---- what is measured ----------------------------------------------------------------------------


def series(place):
    given(place, "ETTh2.csv.gz")
    seeds = [f"--reproducibility.seed {seed}" for seed in "123"]
    figures = followed("timeseries", "ETTh2.csv.gz", place, *seeds)
    line = re.findall(r"`(python train.py --data ETTh2.+?)`", text("script"))[0]
    script = by_script("timeseries", line, place)
    for name in ("mse", "mae"):
        figures[name] = float(np.mean([figures[f"{seed} {name}"] for seed in "123"]))
        figures[f"script {name}"] = script[name]
    return figures


def wine(place):
    *_, code = re.findall(r"```python\n(.*?)```", source("script"), flags=re.DOTALL)
    subprocess.run([sys.executable, "-c", code], cwd=place, check=True)
    (line,) = re.findall(r"`(python train.py --data wine.+?)`", source("script"))
    figures = Found()
    for seed in ("42", "43", "44"):
        figures[seed] = by_script("tabular", f"{line} --seed {seed}", place)["accuracy"]
    return figures


def docstrings(place):
    given(place, *(f"docstrings/{name}.tsv.gz" for name in ("train", "val", "test")))
    figures = followed("seq2seq", "--name docstrings", place)
    return figures | {"right": 100 * figures["token_accuracy"]}


def m4(place):
    """Of three seeds, which other rounding changes by some percent."""
    given(place, "m4")
    for path in (place / "m4").glob("Hourly-*.csv.gz"):
        (place / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    code = re.findall(r"```python\n(.*?)```", source("forecast"), flags=re.DOTALL)[-1]
    subprocess.run([sys.executable, "-c", code], cwd=place, check=True)
    prepare, train, evaluate = block("forecast", "--input m4.csv")
    done("forecast", *prepare, place=place)
    scores = []
    for seed in range(3):
        done("forecast", *train, f"--reproducibility.seed={seed}", place=place)
        scores.append(evaluated("forecast", *evaluate, place=place))
    figures = {f"{seed} mase": scores[seed]["mase"] for seed in range(3)}
    for name in ("mase", "smape", "mase_naive", "smape_naive"):
        figures[name] = float(np.median([score[name] for score in scores]))
    return figures | {"within": 0.05}


def stocks(place, *trainings):
    given(place, "stocks")
    (place / "stocks").rename(place / "prices")
    return followed("graph", "--input prices", place, *trainings)


def library(place):
    """Also of the one file, whose losses are the package's: `test_script.py`."""
    given(place)  # a quarter of an hour
    train, evaluate, _ = block("llm", "--name library")
    halfway = ("--evaluation.every_steps", "1000")
    figures = {"parameters": parameters(done("llm", *train, *halfway, place=place))}
    for row in rows(place):
        if "split" in row:
            figures[f"{row['step']} bits"] = row["bits_per_byte"]
            figures[f"{row['step']} perplexity"] = 2 ** row["bits_per_byte"]
    figures |= evaluated("llm", *evaluate, place=place)
    figures["test bits"] = evaluated("llm", "evaluate", "--run", "library", place=place)[
        "bits_per_byte"
    ]
    splits = json.loads((place / "data/synthetic/manifest.json").read_text())["splits"]
    size = splits["validation"][1] - splits["validation"][0]
    figures |= {"validation": size, "MB": splits["test"][1] / 1e6}
    if f"of Python {platform.python_version()}," not in text("llm"):
        figures |= {"validation": float(size), "within": 0.1}  # another text
    return figures


def millions(model):
    return sum(weight.numel() for weight in model.parameters()) / 1e6


def sizes(place):
    """Millions of parameters, of models without memory; GB of weights, gradients and AdamW's
    averages."""
    figures = Found()
    llm = Workload("llm")
    seq2seq = Workload("seq2seq")
    build_gpt = llm.module("model").build_model
    build_t5 = seq2seq.module("model").build_model
    with torch.device("meta"):
        for size in ("tiny", "small", "medium", "large"):
            vocabulary = 257 if size == "tiny" else 50_257
            facts = {"vocabulary": vocabulary, "token_bytes": [1] * vocabulary}
            chosen = ("--model.size", size)
            figures[size] = millions(build_gpt(llm.settings(*chosen), facts))
            gpt2 = build_gpt(llm.settings(*chosen, *GPT2), facts)
            rows, width = gpt2.embedding.weight.shape
            # GPT-2 has no rows but those of its tokens.
            figures[f"{size} gpt2"] = millions(gpt2) - (rows - vocabulary) * width / 1e6
            figures["rows"] = rows - vocabulary
        for size in ("base", "large"):
            facts = {"vocabulary": 32_128, "start": 0, "end": 1, "longest": 512}
            t5 = build_t5(seq2seq.settings("--model.size", size), facts)
            figures[f"T5 {size}"] = 16 * millions(t5) / 1e3
    return figures | {"saved": figures["T5 large"] / 2}


def cards(place):
    figures = Found()
    for card, row in gpus().items():
        for name, value in {"GB": row["memory_gb"], **row["tflops"]}.items():
            if value is not None:
                figures[f"{card} {name}"] = value
    return figures


# ---- what the pages say --------------------------------------------------------------------------

PIECES = yaml.safe_load(Path(__file__).with_name("figures.yml").read_text(encoding="utf-8"))
MEASUREMENTS: dict[str, Callable[[Path], Found]] = {
    "sizes": sizes,
    "rented": cards,
    "ETTh2": series,
    "wine": wine,
    "library": library,
    "docstrings": docstrings,
    "M4": m4,
    "stocks": lambda place: stocks(
        place,
        "--reproducibility.seed 43",
        "--reproducibility.seed 44",
        "--reproducibility.seed 42",
        "--model.graph_layers 0",
    ),
}


def pieces(name):
    """Each piece of a page with its figures, and what the measurement calls them."""
    for page, names_of_piece in PIECES[name].items():
        for piece, names in names_of_piece.items():
            figures = said(page, piece)
            yield f"{page}.md, {piece}", list(zip(figures, names.split(", "), strict=True))


def said(page, piece):
    """The figures of a piece, which is in the page once."""
    matches = re.findall(re.escape(piece).replace(r"\#", FIGURE), text(page))
    assert len(matches) == 1, (page, piece, len(matches))
    return list(matches[0]) if isinstance(matches[0], tuple) else matches


def agree(figure, measured, within=0.02):
    value = float(figure.replace(",", "").replace("−", "-"))
    if isinstance(measured, int):
        return value == measured
    digits = figure.partition("e")[0].partition(".")[2]
    last = 10.0 ** (float(figure.partition("e")[2] or 0) - len(digits))
    return abs(value - measured) <= within * abs(value) + 0.51 * last


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_the_pages_have_the_figures(name):
    assert list(pieces(name))


@pytest.mark.timeout(int(HOUR))
@pytest.mark.first(2)
@pytest.mark.parametrize("name", MEASUREMENTS)
def test_figures_of_the_guides_are_what_their_commands_give(name, tmp_path):
    measured = MEASUREMENTS[name](tmp_path)
    wrong = []
    for where, figures in pieces(name):
        for figure, of in figures:
            print(f"{where}: {figure}, measured {measured[of]}")
            if not agree(figure, measured[of], measured.get("within", 0.02)):
                wrong.append(f"{where}: {figure} where {of} is {measured[of]}")
    assert not wrong, "\n".join(wrong)
