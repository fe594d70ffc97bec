"""Other processors and accounts than the one that runs the tests, in processes of their own."""

# ruff: noqa: F811 - the fixture `place` is imported

import os
from pathlib import Path

import pytest
from fresh import Command, run_in
from rendering import render
from running import PACKAGE, check_run, losses, one_error
from test_script import CASES, words_of
from test_tier_b import TINY, place  # noqa: F401
from variants import choices

STEPS = 3
WITHOUT_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
WITHOUT_AVX = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}
TWO_THREADS = {"OMP_NUM_THREADS": "2"}
TOLERANCE = 2e-5  # as of tests/test_golden.py in fp32
HALF_TOLERANCE = 5e-3


def short(workload: str, precision: str = "fp32") -> tuple[str, ...]:
    """Flags of a training of a few steps."""
    return (
        *TINY[workload],
        *("--training.max_steps", str(STEPS), "--training.precision", precision),
        *("--monitor.every_steps", "1", "--evaluation.every_steps", str(STEPS)),
    )


def command(project: Path, *words: str, cwd: Path) -> Command:
    return Command(project / "src", f"{PACKAGE}.__main__", words, cwd)


def curve(cwd: Path) -> list[float]:
    return [float.fromhex(loss) for _, loss in losses(cwd)]


# ---- processors ----


LSTMS = ("timeseries fp32", "timeseries bf16", "windows bf16", "script bf16")


@pytest.fixture(scope="module")
def lstm_runs(place, tmp_path_factory):
    """The folders of workloads with an LSTM, and of the script, that trained without AVX-512."""
    commands = {}
    for name in LSTMS:
        workload, precision = name.split()
        if workload == "script":
            folder = tmp_path_factory.mktemp("script")
            CASES["timeseries"].write(folder / "data.file")
            words = tuple(words_of("timeseries", STEPS, 1, precision))
            project = render(workload="timeseries", layout="script")
            commands[name] = Command(project, "train", words, folder)
        else:
            words = ("train", *short(workload, precision))
            commands[name] = command(render(workload=workload), *words, cwd=place(workload))
    words = ("evaluate", "--split", "validation")
    folder = commands["timeseries bf16"].cwd
    commands["evaluate"] = command(render(workload="timeseries"), *words, cwd=folder)
    for result in run_in(WITHOUT_AVX512, list(commands.values())):
        assert result.code == 0, result.err
    return {name: commands[name].cwd for name in LSTMS}


@pytest.mark.parametrize("name", LSTMS)
def test_an_lstm_trains_in_half_precision_without_avx512(name, lstm_runs, place):
    """oneDNN has no LSTM in bf16 or fp16 for such a processor."""
    workload, precision = name.split()
    without_avx512 = curve(lstm_runs[name])
    assert len(without_avx512) == STEPS
    if precision == "fp32":
        here = place(workload)
        check_run(render(workload=workload), "train", *short(workload), cwd=here)
        assert without_avx512 == pytest.approx(curve(here), rel=TOLERANCE)
    elif workload == "timeseries":
        in_float32 = curve(lstm_runs["timeseries fp32"])
        assert without_avx512 == pytest.approx(in_float32, rel=HALF_TOLERANCE)
        assert without_avx512 != in_float32


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


@pytest.fixture(scope="module")
def bare_runs(tmp_path_factory):
    """What the commands of a project leave on such an account, in one folder."""
    folder = tmp_path_factory.mktemp("bare") / "Größe"
    project = render(workload="tabular", extras=["diagnose"])
    all_words = {
        "train": ("train", *short("tabular"), "--name", "a"),
        "evaluate": ("evaluate", "--run", "a"),
        "report": ("report", "a"),
        "doctor": ("doctor",),
        "compile": ("train", *short("tabular"), "--compile.enabled", "true"),
    }
    commands = [command(project, *words, cwd=folder) for words in all_words.values()]
    return dict(zip(all_words, run_in(BARE, commands), strict=True))


def test_an_account_without_utf8_home_git_and_compiler_works(bare_runs):
    for name in ("train", "evaluate", "report", "doctor"):
        result = bare_runs[name]
        assert result.code == 0, result.err
        assert "Traceback" not in result.err


def test_a_locale_that_torchs_compiler_cannot_use_is_one_line(bare_runs):
    one_error(bare_runs["compile"], "could not be compiled .UnicodeDecodeError")
