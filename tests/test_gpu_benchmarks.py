"""`make bench-gpu`, in small on a CPU: each row is measured, kept when it ends, and published."""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path
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
    "llm": ("llm", {"workload": "llm", **WITH_FP8}),
    "scripts": ("script", {"workload": "llm", **WITH_FP8}),
    "seq2seq": ("seq2seq", {"workload": "seq2seq", "loader": "dataloader", "precision": "fp8"}),
    "timeseries": ("loaders", {"workload": "windows", "loader": "chunk"}),
}
THEIR_OWN = "nanoGPT's own train.py"
CARD = {"gpu": "NVIDIA H200", "torch": "2.13.0", "protocol": "made up"}


@pytest.fixture
def run_all(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module("run_all")


def gpu_table(folder: Path, page: str) -> dict[str, Any]:
    (table,) = json.loads((folder / f"{page}.json").read_text())["gpu"]["tables"]
    return table


def names(page: str) -> list[str]:
    """Rows of a page of the repository, without the one that needs a checkout of nanoGPT."""
    rows = [row[0] for row in gpu_table(PAGES, page)["rows"]]
    return [name for name in rows if name != THEIR_OWN]


def write_rows(folder: Path, page: str, rows: list[str], **figures: Any) -> None:
    with open(folder / f"{page}.jsonl", "a") as file:
        for name in rows:
            file.write(json.dumps({"name": name, **CARD, **figures}) + "\n")


def test_every_part_is_tested():
    assert {path.stem for path in GPU.glob("*.py")} == {*PARTS, "rows", "run_all"}


@pytest.mark.first(2)
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
    if part == "timeseries":  # only the first of these goes around the chunk loader
        resident = [row["resident"] for row in rows if "resident" in row]
        assert [value is None for value in resident] == [True, False, False, False]


CHECKOUT = """
import os, sys, time
flags = dict(word[2:].split("=") for word in sys.argv[1:])
assert os.path.getsize("data/zipf/train.bin") == os.path.getsize("data/zipf/val.bin") == 20_000
assert (flags["batch_size"], flags["block_size"]) == ("2", "16")
for step in range(int(flags["max_iters"]) + 1):
    print(f"iter {step}: loss {5 - step / 10:.4f}, time 1.00ms, mfu 1.00%")
    time.sleep(0.02)
"""


def test_a_checkout_of_nanogpt_is_a_row(monkeypatch, tmp_path):
    """Its own train.py runs in a process of its own; the row is read from what it prints."""
    checkout = tmp_path / "nanoGPT"
    checkout.mkdir()
    (checkout / "train.py").write_text(CHECKOUT)
    (checkout / "model.py").touch()
    (checkout / "configurator.py").touch()
    monkeypatch.setenv("FASTTRAIN_NANOGPT", str(checkout))
    words = ("--output", str(tmp_path), "--rehearse", "--only", THEIR_OWN)
    done = run_file(GPU / "llm.py", *words, cwd=tmp_path)
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    (row,) = map(json.loads, (tmp_path / "llm.jsonl").read_text().splitlines())
    assert (row["name"], row["loss"], row["memory_gb"]) == (THEIR_OWN, 4.7, 0)
    assert row["step_ms"] >= 20


def test_without_a_gpu_it_says_so(tmp_path):
    done = run_file(GPU / "graph.py", "--output", str(tmp_path), cwd=tmp_path)
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("error: no GPU")


def test_only_what_was_measured_is_published(run_all, tmp_path):
    """Failed and missing rows stay "not measured yet", on the page and in the headlines."""
    pages = tmp_path / "pages"
    results = tmp_path / "results"
    shutil.copytree(PAGES, pages)
    results.mkdir()
    every = [row[0] for row in gpu_table(PAGES, "llm")["rows"]]
    failed = every[1]
    missing = every[3]
    table = gpu_table(pages, "llm")
    for row in table["rows"]:
        row[1:] = ["7.5"] * len(row[1:])
    protocol = "2026-11-30, NVIDIA H200, driver 580.1, load 1.0, made up"
    figures = {"gpu": {"protocol": protocol, "tables": [table]}}
    (results / "llm.json").write_text(json.dumps(figures))
    kept = [name for name in every if name not in (failed, missing)]
    write_rows(results, "llm", kept, step_ms=10.0, tokens_per_second=3e5, memory_gb=6.2)
    write_rows(results, "llm", [failed], error="RuntimeError: no")
    run_all.publish(results, pages)
    text = (pages / "llm.md").read_text()
    assert f"| {every[0]} | 7.5 |" in text
    assert f"| {failed} | not measured yet |" in text
    assert f"| {missing} | not measured yet |" in text
    (headlines,) = json.loads((pages / "README.json").read_text())["headlines"]["tables"]
    ours = [row[-1] for row in headlines["rows"]]
    (of_the_page,) = json.loads((PAGES / "README.json").read_text())["headlines"]["tables"]
    of_the_page = of_the_page["rows"]
    assert ours[2::2] == ["+0.0% a step", "memory +0%, 1.0× the tokens/s"]
    assert ours[:2] + ours[3:4] == [row[-1] for row in of_the_page[:2] + of_the_page[3:4]]
    assert "ours: 2026-11-30, NVIDIA H200, driver 580.1." in (pages / "README.md").read_text()
    assert (pages / "graph.md").read_text() == (PAGES / "graph.md").read_text()


def test_a_rehearsal_is_never_published(run_all, tmp_path):
    write_rows(tmp_path, "graph", ["a"])
    text = (tmp_path / "graph.jsonl").read_text()
    (tmp_path / "graph.jsonl").write_text(text.replace(CARD["gpu"], run_all.REHEARSAL))
    with pytest.raises(SystemExit, match="of a rehearsal: there is nothing to publish"):
        run_all.publish(tmp_path, PAGES)
