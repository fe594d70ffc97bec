"""Checkpoints: `step-<number>[-best][-stable]-<hash>.pt`, each with all that a run resumes from.

A checkpoint is complete or absent. It is hashed while it is written, and it gets its name when it
is on the disk. A flipped bit would load silently (197 of 200 in a trial), so nothing is used before
its hash matches. A damaged checkpoint is named, and the newest intact one is loaded. One that
cannot be read now may be intact: that is an error, and nothing older takes its place.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..errors import UserError, note
from ..files import sha256, sync
from ..runs import version_of

if TYPE_CHECKING:
    from ..compute.distributed import Distributed

State = dict[str, Any]
"""What a checkpoint stores: format, step, must_match and each part of the run by its name."""

FORMAT = 5
SHOWN = 150  # characters of an error that names weights


class NotWritten(UserError):
    """A checkpoint could not be written. Earlier checkpoints are untouched."""


class NoCheckpoint(UserError):
    """The run has saved none yet."""


class Checkpoint:
    """Saves and restores the parts of a run: `model` and everything else that has a state.

    parts: by name, anything with `state_dict` and `load_state_dict`.

    keep: how many of the newest stay, in addition to the best one. Those whose step is a multiple
    of `keep_every` stay, too. must_match: plain values which must be the same on resume, such as
    the data and the schedule.

    Up to the step `stable_until`, the schedule is as `stable` says, whatever the length of the run.
    That checkpoint is marked and stays, because a run that becomes longer resumes from it.
    """

    # a folder if it has shards
    NAME = re.compile(r"step-\d{8}(-best)?(-stable)?-[0-9a-f]{16}(\.pt)?")
    keep_every = 0
    stable = ""
    stable_until = 0

    def __init__(
        self,
        folder: Path,
        distributed: Distributed,
        keep: int = 2,
        must_match: dict[str, Any] | None = None,
        **parts: Any,
    ):
        self.folder = folder
        self.partial = folder / ".saving"  # becomes a checkpoint when it is complete
        self.distributed = distributed
        self.keep = keep
        self.must_match = must_match or {}
        self.parts = parts

    # --- saving

    def save(self, step: int, is_best: bool = False) -> None:
        """Write the checkpoint of `step`, then remove old ones. Call it on every rank.

        is_best: it replaces the best checkpoint so far, which stays until then. Raises `NotWritten`
        and leaves nothing half-written.
        """
        state: State = {"format": FORMAT, "step": step, "must_match": self.must_match_at(step)}
        state |= {name: part.state_dict() for name, part in self.parts.items()}
        start = step_name(step) + ("-best" if is_best else "")
        if step == self.stable_until:
            start += "-stable"
        self.distributed.on_all_ranks(lambda: self._write(state, start))

    def _write(self, state: State, start: str) -> None:
        """Write a checkpoint whose name begins with `start`."""
        try:
            self.commit(f"{start}-{self.write(state)}")
        except OSError as error:
            self.remove(self.partial)
            what = f"the checkpoint {start} could not be written ({error.strerror or error})"
            remedy = "free some space, or check the folder; the checkpoints before it are whole"
            raise NotWritten(what, str(self.folder), remedy) from error

    def write(self, state: State) -> str:
        """Write a state into `partial`; return the end of its name. Only rank 0 writes."""
        if not self.distributed.is_main:
            return ""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.remove(self.partial)  # a killed run left it, perhaps as a folder of shards
        return write_state(state, self.partial) + ".pt"

    def commit(self, name: str) -> None:
        """Give the file its name, then remove others of this step and all that are not kept."""
        if not self.distributed.is_main:
            return
        newest = self.folder / name
        os.replace(self.partial, newest)
        sync(self.folder)
        paths = self.candidates("last")
        step = name[: len(step_name(0))]
        newest_first = [newest, *(path for path in paths if not path.name.startswith(step))]
        kept = newest_first[: self.keep]
        kept += [path for path in newest_first if self.is_milestone(step_of(path))]
        for mark in ("-best-", "-stable-"):
            kept += [path for path in newest_first if mark in path.name][:1]
        # The new one is on the disk by now, so a crash leaves too many checkpoints, never too few.
        for path in paths:
            if path not in kept:
                self.remove(path)

    def is_milestone(self, step: int) -> bool:
        """Whether the checkpoint of this step stays for good."""
        return self.keep_every > 0 and step % self.keep_every == 0

    # --- loading

    def load(self) -> bool:
        """Restore all parts from the newest intact checkpoint; return whether there is one.

        Newer ones, which are damaged, get another name: they no longer count as the newest. So only
        the process that has locked the run may call this. If the run has become longer since its
        learning rate decayed, it goes back to the stable one, and newer ones get another name, too.
        Raises `UserError` if one of `must_match` differs, or if all checkpoints are damaged.
        """
        try:
            newest = self.find("last")
        except NoCheckpoint:
            return False
        saved = newest
        if self.difference(newest):
            with suppress(NoCheckpoint):
                saved = self.find("stable")
        what = self.difference(saved)
        if what:
            remedy = f"restore its settings or data, or go back to {version_of(self.folder.parent)}"
            raise UserError(what, str(saved["path"]), remedy)
        if self.distributed.is_main:
            ending = ".damaged"
            if saved is not newest:
                ending = ".decayed"
                step = saved["step"]
                note(f"the run repeats its decay from step {step} on; *{ending} was its end")
            for path in self.candidates("last"):
                if path.name > saved["path"].name:
                    path.rename(path.with_suffix(ending))
        self.restore(saved, self.parts)
        return True

    def must_match_at(self, step: int) -> dict[str, Any]:
        """Return what must be the same on a resume from a step."""
        if step > self.stable_until:
            return self.must_match
        return {**self.must_match, "schedule": self.stable}

    def difference(self, saved: State) -> str:
        """Say what must be the same and is not; nothing if all is."""
        with self.using(saved["path"]):
            for name, value in self.must_match_at(saved["step"]).items():
                saved_value = saved["must_match"].get(name)
                if saved_value != value:
                    return f"{name} was {saved_value} in the checkpoint and is {value} now"
        return ""

    def find(self, which: str) -> State:
        """Return the `last` intact checkpoint, the `best`, the `stable` or the one of that name.

        The newest one is used if no best one is intact. Its tensors are in the file until they are
        copied; `path` is where it is. Rank 0 compares hashes for all ranks. Raises `UserError` if
        there is none, or if one cannot be read.
        """
        found = self.distributed.on_all_ranks(lambda: self._find_on_main(which))
        path: Any = self.distributed.gather_objects(found)[0]
        return self.distributed.on_all_ranks(lambda: {**self.read(path), "path": path})

    def _find_on_main(self, which: str) -> Path | None:
        """Return the path of the checkpoint on rank 0, and nothing on other ranks."""
        if not self.distributed.is_main:
            return None
        damaged = []
        for path in self.candidates(which):
            with self.using(path):
                try:
                    if self.is_intact(path):
                        return path
                except FileNotFoundError:
                    if path in self.candidates(which):
                        raise
                    # A training that runs has removed it, after it saved a newer one.
                    return self._find_on_main(which)
            damaged.append(path.name)
            note(f"skipped a damaged checkpoint: {path.name}")
        if damaged:
            remedy = f"restore one into {self.folder}"
            raise UserError("no valid checkpoint", ", ".join(damaged), remedy)
        remedy = "continue it with `train --resume`, or name another run"
        raise NoCheckpoint("the run has no checkpoint yet", str(self.folder.parent), remedy)

    def candidates(self, which: str) -> list[Path]:
        """Return checkpoints, intact or not, in the order in which they are tried."""
        names = []
        with suppress(FileNotFoundError):
            names = os.listdir(self.folder)  # `glob` finds nothing if it cannot read the folder
        names = sorted(filter(self.NAME.fullmatch, names), reverse=True)  # the newest first
        paths = [self.folder / name for name in names]
        if which == "best":
            paths.sort(key=lambda path: "-best-" in path.name, reverse=True)
        elif which != "last":
            paths = [path for path in paths if which in path.name]
        return paths

    def is_intact(self, path: Path) -> bool:
        """Whether the content has the hash that is in the name."""
        return path.stem.endswith(f"-{short_hash(path)}")

    def read(self, path: Path) -> State:
        """Map a checkpoint. Raises `UserError` if another version of the code made it."""
        with self.using(path):
            state: State = read_plain(path, mmap=True)
            number = state.get("format", FORMAT)  # a script's has none
            if number != FORMAT:
                what = f"the checkpoint has format {number}, this version reads {FORMAT}"
                raise UserError(what, str(path), f"go back to {version_of(self.folder.parent)}")
        return state

    def remove(self, path: Path) -> None:
        """Remove a checkpoint, or what was to become one; of a link, the link alone."""
        shutil.rmtree(path, ignore_errors=True)  # a folder of shards
        with suppress(OSError):
            path.unlink()

    def restore(self, saved: State, names: Iterable[str]) -> None:
        """Restore these parts, in their order."""
        with self.using(saved["path"]):
            state = self.complete({name: saved[name] for name in names}, saved["path"])
            for name, values in state.items():
                # What a part keeps must not point into a file that is deleted later.
                if name != "model":
                    values = tree_map_only(Tensor, copied, values)
                self.parts[name].load_state_dict(values)

    @contextmanager
    def using(self, path: Path) -> Iterator[None]:
        """Raise `UserError` if the block cannot read a checkpoint, or cannot use its content.

        An error of reading may pass: the checkpoint is not damaged, and no older one replaces it.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # of any part, from any value
            # PyTorch prints a page of names.
            said = " ".join(f"{type(error).__name__}: {error}".split())
            what = f"cannot use the checkpoint ({said[:SHOWN]})"
            remedy = "try again; folders need distributed=fsdp"
            if not isinstance(error, OSError):
                remedy = f"restore model.py, or go back to {version_of(self.folder.parent)}"
            raise UserError(what, str(path), remedy) from error

    def complete(self, state: State, path: Path) -> State:
        """Return a state with the tensors that are in other files: there are none."""
        return state


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def copied(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor that may be in a mapped file; those on a GPU are copies already."""
    return tensor.clone() if tensor.device.type == "cpu" else tensor


# --- files


class HashingFile(io.BufferedWriter):
    """A file to write that hashes what passes, so that its content need not be in memory."""

    def __init__(self, path: Path):
        super().__init__(io.FileIO(path, "wb"))
        self.hash = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.hash.update(content)
        return super().write(content)


def write_state(state: State, path: Path) -> str:
    """Write a file onto the disk; return its hash. Tensors that share memory are stored once."""
    with HashingFile(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # After a failed write, torch complains of its own position in the file.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise
        file.flush()
        os.fsync(file.fileno())
    # A resume could not read such a file.
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if unsafe:
        what = f"a state holds a {unsafe[0]}"
        raise UserError(what, "hooks/", "keep only plain values and tensors in it")
    return file.hash.hexdigest()[:16]


def short_hash(path: Path) -> str:
    return sha256(path)[:16]


def read_plain(path: Path, mmap: bool = False) -> Any:
    """Read what `torch.save` wrote, if it is tensors and plain values.

    A checkpoint from elsewhere cannot run code (needs torch >= 2.10, CVE-2026-24747). mmap: the
    tensors are in the file until they are used.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError:
        raise
    except Exception as error:  # a damaged file may raise any error
        if str(error).startswith("unable to "):  # open or map the file
            raise OSError(str(error)) from error
        what = "the file is not only tensors and plain values"
        remedy = (
            "it may run code, or is damaged: use another checkpoint, or the file of a state_dict()"
        )
        raise UserError(what, str(path), remedy) from error
