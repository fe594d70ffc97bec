"""What a function returns in a fork of this process: a rehearsal's substitute for a fresh
interpreter.

A fresh interpreter needs seconds to import torch. A measurement takes one all the same, because
nothing that was loaded or allocated before may count.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def in_fork(function: Callable[[], Any]) -> Any:
    """Runs `function` in a fork and returns its result by way of JSON. Raises RuntimeError if it
    fails."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(_child(function, reads, writes))
    os.close(writes)
    with os.fdopen(reads) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"a fork ended with exit code {os.waitstatus_to_exitcode(status)}")
    return json.loads(text)


def _child(function: Callable[[], Any], reads: int, writes: int) -> int:
    os.close(reads)
    try:
        with os.fdopen(writes, "w") as file:
            json.dump(function(), file)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
