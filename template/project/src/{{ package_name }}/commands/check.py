"""Check that your model and your data satisfy their contract, in a minute on the CPU.

It uses the prepared dataset, or the synthetic sample, and new models. The exit code is 1 if a check
failed; its line says why, and where to look.
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
    from ..measure.bench import Bench
    from ..settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    only = "run only the check with this name; repeatable"
    parser.add_argument("--only", action="append", metavar="NAME", help=only)
    samples = "samples per split that the check `samples` reads (default: %(default)s)"
    parser.add_argument("--samples", type=int, default=2048, metavar="N", help=samples)


def main(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Run the checks, and print a line for each; skip those that depend on a failed check."""
    if arguments.samples < 1:
        what = f"cannot check {arguments.samples} samples"
        raise UserError(what, "--samples", "use at least 1")
    settings = load()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks for one

    from ..measure.bench import Bench
    from ..measure.contract import CHECKS, DEPENDS_ON

    checks = {check.__name__.removeprefix("check_"): check for check in CHECKS}
    chosen = arguments.only or list(checks)
    for name in chosen:
        if name not in checks:
            remedy = f"choose from {', '.join(checks)}"
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
        print(f"{states[name]:9} {name:12} {line}", flush=True)
    return int("failed" in states.values())


def failed_before(name: str, states: dict[str, str], depends_on: dict[str, str]) -> str:
    """Return the failed check that this one depends on, directly or not; empty if none failed."""
    while name in depends_on:
        name = depends_on[name]
        if states.get(name) == "failed":
            return name
    return ""


def attempt(check: Callable[[Bench], str], bench: Bench) -> tuple[str, str]:
    """Return ok, failed or skipped, and a line; an error in your code is a failure at its line."""
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
