"""Settings: every error is one line that names its source, and stronger sources win for each
setting."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import write_config
import yaml
from importing import imported
from rendering import render
from variants import products

PROJECT = render()
config = imported(PROJECT, "config")
schema = imported(PROJECT, "engine.settings.config")
sources = imported(PROJECT, "engine.settings.sources")
main = imported(PROJECT, "__main__")
errors = imported(PROJECT, "engine.errors")

HEAVY = "torch", "numpy", "h5py", "matplotlib", "safetensors", "lightning", "accelerate"
NAMES = {key: name for name, key in config.ENVIRONMENT.items() if name not in config.SWITCHES}
KEYS = [key for key in config.SETTINGS if "." in key]


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


def mistakes(*args, **kwargs) -> list[str]:
    with pytest.raises(errors.UserErrors) as raised:
        config.load(*args, **kwargs)
    return str(raised.value).split("\n")


# ---- mistakes ----------------------------------------------------------------------------------

# (config.yaml, what the one line says apart from `config.yaml`)
FILES = [
    ("optimizer: {lr: 1}", "'optimizer.lr'", "did you mean 'optimizer.learning_rate'"),
    ("data: {bacth_size: 1}", "'data.bacth_size'", "did you mean 'data.batch_size'"),
    (
        "training: {learning_rate: 1}",
        "'training.learning_rate'",
        "did you mean 'optimizer.learning_rate'",
    ),
    (
        "chekpoint.every_steps: 1",
        "'chekpoint.every_steps'",
        "did you mean 'checkpoint.every_steps'",
    ),
    ("optimiser: {learning_rate: 1, beta1: 2}", "'optimiser'", "did you mean 'optimizer'"),
    ("zzz: 1", "'zzz'", "--help"),
    ("training: {epochs: many}", "training.epochs", "'many'", "whole number"),
    ("data: {pin_memory: 3}", "data.pin_memory", "3", "true or false"),
    ("model:\n  width:\n", "model.width", "empty"),
    ("schedule: {name: cosin}", "'cosin'", "cosine, onecycle, linear or constant"),
    ("data: {batch_size: 0}", "data.batch_size", "at least 1"),
    ("optimizer: {learning_rate: .nan}", "nan", "number above 0"),
    ("data: 5", "'data'", "--help"),
    ("data:\n  path: a\n  path: b\n", "duplicate key 'path'", "line 3"),
    ("data.path: a\ndata: {path: b}", "'data.path' is given twice"),
    ("data: {path: a", "not YAML", "line 2" if yaml.__with_libyaml__ else "line 1"),
    ("data: !!python/object:os.system {}", "unexpected tag", "line 1"),
    (b"data: \x00\x01", "not YAML"),
    ("data: {path: Straße}".encode("latin-1"), "not UTF-8 at byte 17"),
    ("- 1\n- 2\n", "a list", "section.key: value"),
    ("profiles: {a: {data.pin_memory: 3}}", "profile a", "true or false"),
    ("phases: [{name: a, steps: 1, overrides: {model.width: 0}}]", "phase 1", "model.width"),
    ("phases: [{name: a}]", "phases.1.steps", "required"),
    ("phases: 5", "phases cannot be", "list"),
    ("training: {epochs: yes}", "'yes'", "whole number"),
    ("training: {epochs: 1_000}", "'1_000'", "whole number"),
    ("optimizer: {name: muon}", "'muon'", "adamw or adafactor"),
]
# (name, text, what the line says apart from the name)
VARIABLES = [
    ("SEED", "abc", "reproducibility.seed cannot be 'abc'", "whole number"),
    ("DETERMINISTIC", "2", "true or false or warn"),
    ("USE_AMP", "maybe", "training.precision cannot be 'maybe'", "auto, fp32"),
]
# (flags, what the line says)
FLAGS = [
    ("--data.bath_size 3", "'data.bath_size'", "did you mean 'data.batch_size'"),
    ("--lr 3", "unknown option '--lr': command line", "did you mean '--optimizer.learning_rate'"),
    ("--max_step 3", "'--max-step'", "did you mean '--max-steps'"),
    ("--xyzzy 3", "'--xyzzy'", "train --help"),
    ("--data.path", "a value is missing", "write --data.path VALUE"),
    ("--model.depth deep", "model.depth cannot be 'deep': --model.depth", "at least 1"),
    ("--model.dropout -0.5", "-0.5", "--model.dropout", "at least 0"),
    ("--max-steps few", "--max-steps", "'few'", "command line"),
    ("data", "unknown option 'data'", "command line"),
    ("--config nowhere.yaml", "cannot read", "nowhere.yaml"),
    ("--profile fast", "unknown profile 'fast'", "--profile", "config.yaml"),
    ("--no-optimize", "unknown profile 'unoptimized'"),
]
# (config.yaml, environment, flags, the lines in their order)
TOGETHER = [
    (
        "profiles: {fast: {}, slow: {}}",
        {},
        "--profile fats",
        [("'fats'", "--profile", "fast, slow")],
    ),
    ("data: {path: a}\ndata: {pth: 4}", {"SEED": "x"}, "", [("duplicate",), ("$SEED",)]),
    (
        "reproducibility: {seed: x}",
        {"SEED": "1"},
        "",
        [("'x'", "config.yaml")],
    ),  # hidden by a right one
    (
        "training: {cudnn_benchmark: true}",
        {"DETERMINISTIC": "1"},
        "",
        [("cudnn_benchmark", "$DETERMINISTIC and config.yaml", "switch one of the two off")],
    ),
    (
        "compile: {mode: reduce-overhead}",
        {},
        "--training.gradient_accumulation_steps 2",
        [
            (
                "pytorch#169545",
                "config.yaml and --training.gradient_accumulation_steps",
                "mode to default",
            )
        ],
    ),
    (
        "data: {path: ''}\nmodel: {withd: 1, dropout: 0}\n",
        {"SEED": "x", "USE_AMP": "maybe"},
        "--resum --model.dropout 2 --data.pth x",
        [
            ("--resum",),
            ("withd",),
            ("data.path",),
            ("$SEED",),
            ("$USE_AMP",),
            ("dropout",),
            ("--data.pth",),
        ],
    ),
]
BAD = [
    *((content, {}, "", [("config.yaml", *says)]) for content, *says in FILES),
    *((None, {name: text}, "", [(f": ${name}: ", *says)]) for name, text, *says in VARIABLES),
    *((None, {}, flags, [says]) for flags, *says in FLAGS),
    *TOGETHER,
]


@pytest.mark.parametrize(("content", "environment", "flags", "expected"), BAD)
def test_each_error_is_one_line_and_nothing_else(
    content, environment, flags, expected, folder, monkeypatch, capsys
):
    if content is not None:
        write(content)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    before = list(folder.iterdir())
    monkeypatch.setattr(main.sys, "argv", ["pkg", "train", *flags.split()])
    assert main.main() == 2
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == len(expected), output.err
    for line, parts in zip(lines, expected, strict=True):
        assert re.fullmatch(r"error: \S.*: .*", line)
        assert all(part in line for part in parts), f"{line}\nlacks one of {parts}"
    assert list(folder.iterdir()) == before


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
        *re.split(r", | or ", schema.allowed(setting.annotation, setting.metadata)),
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


@pytest.mark.parametrize("key", KEYS)
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


def test_switches(monkeypatch):
    """USE_AMP, DETERMINISTIC and ALLOW_UNSAFE_DATALOADER; a flag is stronger than they are."""
    file = write("training.precision: fp16")
    for text, precision in (("0", "fp32"), ("1", "auto"), ("off", "fp32"), ("bf16", "bf16")):
        settings = config.load(file, environment={"USE_AMP": text})
        assert settings.training.precision == precision
        assert settings.origins["training.precision"] == "$USE_AMP"
        flags = [("training.precision", "tf32")]
        assert config.load(file, None, flags, {"USE_AMP": text}).training.precision == "tf32"
    for text, value in (("1", "warn"), ("True", "warn"), ("false", False), ("warn", "warn")):
        settings = config.load(environment={"DETERMINISTIC": text})
        assert settings.reproducibility.deterministic == value

    module = imported(render(loader="dataloader"), "config")
    for text, workers in (("0", 0), ("1", 4)):
        names = {"NUM_WORKERS": "4", "ALLOW_UNSAFE_DATALOADER": text}
        assert module.load(environment=names).data.num_workers == workers
        assert module.load(None, None, [("data.num_workers", "2")], names).data.num_workers == 2


def test_misspelt_environment_names_are_noted():
    names = ("NUM_WORKER", "seed", "PREFETCHFACTOR", "SPEED", "PATH", "USER", "LANG")
    notes = config.load(environment=dict.fromkeys(names, "1")).notes
    meant = [re.findall(r"did you mean (\w+)\?", note) for note in notes]
    assert sorted(meant) == [["NUM_WORKERS"], ["PREFETCH_FACTOR"], ["SEED"]]


def test_variables_without_a_setting_are_noted():
    (note,) = config.load(environment={"PREFETCH_FACTOR": "4"}).notes
    assert (
        note == "$PREFETCH_FACTOR has no effect: this project has no setting data.prefetch_factor"
    )


# ---- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", ["", "# nothing\n", "data:\n", "data: {}\nphases: []\n", "profiles: {a: }"]
)
def test_files_that_say_nothing(content):
    settings = config.load(write(content)).model_dump(exclude={"profiles"})
    assert settings == config.load().model_dump(exclude={"profiles"})


def test_numbers_and_texts_are_read_as_people_write_them():
    content = (
        b"\xef\xbb\xbftraining:\r\n  max_steps: 1e3\r\noptimizer:\r\n  learning_rate: 3e-4\r\n"
    )
    settings = config.load(write(content))
    assert settings.training.max_steps == 1000
    assert settings.optimizer.learning_rate == 3e-4
    for text in ("2024", "1e3", "Daten – Ä/ü ö", "no", "a # b", "[x", "~"):
        settings = config.load(overrides=[("data.path", text)])
        assert settings.data.path == text
        assert config.load(write(settings.to_yaml())).data.path == text


# ---- profiles, phases, runs --------------------------------------------------------------------

PHASES = """
optimizer: {learning_rate: 0.01}
phases:
  - name: head
    steps: 5
    overrides: {optimizer: {learning_rate: 0.1}, model.dropout: 0.3, training.precision: fp32}
  - {name: all, steps: 7}
