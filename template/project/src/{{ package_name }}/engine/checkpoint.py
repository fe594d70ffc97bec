"""Checkpoints that are whole or absent, checked on every load, and found again after any crash.

One checkpoint is one folder: `model.safetensors`, `state.pt` (plain data, read with weights_only) and
`manifest.json` with a sha256 per file, written last into a hidden folder that is renamed into place.
A flipped bit loads silently from both formats (197 of 200 `.pt`, 199 of 200 `.safetensors` in a
trial), so nothing is used before its hash matches; the newest valid checkpoint wins and the
skipped ones are named.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
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
"""What a checkpoint says of itself: step, facts, rules, aliases, sha256, shards; when read, its `path`."""

FORMAT = 2  # 1 had no rules, and its format stood outside of the seal
MODEL, STATE, MANIFEST, BEST = "model.safetensors", "state.pt", "manifest.json", "best.json"
SHARD = "shard-{:05}.safetensors"  # what a rank has for itself, where the model is sharded
NAME = re.compile(r"step-(\d{8})")
JUST_WRITTEN = 2.0  # seconds in which a file could change again without another time of change


class DiskFull(UserError):
    """A checkpoint could not be written; the ones before it are untouched."""


class Part(Protocol):
    """What a checkpoint keeps: the model, the optimizer, a place in the run."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


