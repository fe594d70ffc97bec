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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file

from .errors import UserError
from .files import sha256, sync, write_json

FORMAT = 1
MODEL, STATE, MANIFEST, BEST = "model.safetensors", "state.pt", "manifest.json", "best.json"
SHARD = "shard-{:05}.safetensors"  # what a rank has for itself, where the model is sharded
NAME = re.compile(r"step-(\d{8})")


class DiskFull(UserError):
    """A checkpoint could not be written; the ones before it are untouched."""


class Checkpoint:
    """Saves and restores the parts of a run: `model` and whatever else has `state_dict`/`load_state_dict`.

    keep: how many of the newest stay, beside the best one. facts: plain values kept in the manifest,
    compared on loading (data, settings that must not change). accepted: other values of a fact that mean
    the same.
    """

    def __init__(
        self,
        folder: Path,
        distributed: Any,
        keep: int = 2,
        facts: dict[str, Any] | None = None,
        accepted: dict[str, list[Any]] | None = None,
        **parts: Any,
    ):
        self.folder, self.distributed, self.keep, self.parts = folder, distributed, max(keep, 2), parts
        self.facts, self.accepted = facts or {}, accepted or {}
        self.skipped: list[str] = []

    def save(self, step: int, extra: dict[str, Any] | None = None) -> Path:
        """Writes the checkpoint of `step`, then prunes old ones. Raises `DiskFull`; nothing is half-written.

        extra: plain data kept beside the parts. Every rank calls it; rank 0 writes, and another one what
        it alone has.
        """
        ranks, partial = self.distributed, self.folder / ".saving"
        state = {name: part.state_dict() for name, part in self.parts.items()} | {"extra": extra or {}}
        state, shards = ranks.take_shards(state)

        def stage(work: Callable[[], Any], main: bool = True) -> Any:
            return ranks.together(lambda: self._checked(step, work) if ranks.is_main or not main else None)

        stage(lambda: _empty(partial))
        hashes, shapes = {}, {key: list(tensor.shape) for key, tensor in shards.items()}
        if shards:
            mine = {key: tensor.to_local() for key, tensor in shards.items()}
            path = partial / SHARD.format(ranks.rank)
            shapes |= stage(lambda: _save_model(mine, path), main=False)
            hashes = dict(ranks.gather((path.name, sha256(path))))
        stage(lambda: self._commit(step, state, hashes, shapes))
        return self.folder / f"step-{step:08d}"

    def _checked(self, step: int, write: Callable[[], Any]) -> Any:
        """`write()`, with a line for a full disk."""
        try:
            return write()
        except OSError as error:
            shutil.rmtree(self.folder / ".saving", ignore_errors=True)
            need = sum(tensor.nbytes for tensor in self.parts["model"].state_dict().values())
            with contextlib.suppress(OSError):
                free = shutil.disk_usage(self.folder).free
                raise DiskFull(
                    f"the checkpoint of step {step} could not be written ({error.strerror or error})",
                    f"{self.folder} ({free >> 20} MB free, the weights alone need {need >> 20} MB)",
                    "free some space; the checkpoints before it are whole",
                ) from error
            raise

    def _commit(
        self, step: int, state: dict[str, Any], hashes: dict[str, str], shapes: dict[str, Any]
    ) -> None:
        """What is not in shards, then the manifest, then the name."""
        target, partial = self.folder / f"step-{step:08d}", self.folder / ".saving"
        aliases = _save_model(state.pop("model"), partial / MODEL)
        _save_state(state, partial / STATE)
        hashes = hashes | {name: sha256(partial / name) for name in (MODEL, STATE)}
        manifest = {"step": step, "facts": self.facts, "aliases": aliases, "sha256": hashes, "shards": shapes}
        write_json(partial / MANIFEST, {"format": FORMAT, "seal": _seal(manifest), **manifest})
        sync(partial)
        for trash in self.folder.glob(".trash-*"):  # of a run that was killed while it removed one
            shutil.rmtree(trash, ignore_errors=True)
        _remove(target)  # the same step again, after a resume
        os.replace(partial, target)
        sync(self.folder)
        self._prune(target)

    def mark_best(self, path: Path, loss: float) -> None:
        """Names the checkpoint with the lowest evaluation loss; pruning spares it."""
        with contextlib.suppress(OSError):  # a full disk; after a resume from it, it is marked
            write_json(self.folder / BEST, {"checkpoint": path.name, "loss": loss})

    def load(self, which: str = "last") -> dict[str, Any] | None:
        """Restores all parts from the newest valid checkpoint, or the best one; None where there is none.

        Returns {"step", "path", "extra"}. Raises `UserError` where the facts differ, or where checkpoints
        are there and none is valid.
        """
        found = self._read(which)
        if found is None:
            return None
        manifest, tensors, state = found["manifest"], found["tensors"], found["state"]
        for name, value in self.facts.items():
            was = manifest["facts"].get(name)
            if was not in [value, *self.accepted.get(name, [])]:
                what = f"the checkpoint was made with {name} {was!r}, now it is {value!r}"
                raise UserError(what, str(found["path"]), "go back to that, or start a new run")
        for name, part in self.parts.items():
            if name != "model":
                part.load_state_dict(state[name])
        load_model(self.parts["model"], tensors, found["path"])
        return {"step": manifest["step"], "path": found["path"], "extra": state["extra"]}

    def load_model(
        self, which: str = "best", fits: Callable[[dict[str, Any]], None] = lambda facts: None
    ) -> dict[str, Any] | None:
        """Restores the weights alone (evaluation, prediction, the start of a phase).

        fits: called with the checkpoint's facts first, to refuse it.
        """
        found = self._read(which)
        if found is None:
            return None
        fits(found["manifest"]["facts"])
        load_model(self.parts["model"], found["tensors"], found["path"])
        return {"step": found["manifest"]["step"], "path": found["path"], "facts": found["manifest"]["facts"]}

    def peek(self, which: str = "best") -> dict[str, Any]:
        """The facts that `load_model(which)` would find, without its weights; empty where there is none."""
        found = self._read(which, tensors=False)
        return found["manifest"]["facts"] if found else {}

    def best(self) -> str | None:
        """Name of the best checkpoint's folder, if one is marked and there."""
        try:
            name = json.loads((self.folder / BEST).read_text())["checkpoint"]
        except (OSError, ValueError, KeyError):
            return None
        return name if (self.folder / name).is_dir() else None

    def _read(self, which: str, tensors: bool = True) -> dict[str, Any] | None:
        best = self.best()
        ordered = folders(self.folder)
        if which == "best" and best:
            ordered = [self.folder / best, *(path for path in ordered if path.name != best)]
        ranks, found = self.distributed, None
        if ranks.is_main:
            found, self.skipped = _first_valid(ordered, tensors)
        # Rank 0 reads all of it against the hashes; the others take the one that it has found.
        path, self.skipped = ranks.gather((found and found["path"], self.skipped))[0]
        if path and not ranks.is_main:
            found = {"path": path, **_read_folder(path, tensors, verify=False)}
        if found and tensors:
            everything = {"model": found["tensors"], **found["state"]}
            ranks.give_shards(everything, path, found["manifest"].get("shards", {}))
        if found is None and self.skipped:
            raise UserError("no valid checkpoint", "; ".join(self.skipped), f"restore one into {self.folder}")
        return found

    def _prune(self, newest: Path) -> None:
        _read_folder(newest, tensors=False)  # the new one must verify before an old one goes
        older = [path for path in folders(self.folder) if path <= newest]  # later ones are damaged
        for path in older[self.keep :]:
            if path.name != self.best():
                _remove(path)


