"""What a sample is: a window of one series, the rows to forecast, and what is known of them.

Replace it with your own, together with `commands/prepare.py`. The prepared dataset has these
arrays, for `S` series:

* `rows` (N, C): the values, one series after the other, oldest first; `time` (N,)
* `pieces` (P, 7): where windows may lie; see `prepare/pieces.py`
* `series` (S, 2): the number of each series here, and in training (S if training has no rows of it)
* `scale` (S, 2, C): mean and deviation of the training rows, or without any, of the first history;
  `season` (S, 3, G): scales for MASE
* `static` (S, K), if there are such columns; `clock` (N,): local times, with `--timezone`

Shapes: `B` windows, `T` rows of history, `H` rows to forecast, `C` columns, `G` targets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .engine import interfaces
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.interleaved import Interleaved
from .engine.loading.store import Store, StoreWriter
from .metrics import details, finish
from .prepare.pieces import first_targets
from .prepare.splits import SPLITS
from .settings import WORKLOAD, Settings

__all__ = ["Samples", "details", "finish", "synthesize", "write_new"]


class Samples(interfaces.Samples):
    """The windows of one split. It may also have `host` of its base.

    A window belongs to the split that contains all its targets. The history of a training window is
    also in the training rows, while later histories reach back across the border. Two further
    splits need no targets: `future`, the rows after the last target of each series, and `every`,
    the rows after each history.

    Nothing here is as long as there are windows: a window is found by counting those of each piece.
    """

    def __init__(self, store: Store, settings: Settings | None, split: str):
        facts = store.facts
        self.store = store
        self.split = split
        self.history = facts["history"]
        self.horizon = facts["horizon"]
        self.calendar = facts["roles"]["calendar"]
        self.clock = "clock" if "clock" in store.arrays else "time"
        self.targets = torch.tensor(facts["targets"])
        self.known = torch.tensor(facts["known"], dtype=torch.int64)
        self.known_ahead = {"rows": facts["known"]}
        self.stride = facts["stride"] if split in ("validation", "test") else 1
        pieces = store.arrays["pieces"].rows()
        firsts, counts = first_targets(pieces, split, self.history, self.horizon, self.stride)
        if split not in SPLITS and not counts.any():
            what = f"{self.history} rows with targets, then {self.horizon} with the known columns"
            file = store.source.get("file", "")
            raise UserError("no series can be forecast", file, f"give a series {what}")
        self._series = pieces[:, 6]
        self._ends = np.cumsum(counts)
        before = self._ends - counts  # windows of the pieces before
        self._offsets = firsts - before * self.stride

    @property
    def orders(self) -> dict[str, Any]:
        return {"auto": Interleaved, "block": Interleaved}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def series_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the place of each sample's series."""
        pieces = np.searchsorted(self._ends, indices, side="right")
        return self._series[pieces]

    def first_targets(self, indices: np.ndarray) -> np.ndarray:
        """Return the row of the first target of each sample."""
        pieces = np.searchsorted(self._ends, indices, side="right")
        return self._offsets[pieces] + indices * self.stride

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        is_absent = indices < 0
        targets = self.first_targets(indices)
        starts = np.where(is_absent, -1, targets - self.history)
        series = np.where(is_absent, -1, self.series_of(indices))
        spans = {
            "rows": Spans(starts, self.history + self.horizon),
            "series": Spans(series, 1),
            "scale": Spans(series, 1),
        }
        if "static" in self.store.arrays:
            spans["static"] = Spans(series, 1)
        if self.calendar:
            ahead = np.where(is_absent, -1, targets)
            spans[self.clock] = Spans(ahead, self.horizon)
        return spans

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return `rows` (B, T, C), the history, and `target` (B, H, G), in original units.

        `series` (B, 2) and `scale` (B, 2, C) are those of the series. `known` (B, H, K), `static`
        (B, K) and `calendar` (B, H, 2 × units) are in it if there are such columns.
        """
        values = rows["rows"].values
        ahead = values[:, self.history :]
        batch = {
            "rows": values[:, : self.history],
            "series": rows["series"].values[:, 0],
            "scale": rows["scale"].values[:, 0],
        }
        if len(self.known):
            self.known = self.known.to(values.device, non_blocking=True)
            batch["known"] = ahead[:, :, self.known]
        if "static" in rows:
            batch["static"] = rows["static"].values[:, 0]
        if self.calendar:
            batch["calendar"] = phases(rows[self.clock].values, self.calendar)
        if self.split in SPLITS:
            self.targets = self.targets.to(values.device, non_blocking=True)
            batch["target"] = ahead[:, :, self.targets]
        return batch


def phases(times: Tensor, units: list[str]) -> Tensor:
    """Return sine and cosine (…, 2 × units) of parts of the times, in seconds since 1970."""
    days = times.div(86400, rounding_mode="floor")
    # Days since a 1 March, so that 29 February is the last one of its year, and the parts of the
    # date follow from divisions (howardhinnant.github.io/date_algorithms.html).
    era_days = (days + 719468) % 146097  # of 400 years
    years = (era_days - era_days // 1460 + era_days // 36524 - era_days // 146096) // 365
    yearday = era_days - (365 * years + years // 4 - years // 100)
    month = (5 * yearday + 2) // 153
    parts = {
        "hour": (times - 86400 * days) / 86400,
        "weekday": (days + 3) % 7 / 7,
        "day": (yearday - (153 * month + 2) // 5) / 31,
        "month": month / 12,
        "yearday": yearday / 366,
    }
    turns = torch.stack([parts[unit] for unit in units], -1)
    angles = 2 * torch.pi * turns
    return torch.cat([angles.sin(), angles.cos()], -1)


# --- series without `prepare`


def synthesize(folder: Path, settings: Settings) -> None:
    """Write 24 synthetic shops with 730 days each, which are always the same."""
    from .prepare.complete import Completing
    from .prepare.grid import Grid
    from .prepare.panel import Roles
    from .prepare.pieces import Windows, find_borders
    from .prepare.storing import write_panel

    windows = Windows(history=56, horizon=14, season=7)
    roles = Roles(
        time="date",
        series=["shop"],
        targets=["sales"],
        known=["promotion"],
        static=[],
        values=["sales", "promotion"],
        calendar=["weekday", "yearday"],
    )
    days = 18_262 + np.arange(730)  # from 2020 on
    keys = [f"shop {number:02}" for number in range(24)]
    with StoreWriter(folder, WORKLOAD) as writer:
        completing = Completing(writer, folder, roles, Grid(86_400), windows.horizon)
        for number, key in enumerate(keys):
            values = made_up_shop(number, days)
            values[-windows.horizon :, 0] = np.nan  # the rows to forecast
            completing.add(key, 86_400 * days, values)
        panel = completing.finish(keys)
        borders = find_borders(panel, "0.7,0.15,0.15", "time")
        write_panel(writer, panel, borders, windows)
        writer.source = {"kind": "synthetic"}


def made_up_shop(number: int, days: np.ndarray) -> np.ndarray:
    """Return the sales and the promotions of a shop (days, 2)."""
    random = np.random.default_rng(number)
    level = np.exp(random.normal(4, 1))
    weekday = random.normal(0, 0.3, 7)[days % 7]
    phase = random.random()
    season = 0.3 * np.sin(2 * np.pi * (days / 365.25 + phase))
    promotion = random.random(len(days)) < 0.1
    noise = random.normal(0, 0.1, len(days))
    sales = level * np.exp(weekday + season + 0.5 * promotion + noise)
    return np.stack([sales, promotion], 1).astype(np.float32)


def write_new(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write series to forecast, with the metadata of the training data."""
    from .prepare.pieces import borders_by_end
    from .prepare.reading import read_panel
    from .prepare.scales import measure
    from .prepare.storing import write_series
    from .prepare.tables import Source

    facts = trained.facts
    source = Source(path, flags, trained.source)
    with StoreWriter(folder, WORKLOAD) as writer:
        panel = read_panel(writer, source, facts["horizon"], facts)
        borders = borders_by_end(panel, [0, 0])  # all rows are history
        scales, _ = measure(panel, borders, facts["history"])
        of_training = dict(zip(facts["series"], facts["scales"], strict=True))
        for number, key in enumerate(panel.keys):
            scales[number] = of_training.get(key, scales[number])
        writer.facts = {**facts, "names": panel.keys}
        write_series(writer, panel, borders, scales)
