"""The command line: `python -m <package> COMMAND [--config FILE] [--section.key VALUE]`.

Every file in `commands/` is a command. Only the command that runs is imported, and it imports torch
only when it starts to work, so that help and errors are fast.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .config import ENVIRONMENT, SETTINGS, Settings, load
from .engine.errors import UserError, UserErrors
from .engine.run.explanations import explain
from .engine.runs import ROOT, prepare_process, project_root, typed_path
from .engine.settings.sources import ALIASES, HINTS, SWITCHES, near, show
from .engine.settings.yaml_text import comments
from .engine.signals import end, listen

CONFIG = Path("config.yaml")
COMMANDS = Path(__file__).parent / "commands"
RANK = os.environ.get("RANK", "0")  # what all processes of a run know is printed by rank 0
TOGETHER = ("train", "evaluate")  # commands that can run in several processes
INTERRUPTED = 128 + 2  # the exit code that shells use for SIGINT
CLOSED = 128 + 13  # and for SIGPIPE


def main(words: list[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for a user error, 130 after Ctrl-C."""
    words = sys.argv[1:] if words is None else words
    print_in_any_locale()
    listen(end)
    try:
        return run(words)
    except UserError as error:
        if "--debug" in words:
            raise
        print_error(error)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Otherwise Python reports the closed pipe again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"stopped: the output of {words[0]} was closed", file=sys.stderr)
        return CLOSED


