"""Losses stay what they were: curves in fp32 that the repository keeps, the other precisions against
fp32 in the same run."""

import json
import platform

import golden
import pytest
import torch

KEPT = json.loads(golden.CURVES.read_text()) if golden.CURVES.exists() else {}
# llm and seq2seq learn the text of Python's library: their curves are those of this version.
PYTHON = "3.11.7"
COMPARABLE = [
    name
    for name in KEPT
    if platform.python_version() == PYTHON or name.split()[0] not in ("llm", "seq2seq")
]
# Processors add in another order: kernels for AVX2, SSE and AMX differed by 5e-6.
TOLERANCE = 2e-5
# Losses of these depend on the processor's kernels. The tolerance is that of the format, the
# distance from 1 to its next number; the largest difference seen was a third of it.
FORMATS = {
    "fp16": torch.finfo(torch.float16).eps,
    "bf16": torch.finfo(torch.bfloat16).eps,
    "fp8": torch.finfo(torch.float8_e4m3fn).eps,
}
# An absolute error has gradients of sign alone, some of which rounding turns.
LOOSER = {"forecast": 4, "vision": 2}
# Rounding makes max pooling choose other pixels, and each step adds to the difference. So only
# the first losses can be compared.
FEWER = {"vision": 5}


@pytest.fixture(scope="session")
def trials(tmp_path_factory):
    return golden.Trials(golden.Tree(".", tmp_path_factory.mktemp("golden")), golden.CURVE_STEPS)


@pytest.mark.parametrize("name", COMPARABLE)
def test_losses_are_those_that_are_kept(name, trials):
    """After a change on purpose: `python tools/golden.py --write`, and say in the changelog why."""
    losses = golden.curve(trials.like, trials, golden.Cell(*name.split()))
    assert losses == pytest.approx(KEPT[name], rel=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        # A CPU has no fast convolutions in fp16.
        pytest.param(
            name,
            precision,
            marks=[pytest.mark.full] if (name.split()[0], precision) == ("vision", "fp16") else [],
        )
        for name in KEPT
        for precision in FORMATS
        if golden.possible(name.split()[0], precision)
    ],
)
def test_a_precision_computes_as_fp32_but_for_the_rounding_of_its_format(name, precision, trials):
    reference = golden.Cell(*name.split())
    cell = reference._replace(precision=precision)
    in_float32 = golden.curve(trials.like, trials, reference)
    losses = golden.curve(trials.like, trials, cell)
    comparable = FEWER.get(reference.workload, len(losses))
    if precision == "fp16":
        # A step that overflows is skipped by design: the losses after it have other weights.
        comparable = min(comparable, golden.steps_to_first_overflow(trials.like, cell))
    assert comparable > 0
    tolerance = FORMATS[precision] * LOOSER.get(reference.workload, 1)
    expected = pytest.approx(in_float32[:comparable], rel=tolerance)
    assert losses[:comparable] == expected
    assert losses != in_float32