class Checkpoint:
    """Saves and restores the parts of a run: `model` and whatever else has a state.

    keep: how many of the newest stay, beside the best one. facts: plain values kept in the manifest,
    compared on loading (data, settings that must not change). rules: by what rules the run computes what
    it does not store, such as the order of samples; a checkpoint that says nothing of one followed rule 1.
    """

    def __init__(
        self,
        folder: Path,
        distributed: Distributed,
        keep: int = 2,
        facts: dict[str, Any] | None = None,
        rules: dict[str, int] | None = None,
        **parts: Part,
    ):
        self.folder, self.distributed, self.keep, self.parts = folder, distributed, max(keep, 2), parts
        self.facts, self.rules = facts or {}, rules or {}
        self.skipped: list[str] = []

    def save(self, step: int) -> Path:
        """Writes the checkpoint of `step`, then prunes old ones. Raises `DiskFull`; nothing is half-written.

        Every rank calls it; rank 0 writes, and another one what it alone has.
        """
        ranks, partial = self.distributed, self.folder / ".saving"
        state, shards = ranks.take_shards({name: part.state_dict() for name, part in self.parts.items()})

        def stage(work: Callable[[], T], here: bool = ranks.is_main) -> T | None:
            return ranks.together(lambda: self._checked(step, work) if here else None)

        stage(lambda: _empty(partial))
        manifest: Manifest = {"format": FORMAT, "step": step, "facts": self.facts, "rules": self.rules}
        manifest |= {"sha256": {}, "shards": {key: list(tensor.shape) for key, tensor in shards.items()}}
        if shards:
            mine = {key: tensor.to_local() for key, tensor in shards.items()}
            path = partial / SHARD.format(ranks.rank)
            manifest["shards"] |= stage(lambda: _save_model(mine, path), here=True) or {}
            manifest["sha256"] |= ranks.gather((path.name, sha256(path)))
        stage(lambda: self._commit(manifest, state))
        return self.folder / f"step-{step:08d}"

    def _checked(self, step: int, write: Callable[[], T]) -> T:
        """`write()`, with a line for a full disk."""
        try:
            return write()
        except OSError as error:
            shutil.rmtree(self.folder / ".saving", ignore_errors=True)
            need = sum(tensor.nbytes for tensor in self.parts["model"].state_dict().values()) / 1e6
            free = shutil.disk_usage(self.folder).free / 1e6
            what = f"the checkpoint of step {step} could not be written ({error.strerror or error})"
            where = f"{self.folder} ({free:,.1f} MB free, the weights alone need {need:,.1f} MB)"
            raise DiskFull(what, where, "free some space; the checkpoints before it are whole") from error

    def _commit(self, manifest: Manifest, state: dict[str, Any]) -> None:
        """What is not in shards, then the manifest, then the name; then older ones go."""
        target, partial = self.folder / f"step-{manifest['step']:08d}", self.folder / ".saving"
        manifest["aliases"] = _save_model(state.pop("model"), partial / MODEL)
        _write(torch.save, state, partial / STATE)
        manifest["sha256"] |= {name: sha256(partial / name) for name in (MODEL, STATE)}
        write_json(partial / MANIFEST, {**manifest, "seal": _seal(manifest)})
        sync(partial)
        for trash in self.folder.glob(".trash-*"):  # of a run that was killed while it removed one
            shutil.rmtree(trash, ignore_errors=True)
        _remove(target)  # the same step again, after a resume
        os.replace(partial, target)
        sync(self.folder)
        _verify(target)  # the new one must be whole before an old one goes
        older = [path for path in folders(self.folder) if path <= target]  # later ones are damaged
        for path in older[self.keep :]:
            if path.name != self.best():
                _remove(path)

    def mark_best(self, path: Path, loss: float) -> None:
        """Names the checkpoint with the lowest evaluation loss; pruning spares it."""
        with contextlib.suppress(OSError):  # a full disk; after a resume from it, it is marked
            write_json(self.folder / BEST, {"checkpoint": path.name, "loss": loss})

    def best(self) -> str | None:
        """Name of the best checkpoint's folder, if one is marked and there."""
        name = read_json(self.folder / BEST).get("checkpoint")
        return name if name and (self.folder / name).is_dir() else None

    def load(self, which: str = "last", **same: list[Any]) -> Manifest | None:
        """Restores all parts from the newest valid checkpoint, or the best one; None where there is none.

        same: by the name of a fact, the values that older versions had for what it is now. Raises `UserError`
        where facts or rules differ, or where checkpoints are there and none is valid.
        """
        if (manifest := self.find(which)) is None:
            return None
        path = manifest["path"]
        for name, rule in self.rules.items():
            if rule != (was := manifest["rules"].get(name, 1)):
                what = f"the run follows rule {was} of the {name}, this version rule {rule}"
                raise UserError(what, str(path), "end it with the version that began it, or start a new run")
        for name, value in self.facts.items():
            if (fact := manifest["facts"].get(name)) not in same.get(name, [value]):
                what = f"the checkpoint was made with {name} {fact!r}, now it is {value!r}"
                raise UserError(what, str(path), "go back to that, or start a new run")
        return self._restore(manifest, _read_state(path), self.parts)

    def load_model(
        self,
        which: str = "best",
        fits: Callable[[dict[str, Any]], None] = lambda facts: None,
        also: Sequence[str] = (),
    ) -> Manifest | None:
        """Restores the weights alone (evaluation, prediction, the start of a phase), whatever the rules.

        fits: called with the checkpoint's facts first, to refuse it. also: other parts to restore.
        """
        if (manifest := self.find(which)) is None:
            return None
        fits(manifest["facts"])
        state = _read_state(manifest["path"]) if also else {}
        state = {name: state[name] for name in also if name in state}
        return self._restore(manifest, state, {name: self.parts[name] for name in (*also, "model")})

    def peek(self, which: str = "best") -> dict[str, Any]:
        """The facts that `load_model(which)` would find, without its weights; empty where there is none."""
        return dict((self.find(which) or {"facts": {}})["facts"])

    def find(self, which: str) -> Manifest | None:
        """The checkpoint to load: the newest valid one, `best` first, or the one of that name.

        Rank 0 holds all of it against its hashes; the others take its word.
        """
        ordered, best, ranks = folders(self.folder), self.best(), self.distributed
        if which == "best":
            ordered.sort(key=lambda path: path.name != best)
        elif which != "last":
            ordered = [self.folder / which]
        nothing: tuple[Manifest | None, list[str]] = None, []
        mine = ranks.together(lambda: _first_valid(ordered) if ranks.is_main else nothing)
        manifest, self.skipped = ranks.gather(mine)[0]
        if manifest is None and self.skipped:
            raise UserError("no valid checkpoint", "; ".join(self.skipped), f"restore one into {self.folder}")
        return manifest

    def _restore(self, manifest: Manifest, state: dict[str, Any], parts: dict[str, Part]) -> Manifest:
        """Fills `parts` in their order, and the model after the others."""
        path, tensors = manifest["path"], load_tensors((manifest["path"] / MODEL).read_bytes())
        tensors |= {alias: tensors[name] for alias, name in manifest["aliases"].items()}
        state |= {"model": tensors}
        shards = {key: shape for key, shape in manifest["shards"].items() if key.split("/")[0] in state}
        self.distributed.give_shards(state, path, shards)
        for name, part in parts.items():
            if name != "model":
                part.load_state_dict(state.get(name, {}))  # older versions had fewer parts
        try:
            parts["model"].load_state_dict(tensors)
        except RuntimeError as error:  # a page of names
            first = " ".join(str(error).split("\n\t")[1:2]).strip()
            what = f"the checkpoint does not fit the model ({first})"
            raise UserError(what, str(path), "keep the model's settings, or start a new run") from error
        return manifest


