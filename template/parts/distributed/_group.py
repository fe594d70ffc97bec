"""The processes of one run: who this one is, and how all of them come to agree.

torchrun says it in the environment; without it there is one process, like any other.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import UserError
from .runs import RUNS, all_runs, is_run

T = TypeVar("T")

JOB = ".job"  # in a run's folder
TIMEOUT = timedelta(minutes=10)  # for a rank that hangs; one that dies is noticed at once


class Group:
    """Rank, world and device of this process, and what all of them must agree on."""

    def __init__(self) -> None:
        self.rank, self.world, local = number("RANK", 0), number("WORLD_SIZE", 1), number("LOCAL_RANK", 0)
        if not 0 <= self.rank < self.world:
            where = f"RANK={self.rank}, WORLD_SIZE={self.world}"
            raise UserError("a rank is below the number of processes", where, "let torchrun set both")
        self.is_main = self.rank == 0
        self.device, cuda = torch.device("cpu"), torch.cuda.device_count()
        if cuda and local >= cuda:
            where = f"LOCAL_RANK={local} on {socket.gethostname()}"
            raise UserError(f"this host has {cuda} GPUs", where, f"--nproc_per_node={cuda} or less")
        if cuda:
            self.device = torch.device("cuda", local)
            torch.cuda.set_device(self.device)
        self._vote: tuple[Any, Tensor] | None = None
        if self.world > 1:
            self._join()

    def _join(self) -> None:
        # Plain values and flags travel between hosts' memories, so that no rank waits for a GPU.
        rank, world = self.rank, self.world
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        where = f"MASTER_ADDR={os.environ.get('MASTER_ADDR')}, MASTER_PORT={os.environ.get('MASTER_PORT')}"
        try:
            store = next(dist.rendezvous("env://", timeout=TIMEOUT))[0]
            fresh = dist.PrefixStore(meet(store, rank, world), store)
            dist.init_process_group(backend, store=fresh, rank=rank, world_size=world, timeout=TIMEOUT)
        except (ValueError, dist.DistError) as error:
            what = f"the {world} processes do not find each other ({str(error).splitlines()[0]})"
            raise UserError(what, where, "start all of them by torchrun with one address") from error

    def begin(self, make: Callable[[], Path]) -> Path:
        """The folder of a new run, made by rank 0 and marked with the job."""
        made = self.together(lambda: make() if self.is_main else Path())
        if self.is_main and job():
            (made / JOB).write_text(job())
        return self.gather(made)[0]

    def restarted(self, name: str | None = None) -> Path | None:
        """The run that this job had begun before `torchrun --max-restarts` started its processes anew."""
        if not max(self.gather(number("TORCHELASTIC_RESTART_COUNT", 0))):  # hosts may count differently
            return None
        marks = {run: run / JOB for run in reversed(all_runs())}
        mine = (run for run, mark in marks.items() if mark.exists() and mark.read_text() == job())
        found = next(mine, RUNS / name if name and is_run(RUNS / name) else None)
        return self.gather(found)[0]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, the same on each."""
        if self.world > 1:
            tensor = tensor.detach().clone()
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: T) -> list[T]:
        """Every rank's plain value, by rank."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def together(self, work: Callable[[], T], main_first: bool = False) -> T:
        """`work()` on every rank; what one of them raises as a `UserError`, all raise.

        main_first: the others begin when rank 0 is done, and find what it has made.
        """
        result: T | None = None
        for turn in (self.is_main, not self.is_main) if main_first else (True,):
            mistake = None
            try:
                result = work() if turn else result
            except UserError as error:
                mistake = error
            for found in self.gather(mistake):
                if found is not None:
                    found.reported = not self.is_main  # rank 0 says it for all
                    raise found
        return cast(T, result)

    def agree(self, number: int) -> int:
        """The largest number of all ranks, as of the call before this one: so nobody waits for another."""
        if self.world == 1:
            return number
        before, mine = self._vote, torch.tensor(number)
        self._vote = dist.all_reduce(mine, dist.ReduceOp.MAX, async_op=True), mine
        if before is None:
            return 0
        before[0].wait()
        return int(before[1])

    def close(self) -> None:
        """Leaves the process group; after an error without a word, as the other ranks may not leave with it.

        NCCL's leave-taking waits for what is queued, and for every rank of the host: one that failed alone
        would hang in it, and torchrun, which ends the others once a process ends, would wait with it.
        """
        if sys.exc_info()[0] is not None and self.device.type == "cuda":
            return
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # a rank that died has nothing more to say
                if self._vote is not None:
                    self._vote[0].wait()
                # gloo's threads need the GIL to let go of the last tensors, and freeing the group joins
                # those threads under the GIL: time for them to come first (else torch 2.13 hangs at times).
                time.sleep(0.1)
                dist.destroy_process_group()


def meet(store: Any, rank: int, world: int) -> str:
    """A name that these processes alone know, for their keys in the store.

    torchrun keeps its store when it starts processes anew, with the addresses of the dead ones in it. So
    each rank asks with a word of its own, and rank 0 answers whatever word it finds until all have heard.
    """
    word = uuid.uuid4().hex
    if rank:
        store.set(f"ask/{rank}", word)
        name: str = store.get(f"answer/{word}").decode()
        store.set(f"heard/{name}/{rank}", "")
        return name
    missing, deadline = set(range(1, world)), time.monotonic() + TIMEOUT.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"heard/{word}/{other}"]):
                missing.remove(other)
            elif store.check([f"ask/{other}"]):
                store.set(f"answer/{store.get(f'ask/{other}').decode()}", word)
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"ranks {sorted(missing)} did not come within {TIMEOUT}")
        time.sleep(0.01)
    return word


def number(name: str, default: int) -> int:
    """An environment variable that the launcher sets. Raises `UserError` where it is no number."""
    text = os.environ.get(name, str(default))
    if not text.isdigit():
        raise UserError(f"{text!r} is not a number", f"${name}", "let torchrun set it")
    return int(text)


def job() -> str:
    """What torchrun's restarts of one job have in common; empty without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return name if name != "none" else f"{socket.gethostname()}-{os.getppid()}"  # torchrun's own process
