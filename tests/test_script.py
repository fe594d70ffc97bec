"""`layout: script`: one file, which is the engine's executable specification.

Its losses, evaluations and weights are the package's, bit for bit, on the data that `prepare` reads as well.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from rendering import REPOSITORY, render, render_into
from running import Result, Running, evaluations, losses, newest_run, one_error, rows, run
from safetensors.numpy import load_file
from variants import SCRIPTS, choices, impossible, scripts

every_script = pytest.mark.parametrize("workload", SCRIPTS)


def start_script(
    project: Path, *words: str, cwd: Path, before: Callable[[Any], None] = lambda train: None
) -> Running:
    """Starts `python train.py WORDS` in a fork of this process, where torch is loaded."""

    def child() -> None:
        sys.path.insert(0, str(project))
        sys.modules.pop("train", None)
        import train

        before(train)
        try:
            code = train.main(list(words))
        except SystemExit as end:  # of --help
            code = int(end.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return Running(project, words, cwd, child)


def run_script(project: Path, *words: str, cwd: Path) -> Result:
    return start_script(project, *words, cwd=cwd).wait()


class Case(NamedTuple):
    """The same run twice: data, flags of `prepare`, of the script and of the package."""

    write: Callable[[Path], None]
    prepare: str
    script: str
    package: str


def series(path: Path) -> None:
    """Some weeks of hours."""
    hours, noise = np.arange(700), np.random.default_rng(0)
    load = 50 + 8 * np.sin(2 * np.pi * hours / 24) + noise.normal(0, 1, len(hours))
    price = 0.6 * load + noise.normal(0, 1, len(hours))
    lines = (
        f"{np.datetime64('2024-01-01T00') + hour},{load[hour]:.3f},{price[hour]:.3f},7\n"
        for hour in hours
    )
    path.write_text("".join(["date,load,price,constant\n", *lines]))


def prose(path: Path) -> None:
    """Some thousand words, with a last block that is shorter."""
    words = np.random.default_rng(0).choice(["the", "order", "of", "bytes", "is", "ä", "\n"], 3001)
    path.write_text(" ".join(words), encoding="utf-8")


def table(path: Path) -> None:
    """Numbers and one category, nothing missing."""
    noise, soil = np.random.default_rng(0), np.random.default_rng(1).integers(0, 12, 900)
    a, b = noise.normal(3, 2, 900), noise.normal(0, 1, 900)
    target = 2 * a + b * (soil % 3) + noise.normal(0, 0.1, 900)
    lines = (f"{a[row]:.4f},k{soil[row]},{b[row]:.4f},5,{target[row]:.4f}\n" for row in range(900))
    path.write_text("".join(["a,soil,b,constant,target\n", *lines]))


CASES = {
    "tabular": Case(
        table,
        prepare="--input data.file --target target --task regression",
        script="--width 32 --num_workers 1",
        package="--model.width 32",
    ),
    "timeseries": Case(
        series,
        prepare="--input data.file --history 24 --horizon 6",
        script="--history 24 --horizon 6 --width 16 --batch_size 16",
        package="--model.width 16 --data.batch_size 16",
    ),
    "llm": Case(
        prose,
        prepare="--input data.file",
        script="--block_size 32 --batch_size 8 --layers 2 --heads 2 --width 32 --dropout 0.1",
        package="--data.block_size 32 --data.batch_size 8 --model.layers 2 --model.heads 2"
        " --model.width 32 --model.dropout 0.1",
    ),
}
STEPS = 100
COMMON = ("loss", "learning_rate", "gradient_norm", "epoch", "split")


def words_of(
    workload: str, steps: int, accumulation: int, precision: str = "fp32", every: int = 1
) -> list[str]:
    words = f"{CASES[workload].script} --data data.file --precision {precision} --max_steps {steps}"
    words += f" --gradient_accumulation_steps {accumulation} --log_every {every}"
    return f"{words} --evaluate_every 40 --save_every 15".split()


def of_package(
    workload: str, steps: int, accumulation: int, cwd: Path, precision: str = "fp32", every: int = 1
) -> Path:
    """The run folder of the package's training."""
    case, project = CASES[workload], render(workload=workload)
    cwd.mkdir()
    case.write(cwd / "data.file")
    prepared = run(project, "prepare", *case.prepare.split(), cwd=cwd)
    assert prepared.code == 0, prepared.err
    words = f"{case.package} --training.max_steps {steps} --training.precision {precision}"
    words += f" --training.gradient_accumulation_steps {accumulation} --monitor.every_steps {every}"
    trained = run(project, "train", *words.split(), "--evaluation.every_steps", "40", cwd=cwd)
    assert trained.code == 0, trained.err
    return newest_run(cwd)


