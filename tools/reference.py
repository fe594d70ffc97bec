"""Writes the reference from the code: `make reference`, or `python tools/reference.py`.

Names, types, ranges, defaults, flags, answers and figures come from rendered projects, from
copier.yml and from the table of GPUs. What a setting means is its description in the schema.
What the code does not say in words, such as what a file of a run contains, is in reference.yml;
tests/documents/test_reference.py compares its names with what a run of each workload writes.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from importing import catalogue_of, imported
from rendering import questions, render
from variants import SCRIPTS, choices, extras, families, gpus, offered

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/reference"
COMMAND = "make reference"
NOTE = f"<!-- Written by `{COMMAND}`; edit the code or tools/reference.yml instead. -->"
ALL = tuple(choices("workload"))
SERVERS = ("wandb", "mlflow")  # trackers with settings
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
DEFAULT = re.compile(r"\s*\(default: ([^()]*)\)$")

Row = Sequence[object]


@functools.cache
def texts() -> dict[str, Any]:
    """What the code does not say in words."""
    content: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_suffix(".yml").read_text(encoding="utf-8")
    )
    return content


# --- projects


@functools.cache
def project(
    workload: str, tracker: str = "none", loader: str = "", precision: str = "auto"
) -> Path:
    """A project with every extra, for several processes. loader: "" for the workload's own."""
    answers = {"loader": loader} if loader else {}
    answers |= {"tracker": tracker, "precision": precision, "distributed": "ddp"}
    return render(workload=workload, extras=extras(workload), **answers)


def module(
    name: str,
    workload: str = ALL[0],
    tracker: str = "none",
    loader: str = "",
    precision: str = "auto",
) -> ModuleType:
    return imported(project(workload, tracker, loader, precision), name)


# --- Markdown


def table(header: Row, rows: Iterable[Row]) -> str:
    lines = [cells(header), cells(["---"] * len(header))]
    lines += [cells(row) for row in rows]
    return "\n".join(lines)


def cells(row: Row) -> str:
    texts_of_row = [" ".join(str(cell).split()).replace("|", "\\|") for cell in row]
    return f"| {' | '.join(texts_of_row)} |"


def code(value: object) -> str:
    return f"`{value}`" if value not in ("", None) else ""


def without_emphasis(text: str) -> str:
    """Text with `*` as it is, which Markdown reads as emphasis outside of code."""
    return re.sub(r"(`[^`]*`)|\*", lambda match: match[1] or r"\*", text)


def code_word(text: str) -> str:
    """A default as code, unless it is words."""
    return text if " " in text or text == "required" else code(text)


def codes(values: Iterable[object]) -> str:
    return ", ".join(code(value) for value in values)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"* {line}" for line in lines if line)


def block(lines: Iterable[str], language: str = "sh") -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def page(title: str, name: str, *paragraphs: str) -> str:
    """A page: its title, what it is for, then the paragraphs that are not empty."""
    introduction = texts()["introductions"][name].strip()
    kept = [paragraph for paragraph in paragraphs if paragraph]
    return "\n\n".join([f"# {title}", NOTE, introduction, *kept]) + "\n"


def workloads(names: Iterable[str]) -> str:
    """`all`, or the names in the order of the interview."""
    have = set(names)
    return "all" if have == set(ALL) else ", ".join(name for name in ALL if name in have)


# --- settings


class Described(NamedTuple):
    """What a project says about a setting."""

    allowed: str
    default: str
    meaning: str


class Place(NamedTuple):
    """A project that has a setting."""

    workload: str
    tracker: str
    loader: str
    precision: str = "auto"


FP8 = "training.fp8_emulation"
Variants = dict[Described, list[Place]]
PLACES = [
    *(Place(workload, "none", "memmap") for workload in ALL),
    *(Place(ALL[0], tracker, "memmap") for tracker in SERVERS),
    *(Place(workload, "none", "memmap", "fp8") for workload in ("llm", "seq2seq", "chat")),
    *(Place(workload, "none", loader) for workload in ALL for loader in ("chunk", "dataloader")),
]


