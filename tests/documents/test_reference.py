"""docs/reference is what the code says, and has everything that a person can set, call or read."""

import functools
import json
import re
import shlex

import pytest
import reference
import torch
from rendering import REPOSITORY, render
from running import EXAMPLES, check_run, last_checkpoint, newest_run, rows
from sizes import TINY
from variants import SCRIPTS, choices

WORKLOADS = choices("workload")
SNAPSHOT = json.loads(
    (REPOSITORY / "tests/rendering/api_snapshot.json").read_text(encoding="utf-8")
)
SHORT = ("--training.max_steps", "2", "--checkpoint.every_steps", "1")
# With an underscore, as no other constant of these modules, except for names of `os.sysconf`.
VARIABLE = re.compile(r'"(?!SC_)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"')


@functools.cache
def pages():
    return reference.pages()


@pytest.mark.parametrize("name", ["README.md", *reference.PAGES])
def test_pages_are_what_the_code_says(name):
    committed = (reference.FOLDER / name).read_text(encoding="utf-8")
    is_current = committed == pages()[name]
    assert is_current, f"docs/reference/{name} differs from the code: run `{reference.COMMAND}`"


# ---- names: tests/rendering/api_snapshot.json has them independently --------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("config", "settings.md", "# `{}`\n"),
        ("profiles", "settings.md", "\n  {}:\n"),
        ("environment", "environment.md", "| `{}` |"),
        ("commands", "commands.md", "\n## `{}`\n"),
        ("script", "commands.md", "| `--{}"),
        ("questions", "questions.md", "\n## `{}`\n"),
    ],
)
def test_every_public_name_is_in_the_reference(kind, name, text):
    names = set(SNAPSHOT[kind])
    assert [public for public in sorted(names) if text.format(public) not in pages()[name]] == []


def test_every_example_is_understood():
    for command in reference.commands():
        examples = list(reference.examples_of(command))
        assert examples, command
        for workload, words in examples:
            parser = reference.parser(command, workload)
            name, *flags = shlex.split(words)
            assert name == command
            _, unknown = parser.parse_known_args(flags)
            assert unknown == [], words


# ---- environment variables and exit codes -------------------------------------------------------


def test_every_environment_variable_is_in_the_reference():
    projects = [reference.project(*place) for place in reference.PLACES]
    projects += [render(workload=workload, layout="script") for workload in SCRIPTS]
    names: set[str] = set()
    for project in projects:
        for file in project.rglob("*.py"):
            source = file.read_text(encoding="utf-8")
            if "environ" in source:
                names |= set(VARIABLE.findall(source))
    assert {"TRAINING_ROOT", "WORLD_SIZE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI"} <= names
    page = pages()["environment.md"]
    assert sorted(name for name in names if f"`{name}`" not in page) == []


# ---- what runs write ----------------------------------------------------------------------------


def names_of(section, entry, workload, *conditions):
    """The names of reference.yml that a run of a workload has, under these conditions too."""
    names = set()
    for name, described in reference.texts()[section][entry]["keys"].items():
        if isinstance(described, str):
            described = {}
        has_workload = workload in described.get("workloads", WORKLOADS)
        if has_workload and described.get("when") in (None, *conditions):
            names.add(name)
    return names


def keys(records):
    return {name for record in records for name in record}


@pytest.fixture(scope="module", params=WORKLOADS)
def trained(request, tmp_path_factory):
    """A workload, and a folder with a short run of it."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EXAMPLES, "1")
        for words in (("train", *TINY[request.param], *SHORT), ("evaluate",)):
            check_run(render(workload=request.param), *words, cwd=folder)
    return request.param, folder


def test_a_run_has_the_files_and_keys_of_the_reference(trained):
    workload, cwd = trained
    folder = newest_run(cwd)
    names = {path.name for path in folder.iterdir()}
    assert names == names_of("run_folder", "files", workload, "after `evaluate`")

    records = list(rows(cwd))
    training = [record for record in records if "split" not in record]
    evaluations = [record for record in records if "split" in record]
    assert keys(training) == names_of("run_folder", "training", workload)
    conditions = ["classes are predicted"] if workload == "vision" else []
    assert keys(evaluations) == names_of("run_folder", "evaluation", workload, *conditions)

    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    conditions = ("`checkpoint`", "`baseline_loss`")
    assert keys(events) == names_of("run_folder", "events", workload, *conditions)
    described = reference.texts()["run_folder"]["events"]["text"]
    assert {f"`{event['event']}`" for event in events} <= set(re.findall(r"`\w+`", described))

    for entry, file in (("status", "status"), ("env", "env"), ("evaluate", "evaluation")):
        content = json.loads((folder / f"{file}.json").read_text())
        assert content.keys() == names_of("run_folder", entry, workload)
    measured = json.loads((folder / "evaluation.json").read_text())["metrics"]
    of_record = {"step", "split", "samples_per_second", "seconds", "best_by", "time"}
    assert measured.keys() == keys(evaluations) - of_record


def test_a_checkpoint_has_the_keys_of_the_reference(trained):
    workload, cwd = trained
    state = torch.load(last_checkpoint(cwd), weights_only=True)
    assert state.keys() == names_of("checkpoint", "state", workload)
    condition = "order `lanes` or `bucket`" if workload == "seq2seq" else ""
    assert state["must_match"].keys() == names_of("checkpoint", "must_match", workload, condition)
