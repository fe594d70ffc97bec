"""Odd surroundings: where a command was started from, what was typed, what the environment says.

A run that is in use is in reliability/test_attack.py, a closed output in test_one_process.py, the
interview in test_interview.py.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from shlex import split

import pytest
from rendering import render
from running import PACKAGE, Result, Running, one_error, run, start
from sizes import TINY
from variants import choices

TABULAR = render(workload="tabular")
SHORT = split("--training.max_steps 4 --schedule.warmup_steps 1 --monitor.every_steps 1")
# What a trained run answers, and the file that has it.
ANSWERS = {"llm": ("generate", "--tokens", "5", "--output", "new.txt")}
ANSWERS |= {"chat": ("generate", "--prompt", "2 + 2?", "--tokens", "5", "--output", "new.jsonl")}
ANSWERS |= dict.fromkeys(("timeseries", "windows"), ("predict", "--output", "new.npz"))
ANSWERS |= {"seq2seq": ("predict", "--output", "new.jsonl")}


def anywhere(project, *words, cwd):
    """A command that finds its project by itself."""
    return Running(project, words, cwd, before=lambda: os.environ.pop("TRAINING_ROOT")).wait()


def files(folder):
    """All files in it, but what Python and this test leave, and answers."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    paths = [path for path in paths if "__pycache__" not in path.parts]
    return {str(path) for path in paths if not path.name.startswith((".out", ".err", "new."))}


