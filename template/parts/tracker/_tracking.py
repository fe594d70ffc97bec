"""What every tracker does alike: it opens before the first step or says why not; it never ends a run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from .config import Auto, Section, defaults
from .errors import UserError

SECRET = re.compile("KEY|TOKEN|PASSWORD|SECRET|UR[IL]")  # environment names whose values are never shown


class Options(Section):
    """Where a tracking server keeps the runs."""

    project: str = Field("", description="name that the runs stand under; empty is the package's name")
    offline: bool | Auto = Field(
        "auto", description="nothing leaves this machine; auto is where the environment names no server"
    )


class ServerSections(Section):
    """The section of config.yaml that belongs to a tracker with a server."""

    tracker: Options = defaults(Options)


class Guarded:
    """One tracker of one run folder; a part gives it `connect`, `send` and `finish`.

    REMEDY: what a person does where `connect` fails.
    """

    REMEDY = ""

    def __init__(self, folder: Path, settings: Any):
        self.folder, self.settings, self.on = folder, settings, False

    def connect(self, step: int | None) -> str:
        """Opens the tracker's run, the same one after a resume; returns where to look at it."""
        raise NotImplementedError

    def send(self, step: int, row: Mapping[str, float]) -> None:
        """Passes numbers on."""

    def send_file(self, step: int, name: str, file: Path) -> None:
        """Passes a picture (.png) or a text (.md) on."""

    def finish(self, failed: bool) -> None:
        """Sends what is pending."""

    def open(self, step: int | None = None) -> str:
        """Connects. step: where training goes on; None is beside training, for an evaluation.

        Raises `UserError` before a run's first step. Later it is a note: a run that a scheduler puts back
        shall not end because a server is down.
        """
        try:
            where = self.connect(step)
        except Exception as error:  # whatever the tracker's library raises
            what = f"the tracker cannot be opened ({shown(error)})"
            if step == 0:
                raise UserError(what, "tracker", self.REMEDY) from None
            print(f"note: {what}: metrics go to {self.folder} only", flush=True)
            return ""
        self.on = True
        return where

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Numbers of a logged step, or of an evaluation."""
        self._guarded(self.send, step, row)

    def show(self, step: int, files: Mapping[str, Path]) -> None:
        """Pictures (.png) and texts (.md) of an evaluation, by their names."""
        for name, file in files.items():
            self._guarded(self.send_file, step, name, file)

    def close(self) -> None:
        """An exception on its way out marks the run as failed."""
        self._guarded(self.finish, sys.exc_info()[0] is not None)
        self.on = False

    def _guarded(self, call: Any, *arguments: Any) -> None:
        if not self.on:
            return
        try:
            call(*arguments)
        except Exception as error:
            self.on = False
            what = f"the tracker failed ({shown(error)}) and is off from here"
            print(f"note: {what}: metrics go to {self.folder} only", flush=True)

    @property
    def project(self) -> str:
        """The configured name, or the package's."""
        return self.settings.tracker.project or str(__package__).partition(".")[0]


def shown(error: Exception) -> str:
    """An error on one line, without what the environment keeps secret: addresses may hold passwords."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) > 3:
            text = text.replace(value, f"${name}").replace(value.rstrip("/"), f"${name}")
    return text if len(text) <= 200 else f"{text[:197]}..."
