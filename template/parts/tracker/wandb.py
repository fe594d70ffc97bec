"""Weights & Biases: online where the environment has WANDB_API_KEY, else files in the run folder.

wandb itself reads the key from the environment; no setting, log or file of a run ever holds it.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from .files import read_json, write_json
from .tracking import Guarded, ServerSections

Sections = ServerSections  # of config.yaml

IDENTITY = "tracker.json"
FINISH_SECONDS = 60  # then what is not sent stays in the folder, for `wandb sync`


class Tracker(Guarded):
    """One run of W&B, however often it is resumed."""

    REMEDY = "check WANDB_API_KEY and the network, or --tracker.offline true"

    def connect(self, step: int | None) -> str:
        import wandb

        key = os.environ.get("WANDB_API_KEY")
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if key else "offline")
        if self.settings.tracker.offline != "auto":
            mode = "offline" if self.settings.tracker.offline else "online"
        if mode == "online" and not key:
            raise ValueError("WANDB_API_KEY is not set")  # wandb would ask for it, and wait
        identity = read_json(self.folder / IDENTITY).get("id") or uuid4().hex[:8]
        self.tracked = wandb.init(
            project=self.project,
            id=identity,
            name=self.folder.name,
            dir=self.folder,
            config=self.settings.resolved(),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(console="off", silent=True, finish_timeout=FINISH_SECONDS),
        )
        self.training = step is not None
        write_json(self.folder / IDENTITY, {"id": identity})
        return f"{self.tracked.dir}: `wandb sync` sends it" if mode == "offline" else str(self.tracked.url)

    def send(self, step: int, row: Mapping[str, float]) -> None:
        if self.training:  # rows that W&B has from before a resume are dropped there: the same numbers
            self.tracked.log(dict(row), step=step)
        else:  # a step that has passed: W&B's own only go up
            self.tracked.summary.update(dict(row))

    def send_file(self, step: int, name: str, file: Path) -> None:
        import wandb

        text = html.escape(file.read_text(encoding="utf-8")) if file.suffix == ".md" else ""
        shown: Any = wandb.Html(f"<pre>{text}</pre>") if text else wandb.Image(str(file))
        self.tracked.log({name: shown}, step=step)

    def finish(self, failed: bool) -> None:
        self.tracked.finish(exit_code=int(failed))