def written(value: object) -> str:
    """A default as config.yaml has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value or '""'
    if not isinstance(value, int | float):
        return "{}" if isinstance(value, Mapping) else "[]"
    return f"{value:g}" if isinstance(value, float) else str(value)


KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
# pydantic's names of the limits, and how to print them.
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def allowed(kind: Any, metadata: Iterable[Any] = ()) -> str:
    """The values of a setting: `a whole number at least 0 and at most 256 or auto`."""
    origin = get_origin(kind)
    choices = get_args(kind)
    if origin is Literal:
        return ", ".join(choices)
    if origin is Annotated:
        limits = [limit for info in choices[1:] for limit in getattr(info, "metadata", ())]
        return allowed(choices[0], limits)
    if origin in (Union, UnionType):
        return " or ".join(map(allowed, choices))
    if origin is tuple:
        return f"a list, each {allowed(choices[0])}"
    words = []
    for limit, name in itertools.product(metadata, LIMITS):
        if hasattr(limit, name):
            words.append(f" {LIMITS[name]} {getattr(limit, name)}")
    return KINDS.get(kind, "a mapping") + " and".join(words)


@functools.cache
def all_settings() -> dict[str, Variants]:
    """Every setting of every project, with what each project says about it."""
    settings: dict[str, Variants] = {}
    for place in PLACES:
        for key, setting in catalogue_of(project(*place)).items():
            if place.tracker != "none" and not key.startswith("tracker."):
                continue
            if place.precision != "auto" and key != FP8:
                continue
            known = settings.get(key, {})
            if any(other.loader != place.loader for others in known.values() for other in others):
                continue
            meaning = without_emphasis(" ".join((setting.description or "").split()))
            values = allowed(setting.annotation, setting.metadata)
            described = Described(values, written(setting.default), meaning)
            settings.setdefault(key, {}).setdefault(described, []).append(place)
    return settings


@functools.cache
def needs() -> dict[str, str]:
    """By section of config.yaml, or setting: the extra, or the trackers, that a project has it from."""
    sections = {"tracker": f"tracker {' or '.join(SERVERS)}", "data.stride": "extra `lanes`"}
    sections["data.chunk_size_gb"] = "loader `chunk`"
    sections[FP8] = "answer `precision: fp8`"
    for name in ("num_workers", "prefetch_factor", "persistent_workers"):
        sections[f"data.{name}"] = "loader `dataloader`"
    for section in ("watch", "lora", "ema", "estimate"):
        sections[section] = f"extra `{section}`"
    return sections


def environment_names(key: str) -> list[str]:
    """The environment names that set this setting."""
    return [name for name, target in module("engine.sources").ENVIRONMENT.items() if target == key]


def switched(name: str) -> str:
    """What an environment name stands for: a setting, or a value for each switch."""
    key = module("engine.sources").ENVIRONMENT[name]
    switches = module("engine.sources").SWITCHES
    if name not in switches:
        return code(key)
    lines = []
    for value, stands_for in switches[name].items():
        if stands_for:
            lines.append(f"`{name}={value}`: {code(f'{key}: {stands_for}')}")
    return "; ".join(lines)


def setting_entry(key: str, variants: Variants) -> str:
    """A setting: its meaning, then a list of what is known about it."""
    places = [place for listed in variants.values() for place in listed]
    section = key.partition(".")[0]
    lines = []
    if len(variants) == 1:
        (described,) = variants
        paragraphs = [described.meaning]
        lines.append(f"Values: {described.allowed}")
        lines.append(f"Default: `{described.default}`")
    else:
        paragraphs = [differences(variants)]
    names = codes(environment_names(key))
    lines.append(f"Environment: {names}" if names else "")
    needed = needs().get(key) or needs().get(section)
    lines.append(f"Only with: {needed}" if needed else "")
    only = workloads(place.workload for place in places)
    if section != "tracker" and only != "all":
        lines.append(f"Workloads: {only}")
    return "\n\n".join([f"### `{key}`", *paragraphs, bullets(lines)])


def differences(variants: Variants) -> str:
    """A setting that is not the same in all projects, as a table."""
    rows = []
    for described, places in variants.items():
        names = workloads(place.workload for place in places)
        if places[0].tracker != "none":
            names = places[0].tracker
        rows.append((names, described.allowed, code(described.default), described.meaning))
    return table(("in", "values", "default", "meaning"), rows)


def lines_above(name: str) -> list[str]:
    """The comment above a key of config.yaml that has no section."""
    lines = (project(ALL[0]) / "config.yaml").read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith(f"{name}:"))
    start = end
    while lines[start - 1].startswith("#"):
        start -= 1
    return lines[start : end + 1]


def profiles_of_default() -> list[str]:
    """The profiles in the default project's config.yaml, with their comments."""
    lines = (project(ALL[0]) / "config.yaml").read_text(encoding="utf-8").splitlines()
    return lines[lines.index(lines_above("profiles")[0]) :]


