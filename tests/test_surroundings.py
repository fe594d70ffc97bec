"""Odd surroundings: where a verb was started from, what was typed, what the environment says.

A run that is in use and a closed output are held by test_one_process.py, the interview by test_interview.py.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rendering import render
from running import PACKAGE, Result, Running, newest_run, one_error, run, start
from test_tier_b import TINY
from variants import choices

SHORT = ("--training.max_steps", "4", "--schedule.warmup_steps", "1", "--monitor.every_steps", "1")
# What a trained run answers, and the file that has it.
ANSWERS = {"llm": ("generate", "--tokens", "5", "--output", "new.txt")}
ANSWERS |= dict.fromkeys(("timeseries", "windows"), ("predict", "--output", "new.npz"))
ANSWERS |= {"seq2seq": ("predict", "--output", "new.jsonl")}


def anywhere(project: Path, *words: str, cwd: Path) -> Result:
    """A verb that finds its project by itself."""
    return Running(project, words, cwd, before=lambda: os.environ.pop("TRAINING_ROOT")).wait()


def files(folder: Path) -> set[str]:
    """All files in it, but what Python and this test leave, and answers."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    kept = (path for path in found if "__pycache__" not in path.parts)
    return {str(path) for path in kept if not path.name.startswith((".out", ".err", "new."))}


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- any directory ----


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_from_another_directory_everything_is_found_and_written_as_from_its_own(
    workload: str, tmp_path: Path
) -> None:
    """Beside a configuration that is not the project's."""
    answer = ANSWERS.get(workload, ("predict", "--output", "new.csv"))
    left, said = {}, ""
    for where in ("inside", "outside"):
        project, cwd = tmp_path / where / "a project", tmp_path / where / "elsewhere"
        shutil.copytree(render(workload=workload), project)
        cwd.mkdir()
        (cwd / "config.yaml").write_text("reproducibility: {seed: 7}\n")
        cwd = project if where == "inside" else cwd
        training = ("train", "--name", "a", *TINY[workload], *SHORT)
        for words in (training, ("report",), ("evaluate", "--run", "a"), answer):
            done = anywhere(project, *words, cwd=cwd)
            assert done.code == 0, done.err
            said = done.err
        losses = [row["loss"] for row in read_rows(project / "runs/a/metrics.jsonl")]
        left[where] = losses, (cwd / answer[-1]).read_bytes(), files(project)
    assert left["inside"] == left["outside"]
    assert files(cwd) == {"config.yaml"}
    assert f"note: settings, data and runs are those of {project}\n" in said


def test_what_a_person_names_is_meant_from_where_they_stand(tmp_path: Path) -> None:
    project, cwd = tmp_path / "a project", tmp_path / "elsewhere"
    shutil.copytree(render(workload="tabular"), project)
    cwd.mkdir()
    (cwd / "rows.csv").write_text("a,b\n" + "".join(f"{n},{n * 2}\n" for n in range(40)))
    (cwd / "mine.yaml").write_text("training: {max_steps: 2}\ndata: {batch_size: 8}\n")
    prepared = anywhere(
        project, "prepare", "--input", "rows.csv", "--target", "b", "--task", "regression", cwd=cwd
    )
    assert prepared.code == 0, prepared.err
    assert (project / "data/manifest.json").exists()
    trained = anywhere(project, "train", "--config", "mine.yaml", "--name", "a", cwd=cwd)
    assert trained.code == 0, trained.err
    assert "finished at step 2 of 2" in trained.out
    for run_of_it in (
        "a",
        "../a project/runs/a",
        "runs/a",
    ):  # the last one as `train` has printed it
        assert anywhere(project, "report", run_of_it, cwd=cwd).code == 0
    assert (
        anywhere(project, "predict", "--input", "rows.csv", "--output", "new.csv", cwd=cwd).code
        == 0
    )
    assert (cwd / "new.csv").exists()
    assert files(cwd) == {"rows.csv", "mine.yaml"}


