"""What owners change most: after each patch of docs/changes.md the project's own tests pass."""

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from forking import run_pytest
from rendering import REPOSITORY, render
from running import EXAMPLES, check_run, last_state, losses, newest_run, report_of, rows, run
from test_shell import shell
from variants import choices

PAGE = (REPOSITORY / "docs/changes.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])
ANSWERS = {"workload": "tabular", "tracker": "tensorboard", "extras": ["ema", "finetune"]}
MOST_LINES = 15
MOST_FILES = 2


def patched_files(title: str) -> dict[str, list[str]]:
    """Lines of a section's patch by the file that they are for."""
    (patch,) = re.findall(r"```diff\n(.*?)```", SECTIONS[title], re.DOTALL)
    pieces = re.split(r"^--- (\S+)\n", patch, flags=re.MULTILINE)
    return {name: text.splitlines() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def workloads(title: str) -> list[str]:
    (named,) = re.findall(r"\*\*Workloads:\*\* (all|[^.]+)\.", SECTIONS[title])
    return choices("workload") if named == "all" else re.findall(r"`(\w+)`", named)


def apply(title: str, project: Path) -> Path:
    """Do to a project what the section says; every place must be there once."""
    for name, lines in patched_files(title).items():
        old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
        new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
        path = project / name
        text = path.read_text(encoding="utf-8") if old else ""
        assert text.count(old) == 1 or not path.exists(), (name, old)
        changed = text.replace(old, new) if old else new + "\n"
        path.write_text(changed, encoding="utf-8")

    config = project / "config.yaml"
    for section, key, value in re.findall(r"`(\w+)\.(\w+): (\w+)`", SECTIONS[title]):
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))
        settings[section][key] = value
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return project


def copied(project: Path, folder: Path) -> Path:
    return Path(shutil.copytree(project, folder / "project"))


def own_tests(project: Path) -> Path:
    """`make test`, whose commands are forks; return the folder that it trained in."""
    temporary = project / "temporary"

    def run_forked(command: list[str], **options: Any) -> SimpleNamespace:
        result = run(project, *command[3:], cwd=Path.cwd())
        with open(temporary / "printed", "a", encoding="utf-8") as file:
            file.write(result.out)
        return SimpleNamespace(returncode=result.code, stdout=result.out, stderr=result.err)

    def fork_commands() -> None:
        subprocess.run = run_forked  # type: ignore[assignment]

    result = run_pytest(project, "tests", before=fork_commands)
    assert result.code == 0, result.out[-3000:]
    return next(temporary.glob("test_training_learns*"))


# ---- what each change does ---------------------------------------------------------------------


def metric(folder: Path, name: str, split: str | None = None) -> list[float]:
    return [row[name] for row in rows(folder) if row.get("split") == split and name in row]


def optimizer_state(folder: Path) -> dict[str, Any]:
    return last_state(folder)["optimizer"]


def optimizations(folder: Path) -> dict[str, str]:
    """What was on in the newest run."""
    environment = json.loads((newest_run(folder) / "env.json").read_text())
    return {entry["name"]: entry["state"] for entry in environment["optimizations"]}


def tracked(folder: Path, kind: str) -> list[str]:
    """Names of one kind in the newest run's TensorBoard."""
    events_module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = importlib.import_module(events_module).EventAccumulator
    events = accumulator(str(newest_run(folder) / "tensorboard"))
    events.Reload()
    return events.Tags()[kind]


def optimizer(folder: Path, printed: str) -> None:
    state = optimizer_state(folder)
    matrices, vectors = state["param_groups"]
    assert vectors["lr"] == pytest.approx(10 * matrices["lr"])
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.01, 0)
    assert "mu_product" in state["state"][0]
    assert optimizations(folder)["fused optimizer"] == "off"


def mean_error(folder: Path, printed: str) -> None:
    assert len(metric(folder, "mae")) == 60
    assert "train/mae" in tracked(folder, "scalars")


def root(folder: Path, printed: str) -> None:
    rates = metric(folder, "learning_rate")
    assert rates[-1] == pytest.approx(rates[4] * (5 / 59) ** 0.5)


