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
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

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
    curve, passed = Curve(), 0.0
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = command_line(parser, steps=4, seeds=1)
    if arguments.rehearse:
        shrink()
    on = machine()
    found: dict[tuple[str, float], list[Curve]] = {}
    with tempfile.TemporaryDirectory() as place:
        for seed in range(arguments.seeds):
            for rate in RATES:
                for name in OPTIMIZERS:  # in turn, so that a drifting machine costs both alike
                    curve = train(Path(place), name, rate, seed, arguments.steps)
                    found.setdefault((name, rate), []).append(curve)
                    print(f"{name} {rate:g} seed {seed}: {curve[-1]}", flush=True)
    ends = {key: [curve[-1][2] for curve in curves] for key, curves in found.items()}
    rows = []
    for (name, rate), losses in ends.items():
        spread = f"{min(losses):.3f} to {max(losses):.3f}"
        step = statistics.median(curve[-1][1] / curve[-1][0] * 1000 for curve in found[name, rate])
        rows.append([name, f"{rate:g}", f"{statistics.mean(losses):.3f}", spread, f"{step:.1f}"])
    best = {
        n: min((k for k in ends if k[0] == n), key=lambda k: statistics.mean(ends[k]))
        for n in OPTIMIZERS
    }
    half = arguments.steps // 2 // EVERY * EVERY
    shortest = min(curve[-1][1] for name in OPTIMIZERS for curve in found[best[name]])
    compared = []
    for name in OPTIMIZERS:
        curves = found[best[name]]
        middle = statistics.mean(
            next(loss for step, _, loss in curve if step == half) for curve in curves
        )
        cells = [
            middle,
            statistics.mean(ends[best[name]]),
            at(curves, shortest / 2),
            at(curves, shortest),
        ]
        compared.append([f"{name} at {best[name][1]:g}", *(f"{cell:.3f}" for cell in cells)])
    steps = [f"after {half} steps", f"after {arguments.steps} steps"]
    times = [f"after {seconds:.1f} s of training" for seconds in (shortest / 2, shortest)]
    publish(
        "muon",
        "llm",
        f"{on}. A GPT of 4 layers and width 128, fp32, one thread, {arguments.steps} steps of 8 × 64 byte "
        f"tokens of the synthetic text, cosine schedule, {arguments.seeds} seeds; validation loss a token",
        {
            "columns": ["optimizer", "learning rate", "loss", "of its seeds", "ms a step"],
            "rows": rows,
        },
        {"columns": ["at its best rate", *steps, *times], "rows": compared},
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
