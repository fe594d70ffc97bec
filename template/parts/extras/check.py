"""Hold your model and your data to their contract, in a minute on the CPU.

Takes the prepared data, or the synthetic sample, and fresh models. Exits with 0, or with 1 when a check
failed: its line says why, and where to look.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import UserError
from ..engine.report import print_lines

if TYPE_CHECKING:
    from ..config import Settings
    from ..measure.bench import Bench


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--only",
        action="append",
        metavar="NAME",
        help="one check, by the name in its line; repeatable",
    )
    most = "samples of each split that the check `samples` looks at (default: %(default)s)"
    add("--samples", type=int, default=2048, metavar="N", help=most)


def run(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """A line for each check; what depends on one that failed is skipped, and its line names that one."""
    if arguments.samples < 1:
        raise UserError(
            f"{arguments.samples} samples cannot be looked at", "--samples", "give at least 1"
        )
    settings = load()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks for one

    from ..measure.bench import Bench
    from ..measure.contract import CHECKS, DEPENDS_ON

    checks = {check.__name__.removeprefix("check_"): check for check in CHECKS}
    if unknown := [name for name in arguments.only or () if name not in checks]:
        raise UserError(
            f"there is no check {unknown[0]!r}", "--only", f"choose of {', '.join(checks)}"
        )
    bench, states = Bench(settings, arguments.samples), dict[str, str]()
    for name, check in checks.items():
        if name in (arguments.only or checks):
            cause = failed_before(name, states, DEPENDS_ON)
            state, line = ("skipped", f"because {cause} failed") if cause else attempt(check, bench)
            print_lines([f"{state:9} {name:11} {line}"])
            sys.stdout.flush()
            states[name] = state
    return int("failed" in states.values())


def failed_before(name: str, states: dict[str, str], depends_on: dict[str, str]) -> str:
    """The check that failed and that this one depends on, also through others; empty where none did."""
    while name in depends_on:
        name = depends_on[name]
        if states.get(name) == "failed":
            return name
    return ""


def attempt(check: Callable[[Bench], str], bench: Bench) -> tuple[str, str]:
    """ok, failed or skipped, and a line; an error in your own code is a failure there."""
    from ..measure.bench import Failed, Skipped, own_line

    try:
        return "ok", check(bench) or (check.__doc__ or "").rstrip(".").lower()
    except Skipped as reason:
        return "skipped", f"because {reason}"
    except (Failed, UserError) as error:
        return "failed", str(error)
    except Exception as error:
        line = own_line(traceback.extract_tb(error.__traceback__))
        where = f"{Path(line.filename).name}:{line.lineno}" if line else "model.py or dataset.py"
        return "failed", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}: {where}"
