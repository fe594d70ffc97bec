"""The processes of a run: the rank of this process, and what it exchanges with the others.

torchrun sets the rank and the number of processes in the environment; without it there is one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import UserError
from ..runs import RUNS, all_runs, is_run
from ..signals import HANGUP, NUMBERS

T = TypeVar("T")

JOB = ".job"  # a file in a run's folder
TIMEOUT = timedelta(minutes=10)  # for a rank that hangs; one that dies is noticed at once
REASON = "reason"  # in the store: why the first rank that failed has ended
# Seconds from a signal to the end of a process whose Python code does not run.
PATIENCE = 2.0
PATIENCE_TO_SAVE = 60.0
PATIENCE_TO_END = 30.0  # to leave the group


class Group:
    """Rank, world size and device of this process, and its exchange with the others."""

    store: Any = None  # of the processes that have met

    def __init__(self) -> None:
        self.world = number_in("WORLD_SIZE", 1)
        self.rank = 0
        local_rank = 0
        # Without others, what an earlier launch left in the environment has no meaning.
        if self.world > 1:
            self.rank = number_in("RANK", 0)
            local_rank = number_in("LOCAL_RANK", 0)
        if not 0 <= self.rank < self.world:
            what = "a rank must be below the number of processes"
            where = f"RANK={self.rank}, WORLD_SIZE={self.world}"
            raise UserError(what, where, "let torchrun set both")
        self.is_main = self.rank == 0

        self.device = torch.device("cpu")
        num_gpus = torch.cuda.device_count()
        if num_gpus > 0:
            if local_rank >= num_gpus:
                what = f"this host has {num_gpus} GPUs"
                where = f"LOCAL_RANK={local_rank} on {socket.gethostname()}"
                raise UserError(what, where, f"use --nproc_per_node={num_gpus} or less")
            self.device = torch.device("cuda", local_rank)
            torch.cuda.set_device(self.device)
        self._vote: tuple[Any, Tensor] | None = None
        if self.world > 1:
            hear_signals()
            self._join()

    def _join(self) -> None:
        # Plain values and flags are exchanged by gloo, so that no rank waits for a GPU.
        backend = "gloo"
        if self.device.type == "cuda":
            backend = "cpu:gloo,cuda:nccl"
        try:
            store = next(dist.rendezvous("env://", timeout=TIMEOUT))[0]
            store = dist.PrefixStore(meet(store, self.rank, self.world), store)
            Group.store = store
            dist.init_process_group(
                backend,
                store=store,
                rank=self.rank,
                world_size=self.world,
                timeout=TIMEOUT,
            )
        except (ValueError, dist.DistError) as error:
            reason = str(error).splitlines()[0]
            what = f"the {self.world} processes cannot find each other ({reason})"
            address = os.environ.get("MASTER_ADDR")
            port = os.environ.get("MASTER_PORT")
            where = f"MASTER_ADDR={address}, MASTER_PORT={port}"
            remedy = "start all of them through torchrun, with the same address"
            raise UserError(what, where, remedy) from error

    def begin(self, make: Callable[[], Path]) -> Path:
        """Let rank 0 make the folder of a new run and mark it with the job."""

        def make_on_main() -> Path:
            if self.is_main:
                return make()
            return Path()

        folder = self.on_all_ranks(make_on_main)
        if self.is_main and job():
            (folder / JOB).write_text(job())
        return self.gather_objects(folder)[0]

    def restarted(self, name: str | None = None) -> Path | None:
        """Return the run that this job had before `torchrun --max-restarts` restarted it."""
        restarts = self.gather_objects(number_in("TORCHELASTIC_RESTART_COUNT", 0))
        if max(restarts) == 0:  # hosts may count differently
            return None
        return self.gather_objects(self._run_of_job(name))[0]

    def _run_of_job(self, name: str | None) -> Path | None:
        for folder in reversed(all_runs()):
            mark = folder / JOB
            if mark.exists() and mark.read_text() == job():
                return folder
        if name and is_run(RUNS / name):
            return RUNS / name
        return None

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks, the same on each."""
        if self.world > 1:
            tensor = tensor.detach().clone()
            dist.all_reduce(tensor)
        return tensor

    def gather_objects(self, value: T) -> list[T]:
        """Return every rank's plain value, by rank."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def on_all_ranks(self, work: Callable[[], T], main_first: bool = False) -> T:
        """Run `work` on every rank; a `UserError` of one of them is raised on all.

        main_first: the other ranks begin when rank 0 is done, so they find what it has made.
        """
        if not main_first:
            return cast(T, self._in_turn(work, True))
        first = self._in_turn(work, self.is_main)
        second = self._in_turn(work, not self.is_main)
        return cast(T, first if self.is_main else second)

    def _in_turn(self, work: Callable[[], T], is_my_turn: bool) -> T | None:
        """Run `work` if it is this rank's turn; then compare the errors of all ranks."""
        result = None
        mine = None
        try:
            if is_my_turn:
                result = work()
        except UserError as error:
            mine = error
        for error_of_rank in self.gather_objects(mine):
            if error_of_rank is not None:
                error_of_rank.reported = not self.is_main  # rank 0 prints it for all
                raise error_of_rank
        return result

    def agree(self, number: int) -> int:
        """Return the largest number that ranks gave in the previous call, so that no rank waits."""
        if self.world == 1:
            return number
        previous = self._vote
        largest = torch.tensor(number)
        work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
        self._vote = (work, largest)
        if previous is None:
            return 0
        previous_work, previous_largest = previous
        previous_work.wait()
        return int(previous_largest)

    def close(self) -> None:
        """Leave the process group. After an error on a GPU, only the process ends.

        NCCL waits for queued work, and for every rank of the host. A rank that failed alone would
        hang in it. torchrun ends the other processes when one ends, so it would wait, too.
        """
        error = sys.exc_info()[1]
        if error is not None and self.store is not None and not isinstance(error, RankGone):
            with contextlib.suppress(RuntimeError):  # the process that has the store is gone
                self.store.set(REASON, f"rank {self.rank}: {error_line(error)}")
        if error is not None and self.device.type == "cuda":
            return
        if not dist.is_initialized():
            return
        with contextlib.suppress(RuntimeError):  # another rank has died
            if self._vote is not None:
                self._vote[0].wait()
            # gloo's threads need the GIL to free the last tensors, and destroying the group joins
            # those threads under the GIL. The pause lets them finish: torch 2.13 hung at times.
            # After an error, nobody waits for this process.
            time.sleep(1 if error else 0.1)
            with ended_after(PATIENCE_TO_END):
                dist.destroy_process_group()


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer, also where it holds the GIL for good."""
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


# --- ranks that fail, and signals


class RankGone(UserError):
    """Another rank has ended before this one."""


def explain_failure(error: BaseException | None) -> UserError | None:
    """Return why another rank has ended, if that is why an exchange has failed."""
    is_of_exchange = isinstance(error, dist.DistError) or "gloo" in str(error)
    if Group.store is None or not is_of_exchange:
        return None
    with contextlib.suppress(RuntimeError, OSError):
        # Of a store that is gone, torch would print a page.
        address = (os.environ["MASTER_ADDR"], number_in("MASTER_PORT", 0))
        socket.create_connection(address, PATIENCE).close()
        Group.store.wait([REASON], timedelta(seconds=PATIENCE))
        gone = RankGone(Group.store.get(REASON).decode())
        gone.reported = number_in("RANK", 0) > 0  # the rank that failed and rank 0 say it
        return gone
    remedy = "its own output says why; `train --resume` continues from the newest checkpoint"
    return RankGone("another process of this run is gone", "torch.distributed", remedy)


def error_line(error: BaseException) -> str:
    """Return the first line of an error, with its type unless it is a `UserError`."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return kind + str(error).partition("\n")[0]