def of_script(
    workload: str, steps: int, accumulation: int, cwd: Path, precision: str = "fp32", every: int = 1
) -> Path:
    cwd.mkdir()
    CASES[workload].write(cwd / "data.file")
    words = words_of(workload, steps, accumulation, precision, every)
    done = run_script(render(workload=workload, layout="script"), *words, cwd=cwd)
    assert done.code == 0, done.err
    return newest_run(cwd)


def curves(cwd: Path) -> list[dict[str, Any]]:
    """Rows of metrics that both have, without the test split, which the package measures by `evaluate`."""
    found = [row for row in rows(cwd) if row.get("split") != "test"]
    measured = {"mse", "mae", "bits_per_byte", "accuracy", "log_loss"}
    return [
        {name: row[name] for name in (*COMMON, *measured, "step") if name in row} for row in found
    ]


# Layers of a script by their names in the package.
PACKAGE_NAMES = {"lstm": "encoders.0.lstm", "linear": "line", "norm": "head.norm"}
SCALES = re.compile(
    r"(target_)?(mean|std)(_rows)?|gaps|offsets"
)  # a script keeps them outside its model


def weights(folder: Path) -> dict[str, bytes]:
    """Of the last checkpoint, by their names in the package."""
    newest = max((folder / "checkpoints").glob("step-*"))
    if newest.is_dir():
        arrays = load_file(newest / "model.safetensors")
        return {
            name: array.tobytes() for name, array in arrays.items() if not SCALES.fullmatch(name)
        }
    found = {}
    for name, tensor in torch.load(newest, weights_only=True)["model"].items():
        layer, dot, parameter = name.partition(".")
        found[PACKAGE_NAMES.get(layer, layer) + dot + parameter] = tensor.numpy().tobytes()
    return found


@pytest.mark.cover(1)
@every_script
@pytest.mark.parametrize("accumulation", [1, 3])
def test_losses_evaluations_and_weights_are_those_of_the_package(
    workload: str, accumulation: int, tmp_path: Path
) -> None:
    package = of_package(workload, STEPS, accumulation, tmp_path / "package")
    script = of_script(workload, STEPS, accumulation, tmp_path / "script")
    ours, theirs = curves(tmp_path / "script"), curves(tmp_path / "package")
    assert len([row for row in ours if "split" not in row]) == STEPS
    assert len([row for row in ours if "split" in row]) == 3
    assert ours == theirs
    assert weights(script) == weights(package)
    assert (
        run(render(workload=workload), "evaluate", "--split", "test", cwd=tmp_path / "package").code
        == 0
    )
    (test,) = (row for row in rows(tmp_path / "script") if row.get("split") == "test")
    measured = json.loads((package / "evaluation.json").read_text())["metrics"]
    assert test["loss"] == measured["loss"]


@every_script
@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.full), "fp16"])
def test_half_precision_is_that_of_the_package(
    workload: str, precision: str, tmp_path: Path
) -> None:
    """And so are rows of several steps, which are means of all of their losses."""
    package = of_package(workload, 20, 3, tmp_path / "package", precision, every=7)
    script = of_script(workload, 20, 3, tmp_path / "script", precision, every=7)
    assert curves(tmp_path / "script") == curves(tmp_path / "package")
    assert weights(script) == weights(package)


@functools.cache
def whole(workload: str, folder: Path, every: int = 1) -> tuple[Any, Any, dict[str, bytes]]:
    """Losses, evaluations and weights of a run that nothing stopped."""
    cwd = folder / f"{workload}-{every}"
    found = of_script(workload, 60, 3, cwd, every=every)
    return losses(cwd), evaluations(cwd), weights(found)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.mark.first(1)
