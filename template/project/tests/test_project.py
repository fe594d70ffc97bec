"""Tests that must pass whatever you change in model.py and dataset.py. They use synthetic data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, module

CONFIG = ROOT / "config.yaml"
PROFILES = list(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["profiles"])
SHORT = ["--training.max_steps", "60", "--schedule.warmup_steps", "5", "--monitor.every_steps", "1"]
if "finetune" in module("settings").Settings.model_fields:
    SHORT += ["--finetune.init_from", ""]  # the empty folder has no weights of another run


def losses(run: str) -> list[float]:
    """Return the training losses of a run, one per step."""
    rows = (
        json.loads(line) for line in Path("runs", run, "metrics.jsonl").read_text().splitlines()
    )
    return [row["loss"] for row in rows if "split" not in row]


@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_configuration_loads(profile: str | None) -> None:
    settings = module("settings").Settings.load(CONFIG, profile)
    assert settings.reproducibility.seed >= 0


@pytest.mark.parametrize("train", [True, False])
def test_an_epoch_has_each_sample_once(train: bool) -> None:
    settings = module("settings").Settings.load(CONFIG)
    store = module("assemble").open_store(settings)
    samples = module("dataset").Samples(store, settings, "train" if train else "validation")
    order = module("engine.training.project").make_order(samples, settings, train=train)
    loader = module("engine.loading.loader").Loader(
        samples, store, settings, order, torch.device("cpu")
    )
    seen = torch.cat([batch["index"].clone() for batch in loader.epoch(0)])
    loader.close()
    assert sorted(seen[seen >= 0].tolist()) == list(range(len(samples)))


def test_padding_rows_change_no_loss() -> None:
    """Padding rows are no samples. A loss that ignores `batch["present"]` is silently wrong."""
    settings = module("settings").Settings.load(CONFIG)
    store = module("assemble").open_store(settings)
    samples = module("dataset").Samples(store, settings, "validation")
    model = module("model").build_model(settings, store.facts).eval()
    engine = module("engine.loading.rows")
    device = torch.device("cpu")

    def output(*numbers: int) -> tuple[float, float]:
        indices = np.array(numbers)
        rows = {}
        for name, spans in samples.spans(indices, 0).items():
            rows[name] = engine.gather(engine.mapped(store.arrays[name]), spans)
        if samples.host is not None:
            rows = samples.host(rows, indices, 0)
        batch = engine.deliver(samples, rows, indices, 0, device)
        with torch.no_grad():
            result = model(batch)
        return result.loss.item(), result.total_weight.item()

    loss, weight = output(0, 1, 2)
    assert weight > 0
    assert output(0, 1, 2, -1, -1) == pytest.approx((loss, weight), rel=1e-5, abs=1e-5)


def test_training_learns_and_resumes_bit_for_bit(run: Callable[..., str]) -> None:
    run("train", "--config", str(CONFIG), "--name", "whole", *SHORT)
    whole = losses("whole")
    assert len(whole) == 60
    assert sum(whole[-5:]) < 0.9 * sum(whole[:5])

    run("train", "--config", str(CONFIG), "--name", "parts", "--max-steps", "25", *SHORT)
    assert losses("parts") == whole[:25]
    run("train", "--resume", "parts")
    assert losses("parts") == whole

    run("evaluate", "--run", "parts")
    evaluation = json.loads(Path("runs/parts/evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["metrics"]["loss"] < whole[0]
