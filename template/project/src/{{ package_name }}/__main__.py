"""The command line: `python -m <package> VERB [--config FILE] [--section.key VALUE]`.

Every file in `commands/` is a verb. Only the verb that runs is imported, and torch only when it
runs, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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
INTERRUPTED = 128 + 2  # as shells count SIGINT
CLOSED = 128 + 13  # and SIGPIPE


def main(words: list[str] | None = None) -> int:
    """Run one verb; return the exit code: 0, 2 for a mistake of the user, 130 after Ctrl-C."""
    words = sys.argv[1:] if words is None else words
    print_in_any_locale()
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
    for line in getattr(error, "errors", [error]):
        print(f"error: {process}{line}", file=sys.stderr)


def run(words: list[str]) -> int:
    """Find the verb and its settings, and run it.

    Raises:
        UserErrors: all mistakes of command line, configuration and environment.
    """
    verbs = sorted(path.stem for path in COMMANDS.glob("[!_]*.py"))
    if words[:1] in (["-h"], ["--help"]):
        print(overview(verbs))
        return 0
    verb = words[0] if words else ""
    check_verb(verb, verbs)
    prepare_process()
    command = import_module(f".commands.{verb}", __package__)

    # Settings are taken out first: argparse would take their values for other words.
    other_words, overrides, mistakes = split_settings(words[1:])
    parser = parser_of(verb, command)
    try:
        arguments, unknown = parser.parse_known_args(parser.as_declared(other_words))
    except SystemExit:  # after --help
        return 0
    mistakes += parser.unknown(unknown)
    moved = enter_root(parser, arguments)
    invocation = Invocation(arguments, overrides, mistakes, moved)

    if mistakes or arguments.print_config:
        print(
            invocation.settings().to_yaml(), end=""
        )  # not where there are mistakes: it raises them
        return 0
    try:
        return command.run(arguments, invocation.settings) or 0
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        explained = explain(error, verb)
        if explained is None:
            raise
        raise explained from error


def check_verb(verb: str, verbs: list[str]) -> None:
    """Raise `UserError` where there is no such verb, or it cannot run in several processes."""
    if verb not in verbs:
        guess = near([verb], verbs)
        remedy = f"did you mean {guess!r}?" if guess else f"begin with one of {', '.join(verbs)}"
        raise UserError(f"no verb {verb!r}", "command line", remedy)
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1" and verb not in TOGETHER:
        where = f"WORLD_SIZE={world_size}"
        what = f"{verb} runs in one process"
        raise UserErrors([UserError(what, where, "start it without torchrun")])


@dataclass
class Invocation:
    """What was given on the command line. `settings` is the `load` that a verb gets."""

    arguments: argparse.Namespace
    overrides: list[tuple[str, str]]  # key and text of each setting
    mistakes: list[UserError]
    moved: bool  # whether the project is not where the command was typed

    def settings(self, base: Path | None = None) -> Settings:
        """Load the settings of `base`, a run's file, else those of the configuration."""
        config = base or self.arguments.config
        if config is None and CONFIG.exists():
            config = CONFIG
        settings = load(
            config,
            self.arguments.profile,
            self.overrides,
            os.environ,
            resolved=base is not None,
            mistakes=self.mistakes,
        )

        notes = []
        if config is None:
            notes.append(f"no {CONFIG} in {Path.cwd()}: each setting has its default")
        elif self.moved:
            notes.append(f"settings of {config.absolute()}")
        notes += settings.notes
        if RANK == "0":
            for note in notes:
                print(f"note: {note}", file=sys.stderr)
        return settings


def explain(error: Exception, verb: str) -> UserError | None:
    """Return the line for a failure that no verb explains itself; None for any other error."""
    explained = unloadable(error, __package__ or "")
    if explained is not None:
        return explained

    said = str(error)
    on_gpu = gpu_memory(error)
    if not on_gpu and "CUDA driver error" in said:  # a virtual GPU, or WSL
        remedy = "try PYTORCH_ALLOC_CONF=expandable_segments:False"
        return UserError(said.partition("\n")[0], verb, remedy)
    if on_gpu or isinstance(error, MemoryError) or "can't allocate memory" in said:
        memory = "GPU memory" if on_gpu else "memory"
        batches = "smaller batches: --evaluation.batch_size, --data.batch_size"
        return UserError(f"out of {memory}", verb, f"{batches}; or end what else runs")
    return None


