"""Settings: what files, environment and flags give, config.yaml, help, and sections of hooks."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import reference
import write_config
import yaml
from importing import catalogue_of, imported
from rendering import render, replace
from variants import products

PROJECT = render()
FINETUNED = render(extras=["finetune"])
Settings = imported(PROJECT, "settings").Settings
SETTINGS = catalogue_of(PROJECT)
ENVIRONMENT = imported(PROJECT, "engine.sources").ENVIRONMENT
main = imported(PROJECT, "__main__")
errors = imported(PROJECT, "engine.errors")

HEAVY = "torch", "numpy", "h5py", "matplotlib", "safetensors", "lightning", "accelerate"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder and an environment without any of our names."""
    monkeypatch.chdir(tmp_path)
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(content, name="config.yaml"):
    path = Path(name)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


CASES = yaml.safe_load(Path(__file__).with_name("settings.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_what_files_environment_and_flags_give(case, folder, monkeypatch, capsys):
    """A value and its origin, or one line for each error and nothing else."""
    if "file" in case:
        write(case["file"])
    for variable in case.get("environment", "").split():
        monkeypatch.setenv(*variable.split("=", 1))
    before = list(folder.iterdir())
    errors.note.cache_clear()
    main = imported(render(loader=case.get("loader", "memmap")), "__main__")
    code = main.main(["train", "--print-config", *case.get("flags", "").split()])
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert list(folder.iterdir()) == before
    if "errors" in case:
        assert (code, output.out) == (2, "")
        for line, start in zip(lines, case["errors"], strict=True):
            assert line.startswith(f"error: {start}")
        return
    for key, value in yaml.safe_load(output.out).items():
        (line,) = re.findall(rf"^{key}: .*$", output.out, re.MULTILINE)
        lines.append(f"{key} = {value} # {line.rpartition('# ')[2]}")
    assert code == 0
    for start in case["says"]:
        assert [line for line in lines if line.startswith(start)], lines


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trian"], "'trian'.*choose one of"),
        (["--config", "x"], "'--config'.*choose one of"),
        (["report", "--data.path", "x", "a", "b"], "'b'.*command line"),
    ],
)
def test_a_wrong_command_is_one_line(words, line, capsys):
    assert main.main(words) == 2
    assert re.fullmatch(f"error: .*{line}.*\n", capsys.readouterr().err)


def test_no_command_lists_the_commands(capsys):
    assert main.main([]) == 2
    assert re.search(r"^  evaluate +\w", capsys.readouterr().out, re.MULTILINE)


# ---- what is written is read as it is ----------------------------------------------------------

TEXTS = ("2024", "1e3", "Daten – Ä/ü ö", "no", "a # b", "[x", "~", "null")
WORDS = ("true", "false", "1", "2", "3", "0.5", "0.25", "[a]", *TEXTS)


@pytest.mark.parametrize("key", SETTINGS)
def test_what_a_run_writes_of_a_setting_is_what_it_reads_back(key):
    setting = SETTINGS[key]
    choices = re.split(", | or ", reference.allowed(setting.annotation, setting.metadata))
    values = set()
    for word in (*choices, *WORDS):
        try:
            settings = Settings.load(overrides=[(key, word)])
        except errors.UserErrors:
            continue
        again = Settings.load(write(settings.to_yaml()))
        assert (again.value(key), again.origins[key]) == (settings.value(key), "config.yaml")
        values.add(again.value(key))
    assert values - {setting.default}


# ---- phases, runs ------------------------------------------------------------------------------

PHASES = """
optimizer: {learning_rate: 0.01}
finetune.phases:
  - optimizer: {learning_rate: 0.1}
    model.dropout: 0.3
    training: {precision: fp32}
    finetune.freeze: [a]
    training.max_steps: 5
  - training.max_steps: 7
"""


def phases_of(text, *flags, **arguments):
    """The phases of a file, as `train` finds them."""
    load = functools.partial(
        imported(FINETUNED, "settings").Settings.load, write(text), None, flags, {"SEED": "3"}
    )
    group = imported(FINETUNED, "engine.compute.distributed").Distributed()
    phases = imported(FINETUNED, "hooks.phases").Phases
    given = types.SimpleNamespace(**{"phase": None, "minutes": None} | arguments)
    return phases(load(), False, group, given)


