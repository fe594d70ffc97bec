"""The command line: `python -m <package> COMMAND [--config FILE] [--section.key VALUE]`.

Every file in `commands/` is a module. Only the one that runs is imported, and torch only when it
runs, so that help and errors are fast.
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
from .engine.explanations import explain
from .engine.runs import ROOT, prepare_process, project_root, typed_path
from .engine.signals import end, listen
from .engine.sources import ALIASES, HINTS, SWITCHES, near
from .engine.yaml_text import comments

CONFIG = Path("config.yaml")
COMMANDS = Path(__file__).parent / "commands"
RANK = os.environ.get("RANK", "0")  # of a run's processes, 0 says what all of them know
TOGETHER = ("train", "evaluate")  # commands for several processes
INTERRUPTED = 128 + 2  # as shells count SIGINT
CLOSED = 128 + 13  # and SIGPIPE


def main(words: list[str] | None = None) -> int:
    """Run one command; return the exit code: 0, 2 for an error of the user, 130 after Ctrl-C."""
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
        # Else Python complains once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"stopped: the output of {words[0]} was closed", file=sys.stderr)
        return CLOSED


def print_in_any_locale() -> None:
    """Replace a character that the terminal's encoding does not have, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_error(error: UserError) -> None:
    """Print one line for each error, once in all processes of a run."""
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
    """Find the command and its settings, and run it.

    Raises:
        UserErrors: all errors of command line, configuration and environment.
    """
    if words[:1] in (["-h"], ["--help"]):
        print(overview())
        return 0
    name = words[0] if words else ""
    check_command(name)
    prepare_process()
    module = import_module(f".commands.{name}", __package__)

    parser = parser_of(name, module)
    try:
        arguments, unknown = parser.parse_known_args([spelled(word) for word in words[1:]])
    except SystemExit:  # after --help
        return 0
    mistakes = parser.unknown(unknown)
    enter_root()

    settings = partial(load_settings, arguments, mistakes)
    if mistakes or arguments.print_config:
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
    """Raise `UserError` where there is no such module, or it cannot run in several processes."""
    names = command_names()
    if name not in names:
        guess = near(name, names)
        remedy = f"did you mean {guess!r}?" if guess else f"begin with one of {', '.join(names)}"
        raise UserError(f"no command {name!r}", "command line", remedy)
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1" and name not in TOGETHER:
        where = f"WORLD_SIZE={world_size}"
        raise UserErrors(
            [UserError(f"{name} runs in one process", where, "start it without torchrun")]
        )


def load_settings(
    arguments: argparse.Namespace, mistakes: list[UserError], base: Path | None = None
) -> Settings:
    """Load the settings of `base`, a run's file, else those of the configuration."""
    config = base or arguments.config
    if config is None and CONFIG.exists():
        config = CONFIG
    settings = load(
        config and Path(config),
        arguments.profile,
        [(key, text) for key, text in vars(arguments).items() if "." in key],
        os.environ,
        resolved=base is not None,
        mistakes=mistakes,
    )
    if config is None:
        print_note(f"no {CONFIG} in {Path.cwd()}: each setting has its default")
    for note in settings.notes:
        print_note(note)
    return settings


def enter_root() -> None:
    """Go to where settings, data, runs and the commit are.

    Raises `UserError` where $TRAINING_ROOT is no folder.
    """
    root = project_root()
    if not root.is_dir():
        raise UserError("there is no such folder", f"${ROOT} {root}", "make it, or unset the name")
    if not root.samefile(Path.cwd()):
        os.chdir(root)
        print_note(f"settings, data and runs are those of {root}")


# --- words of the command line


def spelled(word: str) -> str:
    """Spell a flag as it was declared: in a flag, `-` and `_` are the same."""
    flag, equals, value = word.partition("=")
    if not flag.startswith("--"):
        return word
    name = flag[2:].replace("-", "_")
    if "." not in name:  # that of no setting
        name = name.replace("_", "-")
    return f"--{name}{equals}{value}"


class Parser(argparse.ArgumentParser):
    """argparse whose errors are lines like all others."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Declare an argument, a flag as `spelled` writes it."""
        return super().add_argument(*map(spelled, names), **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(message, "command line", f"`{self.prog} --help` explains")

    def unknown(self, words: list[str]) -> list[UserError]:
        """Return a line for each word that argparse did not understand.

        The values of unknown flags get none.
        """
        mistakes = []
        before = ""
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("-"):
                what = f"unknown option {flag!r}"
                mistakes.append(UserError(what, "command line", self._remedy(flag)))
            elif not before.startswith("-"):
                what = f"unexpected word {word!r}"
                mistakes.append(UserError(what, "command line", "take it out"))
            before = word
        return mistakes

    def _remedy(self, flag: str) -> str:
        """Name the flag that was probably meant."""
        guess = near(flag, self._option_string_actions)
        hint = HINTS.get(flag.lstrip("-"))
        if hint:
            guess = f"--{hint}"
        return f"did you mean {guess!r}?" if guess else f"`{self.prog} --help` lists all"


def parser_of(name: str, command: ModuleType) -> Parser:
    """Make the parser of a command: the flags that all have, then its own, then all settings."""
    parser = Parser(
        prog=f"python -m {__package__} {name}",
        description=(command.__doc__ or "").partition("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=typed_path, metavar="FILE", help=f"settings (default: {CONFIG})")
    add("--profile", metavar="NAME", help="overlay of `profiles:` in the configuration")
    add("--print-config", action="store_true", help="print every setting and its origin, and stop")
    add("--debug", action="store_true", help="show the traceback of an error")
    command.arguments(parser)
    parser.usage = parser.format_usage().partition("usage: ")[2]  # without 70 settings
    all_settings = f"""each one is a flag too; `train --help` lists them
a flag is stronger than the environment, which is stronger than {CONFIG}"""
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
    """Return one line for each module, from its file: it is parsed, not imported, to be quick."""
    lines = [f"usage: python -m {__package__} COMMAND [options]\n"]
    for name in command_names():
        source = (COMMANDS / f"{name}.py").read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(source)) or ""
        lines.append(f"  {name:<10} {docstring.partition(chr(10))[0]}")
    lines.append("\nCOMMAND --help explains a command; train --help also lists every setting.")
    return "\n".join(lines)


def describe_settings() -> dict[str, str]:
    """Return allowed values, default, environment names and meaning of each setting, by its key.

    The meaning is the comment above it in the project's config.yaml.
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
        # argparse formats a help text with `%`.
        descriptions[key] = f"{values} {meanings.get(key, '')}".replace("%", "%%")
    return descriptions


if __name__ == "__main__":
    sys.exit(main())
