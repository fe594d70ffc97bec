"""`make bench-gpu`, in small on a CPU: each row is measured, kept when it ends, and published."""

import importlib
import json
import os
import shutil
import sys
from typing import Any

import pytest
from forking import run_file
from rendering import REPOSITORY, render
from running import undrawn
from variants import SCRIPTS

GPU = REPOSITORY / "benchmarks/gpu"
PAGES = REPOSITORY / "docs/benchmarks"
WITH_FP8 = {"loader": "memmap", "precision": "fp8", "extras": ["watch"]}
# The page of each part, and the answers of its project.
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "graph": ("graph", {"workload": "graph", "loader": "dataloader"}),
    "chat": ("chat", {"workload": "chat", "loader": "dataloader"}),
    "llm": ("llm", {"workload": "llm", **WITH_FP8}),
    "scripts": ("script", {"workload": "llm", **WITH_FP8}),
    "seq2seq": ("seq2seq", {"workload": "seq2seq", "loader": "dataloader", "precision": "fp8"}),
    "timeseries": ("loaders", {"workload": "windows", "loader": "chunk"}),
    "vision": ("vision", {"workload": "vision", "loader": "memmap"}),
}
THEIR_OWN = "nanoGPT's own train.py"
CARD = {"gpu": "NVIDIA H200", "torch": "2.13.0", "protocol": "made up"}


@pytest.fixture
def run_all(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module("run_all")


def gpu_table(folder, page):
    (table,) = json.loads((folder / f"{page}.json").read_text())["gpu"]["tables"]
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
    page, answers = PARTS[part]
    carried = tmp_path / f"{answers['workload']}-{answers['loader']}-pytorch"
    carried.symlink_to(render(**answers))
    for workload in SCRIPTS if part == "scripts" else ():
        folder = render(workload=workload, layout="script")
        (tmp_path / f"script-{workload}").symlink_to(folder)

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
    """Failed and missing rows stay "not measured yet", on the page and in the headlines."""
    pages = tmp_path / "pages"
    results = tmp_path / "results"
    shutil.copytree(PAGES, pages)
    results.mkdir()
    table = gpu_table(pages, "llm")
    for row in table["rows"]:
        row[1:] = ["7.5"] * len(row[1:])
    first, failed, measured, missing, *others = [row[0] for row in table["rows"]]
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
    headlines = (pages / "README.md").read_text()
    assert "+0.0% a step" in headlines
    assert "ours: 2026-11-30, NVIDIA H200, driver 580.1." in headlines
    assert (pages / "graph.md").read_text() == (PAGES / "graph.md").read_text()


def test_a_rehearsal_is_never_published(run_all, tmp_path):
    write_rows(tmp_path, "graph", ["a"])
    text = (tmp_path / "graph.jsonl").read_text()
    (tmp_path / "graph.jsonl").write_text(text.replace(CARD["gpu"], run_all.REHEARSAL))
    with pytest.raises(SystemExit, match="of a rehearsal: there is nothing to publish"):
        run_all.publish(tmp_path, PAGES)
