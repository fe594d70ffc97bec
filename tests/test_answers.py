"""Answers that would be silent, or words that would mislead: each is a line that says what holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from rendering import render
from running import newest_run, one_error, run

SHORT = ("--training.max_steps", "12", "--monitor.every_steps", "4", "--model.width", "16")


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A folder with a run that stopped at step 4 of 12."""
    assert (
        run(render(workload="tabular"), "train", *SHORT, "--max-steps", "4", cwd=tmp_path).code == 0
    )
    return tmp_path


def resumed(cwd: Path) -> str:
    return (newest_run(cwd) / "config.resolved.yaml").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--reproducibility.seed", "7"),
        ("--data.order", "time"),
        ("--data.fraction", "0.5"),
        ("--model.category_width", "4"),
    ],
    ids=lambda words: words[0],
)
def test_a_resumed_run_refuses_what_would_make_it_another(
    words: tuple[str, str], begun: Path
) -> None:
    before = resumed(begun)
    refused = run(render(workload="tabular"), "train", "--resume", *words, cwd=begun)
    one_error(
        refused, f"{words[0].removeprefix('--')} was .+, and would be {words[1]}", "start a new run"
    )
    assert resumed(begun) == before


def test_the_same_value_once_more_is_no_change(begun: Path) -> None:
    words = ("--reproducibility.seed", "42", "--data.order", "auto")
    done = run(render(workload="tabular"), "train", "--resume", *words, cwd=begun)
    assert done.code == 0, done.err
    assert "it was" not in done.out


def test_a_setting_that_a_resumed_run_may_change_is_said_and_recorded_from_its_step(
    begun: Path,
) -> None:
    project, path = render(workload="tabular"), newest_run(begun) / "config.resolved.yaml"
    since = path.stat().st_mtime_ns
    words = ("--optimizer.learning_rate", "0.01", "--max-steps", "8")
    done = run(project, "train", "--resume", *words, cwd=begun)
    assert done.code == 0, done.err
    note = "from step 4 on optimizer.learning_rate is 0.01; it was 0.001"
    assert done.out.count(f"note: {note}\n") == 1
    assert note in (path.parent / "report.md").read_text()
    assert path.stat().st_mtime_ns == since, "which run is the newest goes by it"
    (line,) = [line for line in resumed(begun).splitlines() if "from step" in line]
    assert line.split() == [
        "learning_rate:",
        "0.01",
        "#",
        "--optimizer.learning_rate,",
        "from",
        "step",
        "4",
        "on",
    ]

    again = run(project, "train", "--resume", cwd=begun)
    assert again.code == 0, again.err
    assert "it was" not in again.out
    rates = [
        json.loads(row)["learning_rate"]
        for row in (path.parent / "metrics.jsonl").read_text().splitlines()[:5]
    ]
    assert max(rates[:3]) <= 0.001 < max(rates[3:])


def test_synthetic_data_that_are_gone_say_what_makes_them_again(begun: Path) -> None:
    """And where they should be; `train --resume` does it."""
    project, folder = render(workload="tabular"), begun / "data/synthetic"
    (name,) = (path.name for path in (begun / "runs").iterdir())
    shutil.rmtree(folder)
    for verb in ("evaluate", "predict"):
        line = one_error(
            run(project, verb, cwd=begun), "synthetic data of the run are gone: data/synthetic"
        )
        assert line.endswith(f"`train --resume {name}` makes them again")
    words = ("train", "--data.path", "data/synthetic")
    one_error(run(project, *words, cwd=begun), "no prepared data", "`train` without --data.path")
    again = run(project, "train", "--resume", name, "--max-steps", "6", cwd=begun)
    assert again.code == 0, again.err
    assert run(project, "evaluate", cwd=begun).code == 0
    next(folder.glob("*.npy")).unlink()
    one_error(
        run(project, "train", cwd=begun), "changed or removed: remove data/synthetic: `train` makes"
    )


def test_what_was_switched_on_is_one_line_of_evaluate_and_none_of_predict(begun: Path) -> None:
    project = render(workload="tabular")
    evaluated, predicted = (run(project, verb, cwd=begun) for verb in ("evaluate", "predict"))
    assert (evaluated.code, predicted.code) == (0, 0)
    state = "precision fp32, TF32 in matmuls off, TF32 in cuDNN off, cuDNN benchmark off, deterministic off"
    (line,) = [line for line in evaluated.out.splitlines() if "precision" in line]
    assert line.startswith("CPU, ")
    assert line.endswith(state)
    assert len(predicted.out.splitlines()) == 1
    names = next(line for line in evaluated.out.splitlines() if "mae_original" in line)
    assert names.split()[-1] == "r2"


