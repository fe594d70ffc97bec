"""A first run: it ends in the minutes that one has, repeats and resumes, and says early that it
goes."""

import re

import pytest
from rendering import render
from running import check_run, losses, newest_run, one_error, run
from variants import choices

LONG = ("--training.epochs", "100000", "--evaluation.every_steps", "10")


def length(cwd):
    """Steps of the newest run and where that number came from, as config.resolved.yaml has them."""
    text = (newest_run(cwd) / "config.resolved.yaml").read_text()
    steps, origin = re.findall(r"^training.max_steps: (\d+) +# (.+)$", text, flags=re.MULTILINE)[0]
    return int(steps), origin


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_minutes_become_steps_that_repeat_and_resume(framework, tmp_path):
    project = render(workload="tabular", framework=framework)
    timed, again, resumed = (tmp_path / name for name in ("timed", "again", "resumed"))
    done = check_run(project, "train", "--minutes", "0.003", *LONG, cwd=timed)
    steps, origin = length(timed)
    assert origin == "--minutes 0.003"
    assert 1 <= steps < 100_000
    assert f"finished at step {steps} of {steps}" in done.out
    assert len(list((timed / "runs").iterdir())) == 1

    given = (*LONG, "--training.max_steps", str(steps))
    check_run(project, "train", *given, cwd=again)
    assert losses(again) == losses(timed)
    check_run(project, "train", *given, "--max-steps", "1", cwd=resumed)
    check_run(project, "train", "--resume", cwd=resumed)
    assert losses(resumed) == losses(timed)


def test_minutes_take_no_more_steps_than_the_settings_say(tmp_path):
    words = ("--minutes", "60", "--training.max_steps", "6", "--max-steps", "2")
    check_run(render(workload="tabular"), "train", *words, cwd=tmp_path)
    assert length(tmp_path)[0] == 6


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--minutes", "1", "--resume"), "a resumed run keeps its name and its steps: --minutes"),
        (("--minutes", "soon"), "invalid float value"),
    ],
)
def test_minutes_that_make_no_sense_are_one_line(words, reason, tmp_path):
    one_error(run(render(workload="tabular"), "train", *words, cwd=tmp_path), reason)
    assert not (tmp_path / "runs").exists()


def test_first_steps_have_lines_of_their_own_with_the_time_left(tmp_path):
    done = check_run(
        render(workload="tabular"), "train", "--training.max_steps", "120", cwd=tmp_path
    )
    said = re.findall(r"^step (\d+)/120 .* ETA \d+:\d\d:\d\d$", done.out, flags=re.MULTILINE)
    assert [int(step) for step in said] == [2, 5, 10, 20, 50, 100, 120]
    assert re.search(r"^step 1/120 .* data wait \d+%$", done.out, flags=re.MULTILINE)
