"""Show where time and memory of a step go: each layer, the bottleneck and the setting to try, a trace.

Runs the step that all frameworks share, first as it is, then under torch.profiler. Writes `trace/`:
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
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="timed steps (default: 20)")


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Profiles the configuration; prints the page and writes `trace/`."""
    settings = load()
    settings = settings.phase(1) if settings.phases else settings

    from ..engine.files import write_text
    from ..measure.profiling import measure
    from ..measure.steps import stepping

    with stepping(settings) as step:
        OUTPUT.mkdir(exist_ok=True)
        text = measure(step, OUTPUT, max(arguments.steps, 1), SHOWN)
    write_text(OUTPUT / "profile.md", text)
    print(text)
    return 0
