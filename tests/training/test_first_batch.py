"""What model.py must return is checked with the first batch: each breach is one line that names the
file. The command `check` of an extra looks at the rest of the contract."""

import pytest
from own_model import EXAMPLE, SHORT, project_with
from running import one_error, run

FORWARD = "model.py, forward"
RETURNED = "return Output(loss, total_weight, "
METRICS = '{} if self.training else {"mse_original": (squares, total_weight)}'
BUILT = "return Perceptron(settings, facts)"
# By what is wrong: the text to replace, its replacement, what the line says.
BREACHES = {
    "no predict": ("def predict", "def forecast", "has no predict: model.py: .*interfaces.py"),
    "no return in build_model": (BUILT, BUILT.removeprefix("return "), "NoneType.*: model.py"),
    "no return in blocks": ("return list(self.layers)", "list(self.layers)", "blocks.*: model.py"),
    "no output": (RETURNED, "return loss  # ", f"{FORWARD}: return loss, total_weight"),
    "a loss for each row": (RETURNED, "return Output(error.square(), total_weight, ", FORWARD),
    "an int as weight": (RETURNED, "return Output(loss, len(present), ", FORWARD),
    "a number as metric": (METRICS, '{"mae": error.abs().mean().item()}', f"'mae'.*{FORWARD}"),
    "a metric that is no sum": (METRICS, '{"mae": (error.abs(), total_weight)}', FORWARD),
    "a list of metrics": (METRICS, "[error.abs().mean()]", FORWARD),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_one_line_before_the_first_step(name, tmp_path):
    old, new, line = BREACHES[name]
    assert EXAMPLE.count(old) == 1
    project = project_with(tmp_path, EXAMPLE.replace(old, new))
    refused = run(project, *SHORT, cwd=tmp_path)
    one_error(refused, line)
    assert "step 1/" not in refused.out
    assert not list((tmp_path / "runs").glob("*"))
