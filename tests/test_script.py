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
from importing import imported
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
        f"{np.datetime64('2024-01-01T00') + hour},{load[hour]:.3f},{price[hour]:.3f},7\n" for hour in hours
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
    return [{name: row[name] for name in (*COMMON, *measured, "step") if name in row} for row in found]


def weights(folder: Path) -> dict[str, bytes]:
    newest = max((folder / "checkpoints").glob("step-*"))
    return {name: array.tobytes() for name, array in load_file(newest / "model.safetensors").items()}


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
    assert run(render(workload=workload), "evaluate", "--split", "test", cwd=tmp_path / "package").code == 0
    (test,) = (row for row in rows(tmp_path / "script") if row.get("split") == "test")
    measured = json.loads((package / "evaluation.json").read_text())["metrics"]
    assert test["loss"] == measured["loss"]


@every_script
@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.full), "fp16"])
def test_half_precision_is_that_of_the_package(workload: str, precision: str, tmp_path: Path) -> None:
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
def test_goes_on_after_a_kill_at_a_random_point(workload: str, seed: int, base: Path, tmp_path: Path) -> None:
    CASES[workload].write(tmp_path / "data.file")
    project, draw = render(workload=workload, layout="script"), random.Random(seed)
    running = start_script(project, *words_of(workload, 60, 3), cwd=tmp_path)
    running.wait_for_rows(draw.randrange(1, 60))
    time.sleep(draw.random() / 50)
    running.kill(signal.SIGKILL)
    assert running.wait().code in (-signal.SIGKILL, 0)
    done = run_script(project, "--resume", cwd=tmp_path)
    assert done.code == 0, done.err
    assert (losses(tmp_path), evaluations(tmp_path), weights(newest_run(tmp_path))) == whole(workload, base)


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
    assert code == 143 or stopped == "step-00000060"  # or it was faster than the signal
    assert run_script(project, "--resume", cwd=tmp_path).code == 0
    after = losses(tmp_path), evaluations(tmp_path), weights(newest_run(tmp_path))
    assert after == whole(workload, base, every=7)


def test_a_signal_right_after_the_question_for_it_loses_no_step(tmp_path: Path) -> None:
    """Whether to save and whether to end are one decision, or the run ends unsaved."""
    CASES["timeseries"].write(tmp_path / "data.file")

    def late(train: Any) -> None:
        due = train.due

        def signalled(every: int, step: int, ended: bool) -> Any:
            if every == 15 and step == 5:  # the last question before the end of the step
                os.kill(os.getpid(), signal.SIGTERM)
            return due(every, step, ended)

        train.due = signalled

    project = render(workload="timeseries", layout="script")
    done = start_script(project, *words_of("timeseries", 60, 3), cwd=tmp_path, before=late).wait()
    assert done.code == 143
    assert [path.name for path in (newest_run(tmp_path) / "checkpoints").glob("step-*")] == ["step-00000006"]


@every_script
def test_a_loss_that_goes_bad_ends_the_run_and_names_the_samples(workload: str, tmp_path: Path) -> None:
    CASES[workload].write(tmp_path / "data.file")

    def spoil(train: Any) -> None:
        forward, seen = train.Model.forward, []

        def bad(model: Any, batch: Any) -> Any:
            loss, *rest = forward(model, batch)
            seen.append(loss)
            return (loss * float("nan") if len(seen) == 9 else loss, *rest)

        train.Model.forward = bad

    words = [*words_of(workload, 60, 3, every=50), "--save_every", "1000", "--evaluate_every", "50"]
    done = start_script(render(workload=workload, layout="script"), *words, cwd=tmp_path, before=spoil).wait()
    one_error(done, r"loss of step 3 is nan", r"samples \[\d+, \d+")
    assert not list((newest_run(tmp_path) / "checkpoints").glob("step-*"))


# ---- what one reads ----------------------------------------------------------------------------


@every_script
def test_a_script_is_read_in_ten_minutes(workload: str) -> None:
    text = (render(workload=workload, layout="script") / "train.py").read_text(encoding="utf-8")
    titles = ["settings", "data", "model", "order", "what makes it fast", "checkpoint", "loop"]
    found = [line[7:] for line in text.splitlines() if line.startswith("# ---- ")]
    assert [line.partition(":")[0].strip(" -") for line in found] == titles


