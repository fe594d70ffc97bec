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
    for name in train.ENVIRONMENT:
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
        for name in ("samples_per_second", "step_ms", "remaining"):
            record.pop(name, None)
        rows.append(record)
    return rows


def make_trainer(*flags: str) -> train.Trainer:
    settings, _ = train.read_settings(train.parse([*SMALL, *flags]))
    return train.Trainer(settings)


def make_data(*flags: str) -> train.Data:
    return make_trainer(*flags).data


def loss_of(batch: Any) -> tuple[float, float]:
    """Return the loss of a model that is always the same, and its number of targets."""
    model = make_trainer().model.eval()
    with torch.no_grad():
        loss, num_targets, _ = train.compute_loss(model, batch)
    return loss.item(), num_targets.item()


def error_of(arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that wrong arguments print."""
    assert train.main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


# --- the order of the samples


def samples_from(step: int, epochs: int) -> list[int]:
    """Return the samples that a run trains on, if it resumes at `step` and has `epochs` epochs."""
    trainer = make_trainer("--gradient_accumulation_steps", "3")
    samples = []
    for number in range(step, epochs * trainer.steps_per_epoch):
        trainer.progress.step = number
        for numbers, _ in trainer.next_batches():
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


# --- data and model
