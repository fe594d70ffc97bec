"""`report.md` and `curves.png` from whatever a run left behind, and the names of runs."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from importing import imported
from rendering import render

report = imported(render(), "engine.report")
runs = imported(render(), "engine.runs")
errors = imported(render(), "engine.errors")

ENVIRONMENT = {
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "gpu": "NVIDIA L4, sm 8.9, 22.0 GB",
    "git": "abc1234+changes",
    "optimizations": [{"name": "compile", "state": "off", "why": "a | b"}],
    "changed": [
        {"name": "training.epochs", "value": 3, "default": 10, "origin": "--training.epochs"}
    ],
    "started": 1_790_000_000.0,
    "argv": ["train", "--training.epochs", "3"],
    "notes": ["synthetic data"],
}


def steps(count: int, every: int = 10) -> list[dict]:
    return [
        {
            "step": step,
            "epoch": 1 + step // 100,
            "loss": 2 * math.exp(-step / 300) + 0.1,
            "learning_rate": 1e-3,
            "gradient_norm": 1.5,
            "samples_per_second": 5000.0 if step > every else 10.0,
            "step_ms": 6.4,
            "data_wait_fraction": 0.03,
            "memory_mb": 1000.0 + step,
            "eta_s": 1.0,
            "time": ENVIRONMENT["started"] + step,
        }
        for step in range(every, count + 1, every)
    ]


def evaluations(*losses: float) -> list[dict]:
    return [
        {"step": 100 * number, "split": "validation", "loss": loss, "mse": loss, "seconds": 0.1}
        for number, loss in enumerate(losses, start=1)
    ]


def make_run(folder: Path, rows: list[dict] = (), tail: str = "", **files: dict) -> Path:
    folder.mkdir(parents=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + tail, encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def page_of(run: Path) -> str:
    report.write_report(run)
    return (run / "report.md").read_text(encoding="utf-8")


def pixels(run: Path):
    from matplotlib.image import imread

    return imread(run / "curves.png")


def test_a_whole_run(tmp_path):
    run = make_run(
        tmp_path / "my run",
        steps(300) + evaluations(0.9, 0.4, 0.5),
        env=ENVIRONMENT,
        status={"state": "finished", "reason": "", "step": 300, "resumes": [120]},
        evaluation={
            "split": "test",
            "step": 200,
            "metrics": {"mse": 0.42},
            "baselines": {"mean": {"mse": 1.5}},
        },
    )
    checkpoint = run / "checkpoints" / "step-00000200"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"step": 200}')
    (checkpoint / "model.safetensors").write_bytes(bytes(2_000_000))
    (run / "checkpoints" / "best.json").write_text('{"checkpoint": "step-00000200", "loss": 0.4}')
    page = page_of(run)
    for expected in (
        "# Run my run",
        "**Finished**, at step 300 of epoch 4",
        "last step logged 0:05:00 later",
        "resumed from step 120",
        "(curves.png)",
        "| validation, best | 0.4 | 200 |",
        "| validation, last | 0.5 | 300 |",
        "| training, first | 2.0344 | 10 |",
        "| training, last | 0.83576 | 300 |",
        "## Evaluation on test at step 200",
        "| mse | 0.42 | 1.5 |",
        "| samples/s, median | 5,000 |",  # the first one, with compilation in it, does not count
        "| waiting for data, median | 3 % |",
        "| GPU memory, peak | 1,300 MB |",
        "| compile | off | a \\| b |",
        "| training.epochs | 3 | 10 | --training.epochs |",
        "| step-00000200 | 200 | 2.0 | best, loss 0.4 |",
        "| device | NVIDIA L4, sm 8.9, 22.0 GB |",
        "| git | abc1234+changes |",
        "| command | train --training.epochs 3 |",
        "- synthetic data",
    ):
        assert expected in page
    image = pixels(run)
    assert image.shape[1] >= 1000
    assert (image[..., :3] < 0.9).any(axis=-1).mean() > 0.01  # something is drawn


def test_the_first_values_flatten_no_curve_and_the_best_is_named():
    history = steps(1000)
    history[0] |= {"loss": 100.0, "gradient_norm": 900.0}
    measured = [
        row | {"mae": row["loss"] ** 0.5, "accuracy": 1 - row["loss"]}
        for row in evaluations(0.9, 0.4, 0.5)
    ]
    record = record_of(history + measured, {"step": 100, "event": "naive", "loss": 0.45})
    series = record.losses
    top, *small = report.curves(record).axes
    late = [loss for pairs in series.values() for step, loss in pairs if step >= 100]
    low, high = top.get_ylim()
    assert low <= min(late) < max(late) <= high < 1.2 * max(late)
    assert top.get_title(loc="right") == "above: 100 at step 10"
    assert top.get_title(loc="left") == "loss = mse"
    named = [text.get_text() for text in top.get_legend().get_texts()]
    assert named == ["training", "validation", "best 0.4, step 200", "baseline 0.45"]
    titles = [axes.get_title(loc="left") for axes in small]
    assert titles == ["learning rate", "samples/s", "gradient norm", "mae", "accuracy"], (
        "every metric once"
    )
    assert small[2].get_ylim()[1] < 5
    assert small[4].get_title(loc="right") == "best 0.6"


def record_of(rows: list[dict], *events: dict, **parts: dict):
    """What the report knows of a run, without a folder."""
    history = [row for row in rows if "split" not in row]
    measured = [row for row in rows if "split" in row]
    known = {"environment": {}, "status": {}, "result": {}} | parts
    return report.Record(Path("my run"), history, measured, list(events), **known)


@pytest.mark.parametrize(
    ("baseline", "drawn", "name"),
    [
        (0.6, True, "baseline 0.6"),
        (99.0, False, "baseline 99, above this plot"),
        (0.01, False, "baseline 0.01, below this plot"),
    ],
)
def test_a_baseline_is_on_the_axis_or_named_as_outside(baseline, drawn, name):
    rows = steps(300) + evaluations(0.9, 0.4, 0.5)
    record = record_of(rows, {"step": 100, "event": "naive", "loss": baseline})
    top, *_ = report.curves(record).axes
    low, high = top.get_ylim()
    assert (low <= baseline <= high) == drawn
    assert name in [text.get_text() for text in top.get_legend().get_texts()]
    dashed = [line for line in top.get_lines() if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [baseline] * drawn


def test_every_metric_stands_at_the_best_evaluation_and_the_last(tmp_path):
    rows = [row | {"accuracy": 1 - row["loss"]} for row in evaluations(0.9, 0.4, 0.5)]
    run = make_run(tmp_path / "run", steps(300) + rows)
    (run / "events.jsonl").write_text('{"step": 100, "event": "naive", "loss": 1.25}\n')
    page = page_of(run)
    assert "| metric | best, step 200 | last, step 300 |" in page
    assert "| accuracy | 0.6 | 0.5 |" in page
    assert "| baseline, without a model | 1.25 |  |" in page


def test_steps_that_fp16_skipped_are_added_up(tmp_path):
    counts = iter([2.0, 0.0, 1.0])
    page = page_of(
        make_run(tmp_path / "fp16", [row | {"skipped_steps": next(counts)} for row in steps(30)])
    )
    assert "| steps skipped, for an overflow of fp16 | 3 |" in page
    assert "skipped" not in page_of(make_run(tmp_path / "fp32", steps(30)))


def test_where_the_time_went(tmp_path):
    rows = steps(100) + evaluations(0.9)  # 100 steps of 6.4 ms, and 0.1 s
    run = make_run(tmp_path / "run", rows, env=ENVIRONMENT)
    saved = [{"step": step, "event": "checkpoint", "seconds": 0.13} for step in (50, 100)]
    alert = {"step": 70, "event": "alert", "text": "input-bound: a | b"}
    (run / "events.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in (*saved, alert))
    )
    page = page_of(run)
    for expected in (
        "| training | 0.6 s | 64.0% |  |",
        "| evaluation | 0.1 s | 10.0% | 1 times |",
        "| checkpoints | 0.3 s | 26.0% | 2 saved |",
        "## Alerts\n\n- step 70: input-bound: a | b",
    ):
        assert expected in page
    assert page.index("## Alerts") < page.index("(curves.png)")


def test_what_an_extra_says_stands_on_the_page(tmp_path):
    """A function `report(run)` of a command or hook, here of the hook `watch`; an empty part is left out."""
    watching = imported(render(extras=["watch"]), "engine.report")
    run = make_run(tmp_path / "run", [step | {"mfu": 0.4} for step in steps(100)])
    watching.write_report(run)
    assert "Machine in use" not in (run / "report.md").read_text()
    (run / "system.csv").write_text("time,host_mb\n1,100\n2,300\n")
    watching.write_report(run)
    page = (run / "report.md").read_text()
    assert "| training process, MB | 200 | 100 | 300 |" in page
    assert "| MFU, median | 40 % |" in page
    assert "Machine in use" not in page_of(run), "a project without it has no such part"


@pytest.mark.parametrize("count", [1, 40, 2000])
def test_short_and_long_runs_are_drawn(tmp_path, count):
    run = make_run(tmp_path / "run", steps(count, 1))
    assert "(curves.png)" in page_of(run)
    assert pixels(run).std() > 0.01


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("stopped", "SIGTERM", "**Stopped early**: SIGTERM, at step 100"),
        ("failed", "out of GPU memory", "**Failed**: out of GPU memory, at step 100"),
        ("running", "", "**Still running, or killed before it could write its end**, at step 100"),
    ],
)
def test_how_it_ended(tmp_path, state, reason, expected):
    run = make_run(
        tmp_path / "run",
        steps(100),
        status={"state": state, "reason": reason, "step": 100, "resumes": []},
    )
    assert expected in page_of(run)


def test_a_killed_run_stands_at_its_last_logged_step(tmp_path):
    status = {"state": "running", "reason": "", "step": 40, "resumes": [40]}
    assert "at step 90 of epoch 1; resumed from step 40" in page_of(
        make_run(tmp_path / "run", steps(90), status=status)
    )


def test_a_line_cut_by_a_kill_is_left_out(tmp_path):
    whole = make_run(tmp_path / "whole", steps(100))
    cut = make_run(tmp_path / "cut", steps(100), tail='{"step": 110, "loss": 0.')
    assert page_of(cut).replace("cut", "whole") == page_of(whole)


@pytest.mark.parametrize("tail", ["", "null\n[1]\n3\n", '{"loss": 1.0}\n', "\x00\x00\ufffd\n"])
def test_metrics_without_a_step(tmp_path, tail):
    run = make_run(tmp_path / "run", tail=tail)
    page = page_of(run)
    assert "at step 0" in page
    assert "no step was logged" in page
    assert not (run / "curves.png").exists()


def test_an_empty_folder_and_broken_files_get_a_page(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    assert "# Run run" in page_of(run)
    for name in (
        "env.json",
        "status.json",
        "evaluation.json",
        "checkpoints/step-00000001/manifest.json",
    ):
        (run / name).write_text('{"state": "fin')
    assert "# Run run" in page_of(run)


def test_losses_that_are_no_numbers(tmp_path):
    rows = steps(50)
    rows[2]["loss"], rows[3]["loss"], rows[4]["loss"] = None, math.nan, math.inf
    assert "| training, last | 1.971 | 20 |" in page_of(make_run(tmp_path / "run", rows))


def test_the_page_survives_a_picture_that_cannot_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = make_run(tmp_path / "run", steps(50), env=ENVIRONMENT)
    page = page_of(run)
    assert "curves.png was not drawn" in page
    assert "(curves.png)" not in page
    assert "| compile | off |" in page


def test_a_second_page_replaces_the_first_and_leaves_nothing_beside_it(tmp_path):
    run = make_run(tmp_path / "run", steps(50))
    before = page_of(run)
    assert page_of(run) == before
    assert sorted(path.name for path in run.iterdir()) == [
        "curves.png",
        "metrics.jsonl",
        "report.md",
    ]


def test_settings_that_differ_are_listed_with_their_origin(tmp_path):
    config = imported(render(), "config")
    settings = config.load(overrides=[("training.epochs", "3"), ("optimizer.fused", "true")])
    assert settings.changed() == [
        {"name": "training.epochs", "value": 3, "default": 10, "origin": "--training.epochs"}
    ]
    tmp_path.joinpath("config.yaml").write_text("phases: [{name: a, steps: 3}]")
    changed = config.load(tmp_path / "config.yaml", environment={"NUM_WORKERS": "2"}).changed()
    values = {row["name"]: row["value"] for row in json.loads(json.dumps(changed))}
    assert values == {"data.num_workers": 2, "phases": [{"name": "a", "steps": 3, "overrides": {}}]}


def test_no_torch_is_needed():
    code = "from my_training.engine.report import write_report; import sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=render() / "src",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


# ---- names of runs ----


def test_the_newest_run_is_the_one_that_started_last(tmp_path):
    for number, name in enumerate(["zebra", "apple", "mango"]):
        settings = make_run(tmp_path / name) / "config.resolved.yaml"
        settings.touch()
        os.utime(settings, (number, number))
    (tmp_path / "no run").mkdir()
    (tmp_path / "file").touch()
    make_run(tmp_path / "apple" / "inner")  # touches the folder of an older run
    assert runs.find_run(None, tmp_path).name == "mango"
    assert runs.find_run(None, tmp_path).name == "mango"
    assert [run.name for run in runs.all_runs(tmp_path)] == ["zebra", "apple", "mango"]


def test_a_run_is_found_by_name_and_by_path(tmp_path):
    run = make_run(tmp_path / "runs" / "größe 1")
    assert runs.find_run("größe 1", tmp_path / "runs") == run
    assert runs.find_run(str(run), tmp_path / "elsewhere") == run


def test_a_missing_run_is_one_line_that_lists_the_runs(tmp_path):
    with pytest.raises(errors.UserError, match="no run yet"):
        runs.find_run(None, tmp_path)
    with pytest.raises(errors.UserError, match="there is no run yet"):
        runs.find_run("nope", tmp_path)
    for number in range(12):
        os.utime(make_run(tmp_path / f"run-{number}"), (number, number))
    with pytest.raises(errors.UserError) as error:
        runs.find_run("nope", tmp_path)
    assert "runs are run-11, run-10, " in str(error.value)
    assert "run-4 and 4 more" in str(error.value)
    assert "\n" not in str(error.value)


def test_new_runs_never_share_a_folder(tmp_path):
    made = [runs.new_run(None, tmp_path / "runs") for _ in range(5)]
    assert len(set(made)) == 5
    assert all(run.is_dir() for run in made)
    runs.new_run("mine", tmp_path / "runs")
    with pytest.raises(errors.UserError, match="--resume mine"):
        runs.new_run("mine", tmp_path / "runs")


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", ".", "/tmp", "a\\b"])
def test_names_that_are_no_folder_names(tmp_path, name):
    with pytest.raises(errors.UserError, match="plain folder name"):
        runs.new_run(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(errors.UserError, match="cannot make the run folder"):
        runs.new_run("x", tmp_path / "runs")


# ---- the summary ----


def summary_of(*parts, **files) -> dict[str, str]:
    """The summary's lines by their first word."""
    lines = report.summary(record_of(*parts, **files))
    return {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in lines}