@every_script
@pytest.mark.parametrize("seed", range(20))
def test_goes_on_after_a_kill_at_a_random_point(
    workload: str, seed: int, base: Path, tmp_path: Path
) -> None:
    CASES[workload].write(tmp_path / "data.file")
    project, draw = render(workload=workload, layout="script"), random.Random(seed)
    running = start_script(project, *words_of(workload, 60, 3), cwd=tmp_path)
    running.wait_for_rows(draw.randrange(1, 60))
    time.sleep(draw.random() / 50)
    running.kill(signal.SIGKILL)
    assert running.wait().code in (-signal.SIGKILL, 0)
    done = run_script(project, "--resume", cwd=tmp_path)
    assert done.code == 0, done.err
    assert (losses(tmp_path), evaluations(tmp_path), weights(newest_run(tmp_path))) == whole(
        workload, base
    )


@pytest.mark.first(1)
@every_script
def test_a_signal_saves_after_the_step(workload: str, base: Path, tmp_path: Path) -> None:
    """Between two rows, too: the next one is a mean over the steps on both sides."""
    CASES[workload].write(tmp_path / "data.file")
    project = render(workload=workload, layout="script")
    running = start_script(project, *words_of(workload, 60, 3, every=7), cwd=tmp_path)
    running.wait_for_rows(2)
    running.kill(signal.SIGTERM)
    code = running.wait().code
    stopped = max((newest_run(tmp_path) / "checkpoints").glob("step-*")).name
    assert code == 143 or stopped.startswith("step-00000060-")  # or it was faster than the signal
    assert run_script(project, "--resume", cwd=tmp_path).code == 0
    after = losses(tmp_path), evaluations(tmp_path), weights(newest_run(tmp_path))
    assert after == whole(workload, base, every=7)


def test_a_signal_right_after_the_question_for_it_loses_no_step(tmp_path: Path) -> None:
    """Whether to save and whether to end are one decision, or the run ends unsaved."""
    CASES["timeseries"].write(tmp_path / "data.file")

    step = 0

    class Late(list[int]):
        """Receives a signal right after the first question in step 5."""

        def __bool__(self) -> bool:
            answer = len(self) > 0
            if step == 5:
                self.append(signal.SIGTERM)
            return answer

    def late(train: Any) -> None:
        log = train.log

        def log_step(run: Path, record: dict[str, Any]) -> None:
            nonlocal step
            step = record["step"]
            log(run, record)

        train.log = log_step
        train.collect_signals = Late

    project = render(workload="timeseries", layout="script")
    done = start_script(project, *words_of("timeseries", 60, 3), cwd=tmp_path, before=late).wait()
    assert done.code == 143
    assert [step_of(path) for path in checkpoints(tmp_path)] == [6]


def checkpoints(cwd: Path) -> list[Path]:
    """Of the newest run, the oldest first."""
    return sorted((newest_run(cwd) / "checkpoints").glob("step-*.pt"))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_each_signal_saves_and_stops(number: signal.Signals, tmp_path: Path) -> None:
    CASES["timeseries"].write(tmp_path / "data.file")
    project = render(workload="timeseries", layout="script")
    running = start_script(project, *words_of("timeseries", 100_000, 1), cwd=tmp_path)
    running.wait_for_rows(3)
    running.kill(number)
    done = running.wait()
    assert done.code == 128 + number
    assert done.err == f"{number.name}: saving after this step; press again to exit at once\n"
    logged = [row["step"] for row in rows(tmp_path) if "split" not in row]
    assert step_of(checkpoints(tmp_path)[-1]) == logged[-1]


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    CASES["timeseries"].write(tmp_path / "data.file")

    def slow(train: Any) -> None:
        compute_loss = train.compute_loss

        def twice(model: Any, batch: Any) -> Any:
            if (newest_run(tmp_path) / "metrics.jsonl").stat().st_size:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
            return compute_loss(model, batch)

        train.compute_loss = twice

    project = render(workload="timeseries", layout="script")
    done = start_script(project, *words_of("timeseries", 60, 1), cwd=tmp_path, before=slow).wait()
    assert done.code == 128 + signal.SIGINT
    assert not checkpoints(tmp_path)


