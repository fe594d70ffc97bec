"""What owners change most: after each patch of docs/how-to/changes.md the project's own tests pass."""

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from forking import run_pytest
from ranks import run_ranks
from rendering import REPOSITORY, render, replace
from running import (
    EXAMPLES,
    check_run,
    last_checkpoint,
    last_state,
    losses,
    newest_run,
    resumes,
    rows,
    run,
    weights,
)
from variants import choices

PAGE = (REPOSITORY / "docs/how-to/changes.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])
ANSWERS = {"workload": "tabular", "extras": ["ema", "finetune"]}


def patched_files(title):
    """Places of a section's patch, each with its lines, by the file that they are in."""
    (patch,) = re.findall(r"```diff\n(.*?)```", SECTIONS[title], re.DOTALL)
    pieces = re.split(r"^--- (\S+)\n", patch, flags=re.MULTILINE)
    return {name: text.split("@@\n") for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def workloads(title):
    (named,) = re.findall(r"\*\*Workloads:\*\* (all|[^.]+)\.", SECTIONS[title])
    return choices("workload") if named == "all" else re.findall(r"`(\w+)`", named)


def apply(title, project):
    """Do to a project what the section says; every place must be there once."""
    for name, places in patched_files(title).items():
        for place in places:
            lines = place.splitlines()
            old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
            new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
            if old:
                replace(project / name, old, new)
            else:
                (project / name).write_text(f"{new}\n", encoding="utf-8")

    config = project / "config.yaml"
    for section, key, value in re.findall(r"`(\w+)\.(\w+): (\w+)`", SECTIONS[title]):
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))
        settings[section][key] = value
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return project


def copied(project, folder):
    return Path(shutil.copytree(project, folder / "project"))


def own_tests(project):
    """`make test`, whose commands are forks; return the folder that it trained in."""
    temporary = project / "temporary"

    def run_forked(command, **options):
        result = run(project, *command[3:], cwd=Path.cwd())
        with open(temporary / "printed", "a", encoding="utf-8") as file:
            file.write(result.out)
        return SimpleNamespace(returncode=result.code, stdout=result.out, stderr=result.err)

    def fork_commands():
        subprocess.run = run_forked  # type: ignore[assignment]

    result = run_pytest(project, "tests", before=fork_commands)
    assert result.code == 0, result.out[-3000:]
    return next(temporary.glob("test_training_learns*"))


# ---- what each change does ---------------------------------------------------------------------


EFFECTS = {  # what a run has printed, reported or noted after a change that no other test is about
    "A measure of all predictions": '"median_error": ',
    "A metric, also while training": r'"loss": [^}]+ "mae": ',
    "Your own plot": r"!\[errors_by_sun\]\(examples/errors_by_sun.png\)",
    "Frozen layers": r'"frozen weights",\s+"state": "[1-9]',
    "Averaged weights": '"loss_averaged": ',
    "A second term of the loss": '"penalty": ',
    "A second data set, measured at each evaluation": '"loss_second": ',
    "A printed line": "^learning rate: ",
}
# These change no loss.
WATCHES = (
    *("metric", "plot", "Averaged", "second data", "printed", "another run", "command", "measure"),
    *("teacher", "format"),  # without a file, there is none
)


# ---- tests -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """A folder with a run of the project as it is, by its own tests."""
    return own_tests(copied(render(**ANSWERS), tmp_path_factory.mktemp("unchanged")))


@pytest.mark.parametrize("title", SECTIONS)
def test_a_change_has_its_place_in_every_workload(title, tmp_path):
    files = patched_files(title)
    for workload in workloads(title):
        project = copied(render(workload=workload, extras=["ema", "finetune"]), tmp_path / workload)
        apply(title, project)
        for name in files:
            if name.endswith(".py"):
                compile((project / name).read_text(encoding="utf-8"), name, "exec")


@pytest.mark.first(3)
@pytest.mark.parametrize("title", SECTIONS)
def test_the_own_tests_pass_after_a_change_that_shows_its_effect(
    title, unchanged, tmp_path, monkeypatch
):
    if "plot" in title:
        monkeypatch.setenv(EXAMPLES, "1")
    project = apply(title, copied(render(**ANSWERS), tmp_path))
    if "second data" in title:
        shutil.copytree(unchanged / "data/synthetic", project / "data/second")
    folder = own_tests(project)
    files = (project / "temporary/printed", *newest_run(folder).iterdir())
    texts = [path.read_text("utf-8", "replace") for path in files if path.is_file()]
    assert re.search(EFFECTS.get(title, ""), "\n".join(texts), re.MULTILINE)
    assert (losses(folder) == losses(unchanged)) == any(word in title for word in WATCHES)


def test_an_optimizer_and_a_schedule_are_yours(tmp_path):
    """Their names and hyperparameters are settings, by flag, and no file of the engine changes."""
    project = copied(render(**ANSWERS), tmp_path)
    for title in ("Another optimizer, two groups with two rates", "Another schedule"):
        assert not [name for name in patched_files(title) if "engine" in name]
        apply(title, project)
    words = "--optimizer.momentum_decay 0.01 --schedule.warmup_steps 1 --training.max_steps 4"
    words += " --optimizer.name nadam --schedule.name root --monitor.every_steps 1"
    check_run(project, "train", *words.split(), cwd=tmp_path)
    matrices, vectors = last_state(tmp_path)["optimizer"]["param_groups"]
    assert matrices["momentum_decay"] == 0.01
    assert vectors["lr"] == pytest.approx(10 * matrices["lr"])
    rates = [row["learning_rate"] for row in rows(tmp_path) if "split" not in row]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3 * 0.5**0.5, 1e-3 * (1 / 3) ** 0.5])


