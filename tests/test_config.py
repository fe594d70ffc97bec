"""Settings: every mistake is one line that names its source, and stronger sources win for each setting."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml
from importing import imported
from rendering import render
from variants import products

PROJECT = render()
config = imported(PROJECT, "config")
main = imported(PROJECT, "__main__")
errors = imported(PROJECT, "engine.errors")

HEAVY = "torch", "numpy", "h5py", "matplotlib", "safetensors", "lightning", "accelerate"
NAMES = {key: name for name, key in config.ENVIRONMENT.items() if key in config.SETTINGS}
KEYS = [key for key in config.SETTINGS if "." in key]
ORDERS_NEED = {"data.shuffle_block": "block", "data.stride": "lanes"}


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
    ("data: {'path ': x}", "'data.path '", "did you mean 'data.path'"),
    (
        "training: {learning_rate: 1}",
        "'training.learning_rate'",
        "did you mean 'optimizer.learning_rate'",
    ),
    ("training: {lrr: 1}", "'training.lrr'", "did you mean 'optimizer.learning_rate'"),
    (
        "chekpoint.every_steps: 1",
        "'chekpoint.every_steps'",
        "did you mean 'checkpoint.every_steps'",
    ),
    ("optimiser: {learning_rate: 1, beta1: 2}", "'optimiser'", "did you mean 'optimizer'"),
    ("zzz: 1", "'zzz'", "--help"),
    ("data: {1: 2}", "'data.1'"),
    ("training: {epochs: many}", "training.epochs", "'many'", "whole number"),
    ("training: {epochs: 2.5}", "2.5", "whole number"),
    ("training: {epochs: yes}", "True", "whole number"),
    ("data: {pin_memory: 3}", "data.pin_memory", "3", "true or false"),
    ("data: {path: 3}", "data.path", "text"),
    ("data: {path: ''}", "data.path", "text"),
    ("model: {width: [1, 2]}", "model.width", "[1, 2]"),
    ("model:\n  width:\n", "model.width", "empty"),
    ("schedule: {name: cosin}", "'cosin'", "cosine, onecycle, linear or constant"),
    ("data: {order: bucket}", "'bucket'", "auto, full, block, time or lanes"),
    ("data: {batch_size: 0}", "data.batch_size", "at least 1"),
    ("optimizer: {learning_rate: 5}", "optimizer.learning_rate", "above 0 and at most 1"),
    ("data: {num_workers: 257}", "257", "at least 0 and at most 256 or auto"),
    ("optimizer: {learning_rate: .nan}", "nan", "number above 0"),
    ("training: {gradient_clip: .inf}", "inf", "at least 0"),
    ("training: {gradient_clip: 1e999}", "inf", "at least 0"),
    ("data: 5", "section 'data'", "5"),
    ("data:\n  path: a\n  path: b\n", "duplicate key 'path'", "line 3"),
    ("data: {}\nmodel: {}\ndata: {}\n", "duplicate key 'data'", "line 3"),
    ("data.path: a\ndata: {path: b}", "'data.path' is given twice"),
    ("data: {path: a", "not YAML", "line 2" if yaml.__with_libyaml__ else "line 1"),
    ("data:\n\tpath: a\n", "not YAML", "line 2"),
    ("data: {}\n---\ndata: {}\n", "not YAML", "line 2"),
    ("data: !!python/object:os.system {}", "not YAML", "line 1"),
    ("data: {path: 2026-13-45}", "not YAML"),
    ("? [a]\n: 1\n", "not YAML", "line 1"),
    (b"data: \x00\x01", "not YAML"),
    ("data: {path: Straße}".encode("latin-1"), "not UTF-8 at byte 17"),
    ("- 1\n- 2\n", "[1, 2]", "section.key: value"),
    ("hello", "'hello'", "section.key: value"),
    ("profiles: {a: {data: {pth: x}}}", "profile a", "data.pth", "did you mean 'data.path'"),
    ("profiles: {a: {data.batch_size: 0}}", "profile a", "at least 1"),
    ("profiles: {a: {training.use_amp: 3}}", "profile a", "true or false"),
    ("profiles: {a: 5}", "profile a", "5"),
    ("phases: [{name: a, steps: 1, overrides: {model.width: 0}}]", "phase 1", "model.width"),
    ("phases: [{name: a}]", "phases.1.steps", "required"),
    ("phases: [{name: a, steps: 0}]", "phases.1.steps", "greater than or equal to 1"),
    ("phases: [{name: a, steps: 1, step: 2}]", "phases.1.step", "not permitted"),
    ("phases: 5", "phases cannot be 5", "list"),
]
# (name, text, what the line says apart from the name)
VARIABLES = [
    ("SEED", "abc", "reproducibility.seed cannot be 'abc'", "whole number"),
    ("SEED", "4294967296", "below 4294967296"),
    ("SEED", "nan", "'nan'", "whole number"),
    ("NUM_WORKERS", "-1", "data.num_workers", "at least 0 and at most 256 or auto"),
    ("PREFETCH_FACTOR", "2.5", "2.5", "at least 1 and at most 64"),
    ("DETERMINISTIC", "2", "true or false"),
    ("PERSISTENT_WORKERS", "ja", "'ja'", "true or false"),
    ("PIN_MEMORY", "{[", "'{['", "true or false"),
    ("USE_AMP", "maybe", "use_amp cannot be 'maybe'", "true or false"),
    ("ALLOW_UNSAFE_DATALOADER", "7", "7", "true or false"),
]
# (flags, what the line says)
FLAGS = [
    ("--data.bath_size 3", "--data.bath_size", "did you mean 'data.batch_size'"),
    ("--lr 3", "unknown option '--lr': command line", "did you mean '--optimizer.learning_rate'"),
    ("--batch-size=3", "'--batch-size'", "did you mean '--data.batch_size'"),
    ("--learning-rate 1", "'--learning-rate'", "did you mean '--optimizer.learning_rate'"),
    ("--data.bath-size 3", "--data.bath_size", "did you mean 'data.batch_size'"),
    ("--max_step 3", "'--max_step'", "did you mean '--max-steps'"),
    ("--resum", "'--resum'", "did you mean '--resume'"),
    ("--xyzzy 3", "'--xyzzy'", "train --help"),
    ("--data.path", "--data.path has no value", "--data.path VALUE"),
    ("--data.path --name x", "--data.path has no value"),
    ("--model.depth deep", "model.depth cannot be 'deep': --model.depth", "at least 1"),
    ("--optimizer.beta1=1", "--optimizer.beta1", "below 1"),
    ("--model.dropout -0.5", "-0.5", "--model.dropout", "at least 0"),
    ("--optimizer.epsilon nan", "nan", "--optimizer.epsilon", "above 0"),
    ("--max-steps few", "--max-steps", "'few'", "command line"),
    ("data", "unexpected word 'data'", "command line"),
    ("--config nowhere.yaml", "cannot read", "nowhere.yaml"),
    ("--config .", "cannot read"),
    ("--profile fast", "unknown profile 'fast'", "--profile", "config.yaml"),
    ("--no-optimize", "unknown profile 'baseline'"),
]
# (config.yaml, environment, flags, the lines in their order)
TOGETHER = [
    (
        "profiles: {fast: {}, slow: {}}",
        {},
        "--profile fats",
        [("'fats'", "--profile", "fast, slow")],
    ),
    ("data: {path: 3}\ndata: {pth: 4}", {"SEED": "x"}, "", [("duplicate",), ("$SEED",)]),
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
        "data: {path: 3}\nmodel: {withd: 1, dropout: 0}\n",
        {"SEED": "x", "USE_AMP": "maybe"},
        "--resum --model.dropout 2 --data.pth x",
        [
            ("--resum",),
            ("withd",),
            ("--data.pth",),
            ("data.path",),
            ("$USE_AMP",),
            ("$SEED",),
            ("dropout",),
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
def test_each_mistake_is_one_line_and_nothing_else(
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


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_refuses_a_mapping_from_every_source(key):
    """As a flag every text is one, but an empty path."""
    found = mistakes(write(f"{key}: {{a: 1}}"))
    if config.SETTINGS[key].allowed != "text" or key == "data.path":
        found += mistakes(overrides=[(key, "{a: 1}")] if key != "data.path" else [(key, "")])
    if name := NAMES.get(key):
        found += mistakes(environment={name: "{a: 1}"})
    origins = ["config.yaml", f"--{key}", f"${name}"][: len(found)]
    assert len(found) >= 1 + (key != "training.init_from") + bool(name)
    for line, origin in zip(found, origins, strict=True):
        assert line.startswith(f"{key} cannot be ")
        assert f": {origin}: give {config.SETTINGS[key].allowed}" in line


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ("no verb", "train")),
        (["trian"], ("'trian'", "did you mean 'train'?")),
        (["--config", "x"], ("'--config'", "begin with one of")),
        (["report", "--data.path", "x", "a", "b"], ("'b'", "command line")),
    ],
)
def test_a_wrong_verb_is_one_line(words, parts, capsys):
    assert main.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts)


# ---- which source wins -------------------------------------------------------------------------


def accepted(key: str) -> list[str]:
    """Up to two values that the setting takes, as text; one that is not the default comes first."""
    setting = config.SETTINGS[key]
    words = [*re.split(r", | or ", setting.allowed), "true", "false", "1", "2", "0.5", "0.25"]
    values: dict[object, str] = {}
    for word in words if setting.allowed != "text" else ["here", "there"]:
        try:
            values.setdefault(config.load(overrides=[(key, word)]).value(key), word)
        except errors.UserErrors:
            continue
    texts = [text for value, text in values.items() if value != setting.default]
    return [*texts, *[text for text in values.values() if text not in texts]][:2]


@pytest.mark.parametrize("key", KEYS)
def test_the_stronger_source_wins_for_every_setting(key):
    strong, weak = (accepted(key) * 2)[:2]
    sources = ["config.yaml", "config.yaml profile fast", f"--{key}"]
    if key in NAMES:
        sources.insert(2, f"${NAMES[key]}")

    def load(given: dict[str, str]):
        lines = [f"{key}: {given[sources[0]]}"] if sources[0] in given else []
        overlay = f"{key}: {given[sources[1]]}" if sources[1] in given else ""
        lines += [f"profiles: {{fast: {{{overlay}}}}}"]
        return config.load(
            write("\n".join(lines)),
            "fast" if sources[1] in given else None,
            [(key, given[sources[-1]])] if sources[-1] in given else [],
            {NAMES[key]: given[sources[2]]} if len(sources) == 4 and sources[2] in given else {},
        )

    expected = config.load(overrides=[(key, strong)]).value(key)
    assert config.load().origins[key] == "default"
    for source in sources:
        alone = load({source: strong})
        assert (alone.value(key), alone.origins[key]) == (expected, source)
    for weaker, stronger in itertools.combinations(sources, 2):
        both = load({weaker: weak, stronger: strong})
        assert (both.value(key), both.origins[key]) == (expected, stronger)


def test_environment_file_and_flags_give_the_same_settings():
    environment = {"DETERMINISTIC": "1", "SEED": "7", "NUM_WORKERS": "12", "PIN_MEMORY": "0"}
    environment |= {"PREFETCH_FACTOR": "3", "PERSISTENT_WORKERS": "0"}
    by_environment = config.load(environment=environment)
    by_flags = config.load(
        overrides=[(config.ENVIRONMENT[name], text) for name, text in environment.items()]
    )
    by_file = config.load(
        write(
            "\n".join(f"{config.ENVIRONMENT[name]}: {text}" for name, text in environment.items())
        )
    )
    assert (
        by_environment.resolved()
        == by_flags.resolved()
        == by_file.resolved()
        != config.load().resolved()
    )


def test_booleans_from_the_environment():
    for text, value in {
        "0": False,
        "1": True,
        "false": False,
        "true": True,
        "off": False,
        "True": True,
    }.items():
        assert config.load(environment={"PIN_MEMORY": text}).data.pin_memory is value
    assert config.load(environment={"SEED": ""}).origins["reproducibility.seed"] == "default"


@pytest.mark.parametrize(
    ("configured", "text", "expected", "notes"),
    [
        ("bf16", "0", "fp32", 0),
        ("fp32", "1", "auto", 1),
        ("tf32", "1", "auto", 1),
        ("fp16", "1", "fp16", 0),
        ("auto", "1", "auto", 0),
    ],
)
def test_use_amp(configured, text, expected, notes):
    file = write(f"training.precision: {configured}")
    settings = config.load(file, environment={"USE_AMP": text})
    assert settings.training.precision == expected
    assert len(settings.notes) == notes
    assert settings.origins["training.precision"] == (
        "$USE_AMP" if configured != expected else "config.yaml"
    )
    assert (
        config.load(
            file, None, [("training.precision", "tf32")], {"USE_AMP": text}
        ).training.precision
        == "tf32"
    )
    for spelling in ("training.use_amp", "data.use_amp", "use_amp"):
        old = config.load(write(f"training.precision: {configured}\n{spelling}: {text}"))
        assert old.training.precision == expected


def test_a_single_process_is_stronger_than_a_number_of_workers():
    settings = config.load(environment={"ALLOW_UNSAFE_DATALOADER": "0", "NUM_WORKERS": "4"})
    assert settings.data.num_workers == 0
    assert "$NUM_WORKERS" in settings.notes[0]
    assert (
        config.load(
            environment={"ALLOW_UNSAFE_DATALOADER": "1", "NUM_WORKERS": "4"}
        ).data.num_workers
        == 4
    )
    flags = [("data.num_workers", "2")]
    assert (
        config.load(overrides=flags, environment={"ALLOW_UNSAFE_DATALOADER": "0"}).data.num_workers
        == 2
    )


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        ("timeseries", {"data.use_amp", "training.num_workers"}),
        ("tabular", {"train.batch.pin_memory"}),
    ],
)
def test_keys_of_older_projects(workload, names):
    module = imported(render(workload=workload), "config")
    assert module.ALIASES.keys() >= names
    for alias, key in module.ALIASES.items():
        nested: object = 1
        for part in reversed(alias.split(".")):
            nested = {part: nested}
        expected = module.load(overrides=[(key, "1")]).resolved()
        assert module.load(write(yaml.dump(nested))).resolved() == expected
        assert module.load(overrides=[(alias, "1")]).resolved() == expected


def test_keys_of_older_projects_without_effect_are_notes():
    settings = config.load(
        write("data: {use_chunk_loader: true}"),
        None,
        [("training.empty_cache_every_n_epochs", "1")],
    )
    assert settings.resolved() == config.load().resolved()
    assert [note.partition(":")[0] for note in settings.notes] == [
        "config.yaml",
        "--training.empty_cache_every_n_epochs",
    ]


def test_a_project_that_deleted_the_old_names_has_none(tmp_path):
    project = shutil.copytree(PROJECT, tmp_path / "project")
    settings = project / "src/my_training/settings.py"
    settings.write_text(settings.read_text().partition("\n\n\nALIASES")[0] + "\n")
    module = imported(project, "config")
    assert (
        module.ALIASES
        == module.OBSOLETE
        == imported(render(workload="llm"), "config").ALIASES
        == {}
    )
    with pytest.raises(
        imported(project, "engine.errors").UserErrors, match=r"mean 'data\.num_workers'"
    ):
        module.load(overrides=[("training.num_workers", "1")])


def test_misspelt_environment_names_are_noted():
    found = {
        "NUM_WORKER": "4",
        "seed": "1",
        "PREFETCHFACTOR": "2",
        "SPEED": "1",
        "PATH": "/bin",
        "USER": "x",
        "LANG": "C",
    }
    notes = config.load(environment=found).notes
    meant = [name for note in notes for name in re.findall(r"did you mean (\w+)\?", note)]
    assert sorted(meant) == ["NUM_WORKERS", "PREFETCH_FACTOR", "SEED"]
    assert len(notes) == 3


def test_settings_without_effect_are_noted_where_a_person_gave_them_for_this_run():
    settings = config.load(
        write("data.pin_memory: true"),
        None,
        [("data.chunk_size_gb", "2")],
        {"PREFETCH_FACTOR": "4"},
    )
    notes = settings.without_effect(
        ["data.pin_memory", "data.chunk_size_gb", "data.prefetch_factor"], "no workers"
    )
    assert notes == [
        "$PREFETCH_FACTOR has no effect: no workers",
        "--data.chunk_size_gb has no effect: no workers",
    ]


# ---- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", ["", "# nothing\n", "data:\n", "data: {}\nphases: []\n", "profiles: {a: }"]
)
def test_files_that_say_nothing(content):
    assert config.load(write(content)).model_dump(exclude={"profiles"}) == config.load().model_dump(
        exclude={"profiles"}
    )


def test_numbers_and_texts_are_read_as_people_write_them():
    settings = config.load(
        write(
            b"\xef\xbb\xbftraining:\r\n  max_steps: 1e3\r\noptimizer:\r\n  learning_rate: 3e-4\r\n"
        )
    )
    assert (settings.training.max_steps, settings.optimizer.learning_rate) == (1000, 3e-4)
    for text in ("2024", "1e3", "Daten – Ä/ü ö", "no", "a # b", "[x", "~"):
        settings = config.load(overrides=[("data.path", text)])
        assert settings.data.path == text
        assert config.load(write(settings.to_yaml())).data.path == text


def test_no_file_is_the_defaults(capsys):
    assert main.main(["train", "--print-config"]) == 0
    assert "seed: 42" in capsys.readouterr().out


def test_settings_cannot_change():
    with pytest.raises(ValueError, match="frozen"):
        config.load().training.epochs = 3


# ---- profiles, phases, runs --------------------------------------------------------------------

PHASES = """
optimizer: {learning_rate: 0.01}
phases:
  - name: head
    steps: 5
    overrides: {optimizer: {learning_rate: 0.1}, model.dropout: 0.3, training.use_amp: 0}
  - {name: all, steps: 7}