def settings_page() -> str:
    paragraphs = []
    section = ""
    for key, variants in sorted_settings():
        name = key.partition(".")[0]
        if name != section:
            section = name
            paragraphs.append(f"## {section}")
        paragraphs.append(setting_entry(key, variants))
    paragraphs += ["## profiles", texts()["profiles"].strip()]
    paragraphs.append(block(profiles_of_default(), "yaml"))
    return page("Settings", "settings", *paragraphs)


def sorted_settings() -> list[tuple[str, Variants]]:
    """Every setting, by sections in the order of config.yaml."""
    order = section_order()
    return sorted(all_settings().items(), key=lambda item: order.index(item[0].partition(".")[0]))


def section_order() -> list[str]:
    """The sections of all projects; one that only some have comes after the one before it there."""
    order: list[str] = []
    for place in PLACES:
        position = -1
        for name in yaml.safe_load((project(*place) / "config.yaml").read_text(encoding="utf-8")):
            if name not in order:
                order.insert(position + 1, name)
            position = order.index(name)
    return order


# --- commands


class Flag(NamedTuple):
    """A flag or an argument of a command."""

    names: str
    meaning: str
    default: str


def commands() -> dict[str, list[str]]:
    """Each command, with the workloads that have it."""
    names: dict[str, list[str]] = {}
    for workload in ALL:
        for name in module("engine.plugins", workload).names("commands"):
            names.setdefault(name, []).append(workload)
    order = list(texts()["commands"])
    return dict(sorted(names.items(), key=lambda item: order.index(item[0])))


def parser(name: str, workload: str) -> Any:
    main = module("__main__", workload)
    return main.make_parser(name, module(f"commands.{name}", workload))


def flags(name: str, workload: str) -> list[Flag]:
    """The flags of a command, without the settings."""
    made = parser(name, workload)
    listed = []
    for action in made._actions:
        is_setting = any("." in option for option in action.option_strings)
        if not is_setting and action.dest != "help":
            listed.append(flag_of(made, action))
    return listed


def flag_of(made: Any, action: argparse.Action) -> Flag:
    meaning = made._get_formatter()._expand_help(action) if action.help else ""
    default = ""
    stated = DEFAULT.search(meaning)
    if stated:
        default = stated[1]
        meaning = meaning[: stated.start()]
    elif action.default not in (None, False, argparse.SUPPRESS, "", []):
        default = str(action.default)
    elif action.required and action.nargs not in ("?", "*"):
        default = "required"
    if not meaning and action.option_strings:
        meaning = texts()["flags"][action.option_strings[0]]
    return Flag(usage(action), meaning, default)


def usage(action: argparse.Action) -> str:
    """`--steps N`, as the help shows it."""
    value = action.metavar or action.dest.upper()
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if action.nargs == 0:
        value = ""
    if action.nargs in ("*", "+"):
        value = f"{value} ..."
    if action.nargs in ("?", "*"):
        value = f"[{value}]"
    return " ".join(filter(None, (", ".join(action.option_strings), str(value))))


def common_flags() -> list[Flag]:
    """The flags that every command has."""
    every = [flags(name, having[0]) for name, having in commands().items()]
    return [flag for flag in every[0] if all(flag in of_command for of_command in every)]


