"""Peers of the workload `forecast`: N-HiTS as neuralforecast and darts have it.

Both bring many packages, so `make bench PART=forecast` gives them an environment of their own.
This file runs in it, and prints one line of JSON: CPU seconds, steps and versions.

    .venv-forecasters/bin/python benchmarks/forecasters.py neuralforecast series.npz out.npy
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

TRIAL = (20, 60)  # steps; their difference shows the time of a step
BATCH = 256
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
Fit = Callable[[int], Callable[[], np.ndarray]]  # steps → a function that forecasts


def neuralforecast(series: list[np.ndarray], plan: argparse.Namespace) -> Fit:
    """Its defaults, and `scaler_type` standard: a window by its own mean and deviation."""
    import pandas
    from neuralforecast import NeuralForecast
    from neuralforecast.models import NHITS

    lengths = [len(values) for values in series]
    table = pandas.DataFrame(
        {
            "unique_id": np.repeat([f"{number:06}" for number in range(len(series))], lengths),
            "ds": np.concatenate([np.arange(length) for length in lengths]),
            "y": np.concatenate(series),
        }
    )

    def fit(steps: int) -> Callable[[], np.ndarray]:
        model = NHITS(
            h=plan.horizon,
            input_size=plan.history,
            max_steps=steps,
            scaler_type="standard",
            random_seed=plan.seed,
            **QUIET,
        )
        forecaster = NeuralForecast([model], freq=1)
        forecaster.fit(table)
        return lambda: forecaster.predict()["NHITS"].to_numpy().reshape(len(series), -1)

    return fit


def darts(series: list[np.ndarray], plan: argparse.Namespace) -> Fit:
    """Its defaults, but standardized series, absolute errors, and normalization of each window."""
    import torch
    from darts import TimeSeries
    from darts.models import NHiTSModel

    scales = [(values.mean(), values.std() or 1.0) for values in series]
    given = []
    for values, (mean, std) in zip(series, scales, strict=True):
        given.append(TimeSeries.from_values(((values - mean) / std).astype(np.float32)))

    def fit(steps: int) -> Callable[[], np.ndarray]:
        model = NHiTSModel(
            plan.history,
            plan.horizon,
            batch_size=BATCH,
            n_epochs=10_000,  # `max_steps` ends it
            loss_fn=torch.nn.L1Loss(),
            use_reversible_instance_norm=True,
            random_state=plan.seed,
            pl_trainer_kwargs={**QUIET, "max_steps": steps},
        )
        model.fit(given, verbose=False)

        def predict() -> np.ndarray:
            forecasts = model.predict(plan.horizon, given, verbose=False)
            rows = []
            for forecast, (mean, std) in zip(forecasts, scales, strict=True):
                rows.append(forecast.values()[:, 0] * std + mean)
            return np.stack(rows)

        return predict

    return fit


def seconds_of(fit: Fit, steps: int) -> tuple[float, Callable[[], np.ndarray]]:
    """CPU seconds of a training, and what it gives."""
    start = time.process_time()
    predict = fit(steps)
    return time.process_time() - start, predict


def steps_within(fit: Fit, seconds: float) -> int:
    """How many steps fit into so many CPU seconds."""
    few, many = TRIAL
    fit(1)  # what compiles or is imported when it is first used
    first, second = (seconds_of(fit, steps)[0] for steps in TRIAL)
    step = (second - first) / (many - few)
    return max(int((seconds - first) / step) + few, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["neuralforecast", "darts"])
    parser.add_argument("series", help="npz: `values`, one series after the other, and `lengths`")
    parser.add_argument("output", help="npy: forecasts (S, H)")
    parser.add_argument("--history", type=int, default=168)
    parser.add_argument("--horizon", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="of the CPU that training may take")
    parser.add_argument("--steps", type=int, help="instead of --seconds")
    plan = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    import torch

    torch.set_num_threads(1)
    data = np.load(plan.series)
    series = np.split(data["values"], np.cumsum(data["lengths"])[:-1])
    builders: dict[str, Any] = {"neuralforecast": neuralforecast, "darts": darts}
    fit = builders[plan.peer](series, plan)
    steps = plan.steps or steps_within(fit, plan.seconds)
    seconds, predict = seconds_of(fit, steps)
    np.save(plan.output, predict())
    versions = {name: version(name) for name in (plan.peer, "torch")}
    print(json.dumps({"seconds": seconds, "steps": steps, "versions": versions}))


if __name__ == "__main__":
    main()
