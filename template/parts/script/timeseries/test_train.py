"""Tests that must pass after you change train.py. They take half a minute on a CPU, on
a synthetic series."""

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
SMALL = ["--history", "24", "--horizon", "4", "--split", "1200,300,300", "--batch_size", "16"]
SMALL += ["--width", "8"]
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


def loss_of(batch: Any) -> tuple[float, float]:
    settings, _ = train.read_settings(train.parse(SMALL))
    torch.manual_seed(0)
    model = train.Model(settings, make_data()).eval()
    with torch.no_grad():
        loss, num_targets, _ = train.compute_loss(model, batch)
    return loss.item(), num_targets.item()


def test_padding_changes_no_loss() -> None:
    data = make_data()
    _, padded = next(data.batches(np.arange(3)))
    assert len(padded[0]) == 16
    assert loss_of(padded) == pytest.approx(loss_of([part[:3] for part in padded]), rel=1e-5)


def test_no_window_sees_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names, values = train.synthesize()
    true = make_data()
    # the first target of window 10; the first row after training
    for row in (24 + 10, 1200):
        changed_values = values.copy()
        changed_values[row:] += 1000
        monkeypatch.setattr(train, "synthesize", lambda changed=changed_values: (names, changed))
        changed = make_data()
        assert true.splits == changed.splits
        windows = np.arange(10, 11) if row < 1200 else np.array(true.splits["train"])
        for (_, before), (_, after) in zip(
            true.batches(windows), changed.batches(windows), strict=True
        ):
            if row == 1200:
                assert torch.equal(before[0], after[0])
                assert torch.equal(before[1], after[1])
            else:
                # Standardized by another scale: only the change within the history can be compared.
                scale = torch.tensor(changed.facts["std"]) / torch.tensor(true.facts["std"])
                changes = [(batch[0] - batch[0][:, -1:]) for batch in (before, after)]
                assert torch.allclose(changes[0], changes[1] * scale, atol=1e-2)


def test_targets_follow_the_history() -> None:
    data = make_data()
    _, values = train.synthesize()
    mean = torch.tensor(data.facts["mean"])
    std = torch.tensor(data.facts["std"])
    series = (torch.from_numpy(values) - mean) / std
    ends = {"train": 1200, "validation": 1500, "test": 1800}
    for split, end in ends.items():
        windows = np.array(data.splits[split])[[0, -1]]
        assert windows[1] + 24 + 4 == end
        _, (history, target, _) = next(data.batches(windows))
        for place, row in enumerate(windows):
            assert torch.equal(history[place], series[row : row + 24])
            assert torch.equal(target[place], series[row + 24 : row + 28])
    assert data.splits["validation"][0] + 24 == 1200


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
    Path("gap.csv").write_text("time,a\n2024-01-01,1\n2024-01-02,\n")
    Path("twice.csv").write_text("time,a,a\n2024-01-01,1,2\n")
    Path("underscore.csv").write_text("time,a\n2024-01-01,1_2\n")
    wrong = {
        "--widht 3": "did you mean --width?",
        "--width 0": "--width: use 1",
        "--data no.csv": "no such file: no.csv: check --data",
        "--precision fp8": "invalid choice: 'fp8'",
        "--resume": "no run to resume",
        "--data gap.csv": "gap.csv, row 3",
        "--data twice.csv": "3 cells for 2 different column names: twice.csv, row 1",
        "--data underscore.csv": "an underscore in a number: underscore.csv, row 2",
        "--split 0.6,0.2,0.1": "fractions that add up to 1",
    }
    for arguments, reason in wrong.items():
        assert train.main(arguments.split()) == 2
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("\n") == 1, error


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
