"""Damaged files, full disks, two processes at once, signals: nothing is lost or loaded wrong.

`make test` runs some of the cases, `make attack` all of them. The results
are in docs/explanation/reliability.md.
"""

import contextlib
import functools
import io
import os
import random
import resource
import shutil
import signal
import sys
import time
from importlib import import_module

import numpy as np
import pytest
from importing import imported
from made_up import files_of
from rendering import render
from running import Result, newest_run, one_error, start
from scripts import result_of, script, send, series, start_script, words_of
from test_resume import OPTIONS
from torch import nn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
SIZES = (0, 300, 2_000, 8_000, 20_000, 60_000)  # the most bytes of a file on a full disk
ROUNDS = range(50)

# --- each bit, and 100 cuts, of files that describe data and checkpoints


def engine(module):
    return imported(render(workload="tabular"), f"engine.{module}")


def prepared(folder):
    with engine("loading.store").StoreWriter(folder, "tabular") as writer:
        writer.append("x", np.full((4, 2), 3.0, np.float32))
        writer.facts = {"target": {"mean": 0.5, "std": 3.0}}
        writer.splits = {"train": [0, 3], "validation": [3, 4]}
    return lambda: vars(engine("loading.store").Store.open(folder))


def remembered(folder):
    prepared(folder / "data")
    store = engine("loading.store").Store.open(folder / "data")
    store.remember(folder)
    return lambda: vars(engine("loading.store").Store.remembered(folder))


def saved(folder):
    """Two checkpoints, of which the older one is the best."""

    def make():
        one = engine("compute.distributed").Distributed()
        return engine("training.checkpoint").Checkpoint(
            folder, one, must_match={"data": "a"}, model=nn.Linear(2, 1)
        )

    made = make()
    made.save(1, is_best=True)
    made.save(2)

    def load():
        restored = {}
        for which, step in (("best", 1), ("last", 2)):
            found = make()
            state = found.find(which)
            if state["step"] != step:
                return None  # the damaged one was skipped
            found.restore(state, ["model"])
            restored[which] = [value.tolist() for value in found.parts["model"].parameters()]
        return restored

    return load


DESCRIPTIONS = [
    (prepared, "manifest.json"),
    (remembered, "data.json"),
    (saved, "step-00000001-best-*.pt"),
    (saved, "step-00000002-*.pt"),
]


def flipped(content, bit):
    """One bit of each byte."""
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place + bit) % 8
        yield bytes(damaged)