# ---- any directory ----


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_from_another_directory_everything_is_found_and_written_as_from_its_own(workload, tmp_path):
    """Next to a configuration that is not the project's."""
    answer = ANSWERS.get(workload, ("predict", "--output", "new.csv"))
    left = {}
    for where in ("inside", "outside"):
        project = tmp_path / where / "a project"
        shutil.copytree(render(workload=workload), project)
        cwd = project
        if where == "outside":
            cwd = tmp_path / where / "elsewhere"
            cwd.mkdir()
            (cwd / "config.yaml").write_text("reproducibility: {seed: 7}\n")
        training = ("train", "--name", "a", *TINY[workload], *SHORT)
        for words in (training, ("report",), ("evaluate", "--run", "a"), answer):
            done = anywhere(project, *words, cwd=cwd)
            assert done.code == 0, done.err
        lines = (project / "runs/a/metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines]
        left[where] = losses, (cwd / answer[-1]).read_bytes(), files(project)
    assert left["inside"] == left["outside"]
    assert files(cwd) == {"config.yaml"}
    assert f"note: using the settings, data and runs in {project}\n" in done.err


def test_paths_are_relative_to_the_current_directory(tmp_path):
    project = tmp_path / "a project"
    cwd = tmp_path / "elsewhere"
    shutil.copytree(TABULAR, project)
    cwd.mkdir()
    (cwd / "rows.csv").write_text("a,b\n" + "".join(f"{n},{n * 2}\n" for n in range(40)))
    (cwd / "mine.yaml").write_text("training: {max_steps: 2}\ndata: {batch_size: 8}\n")
    words = split("prepare --input rows.csv --target b --task regression")
    prepared = anywhere(project, *words, cwd=cwd)
    assert prepared.code == 0, prepared.err
    assert (project / "data/manifest.json").exists()
    trained = anywhere(project, "train", "--config", "mine.yaml", "--name", "a", cwd=cwd)
    assert "finished at step 2 of 2" in trained.out, trained.err
    for name in ("a", "../a project/runs/a", "runs/a"):  # the last one as `train` has printed it
        assert anywhere(project, "report", name, cwd=cwd).code == 0
    words = split("predict --input rows.csv --output new.csv")
    assert anywhere(project, *words, cwd=cwd).code == 0
    assert (cwd / "new.csv").exists()
    assert files(cwd) == {"rows.csv", "mine.yaml"}


def test_an_installed_package_works_in_the_current_directory_and_says_where_settings_come_from(
    tmp_path,
):
    """It has no pyproject.toml above it."""
    packages = tmp_path / "lib/site-packages"
    shutil.copytree(TABULAR / "src" / PACKAGE, packages / PACKAGE)
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-m", PACKAGE, "train", "--print-config"]

    def printed(root):
        environment["TRAINING_ROOT"] = root
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        (seed,) = re.findall(r"^reproducibility.seed: (\d+) ", done.stdout, re.MULTILINE)
        return seed, done.stderr

    note = f"note: no config.yaml in {tmp_path}: all settings have their defaults\n"
    assert printed("") == ("42", note)
    (tmp_path / "config.yaml").write_text("reproducibility: {seed: 7}\n")
    assert printed("") == ("7", "")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/config.yaml").write_text("reproducibility: {seed: 8}\n")
    note = f"note: using the settings, data and runs in {tmp_path}/disk\n"
    assert printed("disk") == ("8", note)


# ---- what the environment says ----


def test_a_folder_of_the_environment_that_is_not_there_is_one_line(tmp_path):
    def put():
        os.environ["TRAINING_ROOT"] = "nowhere"

    refused = run(TABULAR, "train", cwd=tmp_path, before=put)
    one_error(refused, "No such file or directory", "nowhere")


LAUNCHED = [  # what an earlier launch may leave: answers, variables
    ({"framework": "accelerate"}, {"LOCAL_RANK": "0", "RANK": "0", "LOCAL_WORLD_SIZE": "8"}),
    ({"framework": "accelerate"}, {"PMI_SIZE": "4", "ACCELERATE_USE_DEEPSPEED": "true"}),
    ({"framework": "lightning", "distributed": "ddp"}, {"LOCAL_RANK": "3", "RANK": "2"}),
    ({}, {"RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "gone"}),
]


def test_what_an_earlier_launch_left_in_the_environment_changes_nothing(tmp_path, monkeypatch):
    for number, (answers, left) in enumerate(LAUNCHED):
        project = render(workload="tabular", **answers)
        folder = tmp_path / str(number)
        with monkeypatch.context() as environment:
            for name, value in left.items():
                environment.setenv(name, value)
            trained = run(project, "train", *SHORT, cwd=folder)
            assert "finished at step 4 of 4" in trained.out, trained.err
            assert "note: " in trained.out
            refused = run(project, "train", "--data.batch_size", "0", cwd=folder)
        assert one_error(refused, "^error: data.batch_size cannot be")


def test_a_place_of_runs_that_is_no_folder_is_one_line(tmp_path):
    """Also a link to what is gone, and a link to itself."""
    for kind in ("file", "dangling", "loop"):
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "file":
            (folder / "runs").write_text("")
        else:
            (folder / "runs").symlink_to("runs" if kind == "loop" else "/nowhere/runs")
        one_error(run(TABULAR, "train", *SHORT, cwd=folder), "it is no folder", "runs: move it")


def test_an_error_in_an_owners_file_leaves_no_run(tmp_path):
    """For example, conflicts that an update has left."""
    project = shutil.copytree(TABULAR, tmp_path / "project")
    for file in ("model.py", "train.py"):
        path = project / "src" / PACKAGE / file
        text = path.read_text()
        path.write_text(f"{text}<<<<<<< before updating\n")
        assert "SyntaxError" in run(project, "train", "--name", "a", cwd=tmp_path).err
        assert not (tmp_path / "runs").exists()
        path.write_text(text)


# ---- worker processes ----


def failing_worker(act):
    """Does something in a worker, in the place of reading its first batch."""

    def put():
        from my_training.engine.loading import loader  # type: ignore[import-not-found]

        read = loader.Reader.__getitem__

        def item(self, work):
            return act() if loader.get_worker_info() else read(self, work)

        loader.Reader.__getitem__ = item

    return put


def no_semaphores():
    from my_training.engine.loading import loader

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    loader.DataLoader.__iter__ = full


def too_many_files():
    raise OSError(errno.EMFILE, "Too many open files")


WORKERS = [  # what happens, and the line
    (failing_worker(lambda: [lambda: None]), "a loader worker died"),  # it cannot be passed
    (failing_worker(lambda: os.kill(os.getpid(), signal.SIGKILL)), "a loader worker died"),
    (failing_worker(lambda: os.kill(os.getpid(), signal.SIGBUS)), "shared memory .*--shm-size"),
    (no_semaphores, "shared memory .*--shm-size"),
    (failing_worker(too_many_files), "too many open files: 1 workers: raise the limit"),
]


def test_workers_that_fail_are_one_line(tmp_path):
    """A batch that cannot be passed would never come. In a long temporary folder, it comes."""
    project = render(workload="tabular", loader="dataloader")
    words = ("train", *SHORT, "--data.num_workers", "1")
    for number, (fault, line) in enumerate(WORKERS):
        ended = run(project, *words, cwd=tmp_path / str(number), before=fault)
        # torch's own words about a bus error end with a byte of 0.
        one_error(Result(ended.code, ended.out, ended.err.replace("\0", "")), line)

    def put():
        tempfile.tempdir = None
        os.environ["TMPDIR"] = str(tmp_path / ("x" * 80))
        os.mkdir(os.environ["TMPDIR"])

    assert "finished" in run(project, *words, cwd=tmp_path / "long", before=put).out


# ---- signals and neighbours ----


def signal_in_import(number, module):
    """A signal comes while a module is imported, by code that swallows every exception."""

    class Finder:
        def find_spec(self, name, *more):
            if name == f"{PACKAGE}.{module}":
                with contextlib.suppress(BaseException):
                    os.kill(os.getpid(), number)

    return lambda: sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


IMPORTED = [  # the signal, the command, and what it imports
    (signal.SIGTERM, "train", "model"),
    (signal.SIGINT, "train", "commands.train"),
    (signal.SIGHUP, "evaluate", "commands.evaluate"),
    (signal.SIGUSR1, "prepare", "prepare"),
]


def test_a_signal_during_an_import_is_not_lost(tmp_path):
    for number, command, module in IMPORTED:
        words = ["--input", "x.csv", "--target", "b"] if command == "prepare" else SHORT
        before = signal_in_import(number, module)
        ended = run(TABULAR, command, *words, cwd=tmp_path / str(number), before=before)
        assert (ended.code, ended.errors()) == (128 + number, []), (command, module)
        assert "Traceback" not in ended.err


def test_ctrl_c_twice_ends_in_order(tmp_path):
    words = ("--training.epochs", "100000", "--monitor.every_steps", "1")
    running = start(TABULAR, "train", *words, cwd=tmp_path)
    running.wait_for_rows(5)
    running.kill(signal.SIGINT)
    running.kill(signal.SIGINT)
    done = running.wait()
    assert done.code == 130
    assert "Traceback" not in done.err
    assert "`train --resume" in done.out


def test_of_two_starts_with_one_name_one_trains_and_one_is_refused(tmp_path):
    words = ("train", *SHORT, "--name", "a")
    both = [start(TABULAR, *words, cwd=tmp_path, name=name) for name in "12"]
    done = sorted((running.wait() for running in both), key=lambda result: result.code)
    assert [result.code for result in done] == [0, 2]
    one_error(done[1], "run 'a' exists already")
