"""Summarize a run here and in its report.md with curves.png; or compare several, with --compare."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..engine.runs import RUNS, all_runs, find_run, typed_run


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "run",
        nargs="?",
        type=typed_run,
        metavar="RUN",
        help="name or folder of a run (default: the newest)",
    )
    several = f"compare these runs, or all of {RUNS}/: a table, {RUNS}/compare.md and compare.png"
    add("--compare", nargs="*", type=typed_run, metavar="RUN", help=several)
    add("--open", action="store_true", help="show the page in the browser, if this machine has one")


def run(arguments: argparse.Namespace, load: Any) -> None:
    """Write the page again, also of a run that is still training; print a summary and its path."""
    from ..engine.report import print_lines

    try:
        if arguments.compare is None:
            lines, page = one_run(arguments.run)
        else:
            lines, page = several_runs([*filter(None, [arguments.run]), *arguments.compare])
    except OSError as error:
        what = f"the report could not be written ({error.strerror})"
        raise UserError(what, str(error.filename)) from error
    print_lines([*lines, "", str(page)])
    if arguments.open and not webbrowser.open(page.resolve().as_uri()):
        print("note: this machine has no browser to show the page", file=sys.stderr)


def one_run(name: str | None) -> tuple[list[str], Path]:
    """Write a run's page; return the summary and the path of the page."""
    from ..engine.record import read_run
    from ..engine.report import summary, write_report

    folder = find_run(name)
    write_report(folder)
    lines = [("run", folder.name), *summary(read_run(folder))]
    return [f"{name:<11}{text}" for name, text in lines], folder / "report.md"


def several_runs(names: list[str]) -> tuple[list[str], Path]:
    """Compare these runs, or all; return the table and the path of the page."""
    from ..engine.comparison import write_comparison

    # `find_run` says what to do where there is no run at all.
    folders = [find_run(name) for name in names] if names else all_runs() or [find_run()]
    return write_comparison(folders, RUNS)
