"""`report.md` and `curves.png` from whatever a run left behind, names of runs, and the extra
`compare`."""

import json
import math
import os
import shutil
from types import SimpleNamespace

import pytest
from importing import imported
from rendering import render
from running import check_run, one_error, painted, run

report = imported(render(), "engine.monitoring.report")
runs = imported(render(), "engine.runs")
errors = imported(render(), "engine.errors")
COMPARE = {"extras": ["compare"]}
details = imported(render(**COMPARE), "engine.monitoring.report")
comparison = imported(render(**COMPARE), "commands.compare")

STARTED = 1_790_000_000.0
ENVIRONMENT = {
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "gpu": "NVIDIA L4, sm 8.9, 22.0 GB",
    "git": "abc1234+changes",
    "optimizations": [{"name": "compile", "state": "off", "why": "a | b"}],
    "changed": [["training.epochs", 3, 10, "a flag"]],
    "started": STARTED,
    "argv": ["train", "--training.epochs", "3"],
    "notes": ["synthetic data"],
}
FINISHED = {"state": "finished", "reason": "", "step": 300}
RESULT = {
    "split": "test",
    "step": 200,
    "metrics": {"mae": 0.42},
    "baseline_loss": 1.5,
}


def steps(count):
    rows = []
    for step in range(10, count + 1, 10):
        row = {"step": step, "epoch": 1, "loss": 2 * math.exp(-step / 300) + 0.1}
        row |= {"learning_rate": 1e-3, "gradient_norm": 1.5, "step_ms": 6.4}
        row["samples_per_second"] = 5000.0 if step > 10 else 10.0
        rows.append(row | {"time": STARTED + step})
    return rows


def evaluations(*losses):
    """Those whose loss is the lowest so far are marked, as in training."""
    rows = []
    lowest = math.inf
    for number, loss in enumerate(losses, start=1):
        row = {"step": 100 * number, "split": "validation", "loss": loss, "seconds": 0.1}
        is_best = loss < lowest
        lowest = min(loss, lowest)
        rows.append(row | {"mae": loss / 2, "best_by": "loss" if is_best else ""})
    return rows


def write_lines(path, rows, tail=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail, encoding="utf-8")


def make_run(folder, rows=(), tail="", **files):
    folder.mkdir(parents=True)
    write_lines(folder / "metrics.jsonl", rows, tail)
    (folder / runs.CONFIG).touch()
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """A plot takes longer than all else."""
    monkeypatch.setattr(report, "curves", lambda _: SimpleNamespace(savefig=lambda file: None))


def page_of(run):
    report.write_report(run)
    return (run / "report.md").read_text(encoding="utf-8")


@pytest.fixture
def whole(tmp_path):
    rows = steps(300) + evaluations(0.9, 0.4, 0.5)
    files = {"env": ENVIRONMENT, "status": FINISHED, "evaluation": RESULT}
    run = make_run(tmp_path / "my run", rows, **files)
    events = [{"step": 100, "event": "baseline_loss", "loss": 1.25}]
    events.append({"step": 120, "event": "alert", "text": "input-bound: a | b"})
    events.append({"step": 120, "event": "resumed"})
    for step, seconds in ((150, 1.0), (300, 83.0)):  # the last one counts
        times = {"forward/backward": 17.0, "validation": seconds, "saving": 0.0}
        events.append({"step": step, "event": "checkpoint", "times": times})
    for wrong in ("17", [17.0], {"saving": "17", "Python": -1.0, "optimizer": 1e300}):
        events.append({"step": 300, "event": "checkpoint", "times": wrong})
    write_lines(run / "events.jsonl", events)
    return run


def test_a_whole_run(whole):
    page = page_of(whole)
    for expected in (
        "# Run my run",
        "- state: finished, at step 300",
        "- best: validation loss 0.4 at step 200 (baseline 1.25)\n",
        "- alert: step 120: input-bound: a | b",
        "- note: synthetic data",
        "- time: 0:01:40: validation 83%, forward/backward 17%\n",
        "(curves.png)",
        "| training.epochs | 3 | 10 | a flag |",
    ):
        assert expected in page, expected
    assert (whole / "curves.png").stat().st_size > 10_000, "something is drawn"


