"""Other processors and other accounts than the one that runs the tests, each in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fresh import Command, Result, run_in
from rendering import render
from running import PACKAGE, losses, one_error, run
from test_script import CASES, words_of
from test_tier_b import TINY, place  # noqa: F401 - `place` is a fixture
from variants import choices

# ruff: noqa: F811 - the fixture `place` is imported
STEPS = 4
WITHOUT_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
PROCESSORS = {
    "no AVX-512": WITHOUT_AVX512 | {"ATEN_CPU_CAPABILITY": "avx2"},
    "no AVX": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}
TOLERANCE = 2e-5  # as of tests/test_golden.py in fp32
HALF_TOLERANCE = 5e-3


def short(workload: str, precision: str = "fp32") -> tuple[str, ...]:
    """Flags of a training of a few steps."""
    return (
        *TINY[workload],
        *("--training.max_steps", str(STEPS), "--training.precision", precision),
        *("--monitor.every_steps", "1", "--evaluation.every_steps", "3"),
    )


def command(project: Path, *words: str, cwd: Path) -> Command:
    return Command(project / "src", f"{PACKAGE}.__main__", words, cwd)


def curve(cwd: Path) -> list[float]:
    return [float.fromhex(loss) for _, loss in losses(cwd)]


# ---- processors ----


@pytest.fixture(scope="module")
def lstm_runs(
    place, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], tuple[Result, Path]]:
    """What `train` and `evaluate` of the workloads with an LSTM, and the script, leave without AVX-512."""
    commands: dict[tuple[str, str], Command] = {}
    for precision in ("fp32", "bf16", "fp16"):
        for workload in ("timeseries", "windows"):
            folder, project = place(workload), render(workload=workload)
            words = ("train", *short(workload, precision))
            commands[f"{workload} train", precision] = command(project, *words, cwd=folder)
            if precision == "bf16":
                words = ("evaluate", "--split", "validation")
                commands[f"{workload} evaluate", precision] = command(project, *words, cwd=folder)
        folder, project = (
            tmp_path_factory.mktemp("script"),
            render(workload="timeseries", layout="script"),
        )
        CASES["timeseries"].write(folder / "data.file")
        words = tuple(words_of("timeseries", STEPS, 1, precision))
        commands["script train", precision] = Command(project, "train", words, folder)
    results = run_in(WITHOUT_AVX512, list(commands.values()))
    return {key: (result, commands[key].cwd) for key, result in zip(commands, results, strict=True)}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("what", ["timeseries", "windows", "script"])
def test_an_lstm_trains_in_half_precision_without_avx512(
    what: str, precision: str, lstm_runs
) -> None:
    """oneDNN has no LSTM in bf16 or fp16 for such a processor."""
    found = {}
    for name in ("fp32", precision):
        result, folder = lstm_runs[f"{what} train", name]
        assert result.code == 0, result.err
        found[name] = curve(folder)
    assert len(found[precision]) == STEPS
    assert found[precision] == pytest.approx(found["fp32"], rel=HALF_TOLERANCE)
    assert found[precision] != found["fp32"]
    evaluated = lstm_runs.get((f"{what} evaluate", precision))
    assert evaluated is None or evaluated[0].code == 0, evaluated


@pytest.mark.cover(1, "processor")
@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.parametrize("processor", PROCESSORS)
def test_losses_are_those_of_this_processor_but_for_rounding(
    processor: str, workload: str, place
) -> None:
    here, there, project = place(workload), place(workload), render(workload=workload)
    words = ("train", *short(workload))
    assert run(project, *words, cwd=here).code == 0
    (result,) = run_in(PROCESSORS[processor], [command(project, *words, cwd=there)])
    assert result.code == 0, result.err
    assert curve(there) == pytest.approx(curve(here), rel=TOLERANCE)


# ---- accounts ----

# As in a container or on a cluster: no UTF-8, no home, no identity for git, no compiler.
BARE = {
    **{
        "LC_ALL": "C",
        "LANG": None,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": None,
    },
    **{
        "HOME": "/proc/nowhere",
        "XDG_CACHE_HOME": None,
        "XDG_CONFIG_HOME": None,
        "MPLCONFIGDIR": None,
    },
    **{"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
    **{"PATH": "/nonexistent", "CC": None, "CXX": "/nonexistent/c++"},
    "FASTTRAIN_PICTURES": "1",  # whose fonts have a cache at home
}


@pytest.fixture(scope="module")
def bare_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """What the commands of a project leave on an account that has nothing, in a folder of its own."""
    folder, project = tmp_path_factory.mktemp("bare"), render(workload="tabular")
    all_words = {
        "train": ("train", *short("tabular"), "--name", "a"),
        "evaluate": ("evaluate", "--run", "a"),
        "report": ("report", "a"),
        "doctor": ("doctor",),
        "compile": ("train", *short("tabular"), "--compile.enabled", "true"),
    }
    commands = [command(project, *words, cwd=folder / "Größe") for words in all_words.values()]
    return dict(zip(all_words, run_in(BARE, commands), strict=True))


@pytest.mark.parametrize("name", ["train", "evaluate", "report", "doctor"])
def test_an_account_without_utf8_home_git_and_compiler_works(name: str, bare_runs) -> None:
    result = bare_runs[name]
    assert result.code == 0, result.err
    assert "Traceback" not in result.err


def test_a_locale_that_torchs_compiler_cannot_use_has_its_remedy(bare_runs) -> None:
    one_error(bare_runs["compile"], "could not be compiled .UnicodeDecodeError", "set PYTHONUTF8=1")


def test_no_compiler_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    def take_away() -> None:
        """Nor what a compiler has left for the same model."""
        os.environ.update(PATH="/nonexistent", CXX="/nonexistent/c++")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache")

    words = ("train", *short("tabular"), "--compile.enabled", "true")
    refused = run(render(workload="tabular"), *words, cwd=tmp_path, before=take_away)
    one_error(refused, "no working compiler", "install one", "--compile.enabled false")
