"""The parts of `make bench-gpu`, in small on a CPU: each row is measured, kept when it ends, published."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forking import run_file
from rendering import REPOSITORY, render

GPU = REPOSITORY / "benchmarks/gpu"
# The page of each part, and the answers of its project.
PARTS = {
    "graph": ("graph", {"workload": "graph"}),
    "llm": (
        "llm",
        {"workload": "llm", "precision": "fp8", "loader": "memmap", "extras": ["watch"]},
    ),
    "seq2seq": ("seq2seq", {"workload": "seq2seq", "precision": "fp8"}),
    "timeseries": ("loaders", {"workload": "windows", "loader": "chunk"}),
}


def rehearse(part: str, folder: Path, *words: str) -> subprocess.CompletedProcess:
    """On a machine without Copier: rented ones with a GPU have none."""
    _, answers = PARTS[part]
    (folder / "copier.py").write_text("raise ImportError('not here')")
    command = (
        sys.executable,
        GPU / f"{part}.py",
        "--project",
        render(**answers),
        "--output",
        folder,
        *words,
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def without_copier() -> None:
    for name in ("copier", "rendering"):
        sys.modules[name] = None  # type: ignore[assignment]


def test_every_part_is_tested() -> None:
    assert {path.stem for path in GPU.glob("*.py")} == {*PARTS, "check", "rows"}


@pytest.mark.parametrize("part", PARTS)
def test_every_row_is_measured_and_fits_its_page(part: str, tmp_path: Path) -> None:
    page, answers = PARTS[part]
    given = "--project", str(render(**answers)), "--output", str(tmp_path)
    done = run_file(GPU / f"{part}.py", *given, "--rehearse", cwd=tmp_path, before=without_copier)
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    rows = [json.loads(line) for line in (tmp_path / f"{page}.jsonl").read_text().splitlines()]
    (table,) = json.loads((tmp_path / f"{page}.json").read_text())["gpu"]["tables"]
    assert sorted(row["name"] for row in rows) == sorted(name for name, *_ in table["rows"])
    assert not [row for row in rows if "error" in row]
    assert all(None not in row and len(row) == len(table["columns"]) for row in table["rows"])
    assert all(0 < row["loss"] < 12 for row in rows if "loss" in row)
    if part == "timeseries":  # only the first of these goes around the chunk loader
        resident = [row["resident"] for row in rows if "resident" in row]
        assert [value is None for value in resident] == [True, False, False, False]
    # The page of the repository has the same columns and rows, measured or not.
    (kept,) = json.loads((REPOSITORY / f"docs/benchmarks/{page}.json").read_text())["gpu"]["tables"]
    assert kept["columns"] == table["columns"]
    assert [name for name, *_ in kept["rows"]] == [name for name, *_ in table["rows"]]


def test_a_row_that_does_not_fit_into_the_time_is_left_out_by_name(tmp_path: Path) -> None:
    done = rehearse("graph", tmp_path, "--rehearse", "--seconds", "-1")
    assert done.returncode == 1
    (table,) = json.loads((tmp_path / "graph.json").read_text())["gpu"]["tables"]
    assert [row[1] for row in table["rows"]] == ["TimeoutError: left out, -1 s are over"] * 3


@pytest.mark.parametrize("part", ["llm", "check"])
def test_without_a_gpu_it_says_so(part: str, tmp_path: Path) -> None:
    done = run_file(GPU / f"{part}.py", cwd=tmp_path)
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("error: no GPU")


def test_what_was_measured_elsewhere_is_taken_over(tmp_path: Path) -> None:
    """Into a copy of the pages: the part it names, and nothing else."""
    shutil.copytree(REPOSITORY / "docs/benchmarks", tmp_path / "docs/benchmarks")
    (tmp_path / "benchmarks").mkdir()
    shutil.copy2(REPOSITORY / "benchmarks/publish.py", tmp_path / "benchmarks")
    rows = [["+ TF32", "12.5", None], ["+ bf16", None, None]]
    table = {"columns": ["", "ms/step", "tokens/s"], "rows": rows}
    taken = tmp_path / "llm.json"
    taken.write_text(json.dumps({"gpu": {"protocol": "made up", "tables": [table]}}))
    before = (tmp_path / "docs/benchmarks/llm.md").read_text()
    subprocess.run([sys.executable, tmp_path / "benchmarks/publish.py", taken], check=True)
    after = (tmp_path / "docs/benchmarks/llm.md").read_text()
    assert (
        "| + TF32 | 12.5 | not measured yet |\n| + bf16 | not measured yet |  |\n\nmade up.\n"
        in after
    )
    assert (
        after.partition("<!-- measured: gpu -->")[0]
        == before.partition("<!-- measured: gpu -->")[0]
    )
