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
SMALL = ["--history", "24", "--horizon", "4", "--split", "1200,300,300", "--batch_size", "16", "--width", "8"]
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
    series, model = data(), train.Model(train.Settings(history=24, horizon=4), data()).eval()
    with torch.no_grad():
        one, two = (model(series.batch("train", np.array(n))) for n in ([0, 1, 2], [0, 1, 2, -1, -1]))
    assert one[0].item() == pytest.approx(two[0].item(), rel=1e-5)
    assert one[1] == two[1]


def test_no_window_sees_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    true, (names, values), number = data(), train.synthesize(), 50
    for row in (true.first["train"] + number, 1200):  # the first target of a window; the end of training
        changed = values.copy()
        changed[row:] += 1000
        monkeypatch.setattr(train, "synthesize", lambda changed=changed: (names, changed))
        other = data()
        seen = np.arange(number + 1 if row < 1200 else true.count["train"])
        before, after = true.batch("train", seen), other.batch("train", seen)
        assert torch.equal(before["rows"], after["rows"])
    assert torch.equal(before["target"], after["target"])
    assert (true.mean, true.std) == (other.mean, other.std)
    assert true.count == other.count


def test_targets_follow_the_history() -> None:
    series, (_, values) = data(), train.synthesize()
    for split in ("train", "validation", "test"):
        batch = series.batch(split, np.array([0, series.count[split] - 1]))
        for row, first in enumerate([series.first[split], series.first[split] + series.count[split] - 1]):
            assert batch["rows"][row].tolist() == values[first - 24 : first].tolist()
            assert batch["target"][row].tolist() == values[first : first + 4].tolist()


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
    Path("gap.csv").write_text("time,a\n2024-01-01,1\n2024-01-02,\n")
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
