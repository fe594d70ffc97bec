"""Tests that must pass after you change train.py. They take half a minute on a CPU, on
synthetic stocks."""

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
SMALL = ["--batch_size", "4", "--width", "8", "--window", "6", "--neighbors", "3"]
SMALL += ["--correlation_days", "30", "--split", "150,40,40"]
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
    _, padded = next(data.batches("train", np.arange(3)))
    whole = {name: values[:3] for name, values in padded.items()}
    assert len(padded["features"]) == 4
    assert not padded["listed"][3].any()
    assert loss_of(padded) == pytest.approx(loss_of(whole), rel=1e-5)


def test_no_day_sees_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither features nor graphs nor scales of training days change with later prices."""
    before = make_data()
    count = len(before.splits["train"])
    last_day = before.days[count - 1] + 1  # its target is the day after it
    stocks = train.synthesize()
    for name, stock in stocks.items():
        later = np.arange(len(stock.dates)) > last_day
        prices = np.where(later[:, None], 7 * stock.prices, stock.prices)
        adjusted = np.where(later, 7 * stock.adjusted, stock.adjusted)
        stocks[name] = stock._replace(prices=prices, adjusted=adjusted)
    monkeypatch.setattr(train, "synthesize", lambda: stocks)
    after = make_data()
    assert after.scale == before.scale
    assert after.facts["sha256"] != before.facts["sha256"]
    for (_, batch), (_, other) in zip(
        before.split_batches("train"), after.split_batches("train"), strict=True
    ):
        for name in batch:
            assert torch.equal(batch[name].nan_to_num(), other[name].nan_to_num()), name


def test_graphs_from_the_file_are_those_of_a_batch() -> None:
    settings, _ = train.read_settings(train.parse([*SMALL, "--cached_graphs", "0"]))
    rebuilt = train.Trainer(settings).data
    for (_, batch), (_, other) in zip(
        make_data().split_batches("validation"), rebuilt.split_batches("validation"), strict=True
    ):
        assert torch.equal(batch["neighbors"], other["neighbors"])
        assert (batch["neighbors"][batch["listed"]] >= 0).any()


def test_neighbors_are_the_most_correlated() -> None:
    returns = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    returns[:, 3] = -returns[:, 1] + 0.01 * returns[:, 0]
    expected = np.abs(np.corrcoef(returns.double().numpy().T))
    np.fill_diagonal(expected, -1)
    neighbors = train.correlated(returns, 2, overlap=3)
    assert neighbors.tolist() == np.argsort(-expected, axis=1)[:, :2].tolist()


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
    header = "date,open,high,low,close,volume\n"
    for name, text in {
        "column": "date,open,high,low,close\n2024-01-02,1,1,1,1\n",
        "date": f"{header}2024-31-01,1,1,1,1,9\n",
        "price": f"{header}2024-01-02,1,1,0,1,9\n",
        "few": f"{header}2024-01-02,1,1,1,1,9\n",
    }.items():
        Path(name).mkdir()
        Path(name, "A.csv").write_text(text)
    wrong = {
        "--widht 3": "did you mean --width?",
        "--width 0": "--width: use 1",
        "--width 9": "is no multiple of --heads 4",
        "--data nowhere": "no such file: nowhere: check --data",
        "--data .": "no .csv or .csv.gz file in the folder",
        "--data column": "not one column 'volume'",
        "--data date": "A.csv, row 2",
        "--data price": "a price of 0 or below",
        "--data few": "have --window 20 days: add more",
        "--precision fp8": "invalid choice: 'fp8'",
        "--resume": "no run to resume",
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
    first, *_, last = [record["loss"] for record in whole if record.get("split") == "validation"]
    assert last < first
    command = [sys.executable, "-c", KILLED, *SMALL, *STEPS, "--precision", "fp32"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(HERE)})
    assert done.returncode == -signal.SIGKILL
    assert len(records()) < len(whole)
    assert train.main(["--resume"]) == 0
    assert records() == whole
