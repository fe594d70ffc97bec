"""Other processors and accounts than the one that runs the tests, in processes of their own."""

# ruff: noqa: F811 - the fixture `place` is imported

import os

import pytest
from fresh import Command, run_in
from rendering import render
from running import PACKAGE, check_run, losses, one_error
from scripts import CASES, words_of
from sizes import TINY
from synthetic import place  # noqa: F401
from variants import choices

STEPS = 3
WITHOUT_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
WITHOUT_AVX = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}
TWO_THREADS = {"OMP_NUM_THREADS": "2"}
TOLERANCE = 2e-5  # as of tests/training/test_golden.py in fp32
HALF_TOLERANCE = 5e-3


def short(workload, precision="fp32"):
    """Flags of a training of a few steps."""
    return (
        *TINY[workload],
        *("--training.max_steps", str(STEPS), "--training.precision", precision),
        *("--monitor.every_steps", "1", "--evaluation.every_steps", str(STEPS)),
    )


def command(project, *words, cwd):
    return Command(project / "src", f"{PACKAGE}.__main__", words, cwd)


def curve(cwd):
    return [float.fromhex(loss) for _, loss in losses(cwd)]


# ---- processors ----


def test_an_lstm_trains_in_half_precision_without_avx512(place, tmp_path):
    """oneDNN has no LSTM in bf16 or fp16 for such a processor."""
    project = render(workload="timeseries")
    folders = {name: place("timeseries") for name in ("fp32", "bf16")}
    commands = []
    for precision, folder in folders.items():
        words = ("train", *short("timeseries", precision))
        commands.append(command(project, *words, cwd=folder))
    words = ("evaluate", "--split", "validation")
    commands.append(command(project, *words, cwd=folders["bf16"]))
    CASES["timeseries"].write(tmp_path / "data.file")
    script = render(workload="timeseries", layout="script")
    words = words_of("timeseries", STEPS, 1, "bf16")
    commands.append(Command(script, "train", words, tmp_path))
    for result in run_in(WITHOUT_AVX512, commands):
        assert result.code == 0, result.err
    in_float32 = curve(folders["fp32"])
    in_half = curve(folders["bf16"])
    assert in_half == pytest.approx(in_float32, rel=HALF_TOLERANCE)
    assert in_half != in_float32


@pytest.mark.parametrize(
    "workload", sorted(choices("workload"), key=lambda name: name != "tabular")
)
@pytest.mark.first(1)
def test_without_avx_on_two_threads_losses_are_the_same_but_for_rounding(workload, place):
    here = place(workload)
    there = place(workload)
    project = render(workload=workload)
    words = ("train", *short(workload))
    check_run(project, *words, cwd=here)
    (result,) = run_in(WITHOUT_AVX | TWO_THREADS, [command(project, *words, cwd=there)])
    assert result.code == 0, result.err
    assert curve(there) == pytest.approx(curve(here), rel=TOLERANCE)


# ---- accounts ----

# As in a container or on a cluster: no UTF-8, no home, no identity for git, no compiler.
BARE = {
    "LC_ALL": "C",
    "LANG": None,
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": None,
    "HOME": "/proc/nowhere",
    "XDG_CACHE_HOME": None,
    "XDG_CONFIG_HOME": None,
    "MPLCONFIGDIR": None,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "PATH": "/nonexistent",
    "CC": None,
    "CXX": "/nonexistent/c++",
    "FASTTRAIN_EXAMPLES": "1",  # whose fonts have a cache at home
}


def test_an_account_without_utf8_home_git_and_compiler_works(tmp_path):
    """Torch's compiler cannot use the locale before 2.14, nor do without a compiler: one line."""
    project = render(workload="tabular", extras=["diagnose"])
    train = ("train", *short("tabular"))
    every = [train, ["evaluate"], ["report"], ["doctor"], [*train, "--compile.enabled", "true"]]
    commands = [command(project, *words, cwd=tmp_path / "Größe") for words in every]
    *others, compiled = run_in(BARE, commands)
    for result in others:
        assert result.code == 0, result.err
        assert "Traceback" not in result.err
    one_error(
        compiled, "could not be compiled .UnicodeDecodeError|no working C\\+\\+ compiler found"
    )
