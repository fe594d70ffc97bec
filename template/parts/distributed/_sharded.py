"""Checkpoints of several ranks, which may hold a model that fits none of them.

Such a checkpoint is a folder `step-<number>[-best][-stable]-<hash>`. Each rank writes its rows of
weights and optimizer state into files of its own, `state.pt` has all else, and the hash is that of
all files. They are written while training continues. Any number of ranks can read it. One process
saves one file, as in `whole_checkpoint.py`, which several can read.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, empty
from torch.utils._pytree import tree_map_only

from ..compute.group import TIMEOUT
from ..errors import note
from ..files import sync
from .whole_checkpoint import Checkpoint as WholeCheckpoint
from .whole_checkpoint import (
    NotWritten,
    State,
    read_plain,
    short_hash,
    step_name,
    write_state,
)

__all__ = ["Checkpoint", "NotWritten", "State", "read_plain", "step_name"]

STATE = "state.pt"
SAVING = "saving"  # in a state: the future of its rows, which are being written
SHARDED = "sharded tensor"  # {SHARDED: key} is in the place of a tensor whose rows are elsewhere
FILE_BYTES = 128 << 20  # a file is put together in memory before it is written


class Checkpoint(WholeCheckpoint):
    """Saves and restores the parts of a run, each rank its own rows of them.

    A save copies them to the host. Then training continues, while a thread writes them. It is
    joined before the next save, and before the run ends. It exchanges values in a group of its own,
    because the steps use the other one at the same time.
    """

    def __init__(self, *arguments: Any, **parts: Any):
        super().__init__(*arguments, **parts)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None
        self._report: Callable[[], None] | None = None
        self._group: Any = None

    def save(self, step: int, is_best: bool = False, wait: bool = True) -> None:
        """Save as the base does. wait: return when all is on the disk."""
        try:
            self._join()
        except NotWritten as error:
            # The save that follows may succeed, so training need not end.
            note(f"{error}; training continues")
        super().save(step, is_best)
        if wait:
            self._join()

    def _join(self) -> None:
        """Wait for the save before. All ranks raise an error of one."""
        pending = self._pending
        self._pending = None
        report = self._report
        self._report = None
        if pending is not None:
            self.distributed.on_all_ranks(pending.result)
        if report is not None:
            report()

    def when_complete(self, report: Callable[[], None]) -> None:
        """Call `report` now, or after the thread has written the last save."""
        if self._pending is None:
            report()
        else:
            self._report = report

    def close(self) -> None:
        """Wait for what is still being written, also after an error."""
        if self._pending is not None:
            # This waits and raises nothing: the run may be ending by another error, which is the
            # cause.
            self._pending.exception()
        self._thread.shutdown()

    def _write(self, state: State, start: str) -> None:
        """Copy this rank's rows, and on rank 0 all else; let the thread write them."""
        tensors: dict[str, DTensor] = {}
        whole = take_out(state, tensors, {})
        if not tensors:
            super()._write(state, start)
            return
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self.distributed.on_all_ranks(self._clear)
        writer = dcp.HuggingFaceStorageWriter(
            str(self.partial), files_of(tensors), save_distributed=True
        )
        saving = dcp.async_save(tensors, storage_writer=writer, process_group=self._group)
        # The next step changes the tensors in place, while the thread still writes.
        whole = tree_map_only(Tensor, on_host, whole)
        self._pending = self._thread.submit(super()._write, {**whole, SAVING: saving}, start)

    def write(self, state: State) -> str:
        """Wait until the rows of all ranks are written, then write on rank 0 all else."""
        saving = state.pop(SAVING, None)
        if saving is None:
            return super().write(state)
        try:
            saving.result()
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error
        hashes: dict[str, str] = {}
        parts: list[Any] = [None] * self.distributed.world
        dist.all_gather_object(parts, self._hash_mine(), self._group)
        for part in parts:
            if isinstance(part, OSError):
                raise part
            hashes |= part
        if self.distributed.is_main:
            hashes[STATE] = write_state(state, self.partial / STATE)
            sync(self.partial)
        return hash_of_files(hashes)

    def _hash_mine(self) -> dict[str, str] | OSError:
        """Return the hashes of this rank's files, or the error, for which no rank must wait."""
        try:
            # The library counts ranks from 1.
            mine = self.partial.glob(f"shard-{self.distributed.rank + 1:05}-*")
            return {path.name: short_hash(path) for path in mine}
        except OSError as error:
            return error

    def _clear(self) -> None:
        """Remove what a run left that was killed while it saved or removed a checkpoint."""
        if self.distributed.is_main:
            for folder in (self.partial, *self.folder.glob(".trash-*")):
                self.remove(folder)

    def commit(self, name: str) -> None:
        # A folder cannot replace another one. If the names are equal, so is the content.
        if self.distributed.is_main:
            self.remove(self.folder / name)
        super().commit(name)

    def is_intact(self, path: Path) -> bool:
        if not path.is_dir():
            return super().is_intact(path)
        hashes = {file.name: short_hash(file) for file in path.iterdir()}
        return path.name.endswith(f"-{hash_of_files(hashes)}")

    def read(self, path: Path) -> State:
        return super().read(path / STATE if path.is_dir() else path)

    def remove(self, path: Path) -> None:
        """Remove a file or folder. A folder is renamed first: a half of it is no checkpoint."""
        if path.is_dir() and not path.name.startswith("."):
            path = path.rename(path.with_name(f".trash-{path.name}"))
        super().remove(path)

    def complete(self, state: State, path: Path) -> State:
        """Return a state with this rank's rows of each sharded tensor.

        A checkpoint of one process has no shards; its tensors are sharded here.
        """
        if path.is_dir():
            return self._read_shards(state, path)
        if self.distributed.world > 1 and "model" in self.parts:
            self._shard(state)
        return state

    def _read_shards(self, state: State, folder: Path) -> State:
        reader = dcp.HuggingFaceStorageReader(str(folder))

        def read_metadata() -> Any:
            with self.using(folder):
                return reader.read_metadata()

        stored = self.distributed.on_all_ranks(read_metadata).state_dict_metadata
        tensors: dict[str, Any] = {}

        def prepare(key: str) -> None:
            entry: Any = stored[key]
            tensors[key] = self._empty(entry.size, entry.properties.dtype)

        put_back(state, prepare)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            try:
                dcp.load(tensors, storage_reader=reader)
            except CheckpointException as error:  # of any rank; all have it
                (reason, _), *_ = error.failures.values()
                raise OSError(str(reason)) from error
        completed: State = put_back(state, tensors.__getitem__)
        return completed

    def _empty(self, size: torch.Size, dtype: torch.dtype) -> Tensor:
        if self.distributed.world == 1:
            return torch.empty(size, dtype=dtype)
        return empty(size, dtype=dtype, device_mesh=self.distributed.mesh, placements=[Shard(0)])

    def _shard(self, state: State) -> None:
        """Shard the weights and the optimizer's averages in the state of one process."""

        def rows(whole: Tensor) -> Tensor:
            # Each rank has read the whole tensor.
            whole = whole.to(self.distributed.device)
            mesh = self.distributed.mesh
            return distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)

        weights = state.get("model", {})
        for name, target in self.parts["model"].state_dict().items():
            if isinstance(target, DTensor) and name in weights:
                weights[name] = rows(weights[name])
        for values in state.get("optimizer", {"state": {}})["state"].values():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.dim() > 0:  # not the step count
                    values[name] = rows(value)


