"""Write the one page of a run: report.md with curves.png."""

from __future__ import annotations

import argparse
from typing import Any

from ..engine.errors import UserError
from ..engine.runs import find_run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="name or folder of a run (default: the newest)")


def run(arguments: argparse.Namespace, load: Any) -> None:
    """Writes the page anew, also for a run that is still going; prints where it lies."""
    from ..engine.report import write_report

    folder = find_run(arguments.run)
    try:
        write_report(folder)
    except OSError as error:
        raise UserError(f"the report could not be written ({error.strerror})", str(folder)) from error
    print(folder / "report.md")
