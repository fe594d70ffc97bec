"""Several processes of one run, forked as torchrun would start them."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from running import PATIENCE as LONG
from running import Result, Running, start

PATIENCE = float(
    os.environ.get("FASTTRAIN_PATIENCE", LONG)
)  # seconds; where a fault must hang, less will do


class Ranks(list[Running]):
    """The processes of a run, by rank."""

    def wait(self, seconds: float = PATIENCE) -> list[Result]:
        """All of them to their end; one that hangs ends all and fails the test."""
        try:
            return [running.wait(seconds) for running in self]
        except BaseException:
            for running in self:
                running.kill(signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(running.pid, 0)
            raise


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start_ranks(
    project: Path,
    *words: str,
    cwd: Path,
    world: int = 2,
    before: Callable[[int], Any] | None = None,
) -> Ranks:
    """Starts `python -m my_training WORDS` on `world` ranks in the folder `cwd`.

    before: called in each child first, with its rank.
    """
    port = free_port()

    def prepare(rank: int) -> Callable[[], None]:
        def place() -> None:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            os.environ.update(WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            if before is not None:
                before(rank)

        return place

    return Ranks(
        start(project, *words, cwd=cwd, before=prepare(rank), name=f"{rank}")
        for rank in range(world)
    )


def run_ranks(project: Path, *words: str, cwd: Path, **more: Any) -> list[Result]:
    """The same, to its end."""
    return start_ranks(project, *words, cwd=cwd, **more).wait()
