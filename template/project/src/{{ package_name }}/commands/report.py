"""Print a summary of a run, and write its report.md with curves.png."""

from __future__ import annotations

import argparse

from ..engine.runs import add_run, find_run


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)


def main(arguments: argparse.Namespace, load: object) -> None:
    """Write the report, also of a run that is still training; print a summary and its path."""
    from ..engine.monitoring.report import write_report

    folder = find_run(arguments.run)
    for name, text in write_report(folder):
        print(f"{name:<11}{text}")
    print(f"\n{folder / 'report.md'}")