def hear_signals() -> None:
    """Let a signal end this process also while it waits for other ranks.

    Python calls no handler while the main thread is in C++, so another thread is told of signals.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    threading.Thread(target=_hear, args=(reader,), daemon=True).start()


def _hear(reader: int) -> None:
    """Start a timer for each signal. A training may save after its first one."""
    count = 0
    while True:
        received = os.read(reader, 1)[0]
        if received not in NUMBERS:
            continue
        if received != HANGUP:  # a terminal that closes may send it in addition
            count += 1
        training = getattr(signal.getsignal(received), "__self__", None)
        if training is not None and count < 2:
            timer = threading.Timer(PATIENCE_TO_SAVE, _end, (received, training))
        else:
            timer = threading.Timer(PATIENCE, _end, (received,))
        timer.daemon = True
        timer.start()


def _end(received: int, training: Any = None) -> None:
    """End this process, unless its training has noticed the signal."""
    if training is None or not training.received:
        os._exit(128 + received)


def meet(store: Any, rank: int, world: int) -> str:
    """Agree on a name that only these processes know, for their keys in the store.

    When torchrun restarts processes, it keeps its store, which has the addresses of the dead ones.
    So each rank asks with a word of its own, and rank 0 answers each word until all have heard it.
    """
    word = uuid.uuid4().hex
    if rank:
        store.set(f"ask/{rank}", word)
        name: str = store.get(f"answer/{word}").decode()
        store.set(f"heard/{name}/{rank}", "")
        return name

    missing = set(range(1, world))
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"heard/{word}/{other}"]):
                missing.remove(other)
            elif store.check([f"ask/{other}"]):
                question = store.get(f"ask/{other}").decode()
                store.set(f"answer/{question}", word)
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"ranks {sorted(missing)} did not answer within {TIMEOUT}")
        time.sleep(0.01)
    return word


def number_in(name: str, default: int) -> int:
    """Read an environment variable of the launcher. Raises `UserError` if it is not a number."""
    text = os.environ.get(name, str(default))
    if not text.isdigit():
        raise UserError(f"{text!r} is not a number", f"${name}", "let torchrun set it")
    return int(text)


def job() -> str:
    """Return the job's name, which torchrun's restarts do not change; empty without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if name == "none":
        # The parent is torchrun's own process.
        name = f"{socket.gethostname()}-{os.getppid()}"
    return name