def cut(content, _):
    """A hundred cuts."""
    for place in range(100):
        yield content[: len(content) * place // 100]


@pytest.mark.cover(2, "name", "damage")
@pytest.mark.parametrize(("damage", "bit"), [(cut, 0), *((flipped, bit) for bit in range(8))])
@pytest.mark.parametrize(("make", "name"), DESCRIPTIONS)
def test_what_is_damaged_is_refused(make, name, damage, bit, tmp_path):
    load = make(tmp_path)
    whole = load()
    (path,) = tmp_path.glob(name)
    for damaged in damage(path.read_bytes(), bit):
        path.write_bytes(damaged)
        loaded = None
        with contextlib.suppress(engine("errors").UserError):
            loaded = load()
        assert loaded in (whole, None)


# --- runs of the package and of the script


def train(layout, cwd, *words, before=lambda: None, name=""):
    if layout == "script":
        words = words or words_of("timeseries", 60, 3, every=7)
        return start_script(script(), *words, cwd=cwd, before=lambda _: before(), name=name)
    words = words or OPTIONS
    return start(render(workload="tabular"), "train", *words, cwd=cwd, before=before, name=name)


MOMENTS = {
    "package": {
        "start": "engine.training.run:dry_run",
        "step": "engine.training.run:Run.end_step",
        "evaluation": "engine.training.run:evaluate",
        "save": "engine.training.checkpoint:Checkpoint.save",
        "prepare": "engine.loading.store:write_json",
    },
    "script": {
        "start": ":configure",
        "step": ":Trainer.update",
        "evaluation": ":Trainer.evaluate",
        "save": ":save_checkpoint",
    },
}
WHEN = [(layout, moment) for layout, moments in MOMENTS.items() for moment in moments]
TRAINING = [case for case in WHEN if case[1] != "prepare"]


def at(layout, moment, act, call=1):
    """Do something in a process when it comes to this moment, in this call of it."""

    def change():
        module, _, names = MOMENTS[layout][moment].partition(":")
        owner = import_module(f"my_training.{module}" if module else "train")
        *classes, name = names.split(".")
        owner = functools.reduce(getattr, classes, owner)
        real = getattr(owner, name)
        calls = iter(range(1, 10**9))

        def changed(*arguments, **named):
            if next(calls) == call:
                act()
            return real(*arguments, **named)

        setattr(owner, name, changed)

    return change


class Base:
    """Folders with a run of each layout: a whole one, and one that was stopped."""

    def __init__(self, folder):
        self.folder = folder

    @functools.cache  # noqa: B019 - as long as the tests
    def run(self, layout, is_whole):
        place = self.folder / f"{layout}{is_whole}"
        place.mkdir()
        series(place / "data.file")
        stop = at(layout, "step", send(signal.SIGTERM), call=24)
        ended = train(layout, place, before=(lambda: None) if is_whole else stop).wait()
        assert ended.code == (0 if is_whole else 143), ended.err
        return place

    def result(self, layout):
        return result_of(self.run(layout, True))

    def copy(self, layout, to):
        return shutil.copytree(self.run(layout, False), to)

    def new(self, layout, to):
        """A folder with data and no run."""
        shutil.copytree(self.run(layout, True), to)
        shutil.rmtree(to / "runs")
        return to

    def assert_continues(self, layout, place):
        """Resumed, or begun again if it had not started, the run is that which nothing stopped."""
        settings = "settings.json" if layout == "script" else "config.resolved.yaml"
        words = ("--resume",) * any(place.glob(f"runs/*/{settings}"))
        ended = train(layout, place, *words).wait()
        assert ended.code == 0, ended.err
        assert result_of(place) == self.result(layout)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("base"))


# --- signals


@pytest.mark.cover(1)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("layout", "moment"), TRAINING)
def test_a_signal_saves_and_stops(layout, moment, number, base, tmp_path):
    place = base.new(layout, tmp_path / "run")
    ended = train(layout, place, before=at(layout, moment, send(number))).wait()
    assert ended.code == 128 + number, ended.err
    assert "Traceback" not in ended.err
    base.assert_continues(layout, place)


@pytest.mark.cover(1)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("layout", MOMENTS)
def test_a_signal_ignored_at_the_start_stays_ignored(layout, number, base, tmp_path):
    """As `nohup` does."""
    place = base.new(layout, tmp_path / "run")
    come = at(layout, "step", send(number), call=3)

    def ignore():
        signal.signal(number, signal.SIG_IGN)
        come()

    assert train(layout, place, before=ignore).wait().code == 0
    assert result_of(place) == base.result(layout)


# --- full disks


