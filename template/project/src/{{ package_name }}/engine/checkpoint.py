"""Checkpoints that are complete or absent, verified on every load, and usable after any crash.

A checkpoint is a folder: `model.safetensors`, `state.pt` (plain data, read with weights_only) and
`manifest.json` with a sha256 per file. The manifest is written last, into a hidden folder that is
then renamed. A flipped bit loads silently from both formats (197 of 200 `.pt`, 199 of 200
`.safetensors` in a trial), so nothing is used before its hash matches. The newest valid checkpoint
is loaded, and the skipped ones are named.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file

from .errors import UserError
from .files import read_json, sha256, sync, write_json

if TYPE_CHECKING:
    from .distributed import Distributed

T = TypeVar("T")
Manifest = dict[str, Any]
"""Describes a checkpoint: step, facts, aliases, sha256, shards; once read, its `path`."""

FORMAT = 1
MODEL = "model.safetensors"
STATE = "state.pt"
MANIFEST = "manifest.json"
BEST = "best.json"
SHARD = "shard-{:05}.safetensors"  # the rows of one rank, if the model is sharded
NAME = re.compile(r"step-\d{8}")


class DiskFull(UserError):
    """A checkpoint could not be written. Earlier checkpoints are untouched."""


class Part(Protocol):
    """Anything whose state is saved: the model, the optimizer, the progress of the run."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


class Checkpoint:
    """Saves and restores the parts of a run: `model` and everything else that has a state.

    keep: how many of the newest stay, in addition to the best one. facts: plain values stored in
    the manifest, which must be the same on resume, such as the data and the schedule.
    """

    def __init__(
        self,
        folder: Path,
        distributed: Distributed,
        keep: int = 2,
        facts: dict[str, Any] | None = None,
        **parts: Part,
    ):
        self.folder = folder
        self.partial = folder / ".saving"  # becomes a checkpoint when it is complete
        self.distributed = distributed
        self.keep = max(keep, 2)
        self.facts = facts or {}
        self.parts = parts
        self.skipped: list[str] = []

    # --- saving

    def save(self, step: int) -> Path:
        """Write the checkpoint of `step`, then remove old ones. Call it on every rank.

        Rank 0 writes; with a sharded model each rank writes its own rows. Raises `DiskFull`, and
        then nothing half-written is left.
        """
        states = {name: part.state_dict() for name, part in self.parts.items()}
        state, shards = self.distributed.take_shards(states)
        manifest: Manifest = {"format": FORMAT, "step": step, "facts": self.facts}
        manifest |= {"sha256": {}, "shards": {}}
        self._on_main(step, lambda: _empty(self.partial))
        if shards:
            self._save_shards(manifest, shards)
        self._on_main(step, lambda: self._commit(manifest, state))
        return self.folder / f"step-{step:08d}"

    def _save_shards(self, manifest: Manifest, shards: dict[str, Any]) -> None:
        """Write this rank's rows of each sharded tensor; add all ranks' files to the manifest."""
        path = self.partial / SHARD.format(self.distributed.rank)
        rows = {key: tensor.to_local() for key, tensor in shards.items()}
        aliases = self._on_all_ranks(manifest["step"], lambda: _save_model(rows, path))
        for key, tensor in shards.items():
            manifest["shards"][key] = list(tensor.shape)
        manifest["shards"] |= aliases
        manifest["sha256"] |= self.distributed.gather_objects((path.name, sha256(path)))

    def _on_main(self, step: int, write: Callable[[], object]) -> None:
        if not self.distributed.is_main:
            write = bool
        self._on_all_ranks(step, write)

    def _on_all_ranks(self, step: int, write: Callable[[], T]) -> T:
        """Return `write()`. If a disk is full, all ranks raise `DiskFull`."""

        def work() -> T:
            try:
                return write()
            except OSError as error:
                shutil.rmtree(self.partial, ignore_errors=True)
                reason = error.strerror or error
                what = f"the checkpoint of step {step} could not be written ({reason})"
                remedy = "free some space; the checkpoints before it are whole"
                raise DiskFull(what, str(self.folder), remedy) from error

        return self.distributed.on_all_ranks(work)

    def _commit(self, manifest: Manifest, state: dict[str, Any]) -> None:
        """Write what is not sharded, then the manifest; then give the folder its name."""
        manifest["aliases"] = _save_model(state.pop("model"), self.partial / MODEL)
        _write(torch.save, state, self.partial / STATE)
        for name in (MODEL, STATE):
            manifest["sha256"][name] = sha256(self.partial / name)
        write_json(self.partial / MANIFEST, {**manifest, "seal": _seal(manifest)})
        sync(self.partial)

        # A run that was killed while it removed a checkpoint has left these.
        for trash in self.folder.glob(".trash-*"):
            shutil.rmtree(trash, ignore_errors=True)
        target = self.folder / f"step-{manifest['step']:08d}"
        _remove(target)  # the same step again, after a resume
        os.replace(self.partial, target)
        sync(self.folder)

        # The new one must be valid before an old one is removed.
        _verify(target)
        self._prune(target)

    def _prune(self, newest: Path) -> None:
        """Remove all but the newest checkpoints and the best one."""
        # Later ones than the newest are damaged: this run has skipped them.
        older = [path for path in folders(self.folder) if path <= newest]
        for path in older[self.keep :]:
            if path.name != self.best():
                _remove(path)

    def mark_best(self, path: Path, loss: float) -> None:
        """Name the checkpoint with the lowest evaluation loss, which is never removed."""
        # If the disk is full, the next resume marks it.
        with contextlib.suppress(OSError):
            write_json(self.folder / BEST, {"checkpoint": path.name, "loss": loss})

    # --- loading

    def best(self) -> str | None:
        """Return the folder name of the best checkpoint, if one is marked."""
        name: str | None = read_json(self.folder / BEST).get("checkpoint")
        return name

    def load(self) -> Manifest | None:
        """Restore all parts from the newest valid checkpoint; return None if there is none.

        Raises `UserError` if facts differ, or if no checkpoint is valid.
        """
        manifest = self.find("last")
        if manifest is None:
            return None
        for name, value in self.facts.items():
            saved_value = manifest["facts"].get(name)
            if saved_value != value:
                what = f"{name} was {saved_value} in the checkpoint and is {value} now"
                remedy = "change it back, or start a new run"
                raise UserError(what, str(manifest["path"]), remedy)
        self._restore(manifest, list(self.parts))
        return manifest

    def load_model(self, which: str = "best", also: Sequence[str] = ()) -> Manifest | None:
        """Restore the weights alone, for evaluation, prediction or the next phase.

        also: other parts to restore.
        """
        manifest = self.find(which)
        if manifest is not None:
            self._restore(manifest, [*also, "model"])
        return manifest

    def peek(self, which: str) -> dict[str, Any]:
        """Return the facts of that checkpoint without loading it; empty if there is none."""
        manifest = self.find(which) or {}
        return dict(manifest.get("facts", {}))

    def find(self, which: str) -> Manifest | None:
        """Find the newest valid checkpoint, the best one first for `best`, or the one of that name.

        Rank 0 compares all hashes; the other ranks use its result.
        """
        candidates = folders(self.folder)
        if which == "best":
            best = self.best()
            candidates.sort(key=lambda path: path.name != best)
        elif which != "last":
            candidates = [self.folder / which]

        def read() -> tuple[Manifest | None, list[str]]:
            if self.distributed.is_main:
                return _first_valid(candidates)
            return None, []

        result = self.distributed.on_all_ranks(read)
        manifest, self.skipped = self.distributed.gather_objects(result)[0]
        if manifest is None and self.skipped:
            remedy = f"restore one into {self.folder}"
            raise UserError("no valid checkpoint", "; ".join(self.skipped), remedy)
        return manifest

    def _restore(self, manifest: Manifest, names: list[str]) -> None:
        """Restore these parts in their order, and the model last."""
        path = manifest["path"]
        state: dict[str, Any] = {"model": load_tensors((path / MODEL).read_bytes())}
        for alias, name in manifest["aliases"].items():
            state["model"][alias] = state["model"][name]
        others = [name for name in names if name != "model"]
        if others:
            # A checkpoint from elsewhere cannot run code (needs torch >= 2.10, CVE-2026-24747).
            saved = torch.load(path / STATE, map_location="cpu", weights_only=True)
            state |= {name: saved[name] for name in others}
        self.distributed.give_shards(state, path, manifest["shards"])

        for name in others:
            self.parts[name].load_state_dict(state[name])
        try:
            self.parts["model"].load_state_dict(state["model"])
        except RuntimeError as error:
            # PyTorch prints a page of names: the first one is enough.
            first = " ".join(str(error).split("\n\t")[1:2]).strip()
            what = f"the checkpoint does not fit the model ({first})"
            remedy = "keep the model's settings, or start a new run"
            raise UserError(what, str(path), remedy) from error


