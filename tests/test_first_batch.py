"""What model.py must return is checked with the first batch: each breach is one line that names the
file. The command `check` of an extra looks at the rest of the contract."""

import re
import shutil
from pathlib import Path

import pytest
from rendering import render
from running import one_error, run
from test_own_model import EXAMPLE, SHORT, project_with

FORWARD = "model.py, forward"
PREDICT = "model.py, predict"
RETURNED = "return Output(loss, total_weight, "
METRICS = '{} if self.training else {"mse_original": (squares, total_weight)}'
BUILT = "return Perceptron(settings, facts)"
# By what is wrong: the text to replace, its replacement, what the line says.
BREACHES = {
    "no return in build_model": (BUILT, BUILT.removeprefix("return "), "NoneType.*: model.py"),
    "no return in blocks": ("return list(self.layers)", "list(self.layers)", "blocks.*: model.py"),
    "a loss for each row": (RETURNED, "return Output(error.square(), total_weight, ", FORWARD),
    "a loss of one row": (RETURNED, "return Output(loss[None], total_weight, ", FORWARD),
    "a number as loss": (RETURNED, "return Output(loss.item(), total_weight, ", FORWARD),
    "an int as weight": (RETURNED, "return Output(loss, len(present), ", FORWARD),
    "a number as metric": (METRICS, '{"mae": error.abs().mean().item()}', f"'mae'.*{FORWARD}"),
    "a float in a metric": (METRICS, '{"mae": (error.sum().item(), total_weight)}', FORWARD),
    "a metric that is no sum": (METRICS, '{"mae": (error.abs(), total_weight)}', FORWARD),
    "a list of metrics": (METRICS, "[error.abs().mean()]", FORWARD),
}
# What the command `check` of an extra finds in addition: the same, and its line about `shapes`.
CHECKED = {
    "a detached loss": (RETURNED, "return Output(loss.detach(), total_weight, ", "grad"),
    "a metric that is wrong in evaluation": (
        METRICS,
        '{} if self.training else {"mae": 1.0}',
        f"'mae'.*{FORWARD}",
    ),
}
# Other results of `predict`, while `forward` stays right.
PREDICTIONS = {
    "without a name": "right",
    "nested": '{"prediction": {"mean": right}}',
    "of a wrong size": '{"prediction": right.mean()[None]}',
    "one for all samples": '{"prediction": right.mean()}',
}


def checked(folder: Path, model: str) -> str:
    """What `check` says of the shapes of this model."""
    project = shutil.copytree(render(workload="tabular", extras=["check"]), folder / "project")
    (project / "src/my_training/model.py").write_text(model, encoding="utf-8")
    done = run(project, "check", "--only", "shapes", cwd=folder)
    assert done.code == 1, done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("failed")]
    return line


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_one_line_before_the_first_step(name, tmp_path):
    old, new, line = BREACHES[name]
    assert EXAMPLE.count(old) == 1
    project = project_with(tmp_path, EXAMPLE.replace(old, new))
    refused = run(project, *SHORT, cwd=tmp_path)
    one_error(refused, line)
    assert "step 1/" not in refused.out
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("name", CHECKED)
def test_the_command_check_looks_at_training_and_evaluation(name, tmp_path):
    old, new, line = CHECKED[name]
    assert EXAMPLE.count(old) == 1
    assert re.search(line, checked(tmp_path, EXAMPLE.replace(old, new)))


@pytest.mark.parametrize("name", PREDICTIONS)
def test_the_command_check_looks_at_predictions(name, tmp_path):
    model = EXAMPLE.replace("predict(", "scores(")
    wrong = f"""
    def predict(self, batch):
        right = self.scores(batch)["prediction"]
        return {PREDICTIONS[name]}

    def forward(self, batch"""
    assert PREDICT in checked(tmp_path, model.replace("\n    def forward(self, batch", wrong))


def test_predictions_with_another_axis_than_the_targets_are_named(tmp_path):
    """(B, 1) minus (B,) is (B, B)."""
    model = EXAMPLE.replace(".squeeze(1)", "")
    assert model != EXAMPLE
    line = checked(tmp_path, model)
    assert re.search(r"\(\d+, 1\).*\(\d+,\)", line), line