def flag_table(by_place: Mapping[str, list[Flag]], all_places: Sequence[str]) -> str:
    """Flags with the workloads that have them, where these are not all of the command's."""
    owners: dict[Flag, list[str]] = {}
    for place, of_place in by_place.items():
        for flag in of_place:
            owners.setdefault(flag, []).append(place)
    if not owners:
        return ""
    rows = []
    for flag, places in owners.items():
        only = "all" if set(places) == set(all_places) else ", ".join(places)
        rows.append((code(flag.names), flag.meaning, code_word(flag.default), only))
    if all(row[3] == "all" for row in rows):
        return table(("flag", "meaning", "default"), [row[:3] for row in rows])
    return table(("flag", "meaning", "default", "workloads"), rows)


def command_entry(name: str, having: list[str]) -> str:
    shared = common_flags()
    by_workload = {}
    for workload in having:
        by_workload[workload] = [flag for flag in flags(name, workload) if flag not in shared]
    lines = []
    if name in choices("extras"):
        lines.append(f"Only with: extra `{name}`")
    if list(having) != list(ALL):
        lines.append(f"Workloads: {workloads(having)}")
    paragraphs = [f"## `{name}`", purpose(name, having), bullets(lines), examples(name)]
    return "\n\n".join(filter(None, [*paragraphs, flag_table(by_workload, having)]))


def purpose(name: str, having: list[str]) -> str:
    """What a command does: a sentence, or a table if that depends on the workload."""
    owners: dict[str, list[str]] = {}
    for workload in having:
        docstring = module(f"commands.{name}", workload).__doc__ or ""
        owners.setdefault(docstring.partition("\n")[0], []).append(workload)
    if len(owners) == 1:
        return next(iter(owners))
    rows = [(workloads(places), sentence) for sentence, places in owners.items()]
    return table(("workload", "what it does"), rows)


def examples(name: str) -> str:
    lines = []
    for workload, words in examples_of(name):
        is_general = workload in texts()["commands"][name]
        comment = f"  # {workload}" if is_general and len(commands()[name]) > 1 else ""
        lines.append(f"python -m my_training {words}{comment}")
    return block(lines)


def examples_of(name: str) -> Iterator[tuple[str, str]]:
    """Examples of a command: the workload whose project takes it, and the words."""
    for workload, lines in texts()["commands"][name].items():
        for words in lines:
            yield (ALL[0] if workload == "all" else workload), words


def script_settings(workload: str) -> list[Flag]:
    """The flags of the one file of `layout: script`."""
    path = render(workload=workload, layout="script") / "train.py"
    spec: Any = importlib.util.spec_from_file_location(f"train_{workload}", path)
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look it up
    spec.loader.exec_module(script)
    listed = []
    script.Parser.parse_args = lambda parser, arguments: parser  # it is made and used in one go
    for action in script.parse([])["_actions"][1:]:
        meaning, _, default = action.help.partition(" (default: ")
        name = max(action.option_strings, key=lambda flag: flag.count("_"))
        listed.append(Flag(name, meaning.replace("%%", "%"), default.removesuffix(")")))
    return listed


def commands_page() -> str:
    shared = flag_table({"all": common_flags()}, ["all"])
    paragraphs = ["## Flags of every command", shared]
    for name, having in commands().items():
        paragraphs.append(command_entry(name, having))
    scripts = {workload: script_settings(workload) for workload in ALL if workload in SCRIPTS}
    paragraphs += ["## `train.py` of `layout: script`", texts()["script"].strip()]
    paragraphs.append(flag_table(scripts, list(scripts)))
    return page("Commands", "commands", *paragraphs)


# --- environment variables, exit codes


def environment_page() -> str:
    of_settings = [(code(name), switched(name)) for name in module("engine.sources").ENVIRONMENT]
    of_scripts = [(code(workload), codes(script_variables(workload))) for workload in SCRIPTS]
    paragraphs = [table(("variable", "sets"), of_settings)]
    paragraphs += ["## Of `layout: script`", table(("workload", "variables"), of_scripts)]
    for title, names in texts()["environment"].items():
        rows = [(code(name), meaning) for name, meaning in names.items()]
        paragraphs += [f"## {title}", table(("variable", "meaning"), rows)]
    return page("Environment variables", "environment", *paragraphs)


