"""Check that your model and your data satisfy their contract, in a minute on the CPU.

Takes the prepared data, or the synthetic sample, and new models. Exits with 0, or with 1 if a check
failed: its line says why, and where to look.
"""

from __future__ import annotations

import argparse
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import UserError

if TYPE_CHECKING:
    from ..config import Settings
    from ..measure.bench import Bench


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command, in addition to the common ones."""
    only = "one check, by the name in its line; repeatable"
    parser.add_argument("--only", action="append", metavar="NAME", help=only)
    samples = "samples of each split that the check `samples` looks at (default: %(default)s)"
    parser.add_argument("--samples", type=int, default=2048, metavar="N", help=samples)


def run(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Print a line for each check; one that depends on a failed check is skipped and names that."""
    if arguments.samples < 1:
        what = f"{arguments.samples} samples cannot be looked at"
        raise UserError(what, "--samples", "give at least 1")
    settings = load()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks for one

    from ..measure.bench import Bench
    from ..measure.contract import CHECKS, DEPENDS_ON

    checks = {check.__name__.removeprefix("check_"): check for check in CHECKS}
    chosen = arguments.only or list(checks)
    for name in chosen:
        if name not in checks:
            remedy = f"choose of {', '.join(checks)}"
            raise UserError(f"there is no check {name!r}", "--only", remedy)
    bench = Bench(settings, arguments.samples)
    states: dict[str, str] = {}
    for name, check in checks.items():
        if name not in chosen:
            continue
        cause = failed_before(name, states, DEPENDS_ON)
        if cause:
            states[name] = "skipped"
            line = f"because {cause} failed"
        else:
            states[name], line = attempt(check, bench)
        print(f"{states[name]:9} {name:11} {line}", flush=True)
    return int("failed" in states.values())


def failed_before(name: str, states: dict[str, str], depends_on: dict[str, str]) -> str:
    """Return the failed check that this one depends on, also through others; empty if none did."""
    while name in depends_on:
        name = depends_on[name]
        if states.get(name) == "failed":
            return name
    return ""


def attempt(check: Callable[[Bench], str], bench: Bench) -> tuple[str, str]:
    """Return ok, failed or skipped, and a line; an error in your own code is a failure there."""
    from ..measure.bench import Failed, Skipped, own_line

    try:
        return "ok", check(bench) or (check.__doc__ or "").rstrip(".").lower()
    except Skipped as reason:
        return "skipped", f"because {reason}"
    except (Failed, UserError) as error:
        return "failed", str(error)
    except Exception as error:
        line = own_line(traceback.extract_tb(error.__traceback__))
        where = "model.py or dataset.py"
        if line:
            where = f"{Path(line.filename).name}:{line.lineno}"
        first_line = str(error).partition("\n")[0]
        return "failed", f"{type(error).__name__}: {first_line}: {where}"