def by_metric(metric, *values, best):
    """Evaluations whose loss grows while this metric decides; `best` are those that were it."""
    rows = evaluations(*[0.1 + place / 10 for place in range(len(values))])
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        row[metric] = value
        row["best_by"] = metric if place in best else ""
    return rows


def test_the_metric_that_decides_names_the_best_evaluation(undrawn, tmp_path):
    """The last one that was marked: another metric may have decided before."""
    rows = [*steps(300), *by_metric("r2", 0.4, 0.9, 0.7, best=(0, 1))]
    rows[-1]["best_by"] = "r2"
    run = make_run(tmp_path / "resumed", rows)
    write_lines(run / "events.jsonl", [{"step": 100, "event": "baseline_loss", "loss": 1.25}])
    page = page_of(run)
    assert "- best: validation r2 0.7 at step 300 (loss baseline 1.25)\n" in page
    assert "- metrics: loss 0.3, mae 0.15 (of the best step)\n" in page
    rows = [*steps(100), *by_metric("r2", None, best=())]
    assert "- best: no finite evaluation yet" in page_of(make_run(tmp_path / "nan", rows))


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("stopped", "SIGTERM", "stopped, at step 100: SIGTERM"),
        ("failed", "out of GPU memory", "failed, at step 100: out of GPU memory"),
        ("running", "", "running or killed, at step 100"),
    ],
)
def test_how_it_ended(undrawn, tmp_path, state, reason, expected):
    """A killed run stands at its last logged step."""
    status = {"state": state, "reason": reason, "step": 40}
    rows = [*steps(100), {"step": 100, "split": "validation", "loss": None}]  # nan
    page = page_of(make_run(tmp_path / "run", rows, status=status))
    assert f"- state: {expected}\n" in page
    assert "- best: no finite evaluation yet" in page


# Each is in the place of a line. None of them is a record.
NO_RECORDS = (
    '{"stfp": 155, "loss": 9.0}',
    '{"loss": 9.0}',
    '{"step": "155", "loss": 9.0}',
    '{"step": null, "loss": 9.0}',
    '{"step": [155], "loss": 9.0}',
    '{"step": 155.5, "loss": 9.0}',
    '{"step": 1e400, "loss": 9.0}',
    '{"step": 155, "loss": "9.0"}',
    '{"step": 155, "loss": [9.0]}',
    '{"step": 155, "loss": 1e400}',
    '{"step": 155, "loss": NaN}',
    '{"step": 155, "loss": 1.7e308}',
    '{"step": 155, "loss": 1' + 400 * "0" + "}",
    '{"step": 155, "loss": 1' + 5000 * "0" + "}",
    '{"step": 155, "loss": 9.0, "time": Infinity}',
    "[155, 9.0]",
    "155",
    "null",
    '"step"',
    5000 * "[",
    "\x00\x00",
)
# Some of what they have is wrong, and it is left out.
ODD_RECORDS = (
    '{"step": 155, "split": 7, "loss": 5.0, "time": "noon", "$\\\\frac$ \\ud800": 1}',
    '{"step": 156, "loss": 0.5, "time": 1e299, "step_ms": "6", "learning_rate": {}}',
)