def limit_file_size(size):
    """The nearest thing to a full disk that needs no rights: writing past `size` bytes fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def on_a_full_disk(begin, size, when=None):
    """Run a command whose files can have `size` bytes, from a moment on; its output is a pipe."""
    reading, writing = os.pipe()

    def fill():
        sys.stderr = os.fdopen(writing, "w", buffering=1)
        sys.stdout = io.StringIO()
        limit_file_size(size)

    ended = begin(before=when(fill) if when else fill).wait()
    os.close(writing)
    return Result(ended.code, "", ended.err + os.read(reading, 1 << 16).decode())


@pytest.mark.cover(1)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("moment", ["start", "step", "save", "resume"])
@pytest.mark.parametrize("layout", MOMENTS)
def test_a_full_disk_is_one_line(layout, moment, size, base, tmp_path):
    place = tmp_path / "run"
    words: tuple[str, ...] = ()
    when = None
    if moment == "resume":
        base.copy(layout, place)
        words = ("--resume",)
    else:
        base.new(layout, place)
    if moment in ("step", "save"):
        when = functools.partial(at, layout, moment, call=2)
    ended = on_a_full_disk(functools.partial(train, layout, place, *words), size, when)
    if ended.code or size < 2_000:  # no checkpoint is that small
        one_error(ended, "free|space")
    if layout == "package":
        assert all(run.joinpath("config.resolved.yaml").exists() for run in place.glob("runs/*"))
    base.assert_continues(layout, place)


# --- prepare


def prepare(folder, rows, before=None, name=""):
    """Prepare a table of so many rows into `folder`/data."""
    folder.mkdir(exist_ok=True)
    table = folder / f"{rows}.csv"
    table.write_text("a,b\n" + "1.5,2\n0.5,3\n" * (rows // 2))
    words = f"--input {rows}.csv --target b --task regression --data.path data".split()
    return start(
        render(workload="tabular"), "prepare", *words, cwd=folder, before=before, name=name
    )


def num_rows(folder):
    store = engine("loading.store").Store.open(folder / "data")
    return max(array.shape[0] for array in store.arrays.values())


@pytest.mark.cover(1)
@pytest.mark.parametrize("attack", [*SIZES, *SIGNALS], ids=str)
def test_prepare_leaves_the_old_data_or_the_new(attack, tmp_path):
    """On a full disk, and with a signal before the manifest is written."""
    assert prepare(tmp_path, 100).wait().code == 0
    before = files_of(tmp_path / "data")
    if isinstance(attack, signal.Signals):
        ended = prepare(tmp_path, 3000, at("package", "prepare", send(attack))).wait()
        assert (ended.code, ended.errors()) == (128 + attack, [])
    else:
        ended = on_a_full_disk(functools.partial(prepare, tmp_path, 3000), attack)
        if ended.code or attack < 2_000:
            one_error(ended, "free|space")
    assert "Traceback" not in ended.err
    if ended.code:
        assert files_of(tmp_path / "data") == before
    assert num_rows(tmp_path) == (100 if ended.code else 3000)
    assert prepare(tmp_path, 200).wait().code == 0


# --- two processes at once


def assert_ended(*commands):
    """Each process has succeeded or has one line of error."""
    results = [command.wait() for command in commands]
    for result in results:
        if result.code:
            one_error(result)
    return [result.code for result in results]


def pause(number):
    time.sleep(random.Random(number).random() * (number % 5) / 10)


@pytest.mark.first(1)
@pytest.mark.parametrize("number", ROUNDS)
def test_two_prepares_into_one_folder(number, tmp_path):
    assert prepare(tmp_path, 100).wait().code == 0
    first = prepare(tmp_path, 3000, name="1")
    pause(number)
    second = prepare(tmp_path, 200, name="2")
    codes = assert_ended(first, second)
    allowed = [rows for rows, code in zip((3000, 200), codes, strict=True) if code == 0]
    assert num_rows(tmp_path) in allowed


@pytest.mark.cover(2, "layout", "second")
@pytest.mark.parametrize("number", ROUNDS)
@pytest.mark.parametrize(
    ("layout", "second"), [("package", "resume"), ("package", "evaluate"), ("script", "resume")]
)
def test_a_resume_and_another_command_of_one_run(layout, second, number, base, tmp_path):
    place = base.copy(layout, tmp_path / "run")
    first = train(layout, place, "--resume", name="1")
    pause(number)
    if second == "resume":
        other = train(layout, place, "--resume", name="2")
    else:
        other = start(render(workload="tabular"), "evaluate", cwd=place, name="2")
    assert 0 in assert_ended(first, other)
    assert result_of(place) == base.result(layout)


# --- what else can be wrong in a run's folder, and passwords


@pytest.mark.parametrize("layout", MOMENTS)
def test_lost_metrics_end_no_run(layout, base, tmp_path):
    place = base.copy(layout, tmp_path / "run")
    (newest_run(place) / "metrics.jsonl").unlink()
    assert train(layout, place, "--resume").wait().code == 0
    assert result_of(place)[2] == base.result(layout)[2]


@pytest.mark.parametrize("layout", MOMENTS)
def test_no_error_shows_a_password(layout, tmp_path):
    flag = "--data" if layout == "script" else "--data.path"
    ended = train(layout, tmp_path, flag, "https://me:sec/ret@host/data").wait()
    assert "ret" not in one_error(ended, "…@host/data")