def folders(folder: Path) -> list[Path]:
    """All checkpoints in a folder, newest first, valid or not."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), reverse=True)


def _first_valid(paths: list[Path]) -> tuple[Manifest | None, list[str]]:
    skipped: list[str] = []
    for path in paths:
        try:
            return _verify(path), skipped
        except (OSError, ValueError, KeyError, TypeError) as error:
            skipped.append(f"{path.name} ({error})")
    return None, skipped


_verified: dict[Path, object] = {}


def _verify(path: Path) -> Manifest:
    """A checkpoint's manifest. What this process has read whole, and nobody changed since, is not read again.

    Raises ValueError or OSError where it is not whole, `UserError` where a later version made it.
    """
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    seal, number = manifest.pop("seal", None), manifest.get("format", 1)
    if number == 1:
        manifest.pop("format", None)
    if seal != _seal(manifest):
        raise ValueError(f"{MANIFEST} does not match its seal")
    if number > FORMAT:
        what = f"the checkpoint has format {number}, this version reads 1 to {FORMAT}"
        raise UserError(what, str(path), "use the version that made it, or a later one")
    status = [(path / name).stat() for name in manifest["sha256"]]
    stamp = seal, [(file.st_ino, file.st_size, file.st_mtime_ns) for file in status]
    if _verified.get(path) != stamp:
        for name, expected in manifest["sha256"].items():
            if sha256(path / name) != expected:
                raise ValueError(f"{name} does not match its sha256")
        if all(time.time() - file.st_mtime > JUST_WRITTEN for file in status):
            _verified[path] = stamp
    return {"rules": {}, **manifest, "path": path}


def _read_state(path: Path) -> dict[str, Any]:
    # weights_only: a checkpoint from elsewhere cannot run code (needs torch >= 2.10, CVE-2026-24747)
    state: dict[str, Any] = torch.load(path / STATE, map_location="cpu", weights_only=True)
    return state


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _save_model(tensors: dict[str, torch.Tensor], path: Path) -> dict[str, str]:
    """Writes each tensor once; returns which names are the same tensor as another (tied weights)."""
    unique: dict[str, torch.Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}
    aliases = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.device)
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            unique[name] = tensor.contiguous()
    _write(save_file, unique, path)
    return aliases


def _write(save: Callable[..., None], content: dict[str, Any], path: Path) -> None:
    try:
        save(content, path)
    except (RuntimeError, SafetensorError) as error:  # so both libraries say that a disk is full
        raise OSError(str(error)) from error
    sync(path)


def _seal(manifest: dict[str, Any]) -> str:
    """The manifest's own sha256: a flipped bit in it would be another step, fact or tied weight."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _remove(path: Path) -> None:
    """Renames first, so that a half-deleted folder is never taken for a checkpoint."""
    if path.exists():
        trash = path.with_name(f".trash-{path.name}")
        shutil.rmtree(trash, ignore_errors=True)
        os.replace(path, trash)
        shutil.rmtree(trash, ignore_errors=True)