def test_a_damaged_line_costs_that_line_alone(whole, tmp_path):
    """Of records and of events, in reports, plots and comparisons."""
    expected = details.Record(whole)
    for name in ("metrics.jsonl", "events.jsonl"):
        with open(whole / name, "a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in NO_RECORDS))
    record = details.Record(whole)
    assert record.training == expected.training
    assert record.evaluations == expected.evaluations
    assert record.events == expected.events
    for name in ("metrics.jsonl", "events.jsonl"):
        with open(whole / name, "a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in ODD_RECORDS))
            file.write('{"step": 7, "event": "alert"}\n{"step": 7, "event": ["baseline_loss"]}\n')
    details.write_report(whole)
    assert "| validation, best | 200 | 0.4 |" in (whole / "report.md").read_text(encoding="utf-8")
    lines = comparison.write_comparison([whole], tmp_path)
    assert lines[1].split()[3:6] == ["0.4", "200", "300"]


def test_files_with_other_types_are_read_as_missing(whole, tmp_path, monkeypatch):
    """Each file, and each of its fields, is replaced by each of some values."""
    undrawn = SimpleNamespace(savefig=lambda file: None)
    monkeypatch.setattr(details, "curves", lambda _: undrawn)
    extra = imported(render(**COMPARE), "hooks.details")
    monkeypatch.setattr(extra, "curves", lambda _: undrawn)
    monkeypatch.setattr(comparison, "curves", lambda *_: undrawn)
    manifest = {"seal": "1", "source": {"kind": "synthetic"}}
    (whole / "data.json").write_text(json.dumps(manifest))
    values = (7, "text", [3], {"a": [1]}, None, True, [{"a": {}}], [[[]]], 1e299)
    store = imported(render(**COMPARE), "engine.loading.store").Store
    (whole / "config.resolved.yaml").write_text("data: {path: data}")
    for name in ("env", "status", "evaluation", "data"):
        path = whole / f"{name}.json"
        content = json.loads(path.read_text())
        for value in values:
            for damaged in (value, *({**content, field: value} for field in content)):
                path.write_text(json.dumps(damaged))
                details.write_report(whole)
                comparison.write_comparison([whole], tmp_path)
                assert isinstance(runs.started(whole), float | int)
                store.was_synthetic(whole)
        path.write_text(json.dumps(content))
    details.write_report(whole)
    page = (whole / "report.md").read_text(encoding="utf-8")
    assert "| duration | 0:05:00 " in page


def test_what_cannot_be_read_is_one_line(whole, tmp_path):
    """Only a missing file is empty: a failed read says nothing of what is in it."""
    shutil.copytree(whole, tmp_path / "runs" / "a")
    for name in ("metrics.jsonl", "env.json"):
        path = tmp_path / "runs" / "a" / name
        path.unlink()
        path.mkdir()  # cannot be read, by nobody
        for command in ("report", "compare"):
            refused = run(render(**COMPARE), command, cwd=tmp_path)
            one_error(refused, f"Is a directory: 'runs/a/{name}': {command}: check the path")
        path.rmdir()
        assert check_run(render(**COMPARE), "report", cwd=tmp_path)


def test_the_extra_compare_adds_what_the_page_leaves_out(whole):
    details.write_report(whole)
    page = (whole / "report.md").read_text(encoding="utf-8")
    for expected in (
        "(details.png)",
        "| validation, best | 200 | 0.4 | 0.2 |",
        "| baseline, without a model |  | 1.25 |  |",
        "| model | 0.42 |  |",
        "| baseline, without a model |  | 1.5 |",
        "| samples/s, median | 5,000 |",  # the first one, with compilation in it, does not count
        "| compile | off | a \\| b |",
        "| resumed from steps | 120 |",
        "| duration | 0:05:00 ",
    ):
        assert expected in page, expected
    assert (whole / "details.png").stat().st_size > 10_000, "something is drawn"
    assert len((whole / "metrics.csv").read_text().splitlines()) == 1 + 30 + 3


# ---- names of runs ----


def test_the_newest_run_is_the_one_that_started_last(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    for number, name in enumerate(["zebra", "apple", "mango"]):
        make_run(tmp_path / name, env={"started": number})
    make_run(tmp_path / "apple" / "inner")  # touches the folder of an older run
    assert runs.find_run().name == "mango"
    assert [run.name for run in runs.all_runs()] == ["zebra", "apple", "mango"]


def test_new_runs_never_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    assert runs.new_run() != runs.new_run()
    runs.new_run("mine")
    with pytest.raises(errors.UserError, match="--resume mine"):
        runs.new_run("mine")


def first_words(done):
    """Of each line."""
    return [line.split()[0] for line in done.out.splitlines() if line]


def test_the_command_takes_the_newest_run_a_name_or_a_path(tmp_path):
    older = make_run(tmp_path / "runs" / "a", steps(20))
    newer = make_run(tmp_path / "runs" / "b", steps(20))
    os.utime(older, (1, 1))
    done = check_run(render(), "report", cwd=tmp_path)
    assert done.out.startswith("state      running or killed, at step 20\n")
    assert done.out.endswith("\n\nruns/b/report.md\n")
    shutil.move(newer, tmp_path / "moved")
    assert first_words(run(render(), "report", "moved", cwd=tmp_path))[-1] == "moved/report.md"
    for words in (["--run", "moved"], ["--run-name=moved"]):
        assert first_words(run(render(), "report", *words, cwd=tmp_path))[-1] == "moved/report.md"
    refused = run(render(), "report", "--run", "nope", cwd=tmp_path)
    assert one_error(refused) == "error: no run 'nope': runs/: the newest runs are a"


# ---- several runs ----


def trained(folder, *losses, state="finished", data="1"):
    """A run with these validation losses; the learning rate is the last of them."""
    status = {"state": state, "reason": "", "step": 100 * len(losses)}
    rows = steps(100 * len(losses)) + evaluations(*losses)
    run = make_run(folder, rows, env=ENVIRONMENT, status=status, data={"seal": data})
    settings = f"optimizer:\n  learning_rate: {losses[-1]}\n  fused: true\n"
    settings += f"profiles: {{fast: {{data.batch_size: {data}}}}}\n"
    (run / "config.resolved.yaml").write_text(settings, encoding="utf-8")
    return run


def test_the_command_compares_all_runs_or_those_that_are_named(tmp_path):
    project = render(**COMPARE)
    one_error(run(project, "compare", cwd=tmp_path), "no run yet")
    folder = tmp_path / "runs"
    make_run(folder / "unmeasured", steps(50), env=ENVIRONMENT)
    trained(folder / "poor", 0.9, 0.8, state="running", data="2")
    trained(folder / "größe", 0.9, 0.4, 0.5)
    done = check_run(project, "compare", cwd=tmp_path, before=painted)
    lowest_first = ["runs/größe", "runs/poor", "runs/unmeasured"]
    assert first_words(done) == ["run", *lowest_first, "runs/compare.md"]
    assert (folder / "compare.png").stat().st_size > 10_000, "something is drawn"
    page = (folder / "compare.md").read_text(encoding="utf-8")
    assert "| runs/größe | finished | 0.4 | 200 | 300 | 0:05:00 |" in page
    (poor,) = [line for line in page.splitlines() if "poor" in line]
    for expected in ("running or killed", "optimizer.learning_rate 0.8", "data 2"):
        assert expected in poor
    assert "profiles" not in page, "they have no effect on a run"
    for name, best in (("low", 0.3), ("high", 0.6)):
        make_run(tmp_path / name, by_metric("r2", best, 0.1, best=(0,)))
    done = check_run(project, "compare", "low", "high", cwd=tmp_path)
    assert first_words(done) == ["run", "high", "low", "runs/compare.md"]
    assert "  best r2  " in done.out
    assert "  0.6  " in done.out
    done = check_run(project, "compare", "low", "poor", cwd=tmp_path)
    assert "  best loss  " in done.out, "the runs have no other metric in common"
    trained(tmp_path / "c", 0.4)
    for words in (["poor", "./c"], ["--run", "poor", "./c"]):
        done = check_run(project, "compare", *words, cwd=tmp_path)
        assert first_words(done) == ["run", "c", "runs/poor", "runs/compare.md"]