def on_host(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor that the next step does not change."""
    return tensor.detach().to("cpu", copy=True)


def take_out(state: Any, tensors: dict[str, DTensor], keys: dict[Any, str], key: str = "") -> Any:
    """Return a state without its sharded tensors, and put them into `tensors` by key.

    A key is a path: {"optimizer/state/0/exp_avg": DTensor}. keys: the key of each tensor by its
    place in memory, since a tied weight has two names. All ranks must find the same keys.
    """
    if isinstance(state, dict):
        items = state.items()
        return {name: take_out(value, tensors, keys, f"{key}/{name}") for name, value in items}
    if not isinstance(state, DTensor):
        return state
    local = state.to_local()
    # A rank without rows has no address of data.
    place = (local.untyped_storage()._cdata, local.storage_offset())
    key = keys.setdefault(place, key.removeprefix("/"))
    tensors[key] = state
    return {SHARDED: key}


def put_back(state: Any, tensor_of: Callable[[str], Any]) -> Any:
    """Return a state with `tensor_of(key)` in the places of sharded tensors."""
    if not isinstance(state, dict):
        return state
    if SHARDED in state:
        return tensor_of(state[SHARDED])
    return {name: put_back(value, tensor_of) for name, value in state.items()}


def files_of(tensors: dict[str, DTensor]) -> dict[str, int]:
    """Divide tensors among files, whose numbers are from 1."""
    files = {}
    size = 0
    for key, tensor in tensors.items():
        files[key] = 1 + size // FILE_BYTES
        size += tensor.to_local().nbytes
    return files


def hash_of_files(hashes: dict[str, str]) -> str:
    """Return one hash for files, from the hash of each."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]