def figure(folder: Path, printed: str) -> None:
    assert "validation/errors_by_sun" in tracked(folder, "images")
    report = report_of(folder)
    assert "![errors_by_sun](examples/errors_by_sun.png)" in report


def frozen(folder: Path, printed: str) -> None:
    assert optimizations(folder)["frozen weights"] != "0.0%"
    assert len(optimizer_state(folder)["state"]) == 7


def averages(folder: Path, printed: str) -> None:
    assert metric(folder, "loss_averaged", "validation")
    assert "validation/loss_averaged" in tracked(folder, "scalars")
    assert "decay: 0.9 " in (newest_run(folder) / "config.resolved.yaml").read_text()


def terms(folder: Path, printed: str) -> None:
    names = ("loss", "mse", "penalty")
    for loss, mse, penalty in zip(*(metric(folder, name) for name in names), strict=True):
        assert loss == pytest.approx(mse + penalty)
    assert "train/penalty" in tracked(folder, "scalars")


def second(folder: Path, printed: str) -> None:
    assert metric(folder, "loss_second", "validation") != metric(folder, "loss", "validation")
    assert "validation/loss_second" in tracked(folder, "scalars")


def line(folder: Path, printed: str) -> None:
    assert printed.count("learning rate: ") >= 15


EFFECTS: dict[str, Callable[[Path, str], None] | None] = {  # None: other losses are the effect
    "Another optimizer, two groups with two rates": optimizer,
    "A metric, also while training": mean_error,
    "A data augmentation": None,
    "Another schedule": root,
    "Your own plot": figure,
    "Frozen layers": frozen,
    "Averaged weights": averages,
    "A second term of the loss": terms,
    "A second data set, measured at each evaluation": second,
    "A printed line": line,
    "Weights of another run": None,
    "A command": None,
}
# These change no loss.
WATCHES = ("metric", "plot", "Averaged", "second data", "printed", "another run", "command")


# ---- tests -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """A folder with a run of the project as it is, by its own tests."""
    return own_tests(copied(render(**ANSWERS), tmp_path_factory.mktemp("unchanged")))


@pytest.mark.parametrize("title", SECTIONS)
def test_a_change_is_small_and_has_its_place_in_every_workload(title, tmp_path):
    files = patched_files(title)
    lines = [line for patch in files.values() for line in patch if line.strip("+-")]
    assert len([line for line in lines if line[0] in "+-"]) <= MOST_LINES
    assert len(files) <= MOST_FILES
    for workload in workloads(title):
        project = copied(render(workload=workload, extras=["ema", "finetune"]), tmp_path / workload)
        apply(title, project)
        sources = [name for name in files if name.endswith(".py")]
        for name in sources:
            compile((project / name).read_text(encoding="utf-8"), name, "exec")
        if sources and workload == "tabular":
            shell(project, "ruff", "check", *sources)
            shell(project, "ruff", "format", "--check", *sources)


@pytest.mark.first(3)
@pytest.mark.parametrize("title", EFFECTS)
def test_the_own_tests_pass_after_a_change_that_shows_its_effect(
    title, unchanged, tmp_path, monkeypatch
):
    if "plot" in title:
        monkeypatch.setenv(EXAMPLES, "1")
    project = apply(title, copied(render(**ANSWERS), tmp_path))
    if "second data" in title:
        shutil.copytree(unchanged / "data/synthetic", project / "data/second")
    folder = own_tests(project)
    effect = EFFECTS[title]
    if effect is not None:
        effect(folder, (project / "temporary/printed").read_text(encoding="utf-8"))
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
    matrices, vectors = optimizer_state(tmp_path)["param_groups"]
    assert matrices["momentum_decay"] == 0.01
    assert vectors["lr"] == pytest.approx(10 * matrices["lr"])
    rates = metric(tmp_path, "learning_rate")
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3 * 0.5**0.5, 1e-3 * (1 / 3) ** 0.5])


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


def test_all_changes_are_tested():
    assert SECTIONS.keys() == EFFECTS.keys()
