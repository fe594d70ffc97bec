"""Losses stay what they were: curves kept in the repository, and the tool that compares two
versions."""

import json
import platform

import golden
import pytest
from rendering import copy_template, replace

KEPT = json.loads(golden.CURVES.read_text()) if golden.CURVES.exists() else {}
# llm and seq2seq learn the text of Python's library: their curves are those of this version.
PYTHON = "3.11.7"
COMPARABLE = [
    name
    for name in KEPT
    if platform.python_version() == PYTHON or name.split()[0] not in ("llm", "seq2seq")
]
# Kernels for AVX2 and SSE gave 5e-6 in fp32, 1e-4 in fp16, 8e-4 in bf16 and fp8,
# compared with those for AMX.
TOLERANCE = {"fp32": 2e-5, "fp16": 1e-3, "bf16": 5e-3, "fp8": 5e-3}


@pytest.fixture(scope="session")
def trials(tmp_path_factory):
    return golden.Trials(golden.Tree(".", tmp_path_factory.mktemp("golden")), golden.CURVE_STEPS)


@pytest.mark.parametrize("name", COMPARABLE)
def test_losses_are_those_that_are_kept(name, trials):
    """After a change on purpose: `python tools/golden.py --write`, and say in the changelog why."""
    cell = golden.Cell(*name.split())
    losses = golden.curve(trials.like, trials, cell)
    assert losses == pytest.approx(KEPT[name], rel=TOLERANCE[cell.precision])


def test_a_version_that_computes_something_else_is_noticed(tmp_path, capsys):
    copy = copy_template(tmp_path / "copy")
    model = copy / "template/parts/workload/tabular/model.py"
    replace(model, "return x + self", "return x + 1.001 * self")
    words = ("--only", "tabular", "--cells", "tabular fp32", "--steps", "4")
    assert golden.main([".", str(copy), *words]) == 1
    assert "losses, step 1: " in capsys.readouterr().out