def test_columns_of_a_table_keep_apart_and_so_do_states_and_reasons(tmp_path: Path) -> None:
    evaluate = imported(render(), "commands.evaluate")
    header, *_ = evaluate.table(
        {"model": {"mae_original": 1.0, "direction_accuracy": 2.0, "r2": 3.0}}
    ).splitlines()
    assert header.split() == ["mae_original", "direction_accuracy", "r2"]
    monitor, said = object.__new__(imported(render(), "engine.monitor").Monitor), list[str]()
    entry = {"name": "compile", "state": "5 blocks, mode default", "why": "set by compile.enabled"}
    model = torch.nn.Linear(3, 1)
    monitor.folder, monitor.line = tmp_path, said.append
    monitor.project = SimpleNamespace(
        device=torch.device("cpu"), optimizations=[entry], model=model
    )
    assert monitor.introduce(num_steps=7, global_batch_size=32, notes=["a note"]) == 4
    assert said[1:] == [
        "  compile           5 blocks, mode default set by compile.enabled",
        "  4 parameters, 7 steps of 32 samples",
        "note: a note",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found in (None, 'g++')",
        "backend='inductor' raised:\nRuntimeError: Failed to find C compiler. Please specify via CC",
    ],
)
def test_without_a_compiler_the_remedy_is_to_install_one(said: str) -> None:
    errors = imported(render(), "engine.errors")
    kind = type("BackendCompilerFailed", (Exception,), {"__module__": "torch._dynamo.exc"})
    line = str(errors.explain(kind(said), None, None))
    assert "no working compiler" in line
    assert "install one" in line
    assert "fullgraph" not in line


def test_a_layer_that_this_cpu_lacks_in_half_precision_has_a_remedy() -> None:
    said = "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload"
    line = str(imported(render(), "engine.errors").explain(RuntimeError(said), None, None))
    assert line.startswith("this CPU cannot compute a layer")
    assert "training.precision: choose fp32" in line


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--temperature", "1e-42"), "temperature 1e-42: --temperature: give 0, or 0.001 or more"),
        (("--seed", "9" * 20), "a seed of 20 digits: --seed"),
        (("--seed", str(2**64)), "--seed"),
    ],
)
def test_numbers_that_generate_cannot_use_are_one_line(
    words: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    one_error(run(render(workload="llm"), "generate", *words, cwd=tmp_path), reason)


def test_the_standard_library_is_not_called_synthetic(tmp_path: Path) -> None:
    small = (
        "--data.sample_mb",
        "0.1",
        "--data.block_size",
        "16",
        "--model.layers",
        "1",
        "--model.heads",
        "1",
    )
    words = (*small, "--model.width", "16", "--training.max_steps", "1")
    done = run(render(workload="llm"), "train", *words, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "note: Python's standard library in data/synthetic; `prepare` takes your own" in done.out
    assert "note: synthetic" not in done.out


PAIRS = [
    ("a b c", "c b a"),
    ("b c d", "d c b"),
    ("c d e", "e d c"),
    ("d e a", "a e d"),
    ("e a b", "b a e"),
]
TINY = ("--model.width", "16", "--model.layers", "1", "--model.heads", "1", "--model.hidden", "16")


@pytest.fixture(scope="module")
def spelt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs on words, prepared without `--unknown` and with it."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("without", "with")}
    project = render(workload="seq2seq")
    for name, folder in folders.items():
        (folder / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS))
        flags = (
            "--tokenizer",
            "space",
            "--split",
            "3,2,0",
            *(["--unknown"] if name == "with" else []),
        )
        prepared = run(project, "prepare", "--input", "pairs.tsv", *flags, cwd=folder)
        assert prepared.code == 0, prepared.err
        trained = run(project, "train", *TINY, "--training.max_steps", "1", cwd=folder)
        assert trained.code == 0, trained.err
    return folders


def test_symbols_that_training_had_not_are_refused_or_counted(spelt: dict[str, Path]) -> None:
    project = render(workload="seq2seq")
    refused = run(project, "predict", "--text", "a ß b", cwd=spelt["without"])
    one_error(refused, "1 symbols are in no training pair", "'ß'", "prepare with --unknown")
    said = run(project, "predict", "--text", "a ß ß b", cwd=spelt["with"])
    assert said.code == 0, said.err
    assert "note: 2 symbols are in no training pair ('ß')" in said.out
    assert "note" not in run(project, "predict", "--text", "a b", cwd=spelt["with"]).out


@pytest.mark.parametrize("text", ["", "  "])
def test_a_source_without_text_is_refused(text: str, spelt: dict[str, Path]) -> None:
    one_error(
        run(render(workload="seq2seq"), "predict", "--text", text, cwd=spelt["with"]),
        "have no text",
    )
