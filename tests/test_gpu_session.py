"""All GPU evidence in calls that can be interrupted: no row twice, and no page gets what was not measured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu
import gpu_session
import pytest
import yaml
from gpu_session import PROJECT, STAGES, missing, names, overview, publish, session, unpack
from rendering import REPOSITORY, render
from test_gpu_benchmarks import PARTS

TOOL = REPOSITORY / "tools/gpu_session.py"
CARD = {"gpu": "NVIDIA H200", "torch": "2.13.0", "protocol": "made up"}


def call(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A rehearsal with results in `folder`, as a shell starts it."""
    command = (sys.executable, TOOL, "--rehearse", "--results", folder / "results", *words)
    ours = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**ours, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def rows(folder: Path, page: str) -> list[str]:
    path = folder / "results" / f"{page}.jsonl"
    return (
        [json.loads(line)["name"] for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


@pytest.mark.full
def test_a_call_that_is_ended_is_gone_on_with(tmp_path: Path) -> None:
    """After its first row; the archive that came home has that row, on a machine that knows nothing else."""
    archive = tmp_path / "home.tar"
    words = ("--parts", "graph", "--archive", str(archive))
    first = call(tmp_path, *words)
    while not rows(tmp_path, "graph"):
        assert first.poll() is None, first.stdout.read() if first.stdout else ""
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 128 + signal.SIGTERM
    before = rows(tmp_path, "graph")
    assert 0 < len(before) < 3
    shutil.rmtree(tmp_path / "results")
    second = call(tmp_path, *words)
    said, _ = second.communicate(timeout=600)
    assert second.returncode == 0, said[-3000:]
    assert sorted(rows(tmp_path, "graph")) == sorted(
        names(next(s for s in STAGES if s.part == "graph"))
    )
    third = call(tmp_path, *words)
    said, _ = third.communicate(timeout=600)
    assert third.returncode == 0
    assert "==" not in said  # nothing was started
    fourth = subprocess.run(
        [sys.executable, TOOL, "--publish", "--results", tmp_path / "results"],
        capture_output=True,
        text=True,
    )
    assert fourth.returncode == 1
    assert "of a rehearsal: there is nothing to publish" in fourth.stderr


@pytest.mark.full
def test_the_tier_of_tests_is_kept_test_by_test(tmp_path: Path) -> None:
    """Those with an outcome are left out of the next call; without a GPU every one of them is skipped."""
    results = tmp_path / "results"
    first = call(tmp_path, "--parts", "check")
    said, _ = first.communicate(timeout=600)
    assert first.returncode == 0, said[-3000:]
    lines = (results / "check.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["name"] == "(all)"
    (results / "check.jsonl").write_text(
        "".join(lines[: len(lines) // 2])
    )  # as if it had ended here
    second = call(tmp_path, "--parts", "check")
    second.communicate(timeout=600)
    assert second.returncode == 0
    assert sorted((results / "check.jsonl").read_text().splitlines()) == sorted(
        map(str.strip, lines)
    )


def arguments(folder: Path, **changed: Any) -> Any:
    given = {
        "seconds": 520,
        "minutes": 25,
        "parts": None,
        "again": False,
        "rehearse": False,
        "archive": None,
    }
    return SimpleNamespace(results=folder, **(given | changed))


def filled(folder: Path, page: str, named: list[str], **figures: Any) -> None:
    with open(folder / f"{page}.jsonl", "a") as file:
        for name in named:
            file.write(json.dumps({"name": name, **CARD, **figures}) + "\n")


def test_stages_come_in_the_order_of_their_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is right comes first, then what is claimed, then the rest, without what is done."""
    begun = []

    def run(stage: Any, given: Any, deadline: float) -> int:
        begun.append(stage.name)
        if stage.part == "check":
            filled(tmp_path, "check", ["(all)"], outcome="passed")
        else:
            filled(tmp_path, stage.page, missing(stage, tmp_path))
        return 0

    monkeypatch.setattr(gpu_session, "run", run)
    filled(tmp_path, "graph", names(STAGES[4]))
    assert session(arguments(tmp_path)) == 0
    assert begun == [stage.name for stage in STAGES if stage.part != "graph"]
    assert overview(tmp_path).endswith("all is done")
    assert sum(stage.seconds for stage in STAGES) <= gpu_session.TOTAL


def test_no_stage_begins_without_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_session, "run", lambda *_: pytest.fail("it began"))
    assert session(arguments(tmp_path, seconds=gpu_session.LEAST - 1)) == 75
    (tmp_path / "calls.jsonl").write_text(json.dumps({"seconds": 25 * 60 - 10}) + "\n")
    assert session(arguments(tmp_path)) == 75
    assert overview(tmp_path).splitlines()[-1].endswith("next: check")


def test_what_failed_waits_for_again_and_what_had_no_time_does_not(tmp_path: Path) -> None:
    stage = STAGES[4]
    one, two, three = names(stage)
    filled(tmp_path, "graph", [one], error="RuntimeError: no")
    filled(tmp_path, "graph", [two], error="TimeoutError: left out, 500 s are over")
    assert missing(stage, tmp_path) == [two, three]
    assert missing(stage, tmp_path, again=True) == [one, two, three]
    assert f"failed: graph: {one}: RuntimeError: no" in overview(tmp_path)


def test_an_archive_brings_results_only(tmp_path: Path) -> None:
    for name in ("llm.jsonl", "../out.jsonl", "gpu.sh"):
        (tmp_path / "made").write_text(name)
        with tarfile.open(tmp_path / "found.tar", "a") as archive:
            archive.add(tmp_path / "made", name)
    (tmp_path / "results").mkdir()
    unpack(tmp_path / "found.tar", tmp_path / "results")
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["llm.jsonl"]
    assert not (tmp_path / "out.jsonl").exists()


def test_only_what_was_measured_is_published(tmp_path: Path) -> None:
    """Failed and missing rows stay «not measured yet», on the page and in the headlines."""
    pages, results = tmp_path / "pages", tmp_path / "results"
    shutil.copytree(REPOSITORY / "docs/benchmarks", pages)
    results.mkdir()
    every = names(STAGES[5])
    figures = json.loads((pages / "llm.json").read_text())["gpu"]
    (table,) = figures["tables"]
    width = len(table["columns"]) - 1
    table["rows"] = [[name, *["7.5"] * width] for name in every]
    table["rows"][2] = [every[2], "RuntimeError: no", *[""] * (width - 1)]
    table["rows"][4] = [every[4], *[None] * width]
    figures["protocol"] = "2026-11-30, NVIDIA H200, driver 580.1, load 1.0, made up"
    (results / "llm.json").write_text(json.dumps({"gpu": figures}))
    kept = [name for name in every if name not in (every[2], every[4])]
    filled(results, "llm", kept, step_ms=10.0, tokens_per_second=3e5, memory_gb=6.2)
    filled(results, "llm", [every[2]], error="RuntimeError: no")
    assert publish(results, pages) == ["llm"]
    text = (pages / "llm.md").read_text()
    assert f"| {every[0]} | 7.5 |" in text
    assert f"| {every[2]} | not measured yet |" in text
    assert f"| {every[4]} | not measured yet |" in text
    assert "RuntimeError" not in text
    assert "NVIDIA H200, driver 580.1" in text
    (headlines,) = json.loads((pages / "README.json").read_text())["headlines"]["tables"]
    ours = [row[-1] for row in headlines["rows"]]
    assert ours == [None, None, "+0.0% a step", None, "memory +0%, 1.0× the tokens/s"]
    readme = (pages / "README.md").read_text()
    assert "ours: 2026-11-30, NVIDIA H200, driver 580.1." in readme
    for page in ("seq2seq", "graph", "loaders"):
        assert (pages / f"{page}.md").read_text() == (
            REPOSITORY / f"docs/benchmarks/{page}.md"
        ).read_text()


def test_the_projects_that_are_carried_are_those_that_benchmarks_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(
        "rendering.render_into", lambda folder, **given: made.update({folder.name: given})
    )
    (tmp_path / "build/gpu").mkdir(parents=True)
    monkeypatch.setattr(gpu.shutil, "rmtree", lambda *_, **__: None)
    gpu.main()
    monkeypatch.undo()
    for part, (_, answers) in PARTS.items():
        given = made[PROJECT[part]]
        usual = render(**{"workload": answers["workload"]})
        assert given["framework"] == "pytorch"
        assert {name: given.get(name) for name in answers if name != "loader"} == {
            name: value for name, value in answers.items() if name != "loader"
        }
        assert given["loader"] in (answers.get("loader"), _loader(usual))
    assert (
        (tmp_path / "build/gpu/session.sh")
        .read_text()
        .endswith('exec python3 tools/gpu_session.py "$@"\n')
    )


def _loader(project: Path) -> str:
    found: str = yaml.safe_load((project / ".copier-answers.yml").read_text())["loader"]
    return found
