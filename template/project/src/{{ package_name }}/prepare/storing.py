"""Write a panel as a prepared dataset: rows, pieces, scales, and what a model is built from."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from ..engine.loading.store import StoreWriter
from .panel import Panel
from .pieces import Windows, find_pieces
from .scales import measure, season_errors, trained_texts, usable
from .splits import SPLITS


def write_panel(writer: StoreWriter, panel: Panel, borders: np.ndarray, windows: Windows) -> None:
    """Write all that training needs, and describe it."""
    texts = trained_texts(panel, borders)
    roles = replace(panel.roles, texts=texts)
    of_series, of_all = measure(panel, borders, windows.history)
    mean, std = of_all.tolist()
    is_trained = borders[:, 1] > borders[:, 0]
    num_series = len(panel.keys)
    numbers = np.where(is_trained, np.arange(num_series), num_series)
    static = panel.static[is_trained].astype(np.float64)
    static_mean = static.mean(0)
    static_std = usable(static.std(0), static_mean)
    writer.facts = {
        "roles": asdict(roles),  # these three are for further data
        "grid": asdict(panel.grid),
        "series": panel.keys,
        **windows._asdict(),
        "numbers": numbers.tolist(),  # of the series in training
        "columns": roles.values,
        "targets": roles.places(roles.targets),
        "known": roles.places(roles.known),
        "mean": mean,
        "std": std,
        "scales": of_series.astype(panel.values.dtype).tolist(),
        "static_mean": static_mean.tolist(),
        "static_std": static_std.tolist(),
        "dtype": str(panel.values.dtype),
    }
    errors = season_errors(panel, borders, windows.season)
    writer.append("season", errors)
    write_series(writer, panel, borders, of_series)


def write_series(
    writer: StoreWriter, panel: Panel, borders: np.ndarray, scales: np.ndarray
) -> None:
    """Write where the splits of each series are, its scales, and its static columns.

    The facts of the writer are those of the training data.
    """
    facts = writer.facts
    number_of = dict(zip(facts["series"], facts["numbers"], strict=True))
    unknown = len(number_of)
    numbers = [number_of.get(key, unknown) for key in panel.keys]
    places = np.arange(len(numbers))
    writer.append("pieces", find_pieces(panel, borders))
    writer.append("series", np.column_stack([places, numbers]))
    if panel.roles.static:
        writer.append("static", panel.static)
    writer.append("scale", scales.astype(panel.values.dtype))
    sizes = np.diff(borders, axis=1).sum(0)
    first = 0
    for name, size in zip(SPLITS, sizes.tolist(), strict=True):
        writer.splits[name] = [first, first + size]
        first += size
