"""The parts of `make bench`, each in its smallest size: they run to their end and fit their
pages."""

import json
import re

import pytest
from forking import run_file
from rendering import REPOSITORY

PAGES = REPOSITORY / "docs/benchmarks"
SHARED = (
    "chatting",
    "count_step",
    "forecasters",
    "forks",
    "images",
    "nanogpt",
    "peers",
    "publish",
    "vision_step",
    "vision_weights",
)  # by the others
BENCHMARKS = sorted(
    path.stem for path in (REPOSITORY / "benchmarks").glob("*.py") if path.stem not in SHARED
)


@pytest.mark.first(3)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_part_runs_and_fits_its_page(name, tmp_path):
    """With the page as it is printed and as it is put together; that of the repository stays."""
    before = {path: path.read_bytes() for path in PAGES.iterdir()}
    done = run_file(REPOSITORY / f"benchmarks/{name}.py", "--rehearse", "--write", cwd=tmp_path)
    assert done.code == 0, done.out[-2000:] + done.err[-3000:]
    parts = json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))
    rehearsed = re.findall(rf"^rehearsed: {name}, (.+)$", done.out, flags=re.MULTILINE)
    assert rehearsed == [part for part in parts if part != "gpu"]
    assert "not measured yet" not in done.out
    assert {path: path.read_bytes() for path in PAGES.iterdir()} == before


def test_a_step_makes_no_more_calls_than_a_hand_written_loop(tmp_path):
    """Counts depend on no neighbour. Two operators more keep the loss and divide the gradients."""
    words = ("counts", "--only", "pytorch", "--rehearse")
    done = run_file(REPOSITORY / "benchmarks/loop.py", *words, cwd=tmp_path)
    assert done.code == 0, done.out[-2000:] + done.err[-3000:]
    rows = re.findall(r"^\| (bare PyTorch|`pytorch`, ours) \| (.+) \|$", done.out, re.MULTILINE)
    counts = {loop: [float(cell) for cell in cells.split("|")] for loop, cells in rows}
    operators, *calls = counts["`pytorch`, ours"]
    bare_operators, *bare_calls = counts["bare PyTorch"]
    assert operators <= bare_operators + 2
    assert all(ours < bare for ours, bare in zip(calls, bare_calls, strict=True))
