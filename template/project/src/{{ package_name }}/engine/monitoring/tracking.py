"""The base of all trackers. An error before the first step ends the run; a later one is a note."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, without_secrets
from ..runs import is_run

# Names in the environment whose values are never shown.
SECRET = re.compile("KEY|TOKEN|PASSWORD|SECRET|UR[IL]")


class Guarded:
    """The tracker of a run folder; a subclass has `connect`, `send` and `finish`.

    REMEDY: what the user can do if `connect` fails.
    """

    REMEDY = ""

    def __init__(self, folder: Path, settings: Any):
        self.folder = folder
        self.settings = settings
        self.on = False

    def connect(self, step: int | None) -> str:
        """Open the tracker's run, the same one after a resume; return where to look at it."""
        raise NotImplementedError

    def send(self, step: int, row: Mapping[str, float]) -> None:
        """Send numbers."""

    def send_file(self, step: int, name: str, file: Path) -> None:
        """Send a plot (.png) or a text (.md)."""

    def finish(self, failed: bool) -> None:
        """Send what is pending."""

    def open(self, step: int | None = None) -> None:
        """Connect. step: where training begins or resumes; None for an evaluation without training.

        A failure before a run's first step raises `UserError`. Later it is a note, so that a run
        that a scheduler restarts does not end because a server is down.
        """
        try:
            where = self.connect(step)
        except Exception as error:  # whatever the tracker's library raises
            what = f"the tracker cannot be opened ({shown(error)})"
            if step == 0:
                raise UserError(what, "tracker", self.REMEDY) from None
            print(f"note: {what}: metrics are written to {self.folder} only", flush=True)
            return
        self.on = True
        if step is not None:
            print(without_secrets(f"tracked in {where}"), flush=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """Log the numbers of a record: of training, or of an evaluation if it has a split."""
        group = record.get("split", "train")
        numbers = {}
        for name, value in record.items():
            if isinstance(value, float) and name != "time":
                numbers[f"{group}/{name}"] = value
        self._guarded(self.send, record["step"], numbers)

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        """Log an evaluation without training."""
        self.open()
        self.log(record)
        self.close()

    def show(self, step: int, files: list[Path]) -> None:
        """Send plots (.png) and texts (.md) of an evaluation."""
        for file in files:
            self._guarded(self.send_file, step, f"validation/{file.stem}", file)

    def close(self) -> None:
        """Close the tracker's run; an exception that is being raised marks it as failed."""
        self._guarded(self.finish, sys.exc_info()[0] is not None)
        self.on = False

    def _guarded(self, call: Any, *arguments: Any) -> None:
        if not self.on:
            return
        try:
            call(*arguments)
        except Exception as error:
            self.on = False
            what = f"the tracker failed ({shown(error)}) and is off from now on"
            print(f"note: {what}: metrics are written to {self.folder} only", flush=True)

    @property
    def project(self) -> str:
        """The tracker's project: the setting, or the name of the package."""
        package = str(__package__).partition(".")[0]
        return self.settings.tracker.project or package

    @property
    def name(self) -> str:
        """The name of the run, or of one of its phases: `NAME/phase-1`."""
        parent = self.folder.parent
        return f"{parent.name}/{self.folder.name}" if is_run(parent) else self.folder.name


def shown(error: Exception) -> str:
    """Return an error on one line, without secrets from the environment, such as addresses."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) > 3:
            text = text.replace(value, f"${name}")
            text = text.replace(value.rstrip("/"), f"${name}")
    text = without_secrets(text)
    if len(text) > 200:
        text = f"{text[:197]}..."
    return text
