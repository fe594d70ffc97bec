"""Checkpoints that are complete or absent, verified on every load, and usable after any crash.

A checkpoint is a folder: `model.safetensors`, `state.pt` (plain data, read with weights_only) and
`manifest.json` with a sha256 per file. The manifest is written last, into a hidden folder that is
then renamed. A flipped bit loads silently from both formats (197 of 200 `.pt`, 199 of 200
`.safetensors` in a trial), so nothing is used before its hash matches. The newest valid checkpoint
is loaded, and the skipped ones are named.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from .errors import UserError
from .files import is_sealed, read_json, sha256, sync, write_sealed
from .shards import save_tensors, write_tensors

if TYPE_CHECKING:
    from .distributed import Distributed

T = TypeVar("T")
Manifest = dict[str, Any]
"""Describes a checkpoint: step, best, facts, aliases, sha256, shards; once read, its `path`."""

FORMAT = 2
MODEL = "model.safetensors"
STATE = "state.pt"
MANIFEST = "manifest.json"
NAME = "step-" + 8 * "[0-9]"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)  # None: a library raised it


class Schema(BaseModel, strict=True):
    """The types in a manifest."""

    step: int
    best: int
    facts: dict[str, int | str]
    aliases: dict[str, str]
    sha256: dict[str, str]
    shards: dict[str, list[int] | str]


class NotWritten(UserError):
    """A checkpoint could not be written. Earlier checkpoints are untouched."""


class Checkpoint:
    """Saves and restores the parts of a run: `model` and everything else that has a state.

    parts: by name, anything with `state_dict` and `load_state_dict`.

    keep: how many of the newest stay, in addition to the best one. must_match: plain values stored
    in the manifest, which must be the same on resume, such as the data and the schedule. settings:
    what decides such a value, for the error.
    """

    def __init__(
        self,
        folder: Path,
        distributed: Distributed,
        keep: int = 2,
        must_match: dict[str, Any] | None = None,
        settings: dict[str, str] | None = None,
        **parts: Any,
    ):
        self.folder = folder
        self.partial = folder / ".saving"  # becomes a checkpoint when it is complete
        self.distributed = distributed
        self.keep = keep
        self.must_match = must_match or {}
        self.settings = settings or {}
        self.parts = parts
        self.skipped: list[str] = []
        self.best_step = 0  # of the best checkpoint so far; 0 before there is one

    # --- saving

    def save(self, step: int, is_best: bool = False) -> None:
        """Write the checkpoint of `step`, then remove old ones. Call it on every rank.

        Rank 0 writes; with a sharded model each rank writes its own rows. Raises `NotWritten`, and
        then nothing half-written is left. is_best: it replaces the best checkpoint so far, which
        every later manifest names and which is never removed.
        """
        best_step = step if is_best else self.best_step
        state = {name: part.state_dict() for name, part in self.parts.items()}
        self._on_all_ranks(step, self._make_partial)
        save_shards = self.distributed.save_shards
        shards = self._on_all_ranks(step, lambda: save_shards(state, self.partial))
        manifest: Manifest = {
            "format": FORMAT,
            "step": step,
            "best": best_step,
            "facts": self.must_match,
            "sha256": {},
            "shards": shards.shapes,
        }
        for hashes in self.distributed.gather_objects(shards.sha256):
            manifest["sha256"] |= hashes
        self._on_all_ranks(step, lambda: self._commit(manifest, shards.whole))
        self.best_step = best_step

    def _make_partial(self) -> None:
        if self.distributed.is_main:
            shutil.rmtree(self.partial, ignore_errors=True)
            self.partial.mkdir(parents=True)

    def _on_all_ranks(self, step: int, write: Callable[[], T]) -> T:
        """Return `write()`. If a file cannot be written, all ranks raise `NotWritten`."""

        def work() -> T:
            try:
                return write()
            except OSError as error:
                shutil.rmtree(self.partial, ignore_errors=True)
                reason = error.strerror or error
                what = f"the checkpoint of step {step} could not be written ({reason})"
                remedy = "free some space" if error.errno in NO_SPACE else "check the folder"
                remedy += "; the checkpoints before it are whole"
                raise NotWritten(what, str(self.folder), remedy) from error

        return self.distributed.on_all_ranks(work)

    def _commit(self, manifest: Manifest, state: dict[str, Any]) -> None:
        """Write what is not sharded, then the manifest; then give the folder its name."""
        if not self.distributed.is_main:
            return
        manifest["aliases"] = save_tensors(state.pop("model"), self.partial / MODEL)
        write_tensors(torch.save, state, self.partial / STATE)
        for name in (MODEL, STATE):
            manifest["sha256"][name] = sha256(self.partial / name)
        write_sealed(self.partial / MANIFEST, manifest)
        sync(self.partial)

        target = self.folder / step_name(manifest["step"])
        _set_aside(target)  # the same step again, after a resume
        os.replace(self.partial, target)
        sync(self.folder)

        # The new one must be valid before an old one is removed.
        self._prune(_verify(target))
        for trash in self.folder.glob(".trash-*"):  # also of a run that was killed here
            shutil.rmtree(trash, ignore_errors=True)

    def _prune(self, newest: Manifest) -> None:
        """Remove all but the newest checkpoints and the best one."""
        # Later ones than the newest are damaged: this run has skipped them.
        older = [path for path in folders(self.folder) if path <= newest["path"]]
        for path in older[self.keep :]:
            if path.name != step_name(newest["best"]):
                _set_aside(path)

    # --- loading

    def load(self) -> Manifest | None:
        """Restore all parts from the newest valid checkpoint; return None if there is none.

        Raises `UserError` if one of `must_match` differs, or if no checkpoint is valid.
        """
        manifest = self.find("last")
        if manifest is None:
            return None
        for name, value in self.must_match.items():
            saved_value = manifest["facts"].get(name)
            if saved_value != value:
                what = f"{name} was {saved_value} in the checkpoint and is {value} now"
                remedy = "change it back"
                if name in self.settings:
                    remedy += f" ({self.settings[name]})"
                remedy += ", or start a new run"
                raise UserError(what, str(manifest["path"]), remedy)
        self._restore(manifest, self.parts)
        return manifest

    def load_model(self, which: str = "best", also: Iterable[str] = ()) -> Manifest | None:
        """Restore the weights alone, for evaluation, prediction or the next phase.

        also: other parts to restore.
        """
        manifest = self.find(which)
        if manifest is not None:
            self._restore(manifest, [*also, "model"])
        return manifest

    def peek(self, which: str) -> dict[str, Any]:
        """Return what a resume of that checkpoint must match; empty if there is none."""
        manifest = self.find(which) or {}
        return dict(manifest.get("facts", {}))

    def find(self, which: str) -> Manifest | None:
        """Find the `last` valid checkpoint, the `best` one, or the one of that name.

        The newest valid manifest names the best one; if that is damaged, the newest one is used.
        Rank 0 compares all hashes; the other ranks use its result.
        """
        result = self.distributed.on_all_ranks(lambda: self._find_on_main(which))
        manifest, self.skipped = self.distributed.gather_objects(result)[0]
        if manifest is None and self.skipped:
            remedy = f"restore one into {self.folder}"
            raise UserError("no valid checkpoint", "; ".join(self.skipped), remedy)
        if manifest is not None:
            self.best_step = manifest["best"]
        return manifest

    def _find_on_main(self, which: str) -> tuple[Manifest | None, list[str]]:
        """Return the manifest, and what was skipped and why; on other ranks nothing."""
        if not self.distributed.is_main:
            return None, []
        if which not in ("best", "last"):
            return _first_valid([self.folder / which])
        newest, skipped = _first_valid(folders(self.folder))
        if which == "last" or newest is None or newest["best"] in (0, newest["step"]):
            return newest, skipped
        best, skipped_best = _first_valid([self.folder / step_name(newest["best"])])
        return best or newest, skipped + skipped_best

    def _restore(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Restore these parts in their order, and the model last."""
        path = manifest["path"]
        state: dict[str, Any] = {"model": read_model(manifest)}
        others = [name for name in names if name != "model"]
        if others:
            saved = read_plain(path / STATE)
            state |= {name: saved[name] for name in others}
        self.distributed.give_shards(state, path, manifest["shards"])

        for name in others:
            self.parts[name].load_state_dict(state[name])
        try:
            self.parts["model"].load_state_dict(state["model"])
        except RuntimeError as error:
            # PyTorch prints a page of names: three are enough.
            first = " ".join(str(error).split("\n\t")[1:2]).strip()
            first = ', "'.join(first.split(', "')[:3])
            what = f"the checkpoint does not fit the model ({first})"
            remedy = (
                "model.py or its settings changed since the run: restore them, or start a new run"
            )
            raise UserError(what, str(path), remedy) from error


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def read_plain(path: Path) -> Any:
    """Read what `torch.save` wrote, if it is tensors and plain values.

    A checkpoint from elsewhere cannot run code (needs torch >= 2.10, CVE-2026-24747).
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file may raise any error
        what = "the file is not only tensors and plain values"
        remedy = (
            "it may run code, or is damaged: use another checkpoint, or the file of a state_dict()"
        )
        raise UserError(what, str(path), remedy) from error


def read_model(manifest: Manifest) -> dict[str, torch.Tensor]:
    """Return the weights that are not sharded."""
    path = manifest["path"] / MODEL
    try:
        tensors = load_tensors(path.read_bytes())
    except SafetensorError as error:
        what = f"cannot read the weights ({error})"
        raise UserError(what, str(path), "use another checkpoint") from error
    for alias, name in manifest["aliases"].items():
        tensors[alias] = tensors[name]
    return tensors


def folders(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, newest first, valid or not."""
    return sorted(folder.glob(NAME), reverse=True)


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
    manifest = read_json(path / MANIFEST)
    if not is_sealed(manifest):
        raise ValueError(f"{MANIFEST} is missing, or does not match its seal")
    if manifest["format"] != FORMAT:
        what = f"the checkpoint has format {manifest['format']}, this version reads {FORMAT}"
        raise UserError(what, str(path), "use the version that made it")
    try:
        Schema.model_validate(manifest)
    except ValidationError as error:
        raise ValueError(f"{MANIFEST} has values of wrong types") from error
    for name, expected in manifest["sha256"].items():
        if sha256(path / name) != expected:
            raise ValueError(f"{name} does not match its sha256")
    return {**manifest, "path": path}


def _set_aside(path: Path) -> None:
    """Rename what is to be deleted: a half-deleted folder is never taken for a checkpoint."""
    trash = path.with_name(f".trash-{path.name}")
    shutil.rmtree(trash, ignore_errors=True)
    if path.exists():
        os.replace(path, trash)
