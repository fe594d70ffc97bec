"""Show where time and memory of a step go: each layer, the bottleneck and a faster setting, a trace.

Runs the step that all frameworks share, first as it is, then under torch.profiler. Settings that may help are
measured next to the present ones, and advised where they are faster. Writes `trace/`:
trace.json.gz for ui.perfetto.dev, profile.md, and on a GPU memory.pickle for pytorch.org/memory_viz.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import Settings

OUTPUT = Path("trace")
SHOWN = 20  # layers and operations in a table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    parser.add_argument(
        "--steps", type=int, default=20, metavar="N", help="timed steps (default: 20)"
    )
    parser.add_argument("--no-advice", action="store_true", help="do not measure other settings")


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Profiles the configuration; prints the page and writes `trace/`."""
    settings = load()
    settings = settings.phase(1) if settings.phases else settings

    from ..engine.files import write_text
    from ..engine.gpus import this_card
    from ..engine.report import print_lines
    from ..measure.advice import advice, candidates, try_candidates
    from ..measure.profiling import measure, page, verdict
    from ..measure.steps import stepping

    with stepping(settings) as step:
        OUTPUT.mkdir(exist_ok=True)
        profiled = measure(step, OUTPUT, max(arguments.steps, 1))
        loader = step.loader
    lines = []
    if not arguments.no_advice:
        kind, _ = verdict(profiled.split, profiled.products, profiled.cuda)
        capability = this_card(profiled.device).capability
        found = candidates(kind, profiled.products, settings, loader, capability)
        del step  # its model needs no memory while others are measured
        lines = advice(try_candidates(settings, found), kind, loader)
    text = page(profiled, lines, SHOWN)
    write_text(OUTPUT / "profile.md", text)
    print_lines(text.splitlines())
    return 0
