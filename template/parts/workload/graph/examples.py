"""Plots of forecasts, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it. With several
horizons, the plots show the first. Shapes: `D` days, `K` seats for stocks of a day, `M` targets of
all days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.loading.store import Store
    from .engine.training.project import Project

SAMPLES = 120  # the first days of the validation split
DRAWN = 3  # stocks to plot over time


Forecasts = dict[str, np.ndarray]
"""The `date` and `stock` of each known target, its `truth` and its `forecast`, each (M,)."""


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure]:
    """Plot forecasts of some stocks over time, and all forecasts against truth."""
    forecasts = collect(batch, predictions, project.store)
    truth = forecasts["truth"]
    names = project.store.facts["tickers"]
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    grid = figure.add_gridspec(DRAWN, 2, width_ratios=[1.6, 1])
    most_often = np.bincount(forecasts["stock"]).argsort()[::-1]
    for place, number in enumerate(most_often[:DRAWN]):
        axes = figure.add_subplot(grid[place, 0])
        axes.set_title(names[number])
        mine = forecasts["stock"] == number
        for name, color in (("truth", "0.4"), ("forecast", "C1")):
            axes.plot(forecasts["date"][mine], forecasts[name][mine], color=color, label=name)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
    figure.axes[0].legend()

    axes = figure.add_subplot(grid[:, 1])
    kind = project.store.facts["target"]["kind"]
    title = f"{kind}: {len(truth):,} forecasts against truth"
    axes.set(title=title, xlabel="truth", ylabel="forecast")
    axes.scatter(truth, forecasts["forecast"], s=6, alpha=0.3, linewidths=0)
    axes.axline((truth.mean(), truth.mean()), slope=1, color="0.3", linewidth=1)
    return {"forecasts": figure}


def collect(batch: Batch, predictions: Batch, store: Store) -> Forecasts:
    """Collect the known targets of the first horizon and their forecasts."""
    target = batch["target"][..., 0].numpy()  # (D, K)
    prediction = predictions["prediction"][..., 0].numpy()
    day, seat = np.nonzero(batch["listed"].numpy() & np.isfinite(target))  # (M,)
    sample = batch["index"].numpy()[day] + store.splits["validation"][0]
    row = store.arrays["seats"].rows()[sample, seat]
    return {
        "date": store.arrays["dates"].rows()[sample].astype("datetime64[D]"),
        "stock": store.arrays["stock"].rows()[row],
        "truth": target[day, seat],
        "forecast": prediction[day, seat],
    }
