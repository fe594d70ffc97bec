"""`make bench-gpu`, in small on a CPU: each row is measured, kept when it ends, and published."""

import importlib
import json
import os
import shutil
import sys
from types import SimpleNamespace

import gpu
import pytest
import torch
from forking import run_file
from rendering import REPOSITORY, render
from running import undrawn
from sizes import TINY
from variants import SCRIPTS

GPU = REPOSITORY / "benchmarks/gpu"
PAGES = REPOSITORY / "docs/benchmarks"
# The page of each part, and the workloads of its projects.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chat": ("chat", ("chat",)),
    "resume": ("resume", tuple(sorted(TINY))),
    "timeseries": ("loaders", ("windows",)),
    "llm": ("llm", ("llm",)),
    "scripts": ("script", ("llm",)),
    "seq2seq": ("seq2seq", ("seq2seq",)),
    "vision": ("vision", ("vision",)),
    "experiment": ("experiment", ("llm", "timeseries", "vision")),
    "graph": ("graph", ("graph",)),
}
THEIR_OWN = "nanoGPT's own train.py"
CARD = {"gpu": "NVIDIA H200", "date": "2026-11-30", "torch": "2.13.0", "protocol": "made up"}


@pytest.fixture
def run_all(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module("run_all")


def gpu_table(folder, page):
    """The last one: those before it are of earlier sessions."""
    *_, table = json.loads((folder / f"{page}.json").read_text())["gpu"]["tables"]
    return table


def names(page):
    """Rows of a page of the repository, without the one that needs a checkout of nanoGPT."""
    rows = [row[0] for row in gpu_table(PAGES, page)["rows"]]
    return [name for name in rows if name != THEIR_OWN]


def write_rows(folder, page, rows, **figures):
    with open(folder / f"{page}.jsonl", "a") as file:
        for name in rows:
            file.write(json.dumps({"name": name, **CARD, **figures}) + "\n")


def test_every_part_is_tested():
    assert {path.stem for path in GPU.glob("*.py")} == {*PARTS, "rows", "run_all"}


@pytest.mark.first(1)
@pytest.mark.parametrize("part", PARTS)
def test_every_row_is_measured_once_and_fits_its_page(part, tmp_path):
    """On a machine without Copier: rented ones have none. What is there is not measured again."""
    page, workloads = PARTS[part]
    for workload in workloads:
        answers = gpu.answers_of(workload)
        (tmp_path / gpu.name_of(answers)).symlink_to(render(**answers))
    for workload in SCRIPTS if part == "scripts" else ():
        folder = render(workload=workload, layout="script")
        (tmp_path / f"script-{workload}").symlink_to(folder)
    carried = tmp_path / gpu.name_of(gpu.answers_of(workloads[0]))

    def without_copier():
        os.environ["FASTTRAIN_PROJECTS"] = str(tmp_path)
        sys.modules["copier"] = None  # type: ignore[assignment]
        sys.modules["rendering"] = None  # type: ignore[assignment]
        sys.path.insert(0, str(carried / "src"))
        undrawn()

    (there, *others) = names(page)
    write_rows(tmp_path, page, [there], error="of another machine")
    words = ("--output", str(tmp_path), "--rehearse")
    done = run_file(GPU / f"{part}.py", *words, cwd=tmp_path, before=without_copier)
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    rows = [json.loads(line) for line in (tmp_path / f"{page}.jsonl").read_text().splitlines()][1:]
    assert sorted(row["name"] for row in rows) == sorted([there, *others])
    assert not [row for row in rows if "error" in row]
    assert all(0 < row["loss"] < 12 for row in rows if "loss" in row)
    table = gpu_table(tmp_path, page)
    assert all(None not in row and len(row) == len(table["columns"]) for row in table["rows"])
    assert table["columns"] == gpu_table(PAGES, page)["columns"]
    assert [row[0] for row in table["rows"]] == names(page)


def test_only_what_was_measured_is_published(run_all, tmp_path):
    """Failed and missing rows stay "not measured yet"; what an earlier session measured stays."""
    pages = tmp_path / "pages"
    results = tmp_path / "results"
    shutil.copytree(PAGES, pages)
    results.mkdir()
    table = gpu_table(pages, "llm")
    for row in table["rows"]:
        row[1:] = ["7.5"] * len(row[1:])
    first, failed, measured, missing, earlier, *others = [row[0] for row in table["rows"]]
    protocol = "2026-11-30, NVIDIA H200, driver 580.1, load 1.0, made up"
    figures = {"gpu": {"protocol": protocol, "tables": [table]}}
    (results / "llm.json").write_text(json.dumps(figures))
    good = {"step_ms": 10.0, "tokens_per_second": 3e5, "memory_gb": 6.2}
    write_rows(results, "llm", [first, measured, *others], **good)
    write_rows(results, "llm", [failed], error="RuntimeError: no")
    run_all.publish(results, pages)
    text = (pages / "llm.md").read_text()
    assert f"| {first} | 7.5 |" in text
    assert f"| {failed} | not measured yet |" in text
    assert f"| {missing} | not measured yet |" in text
    assert f"| {earlier} | not measured yet |" in text
    before, _, after = text.partition("2026-11-26, NVIDIA H200")
    assert f"| {earlier} | 35.1 |" in before
    assert f"| {first} | 7.5 |" in after
    headlines = (pages / "README.md").read_text()
    assert "+0.0% a step (NVIDIA H200, 2026-11-30)" in headlines
    assert "8.5× the tokens/s (NVIDIA H200, 2026-11-26)" in headlines
    again = text
    run_all.publish(results, pages)
    assert (pages / "llm.md").read_text() == again
    assert (pages / "graph.md").read_text() == (PAGES / "graph.md").read_text()


def test_a_stage_is_chosen_and_one_that_passed_is_not_tested_again(run_all, tmp_path, monkeypatch):
    commands = []

    def run(command, cwd):
        commands.append(command[1:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(run_all.subprocess, "run", run)
    chosen = ["graph", run_all.CHUNK_TESTS, "GPU tests, part 4"]
    assert run_all.run_all(tmp_path, chosen, rehearse=False) == 0
    chunk, graph, last = commands
    assert chunk[-3:] == ["tests/gpu/test_chunk.py", "-n", "8"]
    assert graph[-2:] == ["--output", str(tmp_path)]
    assert last[-4:] == ["--shard", "4/4", "-n", "8"]
    assert run_all.run_all(tmp_path, chosen, rehearse=False) == 0
    assert commands[3:] == [graph]


def write_run(folder, losses, weight):
    (folder / "checkpoints").mkdir(parents=True)
    rows = [
        {"step": step, "bits": loss, "gradients": {str(step): "7f"}}
        for step, loss in enumerate(losses, 1)
    ]
    lines = [json.dumps(row) for row in [*rows, {"step": 2, "split": "validation"}]]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    model = {"weight": torch.tensor([weight], dtype=torch.bfloat16)}
    torch.save({"model": model}, folder / "checkpoints/step-00000002-ab.pt")


@pytest.mark.parametrize(
    ("losses", "weight", "step"),
    [(["aa", "bb"], 1.0, 0), (["aa", "bc"], 1.0, 2), (["aa"], 1.0, 2), (["aa", "bb"], -1.0, 3)],
)
def test_the_first_difference_of_two_runs_is_found(losses, weight, step, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    resume = importlib.import_module("resume")
    write_run(tmp_path / "one", ["aa", "bb"], 1.0)
    write_run(tmp_path / "other", losses, weight)
    assert resume.first_difference(tmp_path / "one", tmp_path / "other") == step


def test_a_rehearsal_is_never_published(run_all, tmp_path):
    write_rows(tmp_path, "graph", ["a"])
    text = (tmp_path / "graph.jsonl").read_text()
    (tmp_path / "graph.jsonl").write_text(text.replace(CARD["gpu"], run_all.REHEARSAL))
    with pytest.raises(SystemExit, match="of a rehearsal: there is nothing to publish"):
        run_all.publish(tmp_path, PAGES)
