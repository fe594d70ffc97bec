"""Plots and a table of forecasts, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it. With several
horizons, the plots show the first. Shapes: `D` days, `K` seats for stocks of a day, `M` targets of
all days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure

from .engine.log.report import table, tidy

if TYPE_CHECKING:
    from .engine.data.store import Store
    from .engine.interfaces import Batch
    from .engine.run.project import Project

SAMPLES = 120  # the first days of the validation split
WORST = 8
DRAWN = 3  # stocks to plot over time


class Forecasts(NamedTuple):
    """The known targets and their forecasts, each (M,)."""

    date: np.ndarray
    stock: np.ndarray
    truth: np.ndarray
    guess: np.ndarray


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Plot forecasts of some stocks over time, forecasts against truth, and list the worst."""
    forecasts = collect(batch, predictions, project.store)
    names = project.store.facts["tickers"]
    kind = project.store.facts["target"]["kind"]

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    grid = figure.add_gridspec(DRAWN, 2, width_ratios=[1.6, 1])
    most_often = np.bincount(forecasts.stock).argsort()[::-1]
    for place, number in enumerate(most_often[:DRAWN]):
        axes = figure.add_subplot(grid[place, 0])
        tidy(axes, names[number])
        draw_stock(axes, forecasts, number)
    figure.axes[0].legend(frameon=False, fontsize=8)

    axes = figure.add_subplot(grid[:, 1])
    title = f"{kind}: {len(forecasts.truth):,} forecasts against truth"
    tidy(axes, title, "truth", "forecast")
    mean = forecasts.truth.mean()
    axes.scatter(forecasts.truth, forecasts.guess, s=6, alpha=0.3, linewidths=0)
    axes.axline((mean, mean), slope=1, color="0.3", linewidth=1)
    return {"forecasts": figure, "worst": list_worst(forecasts, names)}


def collect(batch: Batch, predictions: Batch, store: Store) -> Forecasts:
    """Collect the known targets of the first horizon and their forecasts."""
    target = batch["target"][..., 0].numpy()  # (D, K)
    prediction = predictions["prediction"][..., 0].numpy()
    day, seat = np.nonzero(batch["listed"].numpy() & np.isfinite(target))  # (M,)
    sample = batch["index"].numpy()[day] + store.splits["validation"][0]
    row = store.arrays["seats"].rows()[sample, seat]
    return Forecasts(
        date=store.arrays["dates"].rows()[sample].astype("datetime64[D]"),
        stock=store.arrays["stock"].rows()[row],
        truth=target[day, seat],
        guess=prediction[day, seat],
    )


def draw_stock(axes: Any, forecasts: Forecasts, number: int) -> None:
    """Plot truth and forecast of one stock over time."""
    mine = forecasts.stock == number
    date = forecasts.date[mine]
    truth = forecasts.truth[mine]
    axes.plot(date, truth, ".-", color="0.4", linewidth=0.8, markersize=3, label="truth")
    axes.plot(date, forecasts.guess[mine], color="C1", label="forecast")
    axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))


def list_worst(forecasts: Forecasts, names: list[str]) -> str:
    """Return a Markdown table of the forecasts with the largest errors."""
    error = np.abs(forecasts.guess - forecasts.truth)
    rows = []
    for place in error.argsort()[: -WORST - 1 : -1]:
        name = names[forecasts.stock[place]]
        truth = float(forecasts.truth[place])
        guess = float(forecasts.guess[place])
        rows.append((str(forecasts.date[place]), name, truth, guess))
    title = f"Worst of {len(error):,} forecasts"
    return "\n".join(table(title, ("date", "stock", "truth", "forecast"), rows))
