"""The settings of the loader `memmap`. Each loader has its own."""

from __future__ import annotations

from .config import Auto, Data


class LoaderSettings(Data):
    """Where the samples are, in which order they come and how they reach the device."""

    resident: bool | Auto = "auto"
    """Keep all samples on the device. auto: if they fit, on a GPU only. true: raise an error if
    they do not fit. false: read them from the files."""
