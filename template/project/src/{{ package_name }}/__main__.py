"""The command line: `python -m <package> COMMAND [--config FILE] [--section.key VALUE]`.

Every file in `commands/` is a command. It imports torch only when it starts to work, so that help
and errors are fast.
"""

from __future__ import annotations

from .engine.signals import end, listen

if __name__ == "__main__":
    listen(end)  # a signal may come during the imports below

import argparse
import io
import json
import os
import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from .engine.errors import UserError, note, print_errors
from .engine.files import exists
from .engine.plugins import names
from .engine.runs import check_processes, prepare_process, project_root, typed_path
from .engine.settings import catalogue
from .engine.sources import ENVIRONMENT, suggestion
from .engine.training.explanations import explain
from .settings import Settings

CONFIG = Path("config.yaml")
SETTINGS = catalogue(Settings)
INTERRUPTED = 128 + 2  # the exit code that shells use for SIGINT
CLOSED = 128 + 13  # and for SIGPIPE


def main(words: list[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for a user error, 130 after Ctrl-C."""
    words = sys.argv[1:] if words is None else words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print `?` for what a terminal lacks
    listen(end)
    try:
        return dispatch(words)
    except UserError as error:
        if "--debug" in words:
            raise
        print_errors(error)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Otherwise Python reports the closed pipe again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"stopped: the output of {words[0]} was closed", file=sys.stderr)
        return CLOSED


def dispatch(words: list[str]) -> int:
    """Find the command, load its settings and run it.

    Raises:
        UserErrors: every error in the command line, the configuration and the environment.
    """
    name = words[0] if words else ""
    if name in ("", "-h", "--help"):
        print(overview())
        return 0 if words else 2
    check_command(name)
    check_processes(name)
    prepare_process()
    command = import_module(f".commands.{name}", __package__)
    parser = make_parser(name, command)
    try:
        arguments, unknown = parser.parse_known_args(map(with_underscores, words[1:]))
    except SystemExit:  # after --help
        return 0
    errors = parser.explain(unknown)
    settings = partial(load_settings, arguments, errors)
    try:
        enter_root()
        if errors or arguments.print_config:
            print(settings().to_yaml(), end="")  # raises the errors, if there are any
            return 0
        return command.main(arguments, settings) or 0
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        explained = explain(error, command=name)
        if explained is None:
            raise
        raise explained from error


def check_command(name: str) -> None:
    """Raise `UserError` if there is no such command."""
    commands = names("commands")
    if name not in commands:
        remedy = f"choose one of {', '.join(commands)}"
        raise UserError(f"unknown command {name!r}", "command line", remedy)


def load_settings(
    arguments: argparse.Namespace, errors: list[UserError], base: Path | None = None
) -> Settings:
    """Load the settings from `base`, the file of a run, or without it from the configuration."""
    config = arguments.config
    if base is not None and config is not None:
        where = f"--config {config}"
        raise UserError("a run keeps its settings", where, "remove it, or add --section.key VALUE")
    if config is None and exists(CONFIG):
        config = CONFIG
    settings = Settings.load(
        base or config,
        arguments.profile,
        [(key, text) for key, text in vars(arguments).items() if key in SETTINGS],
        os.environ,
        resolved=base is not None,
        errors=errors,
    )
    if base is None and config is None:
        note(f"no {CONFIG} in {Path.cwd()}: all settings have their defaults")
    return settings


def with_underscores(word: str) -> str:
    """Return a flag of a setting with `_` for `-`, and any other word as it is."""
    flag = re.match(r"--([\w-]+\.[\w.-]+)", word)
    return f"--{flag[1].replace('-', '_')}{word[flag.end() :]}" if flag else word


def enter_root() -> None:
    """Change to the folder that has the settings, the data, the runs and the commit."""
    root = project_root()
    if not root.samefile(Path.cwd()):
        os.chdir(root)
        note(f"using the settings, data and runs in {root}")


# --- the command line


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises its errors as `UserError`."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message, "command line", f"see `{self.prog} --help`")

    def explain(self, unknown: list[str]) -> list[UserError]:
        """Return an error for each flag that argparse did not understand, or for a stray word."""
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        known = self._option_string_actions
        return [
            UserError(f"unknown option {word!r}", "command line", suggestion(word, known))
            for word in flags or unknown
        ]


def make_parser(name: str, command: ModuleType) -> Parser:
    """Make a command's parser: the flags of every command, then its own."""
    parser = Parser(
        prog=f"python -m {__package__} {name}",
        usage="%(prog)s [options] [--section.key VALUE ...]",
        description=(command.__doc__ or "").partition("\n")[0],
        epilog="A flag takes precedence over the environment, and the environment over the file.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=typed_path, metavar="FILE", help=f"settings file (default: {CONFIG})")
    add("--profile", help="profile to apply, from `profiles:` in the settings file")
    add("--print-config", action="store_true", help="print every setting with its origin, and exit")
    add("--debug", action="store_true", help="show the traceback of an error")
    # Settings come first: `--max_steps` elsewhere is `--training.max_steps`, not `--max-steps`.
    add_settings(parser, described=name == "train")
    command.arguments(parser)
    return parser


# --- help


def overview() -> str:
    """Return one line for each command."""
    lines = [f"usage: python -m {__package__} COMMAND [options]\n"]
    for name in names("commands"):
        command = import_module(f".commands.{name}", __package__)
        summary = (command.__doc__ or "").partition("\n")[0]
        lines.append(f"  {name:<10} {summary}")
    lines.append("\n`COMMAND --help` describes a command; `train --help` also lists every setting.")
    return "\n".join(lines)


def add_settings(parser: argparse.ArgumentParser, described: bool) -> None:
    """Make every setting a flag; describe it with its meaning, default and environment."""
    purpose = "Each setting is a flag of every command; `train --help` describes them."
    add = parser.add_argument_group("settings", purpose).add_argument
    for key, setting in SETTINGS.items():
        text = argparse.SUPPRESS
        if described:
            default = f"default: {json.dumps(setting.default)}"
            variables = [f", ${name}" for name, target in ENVIRONMENT.items() if target == key]
            text = f"{setting.description} ({default}{''.join(variables)})"
        # In a help text of argparse, `%` starts a placeholder.
        add(f"--{key}", metavar="VALUE", default=argparse.SUPPRESS, help=text.replace("%", "%%"))


if __name__ == "__main__":
    sys.exit(main())
