"""What must stay true whatever you change in train.py: half a minute on a CPU, on its own text."""

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
SMALL = ["--data", str(HERE / "train.py"), "--block_size", "16", "--batch_size", "8", "--layers", "2"]
SMALL += ["--heads", "2", "--width", "16", "--dropout", "0.1"]
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


def loss_of(batch: train.Batch) -> tuple[float, float]:
    torch.manual_seed(0)
    settings, *_ = train.read_settings(SMALL)
    model = train.Model(settings, data()).eval()
    with torch.no_grad():
        loss, weight, _ = model(batch)
    return loss.item(), weight.item()


def test_what_fills_a_batch_up_changes_no_loss() -> None:
    text = data()
    one, two = (loss_of(text.batch("train", np.array(numbers))) for numbers in ([0, 1, 2], [0, 1, 2, -1, -1]))
    assert one == pytest.approx(two, rel=1e-5)


def test_a_target_is_the_next_token() -> None:
    text, content = data(), (HERE / "train.py").read_bytes()
    batch = text.batch("train", np.array([0, 3]))
    for row, start in enumerate((0, 48)):
        assert bytes(batch["tokens"][row].tolist()) == content[start : start + 16]
        assert bytes(batch["targets"][row].tolist()) == content[start + 1 : start + 17]


def test_no_token_sees_what_comes_after_it() -> None:
    batch = data().batch("train", np.arange(4))
    for place in (0, 7, 14):
        targets = torch.full_like(batch["targets"], train.IGNORE)
        targets[:, place] = batch["targets"][:, place]
        tokens = batch["tokens"].clone()
        tokens[:, place + 1 :] = 65
        changed = {"tokens": tokens, "targets": targets}
        assert loss_of(changed) == loss_of({**batch, "targets": targets})


def test_no_target_of_a_split_is_one_of_another() -> None:
    text, seen = data(), list[int]()
    for split, (first, last) in text.splits.items():
        targets = torch.cat([batch["targets"].flatten() for _, batch in text.batches(split, 8)])
        assert targets[targets != train.IGNORE].tolist() == text.tokens[first + 1 : last].tolist()
        seen += range(first, last)
    assert seen == list(range(len(text.tokens)))


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
    mistakes = ("--widht 3", "--width 0", "--width 6", "--data no.txt", "--precision fp8", "--resume")
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