def test_an_installed_package_works_where_one_stands_and_says_where_settings_come_from(
    tmp_path: Path,
) -> None:
    """It has no pyproject.toml above it."""
    shutil.copytree(
        render(workload="tabular") / "src" / PACKAGE, tmp_path / "lib/site-packages" / PACKAGE
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib/site-packages")}
    del environment["TRAINING_ROOT"]
    command = [sys.executable, "-m", PACKAGE, "train", "--print-config"]

    def printed(**more: str) -> tuple[str, str]:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            check=True,
        )
        return re.findall(r"^  seed: (\d+) +# ", done.stdout, flags=re.MULTILINE)[0], done.stderr

    assert printed() == (
        "42",
        f"note: no config.yaml in {tmp_path}: each setting has its default\n",
    )
    (tmp_path / "config.yaml").write_text("reproducibility: {seed: 7}\n")
    assert printed() == ("7", "")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/config.yaml").write_text("reproducibility: {seed: 8}\n")
    seed, said = printed(TRAINING_ROOT="disk")
    assert seed == "8"
    assert said == f"note: settings, data and runs are those of {tmp_path}/disk\n"


# ---- what was typed, what stands in files and in the environment ----


@dataclass(frozen=True)
class Odd:
    """How a verb of the project `tabular` is called, and what its one line says, or what the run has."""

    words: tuple[str, ...] = ()
    config: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    says: tuple[str, ...] = ()

    def put(self) -> None:
        os.environ.update(self.environment)
        if self.config is not None:
            Path("config.yaml").write_text(self.config)


