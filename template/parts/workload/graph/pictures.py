"""What a person wants to see of the model at an evaluation, for the report and the tracker. Yours to change.

`pictures` gives figures, and texts in Markdown, by name; hooks/pictures.py says when. Of several horizons
they show the first. Shapes: `D` days, `K` seats for stocks of a day, `M` targets of all days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure

from .engine.report import table, tidy

if TYPE_CHECKING:
    from .assemble import Project
    from .engine.seams import Batch

SAMPLES = 120  # days of the validation split, from its beginning
WORST = 8
DRAWN = 3  # stocks over time


def pictures(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Forecasts of some stocks over the days, predictions against truth, and the worst."""
    store = project.store
    target, found = batch["target"][..., 0].numpy(), predictions["prediction"][..., 0].numpy()  # (D, K)
    day, seat = np.nonzero(batch["listed"].numpy() & np.isfinite(target))  # (M,)
    index = batch["index"].numpy()[day] + store.splits["validation"][0]
    stock = store.arrays["stock"].rows()[store.arrays["seats"].rows()[index, seat]]
    date = store.arrays["dates"].rows()[index].astype("datetime64[D]")
    truth, guess, names = target[day, seat], found[day, seat], store.facts["tickers"]
    worst = np.abs(guess - truth).argsort()[: -WORST - 1 : -1]
    rows = [(str(date[n]), names[stock[n]], float(truth[n]), float(guess[n])) for n in worst]
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    grid, often = figure.add_gridspec(DRAWN, 2, width_ratios=[1.6, 1]), np.bincount(stock).argsort()[::-1]
    for place, number in enumerate(often[:DRAWN]):
        axes, mine = figure.add_subplot(grid[place, 0]), stock == number
        tidy(axes, names[number])
        axes.plot(date[mine], truth[mine], ".-", color="0.4", linewidth=0.8, markersize=3, label="truth")
        axes.plot(date[mine], guess[mine], color="C1", label="forecast")
        axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
    figure.axes[0].legend(frameon=False, fontsize=8)
    axes = figure.add_subplot(grid[:, 1])
    title = f"{store.facts['target']['kind']}: {len(truth):,} forecasts against truth"
    tidy(axes, title, "truth", "forecast")
    axes.scatter(truth, guess, s=6, alpha=0.3, linewidths=0)
    axes.axline((truth.mean(), truth.mean()), slope=1, color="0.3", linewidth=1)
    listed = table(f"Worst of {len(truth):,} forecasts", ("date", "stock", "truth", "forecast"), rows)
    return {"forecasts": figure, "worst": "\n".join(listed)}
