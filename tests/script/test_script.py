"""`layout: script`: one file, which is the engine's executable specification.

Its losses, evaluations and weights are the package's, bit for bit, on the data that `prepare`
reads.
"""

import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
from typing import Any

import pytest
from forking import run_pytest
from rendering import REPOSITORY, render, render_into, replace
from running import (
    check_run,
    evaluation_of,
    flip_bit,
    losses,
    newest_run,
    one_error,
    rows,
)
from scripts import (
    CASES,
    at_step,
    nothing,
    of_package,
    of_script,
    prose,
    result_of,
    run_script,
    script,
    send,
    weights,
    weights_in,
    words_of,
)
from variants import SCRIPTS

every_script = pytest.mark.parametrize("workload", SCRIPTS)


# --- the same run as script and as package


SHARED = ("step", "split", "epoch", "loss", "learning_rate", "gradient_norm")
MEASURED = ("mse", "mae", "bits_per_byte", "accuracy", "log_loss")


def curves(cwd):
    """The records that both write. The package measures the test split by `evaluate` alone."""
    records = []
    for record in rows(cwd):
        if record.get("split") != "test":
            names = [name for name in (*SHARED, *MEASURED) if name in record]
            records.append({name: record[name] for name in names})
    return records


@pytest.mark.cover(1, "workload", "precision")
@every_script
@pytest.mark.parametrize(
    ("precision", "steps", "accumulation", "every"),
    [
        ("fp32", 100, 3, 1),
        ("fp32", 100, 1, 1),
        ("fp16", 20, 3, 7),
        ("bf16", 20, 3, 7),
    ],
    ids=["fp32", "one", "fp16", "bf16"],
)
def test_losses_evaluations_and_weights_are_those_of_the_package(
    workload, precision, steps, accumulation, every, tmp_path
):
    """Also records of several steps, which are means of all of their losses."""
    package = tmp_path / "package"
    chosen = {"precision": precision, "every": every}
    of_package(workload, steps, accumulation, package, **chosen)
    assert of_script(workload, steps, accumulation, tmp_path / "script", **chosen).code == 0
    records = curves(tmp_path / "script")
    assert len(records) >= steps // every
    assert records == curves(package)
    assert weights(tmp_path / "script") == weights(package)
    check_run(render(workload=workload), "evaluate", "--split", "test", cwd=package)
    measured = evaluation_of(package)["metrics"]
    *_, test = rows(tmp_path / "script")
    assert (test["split"], test["loss"]) == ("test", measured["loss"])
    for name in {"mase", "smape"} & test.keys():  # of which float32 has the sums here
        assert test[name] == pytest.approx(measured[name], rel=1e-5)


# --- kills, signals, bad losses


@functools.cache
def whole(workload, folder):
    """What a run has made that nothing stopped."""
    assert of_script(workload, 60, 3, folder / workload, every=7).code == 0
    return result_of(folder / workload)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


def checkpoints(cwd):
    """Of the newest run, the oldest first."""
    return sorted((newest_run(cwd) / "checkpoints").glob("step-*.pt"))


def saved_steps(cwd):
    return [int(path.name.split("-")[1]) for path in checkpoints(cwd)]


def test_a_signal_right_after_the_question_for_it_loses_no_step(tmp_path):
    """Whether to save and whether to end are one decision, or the run ends unsaved."""
    step = 0

    def count():
        nonlocal step
        step = 5

    class Late(list[int]):
        """Receives a signal right after the first question in step 5."""

        def __bool__(self):
            answer = len(self) > 0
            if step == 5:
                self.append(signal.SIGTERM)
            return answer

    def late(train):
        at_step(5, count)(train)
        train.collect_signals = Late

    assert of_script("timeseries", 60, 3, tmp_path, late).code == 143
    assert saved_steps(tmp_path) == [6]


def test_a_second_signal_ends_at_once(tmp_path):
    twice = at_step(4, send(signal.SIGINT, signal.SIGINT))
    assert of_script("timeseries", 60, 1, tmp_path, twice).code == 128 + signal.SIGINT
    assert not checkpoints(tmp_path)


# --- odd runs, files and flags


def resumed(cwd, before=nothing):
    return run_script(script(), "--resume", cwd=cwd, before=before)