def folders(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, newest first, valid or not."""
    if not folder.is_dir():
        return []
    checkpoints = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    return sorted(checkpoints, reverse=True)


def _first_valid(paths: list[Path]) -> tuple[Manifest | None, list[str]]:
    """Return the manifest of the first valid checkpoint, and why those before it are not."""
    skipped: list[str] = []
    for path in paths:
        try:
            return _verify(path), skipped
        except (OSError, ValueError, KeyError, TypeError) as error:
            skipped.append(f"{path.name} ({error})")
    return None, skipped


def _verify(path: Path) -> Manifest:
    """Return the manifest of a checkpoint whose files match their hashes.

    Raises ValueError or OSError if the checkpoint is damaged, `UserError` if another version of the
    code made it.
    """
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if manifest.pop("seal", None) != _seal(manifest):
        raise ValueError(f"{MANIFEST} does not match its seal")
    if manifest["format"] != FORMAT:
        what = f"the checkpoint has format {manifest['format']}, this version reads {FORMAT}"
        raise UserError(what, str(path), "use the version that made it")
    for name, expected in manifest["sha256"].items():
        if sha256(path / name) != expected:
            raise ValueError(f"{name} does not match its sha256")
    return {**manifest, "path": path}


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _save_model(tensors: dict[str, torch.Tensor], path: Path) -> dict[str, str]:
    """Write each tensor once; return the names that share a tensor with another (tied weights)."""
    unique: dict[str, torch.Tensor] = {}
    first_names: dict[tuple[Any, ...], str] = {}
    aliases = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.device)
        if tensor.numel() and key in first_names:
            aliases[name] = first_names[key]
        else:
            first_names[key] = name
            unique[name] = tensor.contiguous()
    _write(save_file, unique, path)
    return aliases


def _write(save: Callable[..., None], content: dict[str, Any], path: Path) -> None:
    try:
        save(content, path)
    except (RuntimeError, SafetensorError) as error:
        # Both libraries raise these for a full disk.
        raise OSError(str(error)) from error
    sync(path)


def _seal(manifest: dict[str, Any]) -> str:
    """Hash the manifest: a flipped bit in it would be another step, fact or tied weight."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _remove(path: Path) -> None:
    """Rename, then delete: a half-deleted folder is never taken for a checkpoint."""
    if path.exists():
        trash = path.with_name(f".trash-{path.name}")
        shutil.rmtree(trash, ignore_errors=True)
        os.replace(path, trash)
        shutil.rmtree(trash, ignore_errors=True)
