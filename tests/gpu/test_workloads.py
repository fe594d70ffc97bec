"""Every workload on a GPU: learns, repeats itself after a resume, with each format and switch that it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from test_training import FP8, losses, rows, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
SMALL = {  # learns in 60 steps, with products that tensor cores take
    "timeseries": ("--model.width", "64", "--optimizer.learning_rate", "0.01"),
    "windows": ("--model.width", "64", "--optimizer.learning_rate", "0.01"),
    "llm": (
        *("--data.sample_mb", "1", "--data.block_size", "128", "--data.batch_size", "16"),
        *("--model.layers", "2", "--model.width", "256", "--model.heads", "4"),
        *("--optimizer.learning_rate", "3e-3"),
    ),
    "graph": ("--data.batch_size", "8", "--model.width", "32", "--optimizer.learning_rate", "3e-3"),
    "seq2seq": (
        "--data.batch_size",
        "32",
        "--model.size",
        "tiny",
        "--optimizer.learning_rate",
        "3e-3",
    ),
}
LOADERS = {"windows": "chunk", "timeseries": "memmap", "llm": "memmap"}
OPTIONS = (
    "--monitor.every_steps",
    "1",
    "--training.max_steps",
    "60",
    "--schedule.warmup_steps",
    "10",
)


def cell(workload: str) -> dict[str, str]:
    """Answers of the project that is there; skips the test on a machine where it was not carried to."""
    loader = LOADERS.get(workload, "dataloader")
    carried = os.environ.get("FASTTRAIN_PROJECTS")
    if carried and not (Path(carried) / f"{workload}-{loader}-pytorch").exists():
        pytest.skip(f"no project of {workload} here")
    return {"workload": workload, "loader": loader}


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("workload", SMALL)
def test_learns_and_resumes(workload: str, precision: str, tmp_path: Path) -> None:
    """Deterministic, so that the resumed run must repeat the other one bit for bit; eager, to be quick."""
    words = (
        *OPTIONS,
        *SMALL[workload],
        "--training.precision",
        precision,
        "--compile.enabled",
        "false",
    )
    words += ("--reproducibility.deterministic", "true")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    train(whole, "train", *words, **cell(workload))
    train(parts, "train", *words, "--max-steps", "33", **cell(workload))
    train(parts, "train", "--resume", **cell(workload))
    assert losses(parts) == losses(whole)
    assert losses(whole)[-1] <= 0.9 * losses(whole)[0]


@pytest.mark.parametrize("workload", SMALL)
def test_every_switch_learns_alike(workload: str, tmp_path: Path) -> None:
    """Compiled, recomputed, unfused: the loss after 60 steps is that of the plain run, to rounding."""
    found = {}
    for name, switch in {
        "plain": ("--compile.enabled", "false"),
        "compiled": ("--compile.enabled", "true"),
        "recomputed": ("--compile.enabled", "false", "--training.gradient_checkpointing", "true"),
        "unfused": ("--compile.enabled", "false", "--optimizer.fused", "false"),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        words = (*SMALL[workload], "--training.precision", "tf32", "--model.dropout", "0", *switch)
        train(folder, "train", *OPTIONS, *words, **cell(workload))
        found[name] = sum(losses(folder)[-10:]) / 10
    for name, loss in found.items():
        assert loss == pytest.approx(found["plain"], rel=0.05), name


@pytest.mark.parametrize("workload", FP8)
def test_fp8_learns_like_bf16(workload: str, tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8 before sm 8.9")
    pytest.importorskip("torchao")
    found = {}
    for precision in ("bf16", "fp8"):
        folder = tmp_path / precision
        folder.mkdir()
        train(
            folder,
            "train",
            *OPTIONS,
            *SMALL[workload],
            "--training.precision",
            precision,
            **cell(workload),
        )
        found[precision] = sum(losses(folder)[-10:]) / 10
    assert found["fp8"] == pytest.approx(found["bf16"], rel=0.1)


@pytest.mark.parametrize("workload", SMALL)
def test_rows_of_metrics_hold_what_a_gpu_adds(workload: str, tmp_path: Path) -> None:
    train(tmp_path, "train", *OPTIONS, *SMALL[workload], "--max-steps", "12", **cell(workload))
    for row in rows(tmp_path):
        assert row["step_ms"] > 0
        assert 0 <= row["data_wait_fraction"] <= 1