def script_variables(workload: str) -> list[str]:
    """The variables that have an effect in the one file of `layout: script`: it has their flag."""
    source = (render(workload=workload, layout="script") / "train.py").read_text(encoding="utf-8")
    fields = set(re.findall(r"^    (\w+): \w+ = ", source, re.MULTILINE)) | {"use_amp"}
    return [name for name in module("engine.sources").ENVIRONMENT if name.lower() in fields]


def exit_codes_page() -> str:
    rows = [(code(number), meaning) for number, meaning in texts()["exit_codes"].items()]
    return page("Exit codes", "exit_codes", table(("code", "meaning"), rows))


# --- runs and checkpoints


def described_keys(keys: Mapping[str, Any]) -> str:
    """A table of names; `when` and `workloads` of an entry say where it appears."""
    rows = []
    for name, entry in keys.items():
        if isinstance(entry, str):
            entry = {"text": entry}
        conditions = [entry.get("when", ""), ", ".join(entry.get("workloads", ()))]
        rows.append((code(name), entry["text"], "; ".join(filter(None, conditions)) or "always"))
    if all(row[2] == "always" for row in rows):
        return table(("name", "meaning"), [row[:2] for row in rows])
    return table(("name", "meaning", "present"), rows)


def sections(entries: Mapping[str, Any]) -> list[str]:
    """Paragraphs of the entries of reference.yml that have a title, a text and keys."""
    paragraphs = []
    for entry in entries.values():
        paragraphs += [f"## {entry['title']}", entry.get("text", "").strip()]
        paragraphs.append(described_keys(entry["keys"]))
    return paragraphs


def run_folder_page() -> str:
    system = texts()["system"]
    rows = [(code("time"), "seconds since 1970")]
    for name, meaning in module("hooks.watch").COLUMNS.items():
        rows.append((code(name), meaning or system["columns"][name]))
    of_system = ["## `system.csv`", system["text"].strip(), table(("column", "meaning"), rows)]
    return page("Files of a run", "run_folder", *sections(texts()["run_folder"]), *of_system)


def checkpoint_page() -> str:
    number = module("engine.training.checkpoint").FORMAT
    text = f"This page describes format {number}."
    return page("Checkpoints", "checkpoint", text, *sections(texts()["checkpoint"]))


# --- hooks


def hooks_page() -> str:
    docstring = module("hooks").__doc__ or ""
    example = re.findall(r"^    (.*)$|^()$", docstring, flags=re.MULTILINE)
    lines = "\n".join(indented for indented, _ in example).strip().splitlines()
    interface = ["## The interface", block(lines, "python")]
    return page("Hooks", "hooks", *sections(texts()["hooks"]), *interface, shipped_hooks())


def shipped_hooks() -> str:
    """The hooks that projects come with."""
    owners: dict[tuple[str, str], list[str]] = {}
    for workload in ALL:
        for hook in module("engine.plugins", workload).discover("hooks", "Hook"):
            name = hook.__name__.rpartition(".")[2]
            summary = (hook.__doc__ or "").partition("\n")[0]
            owners.setdefault((name, summary), []).append(workload)
    rows = []
    for (name, summary), places in owners.items():
        extra = f"extra `{name}`" if name in choices("extras") else ""
        rows.append((code(f"hooks/{name}.py"), summary, extra, workloads(places)))
    header = ("file", "what it does", "only with", "workloads")
    return "\n\n".join(["## Hooks that projects have", table(header, rows)])


# --- questions


def questions_page() -> str:
    paragraphs = []
    for name, question in questions().items():
        paragraphs.append(question_entry(name, question))
    return page("Questions", "questions", *paragraphs)


