"""Answers that would be silent, or words that would mislead: each is a line that says what
holds."""

import json
import re
import shutil
from pathlib import Path
from shlex import split

import pytest
from importing import imported
from rendering import render
from running import check_run, last_state, newest_run, one_error, report_of, rows, run

TABULAR = render(workload="tabular")
SHORT = split("--training.max_steps 12 --monitor.every_steps 4 --model.width 16")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with a run that stopped at step 4 of 12."""
    folder = tmp_path_factory.mktemp("stopped")
    check_run(TABULAR, "train", *SHORT, "--max-steps", "4", cwd=folder)
    return folder


def resolved(cwd):
    return (newest_run(cwd) / "config.resolved.yaml").read_text()


def test_a_setting_that_a_resumed_run_may_change_is_said_and_recorded_from_its_step(
    stopped, tmp_path
):
    begun = Path(shutil.copytree(stopped, tmp_path / "begun"))
    environment = newest_run(begun) / "env.json"
    started = json.loads(environment.read_text())["started"]
    words = "--optimizer.learning_rate 0.01 --optimizer.beta1 0.5 --optimizer.fused false"
    done = check_run(TABULAR, *split(f"train --resume --max-steps 8 {words}"), cwd=begun)
    for group in last_state(begun)["optimizer"]["param_groups"]:
        assert (group["fused"], group["betas"]) == (None, (0.5, 0.999))
    note = "from step 4 on optimizer.learning_rate is 0.01; it was 0.001"
    assert done.out.count(f"note: {note}\n") == 1
    assert note in report_of(begun)
    again = json.loads(environment.read_text())["started"]
    assert again == started, "which run is the newest goes by it"

    same = split("train --resume --reproducibility.seed 42 --data.order auto")
    assert "it was" not in check_run(TABULAR, *same, cwd=begun).out
    rates = [row["learning_rate"] for row in rows(begun) if "split" not in row]
    assert max(rates[:3]) <= 0.001 < max(rates[3:])


def test_synthetic_data_that_are_gone_are_made_again(stopped, tmp_path):
    """And what is damaged is refused, with what makes it again."""
    begun = Path(shutil.copytree(stopped, tmp_path / "begun"))
    folder = begun / "data/synthetic"
    for words in ("evaluate", "train --resume --max-steps 6"):
        shutil.rmtree(folder)
        check_run(TABULAR, *split(words), cwd=begun)
    next(folder.glob("*.bin")).unlink()
    refused = run(TABULAR, "train", cwd=begun)
    one_error(refused, "for synthetic data, remove the folder and run `train`")


@pytest.mark.parametrize(
    ("module", "said", "expected"),
    [
        (
            "torch._dynamo.exc",
            "backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found in (None,)",
            "no working C.. compiler.*install one",
        ),
        (
            "builtins",
            "could not create a primitive descriptor for the LSTM forward propagation primitive.",
            "^this CPU cannot compute a layer.*training.precision: choose fp32",
        ),
    ],
)
def test_what_a_machine_lacks_has_a_remedy(module, said, expected):
    explanations = imported(render(extras=["diagnose"]), "engine.training.explanations")
    error = type("Failed", (Exception,), {"__module__": module})(said)
    assert re.search(expected, str(explanations.explain(error)))
