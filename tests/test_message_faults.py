"""Lines that blame the wrong thing, or advise what makes it worse."""

import shutil
from pathlib import Path
from shlex import split

import pytest
from rendering import render
from running import one_error, run

SHORT = split("--training.max_steps 3 --monitor.every_steps 1 --evaluation.every_steps 1000")


# ---- a loss that is not finite -------------------------------------------------------------------

FAILING = """

build_sound_model = build_model


def build_model(*given: Any) -> Any:
    model = build_sound_model(*given)
    sound_forward = model.forward

    def forward(batch: Any) -> Any:
        output = sound_forward(batch)
        fails = ({fails}) & batch["present"]
        return output._replace(loss=output.loss + torch.where(fails, torch.nan, 0.0).sum())

    model.forward = forward
    return model
"""


def failing(folder: Path, fails: str, **answers: str) -> Path:
    """A project whose model has no finite loss for the samples that `fails` says."""
    project = shutil.copytree(render(**answers), folder / "project")
    with open(project / "src/my_training/model.py", "a") as model:
        model.write(FAILING.format(fails=fails))
    return project


@pytest.mark.parametrize("loader", ["dataloader", "memmap", "chunk"])
@pytest.mark.parametrize("workload", ["tabular", "timeseries", "llm", "graph", "windows"])
@pytest.mark.cover(1)
def test_a_model_that_fails_for_most_samples_blames_none_of_them(workload, loader, tmp_path):
    project = failing(tmp_path, 'batch["index"] % 8 != 0', workload=workload, loader=loader)
    refused = run(project, "train", *SHORT, cwd=tmp_path)
    line = one_error(refused, "loss of step 1 is not finite", "of 1?\\d other", "model.py, forward")
    assert "training sample" not in line
    assert "learning_rate" not in line, "no step has changed the weights before the first loss"


def test_a_model_that_fails_for_few_samples_names_one_of_them_and_itself(tmp_path):
    project = failing(tmp_path, 'batch["index"] % 8 == 0', workload="tabular")
    refused = run(project, "train", *SHORT, cwd=tmp_path)
    line = one_error(refused, r"training sample \d+: fix that sample, .*, or forward in model.py$")
    assert int(line.partition("training sample ")[2].partition(":")[0]) % 8 == 0


def test_too_many_layers_blame_no_sample(tmp_path):
    words = (*SHORT, "--model.depth", "700", "--model.width", "8")
    refused = run(render(workload="tabular"), "train", *words, cwd=tmp_path)
    assert "training sample" not in one_error(refused, "model.py, forward: .*too many layers$")