def question_entry(name: str, question: Mapping[str, Any]) -> str:
    default = question.get("default")
    computed = isinstance(default, str) and ("{{" in default or "{%" in default)
    shown = code(written(default))
    if computed:
        shown = texts()["questions"][name]["default"]
    asked = "always"
    if "when" in question:
        asked = texts()["questions"][name]["asked"]
    kind = "several answers" if question.get("multiselect") else question["type"]
    lines = [f"Type: {kind}", f"Default: {shown}"]
    if question.get("ask") is False:
        asked = "by Copier before 9.19, and with `--ask`"
    if asked != "always":
        lines.append(f"Asked: {asked}")
    paragraphs = [f"## `{name}`", " ".join(question["help"].split()), bullets(lines), answers(name)]
    return "\n\n".join(filter(None, paragraphs))


def answers(name: str) -> str:
    """The answers that a question offers, each with the reason why it may be refused."""
    if name == "gpu_family":
        rows = [(code(key), family["label"]) for key, family in families().items()]
        return table(("answer", "meaning"), [(code("any"), "no family"), *rows])
    if name == "gpu":
        return texts()["questions"]["gpu"]["answers"].strip()
    refusals = texts()["questions"].get(name, {}).get("refused", {})
    rows = []
    for label, choice in offered(name).items():
        value = choice
        meaning = label.partition(": ")[2]
        if isinstance(choice, Mapping):
            value = choice["value"]
            meaning = f"{meaning}. {refusals[value]}"
        rows.append((code(value), meaning))
    return table(("answer", "meaning"), rows) if rows else ""


# --- GPUs


def gpus_page() -> str:
    cards = ["## Cards", table(CARD, [card_row(key, gpu) for key, gpu in gpus().items()])]
    peaks = [peaks_row(key, gpu) for key, gpu in gpus().items()]
    header = ("answer", "SMs", "GB/s", *PRECISIONS, "sources", "not from the vendor")
    figures = ["## Figures", texts()["gpus"]["figures"].strip(), table(header, peaks)]
    sources = ["## Sources", tags()]
    return page("GPUs", "gpus", *cards, *figures, *sources)


CARD = ("answer", "name", "GB", "capability", "`auto`", "PyTorch", "wheel")


def card_row(key: str, gpu: Mapping[str, Any]) -> Row:
    major, minor = map(int, gpu["sm"].split("."))
    gpus_module = module("engine.compute.gpus")
    card = gpus_module.Card(gpu["label"], (major, minor), hip="rocm" in gpu["wheel"])
    automatic, _ = gpus_module.resolve_precision("auto", card)
    limits = (gpu["memory_gb"], gpu["sm"], automatic, code(gpu["torch"]), code(gpu["wheel"]))
    return (code(key), gpu["label"], *limits)


def peaks_row(key: str, gpu: Mapping[str, Any]) -> Row:
    peaks = []
    for name in PRECISIONS:
        peak = gpu["tflops"][name]
        peaks.append("–" if peak is None else f"{peak:g}")
    unverified = ", ".join(gpu["unverified"])
    return (code(key), gpu["sm_count"], gpu["bandwidth_gb_s"], *peaks, gpu["source"], unverified)


def tags() -> str:
    """The sources of the table by their tags, from the comment at its head."""
    source = (ROOT / "template/tables/gpus.yml").read_text(encoding="utf-8")
    comment = source.partition("# ----")[0].partition("# Tags. ")[2]
    return " ".join(line.lstrip("# ") for line in comment.splitlines())


# --- all pages


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "settings.md": ("Settings", settings_page),
    "commands.md": ("Commands and flags", commands_page),
    "environment.md": ("Environment variables", environment_page),
    "exit-codes.md": ("Exit codes", exit_codes_page),
    "run-folder.md": ("Files of a run, metrics", run_folder_page),
    "checkpoint.md": ("Checkpoints", checkpoint_page),
    "hooks.md": ("Hooks", hooks_page),
    "questions.md": ("Questions of the interview", questions_page),
    "gpus.md": ("GPUs", gpus_page),
}


def index_page() -> str:
    lines = [f"[{title}]({name})" for name, (title, _) in PAGES.items()]
    return page("Reference", "index", bullets(lines))


def pages() -> dict[str, str]:
    """Every page by its file name."""
    made = {"README.md": index_page()}
    for name, (_, make) in PAGES.items():
        made[name] = make()
    return made


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER.relative_to(ROOT) / name)


if __name__ == "__main__":
    main()
