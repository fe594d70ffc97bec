"""The command line: `python -m <package> VERB [--config FILE] [--profile NAME] [--section.key VALUE]`.

Every file in `commands/` is a verb. Only the verb that runs is imported, and torch only when it
runs, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .config import ENVIRONMENT, SETTINGS, SWITCHES, Settings, load, sources
from .engine.config import near
from .engine.errors import UserError, UserErrors, gpu_memory, unloadable
from .engine.runs import prepare_process

CONFIG = Path("config.yaml")
COMMANDS = Path(__file__).parent / "commands"
ROOT = "TRAINING_ROOT"  # the environment's name for another folder than the project's
RANK = os.environ.get("RANK", "0")  # of a run's processes, 0 says what all of them know
TOGETHER = ("train", "evaluate")  # verbs for several processes
INTERRUPTED, CLOSED = 128 + 2, 128 + 13  # as shells count SIGINT and SIGPIPE


def main(words: list[str] | None = None) -> int:
    """Runs one verb and returns the exit code: 0, 2 for a mistake of the user, 130 after Ctrl-C."""
    words = sys.argv[1:] if words is None else words
    print_in_any_locale()
    try:
        return run(words)
    except UserError as error:
        if "--debug" in words:
            raise
        if not error.reported and (RANK == "0" or not isinstance(error, UserErrors)):
            for line in getattr(error, "errors", [error]):
                print(f"error: {'' if RANK == '0' else f'rank {RANK}: '}{line}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Else Python complains once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"stopped: the output of {words[0]} was closed", file=sys.stderr)
        return CLOSED


def print_in_any_locale() -> None:
    """Let what is printed lack a sign that the terminal's encoding does not have, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run(words: list[str]) -> int:
    """Finds the verb and its settings, and runs it.

    Raises:
        UserErrors: all mistakes of command line, configuration and environment.
    """
    verbs = sorted(path.stem for path in COMMANDS.glob("[!_]*.py"))
    if words[:1] in (["-h"], ["--help"]):
        print(overview(verbs))
        return 0
    verb = words[0] if words else ""
    if verb not in verbs:
        guess = near([verb], verbs)
        remedy = f"did you mean {guess!r}?" if guess else f"begin with one of {', '.join(verbs)}"
        raise UserError(f"no verb {verb!r}", "command line", remedy)
    if os.environ.get("WORLD_SIZE", "1") != "1" and verb not in TOGETHER:
        where = f"WORLD_SIZE={os.environ['WORLD_SIZE']}"
        raise UserErrors([UserError(f"{verb} runs in one process", where, "start it without torchrun")])
    prepare_process()
    command = import_module(f".commands.{verb}", __package__)
    rest, overrides, mistakes = split_settings(words[1:])
    parser = parser_of(verb, command)
    try:
        arguments, unknown = parser.parse_known_args(parser.as_declared(rest))
    except SystemExit:  # after --help
        return 0
    mistakes += parser.unknown(unknown)
    moved = enter_root(parser, arguments)

    def settings(base: Path | None = None) -> Settings:
        """The `load` that a verb gets; `load(base=FILE)` takes a run's settings for the configuration."""
        config, resumed = base or arguments.config or (CONFIG if CONFIG.exists() else None), base is not None
        found = load(config, arguments.profile, overrides, os.environ, resolved=resumed, mistakes=mistakes)
        taken = [f"settings of {config.absolute()}"] if config and moved else []
        taken += [] if config else [f"no {CONFIG} in {Path.cwd()}: each setting has its default"]
        for note in [*taken, *found.notes] if RANK == "0" else ():
            print(f"note: {note}", file=sys.stderr)
        return found

    if mistakes or arguments.print_config:
        print(settings().to_yaml(), end="")  # not where there are mistakes: it raises them
        return 0
    try:
        return command.run(arguments, settings) or 0
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        if line := unloadable(error, __package__ or ""):
            raise line from error
        if not (gpu := gpu_memory(error)) and "CUDA driver error" in str(error):  # a virtual GPU, or WSL
            remedy = "try PYTORCH_ALLOC_CONF=expandable_segments:False"
            raise UserError(str(error).partition("\n")[0], verb, remedy) from error
        if not (gpu or isinstance(error, MemoryError) or "can't allocate memory" in str(error)):
            raise
        remedy = "smaller batches: --evaluation.batch_size, --data.batch_size; or end what else runs"
        raise UserError(f"out of {'GPU ' if gpu else ''}memory", verb, remedy) from error