def test_a_signal_that_is_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    CASES["timeseries"].write(tmp_path / "data.file")

    def ignore(train: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    project = render(workload="timeseries", layout="script")
    running = start_script(project, *words_of("timeseries", 40, 1), cwd=tmp_path, before=ignore)
    running.wait_for_rows(2)
    running.kill(signal.SIGHUP)
    assert running.wait().code == 0
    assert step_of(checkpoints(tmp_path)[-1]) == 40


@every_script
def test_a_loss_that_goes_bad_ends_the_run_and_names_the_samples(
    workload: str, tmp_path: Path
) -> None:
    CASES[workload].write(tmp_path / "data.file")

    def spoil(train: Any) -> None:
        compute_loss, seen = train.compute_loss, []

        def bad(model: Any, batch: Any) -> Any:
            loss, *rest = compute_loss(model, batch)
            seen.append(loss)
            return (loss * float("nan") if len(seen) == 9 else loss, *rest)

        train.compute_loss = bad

    words = [*words_of(workload, 60, 3, every=50), "--save_every", "1000", "--evaluate_every", "50"]
    done = start_script(
        render(workload=workload, layout="script"), *words, cwd=tmp_path, before=spoil
    ).wait()
    one_error(done, r"loss of step 3 is nan", r"samples \[\d+, \d+")
    assert not checkpoints(tmp_path)


# ---- odd runs, files and flags -------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that stopped after step 22 of 60 and saved its last two steps."""
    cwd = tmp_path_factory.mktemp("stopped")
    CASES["timeseries"].write(cwd / "data.file")

    def stop(train: Any) -> None:
        log = train.log

        def log_and_stop(run: Path, record: dict[str, Any]) -> None:
            log(run, record)
            if record["step"] == 22:
                os.kill(os.getpid(), signal.SIGTERM)

        train.log = log_and_stop

    project = render(workload="timeseries", layout="script")
    assert (
        start_script(project, *words_of("timeseries", 60, 3), cwd=cwd, before=stop).wait().code
        == 143
    )
    assert [step_of(path) for path in checkpoints(cwd)] == [15, 22]
    return cwd


def resumed(cwd: Path, before: Callable[[Any], None] = lambda train: None) -> Result:
    return start_script(
        render(workload="timeseries", layout="script"), "--resume", cwd=cwd, before=before
    ).wait()


def test_two_resumes_of_one_run_are_kept_apart(stopped: Path, tmp_path: Path) -> None:
    cwd = shutil.copytree(stopped, tmp_path / "copy")
    reached, wait = os.pipe()

    def hold(train: Any) -> None:
        log = train.log

        def wait_first(run: Path, record: dict[str, Any]) -> None:
            os.read(reached, 1)
            train.log = log
            log(run, record)

        train.log = wait_first

    project = render(workload="timeseries", layout="script")
    first = start_script(project, "--resume", cwd=cwd, before=hold)
    first._until(lambda: "step 22 of 60" in (cwd / ".out").read_text(), "start", 300)
    second = Running(project, (), cwd, lambda: os._exit(run_main(project, "--resume")), name="2")
    one_error(second.wait(), "another process uses the run")
    os.write(wait, b"go")
    assert first.wait().code == 0
    assert losses(cwd)[-1][0] == 60


def run_main(project: Path, *words: str) -> int:
    sys.path.insert(0, str(project))
    sys.modules.pop("train", None)
    import train

    code = train.main(list(words))
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


def test_a_full_disk_is_one_line_and_loses_nothing(
    stopped: Path, base: Path, tmp_path: Path
) -> None:
    cwd = shutil.copytree(stopped, tmp_path / "copy")
    size = checkpoints(cwd)[-1].stat().st_size

    def fill(train: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    one_error(resumed(cwd, fill), "File too large", "--resume")
    assert [step_of(path) for path in checkpoints(cwd)] == [15, 22]
    assert resumed(cwd).code == 0
    assert (losses(cwd), evaluations(cwd), weights(newest_run(cwd))) == whole("timeseries", base)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"1", b'"a"', b'{"widht": 3}', b'{"width": null}', b"\xff"]
)
def test_damaged_settings_are_one_line(content: bytes, stopped: Path, tmp_path: Path) -> None:
    cwd = shutil.copytree(stopped, tmp_path / "copy")
    (newest_run(cwd) / "settings.json").write_bytes(content)
    one_error(resumed(cwd), "damaged: runs/.*/settings.json")


