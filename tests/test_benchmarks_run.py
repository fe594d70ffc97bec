"""The parts of `make bench`, each in its smallest size: they run to their end and fit their
pages."""

import json
import re
import subprocess
from itertools import groupby

import pytest
from forking import run_file
from rendering import REPOSITORY

PAGES = REPOSITORY / "docs/benchmarks"
SHARED = ("forks", "nanogpt", "peers", "publish")  # by the others
BENCHMARKS = sorted(
    path.stem for path in (REPOSITORY / "benchmarks").glob("*.py") if path.stem not in SHARED
)
ON_DEMAND = {"last_batch"}  # needs somebody else's file


@pytest.mark.first(6)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_part_runs_and_fits_its_page(name, tmp_path):
    """With the page as it is printed and as it is put together; that of the repository stays."""
    before = {path: path.read_bytes() for path in PAGES.iterdir()}
    done = run_file(REPOSITORY / f"benchmarks/{name}.py", "--rehearse", "--write", cwd=tmp_path)
    assert done.code == 0, done.out[-2000:] + done.err[-3000:]
    parts = json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))
    rehearsed = re.findall(rf"^rehearsed: {name}, (.+)$", done.out, flags=re.MULTILINE)
    assert rehearsed == [part for part in parts if part != "gpu"]
    assert not {len(set(widths)) for widths in tables(done.out)} - {1}
    assert "not measured yet" not in done.out
    assert {path: path.read_bytes() for path in PAGES.iterdir()} == before


def tables(text: str) -> list[list[int]]:
    """How many cells each row has, of each table."""
    lines = groupby(text.splitlines(), lambda line: line.startswith("|"))
    return [[row.count("|") for row in rows] for is_table, rows in lines if is_table]


def test_make_bench_has_every_benchmark():
    command = ("make", "--dry-run", "bench")
    said = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    (parts,) = re.findall(r"for part in ([\w ]+); do", said)
    assert {*parts.split()} == {*BENCHMARKS} - ON_DEMAND


def test_a_benchmark_without_its_input_says_so(tmp_path):
    done = run_file(REPOSITORY / "benchmarks/last_batch.py", cwd=tmp_path)
    assert done.code == 2
    assert "--series is missing" in done.err