def test_a_summary_has_state_best_evaluation_duration_alerts_and_notes():
    rows = steps(300) + [row | {"mae": 0.5 + row["loss"]} for row in evaluations(0.9, 0.4, 0.5)]
    events = [
        {"step": 100, "event": "naive", "loss": 1.25},
        {"step": 120, "event": "alert", "text": "input-bound: read faster"},
    ]
    lines = summary_of(
        rows,
        *events,
        environment=ENVIRONMENT,
        status={"state": "finished", "step": 300, "resumes": [120]},
        result={"split": "test", "step": 200, "metrics": {"mae": 0.9}},
    )
    assert lines == {
        "run": "my run",
        "state": "Finished, at step 300",
        "best": "validation loss 0.4 at step 200 (baseline 1.25), mae 0.9",
        "evaluated": "mae 0.9 on test at step 200",
        "duration": "0:05:00 from the start to the last log entry, with the pauses before it was resumed",
        "alert": "step 120: input-bound: read faster",
        "note": "synthetic data",
    }


@pytest.mark.parametrize(
    ("rows", "status", "expected"),
    [
        (
            steps(30),
            {"state": "failed", "reason": "out of memory", "step": 30},
            {
                "state": "Failed: out of memory, at step 30",
                "best": "no evaluation yet; lowest training loss 1.9097 at step 30",
            },
        ),
        (
            steps(30) + [row | {"loss": None} for row in evaluations(1.0)],
            {"state": "stopped", "reason": "SIGTERM", "step": 30},
            {
                "state": "Stopped early: SIGTERM, at step 30",
                "best": "no finite loss in any evaluation; lowest training loss 1.9097 at step 30",
            },
        ),
        (
            [],
            {},
            {
                "state": "Still running, or killed before it could write its end, at step 0",
                "best": "no evaluation yet, no loss of training",
                "duration": "unknown",
                "alert": "none",
            },
        ),
    ],
    ids=["failed", "no finite loss", "empty"],
)
def test_a_summary_of_less_than_a_whole_run(rows, status, expected):
    assert expected.items() <= summary_of(rows, status=status).items()