def test_phases_stand_between_file_and_environment():
    varied = {
        "optimizer.learning_rate": [0.1, 0.01],
        "training.max_steps": [5, 7],
        "training.precision": ["fp32", "auto"],
        "finetune.freeze": [("a",), ()],
        "model.dropout": [0.2, 0.2],
        "reproducibility.seed": [3, 3],
    }
    phases = phases_of(PHASES, ("model.dropout", "0.2"))
    assert phases.settings[0].origins["optimizer.learning_rate"] == "config.yaml phase 1"
    for settings in (phases.settings, phases_of(phases.whole.to_yaml()).settings):
        for key, values in varied.items():
            assert [phase.value(key) for phase in settings] == values


def test_a_list_is_one_in_files_and_flags():
    load = imported(FINETUNED, "settings").Settings.load
    phases = load(overrides=[("finetune.phases", "[{training.max_steps: 5}, {}]")]).finetune.phases
    assert phases == ({"training.max_steps": "5"}, {})
    file = write("finetune.freeze: [embedding.*, '*.bias']")
    for text in ("[embedding.*, *.bias]", "embedding.*, *.bias"):
        flags = [("finetune.freeze", text)]
        assert load(overrides=flags).finetune == load(file).finetune
    wrong = imported(FINETUNED, "engine.errors").UserError
    with pytest.raises(wrong, match="did you mean 'finetune"):
        load(write("finetune.freeze: {a: 1}"))
    with pytest.raises(wrong, match=r"--finetune\.phases: .*no YAML"):
        load(overrides=[("finetune.phases", "[{")])


@pytest.mark.parametrize(
    ("tree", "line"),
    [
        ("{model.dropout: 2}", "model.dropout cannot be '2': config.yaml phase 1: Input should be"),
        ("{model.width: 8}", "a phase cannot change model.width: config.yaml phase 1: set it for"),
    ],
)
def test_wrong_phases_are_one_line(tree, line):
    wrong = imported(FINETUNED, "engine.errors").UserError
    with pytest.raises(wrong, match=line):
        phases_of(f"finetune.phases: [{tree}]")
    for number in (0, 2):
        with pytest.raises(wrong, match=f"no phase {number}: --phase: finetune.phases has 1"):
            phases_of("finetune.phases: [{}]", phase=number)
    with pytest.raises(wrong, match="each phase has its own number of steps: --minutes"):
        phases_of("finetune.phases: [{}]", minutes=1)


# ---- the rendered config.yaml ------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    [*products("workload", "loader"), {"workload": "llm", "precision": "fp8"}],
    ids=lambda answers: "-".join(answers.values()),
)
def test_config_yaml_has_each_setting_with_its_default_and_says_what_it_is_for(answers):
    project = render(**answers)
    load = imported(project, "settings").Settings.load
    catalogue = catalogue_of(project)
    defaults = load()
    settings = load(project / "config.yaml")
    changed = [key for key in catalogue if settings.value(key) != defaults.value(key)]
    assert changed == ["training.precision"] * ("precision" in answers)
    assert "default" not in settings.origins.values()
    assert all(setting.description for setting in catalogue.values())
    assert list(settings.profiles) == ["unoptimized", "speed", "low_memory", "deterministic"]
    for profile in settings.profiles:
        load(project / "config.yaml", profile)


def test_config_yaml_is_written_from_the_schema():
    assert write_config.FILE.read_text(encoding="utf-8") == write_config.written()


# ---- what commands and hooks declare -----------------------------------------------------------

HOOK = '''
from pydantic import Field

from ..engine.settings import Section


class Look(Section):
    """How often somebody looks."""

    every_seconds: float = Field(10.0, ge=0)
    """Seconds between two looks."""

    limit: int | None = None
    """Most looks. null: no limit."""
'''
HEAVY_HOOK = "import torch\n\n\nclass Hook:\n    pass\n"  # which no help imports


