"""A run that dies anywhere goes on bit for bit: kills, signals, damaged checkpoints, full disks."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from pathlib import Path

import pytest
import tqdm
from rendering import render
from running import evaluations, losses, newest_run, one_error, rows, run, start, weights
from variants import choices

OPTIONS = (
    *(
        "--data.batch_size",
        "128",
        "--model.width",
        "16",
        "--model.depth",
        "2",
        "--monitor.every_steps",
        "1",
    ),
    *(
        "--training.max_steps",
        "90",
        "--schedule.warmup_steps",
        "30",
        "--evaluation.every_steps",
        "20",
    ),
    *("--checkpoint.every_steps", "7", "--training.gradient_accumulation_steps", "2"),
)
POINTS = 20


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed; its data are shared."""
    folder = tmp_path_factory.mktemp("reference")
    result = run(render(workload="tabular"), "train", *OPTIONS, cwd=folder)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def place(reference: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").symlink_to(reference / "data")
    return tmp_path


def same(folder: Path, reference: Path) -> None:
    assert losses(folder) == losses(reference)
    assert evaluations(folder) == evaluations(reference)
    assert weights(folder) == weights(reference)
    status = json.loads((newest_run(folder) / "status.json").read_text())
    assert status["state"] == "finished"


def die_in(function: str, hit: int) -> None:
    """Kills the process at the `hit`-th call of `os.<function>`."""
    real, calls = getattr(os, function), iter(range(1, 10**9))

    def deadly(*arguments: object, **named: object) -> object:
        if next(calls) == hit:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    setattr(os, function, deadly)


def finish(folder: Path, framework: str = "pytorch") -> None:
    """Resumes until the run is at its end; one that died before its settings were written starts again."""
    words = ("--resume",) if list(folder.glob("runs/*/config.resolved.yaml")) else OPTIONS
    result = run(render(workload="tabular", framework=framework), "train", *words, cwd=folder)
    assert result.code == 0, result.err


@pytest.mark.parametrize("point", range(POINTS))
@pytest.mark.first(2)
def test_sigkill_at_a_random_point(point: int, place: Path, reference: Path) -> None:
    """Seeded points: after a row of metrics, inside a rename, inside an fsync."""
    chance = random.Random(point)
    framework = choices("framework")[max(point % 5 - 2, 0)]
    if point % 3 == 0:
        wanted = chance.randrange(1, 90)
        running = start(
            render(workload="tabular", framework=framework), "train", *OPTIONS, cwd=place
        )
        running.wait_for_rows(wanted)
        running.kill()
        result = running.wait()
    else:
        function = ("replace", "fsync")[point % 2]
        result = run(
            *(render(workload="tabular", framework=framework), "train", *OPTIONS),
            cwd=place,
            before=lambda: die_in(function, chance.randrange(2, 30)),
        )
    assert result.code in (-signal.SIGKILL, 0)
    assert point % 3 == 0 or result.code == -signal.SIGKILL, "the kill did not happen"
    finish(place, framework)
    same(place, reference)


def test_sigkill_inside_a_progress_bar_harms_no_other_run(place: Path, reference: Path) -> None:
    """Bars have a lock that forks share; a process that dies with it would keep it for ever."""
    with tqdm.tqdm.get_lock():  # makes it, in the parent of both
        pass

    def die_with_it() -> None:
        tqdm.tqdm.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    project = render(workload="tabular")
    assert run(project, "train", *OPTIONS, cwd=place, before=die_with_it).code == -signal.SIGKILL
    finish(place)
    same(place, reference)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.cover(1)
def test_signal_saves_reports_and_resumes(
    framework: str, number: int, code: int, place: Path, reference: Path
) -> None:
    for wanted in (5, 40):  # the second one hits the resumed run
        words = ("--resume",) if wanted > 5 else OPTIONS
        running = start(render(workload="tabular", framework=framework), "train", *words, cwd=place)
        running.wait_for_rows(wanted)
        running.kill(number)
        result = running.wait()
        assert result.code == code, result.err
        step = max((newest_run(place) / "checkpoints").glob("step-*"))
        last = [step for step, _ in losses(place)][-1]
        assert step.name == f"step-{last:08d}", "a step was lost"
        assert signal.Signals(number).name in (newest_run(place) / "report.md").read_text()
    finish(place, framework)
    same(place, reference)


def test_signal_inside_an_evaluation_repeats_it(place: Path, reference: Path) -> None:
    def signal_in_evaluation() -> None:
        from my_training.engine import run  # type: ignore[import-not-found]

        real = run.evaluate

        def evaluate(*arguments: object, **named: object) -> object:
            os.kill(os.getpid(), signal.SIGTERM)
            return real(*arguments, **named)

        run.evaluate = evaluate

    result = run(
        render(workload="tabular"), "train", *OPTIONS, cwd=place, before=signal_in_evaluation
    )
    assert result.code == 143
    assert losses(place)[-1][0] == 20
    assert evaluations(place) == []
    finish(place)
    same(place, reference)


def test_damaged_checkpoints_are_skipped_and_named(place: Path, reference: Path) -> None:
    assert (
        run(render(workload="tabular"), "train", *OPTIONS, "--max-steps", "30", cwd=place).code == 0
    )
    newest = max((newest_run(place) / "checkpoints").glob("step-*"))
    weights_file = newest / "model.safetensors"
    content = bytearray(weights_file.read_bytes())
    content[len(content) // 2] ^= 1
    weights_file.write_bytes(bytes(content))
    resumed = run(render(workload="tabular"), "train", "--resume", cwd=place)
    assert resumed.code == 0, resumed.err
    assert f"skipped a damaged checkpoint: {newest.name}" in resumed.out
    same(place, reference)


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "manifest.json"])
def test_no_damage_loads(name: str, place: Path) -> None:
    """Every checkpoint cut or with one bit flipped: one line, exit code 2, by every command that loads."""
    assert (
        run(render(workload="tabular"), "train", *OPTIONS, "--max-steps", "21", cwd=place).code == 0
    )
    chance = random.Random(name)
    folders = list((newest_run(place) / "checkpoints").glob("step-*"))
    assert len(folders) >= 2
    for number, folder in enumerate(folders):
        content = bytearray((folder / name).read_bytes())
        if number % 2 or name == "manifest.json":  # a flip in a manifest may hit what nobody reads
            content = content[: chance.randrange(len(content))]
        else:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(bytes(content))
    for words in (("evaluate",), ("train", "--resume"), ("predict",)):
        line = one_error(run(render(workload="tabular"), *words, cwd=place), "no valid checkpoint")
        assert all(folder.name in line for folder in folders)
    assert losses(place)[-1][0] == 21


