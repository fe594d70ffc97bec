"""`settings.py` belongs to the owner: only the workload changes it, and every edit of it counts."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from importing import catalogue_of, imported
from rendering import render, replace
from variants import choices, extras

every_workload = pytest.mark.parametrize("workload", choices("workload"))


def settings_file(project):
    return project / "src/my_training/settings.py"


def everything(workload):
    """A project with all answers that add settings."""
    fp8 = {"precision": "fp8"} if workload in ("llm", "seq2seq") else {}
    return render(workload=workload, extras=extras(workload), tracker="wandb", **fp8)


@every_workload
def test_no_answer_but_the_workload_changes_the_file(workload):
    plain = settings_file(render(workload=workload, loader="chunk")).read_bytes()
    assert plain == settings_file(everything(workload)).read_bytes()


def test_optimizer_and_schedule_are_the_same_in_all_workloads():
    """Each workload has a file that is whole; what the files share must not drift apart.

    Apart from the text of the learning rate, the final rate of `forecast`, and what `vision` has.
    """
    classes = set()
    for workload in choices("workload"):
        source = settings_file(render(workload=workload)).read_text(encoding="utf-8")
        text = source[source.index("class Optimizer(") : source.index("class Evaluation(")]
        text = text.replace('UpToOne | Auto = "auto"', "UpToOne = 1e-3")
        text = text.replace("weight_decay: Factor = 0.05", "weight_decay: Factor = 0.01")
        rate = text.index('"""', text.index("learning_rate: "))
        text = text[:rate] + text[text.index('"""', rate + 3) :]
        final = "final_factor: Factor = "
        classes.add(text.replace(f"{final}0.0\n", f"{final}0.1\n"))
    assert len(classes) == 1


@every_workload
def test_what_an_owner_adds_is_in_help_and_configuration_whatever_the_answers(
    workload, tmp_path, monkeypatch, capsys
):
    """A field in three sections, and a choice next to those of extras."""
    project = Path(shutil.copytree(everything(workload), tmp_path / "project"))
    file = settings_file(project)
    choice = 'name: OptimizerName | Literal["sgd"] = "adamw"\n    """Any of them."""'
    replace(file, 'name: OptimizerName = "adamw"', f"{choice}\n\n{field('momentum')}")
    for section, base in (("Data", "EngineData"), ("Model", "Section")):
        found = re.search(
            rf'class {section}\({base}\):\n    """.*?"""\n', file.read_text(), re.DOTALL
        )
        replace(file, found[0], f"{found[0]}\n{field(section.lower())}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINING_ROOT", str(tmp_path))
    main: Any = imported(project, "__main__").main

    assert main(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for key in ("data.of_data", "model.of_model", "optimizer.of_momentum"):
        name = key.partition("_")[2]
        assert f"--{key} VALUE Mine, {name}. (default: 0.5)" in text
        assert catalogue_of(project)[key].default == 0.5
    for name in ("sgd", "muon", "adafactor"):
        assert main(["train", "--print-config", "--optimizer.name", name]) == 0
    assert main(["train", "--print-config", "--optimizer.name", "lion"]) == 2
    assert "or Input should be 'sgd'" in capsys.readouterr().err


def field(name):
    return f'    of_{name}: UpToOne = 0.5\n    """Mine, {name}."""\n'