@pytest.mark.parametrize("line", ["[]", "null", '"a"', "{", '{"step": 3}', "\x00"])
def test_a_damaged_line_of_metrics_does_not_matter(
    line: str, stopped: Path, tmp_path: Path
) -> None:
    cwd = shutil.copytree(stopped, tmp_path / "copy")
    metrics = newest_run(cwd) / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    lines[3] = line.ljust(len(lines[3]))
    metrics.write_text("\n".join([*lines, ""]))
    done = resumed(cwd)
    assert (done.code, done.err) == (0, "")
    assert metrics.read_text().splitlines()[:22] == lines[:22]
    assert (newest_run(cwd) / "curves.png").stat().st_size


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_none_of_the_two_newest(
    stopped: Path, base: Path, tmp_path: Path
) -> None:
    """Else the next save would delete the one that the run was resumed from, and keep the damaged one."""
    cwd = shutil.copytree(stopped, tmp_path / "copy")
    damage(checkpoints(cwd)[-1])

    def stop(train: Any) -> None:
        save = train.save_checkpoint

        def save_and_die(folder: Path, checkpoint: dict[str, Any]) -> None:
            save(folder, checkpoint)
            os.kill(os.getpid(), signal.SIGKILL)

        train.save_checkpoint = save_and_die

    assert resumed(cwd, stop).code == -signal.SIGKILL
    assert [step_of(path) for path in checkpoints(cwd)] == [15, 30]
    damage(checkpoints(cwd)[-1])
    assert resumed(cwd).code == 0
    assert (losses(cwd), evaluations(cwd), weights(newest_run(cwd))) == whole("timeseries", base)


def test_damaged_checkpoints_alone_are_one_line(stopped: Path, tmp_path: Path) -> None:
    """Also a second time: the run does not begin again by itself."""
    cwd = shutil.copytree(stopped, tmp_path / "copy")
    for path in checkpoints(cwd):
        damage(path)
    for _ in range(2):
        one_error(resumed(cwd), "all checkpoints are damaged")
    assert len(losses(cwd)) == 22


