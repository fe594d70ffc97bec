"""The settings of the loader `chunk`. Each loader has its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .config import Auto, Data, Number


class LoaderSettings(Data):
    """Where the samples are, in which order they come and how they reach the device."""

    resident: bool | Auto = "auto"
    """Keep all samples on the device. auto: if they fit. true: raise an error if they do not fit.
    false: read them from the files."""

    chunk_size_gb: Annotated[float, Number, Field(gt=0)] | Auto = "auto"
    """GB of samples on the device at a time. auto: three quarters of the memory that a step leaves
    free; 0.27 on a CPU."""