@pytest.fixture(scope="module")
def hooked(tmp_path_factory):
    """A project with hooks of its own."""
    project = shutil.copytree(PROJECT, tmp_path_factory.mktemp("hooked") / "project")
    package = project / "src/my_training"
    (package / "hooks/look.py").write_text(HOOK)
    (package / "hooks/heavy.py").write_text(HEAVY_HOOK)
    settings = package / "settings.py"
    replace(settings, "\nWORKLOAD =", "from .hooks.look import Look\n\nWORKLOAD =")
    schedule = "    schedule: Schedule\n"
    replace(settings, schedule, f"{schedule}    look: Look\n")
    return project


def test_a_section_of_a_hook_is_a_section_like_any_other(hooked, capsys):
    load = imported(hooked, "settings").Settings.load
    command = imported(hooked, "__main__")
    for text, value in (("null", None), ("", None), ("5", 5)):
        limit = load(overrides=[("look.limit", text)])
        assert load(write(limit.to_yaml())).value("look.limit") == value
    assert command.main(["train", "--look.every_seconds", "-1"]) == 2
    line = "look.every_seconds cannot be '-1': --look.every_seconds: Input should be greater than"
    assert capsys.readouterr().err.startswith(f"error: {line}")


def test_settings_of_a_part_that_was_taken_away(hooked, capsys):
    """A run goes on without them; a configuration or a flag that names them is an error."""
    profiles = "profiles: {fast: {look: {every_seconds: 1}}}"
    file = write(f"monitor.every_steps: 7\n{profiles}")
    settings = imported(hooked, "settings").Settings.load(file)
    run = write(settings.to_yaml() + "engine.of: 1\n", "config.resolved.yaml")
    again = Settings.load(run, "fast", resolved=True)
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == ["look.every_seconds", "look.limit", "engine.of"]
    assert again.monitor.every_steps == 7
    with pytest.raises(errors.UserErrors) as raised:
        Settings.load(run)
    assert len(raised.value.errors) == 4


# ---- the command line --------------------------------------------------------------------------


def test_help_has_every_setting_with_meaning_default_and_environment_name(monkeypatch, capsys):
    monkeypatch.setenv("TRAINING_ROOT", str(PROJECT))
    monkeypatch.setenv("COLUMNS", "1000")
    assert main.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for key in SETTINGS:
        setting = SETTINGS[key]
        (shown,) = re.findall(rf"^  --{re.escape(key)} VALUE\s+(.+)$", text, flags=re.MULTILINE)
        assert shown.startswith(" ".join(setting.description.split()))
        assert f"default: {json.dumps(setting.default)}" in shown
        variables = [name for name, target in ENVIRONMENT.items() if target == key]
        assert all(f"${name}" in shown for name in variables)


def test_help_and_errors_import_nothing_heavy(hooked):
    """Even where a hook imports torch at its top."""
    write("data: {pth: x}")
    commands = sorted(path.stem for path in (hooked / "src/my_training/commands").glob("[!_]*.py"))
    code = f"""
import sys
from my_training.__main__ import main
codes = [main(["--help"])] + [main([command, "--help"]) for command in {commands}]
codes += [main(["train"]), main(["train", "--print-config", "--lr"]), main(["trian"])]
assert codes == [0] * {len(commands) + 1} + [2, 2, 2], codes
loaded = [name for name in {HEAVY} if name in sys.modules]
assert not loaded, loaded
"""
    known = {name: text for name, text in os.environ.items() if name not in ENVIRONMENT}
    known |= {"PYTHONPATH": str(hooked / "src"), "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(re.search(rf"^  {name} +\w", result.stdout, re.MULTILINE) for name in commands)


def test_debug_shows_the_traceback():
    with pytest.raises(errors.UserErrors, match=r"data\.pth"):
        main.main(["train", "--debug", "--data.pth", "x"])


@pytest.mark.parametrize(
    ("result", "code"), [(None, 0), (0, 0), (143, 143), (KeyboardInterrupt(), 130)]
)
def test_exit_codes_of_a_command(result, code, monkeypatch):
    def command(arguments, load):
        if isinstance(result, BaseException):
            raise result
        return result

    fake = types.SimpleNamespace(__doc__="Fake.", arguments=lambda parser: None, main=command)
    monkeypatch.setattr(main, "import_module", lambda *_: fake)
    assert main.main(["train"]) == code
