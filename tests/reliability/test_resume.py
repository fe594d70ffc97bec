"""A run that ends early resumes bit for bit: signals, damaged checkpoints, full disks. Kills are in
reliability/test_kills.py."""

import builtins
import errno
import importlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from importing import imported
from rendering import render
from running import (
    PACKAGE,
    check_run,
    evaluation_of,
    evaluations,
    flip_bit,
    losses,
    newest_run,
    one_error,
    report_of,
    rows,
    run,
    start,
    step_of,
    weights,
)
from sizes import TINY
from variants import choices, extras

OPTIONS = (
    *("--data.batch_size", "128", "--model.width", "16", "--model.depth", "2"),
    *("--training.max_steps", "60", "--schedule.warmup_steps", "20", "--monitor.every_steps", "1"),
    *("--evaluation.every_steps", "20", "--checkpoint.every_steps", "7"),
    *("--training.gradient_accumulation_steps", "2"),
)
STEPS = 60


def command(*words, cwd, before=None, **answers):
    return run(render(workload="tabular", **answers), *words, cwd=cwd, before=before)


def train(cwd, *words, before=None, **answers):
    """A new run, or the newest one with `--resume`."""
    if "--resume" not in words:
        words = (*OPTIONS, *words)
    return command("train", *words, cwd=cwd, before=before, **answers)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that nothing disturbed; its data are shared."""
    folder = tmp_path_factory.mktemp("reference")
    result = train(folder)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def place(reference, tmp_path):
    (tmp_path / "data").symlink_to(reference / "data")
    return tmp_path


def assert_same(folder, reference):
    assert losses(folder) == losses(reference)
    assert evaluations(folder) == evaluations(reference)
    assert weights(folder) == weights(reference)
    status = json.loads((newest_run(folder) / "status.json").read_text())
    assert status["state"] == "finished"


def finish(folder, reference, framework="pytorch"):
    """Resumes to the end."""
    result = train(folder, "--resume", framework=framework)
    assert result.code == 0, result.err
    assert_same(folder, reference)


def checkpoints(folder):
    return sorted((newest_run(folder) / "checkpoints").glob("step-*.pt"))


def bits(folder):
    """The exact losses of all micro-batches, and the exact gradient norms of all steps."""
    losses = []
    norms = []
    before = 0
    for row in rows(folder):
        if "split" not in row:
            numbers = memoryview(bytes.fromhex(row["bits"])).cast("f").tolist()
            count = row["step"] - before
            losses += numbers[:-count]
            norms += numbers[-count:]
            before = row["step"]
    return losses, norms


def test_records_have_the_exact_losses_and_norms_of_every_step(reference, place):
    """The reference has a record a step; a record of this run has several, one with a resume."""
    train(place, "--monitor.every_steps", "15", "--max-steps", "17")
    result = train(place, "--resume")
    assert result.code == 0, result.err
    expected = bits(reference)
    assert [len(numbers) for numbers in expected] == [2 * STEPS, STEPS]
    assert bits(place) == expected
    logged = [row for row in rows(reference) if "split" not in row]
    assert expected[1] == [row["gradient_norm"] for row in logged]
    first, second = expected[0][:2]
    assert (first + second) / 2 == pytest.approx(logged[0]["loss"])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc names the workers")
def test_a_resume_right_after_a_kill_gets_the_lock_while_workers_live(place, reference):
    """A child process of the run must not hold its lock."""
    project = render(workload="tabular", loader="dataloader")
    words = ("--data.num_workers", "2", "--data.persistent_workers", "true")
    running = start(project, "train", *OPTIONS, *words, cwd=place)
    running.wait_for_rows(5)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    workers = [Path("/proc", number) for number in children.read_text().split()]
    running.kill()
    running.wait()
    assert any(worker.exists() for worker in workers), "they notice it some seconds later"
    finish(place, reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.cover(1)
def test_signal_saves_reports_and_resumes(framework, number, place, reference):
    project = render(workload="tabular", framework=framework)
    words = OPTIONS
    for num_rows in (5, 30):  # the second one hits the resumed run
        running = start(project, "train", *words, cwd=place)
        running.wait_for_rows(num_rows)
        running.kill(number)
        result = running.wait()
        assert result.code == 128 + number, result.err
        last_step = losses(place)[-1][0]
        assert step_of(checkpoints(place)[-1]) == last_step, "a step was lost"
        assert signal.Signals(number).name in report_of(place)
        words = ("--resume",)
    finish(place, reference, framework)


def test_damaged_checkpoints_are_skipped_and_named(place, reference):
    """If all are damaged, each command that loads one has one line of error."""
    assert train(place, "--max-steps", "21").code == 0
    newest = checkpoints(place)[-1]
    flip_bit(newest, 1000)
    resumed = train(place, "--resume", "--max-steps", "30")
    assert resumed.code == 0, resumed.err
    assert f"skipped a damaged checkpoint: {newest.name}" in resumed.err
    finish(place, reference)

    for path in checkpoints(place):
        os.truncate(path, path.stat().st_size // 2)
    for words in (("evaluate",), ("train", "--resume"), ("predict",)):
        line = one_error(command(*words, cwd=place), "no valid checkpoint")
        assert all(path.name in line for path in checkpoints(place))


def test_a_full_disk_ends_no_training_at_a_record(place, reference):
    """Records that the disk has no room for wait in memory."""

    def fill():
        from my_training.engine.monitoring.run_log import RunLog  # type: ignore[import-not-found]

        real_start = RunLog.start
        flushes = iter(range(10**9))

        class Full:
            def __init__(self, file):
                self.file = file
                self.write = file.write
                self.close = file.close

            def flush(self):
                if 10 <= next(flushes) < 30:
                    raise OSError(28, "No space left on device")
                self.file.flush()

        def start_full(self, *position):
            address = real_start(self, *position)
            self._file = Full(self._file)
            return address

        RunLog.start = start_full

    done = train(place, before=fill)
    assert done.code == 0, done.err
    assert done.out.count("No space left on device: metrics wait in memory") == 1
    assert_same(place, reference)


def test_an_error_before_the_first_step_is_one_line_and_leaves_no_run(place):
    (place / "runs").write_text("a file where a folder should be")
    one_error(train(place), "runs")


def test_missing_foreign_and_changed_data(place, tmp_path):
    nowhere = train(place, "--data.path", "nowhere")
    one_error(nowhere, "no prepared data", "nowhere", "prepare")
    line = one_error(train(place, "--data.path", "s3://me:sec/ret@host/a"), "no prepared data")
    assert "ret@" not in line
    source = (place / "data/synthetic").resolve()
    manifest = json.loads((source / "manifest.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    files = imported(render(workload="tabular"), "engine.files")

    def write():
        manifest["seal"] = files.digest(manifest | {"seal": ""})
        files.write_json(other / "manifest.json", manifest)

    manifest["workload"] = "weather"
    write()
    one_error(train(place, "--data.path", str(other)), "weather")
    assert not list(place.glob("runs/*")), "an error leaves nothing behind"

    assert train(place, "--max-steps", "8").code == 0
    for name in manifest["files"]:
        (other / name).symlink_to(source / name)
    manifest["workload"] = "tabular"
    manifest["splits"]["test"][1] -= 1
    write()
    one_error(train(place, "--resume", "--data.path", str(other)), "data was .* is .* now")
    one_error(command("evaluate", "--data.path", str(other), cwd=place), "other data")


def test_early_stop_and_best_checkpoint(place):
    """A learning rate too high ends the run; `evaluate` takes the best checkpoint. A signal
    interrupts each evaluation once."""

    def interrupted():
        from my_training.engine.training.run import Run

        evaluate = Run.evaluate

        def evaluated(run):
            if run.saved_step != run.progress.step:
                os.kill(os.getpid(), signal.SIGTERM)
            evaluate(run)

        Run.evaluate = evaluated

    words = ("--evaluation.every_steps", "3", "--evaluation.patience", "2")
    words = (*words, "--optimizer.learning_rate", "0.5", "--schedule.name", "constant")
    result = train(place, *words, "--schedule.warmup_steps", "0", before=interrupted)
    while result.code == 143:
        result = train(place, "--resume", before=interrupted)
    assert "early stop" in result.out, result.err
    best_loss, best_step = min((float.fromhex(loss), step) for step, loss in evaluations(place))
    assert losses(place)[-1][0] < STEPS
    assert command("evaluate", "--split", "validation", cwd=place).code == 0
    evaluation = evaluation_of(place)
    assert evaluation["step"] == best_step
    assert evaluation["metrics"]["loss"] == pytest.approx(best_loss)
    logged = list(rows(place))
    assert train(place, "--resume").code == 0
    assert list(rows(place)) == logged, "it stays stopped"


def giving(*values):
    """For `before`: the accuracies of the next evaluations; None for an evaluation without one."""

    def put():
        from my_training import dataset

        given = iter(values)

        def finish(metrics, *others):
            value = next(given)
            return metrics if value is None else {**metrics, "accuracy": value}

        dataset.finish = finish

    return put


def best_step(folder):
    (path,) = (newest_run(folder) / "checkpoints").glob("*-best-*")
    return step_of(path)


def test_another_metric_decides_from_a_resume_on(place):
    """A new comparison: the best checkpoint so far stays until there is a better one."""
    words = ("--evaluation.every_steps", "10", "--evaluation.patience", "2")
    wrong = ("--evaluation.metric", "acuracy")
    line = one_error(train(place, *words, *wrong), "evaluation.metric cannot be 'acuracy'")
    assert "'loss', 'log_loss'" in line
    assert not (place / "runs").exists(), "it is found before the first step"
    assert train(place, *words, "--max-steps", "20").code == 0
    by_loss = best_step(place)

    decides = ("--resume", "--evaluation.metric", "accuracy")
    done = train(place, *decides, "--max-steps", "30", before=giving(float("nan")))
    assert "note: from step 20 on evaluation.metric is accuracy; it was loss" in done.out
    assert best_step(place) == by_loss, "nan is never the best"

    lacks = train(place, "--resume", before=giving(None))
    one_error(lacks, "the evaluation has no metric 'accuracy': evaluation.metric: .*loss, mse")
    assert step_of(checkpoints(place)[-1]) == 40, "nothing is lost"

    done = train(place, "--resume", before=giving(0.9, 0.5, float("inf")))
    assert "early stop: 2 evaluations without a better accuracy" in done.out, done.err
    assert best_step(place) == 40
    marks = [row["best_by"] for row in rows(place) if "split" in row]
    assert marks == ["loss", "loss", "", "accuracy", "", ""]
    assert "- best: validation accuracy 0.9 at step 40" in report_of(place)
    events = (newest_run(place) / "events.jsonl").read_text().splitlines()
    changes = [event for event in map(json.loads, events) if event["event"] == "metric"]
    assert [(event["step"], event["metric"]) for event in changes] == [(20, "accuracy")]


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        ("constant", "constant", "step-00000035 step-00000040-best-stable"),
        ("constant", "wsd", "step-00000035 step-00000040-best-stable"),
        ("wsd", "wsd", "step-00000032-stable step-00000035 step-00000040-best"),
    ],
)
def test_a_run_that_becomes_longer_equals_one_that_was_so_from_the_start(
    first, then, kept, place, tmp_path
):
    """After a decay, it goes back to the checkpoint before it, and keeps its end under another name."""
    whole = tmp_path / "whole"
    (whole / "data").parent.mkdir()
    (whole / "data").symlink_to(place / "data")
    longer = ("--schedule.name", then, "--training.max_steps", "60")
    assert train(whole, *longer).code == 0
    assert train(place, "--schedule.name", first, "--training.max_steps", "40").code == 0
    assert " ".join(path.name[:-20] for path in checkpoints(place)) == kept
    shorter = (losses(place), evaluations(place), weights(place))

    result = train(place, "--resume", *longer)
    assert result.code == 0, result.err
    assert "of 60" in result.out
    assert_same(place, whole)
    assert losses(place)[:32] == shorter[0][:32]
    ends = sorted(newest_run(place).glob("checkpoints/*.decayed"))
    assert len(ends) == 2 * (first == "wsd")
    if first == "wsd":
        assert (
            "note: the run repeats its decay from step 32 on; *.decayed was its end" in result.err
        )
        for path in checkpoints(place):
            path.unlink()
        ends[-1].rename(ends[-1].with_suffix(".pt"))
        assert weights(place) == shorter[2]


def test_a_run_keeps_its_length_where_its_learning_rates_would_be_others(place):
    """One line says what is another one; nothing is lost, and the run is still a finished one."""
    assert train(place, "--schedule.name", "wsd", "--training.max_steps", "40").code == 0
    before = sorted(path.name for path in newest_run(place).rglob("*"))
    status = (newest_run(place) / "status.json").read_text()
    for words, line in {
        ("--schedule.warmup_steps", "auto"): "warmup_steps 20 in .*warmup_steps 6 now",
        ("--schedule.decay_steps", "30"): "is wsd over 60 steps now: .*: restore",
        ("--schedule.name", "cosine"): "is cosine over 60 steps now: .*: restore",
    }.items():
        refused = train(place, "--resume", "--training.max_steps", "60", *words)
        one_error(refused, line)
        assert (newest_run(place) / "status.json").read_text() == status
    assert sorted(path.name for path in newest_run(place).rglob("*")) == before


def test_a_run_resumes_when_extras_tracker_and_loader_are_others(tmp_path):
    """A note names the sections that are gone, and every loss is the same."""
    others = set(extras("timeseries")) - {"frames"}  # which reads another dataset
    answers = {"loader": "chunk", "tracker": "tensorboard", "extras": sorted(others)}
    everything = render(workload="timeseries", **answers)
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    words = ("train", *TINY["timeseries"], "--training.max_steps", "20")
    words = (*words, "--evaluation.every_steps", "10", "--monitor.every_steps", "1")
    check_run(everything, *words, cwd=whole)
    check_run(everything, *words, "--max-steps", "12", cwd=parts)
    (parts / "config.yaml").unlink()  # as an update leaves it
    resumed = check_run(render(workload="timeseries", extras=[]), "train", "--resume", cwd=parts)
    assert "watch" in resumed.err
    assert losses(parts) == losses(whole)
    assert evaluations(parts) == evaluations(whole)


def test_a_failed_read_of_records_ends_a_resume_and_loses_nothing(place, reference):
    """When the file can be read again, the run resumes as if nothing had been."""
    assert train(place, "--max-steps", "25").code == 0
    folder = newest_run(place)
    before = {path: path.read_bytes() for path in folder.glob("**/*.*")}

    def failing(name, number):
        real = builtins.open

        def fault():
            def open_or_fail(path, mode="r", *arguments, **options):
                if mode == "r" and Path(str(path)).name == name:
                    raise OSError(number, os.strerror(number))
                return real(path, mode, *arguments, **options)

            builtins.open = open_or_fail

        return fault

    for name, number in (
        ("metrics.jsonl", errno.EIO),
        ("metrics.jsonl", errno.EACCES),
        ("metrics.jsonl", errno.EMFILE),
        ("env.json", errno.ESTALE),
    ):
        refused = train(place, "--resume", before=failing(name, number))
        one_error(refused, f"{os.strerror(number)}: '{folder.relative_to(place)}/{name}': train")
        for path, content in before.items():
            if path.name not in ("status.json", "report.md", "curves.png"):  # of how it ended
                assert path.read_bytes() == content, path
    assert train(place, "--resume").code == 0
    assert_same(place, reference)


def unknown(name, hides):
    """Nobody can say now whether there is a file. hides: as on Python 3.14, `exists` says no."""

    def fault():
        real = os.stat

        def stat_or_fail(path, *arguments, **options):
            if isinstance(path, str | os.PathLike) and os.fspath(path).endswith(name):
                raise OSError(errno.EIO, "Input/output error", str(path))
            return real(path, *arguments, **options)

        os.stat = stat_or_fail
        if hides:
            Path.exists = lambda path: os.path.exists(path)  # type: ignore[method-assign]

    return fault


def test_a_file_that_nobody_can_see_now_is_not_absent(place):
    """No older run, no new start and no synthetic data take the place of what is there."""
    assert train(place, "--max-steps", "25", "--name", "half").code == 0
    older = place / "runs/older"
    shutil.copytree(place / "runs/half", older)
    environment = json.loads((older / "env.json").read_text())
    environment["started"] -= 1000
    (older / "env.json").write_text(json.dumps(environment))
    before = {path: path.read_bytes() for path in place.glob("runs/**/*.*")}
    config = "half/config.resolved.yaml"
    for name, words in (
        (config, ("train", "--resume", "half")),
        (config, ("train", "--resume")),
        (config, ("evaluate",)),
        ("data/manifest.json", ("train", *OPTIONS, "--name", "new")),
    ):
        for hides in (False, True):
            refused = command(*words, cwd=place, before=unknown(name, hides))
            one_error(refused, f"Input/output error: '.*{name}'")
            assert {path: path.read_bytes() for path in place.glob("runs/**/*.*")} == before


def test_a_run_that_has_trained_is_never_removed(place):
    """The process knows that it has, and asks no file."""

    def fault():
        unknown("new/env.json", True)()
        hook: Any = importlib.import_module(f"{PACKAGE}.hooks.alerts").Hook
        errors: Any = importlib.import_module(f"{PACKAGE}.engine.errors")

        def fail(self, run, record):
            if run.step == 10:
                raise errors.UserError("own")

        hook.before_record = fail

    one_error(train(place, "--name", "new", before=fault), "own")
    assert len(list((place / "runs/new/checkpoints").iterdir())) == 1


def test_damaged_records_cost_their_lines_at_a_resume(place, reference):
    assert train(place, "--max-steps", "25").code == 0
    folder = newest_run(place)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    damaged = [lines[0].replace('"step"', '"stfp"'), lines[1].replace("loss", "lo\x00s", 1)]
    damaged += [
        lines[2].replace('"loss": ', '"loss": 1e9'),
        lines[3].replace('"step": 4', '"a": 4'),
    ]
    damaged += ["[]", "null", '{"step": "7"}', lines[4].replace('"loss": ', '"loss": "x')]
    (folder / "metrics.jsonl").write_text("\n".join([*damaged, *lines[5:]]) + "\n")
    (folder / "status.json").write_text('{"state": 3, "step": "x"}')
    (folder / "env.json").write_text('{"started": "noon", "precision": [], "optimizations": 3}')
    result = train(place, "--resume")
    assert result.code == 0, result.err
    assert "Traceback" not in result.err
    assert losses(place)[-50:] == losses(reference)[-50:]
    assert evaluations(place) == evaluations(reference)
    assert weights(place) == weights(reference)


def test_a_resume_in_another_precision_says_so(place):
    assert train(place, "--max-steps", "4").code == 0
    path = newest_run(place) / "env.json"
    path.write_text(path.read_text().replace('"fp32"', '"bf16"'))
    result = train(place, "--resume", "--max-steps", "6")
    assert "note: from step 4 on the precision is fp32; it was bf16" in result.out
