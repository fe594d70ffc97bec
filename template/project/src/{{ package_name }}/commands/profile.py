"""Show where the time and memory of a step go: the bottleneck, each layer, a trace.

It runs `take_step` of `train.py`, first without and then with torch.profiler. It writes
profile.md, trace.json.gz for ui.perfetto.dev, and on a GPU memory.pickle for
pytorch.org/memory_viz, into the folder `trace/`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import UserError

if TYPE_CHECKING:
    from ..settings import Settings

OUTPUT = Path("trace")
SHOWN = 20  # maximum number of rows in a table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    steps = "timed steps (default: 20)"
    parser.add_argument("--steps", type=int, default=20, metavar="N", help=steps)


def main(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Profile the configuration, print the page, and write `trace/`."""
    if arguments.steps < 1:
        raise UserError(f"cannot time {arguments.steps} steps", "--steps", "use at least 1")
    settings = load()

    # Otherwise PyTorch warns of memory that is older than the profile, which is no fault.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from ..engine.files import write_text
    from ..measure.profiling import measure, page
    from ..measure.trial import trial

    with trial(settings) as run:
        OUTPUT.mkdir(exist_ok=True)
        profiled = measure(run, OUTPUT, arguments.steps)
    text = page(profiled, SHOWN)
    write_text(OUTPUT / "profile.md", text)
    print(text, end="")
    return 0
