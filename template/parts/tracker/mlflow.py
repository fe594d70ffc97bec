"""MLflow: the server in MLFLOW_TRACKING_URI if that is set, otherwise a file `mlflow.db`.

mlflow itself reads passwords and tokens from the environment; no setting, log or file of a run
contains one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from ..files import read_json, write_json
from .tracking import Guarded

IDENTITY = "tracker.json"
LOCAL = "sqlite:///mlflow.db"
PARAMETERS = 100  # the most that the server accepts in one request
# A missing server may delay a run once for a minute; mlflow's defaults would allow ten minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class Tracker(Guarded):
    """One run of an MLflow experiment, however often it is resumed."""

    REMEDY = "check MLFLOW_TRACKING_URI, user, token and network, or add --tracker.offline true"

    def connect(self, step: int | None) -> str:
        address = self._address()
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self.client = MlflowClient(address)
        self._open_run()
        where = f"MLflow's experiment {self.project}, run {self.id}"
        if address == LOCAL:
            where += ": run `mlflow ui` in this folder"
        return where

    def _address(self) -> str:
        address = os.environ.get("MLFLOW_TRACKING_URI", "")
        offline = self.settings.tracker.offline
        if offline is True or (offline == "auto" and not address):
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            return LOCAL
        if not address:
            raise ValueError("MLFLOW_TRACKING_URI is not set")
        return address

    def _open_run(self) -> None:
        """Begin a run with its parameters, or continue the run from before a resume."""
        experiment = self.client.get_experiment_by_name(self.project)
        if experiment is None:
            experiment_id = self.client.create_experiment(self.project)
        else:
            experiment_id = experiment.experiment_id
        self.id = read_json(self.folder / IDENTITY, id=str).get("id", "")
        if self.id:
            self.client.update_run(self.id, status="RUNNING")
            return

        from mlflow.entities import Param

        run = self.client.create_run(experiment_id, run_name=self.name)
        self.id = run.info.run_id
        write_json(self.folder / IDENTITY, {"id": self.id})
        settings = self.settings
        parameters = [Param(key, str(settings.value(key))) for key in settings.origins]
        for first in range(0, len(parameters), PARAMETERS):
            batch = parameters[first : first + PARAMETERS]
            self.client.log_batch(self.id, params=batch)

    def send(self, step: int, row: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = []
        for name, value in row.items():  # a name may have that of a column
            metrics.append(Metric(re.sub(r"[^\w./ -]", "_", name), value, now, step))
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