def definitions(workload: str) -> dict[str, str]:
    """The text of each function and class."""
    text = (REPOSITORY / "template/parts/script" / workload / "train.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    named = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return {node.name: ast.get_source_segment(text, node) or "" for node in named}


YOURS = {"Settings", "Data", "Model", "Block", "synthesize"}  # differ by what is trained


def test_what_scripts_share_is_the_same_text() -> None:
    """They are files of their own, to be pasted: a mend of one is a mend of all."""
    every = {workload: definitions(workload) for workload in SCRIPTS}
    for name in set(chain(*every.values())) - YOURS:
        assert len({texts[name] for texts in every.values() if name in texts}) == 1, name
    assert {"Precision", "permuted", "save", "newest", "train"} <= set.intersection(*map(set, every.values()))


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
    "a lost random state": (SCRIPTS, 'set_random_state(state.pop("random"))', 'state.pop("random")'),
    "a history that reaches into its targets": (
        ["timeseries"],
        "both[:, : self.history]",
        "both[:, 1 : self.history + 1]",
    ),
    "a scaler of all rows": (["timeseries"], 'values[: splits["train"][1]]', "values"),
    "means of all rows": (["tabular"], 'train = shuffle[: splits["train"][1]]', "train = shuffle"),
    "an unshifted token": (
        ["llm"],
        "values[:, 1:].masked_fill(outside[:, 1:], IGNORE)",
        "values[:, :-1].masked_fill(outside[:, 1:], IGNORE)",
    ),
    "a token that sees the next": (["llm"], "is_causal=True", "is_causal=False"),
    "rows that fill up count": (["timeseries"], "* present[:, None, None]", ""),
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
        shown = (render(workload=workload, layout="script") / "train.py").read_text(encoding="utf-8")
        assert all(f"    {name}: " in shown for name in names), line


@pytest.mark.full
def test_the_standard_librarys_text_is_that_of_the_package(tmp_path: Path) -> None:
    words = ["--data.batch_size", "16", "--training.max_steps", "5", "--monitor.every_steps", "1"]
    assert run(render(workload="llm"), "train", *words, cwd=tmp_path / "package").code == 0
    words = ["--batch_size", "16", "--max_steps", "5", "--log_every", "1"]
    assert run_script(render(workload="llm", layout="script"), *words, cwd=tmp_path / "script").code == 0
    assert losses(tmp_path / "script") == losses(tmp_path / "package")


# ---- answers -----------------------------------------------------------------------------------


REFUSED = [
    *(({"workload": workload}, workload) for workload in choices("workload") if workload not in SCRIPTS),
    ({"workload": SCRIPTS[-1], "gpu": "h100", "precision": "fp8"}, "layout script has no fp8; choose bf16"),
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
                assert f'precision: str = given("{precision}", ' in text


def test_a_script_is_these_files() -> None:
    names = {"train.py", "test_train.py", "README.md", "pyproject.toml", ".gitignore", ".copier-answers.yml"}
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
def test_the_package_starts_from_the_checkpoints_of_a_script(workload: str, tmp_path: Path) -> None:
    """Every weight fits; format, seal and digests are read, and what is damaged is no start."""
    folder = of_script(workload, 3, 1, tmp_path / "script") / "checkpoints"
    package, case, cwd = render(workload=workload), CASES[workload], tmp_path / "package"
    cwd.mkdir()
    case.write(cwd / "data.file")
    assert run(package, "prepare", *case.prepare.split(), cwd=cwd).code == 0
    words = f"train {case.package} --training.max_steps 1 --training.init_from {folder.parent}".split()
    begun = run(package, *words, cwd=cwd)
    assert begun.code == 0, begun.err
    assert f"{folder}/step-00000003: " in begun.out
    assert "tensors fit; new: nothing; left: nothing" in begun.out
    engine = [imported(package, f"engine.{name}") for name in ("checkpoint", "distributed")]
    found = engine[0].Checkpoint(folder, engine[1].Distributed()).peek("best")
    assert list(found) == ["data"]
    weights_file = next(folder.glob("step-*/model.safetensors"))
    content = bytearray(weights_file.read_bytes())
    content[-1] ^= 1
    weights_file.write_bytes(content)
    with pytest.raises(Exception, match="no valid checkpoint"):
        engine[0].Checkpoint(folder, engine[1].Distributed()).peek("best")
