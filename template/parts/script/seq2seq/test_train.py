"""Tests that must pass after you change train.py. They take half a minute on a CPU, on
small pairs of texts."""

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
SMALL = ["--data", "pairs.tsv", "--split", "200,40,40", "--batch_size", "8", "--layers", "1"]
SMALL += ["--heads", "2", "--width", "16", "--hidden", "32"]
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
    words = np.random.default_rng(0)
    lines = []
    for _ in range(300):
        chosen = words.choice(["one", "zwei", "três"], words.integers(1, 9))
        lines.append(f"{' '.join(chosen)} {len(lines)}\t{' '.join(chosen[::-1])}\n")
    Path("pairs.tsv").write_text("".join(lines), encoding="utf-8")
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


def loss_of(batch: dict[str, torch.Tensor]) -> tuple[float, float]:
    settings, _ = train.read_settings(train.parse(SMALL))
    torch.manual_seed(0)
    model = train.Model(settings, make_data()).eval()
    with torch.no_grad():
        loss, num_targets, _ = train.compute_loss(model, batch)
    return loss.item(), num_targets.item()


def test_padding_changes_no_loss() -> None:
    data = make_data()
    numbers = np.array([3, 9, 14])
    padded = data.batch("train", np.append(numbers, [-1, -1]))
    assert len(padded["source"]) == 5
    expected = loss_of(data.batch("train", numbers))
    assert loss_of(padded) == pytest.approx(expected, rel=1e-5)


def test_a_batch_has_the_bytes_of_its_pairs() -> None:
    data = make_data()
    pairs = train.read_pairs(Path("pairs.tsv"))
    order = np.random.default_rng(0).permutation(len(pairs))
    for numbers, batch in data.split_batches("validation"):
        for row, number in enumerate(numbers):
            source, target = pairs[order[200 + number]]
            inside = batch["source"][row][batch["source_present"][row]].tolist()
            assert inside == [*source.encode(), train.END]
            targets = batch["targets"][row]
            known = targets[targets != train.IGNORE].tolist()
            assert known == [*target.encode(), train.END]
            seen = batch["decoder_input"][row][: len(known)].tolist()
            assert seen == [train.END, *known[:-1]]


def test_no_token_sees_what_comes_after_it() -> None:
    batch = make_data().batch("train", np.arange(4))
    for place in (0, 3, 5):
        one_target = torch.full_like(batch["targets"], train.IGNORE)
        one_target[:, place] = batch["targets"][:, place]
        changed = batch["decoder_input"].clone()
        changed[:, place + 1 :] = 65
        before = loss_of({**batch, "targets": one_target})
        after = loss_of({**batch, "targets": one_target, "decoder_input": changed})
        assert after == before


def test_pairs_of_similar_length_share_a_batch() -> None:
    settings, _ = train.read_settings(train.parse([*SMALL, "--bucket", "0"]))
    sizes = []
    for data in (make_data(), train.Trainer(settings).data):
        sizes.append(sum(batch["source"].numel() for _, batch in data.epoch(0, 0)))
    assert sizes[0] < 0.9 * sizes[1]


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
    Path("tabs.tsv").write_text("a\tb\nc\n")
    Path("latin.tsv").write_bytes(b"a\tb\xff\n")
    Path("few.tsv").write_text("a\tb\nc\td\n")
    wrong = {
        "--widht 3": "did you mean --width?",
        "--width 0": "--width: use 1",
        "--data no.tsv": "no such file: no.tsv: check --data",
        "--data tabs.tsv": "tabs.tsv, line 2",
        "--data latin.tsv": "not UTF-8 at byte 3: latin.tsv",
        "--data few.tsv": "--split",
        "--data pairs.tsv --pretrained nowhere": "cannot load",
        "--precision fp8": "invalid choice: 'fp8'",
        "--resume": "no run to resume",
    }
    for arguments, reason in wrong.items():
        assert train.main(arguments.split()) == 2
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("error: ") == 1, error


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
