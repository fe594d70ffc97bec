"""Settings: what files, environment and flags give, config.yaml, help, and sections of hooks."""

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import reference
import write_config
import yaml
from importing import imported
from rendering import render
from variants import products

PROJECT = render()
FINETUNED = render(extras=["finetune"])
config = imported(PROJECT, "config")
main = imported(PROJECT, "__main__")
errors = imported(PROJECT, "engine.errors")

HEAVY = "torch", "numpy", "h5py", "matplotlib", "safetensors", "lightning", "accelerate"
NAMES = {key: name for name, key in config.ENVIRONMENT.items() if name not in config.SWITCHES}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder and an environment without any of our names."""
    monkeypatch.chdir(tmp_path)
    for name in config.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(content: str | bytes, name: str = "config.yaml") -> Path:
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
        assert len(lines) == len(case["errors"]), lines
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
    ("words", "parts"),
    [
        ([], ("unknown command ''", "train")),
        (["trian"], ("'trian'", "choose one of")),
        (["--config", "x"], ("'--config'", "choose one of")),
        (["report", "--data.path", "x", "a", "b"], ("'b'", "command line")),
    ],
)
def test_a_wrong_command_is_one_line(words, parts, capsys):
    assert main.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts)


# ---- which source wins -------------------------------------------------------------------------


def accepted(key: str) -> list[str]:
    """Two values that the setting takes, as text; one that is not the default comes first."""
    setting = config.SETTINGS[key]
    if setting.annotation is str and key != "data.order":
        return ["here", "there"]
    words = [
        *re.split(r", | or ", reference.allowed(setting.annotation, setting.metadata)),
        "true",
        "false",
        "1",
        "2",
        "3",
        "0.5",
        "0.25",
        "[a]",
    ]
    values: dict[object, str] = {}
    for word in words:
        with contextlib.suppress(errors.UserErrors):
            values.setdefault(config.load(overrides=[(key, word)]).value(key), word)
    return sorted(values.values(), key=lambda word: values.get(setting.default) == word)[:2]


@pytest.mark.parametrize("key", config.SETTINGS)
def test_the_stronger_source_wins_for_every_setting(key):
    strong, weak = accepted(key)
    name = NAMES.get(key, "SEED")
    sources = ["config.yaml", "config.yaml profile fast", f"${name}", f"--{key}"]
    if key not in NAMES:
        sources.remove(f"${name}")

    def load(given):
        file, profile, variable, flag = (
            given.get(source) for source in (*sources[:2], f"${name}", f"--{key}")
        )
        lines = [f"{key}: {file}"] if file else []
        lines.append(f"profiles: {{fast: {{{f'{key}: {profile}' if profile else ''}}}}}")
        flags = [(key, flag)] if flag else []
        return config.load(
            write("\n".join(lines)), "fast" if profile else None, flags, {name: variable or ""}
        )

    expected = config.load(overrides=[(key, strong)]).value(key)
    assert load({sources[-2]: ""}).origins[key] == "default"
    for weaker, stronger in itertools.combinations([*sources[:1], *sources], 2):
        both = load({weaker: weak, stronger: strong})
        assert (both.value(key), both.origins[key]) == (expected, stronger)
    assert config.load(write(both.to_yaml())).value(key) == expected


@pytest.mark.parametrize("text", ["2024", "1e3", "Daten – Ä/ü ö", "no", "a # b", "[x", "~", "null"])
def test_a_text_is_written_and_read_as_it_is(text):
    settings = config.load(overrides=[("data.path", text)])
    assert settings.data.path == text
    assert config.load(write(settings.to_yaml())).data.path == text


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


VARIED = "optimizer.learning_rate", "model.dropout", "training.max_steps", "finetune.freeze"


def phases_of(
    text: str, *flags: tuple[str, str], only: int | None = None, minutes: float | None = None
) -> Any:
    """The phases of a file, as `train` finds them."""
    load = functools.partial(
        imported(FINETUNED, "config").load, write(text), None, flags, {"SEED": "3"}
    )
    group = imported(FINETUNED, "engine.compute.distributed").Distributed()
    phases = imported(FINETUNED, "hooks.phases").Phases

    def between(layers: object) -> object:
        return load(between=layers)

    arguments = types.SimpleNamespace(phase=only, minutes=minutes)
    return phases(load(), between, group, arguments)


def test_phases_stand_between_file_and_environment():
    phases = phases_of(PHASES, ("model.dropout", "0.2"))
    settings = phases.settings
    assert [phase.optimizer.learning_rate for phase in settings] == [0.1, 0.01]
    assert [phase.training.max_steps for phase in settings] == [5, 7]
    assert [phase.training.precision for phase in settings] == ["fp32", "auto"]
    assert [phase.finetune.freeze for phase in settings] == [("a",), ()]
    assert [phase.model.dropout for phase in settings] == [0.2, 0.2]
    assert [phase.reproducibility.seed for phase in settings] == [3, 3]
    assert settings[0].origins["optimizer.learning_rate"] == "config.yaml phase 1"
    again = phases_of(phases.whole.to_yaml()).settings
    assert [phase.value(key) for phase in again for key in VARIED] == [
        phase.value(key) for phase in settings for key in VARIED
    ]


@pytest.mark.parametrize("text", ["[embedding.*, '*.bias']", "embedding.*, *.bias"])
def test_a_list_is_one_in_files_and_flags(text):
    load = imported(FINETUNED, "config").load
    expected = ("embedding.*", "*.bias")
    flags = [("finetune.freeze", text.replace("'", ""))]
    assert load(overrides=flags).finetune.freeze == expected
    if text.startswith("["):
        assert load(write(f"finetune.freeze: {text}")).finetune.freeze == expected
    wrong = imported(FINETUNED, "engine.errors").UserError
    with pytest.raises(wrong, match="did you mean 'finetune"):
        load(write("finetune.freeze: {a: 1}"))


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
            phases_of("finetune.phases: [{}]", only=number)
    with pytest.raises(wrong, match="each phase has its own number of steps: --minutes"):
        phases_of("finetune.phases: [{}]", minutes=1)


@pytest.mark.parametrize("profile", [None, "fast"])
def test_a_run_can_be_loaded_from_its_resolved_settings(profile):
    file = write("profiles: {fast: {data.batch_size: 7, compile: {enabled: false}}}\n")
    flags = [("model.dropout", "0.2"), ("optimizer.epsilon", "1e-12"), ("data.path", "a b")]
    settings = config.load(file, profile, flags, {"SEED": "9"})
    again = config.load(write(settings.to_yaml(), "config.resolved.yaml"))
    assert again.model_dump() == settings.model_dump()
    assert set(again.origins.values()) == {"config.resolved.yaml"}


# ---- the rendered config.yaml ------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    [*products("workload", "loader"), {"workload": "llm", "precision": "fp8"}],
    ids=lambda answers: "-".join(answers.values()),
)
def test_config_yaml_has_each_setting_with_its_default_and_says_what_it_is_for(answers):
    project = render(**answers)
    module = imported(project, "config")
    defaults = module.load()
    settings = module.load(project / "config.yaml")
    assert {key: settings.value(key) for key in module.SETTINGS} == {
        **{key: defaults.value(key) for key in module.SETTINGS},
        "training.precision": answers.get("precision", "auto"),
    }
    assert "default" not in settings.origins.values()
    assert all(setting.description for setting in module.SETTINGS.values())
    assert list(settings.profiles) == ["unoptimized", "speed", "low_memory", "deterministic"]
    for profile in settings.profiles:
        module.load(project / "config.yaml", profile)


def test_config_yaml_is_written_from_the_schema():
    assert write_config.FILE.read_text(encoding="utf-8") == write_config.written()


def test_the_example_phase_in_config_yaml_works():
    text = (FINETUNED / "config.yaml").read_text(encoding="utf-8")
    (example,) = re.findall(r"(\[\{[^]]+\}\])", " ".join(text.replace("#", " ").split()))
    (phase,) = phases_of(f"finetune: {{phases: {example}}}").settings
    assert phase.origins["optimizer.learning_rate"] == "config.yaml phase 1"


# ---- what commands and hooks declare -----------------------------------------------------------

HOOK = '''
from pydantic import Field

from ..engine.settings.config import Section


class Look(Section):
    """How often somebody looks."""

    every_seconds: float = Field(10.0, ge=0)
    """Seconds between two looks."""

    limit: int | None = None
    """Most looks. null: no limit."""


class Hook:
    def start(self, run):
        import torch


def report_lines(folder: "Path"):
    return ["seen"]
'''
HEAVY_HOOK = "import torch\n\n\nclass Hook:\n    pass\n"  # which no help imports


@pytest.fixture(scope="module")
def hooked(tmp_path_factory):
    """A project with hooks of its own."""
    project = shutil.copytree(PROJECT, tmp_path_factory.mktemp("hooked") / "project")
    package = project / "src/my_training"
    (package / "hooks/look.py").write_text(HOOK)
    (package / "hooks/heavy.py").write_text(HEAVY_HOOK)
    text = (package / "config.py").read_text()
    text = text.replace(
        "from .settings import", "from .hooks.look import Look\nfrom .settings import"
    )
    text = text.replace("    schedule: Schedule\n", "    schedule: Schedule\n    look: Look\n")
    (package / "config.py").write_text(text)
    return project


def test_a_section_of_a_hook_is_a_section_like_any_other(hooked, capsys):
    module = imported(hooked, "config")
    command = imported(hooked, "__main__")
    own = [key for key in module.SETTINGS if key not in config.SETTINGS]
    assert own == ["look.every_seconds", "look.limit"]
    for text in ("null", "", "5"):
        limit = module.load(overrides=[("look.limit", text)])
        assert module.load(write(limit.to_yaml())).value("look.limit") == (
            5 if text == "5" else None
        )
    assert command.main(["train", "--help"]) == 0
    assert "Seconds between two looks." in " ".join(capsys.readouterr().out.split())
    write("look: {every_seconds: 3}")
    assert module.load(Path("config.yaml")).value("look.every_seconds") == 3
    assert command.main(["train", "--look.every_seconds", "-1"]) == 2
    line = "look.every_seconds cannot be '-1': --look.every_seconds: Input should be greater than"
    assert capsys.readouterr().err.startswith(f"error: {line}")


def test_hooks_are_found_by_what_they_define(hooked):
    plugins = imported(hooked, "engine.plugins")
    names = [module.__name__.rpartition(".")[2] for module in plugins.discover("hooks", "Hook")]
    assert names == ["alerts", "examples", "heavy", "look"]
    pages = [page.report_lines(Path("run")) for page in plugins.discover("hooks", "report_lines")]
    assert ["seen"] in pages


def test_a_command_that_is_slow_to_import_is_named(hooked, capsys):
    slow = hooked / "src/my_training/commands/slow.py"
    slow.write_text(
        "'''Wait.'''\nimport time\nend = time.process_time() + 1.1\n"
        "while time.process_time() < end:\n    pass\n"
    )
    try:
        assert imported(hooked, "__main__").main(["--help"]) == 0
    finally:
        slow.unlink()
    output = capsys.readouterr()
    assert re.search(r"^  slow +Wait\.$", output.out, re.MULTILINE)
    assert "commands/slow.py takes 1." in output.err


def test_settings_of_a_part_that_was_taken_away(hooked, capsys):
    """A run goes on without them; a configuration or a flag that names them is an error."""
    profiles = "profiles: {fast: {look: {every_seconds: 1}}}"
    file = write(f"monitor.every_steps: 7\n{profiles}")
    settings = imported(hooked, "config").load(file)
    run = write(settings.to_yaml() + "engine.of: 1\n", "config.resolved.yaml")
    again = config.load(run, "fast", resolved=True)
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == ["look.every_seconds", "look.limit", "engine.of"]
    assert again.monitor.every_steps == 7
    with pytest.raises(errors.UserErrors) as raised:
        config.load(run)
    assert len(raised.value.errors) == 4


# ---- the command line --------------------------------------------------------------------------


def use(monkeypatch, run) -> None:
    """Let this function be the command `train`."""

    def arguments(parser):
        parser.add_argument("--own-flag")

    fake = types.SimpleNamespace(__doc__="Fake.", arguments=arguments, run=run)
    monkeypatch.setattr(main, "import_module", lambda *_: fake)


def test_help_has_every_setting_with_meaning_default_and_environment_name(monkeypatch, capsys):
    monkeypatch.setenv("TRAINING_ROOT", str(PROJECT))
    monkeypatch.setenv("COLUMNS", "1000")
    assert main.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for key in config.SETTINGS:
        setting = config.SETTINGS[key]
        (shown,) = re.findall(rf"^  --{re.escape(key)} VALUE\s+(.+)$", text, flags=re.MULTILINE)
        assert shown.startswith(" ".join(setting.description.split()))
        assert f"default: {json.dumps(setting.default)}" in shown
        variables = [name for name, target in config.ENVIRONMENT.items() if target == key]
        assert all(f"${name}" in shown for name in variables)
    assert main.main(["evaluate", "--help"]) == 0
    assert "--data.path" not in capsys.readouterr().out


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
sys.exit(main(["train", "--lr", "1"]))
"""
    known = {name: text for name, text in os.environ.items() if name not in config.ENVIRONMENT}
    known |= {"PYTHONPATH": str(hooked / "src"), "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1 + 2 + 1 + 2, result.stderr
    assert {*commands} >= {"train", "evaluate", "prepare", "report", "doctor"}
    assert all(re.search(rf"^  {name} +\w", result.stdout, re.MULTILINE) for name in commands)


def test_debug_shows_the_traceback():
    with pytest.raises(errors.UserErrors, match=r"data\.pth"):
        main.main(["train", "--debug", "--data.pth", "x"])


@pytest.mark.parametrize(
    ("result", "code"), [(None, 0), (0, 0), (143, 143), (KeyboardInterrupt(), 130)]
)
def test_exit_codes_of_a_command(result, code, monkeypatch):
    def run(arguments, load):
        assert load().data.path == "x y"
        assert arguments.own_flag == "1.5"
        if isinstance(result, BaseException):
            raise result
        return result

    use(monkeypatch, run)
    assert main.main(["train", "--data.path=x y", "--own-flag=1.5"]) == code