def enter_root(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> bool:
    """Goes to where settings, data, runs and the commit are; whether that is not where one stood.

    It is the folder of pyproject.toml above the package, or the working directory where there is none, as for
    a package that was installed elsewhere. What one gives as FILE, FOLDER or PATH is meant from where one
    stands, and so is a RUN that is a path there. Raises `UserError` where $TRAINING_ROOT is no folder.
    """
    above = (x for x in Path(__file__).parents[1:3] if (x / "pyproject.toml").exists())
    root = Path(os.environ.get(ROOT) or next(above, ".")).absolute()
    if not root.is_dir():
        raise UserError("there is no such folder", f"${ROOT} {root}", "make it, or unset the name")
    if root.samefile(Path.cwd()):
        return False
    for action in parser._actions:
        value = getattr(arguments, action.dest, None)
        if isinstance(value, list):
            setattr(arguments, action.dest, [from_here(action.metavar, word) for word in value])
        elif value:
            setattr(arguments, action.dest, from_here(action.metavar, value))
    os.chdir(root)
    if RANK == "0":
        print(f"note: data and runs are those of {root}", file=sys.stderr)
    return True


def from_here(metavar: object, value: Any) -> Any:
    """An argument as an absolute path, where it is meant from the working directory."""
    path = metavar == "RUN" and os.sep in value and os.path.isdir(value)
    if path or metavar in ("FILE", "FOLDER", "PATH"):
        return type(value)(os.path.abspath(value))
    return value


def split_settings(words: list[str]) -> tuple[list[str], list[tuple[str, str]], list[UserError]]:
    """Takes `--section.key VALUE` and `--section.key=VALUE` out: (other words, settings, mistakes).

    argparse cannot do it: it would take the value of a flag that it does not know for a RUN or a FILE.
    """
    rest, overrides, mistakes = [], [], []
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or "." not in flag:
            rest.append(word)
        elif equals:
            overrides.append((plain_name(flag), value))
        elif waiting and not waiting[-1].startswith("--"):
            overrides.append((plain_name(flag), waiting.pop()))
        else:
            mistakes.append(UserError(f"{flag} has no value", "command line", f"write {flag} VALUE"))
    return rest, overrides, mistakes


def plain_name(flag: str) -> str:
    """The name that a flag sets: `--data.batch-size` and `--data.batch_size` are the same."""
    return flag.lstrip("-").replace("-", "_")


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are lines like all others, and to which `-` and `_` in a flag are the same."""

    def as_declared(self, words: list[str]) -> list[str]:
        """The words with each flag written as the command declares it; all after `--` stay."""
        declared = {plain_name(flag): flag for flag in self._option_string_actions if flag.startswith("--")}
        end = words.index("--") if "--" in words else len(words)
        written = []
        for word in words[:end]:
            flag, equals, value = word.partition("=")
            if flag.startswith("--"):
                flag = declared.get(plain_name(flag), flag)
            written.append(f"{flag}{equals}{value}")
        return written + words[end:]

    def error(self, message: str) -> NoReturn:
        raise UserError(message, "command line", f"`{self.prog} --help` explains")

    def unknown(self, words: list[str]) -> list[UserError]:
        """A line for each word that argparse did not understand; the values of unknown flags are silent."""
        mistakes = []
        for before, word in zip(["", *words], words, strict=False):
            flag = word.partition("=")[0]
            if flag.startswith("-"):
                key = sources().nearest(flag.lstrip("-").replace("-", "_")) or ""
                guess = near([flag], self._option_string_actions) or (f"--{key}" if "." in key else "")
                remedy = f"did you mean {guess!r}?" if guess else f"`{self.prog} --help` lists all"
                mistakes.append(UserError(f"unknown option {flag!r}", "command line", remedy))
            elif not before.startswith("-"):
                mistakes.append(UserError(f"unexpected word {word!r}", "command line", "take it out"))
        return mistakes


def parser_of(verb: str, command: ModuleType) -> Parser:
    parser = Parser(
        prog=f"python -m {__package__} {verb}",
        description=(command.__doc__ or "").partition("\n")[0],
        epilog=settings_help() if verb == "train" else "`train --help` lists the flags of all settings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help=f"settings (default: {CONFIG}, if it exists)")
    add("--profile", metavar="NAME", help="overlay of `profiles:` in the configuration")
    add("--print-config", action="store_true", help="print every setting and its origin, and stop")
    add("--debug", action="store_true", help="show the traceback of an error")
    command.arguments(parser)
    return parser


def overview(verbs: list[str]) -> str:
    """One line for each verb. The files are parsed, not imported: yours may import what it likes."""
    lines = [f"usage: python -m {__package__} VERB [options]\n"]
    for verb in verbs:
        source = (COMMANDS / f"{verb}.py").read_text(encoding="utf-8")
        meaning = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        lines.append(f"  {verb:<10} {meaning}")
    return "\n".join([*lines, "\nVERB --help explains a verb; train --help also lists every setting."])


def settings_help() -> str:
    """Every setting: name, allowed values, meaning, default and environment name."""
    names = {key: name for name, key in ENVIRONMENT.items()}
    lines = [f"settings: a flag is stronger than the environment ($NAME), which is stronger than {CONFIG}"]
    section = ""
    for key, setting in SETTINGS.items():
        if "." not in key:
            lines += ["", f"  {key} (in {CONFIG} only): {setting.meaning}"]
            continue
        if section != (section := key.partition(".")[0]):
            lines += ["", f"{section}: {Settings.model_fields[section].annotation.__doc__}"]
        default = str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
        name = f", ${names[key]}" if key in names else ""
        lines += [f"  --{key}  {setting.allowed}", f"      {setting.meaning} (default {default}{name})"]
    lines += ["", "environment only:", f"  ${ROOT}  a folder: where {CONFIG}, data and runs lie"]
    lines += [f"  ${names[key]}  {switch.allowed}: {switch.meaning}" for key, switch in SWITCHES.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