def test_a_damaged_checkpoint_is_none_of_the_two_newest(base, tmp_path):
    """Else the next save would delete the one that the run was resumed from."""
    stop = at_step(24, send(signal.SIGTERM))
    assert of_script("timeseries", 60, 3, tmp_path, stop, every=7).code == 143
    assert saved_steps(tmp_path) == [15, 24]
    newest = checkpoints(tmp_path)[-1]
    flip_bit(newest, newest.stat().st_size // 2)

    def kill_after_save(train):
        save = train.save_checkpoint

        def save_and_die(*arguments):
            save(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        train.save_checkpoint = save_and_die

    assert resumed(tmp_path, kill_after_save).code == -signal.SIGKILL
    assert saved_steps(tmp_path) == [15, 30]
    flip_bit(checkpoints(tmp_path)[-1], -100)
    assert resumed(tmp_path).code == 0
    assert result_of(tmp_path) == whole("timeseries", base)


def load_script(workload, monkeypatch):
    """The module of a script, in this process."""
    monkeypatch.syspath_prepend(str(script(workload)))
    monkeypatch.delitem(sys.modules, "train", raising=False)
    return importlib.import_module("train")


@every_script
def test_flags_and_the_environment(workload, monkeypatch):
    train = load_script(workload, monkeypatch)

    def read(words=""):
        return train.read_settings(train.parse(words.split()))[0]

    for words in ("--max-steps 7", "--max_steps 7", "--max-steps=7"):
        assert read(words).max_steps == 7
    monkeypatch.setenv("SEED", "7")
    monkeypatch.setenv("DETERMINISTIC", "")
    assert (read().seed, read().deterministic) == (7, 0)
    assert read("--seed 8").seed == 8
    switched_on = ("1", "true", "On", "YES")
    for word in (*switched_on, "0", "False", "off", "NO"):
        for name in ("USE_AMP", "DETERMINISTIC", "PIN_MEMORY"):
            monkeypatch.setenv(name, word)
        is_on = word in switched_on
        assert read().precision == ("auto" if is_on else "fp32"), word
        assert read().deterministic == read().pin_memory == is_on, word


def test_the_answer_to_precision_is_the_default_of_its_setting():
    source = render(layout="script", precision="bf16") / "train.py"
    assert 'precision: str = setting(\n        "bf16",' in source.read_text(encoding="utf-8")


def test_an_owner_s_setting_may_be_a_plain_field(tmp_path, monkeypatch, capsys):
    """Such as one that an update has merged from an older script."""
    project = shutil.copytree(script("tabular"), tmp_path / "project")
    replace(project / "train.py", "    # model\n", "    mine: int = 3  # text\n    # model\n")
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.delitem(sys.modules, "train", raising=False)
    train = importlib.import_module("train")
    assert train.read_settings(train.parse([]))[0].mine == 3
    assert train.read_settings(train.parse(["--mine=-5"]))[0].mine == -5
    with pytest.raises(SystemExit, match="0"):
        train.parse(["--help"])
    assert "--mine MINE" in capsys.readouterr().out


# --- its own tests


@pytest.mark.first(2)
@every_script
def test_own_tests_of_a_script_pass(workload, tmp_path):
    done = run_pytest(shutil.copytree(script(workload), tmp_path / "project"), "test_train.py")
    assert done.code == 0, done.out
    assert " passed" in done.out


def test_documented_commands_of_a_script_run(tmp_path):
    page = (REPOSITORY / "docs/how-to/script.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.+?)```", page, flags=re.DOTALL)
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["python", "train.py"]
        if not {"--help", "--resume"} & {*words}:
            words += ["--max_steps", "3"]
        done = run_script(script("tabular"), *words[2:], cwd=tmp_path)
        assert done.code == 0, done.err


# --- answers


PACKAGE_ONLY: dict[str, Any] = {
    "loader": "chunk",
    "framework": "lightning",
    "distributed": "ddp",
    "tracker": "wandb",
    "extras": ["watch"],
}


def test_what_a_script_cannot_be_is_refused_with_its_reason(tmp_path):
    for question, answer in PACKAGE_ONLY.items():
        with pytest.raises(ValueError, match=f"'{question}'.*only if layout is package"):
            render_into(tmp_path / "project", layout="script", **{question: answer})
    assert not (tmp_path / "project").exists()


def test_a_script_is_these_files():
    names = "train.py test_train.py README.md pyproject.toml .gitignore .copier-answers.yml"
    names += " AGENTS.md CLAUDE.md"
    assert {path.name for path in script().iterdir()} - {"__pycache__"} == {*names.split()}


# --- the package starts from the weights of a script


@pytest.mark.first(1)
@every_script
def test_the_package_starts_from_the_best_checkpoint_of_a_script(workload, tmp_path):
    cwd = tmp_path / "package"
    assert of_script(workload, 3, 1, tmp_path / "script").code == 0
    of_package(workload, 1, 1, cwd)
    (best,) = checkpoints(tmp_path / "script")
    assert weights(cwd) != weights_in(best)
    words = f"train {CASES[workload].package} --training.max_steps 1".split()
    words += ["--optimizer.learning_rate", "1e-30", "--finetune.init_from"]
    package = render(workload=workload, extras=["finetune"])
    for source in (newest_run(tmp_path / "script"), best):
        begun = check_run(package, *words, str(source), cwd=cwd)
        assert f"weights of {best}: " in begun.out
        assert "new: nothing; unused: nothing" in begun.out
        begun_from = weights_in(best)
        found = weights(cwd)
        assert found.keys() == begun_from.keys()
        moved = {name for name in found if found[name] != begun_from[name]}
        # A step moves the statistics of batch norm, and nothing else at this rate.
        assert all(re.search("running_|num_batches", name) for name in moved), moved


# --- what an owner adds

PHASES = """
PHASES += [
    {"max_steps": 20, "block_size": 16, "batch_size": 16, "learning_rate": 3e-4},
    {"max_steps": 10, "block_size": 64, "batch_size": 4},
]
"""


def test_a_run_in_phases_resumes_inside_a_phase_bit_for_bit(tmp_path):
    project = shutil.copytree(script("llm"), tmp_path / "project")
    main = '\nif __name__ == "__main__":'
    replace(project / "train.py", main, PHASES + main)
    words = words_of("llm", steps=30, accumulation=1)
    kill = at_step(30 + 17, send(signal.SIGKILL))
    for name in ("whole", "killed"):
        cwd = tmp_path / name
        cwd.mkdir()
        prose(cwd / "data.file")
    assert run_script(project, *words, cwd=tmp_path / "whole").code == 0
    assert run_script(project, *words, cwd=cwd, before=kill).code == -signal.SIGKILL
    assert ", step 15 of 20\n" in run_script(project, "--resume", cwd=cwd).out
    whole = losses_of_phases(tmp_path / "whole")
    assert losses_of_phases(cwd) == whole
    assert [len(phase) for phase in whole] == [32, 22, 12]
    assert whole[1][0] < whole[0][0], "a phase starts from the weights of the one before"

    # `--phase 1` is what the command line says; another one begins where the newest run ends.
    cwd = tmp_path / "single"
    cwd.mkdir()
    prose(cwd / "data.file")
    for phase in "123":
        assert run_script(project, *words, "--phase", phase, cwd=cwd).code == 0
    assert losses_of_phases(cwd) == whole


def losses_of_phases(cwd):
    losses_by_phase = []
    for path in sorted((cwd / "runs").glob("*/metrics.jsonl")):
        records = map(json.loads, path.read_text().splitlines())
        losses_by_phase.append([record["loss"] for record in records])
    return losses_by_phase


def test_a_phase_starts_from_no_run_of_another_phase(tmp_path):
    """It takes the newest run only if that is of the phase before, and names it."""
    project = shutil.copytree(script("llm"), tmp_path / "project")
    main = '\nif __name__ == "__main__":'
    replace(project / "train.py", main, PHASES + main)
    prose(tmp_path / "data.file")

    def train(*flags):
        return run_script(project, *words_of("llm", 20, 1, every=20), *flags, cwd=tmp_path)

    one_error(train("--phase", "2"), "no run to resume", "settings.json", "train first")
    assert train("--phase", "1").code == 0
    first = newest_run(tmp_path).relative_to(tmp_path)
    one_error(train("--phase", "3"), f"the newest run is not of phase 2: {first}: train that")
    assert newest_run(tmp_path).name == first.name
    done = train("--phase", "2")
    assert f"note: the weights are those of {first}\n" in done.out
    second = losses(tmp_path)
    one_error(train("--phase", "2"), "not of phase 1: .*name its run with --init_from")
    assert train("--phase", "2", "--init_from", str(first)).code == 0
    assert losses(tmp_path) == second
