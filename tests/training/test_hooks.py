"""Hooks of one's own in all frameworks: every moment, a state that survives, an error."""

import functools
import re
import shutil

import pytest
from rendering import document, render
from running import check_run, evaluations, losses, newest_run, one_error, rows, run, weights
from variants import choices

WORDS = (
    *("--data.batch_size", "128", "--model.width", "16", "--schedule.warmup_steps", "2"),
    *("--data.fraction", "0.1", "--training.epochs", "3", "--monitor.every_steps", "1"),
)
every_framework = pytest.mark.parametrize("framework", choices("framework"))

COUNT = '''"""Notes each moment, counts steps and evaluations, and adds both to evaluations."""

from contextlib import contextmanager


class Hook:
    def __init__(self):
        self.steps = self.evaluations = 0

    def _note(self, run, moment):
        with open("moments", "a") as file:
            print(moment, run.step, file=file)

    def start(self, run):
        self._note(run, "start")

    def before_step(self, run):
        self._note(run, "before_step")

    def after_step(self, run):
        self.steps += 1
        self._note(run, "after_step")

    @contextmanager
    def evaluating(self, run):
        self._note(run, "evaluating")
        yield
        self._note(run, "evaluated")

    def after_evaluation(self, run, metrics):
        self.evaluations += 1
        metrics["counted"] = 1000.0 * self.evaluations + self.steps
        self._note(run, "after_evaluation")

    def state_dict(self):
        return {"steps": self.steps, "evaluations": self.evaluations}

    def load_state_dict(self, state):
        vars(self).update(state)

    def close(self, run):
        self._note(run, "close")
'''

FAILING = '''"""Fails at a moment."""

from ..engine.errors import UserError


class Hook:
    def MOMENT(self, run):
        if run.step >= 12:
            raise ERROR
'''


@functools.cache
def project(base, name, source, **answers):
    """A rendered project with one hook of one's own."""
    folder = base / f"{name}-{abs(hash((source, *sorted(answers.items()))))}"
    shutil.copytree(render(workload="tabular", **answers), folder)
    (folder / f"src/my_training/hooks/{name}.py").write_text(source)
    return folder


@pytest.fixture
def hooked(tmp_path_factory):
    return functools.partial(project, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without any hook."""
    folder = tmp_path_factory.mktemp("plain")
    check_run(render(workload="tabular"), "train", *WORDS, cwd=folder)
    return folder


@pytest.fixture
def place(plain, tmp_path):
    (tmp_path / "data").symlink_to(plain / "data")
    return tmp_path


VALUE = '''"""Logs the double of the number of steps so far."""


class Hook:
    def before_step(self, run):
        run.log_value("twice", 2 * run.step)
'''


def moments(folder):
    lines = (folder / "moments").read_text().splitlines()
    return [(moment, int(step)) for moment, step in map(str.split, lines)]


def counted(folder):
    return [row["counted"] for row in rows(folder) if "split" in row]


@every_framework
def test_every_moment_comes_once_and_in_order(framework, hooked, place, plain):
    accumulation = ("--training.gradient_accumulation_steps", "2", "--data.batch_size", "64")
    counting = hooked("count", COUNT, framework=framework)
    check_run(counting, "train", *WORDS, *accumulation, cwd=place)
    total = losses(place)[-1][0]
    found = moments(place)
    assert total == losses(plain)[-1][0], "the same number of steps"
    assert found[0] == ("start", 0)
    assert found[-1] == ("close", total)
    expected = []
    ends = [step for step, _ in evaluations(place)]
    for step in range(1, total + 1):
        expected += [("before_step", step - 1), ("after_step", step)]
        if step in ends:
            expected += [("evaluating", step), ("evaluated", step), ("after_evaluation", step)]
    assert found[1:-1] == expected
    assert len(ends) == 3
    assert counted(place) == [1000.0 * number + step for number, step in enumerate(ends, 1)]


@every_framework
def test_a_hooks_state_survives_stops_and_changes_no_loss(framework, hooked, place, plain):
    counting = hooked("count", COUNT, framework=framework)
    for words in ((*WORDS, "--max-steps", "5"), ("--resume", "--max-steps", "9"), ("--resume",)):
        check_run(counting, "train", *words, cwd=place)
    assert losses(place) == losses(plain)
    assert weights(place) == weights(plain)
    ends = [step for step, _ in evaluations(place)]
    assert counted(place) == [1000.0 * number + step for number, step in enumerate(ends, 1)]


@every_framework
def test_a_record_has_the_means_of_values_that_were_logged(framework, hooked, place):
    """The hook of the page, and one whose means are known, also where a run was stopped between."""
    page = document("monitor").read_text(encoding="utf-8")
    (weight_norm,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    logging = hooked("weight_norm", weight_norm, framework=framework)
    (logging / "src/my_training/hooks/twice.py").write_text(VALUE)
    words = (*WORDS, "--monitor.every_steps", "4")
    for more in ((*words, "--max-steps", "6"), ("--resume",)):
        check_run(logging, "train", *more, cwd=place)
    records = [row for row in rows(place) if "split" not in row]
    assert [row["step"] for row in records][:4] == [1, 2, 4, 8]
    before = 0
    for row in records:
        steps = range(before, row["step"])
        assert row["twice"] == pytest.approx(2 * sum(steps) / len(steps))
        assert row["weight_norm"] > 1
        before = row["step"]


def test_a_state_that_could_not_be_read_back_is_refused_before_it_is_written(hooked, place):
    path = '"where": __import__("pathlib").Path()}'
    source = COUNT.replace('"evaluations": self.evaluations}', path)
    result = run(hooked("count", source), "train", *WORDS, cwd=place)
    one_error(
        result, r"a state holds a pathlib[\w.]*\.PosixPath: hooks/", "plain values and tensors"
    )


def test_a_misspelt_method_is_one_line_at_the_start(hooked, place):
    bad = hooked("bad", FAILING.replace("MOMENT", "after_steps"))
    result = run(bad, "train", *WORDS, cwd=place)
    one_error(result, "nothing calls the hook's method 'after_steps': hooks/bad.py: correct its")
    assert not [*place.glob("runs/*")]


@every_framework
@pytest.mark.parametrize(("error", "code"), [("UserError('on purpose')", 2), ("OSError(28)", 1)])
@pytest.mark.parametrize("moment", ["after_step", "close"])
@pytest.mark.cover(1)
def test_a_hook_that_fails_ends_the_run_which_resumes_without_it(
    framework, error, code, moment, hooked, place, plain
):
    source = FAILING.replace("ERROR", error).replace("MOMENT", moment)
    bad = hooked("bad", source, framework=framework)
    assert run(bad, "train", *WORDS, cwd=place).code == code
    assert '"failed"' in (newest_run(place) / "status.json").read_text()
    assert (newest_run(place) / "report.md").exists()
    healthy = render(workload="tabular", framework=framework)
    check_run(healthy, "train", "--resume", cwd=place)
    assert losses(place) == losses(plain)
    assert weights(place) == weights(plain)
