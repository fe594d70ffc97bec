"""Answers that would be silent, or words that would mislead: each is a line that says what
holds."""

import json
import shutil
from pathlib import Path

import pytest
from importing import imported
from rendering import render
from running import check_run, last_state, newest_run, one_error, rows, run

TABULAR = render(workload="tabular")
SHORT = ("--training.max_steps", "12", "--monitor.every_steps", "4", "--model.width", "16")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with a run that stopped at step 4 of 12."""
    folder = tmp_path_factory.mktemp("stopped")
    check_run(TABULAR, "train", *SHORT, "--max-steps", "4", cwd=folder)
    return folder


@pytest.fixture
def begun(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "begun"))


def resumed(cwd: Path) -> str:
    return (newest_run(cwd) / "config.resolved.yaml").read_text()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("reproducibility.seed", "7"),
        ("optimizer.name", "adafactor"),
        ("data.order", "time"),
        ("data.fraction", "0.5"),
        ("model.category_width", "4"),
    ],
)
def test_a_resumed_run_refuses_what_would_make_it_another(setting, value, stopped):
    before = resumed(stopped)
    words = ("train", "--resume", f"--{setting}", value)
    refused = run(TABULAR, *words, cwd=stopped)
    one_error(refused, f"cannot change {setting} from .+ to {value}", "start a new run")
    assert resumed(stopped) == before


UNFUSED = ("--optimizer.beta1", "0.5", "--optimizer.fused", "false")


def test_a_setting_that_a_resumed_run_may_change_is_said_and_recorded_from_its_step(
    begun,
):
    path = newest_run(begun) / "config.resolved.yaml"
    environment = path.with_name("env.json")
    started = json.loads(environment.read_text())["started"]
    words = ("--optimizer.learning_rate", "0.01", "--max-steps", "8", *UNFUSED)
    done = check_run(TABULAR, "train", "--resume", *words, cwd=begun)
    for group in last_state(begun)["optimizer"]["param_groups"]:
        assert (group["fused"], group["betas"]) == (None, (0.5, 0.999))
    note = "from step 4 on optimizer.learning_rate is 0.01; it was 0.001"
    assert done.out.count(f"note: {note}\n") == 1
    assert note in (path.parent / "report.md").read_text()
    again = json.loads(environment.read_text())["started"]
    assert again == started, "which run is the newest goes by it"
    (line,) = [line for line in resumed(begun).splitlines() if "--optimizer.lea" in line]
    assert line.endswith("# --optimizer.learning_rate")

    same = ("--reproducibility.seed", "42", "--data.order", "auto")
    again = check_run(TABULAR, "train", "--resume", *same, cwd=begun)
    assert "it was" not in again.out
    rates = [row["learning_rate"] for row in rows(begun) if "split" not in row]
    assert max(rates[:3]) <= 0.001 < max(rates[3:])


def test_synthetic_data_that_are_gone_are_made_again(begun):
    """And what is damaged is refused, with what makes it again."""
    folder = begun / "data/synthetic"
    shutil.rmtree(folder)
    check_run(TABULAR, "evaluate", cwd=begun)
    shutil.rmtree(folder)
    check_run(TABULAR, "train", "--resume", "--max-steps", "6", cwd=begun)
    next(folder.glob("*.bin")).unlink()
    refused = run(TABULAR, "train", cwd=begun)
    one_error(refused, "for synthetic data, remove the folder and run `train`")


@pytest.mark.parametrize(
    "said",
    [
        "backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found in (None, 'g++')",
        "backend='inductor' raised:\nRuntimeError: Failed to find C compiler. Please specify via CC",
    ],
)
def test_without_a_compiler_the_remedy_is_to_install_one(said):
    explanations = imported(render(extras=["diagnose"]), "engine.run.explanations")
    kind = type("BackendCompilerFailed", (Exception,), {"__module__": "torch._dynamo.exc"})
    line = str(explanations.explain(kind(said)))
    assert "no working C++ compiler" in line
    assert "install one" in line
    assert "fullgraph" not in line


def test_a_layer_that_this_cpu_lacks_in_half_precision_has_a_remedy():
    said = "could not create a primitive descriptor for the LSTM forward propagation primitive."
    explanations = imported(render(extras=["diagnose"]), "engine.run.explanations")
    line = str(explanations.explain(RuntimeError(said)))
    assert line.startswith("this CPU cannot compute a layer")
    assert "training.precision: choose fp32" in line
