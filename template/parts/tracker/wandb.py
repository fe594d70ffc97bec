"""Weights & Biases: online with a login, otherwise files in the run folder.

wandb itself reads the key, and the names of entity, tags and group, from the environment; no
setting, log or file of a run contains the key.
"""

from __future__ import annotations

import html
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from ..files import read_json, write_json
from .tracking import Guarded

IDENTITY = "tracker.json"
FINISH_SECONDS = 60  # what is not sent by then stays in the folder, for `wandb sync`


class Tracker(Guarded):
    """One run of W&B, however often it is resumed."""

    REMEDY = "run `wandb login` and check the network, or add --tracker.offline true"

    def connect(self, step: int | None) -> str:
        import wandb

        mode = self._mode()
        identity = read_json(self.folder / IDENTITY, id=str).get("id") or uuid4().hex[:8]
        self.tracked = wandb.init(
            project=self.project,
            id=identity,
            name=self.name,
            dir=self.folder,
            config=self.settings.model_dump(),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(console="off", silent=True, finish_timeout=FINISH_SECONDS),
        )
        self.training = step is not None
        write_json(self.folder / IDENTITY, {"id": identity})
        if mode == "offline":
            return f"{self.tracked.dir}: run `wandb sync` to send it"
        return str(self.tracked.url)

    def _mode(self) -> Any:
        """Return W&B's mode, from the setting or else from the environment."""
        has_key = has_login()
        mode = "online" if has_key else "offline"
        mode = os.environ.get("WANDB_MODE") or mode
        if self.settings.tracker.offline != "auto":
            mode = "offline" if self.settings.tracker.offline else "online"
        if mode == "online" and not has_key:
            # wandb would ask for the key, and wait.
            raise ValueError("there is no login, and WANDB_API_KEY is not set")
        return mode

    def send(self, step: int, row: Mapping[str, float]) -> None:
        if self.training:
            # After a resume, W&B drops what it already has: the same numbers.
            self.tracked.log(dict(row), step=step)
        else:
            # W&B's steps only go up, and this one has passed.
            self.tracked.summary.update(dict(row))

    def send_file(self, step: int, name: str, file: Path) -> None:
        import wandb

        shown: Any
        if file.suffix == ".md":
            text = html.escape(file.read_text(encoding="utf-8"))
            shown = wandb.Html(f"<pre>{text}</pre>")
        else:
            shown = wandb.Image(str(file))
        self.tracked.log({name: shown}, step=step)

    def finish(self, failed: bool) -> None:
        self.tracked.finish(exit_code=int(failed))


def has_login() -> bool:
    """Whether W&B has a key: in the environment, or from `wandb login`, which writes ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    address = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    try:
        logins = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return urlsplit(address).netloc in logins.hosts
