"""Flags, files and settings that were a traceback, a crash or nothing at all: one line each."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import split

import pytest
from rendering import REPOSITORY, render, replace
from running import (
    check_run,
    evaluation_of,
    losses,
    newest_run,
    one_error,
    report_of,
    run,
    start,
)

TABULAR = render(
    workload="tabular",
    extras=["check", "compare", "ema", "estimate", "export", "finetune", "watch"],
)

# ---- YAML that no configuration needs


def bounded() -> None:
    """For `before=`: a process that may take a GB more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))


def exploding(levels: int = 12) -> str:
    """A mapping whose aliases stand for 10 ** levels values."""
    lines = [f"l0: &l0 [{', '.join('1' * 10)}]"]
    for level in range(1, levels):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]")
    return "{" + ", ".join(lines) + "}"


NESTED = "[" * 10_000 + "]" * 10_000
HOSTILE = {
    "aliases in a profile": (f"profiles: {{a: {exploding()}}}", "unknown setting 'l0'"),
    "an alias of itself": ("profiles: {a: &a {b: *a}}", "unknown setting 'b.b'"),
    "aliases that nest": (
        "profiles: {a: [&a0 [[[[[[1]]]]]], &a1 [[[[[[*a0]]]]]], &a2 [[[[[[*a1]]]]]], [*a2]]}",
        "profiles cannot be .*valid dictionary",
    ),
    "brackets": (f"profiles: {NESTED}", "recursion|nesting depth"),
    "blocks": (
        "profiles:\n" + "".join(" " * n + "-\n" for n in range(1, 400)),
        "profiles cannot be .*valid dictionary|recursion|nesting depth",
    ),
    "many values": ("finetune.phases: [" + "1, " * 20_000 + "]", "finetune.phases cannot be "),
    "a long number": ("training: {epochs: 0x" + "f" * 5_000 + "}", "an integer"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_yaml_beyond_every_configuration_is_refused_at_once(kind, tmp_path):
    text, pattern = HOSTILE[kind]
    (tmp_path / "mine.yaml").write_text(text)
    words = ("train", "--config", "mine.yaml", "--print-config")
    refused = start(TABULAR, *words, cwd=tmp_path, before=bounded).wait(seconds=60)
    assert refused.code == 2
    lines = refused.errors()
    assert len(lines) < 20
    assert all("mine.yaml" in line and len(line) < 300 for line in lines)
    assert re.search(pattern, lines[0])


@pytest.mark.parametrize(
    "words", [("--training.epochs", NESTED), ("--data.fraction=0x" + "f" * 5_000,)]
)
def test_the_same_in_a_flag(words, tmp_path):
    refused = start(TABULAR, "train", *words, cwd=tmp_path, before=bounded).wait(seconds=60)
    assert len(one_error(refused, words[0].partition("=")[0], " cannot be ")) < 300


def test_files_of_a_run_and_of_the_project_are_read_in_the_same_way(tmp_path):
    run_folder = tmp_path / "runs/a"
    run_folder.mkdir(parents=True)
    (run_folder / "config.resolved.yaml").write_text(f"estimate: {NESTED}")
    (tmp_path / ".copier-answers.yml").write_text(NESTED)
    for words in (("evaluate",), ("machine",)):
        one_error(run(TABULAR, *words, cwd=tmp_path), "as YAML")
    for words in (("report",), ("compare",)):  # of a run with damaged settings, too
        check_run(TABULAR, *words, cwd=tmp_path)


# ---- flags that were ignored

SHORT = split("--training.max_steps 4 --monitor.every_steps 1 --model.width 16")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with a run `a` that stopped at step 2 of 4, and configurations."""
    folder = tmp_path_factory.mktemp("stopped")
    check_run(TABULAR, "train", *SHORT, "--name", "a", "--max-steps", "2", cwd=folder)
    (folder / "rows.csv").write_text("a,b\n" + "".join(f"{n},{n * 2}\n" for n in range(40)))
    (folder / "other.yaml").write_text("model: {width: 8}\n")
    return folder


LONG = "x" * 5_000
REFUSED = {
    "train --resume a --name b": "a resumed run keeps its name and its steps: --name: remove it",
    "train --phase 2 --name b": "a resumed run keeps its name",
    "train --resume a --config other.yaml": "a run keeps its settings: --config other.yaml",
    "evaluate --run a --config other.yaml": "a run keeps its settings: --config other.yaml",
    "train --phase 0": "there is no phase 0: --phase",
    "train --phase -1": "there is no phase -1: --phase",
    "train --name=-x": r"run name '-x' is not a plain folder name: --name: use letters",
    "train --name a\nb": r"run name 'a\\nb' is not",
    f"train --name {LONG}": "is not a plain folder name",
}


@pytest.mark.parametrize("words", REFUSED)
def test_flags_that_cannot_be_followed_are_refused_and_leave_nothing(words, stopped):
    before = sorted(stopped.rglob("*"))
    refused = run(TABULAR, *words.split(" "), cwd=stopped)
    assert len(one_error(refused, REFUSED[words])) < 300
    assert sorted(stopped.rglob("*")) == before


def test_the_printed_command_resumes_a_run_with_any_name(tmp_path):
    words = ("--name", "eine große Sache", "--max-steps", "2")
    done = check_run(TABULAR, "train", *SHORT, *words, cwd=tmp_path)
    command = re.findall("`(train --resume .+)`", done.out)[-1]
    assert "at step 4 of 4" in check_run(TABULAR, *split(command), cwd=tmp_path).out


# ---- paths that are too long for the system

PATHS = [
    f"train --config {LONG}",
    f"train --resume {LONG}",
    f"train --finetune.init_from {LONG}",
    f"train --data.path {LONG}",
    f"evaluate --run {LONG}",
    f"report {LONG}",
    f"compare {LONG} a",
    f"predict --input {LONG}",
    f"predict --input {LONG}.csv",
    f"predict --output {LONG}.csv",
    f"predict --output {LONG}/a.csv",
    f"prepare --target b --task regression --input {LONG}",
    f"prepare --target b --task regression --input {LONG}.csv",
    f"prepare --target b --task regression --input rows.csv --data.path {LONG}",
    f"export --output {LONG}",
    f"doctor --config {LONG}",
]


@pytest.mark.parametrize("words", PATHS)
def test_a_path_of_5000_characters_is_one_line(words, stopped):
    before = sorted(stopped.rglob("*"))
    said = "[Nn]ame too long|no run|does not exist|no such file"
    one_error(run(TABULAR, *words.split(), cwd=stopped), said)
    assert sorted(stopped.rglob("*")) == before


def test_a_folder_of_the_environment_with_5000_characters_is_one_line(tmp_path):
    def place() -> None:
        os.environ["TRAINING_ROOT"] = LONG

    one_error(run(TABULAR, "report", cwd=tmp_path, before=place), "TRAINING_ROOT|name too long")


# ---- flags that are given twice, or that another program takes


def test_each_of_a_repeated_flag_counts_where_it_is_a_list(tmp_path):
    words = ("--gpu", "h100", "--gpu", "t4", "--price", "h100=2", "--price", "t4=1", "--json")
    cards = json.loads(check_run(TABULAR, "estimate", *words, cwd=tmp_path).out)
    prices = {card["card"]: card["epoch_price"] for card in cards}
    assert prices.keys() >= {"h100", "t4"}
    assert all(prices[name] > 0 for name in ("h100", "t4"))


@pytest.mark.parametrize("spelling", ["--run-name a", "--run_name=a"])
@pytest.mark.full
def test_torchrun_evaluates_the_run_that_is_named(spelling, stopped):
    evaluated_by_torchrun(spelling, stopped)


def test_the_flag_of_the_guide_passes_through_torchrun(stopped):
    page = (REPOSITORY / "docs/several-gpus.md").read_text()
    (spelling,) = re.findall(r"^torchrun .*-m my_training evaluate (.+) NAME", page, re.MULTILINE)
    evaluated_by_torchrun(f"{spelling} a", stopped)


def evaluated_by_torchrun(flags: str, folder: Path) -> None:
    launcher = "-m torch.distributed.run --standalone --nproc_per_node=1 -m my_training evaluate"
    command = [sys.executable, *split(launcher), *flags.split()]
    environment = {**os.environ, "PYTHONPATH": str(TABULAR / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "runs/a: test split" in done.stdout


def test_evaluate_names_the_weights(stopped):
    for weights in ("trained", "averaged"):
        said = check_run(TABULAR, "evaluate", "--weights", weights, cwd=stopped).out
        assert f"checkpoint of step 2, {weights} weights" in said
        assert evaluation_of(stopped)["weights"] == weights
    check_run(TABULAR, "report", cwd=stopped)
    assert "at step 2, averaged weights" in report_of(stopped)


def test_a_report_asks_for_its_parts_by_a_name_of_their_own(stopped, tmp_path):
    """And takes no other function for one, whatever its name and parameters are."""
    project = shutil.copytree(TABULAR, tmp_path / "project")
    for folder in ("hooks", "commands"):
        path = project / f"src/my_training/{folder}/mine.py"
        lines = f'def report_lines(run):\n    return [f"{folder} of {{run.name}}"]\n'
        path.write_text(f"{lines}\n\ndef report(run):\n    return ['something else']\n")
    shutil.copytree(stopped / "runs", tmp_path / "runs")
    check_run(project, "report", cwd=tmp_path)
    assert "\nhooks of a\n\ncommands of a\n" in report_of(tmp_path)
    assert "something else" not in report_of(tmp_path)


# ---- settings that were left as they are, or left out of a line


def test_without_optimizations_the_graphs_are_built_again_with_the_same_losses(tmp_path):
    project = render(workload="graph")
    curves = []
    for number, words in enumerate(((), ("--graph_builder.use_in_training", "false"))):
        folder = tmp_path / str(number)
        words = ("train", "--no-optimize", *words, *split("--training.max_steps 3"))
        check_run(project, *words, *split("--monitor.every_steps 1"), cwd=folder)
        settings = (newest_run(folder) / "config.resolved.yaml").read_text()
        assert ("graph_builder.use_in_training: true " in settings) == (number == 0)
        curves.append(losses(folder))
    assert curves[0] == curves[1]


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_a_compile_mode_with_cuda_graphs_is_refused_with_the_modes_that_accumulate(mode, tmp_path):
    words = f"--compile.enabled true --compile.mode {mode} --training.gradient_accumulation_steps 2"
    done = run(TABULAR, "doctor", *words.split(), cwd=tmp_path)
    if mode.endswith("no-cudagraphs"):
        assert done.code == 0, done.err
    else:
        one_error(done, "set compile.mode to default or max-autotune-no-cudagraphs, or ")


def test_watch_says_once_that_it_sees_no_gpu(tmp_path):
    phases = "finetune.phases: [{training.max_steps: 2}, {training.max_steps: 2}]"
    (tmp_path / "config.yaml").write_text(f"model: {{width: 16}}\n{phases}\n")
    said = check_run(TABULAR, "train", cwd=tmp_path).out
    assert said.count("note: watch samples no GPU: ") == 1
    off = check_run(TABULAR, "train", "--watch.every_seconds", "0", cwd=tmp_path)
    assert "watch samples" not in off.out


def test_a_run_records_the_commit_of_its_project(tmp_path):
    def git(*words: str) -> str:
        person = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
        command = ["git", *person, *words]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    (tmp_path / "config.yaml").write_text("training: {max_steps: 1}\n")
    (tmp_path / ".gitignore").write_text("runs/\ndata/\n.out\n.err\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "work")
    git("tag", "v1")
    commit = git("rev-parse", "--short=7", "HEAD").strip()
    for state in (commit, f"{commit}+changes"):
        check_run(TABULAR, "train", cwd=tmp_path)
        environment = json.loads((newest_run(tmp_path) / "env.json").read_text())
        assert environment["git"] == state
        (tmp_path / "config.yaml").write_text("training: {max_steps: 2}\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--training.max_steps 8", "schedule was cosine over .* over 8 steps now: .*: restore"),
        ("--schedule.name linear", "schedule was cosine over .* is linear over"),
        ("--data.batch_size 4", "samples a step was .* and is 4 now"),
        (
            "--finetune.init_from b",
            "cannot change finetune.init_from from '' to 'b': .*: keep",
        ),
    ],
)
def test_a_resume_that_is_refused_names_what_differs(words, expected, stopped):
    refused = run(TABULAR, "train", "--resume", "a", *split(words), cwd=stopped)
    one_error(refused, expected)


IMPORTS = {
    "import einops": "einops cannot be loaded: .*: `make setup` installs it if pyproject.toml lists it",
    "from einops.layers import torch": "einops cannot be loaded",
    "from torch import nope": "torch cannot be loaded: cannot import name 'nope'",
    "import torch.nope": "torch.nope cannot be loaded",
    "import tiktoken_next": "tiktoken_next cannot be loaded",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_an_import_that_fails_in_a_model_says_what_installs_it(line, tmp_path):
    project = shutil.copytree(TABULAR, tmp_path / "project")
    model = project / "src/my_training/model.py"
    replace(model, "\nimport torch\n", f"\n{line}\nimport torch\n")
    one_error(run(project, "train", cwd=tmp_path), IMPORTS[line])


def test_a_library_of_one_s_own_is_installed_by_make_setup_once_pyproject_names_it(tmp_path):
    project = shutil.copytree(TABULAR, tmp_path / "project")
    replace(
        project / "src/my_training/model.py",
        "\nimport torch\n",
        "\nimport einops_x\nimport torch\n",
    )
    replace(project / "pyproject.toml", '\n  "tqdm', '\n  "einops-x>=1",\n  "tqdm')

    def leave_root() -> None:
        del os.environ["TRAINING_ROOT"]

    one_error(run(project, "train", cwd=project, before=leave_root), "`make setup` installs it")