def folders(folder: Path) -> list[Path]:
    """All checkpoints in a folder, newest first, valid or not."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), reverse=True)


def newest_facts(folder: Path) -> dict[str, Any]:
    """Facts of the newest checkpoint whose hashes match; empty where there is none."""
    found, _ = _first_valid(folders(folder), tensors=False)
    return found["manifest"]["facts"] if found else {}


def _first_valid(paths: list[Path], tensors: bool = True) -> tuple[dict[str, Any] | None, list[str]]:
    skipped: list[str] = []
    for path in paths:
        try:
            return {"path": path, **_read_folder(path, tensors)}, skipped
        except (OSError, ValueError, KeyError, TypeError) as error:
            skipped.append(f"{path.name} ({error})")
    return None, skipped


def load_model(model: torch.nn.Module, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Strict, with one line instead of a page where the checkpoint is another model's."""
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        first = " ".join(str(error).split("\n\t")[1:2]).strip()
        what = f"the checkpoint does not fit the model ({first})"
        raise UserError(what, str(path), "keep the model's settings, or start a new run") from error


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
    try:
        save_file(unique, path)
    except Exception as error:  # safetensors has its own error class for a full disk
        raise OSError(str(error)) from error
    sync(path)
    return aliases


def _save_state(state: dict[str, Any], path: Path) -> None:
    with open(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch hides a full disk behind "unexpected pos"
            raise OSError(str(error)) from error
        file.flush()
        os.fsync(file.fileno())


def _seal(manifest: dict[str, Any]) -> str:
    """The manifest's own sha256: a flipped bit in it would be another step, fact or tied weight."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _read_folder(path: Path, tensors: bool = True, verify: bool = True) -> dict[str, Any]:
    """A checkpoint's content. Raises ValueError or OSError where it is not whole."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if (number := manifest.pop("format", None)) != FORMAT:
        raise ValueError(f"format {number}")
    if manifest.pop("seal", None) != _seal(manifest):
        raise ValueError(f"{MANIFEST} does not match its seal")
    for name, expected in manifest["sha256"].items() if verify else ():
        if sha256(path / name) != expected:
            raise ValueError(f"{name} does not match its sha256")
    if not tensors:
        return {"manifest": manifest}
    weights = load_tensors((path / MODEL).read_bytes())
    for alias, name in manifest["aliases"].items():
        weights[alias] = weights[name]
    # weights_only: a checkpoint from elsewhere cannot run code (needs torch >= 2.10, CVE-2026-24747)
    state = torch.load(path / STATE, map_location="cpu", weights_only=True)
    return {"manifest": manifest, "tensors": weights, "state": state}


def _remove(path: Path) -> None:
    """Renames first, so that a half-deleted folder is never taken for a checkpoint."""
    if path.exists():
        trash = path.with_name(f".trash-{path.name}")
        shutil.rmtree(trash, ignore_errors=True)
        os.replace(path, trash)
        shutil.rmtree(trash, ignore_errors=True)
