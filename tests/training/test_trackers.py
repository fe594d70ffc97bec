"""Trackers, by their own libraries and without a network: what arrives, what never does, and
failures."""

import json
import os
import struct
from shlex import split

import mlflow  # what each child would otherwise import for itself
import pytest
import torch.utils.tensorboard  # noqa: F401
import wandb  # noqa: F401
import yaml
from importing import imported
from ranks import start_ranks
from rendering import render
from running import (
    EXAMPLES,
    check_run,
    evaluation_of,
    losses,
    newest_run,
    one_error,
    rows,
    run,
    start,
)
from variants import choices

TRACKERS = choices("tracker")[1:]
SERVERS = tuple(tracker for tracker in TRACKERS if tracker != "tensorboard")
OPTIONS = split(
    "--data.batch_size 128 --model.width 16 --model.depth 2 --monitor.every_steps 2"
    " --training.max_steps 40 --schedule.warmup_steps 5 --evaluation.every_steps 20"
    " --checkpoint.every_steps 10"
)
SECRET = "f00dfacef00dfacef00dfacef00dfacef00dface"  # 40 characters, as a key of W&B has
NOWHERE = "127.0.0.1:9"  # nobody listens there
KEYS = {
    "WANDB_API_KEY": SECRET,
    "MLFLOW_TRACKING_USERNAME": "somebody",
    "MLFLOW_TRACKING_PASSWORD": SECRET,
    "MLFLOW_TRACKING_TOKEN": SECRET,
}
AWAY = {
    "wandb": {"WANDB_BASE_URL": f"http://{NOWHERE}", "WANDB_INIT_TIMEOUT": "3"},
    "mlflow": {
        "MLFLOW_TRACKING_URI": f"http://somebody:{SECRET}@{NOWHERE}",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    },
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run without a tracker; its data are shared."""
    folder = tmp_path_factory.mktemp("reference")
    check_run(render(workload="tabular"), "train", *OPTIONS, cwd=folder)
    return folder


@pytest.fixture
def place(reference, tmp_path, monkeypatch):
    """A folder with data, and an environment without trackers' names."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "data").symlink_to(reference / "data")
    return tmp_path


def train(place, tracker, *words, before=None):
    project = render(workload="tabular", tracker=tracker)
    return run(project, "train", *(words or OPTIONS), cwd=place, before=before)


# ---- what a tracker has, by its own library ----------------------------------------------------


DRAWN = {
    "tensorboard": [],  # its own test: test_examples.py
    "wandb": ["images/validation/predictions_40_*", "html/validation/worst_40_*"],
    "mlflow": ["*predictions+step+40+*", "validation/worst/step-00000040.md"],
}
Series = dict[str, list[tuple[int, float]]]


def from_tensorboard(place):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = str(newest_run(place) / "tensorboard")
    accumulator = EventAccumulator(folder, {"scalars": 0, "tensors": 0})
    accumulator.Reload()
    series = {}
    for name in accumulator.Tags()["scalars"]:
        series[name] = [(event.step, event.value) for event in accumulator.Scalars(name)]
    (text,) = accumulator.Tensors("config/text_summary")
    settings = yaml.safe_load(text.tensor_proto.string_val[0])
    return {key: str(value) for key, value in settings.items()}, series


def from_wandb(place):
    """All offline parts of the run, as `wandb sync` would send them."""
    config: dict[str, str] = {}
    series: Series = {}
    files = list(newest_run(place).glob("wandb/offline-run-*/run-*.wandb"))
    files.sort(key=lambda path: path.stat().st_mtime)
    assert len({path.name for path in files}) == 1, "one identity, whatever number of parts"
    for record in (record for path in files for record in wandb_records(path)):
        for update in record.run.config.update:
            section = json.loads(update.value_json)
            if isinstance(section, dict):
                config |= {f"{update.key}.{name}": str(x) for name, x in section.items()}
        history = record.history
        for step, items in ((history.step.num, history.item), (-1, record.summary.update)):
            for item in items:
                name = item.key or "/".join(item.nested_key)
                series.setdefault(name, []).append((step, json.loads(item.value_json)))
    return config, series


def wandb_records(path):
    """Records of a .wandb file: 7 bytes, then LevelDB's log format with blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()
    position = 7
    whole = b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack("<HB", content[position + 4 : position + 7])
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(whole)
            whole = b""


def mlflow_run(place):
    client = mlflow.MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("my_training")
    (only,) = client.search_runs([experiment.experiment_id])
    return client, only


def from_mlflow(place):
    client, only = mlflow_run(place)
    assert only.info.status == "FINISHED"
    series = {}
    for name in only.data.metrics:
        history = client.get_metric_history(only.info.run_id, name)
        series[name] = [(metric.step, metric.value) for metric in history]
    return only.data.params, series


# Configuration and (step, value) by name of the one tracked run.
READERS = {"tensorboard": from_tensorboard, "wandb": from_wandb, "mlflow": from_mlflow}


def secrets_in(place):
    """Files below the folder that hold the secret; data are a link and left out."""
    paths = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert paths
    return [str(path) for path in paths if SECRET.encode() in path.read_bytes()]


# ---- tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_its_resume_and_its_evaluation_arrive_and_no_secret_does(
    tracker, place, reference, monkeypatch
):
    for name, value in {**KEYS, EXAMPLES: "1"}.items():
        monkeypatch.setenv(name, value)
    offline = ("--tracker.offline", "true") if tracker in SERVERS else ()
    assert train(place, tracker, *OPTIONS, *offline, "--max-steps", "16").code == 0
    resumed = train(place, tracker, "--resume")
    assert resumed.code == 0, resumed.err
    assert "tracked in" in resumed.out
    project = render(workload="tabular", tracker=tracker)
    check_run(project, "evaluate", cwd=place)

    assert losses(place) == losses(reference)
    config, series = READERS[tracker](place)
    assert config["model.depth"] == "2"
    for group in ("train", "validation"):
        expected = []
        for row in rows(place):
            if row.get("split", "train") == group:
                expected.append((row["step"], pytest.approx(row["loss"], rel=1e-6)))
        assert [point for point in series[f"{group}/loss"] if point[0] >= 0] == expected
    evaluation = evaluation_of(place)
    for name, value in evaluation["metrics"].items():
        assert series[f"test/{name}"][-1][1] == pytest.approx(value, rel=1e-6)

    assert secrets_in(place) == []
    files = [path for path in place.rglob("*") if path.is_file()]
    for pattern in DRAWN[tracker]:
        assert any(path.match(pattern) for path in files), files


def test_rows_that_come_again_after_a_kill_are_drawn_once(place, reference):
    """In TensorBoard; with W&B and MLflow the same numbers stand at the same steps."""
    running = start(render(workload="tabular", tracker="tensorboard"), "train", *OPTIONS, cwd=place)
    running.wait_for_rows(8)  # step 14 or 16; the checkpoint is of step 10
    running.kill()
    running.wait()
    assert train(place, "tensorboard", "--resume").code == 0
    assert losses(place) == losses(reference)
    steps = [step for step, _ in from_tensorboard(place)[1]["train/loss"]]
    assert steps == [1, *range(2, 41, 2)]


def break_midway():
    """Every library's way of taking numbers raises from the third time on, with a key in its
    message."""
    from my_training.engine.monitoring.tracker import Tracker  # type: ignore[import-not-found]

    count = iter(range(10**6))
    real = Tracker.send

    def send(*arguments):
        if next(count) > 2:
            raise ConnectionError(f"lost http://somebody:{SECRET}@{NOWHERE} with key {SECRET}")
        real(*arguments)

    Tracker.send = send


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.first(1)
def test_a_tracker_that_fails_midway_costs_one_line_and_no_step(
    tracker, place, reference, monkeypatch
):
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    done = train(place, tracker, before=break_midway)
    assert done.out.count("note: the tracker failed") == 1, done.err
    assert "lost http" in done.out
    assert losses(place) == losses(reference)
    assert secrets_in(place) == []  # .out and .err are there, too


@pytest.mark.parametrize("tracker", SERVERS)
@pytest.mark.first(1)
def test_no_server_is_one_line_before_training_and_a_note_after_it(
    tracker, place, reference, monkeypatch
):
    online = ("--tracker.offline", "false")
    missing = {"wandb": "WANDB_API_KEY", "mlflow": "MLFLOW_TRACKING_URI"}[tracker]
    unset = train(place, tracker, *OPTIONS, *online)
    one_error(unset, f"{missing} is not set.*--tracker.offline true$")

    for name, value in (KEYS | AWAY[tracker]).items():
        monkeypatch.setenv(name, value)
    refused = train(place, tracker, *OPTIONS, *online)
    line = one_error(refused, "tracker cannot be opened", "--tracker.offline true")
    assert SECRET not in line
    assert not list((place / "runs").iterdir())

    begun = train(place, tracker, *OPTIONS, "--tracker.offline", "true", "--max-steps", "10")
    assert begun.code == 0
    resumed = train(place, tracker, "--resume", *online)
    assert resumed.out.count("note: the tracker cannot be opened") == 1, resumed.err
    assert losses(place) == losses(reference)
    assert secrets_in(place) == []  # .out and .err are there, too


def test_a_login_of_wandb_is_as_good_as_a_key(place, monkeypatch):
    """`wandb login` writes the key to ~/.netrc, by the name of the server."""
    module = imported(render(workload="tabular", tracker="wandb"), "engine.monitoring.tracker")
    assert not module.has_login()
    logins = place / "home/.netrc"
    logins.parent.mkdir()
    logins.write_text(f"machine api.wandb.ai\n  login user\n  password {SECRET}\n")
    logins.chmod(0o600)
    assert module.has_login()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://{NOWHERE}")
    assert not module.has_login()


def test_no_server_ends_all_ranks_with_one_line(place):
    project = render(workload="tabular", distributed="ddp", tracker="mlflow")
    words = ("train", *OPTIONS, "--tracker.offline", "false")
    ended = start_ranks(project, *words, cwd=place).wait()
    assert [result.code for result in ended] == [2, 2]
    assert sum("MLFLOW_TRACKING_URI is not set" in result.err for result in ended) == 1


def test_a_run_that_fails_is_marked_so(place):
    def poison():
        from my_training.engine.training.run import Run  # type: ignore[import-not-found]

        Run.evaluate = lambda self: 1 / 0

    assert train(place, "mlflow", before=poison).code == 1
    _, only = mlflow_run(place)
    assert only.info.status == "FAILED"
    assert only.data.metrics["train/loss"] > 0