"""


def test_phases_stand_between_file_and_environment():
    settings = config.load(write(PHASES), None, [("model.dropout", "0.2")], {"SEED": "3"})
    phases = [settings.phase(1), settings.phase(2)]
    assert [phase.optimizer.learning_rate for phase in phases] == [0.1, 0.01]
    assert [phase.training.max_steps for phase in phases] == [5, 7]
    assert [phase.training.precision for phase in phases] == ["fp32", "auto"]
    assert [phase.model.dropout for phase in phases] == [0.2, 0.2]
    assert [phase.reproducibility.seed for phase in phases] == [3, 3]
    assert phases[0].origins["optimizer.learning_rate"] == "config.yaml phase 1"
    for number in (0, 3):
        line = f"no phase {number}: --phase: the configuration has 2"
        with pytest.raises(errors.UserError, match=line):
            settings.phase(number)


def test_phases_of_a_profile():
    phases = "[{name: a, steps: 3, overrides: {model: {dropout: 0.3}}}]"
    file = write(f"profiles: {{short: {{phases: {phases}}}}}")
    (line,) = mistakes(
        write(f"profiles: {{a: {{phases: {phases.replace('0.3', '3')}}}}}", "b"), "a"
    )
    assert "model.dropout cannot be '3': b profile a phase 1" in line
    first = config.load(file, "short").phase(1)
    assert first.model.dropout == 0.3
    assert first.training.max_steps == 3
    assert config.load(file).phases == ()


def test_phases_have_the_same_model():
    """A later one would not take the weights of the first, hours after the start."""
    second = "{name: b, steps: 1, overrides: {model.width: 8, model.dropout: 0.3}}"
    file = write(f"phases: [{{name: a, steps: 1}}, {second}]")
    (line,) = mistakes(file)
    assert "model.width is 8, but 64 in phase 1: config.yaml phase 2: set it for all" in line
    settings = config.load(file, None, [("model.width", "8")])
    assert [settings.phase(number).model.width for number in (1, 2)] == [8, 8]
    assert [settings.phase(number).model.dropout for number in (1, 2)] == [0.2, 0.3]


def test_a_conflict_inside_a_phase_is_found_at_the_start():
    phases = "phases: [{name: a, steps: 1, overrides: {training.cudnn_benchmark: true}}]"
    (line,) = mistakes(write(f"reproducibility.deterministic: true\n{phases}"))
    assert "config.yaml and config.yaml phase 1" in line


@pytest.mark.parametrize("profile", [None, "fast"])
def test_a_run_can_be_loaded_from_its_resolved_settings(profile):
    file = write(PHASES + "profiles: {fast: {data.batch_size: 7, compile: {enabled: false}}}\n")
    flags = [("model.dropout", "0.2"), ("optimizer.epsilon", "1e-12"), ("data.path", "a b")]
    settings = config.load(file, profile, flags, {"SEED": "9"})
    again = config.load(write(settings.to_yaml(), "config.resolved.yaml"))
    assert again.resolved() == settings.resolved() == yaml.safe_load(settings.to_yaml())
    assert set(again.origins.values()) == {"config.resolved.yaml"}
    for number in (1, 2):
        assert again.phase(number).resolved() == settings.phase(number).resolved()


def test_print_config_shows_the_source_of_each_value(monkeypatch, capsys):
    write("data: {batch_size: 3}\nprofiles: {fast: {model.width: 5}}")
    monkeypatch.setenv("SEED", "8")
    monkeypatch.setenv("NUM_WORKER", "8")
    assert main.main(["train", "--print-config", "--profile=fast", "--model.depth", "2"]) == 0
    output = capsys.readouterr()
    shown = dict(re.findall(r"^ +(\w+: \S+) +# (.+)$", output.out, re.MULTILINE))
    expected = {
        "batch_size: 3": "config.yaml",
        "width: 5": "config.yaml profile fast",
        "seed: 8": "$SEED",
        "depth: 2": "--model.depth",
        "order: auto": "default",
    }
    assert shown.items() >= expected.items()
    assert len(re.findall(r"  # ", output.out)) == len(config.SETTINGS)
    assert output.err.startswith("note: NUM_WORKER ")


# ---- the rendered config.yaml ------------------------------------------------------------------


def flat(tree: dict, prefix: str = "") -> dict:
    values: dict = {}
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict) and key not in config.SETTINGS:
            values |= flat(value, f"{key}.")
        else:
            values[key] = value
    return values


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16", "bf16"])
def test_config_yaml_agrees_with_the_schema(precision):
    project = render(precision=precision)
    file = project / "config.yaml"
    module = imported(project, "config")
    written = flat(yaml.safe_load(file.read_text(encoding="utf-8")))
    assert [*module.SETTINGS] == [*written], "in the order of the schema"
    settings = module.load(file)
    defaults = {key: module.SETTINGS[key].default for key in KEYS}
    assert {key: settings.value(key) for key in KEYS} == {
        **defaults,
        "training.precision": precision,
    }
    assert list(settings.profiles) == ["unoptimized", "speed", "low_memory", "deterministic"]
    for profile in settings.profiles:
        module.load(file, profile)


@pytest.mark.parametrize(
    "answers", products("workload", "loader"), ids=lambda answers: "-".join(answers.values())
)
def test_config_yaml_has_each_setting_and_says_what_it_is_for(answers):
    project = render(**answers)
    module = imported(project, "config")
    settings = module.load(project / "config.yaml")
    written = flat(yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8")))
    assert module.SETTINGS.keys() == written.keys()
    described = [key for key, setting in module.SETTINGS.items() if setting.description]
    assert described == [key for key in module.SETTINGS if "." in key]
    for profile in settings.profiles:
        module.load(project / "config.yaml", profile)


def test_config_yaml_is_written_from_the_schema():
    assert write_config.FILE.read_text(encoding="utf-8") == write_config.written()


def test_the_example_phase_in_config_yaml_works():
    text = (PROJECT / "config.yaml").read_text(encoding="utf-8")
    example = text.split("any setting above:\n")[1].split("# An empty list")[0]
    example = example.replace("#   -", "  -").replace("#    ", "   ")
    settings = config.load(write("phases:\n" + example))
    assert settings.phase(1).origins["optimizer.learning_rate"] == "config.yaml phase 1"


# ---- what commands and hooks declare -----------------------------------------------------------

HOOK = '''
from pydantic import Field

from ..engine.settings.config import Section


class Look(Section):
    """How often somebody looks."""

    every_seconds: float = Field(10.0, ge=0)
    """Seconds between two looks."""


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
    assert [key for key in module.SETTINGS if key not in config.SETTINGS] == ["look.every_seconds"]
    assert command.main(["train", "--help"]) == 0
    assert "Seconds between two looks." in " ".join(capsys.readouterr().out.split())
    write("look: {every_seconds: 3}")
    assert module.load(Path("config.yaml")).value("look.every_seconds") == 3
    assert command.main(["train", "--look.every_seconds", "-1"]) == 2
    line = "look.every_seconds cannot be '-1': --look.every_seconds: give a number at least 0"
    assert capsys.readouterr().err == f"error: {line}\n"


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


def test_settings_of_a_part_that_was_taken_away(hooked, capsys, monkeypatch):
    """A run goes on without them; a configuration or a flag that names them is an error."""
    overrides = "{look.every_seconds: 2, model.dropout: 0.3}"
    phases = f"phases: [{{name: a, steps: 3, overrides: {overrides}}}]"
    profiles = "profiles: {fast: {look: {every_seconds: 1}}}"
    file = write(f"monitor.every_steps: 7\n{phases}\n{profiles}")
    settings = imported(hooked, "config").load(file)
    run = write(settings.to_yaml() + "engine.of: 1\n", "config.resolved.yaml")
    again = config.load(run, "fast", resolved=True)
    names = [note.split()[0] for note in again.notes]
    assert names == ["look", "engine.of", "look.every_seconds"]
    assert again.monitor.every_steps == 7
    assert again.phase(1).model.dropout == 0.3
    assert again.resolved()["phases"][0]["overrides"] == {"model.dropout": "0.3"}
    flag = [("look.every_seconds", "1")]
    assert len(mistakes(run, overrides=flag)) == 5
    (line,) = mistakes(run, overrides=flag, resolved=True)
    assert line.startswith("unknown setting 'look.every_seconds': --look.every_seconds: ")

    use(monkeypatch, lambda arguments, load: load(run) and 0)
    assert main.main(["train"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"note: {note}" for note in again.notes]


# ---- the command line --------------------------------------------------------------------------


def use(monkeypatch, run) -> None:
    """Let this function be the command `train`."""

    def arguments(parser):
        parser.add_argument("--own_flag")

    fake = types.SimpleNamespace(__doc__="Fake.", arguments=arguments, run=run)
    monkeypatch.setattr(main, "import_module", lambda *_: fake)


def test_help_has_every_setting_with_range_default_environment_name_and_meaning(
    monkeypatch, capsys
):
    monkeypatch.setenv("TRAINING_ROOT", str(PROJECT))
    monkeypatch.setenv("COLUMNS", "1000")
    assert main.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for key in KEYS:
        setting = config.SETTINGS[key]
        (shown,) = re.findall(rf"^  --{re.escape(key)} VALUE\s+(.+)$", text, flags=re.MULTILINE)
        assert shown.startswith(schema.allowed(setting.annotation, setting.metadata))
        assert f"default {setting.default}".lower() in shown.lower()
        assert " ".join(setting.description.split()) in shown
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
    for flag in ("--own-flag", "--own_flag"):
        assert main.main(["train", "--data.path=x y", f"{flag}=1.5"]) == code
