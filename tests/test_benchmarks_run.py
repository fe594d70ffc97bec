"""Every part of `make bench` in its smallest size: it runs to its end and fits its page."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from rendering import REPOSITORY
from running import Result, Running


def rehearse(benchmark: Path, folder: Path, *words: str) -> Result:
    """Runs a benchmark as a script, in a fork of this process."""

    def child() -> None:
        sys.argv = [str(benchmark), *words, "--rehearse"]
        sys.path.insert(0, str(benchmark.parent))
        kept = sys.stdout, sys.stderr  # a benchmark that forks must not close their file numbers
        code = 0
        try:
            runpy.run_path(str(benchmark), run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        for stream in kept:
            stream.flush()
        os._exit(code)

    return Running(REPOSITORY, (), folder, child).wait()