"""


def test_phases_stand_between_file_and_environment():
    settings = config.load(write(PHASES), None, [("model.dropout", "0.2")], {"SEED": "3"})
    first, second = settings.phase(1), settings.phase(2)
    assert (first.optimizer.learning_rate, first.training.max_steps, first.training.precision) == (
        0.1,
        5,
        "fp32",
    )
    assert (first.model.dropout, first.reproducibility.seed) == (0.2, 3)
    assert first.origins["optimizer.learning_rate"] == "config.yaml phase 1"
    assert (
        second.optimizer.learning_rate,
        second.training.max_steps,
        second.training.precision,
    ) == (
        0.01,
        7,
        "auto",
    )
    for number in (0, 3):
        with pytest.raises(
            errors.UserError, match=f"no phase {number}: --phase: the configuration has 2"
        ):
            settings.phase(number)


def test_phases_have_the_same_model():
    """A later one would not take the weights of the first, hours after the start."""
    second = "{name: b, steps: 1, overrides: {model.width: 8, model.dropout: 0.3}}"
    phases = f"phases: [{{name: a, steps: 1}}, {second}]"
    line = "model.width is 8, but 64 in phase 1: config.yaml phase 2: set it for all phases"
    with pytest.raises(errors.UserError, match=line):
        config.load(write(phases))
    settings = config.load(write(phases), None, [("model.width", "8")])
    assert [settings.phase(number).model.dropout for number in (1, 2)] != [0.3, 0.3]
    assert settings.phase(1).model.width == settings.phase(2).model.width == 8


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
    found: dict = {}
    for name, value in tree.items():
        inner = isinstance(value, dict) and prefix + name not in config.SETTINGS
        found |= flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return found


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16", "bf16"])
def test_config_yaml_agrees_with_the_schema(precision):
    project = render(precision=precision)
    text = (project / "config.yaml").read_text(encoding="utf-8")
    written = flat(yaml.safe_load(text))
    settings = imported(project, "config").load(project / "config.yaml")
    defaults = {
        key: setting.default for key, setting in imported(project, "config").SETTINGS.items()
    }
    known = iter(defaults)
    assert all(key in known for key in written), "in the order of the schema"
    assert {key: settings.value(key) for key in KEYS} == {
        **{key: defaults[key] for key in KEYS},
        "training.precision": precision,
    }
    assert list(settings.profiles) == ["baseline", "speed", "low_memory", "deterministic"]
    for profile in settings.profiles:
        imported(project, "config").load(project / "config.yaml", profile)


@pytest.mark.parametrize(
    "answers", products("workload", "loader"), ids=lambda answers: "-".join(answers.values())
)
def test_config_yaml_has_no_key_without_use(answers):
    project = render(**answers)
    module = imported(project, "config")
    settings = module.load(project / "config.yaml")
    written = flat(yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8")))
    named = {key for tree in [written, *settings.profiles.values()] for key in tree}
    useless = {f"data.{name}" for name in imported(project, "engine.loader").Loader.WITHOUT_EFFECT}
    useless |= {"training.fp8_emulation"}
    offered = module.SETTINGS["data.order"].allowed
    useless |= {key for key, order in ORDERS_NEED.items() if order not in offered}
    assert not named & (useless - set(module.ENVIRONMENT.values()))
    shown = set(module.ENVIRONMENT.values()) & set(module.SETTINGS)
    assert set(written) >= shown | {key for key, order in ORDERS_NEED.items() if order in offered}


def test_config_yaml_of_fp8_shows_its_emulation():
    text = (render(workload="llm", precision="fp8") / "config.yaml").read_text(encoding="utf-8")
    assert flat(yaml.safe_load(text))["training.fp8_emulation"] is False


def test_config_yaml_has_a_comment_above_each_setting():
    lines = (
        (PROJECT / "config.yaml").read_text(encoding="utf-8").split("profiles:\n")[0].splitlines()
    )
    settings = [number for number, line in enumerate(lines) if re.match(r"  \w+: |phases: ", line)]
    written = flat(yaml.safe_load((PROJECT / "config.yaml").read_text(encoding="utf-8")))
    assert len(settings) == len(written) - 1
    for number in settings:
        indent = " " * (len(lines[number]) - len(lines[number].lstrip()))
        assert re.match(f"{indent}# \\S.*\\S$", lines[number - 1]), lines[number]
        assert not lines[number - 2].startswith("  #"), lines[number]


def test_the_example_phase_in_config_yaml_works():
    text = (PROJECT / "config.yaml").read_text(encoding="utf-8")
    example = text.split("any setting above:\n")[1].split("# None here")[0]
    settings = config.load(
        write("phases:\n" + example.replace("#   -", "  -").replace("#    ", "   "))
    )
    assert settings.phase(1).origins["optimizer.learning_rate"] == "config.yaml phase 1"


def test_the_baseline_has_everything_off():
    settings = config.load(PROJECT / "config.yaml", "baseline")
    assert settings.training.precision == "fp32"
    assert not any((settings.compile.enabled, settings.optimizer.fused, settings.data.pin_memory))
    assert not any((settings.training.cudnn_benchmark, settings.training.gradient_checkpointing))


def test_low_memory_keeps_the_effective_batch():
    whole, parts = (
        config.load(PROJECT / "config.yaml", profile) for profile in (None, "low_memory")
    )
    batches = [
        each.data.batch_size * each.training.gradient_accumulation_steps for each in (whole, parts)
    ]
    assert batches[0] == batches[1]
    assert parts.data.batch_size < whole.data.batch_size


# ---- sections of verbs and hooks ---------------------------------------------------------------

HOOK = """
from pydantic import Field

