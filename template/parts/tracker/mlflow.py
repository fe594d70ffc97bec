"""MLflow: the server in MLFLOW_TRACKING_URI where the environment has it, else a file `mlflow.db`.

Passwords and tokens are read by mlflow from the environment; no setting, log or file of a run ever holds one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from .files import read_json, write_json
from .tracking import Guarded, ServerSections

Sections = ServerSections  # of config.yaml

IDENTITY = "tracker.json"
LOCAL = "sqlite:///mlflow.db"
PARAMETERS = 100  # in one request, as the server allows
# A server that is gone may hold up a run for a minute once; mlflow's own values would be some ten minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class Tracker(Guarded):
    """One run of an MLflow experiment, however often it is resumed."""

    REMEDY = "check MLFLOW_TRACKING_URI, its user or token, and the network, or --tracker.offline true"

    def connect(self, step: int | None) -> str:
        address, offline = os.environ.get("MLFLOW_TRACKING_URI", ""), self.settings.tracker.offline
        if offline is True or (offline == "auto" and not address):
            address = LOCAL
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        if not address:
            raise ValueError("MLFLOW_TRACKING_URI is not set")
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient(address)
        found = self.client.get_experiment_by_name(self.project)
        experiment = found.experiment_id if found else self.client.create_experiment(self.project)
        self.id = read_json(self.folder / IDENTITY).get("id", "")
        if self.id:
            self.client.update_run(self.id, status="RUNNING")
        else:
            self.id = self.client.create_run(experiment, run_name=self.folder.name).info.run_id
            write_json(self.folder / IDENTITY, {"id": self.id})
            values = [Param(key, str(self.settings.value(key))) for key in self.settings.origins]
            for first in range(0, len(values), PARAMETERS):
                self.client.log_batch(self.id, params=values[first : first + PARAMETERS])
        where = f"MLflow's experiment {self.project}, run {self.id}"
        return f"{where}: `mlflow ui` in this folder" if address == LOCAL else where

    def send(self, step: int, row: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in row.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def send_file(self, step: int, name: str, file: Path) -> None:
        if file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
            self.client.log_text(self.id, text, f"{name}/step-{step:08d}.md")
        else:
            from matplotlib.image import imread

            self.client.log_image(self.id, imread(file), key=name, step=step, synchronous=True)

    def finish(self, failed: bool) -> None:
        self.client.set_terminated(self.id, status="FAILED" if failed else "FINISHED")