def limit_file_size(size: int) -> None:
    """The nearest thing to a full disk that needs no rights: writing past `size` bytes fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_full_disk_keeps_the_last_checkpoint(place: Path, reference: Path) -> None:
    assert (
        run(render(workload="tabular"), "train", *OPTIONS, "--max-steps", "21", cwd=place).code == 0
    )
    run_folder = newest_run(place)
    before = {path.name for path in (run_folder / "checkpoints").iterdir()}
    size = max(path.stat().st_size for path in run_folder.rglob("*.pt"))
    full = run(
        *(render(workload="tabular"), "train", "--resume", "--max-steps", "35"),
        cwd=place,
        before=lambda: limit_file_size(size * 3 // 4),
    )
    line = one_error(full, "checkpoint of step 35 could not be written", "MB free")
    assert "Traceback" not in line
    assert "training goes on" in full.out  # the saves on the way only warn
    after = {path.name for path in (run_folder / "checkpoints").iterdir()}
    assert after == before
    finish(place)
    same(place, reference)


def test_output_folder_that_cannot_be_written(place: Path) -> None:
    (place / "runs").write_text("a file where a folder should be")
    one_error(run(render(workload="tabular"), "train", *OPTIONS, cwd=place), "runs")


def test_a_mistake_before_the_first_step_leaves_no_run(place: Path) -> None:
    words = (*OPTIONS, "--training.precision", "fp8")
    one_error(
        run(render(workload="tabular"), "train", *words, cwd=place), "fp8", "training.precision"
    )
    assert list((place / "runs").iterdir()) == []


def test_a_negative_max_steps_is_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    one_error(
        run(render(workload="tabular"), "train", "--max-steps", "-5", cwd=tmp_path),
        "-5",
        "--max-steps",
    )
    assert not (tmp_path / "runs").exists()


def test_paths_with_spaces_and_other_letters_and_read_only_data(
    reference: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "Übung mit Leerzeichen 数据"
    folder.mkdir()
    (folder / "data").symlink_to(reference / "data")
    for file in (reference / "data").rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    assert run(render(workload="tabular", loader="memmap"), "train", *OPTIONS, cwd=folder).code == 0
    assert losses(folder) == losses(reference)


def test_missing_foreign_and_changed_data(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = render(workload="tabular")
    one_error(
        run(project, "train", "--data.path", "nowhere", cwd=place),
        "no prepared data",
        "nowhere",
        "prepare",
    )
    other = tmp_path_factory.mktemp("other")
    manifest = json.loads((place / "data/synthetic/manifest.json").read_text())
    for change, words in (
        ({"workload": "weather"}, "weather"),
        ({"format": 99}, "format 99, .*this project knows"),
        ({"files": {"gone.h5": {"bytes": 1, "sha256": "", "crc32": []}}}, "gone.h5"),
    ):
        (other / "manifest.json").write_text(json.dumps(manifest | change))
        one_error(run(project, "train", "--data.path", str(other), cwd=place), words)
    (other / "manifest.json").write_text("{")
    one_error(run(project, "train", "--data.path", str(other), cwd=place), "unreadable manifest")
    assert not (place / "runs").exists(), "a mistake leaves nothing behind"


def test_resume_on_other_data_is_refused(place: Path, tmp_path: Path) -> None:
    project = render(workload="tabular")
    assert run(project, "train", *OPTIONS, "--max-steps", "8", cwd=place).code == 0
    source = (place / "data/synthetic").resolve()
    other = tmp_path / "other"
    other.mkdir()
    manifest = json.loads((source / "manifest.json").read_text())
    for name in manifest["files"]:
        (other / name).symlink_to(source / name)
        manifest["splits"]["test"][1] -= 1
    (other / "manifest.json").write_text(json.dumps(manifest))
    one_error(run(project, "train", "--resume", "--data.path", str(other), cwd=place), "data")
    one_error(run(project, "evaluate", "--data.path", str(other), cwd=place), "other data")


@pytest.mark.parametrize("framework", choices("framework"))
def test_a_loss_that_is_not_finite_names_its_samples(framework: str, place: Path) -> None:
    """Nothing is saved after it; the samples are those of the step where it began, not where it was seen."""
    words = (
        "--monitor.every_steps",
        "10",
        "--data.order",
        "time",
        "--training.gradient_accumulation_steps",
        "1",
    )

    def poison() -> None:
        from my_training import dataset

        real = dataset.Samples.batch

        def batch(self: object, parts: dict) -> dict:
            result = real(self, parts)
            if self.first == 0 and len(parts["target"].values) == 128:
                poison.count = getattr(poison, "count", 0) + 1
                if poison.count == 5:  # the first one is the dry run's
                    result["target"] = result["target"] * float("nan")
            return result

        dataset.Samples.batch = batch

    result = run(
        render(workload="tabular", framework=framework),
        "train",
        *OPTIONS,
        *words,
        cwd=place,
        before=poison,
    )
    line = one_error(
        result,
        "loss of step 4 is not finite",
        "epoch 1, training samples 384, 385",
        "learning_rate",
    )
    assert "precision" not in line, "it is fp32 already"
    assert "failed" in (newest_run(place) / "status.json").read_text()
    assert [row for row in rows(place) if row["step"] > 4] == []
    assert not list((newest_run(place) / "checkpoints").glob("step-*"))


def test_early_stop_and_best_checkpoint(place: Path) -> None:
    """A learning rate too high ends the run after `patience` evaluations; `evaluate` takes the best one."""
    words = (*OPTIONS, "--evaluation.every_steps", "3", "--evaluation.patience", "2")
    words += (
        "--optimizer.learning_rate",
        "0.5",
        "--schedule.name",
        "constant",
        "--schedule.warmup_steps",
        "0",
    )
    result = run(render(workload="tabular"), "train", *words, cwd=place)
    assert result.code == 0, result.err
    assert "early stop" in result.out
    measured = [(float.fromhex(loss), step) for step, loss in evaluations(place)]
    assert losses(place)[-1][0] < 90
    best = min(measured)[1]
    assert run(render(workload="tabular"), "evaluate", "--split", "validation", cwd=place).code == 0
    evaluation = json.loads((newest_run(place) / "evaluation.json").read_text())
    assert evaluation["step"] == best
    assert evaluation["metrics"]["loss"] == pytest.approx(min(measured)[0], abs=1e-6)
    assert (
        run(render(workload="tabular"), "train", "--resume", cwd=place).code == 0
    )  # stays stopped
    assert losses(place)[-1][0] < 90


def test_a_full_disk_ends_no_training_at_a_row(place: Path, reference: Path) -> None:
    """Rows that the disk has no room for wait in memory."""

    def fill() -> None:
        from my_training.engine.metrics_file import MetricsFile  # type: ignore[import-not-found]

        opened, flushes = MetricsFile.open, iter(range(10**9))

        class Full:
            def __init__(self, file: object):
                self.file = file

            def write(self, text: str) -> None:
                self.file.write(text)

            def flush(self) -> None:
                if 10 <= next(flushes) < 30:
                    raise OSError(28, "No space left on device")
                self.file.flush()

            def close(self) -> None:
                self.file.close()

        def open_full(self: object, step: int) -> None:
            opened(self, step)
            self.file = Full(self.file)

        MetricsFile.open = open_full

    done = run(render(workload="tabular"), "train", *OPTIONS, cwd=place, before=fill)
    assert done.code == 0, done.err
    assert done.out.count("No space left on device: metrics wait in memory") == 1
    same(place, reference)
