"""Muon against AdamW on a small GPT: the validation loss after equal steps, and after equal time.

The workload `llm` on its synthetic text, four layers of width 128, byte tokens, 250 steps of 8 × 64
tokens on one thread. Each optimizer has several learning rates, each rate several seeds; the mean
over seeds counts, and each optimizer is judged at the best of its own rates. Times are of training
alone, from its rows.

    python benchmarks/muon.py [--steps 250] [--seeds 2] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from running import run  # noqa: E402

RATES: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
OPTIMIZERS = ("adamw", "muon")
EVERY = 25  # steps between two evaluations
MODEL: dict[str, Any] = {
    "data.block_size": 64,
    "data.batch_size": 8,
    "data.sample_mb": 0.5,
    "model.layers": 4,
    "model.width": 128,
    "model.dropout": 0,
    "evaluation.batch_size": 64,
}
Curve = list[tuple[int, float, float]]  # (step, seconds of training so far, validation loss)


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global RATES, EVERY, MODEL
    RATES = RATES[:1]
    EVERY = 1
    MODEL |= {"data.sample_mb": 0.05, "model.layers": 1, "model.width": 32, "model.heads": 2}


def train(folder: Path, name: str, rate: float, seed: int, steps: int) -> Curve:
    """One run, from its rows."""
    title = f"{name}-{rate}-{seed}"
    flags = MODEL | {
        "optimizer.name": name,
        "optimizer.learning_rate": rate,
        "reproducibility.seed": seed,
        "training.max_steps": steps,
        "training.precision": "fp32",
        "evaluation.every_steps": EVERY,
        "checkpoint.every_steps": steps,
        "monitor.every_steps": EVERY,
    }
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    done = run(
        render(workload="llm", extras=["muon"]), "train", "--name", title, *words, cwd=folder
    )
    assert done.code == 0, done.err
    rows = map(json.loads, (folder / "runs" / title / "metrics.jsonl").read_text().splitlines())
    curve = Curve()
    passed = 0.0
    for row in rows:
        if "split" in row:
            curve.append((row["step"], passed, row["loss"]))
        else:
            passed += EVERY * row["step_ms"] / 1000
    return curve


def at(curves: list[Curve], seconds: float) -> float:
    """Mean over seeds of the loss at the last evaluation by then, or at the first one if all came
    later."""
    losses = []
    for curve in curves:
        early = [loss for _, passed, loss in curve if passed <= seconds]
        losses.append(early[-1] if early else curve[0][2])
    return statistics.mean(losses)


Curves = dict[tuple[str, float], list[Curve]]  # by optimizer and learning rate, one of each seed


def measure(seeds: int, steps: int) -> Curves:
    curves: Curves = {}
    with tempfile.TemporaryDirectory() as place:
        for seed in range(seeds):
            for rate in RATES:
                for name in OPTIMIZERS:  # in turn, so that a drifting machine costs both alike
                    curve = train(Path(place), name, rate, seed, steps)
                    curves.setdefault((name, rate), []).append(curve)
                    print(f"{name} {rate:g} seed {seed}: {curve[-1]}", flush=True)
    return curves


def mean_end(curves: list[Curve]) -> float:
    return statistics.mean(curve[-1][2] for curve in curves)


def by_rate(measured: Curves) -> list[list[str]]:
    """Rows of the table of all learning rates."""
    rows = []
    for (name, rate), curves in measured.items():
        losses = [curve[-1][2] for curve in curves]
        spread = f"{min(losses):.3f} to {max(losses):.3f}"
        step = statistics.median(curve[-1][1] / curve[-1][0] * 1000 for curve in curves)
        rows.append([name, f"{rate:g}", f"{mean_end(curves):.3f}", spread, f"{step:.1f}"])
    return rows


def at_best_rates(measured: Curves, steps: int) -> dict[str, Any]:
    """The table of each optimizer at its best learning rate, after as many steps and seconds."""
    best = {}
    for name in OPTIMIZERS:
        rates = [key for key in measured if key[0] == name]
        best[name] = min(rates, key=lambda key: mean_end(measured[key]))
    half = steps // 2 // EVERY * EVERY
    shortest = min(curve[-1][1] for key in best.values() for curve in measured[key])
    rows = []
    for name, key in best.items():
        curves = measured[key]
        halfway = []
        for curve in curves:
            halfway.append(next(loss for step, _, loss in curve if step == half))
        cells = [statistics.mean(halfway), mean_end(curves)]
        cells += [at(curves, shortest / 2), at(curves, shortest)]
        rows.append([f"{name} at {key[1]:g}", *(f"{cell:.3f}" for cell in cells)])
    columns = ["at its best rate", f"after {half} steps", f"after {steps} steps"]
    for seconds in (shortest / 2, shortest):
        columns.append(f"after {seconds:.1f} s of training")
    return {"columns": columns, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = command_line(parser, steps=4, seeds=1)
    if arguments.rehearse:
        shrink()
    how = (
        f"{machine()}. A GPT of 4 layers and width 128, fp32, one thread. {arguments.steps} steps "
        "of 8 × 64 byte tokens of the synthetic text, cosine schedule, "
        f"{arguments.seeds} seeds; validation loss a token"
    )
    measured = measure(arguments.seeds, arguments.steps)
    columns = ["optimizer", "learning rate", "loss", "of its seeds", "ms a step"]
    rates = {"columns": columns, "rows": by_rate(measured)}
    compared = at_best_rates(measured, arguments.steps)
    publish("muon", "llm", how, rates, compared, arguments=arguments)


if __name__ == "__main__":
    main()
