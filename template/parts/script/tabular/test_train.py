"""What must stay true whatever you change in train.py: half a minute on a CPU, on synthetic data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# isort: split
import train

HERE = Path(__file__).parent
SMALL = ["--split", "0.02,0.01,0.97", "--batch_size", "16", "--width", "8"]
STEPS = ["--max_steps", "30", "--evaluate_every", "13", "--save_every", "7", "--log_every", "1"]
KILLED = """
import os, signal, sys, train
add = train.Records.add
def killed(records, **row):
    add(records, **row)
    if row["step"] == 18:
        os.kill(os.getpid(), signal.SIGKILL)
train.Records.add = killed
train.main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in (*train.ENVIRONMENT, *train.UNUSED):
        monkeypatch.delenv(name, raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def rows() -> list[dict[str, Any]]:
    """Metrics of the newest run, without what a clock measures."""
    newest = max(Path("runs").iterdir())
    found = [json.loads(line) for line in (newest / "metrics.jsonl").read_text().splitlines()]
    timed = ("samples_per_second", "step_ms")
    return [{name: value for name, value in row.items() if name not in timed} for row in found]


def data(*words: str) -> train.Data:
    settings, *_ = train.read_settings([*SMALL, *words])
    return train.Data(settings, torch.device("cpu"))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(precision: str) -> None:
    assert train.main([*SMALL, "--max_steps", "3", "--log_every", "1", "--precision", precision]) == 0
    assert np.isfinite([row["loss"] for row in rows()]).all()


def test_an_epoch_has_each_sample_once() -> None:
    for count in (1, 2, 37, 1000):
        seen = np.concatenate([*train.order(count, 16, 0, 7, 3)])
        assert sorted(seen[seen >= 0]) == list(range(count))
        later = np.concatenate([*train.order(count, 16, 1, 7, 3)] or [seen[16:]])
        assert later.tolist() == seen[16:].tolist()


def test_what_fills_a_batch_up_changes_no_loss() -> None:
    table = data()
    model, rows = train.Model(train.Settings(), table).eval(), table.loaders["train"].dataset
    found = []
    for numbers in ([0, 1, 2], [0, 1, 2, -1, -1]):
        batch = {name: torch.from_numpy(values) for name, values in rows[np.array(numbers)].items()}
        with torch.no_grad():
            loss, weight, _ = model(batch)
        found.append((loss.item(), weight.item()))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_training_knows_nothing_of_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    true, table = data(), train.synthesize()
    others = np.random.default_rng(0).permutation(20_000)[400:]  # of the split, behind the training rows
    for name, values in table.items():
        values[others] = "9" if name == "soil" else 1e6
    monkeypatch.setattr(train, "synthesize", lambda: table)
    changed = data()
    assert (true.scales, true.levels, true.target_scale) == (
        changed.scales,
        changed.levels,
        changed.target_scale,
    )
    pairs = zip(true.batches("train", 16, 0, 7, 3), changed.batches("train", 16, 0, 7, 3), strict=True)
    for (_, before), (_, after) in pairs:
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_workers_change_nothing() -> None:
    found = []
    for workers in ("0", "2"):
        assert train.main([*SMALL, "--max_steps", "3", "--log_every", "1", "--num_workers", workers]) == 0
        found.append([row["loss"] for row in rows()])
    assert found[0] == found[1]


def test_classes_are_learnt_and_categories_that_training_lacks_are_unknown() -> None:
    lines = [
        f"{place % 3},{'abcd'[place % 4] if place < 299 else 'z'},{place % 3 > 0}\n" for place in range(300)
    ]
    Path("table.csv").write_text("".join(["number,letter,class\n", *lines]))
    words = ["--data", "table.csv", "--task", "classification", "--max_steps", "150", "--dropout", "0"]
    assert train.main([*words, "--learning_rate", "0.01"]) == 0
    assert rows()[-1]["accuracy"] > 0.95


def test_a_damaged_checkpoint_is_passed_over() -> None:
    assert train.main([*SMALL, *STEPS]) == 0
    folder = max(Path("runs").iterdir()) / "checkpoints"
    last = train.newest(folder)
    assert last is not None
    content = bytearray((last / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (last / "model.safetensors").write_bytes(content)
    before = train.newest(folder)
    assert before is not None
    assert before.name < last.name
    assert train.main(["--resume"]) == 0


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gap.csv").write_text("a,b\n1,1\n2,\n")
    mistakes = ("--widht 3", "--width 0", "--data gap.csv", "--data no.csv", "--precision fp8", "--resume")
    for words in map(str.split, mistakes):
        assert train.main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_learns_and_goes_on_bit_for_bit_after_a_kill() -> None:
    assert train.main([*SMALL, *STEPS, "--precision", "fp32"]) == 0
    whole = rows()
    losses = [row["loss"] for row in whole if "split" not in row]
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5])
    command = [sys.executable, "-c", KILLED, *SMALL, *STEPS, "--precision", "fp32"]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": str(HERE)}).returncode == -9
    assert len(rows()) < len(whole)
    assert train.main(["--resume"]) == 0
    assert rows() == whole
