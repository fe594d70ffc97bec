"""The settings of the loader `dataloader`. Each loader has its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .config import Auto, Data, Number


class LoaderSettings(Data):
    """Where the samples are, in which order they come and how they reach the device."""

    num_workers: Annotated[int, Number, Field(ge=0, le=256)] | Auto = "auto"
    """Worker processes that read ahead, 0 to 256. They help if a sample needs CPU work. auto: half
    of the cores, up to 8; none if a batch is small and `dataset.py` has no `host`."""

    prefetch_factor: Annotated[int, Number, Field(ge=1, le=64)] = 2
    """Batches that each worker prepares in advance. Larger values smooth slow reads and cost host
    memory."""

    persistent_workers: bool = True
    """Keep workers alive between epochs. This avoids a pause at the start of each epoch but keeps
    their memory in use."""