# ---- several runs ----

comparison = imported(render(), "engine.comparison")


def trained(folder: Path, *losses: float, state: str = "finished", **settings: float) -> Path:
    """A run with these validation losses, and these settings of the optimizer."""
    status = {"state": state, "reason": "", "step": 100 * len(losses)}
    rows = steps(100 * len(losses)) + evaluations(*losses)
    run = make_run(folder, rows, env=ENVIRONMENT, status=status, data={"1": {}})
    tree = {"optimizer": {"learning_rate": 0.001, "fused": True} | settings, "phases": []}
    (run / "config.resolved.yaml").write_text(json.dumps(tree), encoding="utf-8")
    return run


def compared(*folders: Path, target: Path) -> tuple[dict[str, list[str]], str]:
    """The cells of each run in compare.md, and the lines for the terminal."""
    lines, page = comparison.write_comparison(folders, target)
    text = page.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if "|" in line
    ]
    return {name: cells for name, *cells in rows[2:]}, "\n".join(lines)


def test_runs_are_compared_the_lowest_validation_loss_first(tmp_path):
    folders = [
        trained(tmp_path / "poor", 0.9, 0.8),
        trained(tmp_path / "good", 0.9, 0.4, 0.5, learning_rate=0.01, fused=False),
        make_run(tmp_path / "unmeasured", steps(50), env=ENVIRONMENT),
    ]
    rows, lines = compared(*folders, target=tmp_path)
    assert list(rows) == ["good", "poor", "unmeasured"]
    settings = "optimizer.learning_rate 0.01, optimizer.fused false"
    assert rows["good"] == ["finished", "0.4", "200", "300", "0:05:00", settings]
    assert rows["poor"][-1] == "optimizer.learning_rate 0.001, optimizer.fused true"
    assert "phases" not in lines
    assert [line.split()[0] for line in lines.splitlines()][:3] == ["run", "good", "poor"]
    assert (
        f"good        finished  0.4                   200      300    0:05:00   {settings}" in lines
    )
    assert "(compare.png)" in (tmp_path / "compare.md").read_text()


