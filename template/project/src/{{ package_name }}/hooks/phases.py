"""Trains in phases: a run for each, in a subfolder, from the last weights of the one before.

A phase is a list of settings in `finetune.phases`. The environment and flags take precedence.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError, UserErrors
from ..engine.files import read_json, write_text
from ..engine.runs import CONFIG, check_links, is_run

if TYPE_CHECKING:
    from ..engine.compute.distributed import Distributed
    from ..engine.training.checkpoint import Checkpoint
    from ..engine.training.run import Run

SAME = ("model.", "finetune.init_from", "finetune.phases")  # in all phases, dropout excepted


class Phases:
    """The phases of a training. There are none if `finetune.phases` is empty."""

    def __init__(
        self,
        settings: Any,
        resumed: bool,
        distributed: Distributed,
        arguments: argparse.Namespace,
    ):
        """Raises `UserError` for settings that a phase cannot have, and for flags without sense.

        resumed: whether a run has these phases; some of their settings may be gone by now.
        """
        self.distributed = distributed
        self.only = arguments.phase  # train this phase alone (from 1)
        self.settings = []
        resolved = []
        where = settings.origins["finetune.phases"]
        for number, tree in enumerate(settings.finetune.phases, start=1):
            origin = f"{where} phase {number}"
            phase = with_phase(settings, origin, tree, resumed)
            changed = [key for key, source in phase.origins.items() if source == origin]
            for key in changed:
                if key.startswith(SAME) and key != "model.dropout":
                    remedy = "set it for all phases: each continues with the same weights"
                    raise UserError(f"a phase cannot change {key}", origin, remedy)
            self.settings.append(phase)
            resolved.append({key: phase.value(key) for key in changed})
        if self.only is not None and not 1 <= self.only <= len(self):
            what = f"there is no phase {self.only}"
            raise UserError(what, "--phase", f"finetune.phases has {len(self)} phases")
        if self.settings and arguments.minutes is not None:
            what = "each phase has its own number of steps"
            raise UserError(what, "--minutes", "remove it")
        self.whole = settings.replaced({"finetune.phases": resolved}, where)

    def __len__(self) -> int:
        return len(self.settings)

    def train(self, folder: Path, train_run: Callable[..., Run], **options: Any) -> Run:
        """Train each phase that is not finished, in a folder of its own; return the last run.

        options: of each phase's `Session`.
        """
        is_main = self.distributed.is_main
        is_new = not is_run(folder)
        if is_main and (options["changes"] or is_new):
            write_text(folder / CONFIG, self.whole.to_yaml())
        for phase in folder.glob("phase-*"):
            check_links(phase)
        last = self.only or len(self)
        first = self._unfinished(folder, last)
        if self.only and first < last:
            step = self._status(folder, first).get("step", 0)
            what = f"phase {first} is not finished"
            raise UserError(what, f"{folder}, step {step}", "resume it first")

        for number in range(first, last + 1):
            gc.unfreeze()  # lets go of the model of the phase before
            values = {"finetune.init_from": self._initial(folder, number), "finetune.phases": []}
            settings = self.settings[number - 1].replaced(values, f"phase {number}")
            phase = folder / f"phase-{number}"
            self.distributed.on_all_ranks(partial(self._make, phase))
            try:
                run = train_run(phase, settings, self.distributed, **options)
            except UserError:
                if is_main and is_new:
                    remove_without_phases(folder)
                raise
            if not run.is_done:
                break
        return run

    def _unfinished(self, folder: Path, last: int) -> int:
        """Return the phase to continue, at most the phase `last`.

        It is the newest one with checkpoints, which needs none of those before it, or the next one.
        If the last checkpoint of a finished phase is lost, the phase is completed again.
        """
        for number in range(last, 0, -1):
            checkpoint = self._checkpoint(folder, number)
            if not self._has_saved(checkpoint):
                continue
            if number == last:
                return last
            step = checkpoint.find("last").get("step")
            status = self._status(folder, number)
            is_finished = status.get("state") == "finished" and status.get("step") == step
            return number + 1 if is_finished else number
        return 1

    def _initial(self, folder: Path, number: int) -> str:
        """Return what a phase starts from: the last weights of the phase before it."""
        if number == 1:
            return str(self.whole.finetune.init_from)
        if self._has_saved(self._checkpoint(folder, number)):
            return str(folder / f"phase-{number - 1}")  # it continues, and reads nothing there
        return str(self._checkpoint(folder, number - 1).find("last")["path"])

    def _status(self, folder: Path, number: int) -> dict[str, Any]:
        status = read_json(folder / f"phase-{number}" / "status.json")
        return self.distributed.gather_objects(status)[0]

    def _checkpoint(self, folder: Path, number: int) -> Checkpoint:
        from ..engine.training.checkpoint import Checkpoint

        return Checkpoint(folder / f"phase-{number}" / "checkpoints", self.distributed)

    def _has_saved(self, checkpoint: Checkpoint) -> bool:
        has_saved = bool(checkpoint.candidates("last"))
        return self.distributed.gather_objects(has_saved)[0]

    def _make(self, folder: Path) -> None:
        """Make the folder of a phase; raise `UserError` if a phase in it has lost its settings."""
        if not self.distributed.is_main:
            return
        folder.mkdir(exist_ok=True)
        if not is_run(folder) and {"checkpoints", "env.json"} & {*os.listdir(folder)}:
            what = f"the phase has no {CONFIG}, so it would start again"
            raise UserError(what, str(folder), "restore the file, or move the phase away")


def with_phase(settings: Any, origin: str, tree: dict[str, Any], resumed: bool) -> Any:
    """Return the settings with those of a phase, unless the environment or a flag has set them."""
    errors: list[UserError] = []
    phase = settings.merged([(origin, tree)], errors, skip_unknown=resumed)
    if errors:
        raise UserErrors(errors)
    for key, source in settings.origins.items():
        if source.startswith(("$", "--")):
            phase = phase.replaced({key: settings.value(key)}, source)
    return phase


def remove_without_phases(folder: Path) -> None:
    """Remove the folder of a new run whose first phase could not begin, and has left nothing."""
    with suppress(OSError):  # what cannot be listed now stays
        if not any(name.startswith("phase-") for name in os.listdir(folder)):
            shutil.rmtree(folder)