@every_script
def test_flags_and_the_environment(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.modules.pop("train", None)
    monkeypatch.syspath_prepend(str(render(workload=workload, layout="script")))
    import train

    def read(*words: str) -> Any:
        return train.read_settings(list(words))[0]

    assert read("--max-steps", "7") == read("--max_steps", "7") == read("--max-steps=7")
    assert read("--max-steps", "7").max_steps == 7
    for words, reason in {
        "--max-stpes 7": "did you mean --max-steps",
        "--max_stpes=7": "did you mean --max_steps",
        "--zzz": "unknown flag: --zzz: see --help",
        "--seed 4294967296": "out of range: --seed",
        "--seed -1": "out of range: --seed",
        "--dropout nan": "out of range: --dropout",
    }.items():
        with pytest.raises(train.UserError, match=reason):
            read(*words.split())
    monkeypatch.setenv("SEED", "7")
    monkeypatch.setenv("DETERMINISTIC", "")
    monkeypatch.setenv("USE_AMP", "0")
    settings = read()
    assert (settings.seed, settings.deterministic, settings.precision) == (7, 0, "fp32")
    assert read("--seed", "8", "--precision", "bf16").seed == 8
    monkeypatch.setenv("USE_AMP", "1")
    assert read().precision == "auto"
    sys.modules.pop("train", None)


# ---- what one reads ----------------------------------------------------------------------------


@every_script
def test_a_script_is_read_from_top_to_bottom(workload: str) -> None:
    text = (render(workload=workload, layout="script") / "train.py").read_text(encoding="utf-8")
    titles = [
        "Settings",
        "Data",
        "Model",
        "Precision and optimizer",
        "Checkpoint",
        "Metrics",
        "Training",
    ]
    assert re.findall(rf"^# {'-' * 77}\n# ([\w ]+)", text, flags=re.MULTILINE) == titles
    assert max(map(len, text.splitlines())) <= 100


def definitions(workload: str) -> dict[str, str]:
    """The text of each function and class."""
    text = (REPOSITORY / "template/parts/script" / workload / "train.py").read_text(
        encoding="utf-8"
    )
    tree = ast.parse(text)
    named = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return {node.name: ast.get_source_segment(text, node) or "" for node in named}


# These differ by what is trained.
YOURS = {"Settings", "Data", "Model", "Block", "synthesize", "split_rows", "compute_loss"}


def test_what_scripts_share_is_the_same_text() -> None:
    """They are files of their own, to be pasted: a fix of one is a fix of all."""
    every = {workload: definitions(workload) for workload in SCRIPTS}
    for name in set(chain(*every.values())) - YOURS:
        assert len({texts[name] for texts in every.values() if name in texts}) == 1, name
    shared = {"training_steps", "save_checkpoint", "load_checkpoint", "evaluate", "train"}
    assert shared <= set.intersection(*map(set, every.values()))
    assert (
        len({texts["Settings"].partition("def __post_init__")[2] for texts in every.values()}) == 1
    )


# ---- its own tests -----------------------------------------------------------------------------


def own_tests(project: Path) -> Result:
    """In a fork of this process."""

    def child() -> None:
        sys.modules.pop("train", None)
        os.environ.pop("PYTEST_ADDOPTS", None)
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={project}"]
        code = pytest.main([*options, f"--basetemp={project}/temporary", "test_train.py"])
        sys.stdout.flush()
        os._exit(int(code))

    return Running(project, (), project, child).wait()


@pytest.mark.first(1)
@every_script
def test_own_tests_of_a_script_pass(workload: str, tmp_path: Path) -> None:
    project = shutil.copytree(render(workload=workload, layout="script"), tmp_path / "project")
    done = own_tests(project)
    assert done.code == 0, done.out
    assert " passed" in done.out


FAULTS = {
    "a lost random state": (SCRIPTS, "generator.set_state(state.cpu())", "state.cpu()"),
    "a history that reaches into its targets": (
        ["timeseries"],
        "windows[:, : self.history]",
        "windows[:, 1 : self.history + 1]",
    ),
    "a scaler of all rows": (
        ["timeseries"],
        "train_rows = values[: ends[0]]",
        "train_rows = values",
    ),
    "means of all rows": (["tabular"], "train = values[:num_train]", "train = values"),
    "an unshifted token": (["llm"], "blocks[:, 1:]", "blocks[:, :-1]"),
    "a token that sees the next": (["llm"], "is_causal=True", "is_causal=False"),
    "padding counts": (["timeseries"], " * is_real[:, None, None]", ""),
}
BROKEN = [(workload, name) for name, (workloads, *_) in FAULTS.items() for workload in workloads]


@pytest.mark.first(1)
@pytest.mark.parametrize(("workload", "fault"), BROKEN)
def test_own_tests_notice(workload: str, fault: str, tmp_path: Path) -> None:
    project = shutil.copytree(render(workload=workload, layout="script"), tmp_path / "project")
    _, old, new = FAULTS[fault]
    text = (project / "train.py").read_text(encoding="utf-8")
    assert text.count(old) == 1
    (project / "train.py").write_text(text.replace(old, new), encoding="utf-8")
    done = own_tests(project)
    assert done.code == 1, done.out
    assert "AssertionError" in done.out


def test_documented_commands_of_a_script_run(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs/script.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.+?)```", text, flags=re.DOTALL)
    project = render(workload="tabular", layout="script")
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["python", "train.py"]
        extra = [] if {"--help", "--resume"} & {*words} else ["--max_steps", "3"]
        done = run_script(project, *words[2:], *extra, cwd=tmp_path)
        assert done.code == 0, done.err
    for line in re.findall(r"`python train.py (.+?)`", text):
        workload = "llm" if "0.003" in line else "tabular" if "wine" in line else "timeseries"
        names = set(re.findall(r"--(\w+)", line))
        shown = (render(workload=workload, layout="script") / "train.py").read_text(
            encoding="utf-8"
        )
        assert all(f"    {name}: " in shown for name in names), line


@pytest.mark.full
def test_the_standard_librarys_text_is_that_of_the_package(tmp_path: Path) -> None:
    words = ["--data.batch_size", "16", "--training.max_steps", "5", "--monitor.every_steps", "1"]
    assert run(render(workload="llm"), "train", *words, cwd=tmp_path / "package").code == 0
    words = ["--batch_size", "16", "--max_steps", "5", "--log_every", "1"]
    assert (
        run_script(render(workload="llm", layout="script"), *words, cwd=tmp_path / "script").code
        == 0
    )
    assert losses(tmp_path / "script") == losses(tmp_path / "package")


# ---- answers -----------------------------------------------------------------------------------


REFUSED = [
    *(
        ({"workload": workload}, workload)
        for workload in choices("workload")
        if workload not in SCRIPTS
    ),
    (
        {"workload": SCRIPTS[-1], "gpu": "h100", "precision": "fp8"},
        "layout script has no fp8; choose bf16",
    ),
    ({"loader": "chunk"}, "'loader'.*only where layout is package"),
    ({"framework": "lightning"}, "'framework'.*only where layout is package"),
    ({"distributed": "ddp"}, "'distributed'.*only where layout is package"),
    ({"tracker": "wandb"}, "'tracker'.*only where layout is package"),
    ({"extras": ["watch"]}, "'extras'.*only where layout is package"),
]


@pytest.mark.parametrize(("answers", "reason"), REFUSED, ids=lambda part: str(part)[:30])
def test_what_a_script_cannot_be_is_refused_with_its_reason(
    answers: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        render_into(tmp_path / "project", layout="script", **answers)
    assert not (tmp_path / "project").exists()


@pytest.mark.full
@pytest.mark.parametrize("gpu", choices("gpu"))
def test_each_card_and_precision_has_its_script(gpu: str) -> None:
    for workload in SCRIPTS:
        for precision in choices("precision"):
            answers = {"layout": "script", "workload": workload, "gpu": gpu, "precision": precision}
            if not impossible(answers):
                text = (render(**answers) / "train.py").read_text(encoding="utf-8")
                assert f'precision: str = "{precision}"  # ' in text


def test_a_script_is_these_files() -> None:
    names = {
        "train.py",
        "test_train.py",
        "README.md",
        "pyproject.toml",
        ".gitignore",
        ".copier-answers.yml",
    }
    for answers in scripts():
        assert {path.name for path in render(**answers).iterdir()} == names
        kept = (render(**answers) / ".copier-answers.yml").read_text(encoding="utf-8")
        assert not {"loader", "framework", "distributed", "tracker", "extras"} & {
            line.partition(":")[0] for line in kept.splitlines()
        }


@pytest.mark.first(1)
@every_script
def test_the_package_starts_from_the_weights_of_a_script(workload: str, tmp_path: Path) -> None:
    script, cwd = of_script(workload, 3, 1, tmp_path / "script"), tmp_path / "package"
    first = of_package(workload, 1, 1, cwd)
    still = ("--optimizer.learning_rate", "1e-30", "--training.max_steps", "1")
    words = (*CASES[workload].package.split(), *still, "--training.init_from", str(script))
    done = run(render(workload=workload), "train", *words, cwd=cwd)
    assert done.code == 0, done.err
    assert "new: nothing; left: nothing" in done.out
    assert weights(newest_run(cwd)) == weights(script) != weights(first)


@every_script
def test_the_package_starts_from_the_best_undamaged_checkpoint_of_a_script(
    workload: str, tmp_path: Path
) -> None:
    folder = of_script(workload, 3, 1, tmp_path / "script") / "checkpoints"
    package, case, cwd = render(workload=workload), CASES[workload], tmp_path / "package"
    cwd.mkdir()
    case.write(cwd / "data.file")
    assert run(package, "prepare", *case.prepare.split(), cwd=cwd).code == 0
    (best,) = folder.iterdir()
    newer = folder / best.name.replace("step-00000003", "step-00000004")
    newer.write_bytes(best.read_bytes())  # another best one is named in it
    damaged = folder / "step-00000005-0123456789abcdef.pt"
    damaged.write_bytes(b"")
    words = f"train {case.package} --training.max_steps 1 --training.init_from".split()
    for source in (folder.parent, best):
        begun = run(package, *words, str(source), cwd=cwd)
        assert begun.code == 0, begun.err
        assert f"weights of {best}: " in begun.out
        assert "tensors fit; new: nothing; left: nothing" in begun.out
        assert (f"skipped a damaged checkpoint: {damaged.name}" in begun.out) == (source != best)
    best.unlink()
    newer.unlink()
    one_error(run(package, *words, str(folder.parent), cwd=cwd), "no valid checkpoint")
