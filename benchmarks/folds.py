"""Folds of `tabular` against `cross_val_score` of scikit-learn, and how many rows of a rare class
are found with and without `data.balance`.

    python benchmarks/folds.py [folds] [balance] [--seeds 3] [--epochs 30] [--write]

Folds: three tables of scikit-learn, five folds each, with the model of the default settings (three
layers of 64) on one side, and `StandardScaler` with `MLPClassifier((64, 64, 64))` on the other. A
seed changes the folds and the weights of both. The folds themselves differ, as both shuffle in
their own way.

Balance: the digit 8 among 1,797 digits, of whose images only a few stay in the table. The rows of
the test split are held out in all three ways.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import numpy as np  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from running import newest_run, run  # noqa: E402

PARTS = ("folds", "balance")
TABLES = ("wine", "breast_cancer", "digits")
FOLDS = 5
RARE = 8  # the digit
FEW = 60  # rows of it that stay
LAYERS = (64, 64, 64)


def loaded(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The features (N, F) and classes (N,) of a table of scikit-learn."""
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True)


def written(path: Path, features: np.ndarray, classes: np.ndarray) -> Path:
    """Write a table as CSV, with names of classes."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{number}" for number in range(features.shape[1])), "class"])
        for row, label in zip(features.tolist(), classes.tolist(), strict=True):
            writer.writerow([*row, f"class {label}"])
    return path


def done(folder: Path, *words: str) -> str:
    """What a command of a project with folds prints."""
    result = run(render(workload="tabular", extras=["folds"]), *words, cwd=folder)
    assert result.code == 0, result.err
    return result.out


def prepared(folder: Path, seed: int, *flags: str) -> None:
    words = ("--target", "class", "--task", "classification", "--seed", str(seed))
    done(folder, "prepare", "--input", "table.csv", *words, *flags)


def trained(folder: Path, seed: int, epochs: int, *flags: str) -> Path:
    """Train; return the folder of the run."""
    words = ("--training.epochs", str(epochs), "--reproducibility.seed", str(seed))
    done(folder, "train", *words, *flags)
    return newest_run(folder)


def our_accuracy(folder: Path, seed: int, epochs: int) -> float:
    """The mean accuracy over the folds, each on its held-out rows."""
    prepared(folder, seed, "--folds", str(FOLDS), "--split", "0.8,0.2")
    path = trained(folder, seed, epochs, "--fold", "all", "--name", f"seed-{seed}")
    done(folder, "evaluate", path.name)
    metrics = json.loads((path / "evaluation.json").read_text())["metrics"]
    return float(metrics["mean"]["accuracy"])


def their_accuracy(features: np.ndarray, classes: np.ndarray, seed: int) -> float:
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = MLPClassifier(LAYERS, max_iter=1000, random_state=seed)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    scores = cross_val_score(make_pipeline(StandardScaler(), model), features, classes, cv=folds)
    return float(scores.mean())


def folds(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A row for each table."""
    rows = []
    for name in TABLES:
        features, classes = loaded(name)
        place = folder / name
        place.mkdir()
        written(place / "table.csv", features, classes)
        ours = []
        theirs = []
        for seed in range(arguments.seeds):
            ours.append(our_accuracy(place, seed, arguments.epochs))
            theirs.append(their_accuracy(features, classes, seed))
            print(f"{name}, seed {seed}: {ours[-1]:.4f}, {theirs[-1]:.4f}", flush=True)
        rows.append([name, f"{len(classes):,}", spread(theirs), spread(ours)])
    columns = ["table", "rows", "`cross_val_score`", "`train --fold all`"]
    return {"columns": columns, "rows": rows}


def balance(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A row for each value of `data.balance`."""
    features, classes = loaded("digits")
    is_rare = classes == RARE
    kept = np.sort(np.concatenate([np.flatnonzero(~is_rare), np.flatnonzero(is_rare)[:FEW]]))
    written(folder / "table.csv", features[kept], is_rare[kept].astype(int))
    scores: dict[str, list[list[float]]] = {}
    for seed in range(arguments.seeds):
        prepared(folder, seed, "--split", "0.35,0.15,0.5")
        for value in ("none", "weights", "sampling"):
            path = trained(folder, seed, arguments.epochs, "--data.balance", value)
            done(folder, "predict", "--run", path.name, "--output", "p.csv")
            with open(folder / "p.csv", newline="") as file:
                predicted = list(csv.DictReader(file))
            guess = np.array([row["prediction"] == "class 1" for row in predicted])
            truth = np.array([row["target"] == "class 1" for row in predicted])
            recall = float(guess[truth].mean())
            others = float((~guess[~truth]).mean())
            scores.setdefault(value, []).append([recall, others])
            print(f"{value}, seed {seed}: {recall:.3f}, {others:.3f}, {truth.sum()}", flush=True)
    rows = []
    for value, values in scores.items():
        of_rare, of_others = zip(*values, strict=True)
        mean = (np.mean(of_rare) + np.mean(of_others)) / 2
        rows.append([f"`{value}`", spread(of_rare), spread(of_others), f"{mean:.3f}"])
    columns = ["`data.balance`", "recall of the rare class", "of the others", "balanced accuracy"]
    return {"columns": columns, "rows": rows}


def spread(values: Any) -> str:
    return f"{np.mean(values):.3f} ({np.std(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; by default all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = command_line(parser, seeds=1, epochs=1)
    how = machine("scikit-learn")
    how += f"; {arguments.seeds} seeds: mean (std); {arguments.epochs} epochs"
    for part in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            table = globals()[part](arguments, Path(folder))
            publish("folds", part, how, table, arguments=arguments)


if __name__ == "__main__":
    main()
