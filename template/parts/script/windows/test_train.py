"""Tests that must pass after you change train.py. They take half a minute on a CPU, on
synthetic windows."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

# isort: split
import train

HERE = Path(__file__).parent
SMALL = ["--data", "small.h5", "--batch_size", "16", "--width", "8", "--shuffle_block", "200"]
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
    with h5py.File(train.synthesize()) as file, h5py.File("small.h5", "w") as small:
        for name in ("features", "targets"):
            small[name] = file[name][:1800]
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
    numbers, (features, targets, _) = next(data.split_batches("train"))
    _, padded = next(data.padded([(numbers[:3], (features[:3], targets[:3]))]))
    assert len(padded[0]) == 16
    assert loss_of(padded) == pytest.approx(loss_of([part[:3] for part in padded]), rel=1e-5)


def rows_of(batches: Any) -> tuple[list[int], torch.Tensor]:
    """Return the numbers of samples, and their features."""
    numbers = []
    features = []
    for chosen, (part, *_) in batches:
        numbers += chosen.tolist()
        features.append(part[: len(chosen)])
    return numbers, torch.cat(features)


@pytest.mark.parametrize("options", [{}, {"resident": False}, {"chunk_size_gb": 1e-9}])
def test_each_batch_has_the_rows_of_the_file(options: dict[str, Any]) -> None:
    """Whatever the chunks are, the order is the same, also from a later batch on."""
    path = make_data().path
    with h5py.File(path) as file:
        stored = torch.from_numpy(file["features"][100:800])
    choices = {"shuffle": True, "rows": range(100, 800), "shuffle_block": 64, **options}
    loader = train.ChunkDataLoader(path, 50, **choices)
    numbers, features = rows_of(loader.batches(epoch=3))
    assert torch.equal(features, stored[numbers])
    assert sorted(numbers) == list(range(700))
    remaining, features = rows_of(loader.batches(epoch=3, start=5))
    assert remaining == numbers[250:]
    assert torch.equal(features, stored[remaining])


def test_batches_may_be_kept() -> None:
    loader = train.ChunkDataLoader(make_data().path, 100, chunk_size_gb=1e-9)
    kept = [part for _, (part, _) in loader.batches()]
    assert torch.equal(torch.cat(kept), torch.cat([part for _, (part, _) in loader.batches()]))
    assert len({part.data_ptr() for part in kept}) == len(kept)


def test_a_dataloader_gives_the_same_batches() -> None:
    settings, _ = train.read_settings(train.parse([*SMALL, "--chunk_loader", "0"]))
    slow = train.Trainer(settings).data
    for (numbers, batch), (others, other) in zip(
        make_data().epoch(1, 2), slow.epoch(1, 2), strict=True
    ):
        assert numbers.tolist() == others.tolist()
        assert all(map(torch.equal, batch, other))


def test_nothing_of_the_future_is_in_training() -> None:
    """Neither in the scale nor in a window."""
    data = make_data()
    last = data.splits["train"].stop
    shutil.copy("small.h5", "changed.h5")
    with h5py.File("changed.h5", "r+") as file:
        file["features"][last + 27 :] += 1000
        file["targets"][last + 27 :] += 1000
    changed = train.Data(train.read_settings(train.parse([*SMALL, "--data", "changed.h5"]))[0])
    assert changed.scale == data.scale


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
    Path("text.h5").write_text("no HDF5")
    with h5py.File("shapes.h5", "w") as file:
        file["features"] = np.zeros((9, 4, 2))
        file["targets"] = np.zeros((8, 1))
    with h5py.File("nan.h5", "w") as file:
        file["features"] = np.full((100, 4, 2), np.nan)
        file["targets"] = np.zeros((100, 1))
    wrong = {
        "--widht 3": "did you mean --width?",
        "--width 0": "--width: use 1",
        "--data no.h5": "no such file: no.h5: check --data",
        "--data text.h5": "cannot read the file",
        "--data shapes.h5": "unequal numbers of rows",
        "--data nan.h5": "a training value is not a finite number: nan.h5",
        "--precision fp8": "invalid choice: 'fp8'",
        "--resume": "no run to resume",
        "--data small.h5 --split 0.6,0.2,0.1": "fractions that add up to 1",
        "--data small.h5 --purge 1700": "use a smaller --purge",
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
