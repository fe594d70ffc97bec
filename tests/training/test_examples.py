"""Examples of what a model does: in report and trackers, from every workload; what they never
cost."""

import math
import os
import re
import shutil
from pathlib import Path
from shlex import split
from types import SimpleNamespace

import pytest
from importing import imported
from ranks import run_ranks
from rendering import render
from running import EXAMPLES, check_run, losses, newest_run, painted, report_of, weights
from sizes import TINY
from variants import choices

SHORT = "--monitor.every_steps 5 --schedule.warmup_steps 2 --evaluation.every_steps 5"
TABLE = split(f"{SHORT} --training.max_steps 10 --data.batch_size 128 --model.width 16")
SHORT = split(f"{SHORT} --training.max_steps 5")
SHOWN = {  # by workload: what it draws, and a metric that no sum over samples gives
    "tabular": ({"predictions.png", "worst.md"}, "r2"),
    "timeseries": ({"forecasts.png"}, "r2"),
    "windows": ({"forecasts.png"}, "r2"),
    "graph": ({"forecasts.png"}, "r2"),
    "forecast": ({"forecasts.png"}, "smape"),
    "llm": ({"texts.md"}, "perplexity"),
    "seq2seq": ({"pairs.md"}, "token_accuracy"),
    "chat": ({"texts.md"}, "exact_match"),
    "vision": ({"augmentation.png", "classes.md", "confusion.png", "worst.png"}, "roc_auc"),
}


@pytest.fixture(scope="module", autouse=True)
def asked_for():
    os.environ[EXAMPLES] = "1"
    yield
    del os.environ[EXAMPLES]


def drawn(folder):
    return {path.name for path in (newest_run(folder) / "examples").glob("*")}


def tracked(folder):
    """Names of examples in TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(newest_run(folder) / "tensorboard"), {"images": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    names = [name for name in tags["images"] + tags["tensors"] if name.startswith("validation/")]
    return {name.removesuffix("/text_summary") for name in names}


# The series' are those of the windows; what an LLM draws, two ranks do below.
DRAWN = [
    pytest.param(workload, marks=[pytest.mark.full] * (workload in ("timeseries", "llm")))
    for workload in choices("workload")
]


@pytest.mark.parametrize("workload", DRAWN)
def test_each_workload_shows_what_its_model_does(workload, tmp_path):
    files, metric = SHOWN[workload]
    words = TABLE if workload == "tabular" else (*TINY[workload], *SHORT)
    project = render(workload=workload, tracker="tensorboard")
    done = check_run(project, "train", *words, cwd=tmp_path, before=painted)
    assert drawn(tmp_path) == files, done.out
    assert tracked(tmp_path) == {f"validation/{Path(name).stem}" for name in files}
    page = report_of(tmp_path)
    for file in (newest_run(tmp_path) / "examples").iterdir():
        if file.suffix == ".png":
            assert f"(examples/{file.name})" in page
            assert file.stat().st_size > 10_000, "something is drawn"
        else:
            assert file.read_text() in page
    assert re.search(rf"^- metrics: .*\b{metric} [-0-9.]+", page, re.MULTILINE)


def test_classes_have_a_matrix_and_figures_of_each(tmp_path):
    kinds = ("one", "two", "three")
    lines = [f"{n % 7},{n % 3 + 0.1 * (n % 5)},{kinds[n % 3]}" for n in range(300)]
    (tmp_path / "kinds.csv").write_text("\n".join(["a,b,kind", *lines]))
    project = render(workload="tabular")
    words = split("prepare --input kinds.csv --target kind --task classification")
    check_run(project, *words, cwd=tmp_path)
    check_run(project, "train", *TABLE, cwd=tmp_path)
    assert drawn(tmp_path) == {"classes.md"}
    page = report_of(tmp_path).partition("## Classes")[2]
    counts = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")][2:5]
    assert sum(map(int, counts)) == 45, "each validation row has one true class"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of a project whose `examples.py` is taken away."""
    folder = tmp_path_factory.mktemp("plain")
    project = Path(shutil.copytree(render(workload="tabular"), folder / "project"))
    (project / "src/my_training/examples.py").unlink()
    check_run(project, "train", *TABLE, cwd=folder)
    return folder


def note_drawing():
    from my_training.hooks import examples  # type: ignore[import-not-found]

    real = examples.draw_examples

    def draw(run):
        print(f"drawn at step {run.step}")
        real(run)

    examples.draw_examples = draw


def break_drawing():
    from my_training import examples  # type: ignore[import-not-found]

    examples.examples = lambda *_: {"broken": 1 / 0}


@pytest.mark.parametrize(
    ("before", "expected"),
    ids=["seldom", "broken"],
    argvalues=[
        (note_drawing, [f"drawn at step {step}" for step in (2, 4, 6, 10)]),
        (break_drawing, ["alert: no examples of predictions: ZeroDivisionError: division by zero"]),
    ],
)
def test_examples_cost_no_bit_of_the_training(before, expected, plain, tmp_path):
    """Drawn ever more seldom, and at the end, or failed: the same losses."""
    (tmp_path / "data").symlink_to(plain / "data")
    words = ("train", *TABLE, "--evaluation.every_steps", "2")
    done = check_run(render(workload="tabular"), *words, cwd=tmp_path, before=before)
    assert (losses(tmp_path), weights(tmp_path)) == (losses(plain), weights(plain))
    said = [line for line in done.out.splitlines() if line.startswith(("drawn", "alert"))]
    for line, start in zip(said, expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize("distributed", ["fsdp", "ddp"])
@pytest.mark.first(1)
def test_of_several_ranks_the_first_draws(distributed, tmp_path):
    """Under FSDP the others compute with it, since each has a share of the weights."""
    project = render(workload="llm", distributed=distributed)
    for result in run_ranks(project, "train", *TINY["llm"], *SHORT, cwd=tmp_path):
        assert result.code == 0, result.err[-2000:]
        assert "no examples" not in result.out
    assert drawn(tmp_path) == SHOWN["llm"][0]


# ---- alerts -----------------------------------------------------------------------------------


alerts = imported(render(), "hooks.alerts")
Settings = imported(render(), "settings").Settings
WORSE = "is worse than the baseline, 1"


@pytest.mark.parametrize(
    ("loss", "best", "step", "expected"),
    [
        (0.7, 0.2, 50, "0.7 is more than 3× the best one, 0.2"),
        (0.5, 0.2, 50, ""),
        (1.2, math.inf, 50, f"1.2 {WORSE}"),
        (1.2, math.inf, 49, ""),  # half of the run is time to learn
        (math.nan, 0.9, 50, f"nan {WORSE}"),
        (-1.0, -2.0, 50, ""),  # a likelihood
    ],
)
def test_what_an_alert_of_divergence_is(loss, best, step, expected):
    said = []
    hook = alerts.Hook()
    hook.baseline = 1.0
    distributed = SimpleNamespace(is_main=True)
    run = SimpleNamespace(
        step=step,
        progress=SimpleNamespace(best_loss=best),
        num_steps=100,
        settings=Settings.load(),
        project=SimpleNamespace(precision=SimpleNamespace(name="fp32"), distributed=distributed),
        log=SimpleNamespace(alert=lambda step, kind, text: said.append(text)),
    )
    hook.after_evaluation(run, {"loss": loss})
    assert len(said) == bool(expected)
    assert expected in "".join(said)
