"""Tests that must pass after you change train.py. They take half a minute on a CPU, on
synthetic rows."""

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
STEPS += ["--batch_size", "64", "--learning_rate", "0.003"]  # so that 30 steps learn
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


def loss_of(data: train.Data, batch: Any) -> tuple[float, float]:
    torch.manual_seed(0)
    model = train.Model(train.Settings(), data).eval()
    with torch.no_grad():
        loss, num_targets, _ = train.compute_loss(model, batch)
    return loss.item(), num_targets.item()


def test_padding_changes_no_loss() -> None:
    data = make_data()
    _, padded = next(data.batches("train", np.arange(3)))
    assert len(padded["target"]) == 16
    real = {name: values[:3] for name, values in padded.items()}
    assert loss_of(data, padded) == pytest.approx(loss_of(data, real), rel=1e-5)


def test_training_knows_nothing_of_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    true = make_data()
    table = train.synthesize()
    others = np.random.default_rng(0).permutation(20_000)[400:]  # those after the training rows
    for name, values in table.items():
        values[others] = "9" if name == "soil" else 1e6
    monkeypatch.setattr(train, "synthesize", lambda: table)
    changed = make_data()
    for name in table:
        assert true.facts[name] == changed.facts[name]
    rows = np.array(true.splits["train"])
    for (_, before), (_, after) in zip(
        true.batches("train", rows), changed.batches("train", rows), strict=True
    ):
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_workers_change_nothing() -> None:
    losses = []
    for workers in ("0", "2"):
        flags = ["--max_steps", "3", "--log_every", "1", "--num_workers", workers]
        assert train.main([*SMALL, *flags]) == 0
        losses.append([record["loss"] for record in records()])
    assert losses[0] == losses[1]


def test_classes_are_learned_and_new_categories_are_unknown() -> None:
    lines = ["number,letter,class\n"]
    for row in range(300):
        letter = "abcd"[row % 4] if row < 299 else "z"
        lines.append(f"{row % 3},{letter},{row % 3 > 0}\n")
    Path("table.csv").write_text("".join(lines))
    flags = ["--data", "table.csv", "--task", "classification", "--max_steps", "150"]
    assert train.main([*flags, "--dropout", "0", "--learning_rate", "0.01"]) == 0
    assert records()[-1]["accuracy"] > 0.95


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
    Path("gap.csv").write_text("a,b\n1,1\n2,\n")
    Path("twice.csv").write_text("a,a,b\n1,1,1\n")
    Path("mark.csv").write_text("a,b\n?,1\n2,2\n")
    Path("underscore.csv").write_text("a,b\n1_2,1\n2,2\n")
    wrong = {
        "--widht 3": "did you mean --width?",
        "--width 0": "--width: use 1",
        "--data no.csv": "no such file: no.csv: check --data",
        "--precision fp8": "invalid choice: 'fp8'",
        "--resume": "no run to resume",
        "--data gap.csv": "cannot read '': gap.csv, row 3, column 'b'",
        "--data twice.csv": "3 cells for 2 different column names: twice.csv, row 1",
        "--data mark.csv": "cannot read '?': mark.csv, row 2, column 'a'",
        "--data underscore.csv": "cannot read '1_2'",
        "--data mark.csv --category a,c": "no column 'c': --category: use a, b",
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
