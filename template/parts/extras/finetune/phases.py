"""Trains in phases: a run for each, in a subfolder, from the last weights of the one before.

A phase is a list of settings in `finetune.phases`. The environment and flags take precedence.
"""

from __future__ import annotations

import argparse
import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import read_json, write_text
from ..engine.runs import CONFIG

if TYPE_CHECKING:
    from ..config import Settings
    from ..engine.compute.distributed import Distributed
    from ..engine.run.session import Session
    from ..engine.settings.sources import Layer

SAME = ("model.", "finetune.init_from", "finetune.phases")  # in all phases, dropout excepted


class Phases:
    """The phases of a training. There are none if `finetune.phases` is empty."""

    def __init__(
        self,
        settings: Any,
        load: Callable[[list[Layer]], Settings],
        distributed: Distributed,
        arguments: argparse.Namespace,
    ):
        """Raises `UserError` for settings that a phase cannot have, and for flags without sense.

        load: returns the settings with those of other sources, which are weaker than flags.
        """
        self.distributed = distributed
        self.only = arguments.phase  # train this phase alone (from 1)
        self.settings = []
        resolved = []
        where = settings.origins["finetune.phases"]
        for number, tree in enumerate(settings.finetune.phases, start=1):
            origin = f"{where} phase {number}"
            phase = load([(origin, tree)])
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

    def train(
        self, folder: Path, changed: list[str], train_run: Callable[[Path, Settings], Session]
    ) -> Session:
        """Train each phase that is not finished, in a folder of its own; return the last session.

        changed: what a resume changes of the settings.
        """
        from ..engine.run.checkpoint import Checkpoint

        gather = self.distributed.gather_objects
        if self.distributed.is_main and (changed or not (folder / CONFIG).exists()):
            write_text(folder / CONFIG, self.whole.to_yaml())
        last = self.only or len(self)
        weights = self.whole.finetune.init_from
        for number in range(1, last + 1):
            phase = folder / f"phase-{number}"
            status = gather(read_json(phase / "status.json"))[0]
            is_finished = status.get("state") == "finished"
            if number < last and self.only and not is_finished:
                where = f"{folder}, step {status.get('step', 0)}"
                raise UserError(f"phase {number} is not finished", where, "resume it first")

            if number == last or not is_finished:
                gc.unfreeze()  # lets go of the model of the phase before
                values = {"finetune.init_from": weights, "finetune.phases": []}
                settings = self.settings[number - 1].replaced(values, f"phase {number}")
                session = self._train_phase(phase, settings, train_run)
                if not session.finished:
                    break
            checkpoint = Checkpoint(phase / "checkpoints", self.distributed).find("last")
            weights = str(checkpoint["path"])
        return session

    def _train_phase(
        self, folder: Path, settings: Settings, train_run: Callable[[Path, Settings], Session]
    ) -> Session:
        """Train one phase in its folder; if the first one cannot begin, nothing is left behind."""
        is_main = self.distributed.is_main
        if is_main:
            folder.mkdir(exist_ok=True)
        try:
            return train_run(folder, settings)
        finally:
            if is_main and not any(folder.parent.glob("phase-*")):
                shutil.rmtree(folder.parent, ignore_errors=True)