from ..engine.config import Section, defaults


class Watch(Section):
    \"\"\"How often somebody looks.\"\"\"

    every_seconds: float = Field(10.0, ge=0, description="seconds between two looks")


class Sections(Section):
    watch: Watch = defaults(Watch)


class Hook:
    def start(self, run):
        import torch
"""


@pytest.fixture(scope="module")
def hooked(tmp_path_factory):
    """A project with a hook of its own, and a verb and a hook without settings that cannot be imported."""
    project = shutil.copytree(PROJECT, tmp_path_factory.mktemp("hooked") / "project")
    hooks = project / "src/my_training/hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "__init__.py").touch()
    (hooks / "look.py").write_text(HOOK)
    (hooks / "other.py").write_text('"""Not a class Sections."""\nimport no_such_module\n')
    return project


def test_a_section_in_a_hook_is_a_section_like_any_other(hooked, capsys):
    module, command = imported(hooked, "config"), imported(hooked, "__main__")
    order = [key for key in module.SETTINGS if key not in config.SETTINGS or "." not in key]
    assert order == ["watch.every_seconds", "phases", "profiles"]
    assert command.main(["train", "--help"]) == 0
    shown = "watch: How often somebody looks.\n  --watch.every_seconds  a number at least 0\n      seconds "
    assert shown in capsys.readouterr().out
    write("watch: {every_seconds: 3}")
    assert module.load(Path("config.yaml")).value("watch.every_seconds") == 3
    assert command.main(["train", "--print-config", "--watch.every_seconds", "2"]) == 0
    assert re.search(r"every_seconds: 2.0 +# --watch.every_seconds\n", capsys.readouterr().out)
    assert command.main(["train", "--watch.every_seconds", "-1"]) == 2
    line = (
        "error: watch.every_seconds cannot be -1: --watch.every_seconds: give a number at least 0\n"
    )
    assert capsys.readouterr().err == line
    assert [
        part.__name__.rpartition(".")[2]
        for part in imported(hooked, "engine.config").found("hooks", "class Hook")
    ] == ["look", "pictures"]


def test_settings_of_a_part_that_was_taken_away(hooked, capsys, monkeypatch):
    """A run goes on without them; a configuration or a flag that names them is a mistake."""
    module = imported(hooked, "config")
    phases = (
        "phases: [{name: a, steps: 3, overrides: {watch.every_seconds: 2, model.dropout: 0.3}}]"
    )
    profiles = "profiles: {fast: {watch: {every_seconds: 1}}}"
    settings = module.load(write(f"monitor.every_steps: 7\n{phases}\n{profiles}"))
    run = write(settings.to_yaml() + "engine.of: 1\n", "config.resolved.yaml")
    again = config.load(run, "fast", resolved=True)
    assert again.notes == [
        f"{key} is passed over, as this project has no such setting"
        for key in ("watch", "engine.of", "watch.every_seconds")
    ]
    assert (again.monitor.every_steps, again.phase(1).model.dropout) == (7, 0.3)
    assert again.resolved()["phases"][0]["overrides"] == {"model.dropout": 0.3}
    found = mistakes(run, overrides=[("watch.every_seconds", "1")])
    assert len(found) == 5
    assert all("watch" in line or "engine.of" in line for line in found)
    assert all(line.endswith(": remove it; `train --help` lists all") for line in found)
    (line,) = mistakes(run, overrides=[("watch.every_seconds", "1")], resolved=True)
    assert line.startswith(
        "unknown setting 'watch.every_seconds': --watch.every_seconds: remove it"
    )

    fake = types.SimpleNamespace(
        __doc__="Fake.", arguments=lambda parser: None, run=lambda arguments, load: load(run) and 0
    )
    monkeypatch.setattr(main, "import_module", lambda *_: fake)
    assert main.main(["train"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"note: {note}" for note in again.notes]


# ---- the command line --------------------------------------------------------------------------


def test_help_has_every_setting_with_range_default_environment_name_and_meaning(capsys):
    assert main.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for key in KEYS:
        setting = config.SETTINGS[key]
        ((heading, meaning),) = re.findall(
            rf"^  --{re.escape(key)}  (.+)\n +(.+)$", text, re.MULTILINE
        )
        default = (
            str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
        )
        assert heading == setting.allowed
        assert len(setting.meaning) > 3
        name = f", ${NAMES[key]}" if key in NAMES else ""
        assert meaning == f"{setting.meaning} (default {default}{name})"
    for name in config.ENVIRONMENT:
        assert f"${name}" in text


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    known = {name: text for name, text in os.environ.items() if name not in config.ENVIRONMENT}
    path = {"PYTHONPATH": str(PROJECT / "src"), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", code], env=known | path | environment, capture_output=True, text=True
    )


def test_help_and_mistakes_import_nothing_heavy():
    write("data: {pth: x}")
    verbs = sorted(path.stem for path in (PROJECT / "src/my_training/commands").glob("[!_]*.py"))
    result = python(
        f"""
