"""A model of the user's own: the documented example runs, and a forgotten mask is found."""

import re

import pytest
from forking import run_pytest
from own_model import EXAMPLE, SHORT, project_with
from running import check_run, evaluation_of, newest_run
from shells import shell

MASK = " * present  # 0 for padding rows"


WITHOUT_METRICS = re.sub(r"return Output\(.*\)", "return Output(loss, total_weight)", EXAMPLE)


@pytest.mark.parametrize(
    ("model", "metrics"),
    [(EXAMPLE, {"loss", "mse_original", "r2"}), (WITHOUT_METRICS, {"loss"})],
    ids=["documented", "without metrics"],
)
def test_a_model_trains_evaluates_and_predicts(model, metrics, tmp_path):
    project = project_with(tmp_path, model)
    for words in (SHORT, ("evaluate",), ("predict",)):
        check_run(project, *words, cwd=tmp_path)
    evaluation = evaluation_of(tmp_path)
    assert set(evaluation["metrics"]) == metrics
    if "r2" in metrics:
        assert evaluation["metrics"]["r2"] > 0
    assert (newest_run(tmp_path) / "predictions.csv").exists()


@pytest.mark.full
def test_documented_model_passes_the_projects_own_tests(tmp_path):
    assert "passed" in shell(project_with(tmp_path, EXAMPLE), "make", "lint", "test")


def test_own_tests_find_a_model_without_the_mask(tmp_path):
    assert EXAMPLE.count(MASK) == 1
    project = project_with(tmp_path, EXAMPLE.replace(MASK, ""))
    done = run_pytest(project, "-k", "padding", "tests")
    assert done.code == 1, done.out
    assert "1 failed" in done.out


# Where the owner's code runs, and how it sets the precision there, by PyTorch's older and newer
# settings.
BEFORE = "\n\nBEFORE = {name}\ndef {name}(*given):\n    {setting}\n    return BEFORE(*given)\n"
PLACES = {
    "import": "\n\n{setting}\n",
    "build": BEFORE.replace("{name}", "build_model"),
    "forward": BEFORE.replace("{name}", "forward").replace("= forward", "= Layer.forward")
    + "Layer.forward = forward\n",
}
MATMUL = "torch.backends.cuda.matmul"
SET = [
    ("import", "torch.backends.fp32_precision = 'tf32'", False),
    ("build", f"{MATMUL}.fp32_precision = 'tf32'", True),
    ("forward", f"{MATMUL}.fp32_precision = 'tf32'", False),
]


def test_a_model_may_set_the_precision_of_matmuls_by_any_of_pytorchs_settings(tmp_path):
    """After a part of the project has set it by the older ones."""
    for number, (place, setting, is_tf32) in enumerate(SET):
        folder = tmp_path / str(number)
        model = EXAMPLE + PLACES[place].format(setting=setting)
        project = project_with(folder, model)
        words = ("train", "--training.max_steps", "1", "--schedule.warmup_steps", "1")
        said = check_run(project, *words, cwd=folder).out
        (state,) = re.findall(r"TF32 in matmuls +(\w+)", said)
        assert state == ("on" if is_tf32 else "off"), setting