def print_in_any_locale() -> None:
    """Print `?` for a character that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_error(error: UserError) -> None:
    """Print one line for each error. What all processes of a run have found is printed once."""
    known_to_all = isinstance(error, UserErrors) and RANK != "0"
    if error.reported or known_to_all:
        return
    process = "" if RANK == "0" else f"rank {RANK}: "
    for line in error.errors:
        print(f"error: {process}{line}", file=sys.stderr)


def print_note(note: str) -> None:
    if RANK == "0":
        print(f"note: {note}", file=sys.stderr)


def run(words: list[str]) -> int:
    """Find the command, load its settings and run it.

    Raises:
        UserErrors: every error in the command line, the configuration and the environment.
    """
    if words[:1] in (["-h"], ["--help"]):
        print(overview())
        return 0
    name = words[0] if words else ""
    check_command(name)
    prepare_process()
    module = import_module(f".commands.{name}", __package__)

    parser = parser_of(name, module)
    words = [spelled(word) for word in words[1:]]
    try:
        arguments, unknown = parser.parse_known_args(words)
    except SystemExit:  # after --help
        return 0
    errors = parser.unknown(unknown)
    for note in parser.repeated(words):
        print_note(note)
    enter_root()

    settings = partial(load_settings, arguments, errors)
    if errors or arguments.print_config:
        text = settings().to_yaml()  # raises the errors, if there are any
        print(text, end="")
        return 0
    try:
        return module.run(arguments, settings) or 0
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        explained = explain(error, command=name)
        if explained is None:
            raise
        raise explained from error


def command_names() -> list[str]:
    return sorted(path.stem for path in COMMANDS.glob("[!_]*.py"))


def check_command(name: str) -> None:
    """Raise `UserError` if there is no such command, or if it cannot run in several processes."""
    names = command_names()
    if name not in names:
        guess = near(name, names)
        remedy = f"did you mean {guess!r}?" if guess else f"choose one of {', '.join(names)}"
        raise UserError(f"unknown command {name!r}", "command line", remedy)
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1" and name not in TOGETHER:
        where = f"WORLD_SIZE={world_size}"
        raise UserErrors(
            [UserError(f"{name} runs in one process only", where, "start it without torchrun")]
        )


def load_settings(
    arguments: argparse.Namespace, errors: list[UserError], base: Path | None = None
) -> Settings:
    """Load the settings from `base`, the file of a run, or without it from the configuration."""
    read = partial(
        load,
        profile=arguments.profile,
        overrides=[(key, text) for key, text in vars(arguments).items() if "." in key],
        environment=os.environ,
        errors=errors,
    )
    config = arguments.config and Path(arguments.config)
    if base is not None:
        settings = read(base, resolved=True)
        if config is not None:
            require_same(settings, read(config), str(config))
    elif config is not None or CONFIG.exists():
        settings = read(config or CONFIG)
    else:
        settings = read()
        print_note(f"no {CONFIG} in {Path.cwd()}: all settings have their defaults")
    for note in settings.notes:
        print_note(note)
    return settings


def require_same(settings: Settings, others: Settings, config: str) -> None:
    """Raise `UserError` if `--config` names a file with other settings than those of the run."""
    for key in SETTINGS:
        value = settings.value(key)
        other = others.value(key)
        if key != "profiles" and other != value:
            what = f"a run keeps its settings: {key} is {show(value)}, not {show(other)}"
            remedy = f"remove --config, or add --{key} VALUE"
            raise UserError(what, f"--config {config}", remedy)


def enter_root() -> None:
    """Change to the folder that has the settings, the data, the runs and the commit.

    Raises `UserError` if $TRAINING_ROOT is not a folder.
    """
    root = project_root()
    if not os.path.isdir(root):  # Path.is_dir raises for a path that is too long
        raise UserError("the folder does not exist", f"${ROOT} {root}", "create it, or unset it")
    if not root.samefile(Path.cwd()):
        os.chdir(root)
        print_note(f"using the settings, data and runs in {root}")


# --- the command line


def spelled(word: str) -> str:
    """Return a flag as it was declared, since `-` and `_` in a flag mean the same."""
    flag, equals, value = word.partition("=")
    if not flag.startswith("--"):
        return word
    name = flag[2:].replace("-", "_")
    if "." not in name:  # a flag of the command, not a setting
        name = name.replace("_", "-")
    return f"--{name}{equals}{value}"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises its errors as `UserError`."""

    def __init__(self, **options: Any):
        self.repeatable: set[str] = set()
        super().__init__(**options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Declare an argument; a flag gets the spelling that `spelled` returns.

        A flag with a list may be repeated: `--gpu a b` and `--gpu a --gpu b` are the same.
        """
        if names[0].startswith("--") and options.get("nargs") == "+":
            options["action"] = "extend"
        argument = super().add_argument(*map(spelled, names), **options)
        if options.get("action") in ("append", "extend"):
            self.repeatable.add(argument.dest)
        return argument

    def repeated(self, words: list[str]) -> list[str]:
        """Return a note for flags of which only the last one counts."""
        flags: dict[str, list[str]] = {}
        for word in words:
            flag = word.partition("=")[0]
            argument = self._option_string_actions.get(flag)
            if argument is not None and argument.dest not in self.repeatable:
                flags.setdefault(argument.dest, []).append(flag)
        same = [given for given in flags.values() if len(given) > 1]
        return [f"of {', '.join(given)} the last one counts" for given in same]

    def error(self, message: str) -> NoReturn:
        raise UserError(message, "command line", f"see `{self.prog} --help`")

    def unknown(self, words: list[str]) -> list[UserError]:
        """Return an error for each word that argparse did not understand.

        The value of an unknown flag gets no error of its own.
        """
        errors = []
        before = ""
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("-"):
                what = f"unknown option {flag!r}"
                errors.append(UserError(what, "command line", self._remedy(flag)))
            elif not before.startswith("-"):
                what = f"unexpected word {word!r}"
                errors.append(UserError(what, "command line", "remove it"))
            before = word
        return errors

    def _remedy(self, flag: str) -> str:
        """Suggest the flag that was probably meant."""
        guess = near(flag, self._option_string_actions)
        hint = HINTS.get(flag.lstrip("-"))
        if hint:
            guess = f"--{hint}"
        return f"did you mean {guess!r}?" if guess else f"see `{self.prog} --help` for all flags"


def parser_of(name: str, command: ModuleType) -> Parser:
    """Make a command's parser: the flags of every command, its own flags, then all settings."""
    parser = Parser(
        prog=f"python -m {__package__} {name}",
        description=(command.__doc__ or "").partition("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=typed_path, metavar="FILE", help=f"settings file (default: {CONFIG})")
    add("--profile", metavar="NAME", help="profile to apply, from `profiles:` in the settings file")
    add("--print-config", action="store_true", help="print every setting with its origin, and exit")
    add("--debug", action="store_true", help="show the traceback of an error")
    command.arguments(parser)
    parser.usage = parser.format_usage().partition("usage: ")[2]  # leaves out the 70 settings
    all_settings = f"""Every setting is also a flag; `train --help` lists them.
A flag takes precedence over the environment, and the environment over {CONFIG}."""
    group = parser.add_argument_group("settings", all_settings)
    descriptions = describe_settings() if name == "train" else {}
    for key in (*SETTINGS, *ALIASES):
        if "." in key:
            description = descriptions.get(key, argparse.SUPPRESS)
            group.add_argument(
                f"--{key}", dest=key, metavar="VALUE", default=argparse.SUPPRESS, help=description
            )
    return parser


# --- help


def overview() -> str:
    """Return one line for each command, from its file, which is parsed and not imported."""
    lines = [f"usage: python -m {__package__} COMMAND [options]\n"]
    for name in command_names():
        source = (COMMANDS / f"{name}.py").read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(source)) or ""
        lines.append(f"  {name:<10} {docstring.partition(chr(10))[0]}")
    lines.append("\n`COMMAND --help` describes a command; `train --help` also lists every setting.")
    return "\n".join(lines)


def describe_settings() -> dict[str, str]:
    """Return each setting's allowed values, default, environment names and meaning, by key.

    The meaning is the comment above the setting in the project's config.yaml.
    """
    meanings = comments(project_root() / CONFIG)
    names: dict[str, str] = {}
    for name, key in ENVIRONMENT.items():
        target = SWITCHES[key][0] if key in SWITCHES else key
        names[target] = f"{names.get(target, '')}, ${name}"
    descriptions = {}
    for key, setting in SETTINGS.items():
        default = setting.default
        if isinstance(default, bool):
            default = str(default).lower()
        values = f"{setting.allowed} (default {default}{names.get(key, '')})"
        # In a help text of argparse, `%` starts a placeholder.
        descriptions[key] = f"{values} {meanings.get(key, '')}".replace("%", "%%")
    return descriptions


if __name__ == "__main__":
    sys.exit(main())