OWN_OPTIMIZER = """
import torch


def build_optimizer(model, settings):
    settings = settings.optimizer
    return torch.optim.SGD(model.parameters(), settings.learning_rate, fused=settings.fused)


def is_fused(settings):
    return "on", "one kernel"


def learning_rate(step, num_steps, settings):
    return settings.optimizer.learning_rate / (1 + settings.schedule.fall * step)
"""
OWN_SECTIONS = """class Optimizer(Section):
    '''One step down.'''

    name: Literal["sgd"] = "sgd"
    learning_rate: UpToOne = 0.1
    fused: bool = True


class Schedule(Section):
    '''It falls from the first step on.'''

    name: Literal["hyperbola"] = "hyperbola"
    warmup_steps: Natural | Auto = 0
    fall: Factor = 1


"""


def test_optimizer_and_schedule_may_be_rewritten_in_two_files(tmp_path):
    """The engine reads no other setting of theirs than the five that the page names."""
    project = copied(render(workload="tabular"), tmp_path)
    package = project / "src/my_training"
    (package / "optimizer.py").write_text(OWN_OPTIMIZER, encoding="utf-8")
    settings = (package / "settings.py").read_text(encoding="utf-8")
    before, after = re.split(r"class Optimizer.*?(?=class Evaluation)", settings, flags=re.DOTALL)
    (package / "settings.py").write_text(before + OWN_SECTIONS + after, encoding="utf-8")
    config = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    del config["optimizer"], config["schedule"], config["profiles"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    words = ("train", "--training.max_steps", "3", "--monitor.every_steps", "1")
    check_run(project, *words, cwd=tmp_path)
    rates = [row["learning_rate"] for row in rows(tmp_path) if "split" not in row]
    assert rates == pytest.approx([0.1, 0.1 / 2, 0.1 / 3])


def test_a_file_format(tmp_path):
    project = apply("Your own file format", copied(render(**ANSWERS), tmp_path))
    cells = np.random.default_rng(0).standard_normal((400, 3)).astype("<f4")
    cells.tofile(tmp_path / "rows.bin")
    for words in (
        ("prepare", "--input", "rows.bin", "--target", "yield", "--task", "regression"),
        ("train", "--training.max_steps", "2", "--schedule.warmup_steps", "1"),
        ("predict", "--input", "rows.bin"),
    ):
        check_run(project, *words, cwd=tmp_path)
    assert len((newest_run(tmp_path) / "predictions.csv").read_text().splitlines()) == 401


def test_weights_of_another_run(unchanged, tmp_path):
    project = apply("Weights of another run", copied(render(**ANSWERS), tmp_path))
    shutil.copytree(newest_run(unchanged), tmp_path / "runs/source")
    result = check_run(project, "train", "--training.max_steps", "2", cwd=tmp_path)
    assert "note: weights of runs/source/" in result.out
    assert "unused: nothing" in result.out


def test_a_command(tmp_path):
    project = apply("A command", copied(render(**ANSWERS), tmp_path))
    result = check_run(project, "weights", cwd=tmp_path)
    assert re.search(r"^ +64  first.bias$", result.out, re.MULTILINE)


SHORT = ["--training.max_steps", "6", "--schedule.warmup_steps", "1", "--monitor.every_steps", "1"]


def test_a_teacher_is_no_part_of_the_student(unchanged, tmp_path):
    """It is neither saved nor averaged, a resume reads it again, and evaluations do without it."""
    project = apply("A teacher", copied(render(**ANSWERS), tmp_path))
    file = last_checkpoint(unchanged)  # of a wider network than the student
    folders = [tmp_path / name for name in ("whole", "stopped", "without")]
    for folder in folders:
        folder.mkdir()
        words = ["train", *SHORT, "--model.width", "24"]
        words += ["--model.teacher", str(file)] * (folder.name != "without")
        words += ["--max-steps", "3"] * (folder.name == "stopped")
        check_run(project, *words, cwd=folder)
    whole, stopped, without = folders
    check_run(project, "train", "--resume", cwd=stopped)
    assert resumes(stopped) == [3]
    assert losses(stopped) == losses(whole) != losses(without)
    assert weights(stopped) == weights(whole)

    states = [last_state(folder) for folder in (whole, without)]
    names = [{*state["model"]} | {*state["hooks"]["ema"]["averages"]} for state in states]
    assert names[0] == names[1]
    file.rename(file.with_name("away"))
    check_run(project, "predict", cwd=whole)
    file.with_name("away").rename(file)


def test_two_ranks_add_the_noise_of_one_process_and_learn_from_one_teacher(unchanged, tmp_path):
    project = copied(render(**ANSWERS, distributed="ddp"), tmp_path)
    for title in ("A teacher", "Noise on gradients"):
        apply(title, project)
    words = ["train", *SHORT, "--model.dropout", "0", "--training.precision", "fp32"]
    words += ["--model.teacher", str(last_checkpoint(unchanged)), "--data.batch_size"]
    one = tmp_path / "one"
    two = tmp_path / "two"
    one.mkdir()
    two.mkdir()
    check_run(project, *words, "32", cwd=one)
    for more in ([*words, "16", "--max-steps", "3"], ["train", "--resume"]):
        results = run_ranks(project, *more, cwd=two)
        assert [result.code for result in results] == [0, 0], results[0].err
    of_one, of_two = ([row["loss"] for row in rows(folder)] for folder in (one, two))
    assert of_two == pytest.approx(of_one, rel=1e-5)
