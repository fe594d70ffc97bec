"""The parts of `make bench`, each in its smallest size: they run to their end and fit their
pages."""

import json
import re

import pytest
from forking import run_file
from rendering import REPOSITORY

PAGES = REPOSITORY / "docs/benchmarks"
SHARED = ("forks", "nanogpt", "peers", "publish")  # by the others
BENCHMARKS = sorted(
    path.stem for path in (REPOSITORY / "benchmarks").glob("*.py") if path.stem not in SHARED
)


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
    assert "not measured yet" not in done.out
    assert {path: path.read_bytes() for path in PAGES.iterdir()} == before