REFUSED = {
    "misspelt key": Odd(
        config="data: {bacth_size: 1}", says=("'data.bacth_size'", "did you mean 'data.batch_size'")
    ),
    "misspelt flag": Odd(("--data.bacth_size", "1"), says=("did you mean 'data.batch_size'",)),
    "ten": Odd(("--training.epochs", "ten"), says=("'ten'", "give a whole number")),
    "-1": Odd(("--data.batch_size", "-1"), says=("-1", "at least 1")),
    "0": Odd(("--data.batch_size", "0"), says=("cannot be 0", "at least 1")),
    "nan": Odd(("--optimizer.learning_rate", ".nan"), says=("nan", "give a number")),
    "fp8 where impossible": Odd(
        ("--training.precision", "fp8"), says=("fp8", "choose|copier update")
    ),
    "missing config file": Odd(
        ("--config", "none.yaml"), says=("No such file", "none.yaml", "check --config")
    ),
    "YAML list": Odd(config="- data", says=("instead of settings", "config.yaml")),
    "tabs": Odd(config="data:\n\tpath: x", says=("not YAML", "line 2", "fix that line")),
    "duplicate key": Odd(
        config="data: {path: a, path: b}", says=("duplicate key 'path'", "line 1")
    ),
    "bool as number": Odd(config="training: {epochs: yes}", says=("True", "whole number")),
    "SEED=-3": Odd(environment=(("SEED", "-3"),), says=("-3", r"\$SEED", "at least 0")),
    "TRAINING_ROOT=nowhere": Odd(
        environment=(("TRAINING_ROOT", "nowhere"),),
        says=("there is no such folder", "unset the name"),
    ),
    "unknown profile": Odd(("--profile", "fast"), says=("'fast'", "choose one of baseline, speed")),
    "--resume nonsense": Odd(("--resume", "nonsense"), says=("no run 'nonsense'", "train")),
    "data path that is none": Odd(
        ("--data.path", "nowhere"), says=("no prepared data: nowhere", "run `prepare")
    ),
    "--name ../../x": Odd(("--name", "../../x"), says=("not a plain folder name", "use letters")),
    "learning rate 1e10": Odd(
        ("--optimizer.learning_rate", "1e10"), says=("above 0 and at most 1",)
    ),
    "a name that exists": Odd(("--name", "a"), says=("run 'a' exists already", "--resume a")),
    "resume with another batch size": Odd(
        ("--resume", "a", "--data.batch_size", "7"), says=("samples|batch",)
    ),
}
RIGHT = {
    "empty YAML": Odd(config="", says=("batch_size: 32 +# default",)),
    "quoted number": Odd(
        config="data: {batch_size: '32'}", says=("batch_size: 32 .*# config.yaml",)
    ),
    "1e-3": Odd(
        config="optimizer: {learning_rate: 1e-3}", says=("learning_rate: 0.001 .*# config.yaml",)
    ),
    "a path with a space": Odd(("--config", "eine Größe/ü.yaml"), says=("seed: 9 .*Größe/ü.yaml",)),
    "bf16 on a CPU": Odd(("--training.precision", "bf16"), says=("precision: bf16",)),
    "a batch beyond the data": Odd(("--data.batch_size", "10000"), says=("batch_size: 10000",)),
    "BATCH_SIZE=abc": Odd(environment=(("BATCH_SIZE", "abc"),), says=("seed: 42",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_one_line_with_a_remedy_and_leaves_nothing(
    name: str, tmp_path: Path
) -> None:
    odd, project = REFUSED[name], render(workload="tabular")
    if "a" in odd.words:
        first = run(project, "train", *SHORT, "--name", "a", "--max-steps", "2", cwd=tmp_path)
        assert first.code == 0, first.err
    before = files(tmp_path / "runs")
    length = () if "--resume" in odd.words else SHORT
    one_error(run(project, "train", *length, *odd.words, cwd=tmp_path, before=odd.put), *odd.says)
    assert files(tmp_path / "runs") == before


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_odd_and_right_trains(name: str, tmp_path: Path) -> None:
    odd = RIGHT[name]
    (tmp_path / "eine Größe").mkdir()
    (tmp_path / "eine Größe/ü.yaml").write_text("reproducibility: {seed: 9}\n")
    done = run(
        render(workload="tabular"), "train", *SHORT, *odd.words, cwd=tmp_path, before=odd.put
    )
    assert done.code == 0, done.err
    resolved = (newest_run(tmp_path) / "config.resolved.yaml").read_text(encoding="utf-8")
    for part in odd.says:
        assert re.search(part, resolved), (part, resolved)


def test_a_misspelt_verb_is_guessed(tmp_path: Path) -> None:
    one_error(
        run(render(workload="tabular"), "trian", cwd=tmp_path),
        "no verb 'trian'",
        "did you mean 'train'",
    )


def test_a_folder_that_cannot_be_written_has_its_remedy(tmp_path: Path) -> None:
    def read_only() -> None:
        def mkdir(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        Path.mkdir = mkdir  # type: ignore[method-assign]

    assert (
        run(render(workload="tabular"), "train", *SHORT, "--name", "b", cwd=tmp_path).code == 0
    )  # makes data
    refused = run(
        render(workload="tabular"), "train", *SHORT, "--name", "a", cwd=tmp_path, before=read_only
    )
    one_error(
        refused,
        "Permission denied",
        f"{tmp_path}/runs/a",
        "make that folder writable",
        "TRAINING_ROOT",
    )


# ---- signals and neighbours ----


def test_ctrl_c_twice_ends_in_order(tmp_path: Path) -> None:
    words = ("--training.epochs", "100000", "--monitor.every_steps", "1")
    running = start(render(workload="tabular"), "train", *words, cwd=tmp_path)
    running.wait_for_rows(5)
    running.kill(signal.SIGINT)
    running.kill(signal.SIGINT)
    done = running.wait()
    assert done.code == 130
    assert "Traceback" not in done.err
    assert "`train --resume" in done.out


def test_of_two_starts_with_one_name_one_trains_and_one_is_refused(tmp_path: Path) -> None:
    words = ("train", *SHORT, "--name", "a")
    both = [start(render(workload="tabular"), *words, cwd=tmp_path, name=name) for name in "12"]
    done = sorted((each.wait() for each in both), key=lambda result: result.code)
    assert [result.code for result in done] == [0, 2]
    one_error(done[1], "run 'a' exists already")