def test_damaged_failed_and_running_runs_are_named(tmp_path):
    whole = trained(tmp_path / "whole", 0.5)
    running = trained(tmp_path / "running", 0.6, state="running")
    failed = trained(tmp_path / "failed", 0.7, state="failed")
    cut = trained(tmp_path / "cut", 0.8)
    (cut / "status.json").write_text('{"state": "fin')
    (cut / "env.json").unlink()
    (cut / "config.resolved.yaml").write_text("a: [")
    with open(cut / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "lo')
    odd = trained(tmp_path / "odd", 0.9)
    (odd / "status.json").write_text('{"step": [1]}')
    rows, lines = compared(whole, running, failed, cut, odd, target=tmp_path)
    assert {name: cells[0] for name, cells in rows.items()} == {
        "whole": "finished",
        "running": "running or killed",
        "failed": "failed",
        "cut": "unknown",
        "odd": "damaged",
    }
    assert (
        "note: running: still running, or killed before it could write its end; its last log entry"
        in lines
    )
    assert "note: failed: failed: " in lines
    assert (
        "note: cut: config.resolved.yaml is damaged; status.json is damaged; there is no env.json; "
        "1 damaged line in metrics.jsonl\n" in lines
    )
    assert "note: odd: its files cannot be read: TypeError: " in lines
    assert "note: whole" not in lines


def test_runs_on_other_data_are_named(tmp_path):
    folders = [
        trained(tmp_path / name, loss) for name, loss in (("a", 0.5), ("b", 0.6), ("c", 0.7))
    ]
    (folders[1] / "data.json").write_text('{"2": {}}')
    _, lines = compared(*folders, target=tmp_path)
    assert "note: b: trained on other data than a" in lines


def test_a_comparison_is_no_run_and_an_old_plot_does_not_stay(tmp_path):
    folders = [trained(tmp_path / "a", 0.5), make_run(tmp_path / "b", steps(20))]
    compared(*folders, target=tmp_path)
    assert (tmp_path / "compare.png").exists()
    assert runs.all_runs(tmp_path) == folders or runs.all_runs(tmp_path) == folders[::-1]
    with pytest.raises(errors.UserError, match=r"no run 'compare\.md'"):
        runs.find_run("compare.md", tmp_path)
    _, lines = compared(folders[1], target=tmp_path)
    assert not (tmp_path / "compare.png").exists()
    assert "no run has a finite validation loss, so there is no plot" in lines
    assert "(compare.png)" not in (tmp_path / "compare.md").read_text()


def test_one_plot_has_the_curves_of_the_best_runs(tmp_path):
    short = trained(tmp_path / "$short_$", 0.55)
    many = [trained(tmp_path / f"run-{number}", 0.9, 0.5 + number / 100) for number in range(11)]
    named = comparison.named([*many, short])
    entries = sorted(
        (comparison.read_entry(run, name) for name, run in named.items()), key=comparison.by_loss
    )
    figure = comparison.loss_curves(entries)
    (axes,) = figure.axes
    figure.savefig(tmp_path / "plot.png")  # a $ in a name is no formula
    assert axes.get_title(loc="left") == "validation loss, the best 10 of 12 runs"
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[0] == "0.5  run-0"
    assert len({line.get_color() for line in axes.get_lines()}) == len(names) == 10
    low, high = axes.get_ylim()
    assert all(low <= entry.best["loss"] <= high for entry in entries[:10])


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    twins = [trained(tmp_path / place / "a", 0.5) for place in ("x", "y")]
    assert list(comparison.named([*twins, twins[0]])) == [str(twin) for twin in twins]


# ---- the verb ----


def verb(
    folder: Path, *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "my_training", "report", *words]
    environment = {**os.environ, "PYTHONPATH": str(render() / "src"), **(environment or {})}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_verb_takes_the_newest_run_a_name_or_a_path(tmp_path):
    older, newer = (
        make_run(tmp_path / "runs" / "a", steps(20)),
        make_run(tmp_path / "runs" / "b", steps(20)),
    )
    os.utime(older, (1, 1))
    lines = verb(tmp_path).stdout.splitlines()
    assert lines[0].split() == ["run", "b"]
    assert lines[-1] == "runs/b/report.md"
    assert verb(tmp_path, "a").stdout.splitlines()[-1] == "runs/a/report.md"
    assert (older / "report.md").exists()
    shutil.move(newer, tmp_path / "moved")
    assert verb(tmp_path, "moved").stdout.splitlines()[-1] == "moved/report.md"


def test_the_verb_says_which_runs_there_are(tmp_path):
    make_run(tmp_path / "runs" / "a")
    done = verb(tmp_path, "nope")
    assert done.returncode == 2
    assert done.stderr == "error: no run 'nope': runs/: runs are a\n"
    assert verb(tmp_path, "--compare", "a", "nope").stderr == done.stderr


def test_the_verb_compares_all_runs_or_those_that_are_named(tmp_path):
    assert "no run yet" in verb(tmp_path, "--compare").stderr
    for name, loss in (("größe", 0.5), ("b", 0.6)):
        trained(tmp_path / "runs" / name, loss)
    trained(tmp_path / "elsewhere" / "c", 0.4)
    # A terminal without the characters of a name gets question marks, the page gets the name.
    ascii = verb(tmp_path, "--compare", environment={"PYTHONIOENCODING": "ascii"})
    assert ascii.returncode == 0, ascii.stderr
    assert [line.split()[0] for line in ascii.stdout.splitlines() if line] == [
        *("run", "gr??e", "b", "runs/compare.md")
    ]
    assert "| größe |" in (tmp_path / "runs/compare.md").read_text(encoding="utf-8")
    # From another directory: a path is meant from there.
    root = {"TRAINING_ROOT": str(tmp_path)}
    lines = verb(
        tmp_path / "elsewhere", "b", "--compare", "./c", environment=root
    ).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["c", "b"]


@pytest.mark.parametrize(
    ("there", "said"), [(True, ""), (False, "note: this machine has no browser")]
)
def test_open_shows_the_page_where_there_is_a_browser(tmp_path, monkeypatch, capsys, there, said):
    import webbrowser

    run = make_run(tmp_path / "runs" / "a", steps(20))
    shown = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) or there)
    monkeypatch.chdir(tmp_path)
    assert imported(render(), "__main__").main(["report", "--open"]) == 0
    assert shown == [(run / "report.md").as_uri()]
    printed = capsys.readouterr()
    assert printed.out.endswith("\nruns/a/report.md\n")
    assert printed.err.startswith(said)
    assert bool(printed.err) == bool(said)


def test_open_does_not_fail_where_browsers_cannot_be_started(tmp_path):
    make_run(tmp_path / "runs" / "a", steps(20))
    done = verb(
        tmp_path, "--open", environment={"BROWSER": "/no/such/browser", "PATH": "", "DISPLAY": ""}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "runs/a/report.md"
    assert done.stderr == "note: this machine has no browser to show the page\n"
