"""The settings of your model and your data; change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .engine.config import BatchSize, LoaderSettings, Section, defaults

WORKLOAD = "windows"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate; it belongs to the model, so it is here."""


class Data(LoaderSettings):
    """Where the windows lie, in which order they come and how they reach the device."""

    batch_size: BatchSize = 64
    order: Literal["auto", "full", "block", "time"] = Field(
        "auto", description="order of the training windows"
    )


class Model(Section):
    """An LSTM, and one linear layer from its last output to all horizons."""

    width: int = Field(64, ge=1, description="hidden units of the LSTM")
    depth: int = Field(1, ge=1, description="layers of the LSTM")
    dropout: float = Field(
        0.2, ge=0, lt=1, description="share of the units dropped before the last layer"
    )


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)


ALIASES = {
    "training.batch_size": "data.batch_size",
    "training.chunk_size_gb": "data.chunk_size_gb",
    "training.num_workers": "data.num_workers",
    "training.pin_memory": "data.pin_memory",
    "training.use_amp": "use_amp",
    "training.log_gpu_stats_every_n_batches": "monitor.every_steps",
    "data.gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "data.use_amp": "use_amp",
    "data.log_gpu_stats_every_n_batches": "monitor.every_steps",
}
"""Another spelling, of older projects, accepted in files and as flags → the setting.

Yours to delete.
"""

OBSOLETE = {
    "use_chunk_loader": "`copier update -d loader=chunk` decides",
    "empty_cache_every_n_epochs": "emptying the GPU's cache takes time and frees nothing live",
}
"""Names that do nothing any more → why."""