import sys
from my_training.__main__ import main
codes = [main(["--help"])] + [main([verb, "--help"]) for verb in {verbs}]
codes += [main(["train"]), main(["train", "--print-config", "--lr"]), main(["trian"])]
assert codes == [0] * {len(verbs) + 1} + [2, 2, 2], codes
loaded = [name for name in {HEAVY} if name in sys.modules]
assert not loaded, loaded
"""
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stderr.splitlines()) == 1 + 2 + 1
    assert {*verbs} >= {"train", "evaluate", "prepare", "report", "doctor"}
    assert all(re.search(rf"^  {verb} +\w", result.stdout, re.MULTILINE) for verb in verbs)


def test_the_exit_code_reaches_the_shell():
    result = subprocess.run(
        [sys.executable, "-m", "my_training", "train", "--lr", "1"],
        env=os.environ | {"PYTHONPATH": str(PROJECT / "src")}, capture_output=True, text=True,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (2, "")
    assert (
        result.stderr
        == "error: unknown option '--lr': command line: did you mean '--optimizer.learning_rate'?\n"
    )


def test_debug_shows_the_traceback():
    with pytest.raises(errors.UserErrors, match=r"data\.pth"):
        main.main(["train", "--debug", "--data.pth", "x"])


@pytest.mark.parametrize(
    ("result", "code"), [(None, 0), (0, 0), (143, 143), (KeyboardInterrupt(), 130)]
)
def test_exit_codes_of_a_verb(result, code, monkeypatch):
    def run(arguments, load):
        assert (load().data.path, arguments.flag) == ("x y", "1.5")
        if isinstance(result, BaseException):
            raise result
        return result

    fake = types.SimpleNamespace(
        __doc__="Fake.", arguments=lambda parser: parser.add_argument("--flag"), run=run
    )
    monkeypatch.setattr(main, "import_module", lambda *_: fake)
    assert main.main(["train", "--data.path=x y", "--flag=1.5"]) == code


def test_a_verb_can_load_the_settings_of_a_run(monkeypatch):
    write("model: {width: 9}")
    write("model: {width: 5}", "run.yaml")
    widths: list[int] = []

    def run(arguments, load):
        widths.extend(each.model.width for each in (load(), load(base=Path("run.yaml"))))

    fake = types.SimpleNamespace(__doc__="Fake.", arguments=lambda parser: None, run=run)
    monkeypatch.setattr(main, "import_module", lambda *_: fake)
    assert main.main(["train"]) == 0
    assert widths == [9, 5]