def enter_root(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> bool:
    """Go to where settings, data, runs and the commit are; return whether that is another folder.

    It is the folder of pyproject.toml above the package, or the working directory where there is
    none, as for a package that was installed elsewhere. What one gives as FILE, FOLDER or PATH is
    meant from the working directory, and so is a RUN that is a path there. Raises `UserError` where
    $TRAINING_ROOT is no folder.
    """
    above = (path for path in Path(__file__).parents[1:3] if (path / "pyproject.toml").exists())
    root = Path(os.environ.get(ROOT) or next(above, ".")).absolute()
    if not root.is_dir():
        raise UserError("there is no such folder", f"${ROOT} {root}", "make it, or unset the name")
    if root.samefile(Path.cwd()):
        return False

    for action in parser._actions:
        value = getattr(arguments, action.dest, None)
        if isinstance(value, list):
            paths = [from_here(action.metavar, word) for word in value]
            setattr(arguments, action.dest, paths)
        elif value:
            setattr(arguments, action.dest, from_here(action.metavar, value))
    os.chdir(root)
    if RANK == "0":
        print(f"note: data and runs are those of {root}", file=sys.stderr)
    return True


def from_here(metavar: object, value: Any) -> Any:
    """Return an argument as an absolute path, where it is meant from the working directory."""
    is_path_of_run = metavar == "RUN" and os.sep in value and os.path.isdir(value)
    if is_path_of_run or metavar in ("FILE", "FOLDER", "PATH"):
        return type(value)(os.path.abspath(value))
    return value


def split_settings(words: list[str]) -> tuple[list[str], list[tuple[str, str]], list[UserError]]:
    """Separate `--section.key VALUE` and `--section.key=VALUE`: (other words, settings, mistakes).

    argparse cannot do it: it would take the value of a flag that it does not know for a RUN or a
    FILE.
    """
    other_words = []
    overrides = []
    mistakes = []
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or "." not in flag:
            other_words.append(word)
        elif equals:
            overrides.append((plain_name(flag), value))
        elif waiting and not waiting[-1].startswith("--"):
            overrides.append((plain_name(flag), waiting.pop()))
        else:
            remedy = f"write {flag} VALUE"
            mistakes.append(UserError(f"{flag} has no value", "command line", remedy))
    return other_words, overrides, mistakes


def plain_name(flag: str) -> str:
    """Return the name that a flag sets: `--data.batch-size` is the same as `--data.batch_size`."""
    return flag.lstrip("-").replace("-", "_")


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are lines like all others, and that takes `-` for `_` in a flag."""

    def as_declared(self, words: list[str]) -> list[str]:
        """Return the words, each flag as the command declares it; all after `--` stay."""
        declared = {}
        for flag in self._option_string_actions:
            if flag.startswith("--"):
                declared[plain_name(flag)] = flag

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
        """Return a line for each word that argparse did not understand.

        The values of unknown flags get none.
        """
        mistakes = []
        for before, word in zip(["", *words], words, strict=False):
            flag = word.partition("=")[0]
            if flag.startswith("-"):
                guess = self._nearest(flag)
                remedy = f"`{self.prog} --help` lists all"
                if guess:
                    remedy = f"did you mean {guess!r}?"
                mistakes.append(UserError(f"unknown option {flag!r}", "command line", remedy))
            elif not before.startswith("-"):
                what = f"unexpected word {word!r}"
                mistakes.append(UserError(what, "command line", "take it out"))
        return mistakes

    def _nearest(self, flag: str) -> str:
        """Return the flag, or the flag of a setting, that was probably meant; empty for none."""
        guess = near([flag], self._option_string_actions)
        if guess:
            return guess
        key = sources().nearest(plain_name(flag)) or ""
        return f"--{key}" if "." in key else ""


def parser_of(verb: str, command: ModuleType) -> Parser:
    """Make the parser of a verb: the flags that all have, then its own."""
    epilog = "`train --help` lists the flags of all settings."
    if verb == "train":
        epilog = settings_help()
    parser = Parser(
        prog=f"python -m {__package__} {verb}",
        description=(command.__doc__ or "").partition("\n")[0],
        epilog=epilog,
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
    """Return one line for each verb, from its file: it is parsed, not imported, to be quick."""
    lines = [f"usage: python -m {__package__} VERB [options]\n"]
    for verb in verbs:
        source = (COMMANDS / f"{verb}.py").read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(source)) or ""
        meaning = docstring.partition("\n")[0]
        lines.append(f"  {verb:<10} {meaning}")
    lines.append("\nVERB --help explains a verb; train --help also lists every setting.")
    return "\n".join(lines)


def settings_help() -> str:
    """Describe every setting: name, allowed values, meaning, default and environment name."""
    return "\n".join(_settings_help())


def _settings_help() -> Iterator[str]:
    names = {key: name for name, key in ENVIRONMENT.items()}
    stronger = "a flag is stronger than the environment ($NAME), which is stronger than"
    yield f"settings: {stronger} {CONFIG}"
    shown = ""
    for key, setting in SETTINGS.items():
        section, dot, _ = key.partition(".")
        if not dot:
            yield f"\n  {key} (in {CONFIG} only): {setting.meaning}"
            continue
        if section != shown:
            yield f"\n{section}: {Settings.model_fields[section].annotation.__doc__}"
            shown = section
        default = setting.default
        if isinstance(default, bool):
            default = str(default).lower()
        name = f", ${names[key]}" if key in names else ""
        yield f"  --{key}  {setting.allowed}"
        yield f"      {setting.meaning} (default {default}{name})"
    yield "\nenvironment only:"
    yield f"  ${ROOT}  a folder: where {CONFIG}, data and runs lie"
    for key, switch in SWITCHES.items():
        yield f"  ${names[key]}  {switch.allowed}: {switch.meaning}"


if __name__ == "__main__":
    sys.exit(main())
