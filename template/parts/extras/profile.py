"""Show where time and memory of a step go: each layer, the bottleneck, a trace.

Runs the step that all frameworks share, first as it is, then under torch.profiler. Writes `trace/`:
trace.json.gz for ui.perfetto.dev, profile.md, and on a GPU memory.pickle for
pytorch.org/memory_viz.
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
    """Flags of the command, in addition to the common ones."""
    steps = "timed steps (default: 20)"
    parser.add_argument("--steps", type=int, default=20, metavar="N", help=steps)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Profile the configuration; print the page and write `trace/`."""
    settings = load()
    if settings.phases:
        settings = settings.phase(1)

    from ..engine.files import write_text
    from ..measure.profiling import measure, page
    from ..measure.steps import stepping

    with stepping(settings) as step:
        OUTPUT.mkdir(exist_ok=True)
        profiled = measure(step, OUTPUT, max(arguments.steps, 1))
    text = page(profiled, SHOWN)
    write_text(OUTPUT / "profile.md", text)
    print(text, end="")
    return 0
