"""Tests that must pass after you change train.py. They take half a minute on a CPU, and train
on its source."""

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
SMALL = [
    "--data",
    str(HERE / "train.py"),
    "--block_size",
    "16",
    "--batch_size",
    "8",
    "--layers",
    "2",
]
SMALL += ["--heads", "2", "--width", "16", "--dropout", "0.1"]
STEPS = ["--max_steps", "30", "--evaluate_every", "13", "--save_every", "7", "--log_every", "1"]
KILLED = """
import os, signal, sys, train
log = train.log
def log_and_die(run, record):
    log(run, record)
    if record["step"] == 18:
        os.kill(os.getpid(), signal.SIGKILL)
train.log = log_and_die
train.main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in [*train.ENVIRONMENT, "USE_AMP"]:
        monkeypatch.delenv(name, raising=False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def newest_run() -> Path:
    return max(Path("runs").iterdir())


def records() -> list[dict[str, Any]]:
    """Return the records of the newest run, without measured times."""
    rows = []
    for line in (newest_run() / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name in ("samples_per_second", "step_ms", "data_wait_percent", "remaining"):
            record.pop(name, None)
        rows.append(record)
    return rows


def make_data() -> train.Data:
    settings, _ = train.read_settings(train.parse(SMALL))
    return train.Trainer(settings).data


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(precision: str) -> None:
    flags = ["--max_steps", "3", "--log_every", "1", "--precision", precision]
    assert train.main([*SMALL, *flags]) == 0
    assert np.isfinite([record["loss"] for record in records()]).all()


def samples_from(step: int, epochs: int) -> list[int]:
    """Return the samples that a run trains on, if it resumes at `step` and has `epochs` epochs."""
    settings, _ = train.read_settings(train.parse([*SMALL, "--gradient_accumulation_steps", "3"]))
    data = make_data()
    steps_per_epoch = -(-len(data.splits["train"]) // (3 * settings.batch_size))
    steps = train.training_steps(data, settings, step, steps_per_epoch)
    samples = []
    for _ in range(step, epochs * steps_per_epoch):
        for numbers, _ in next(steps):
            samples += numbers.tolist()
    return samples


def test_each_epoch_has_each_sample_once_in_an_order_of_its_own() -> None:
    samples = samples_from(step=0, epochs=2)
    count = len(samples) // 2
    assert sorted(samples[:count]) == list(range(len(make_data().splits["train"])))
    assert sorted(samples[count:]) == sorted(samples[:count])
    assert samples[count:] != samples[:count]


def test_a_resumed_epoch_has_the_samples_that_are_left() -> None:
    whole = samples_from(step=0, epochs=1)
    remaining = samples_from(step=2, epochs=1)
    assert 0 < len(remaining) < len(whole)
    assert remaining == whole[-len(remaining) :]


def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    settings, _ = train.read_settings(train.parse(SMALL))
    torch.manual_seed(0)
    model = train.Model(settings, make_data()).eval()
    with torch.no_grad():
        loss, num_targets, _ = train.compute_loss(model, (tokens, targets))
    return loss.item(), num_targets.item()


def first_blocks(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    _, batch = next(make_data().batches("train", np.arange(count)))
    return batch


def test_padding_changes_no_loss() -> None:
    tokens, targets = first_blocks(3)
    assert len(tokens) == 8
    assert loss_of(tokens, targets) == pytest.approx(loss_of(tokens[:3], targets[:3]), rel=1e-5)


def test_a_target_is_the_next_token() -> None:
    content = (HERE / "train.py").read_bytes()
    tokens, targets = first_blocks(4)
    for block, start in enumerate((0, 16, 32, 48)):
        assert bytes(tokens[block].tolist()) == content[start : start + 16]
        assert bytes(targets[block].tolist()) == content[start + 1 : start + 17]


def test_no_token_sees_what_comes_after_it() -> None:
    tokens, targets = first_blocks(4)
    for place in (0, 7, 14):
        one_target = torch.full_like(targets, train.IGNORE)
        one_target[:, place] = targets[:, place]
        changed = tokens.clone()
        changed[:, place + 1 :] = 65
        assert loss_of(changed, one_target) == loss_of(tokens, one_target)


def test_splits_have_all_of_the_text_and_share_none() -> None:
    data = make_data()
    seen = []
    for split, blocks in data.splits.items():
        seen.append(data.blocks[split][0, 0].item())
        for _, (_, targets) in data.batches(split, np.array(blocks)):
            seen += targets[targets != train.IGNORE].tolist()
    assert seen == train.tokenize(HERE / "train.py").tolist()


def test_a_damaged_checkpoint_is_skipped() -> None:
    assert train.main([*SMALL, *STEPS]) == 0
    whole = records()
    folder = newest_run() / "checkpoints"
    last = max(folder.glob("*.pt"))
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    assert train.load_checkpoint(folder)["step"] < 30
    assert train.main(["--resume"]) == 0
    assert records() == whole
    assert len(list(folder.glob("*.pt"))) >= 2


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--widht 3", "--width 0", "--width 6", "--data no.txt", "--precision fp8", "--resume"]
    for arguments in map(str.split, wrong):
        assert train.main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1, arguments


def test_learns_and_resumes_bit_for_bit_after_a_kill() -> None:
    assert train.main([*SMALL, *STEPS, "--precision", "fp32"]) == 0
    whole = records()
    losses = [record["loss"] for record in whole if "split" not in record]
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5])
    command = [sys.executable, "-c", KILLED, *SMALL, *STEPS, "--precision", "fp32"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(HERE)})
    assert done.returncode == -signal.SIGKILL
    assert len(records()) < len(whole)
    assert train.main(["--resume"]) == 0
    assert records() == whole
