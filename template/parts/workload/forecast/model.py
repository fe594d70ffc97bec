"""A forecaster of many series: a linear map of the history, and an MLP of all that is known.

Replace it with your own: the engine calls only `build_model`.

Shapes: `B` windows in a batch, `T` rows of history, `H` rows to forecast, `C` columns, `G` targets,
`Q` quantiles.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .engine.interfaces import Batch, Output
from .layers import Columns, Mixer, Quantiles, forget
from .metrics import Compared, sum_by_series, sum_by_step

if TYPE_CHECKING:
    from .settings import Settings

FLOOR = 0.01  # of the deviation of a series: the least scale of a window
FLAT = 1e-3  # of the size of the values: another least scale
TINY = 1e-30  # in units of the data, which may be small


class Forecaster(nn.Module):
    """Forecasts all rows at once.

    The scaler is part of the model, since batches contain original units.
    """

    calibrated = ("quantiles.widths",)  # what `calibrate` sets

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        self.history = facts["history"]
        self.horizon = facts["horizon"]
        self.season = facts["season"]  # at most the history
        self.num_series = len(facts["series"])
        self.scaling = sizes.scaling
        self.is_squared = sizes.loss == "mse" and not sizes.quantiles
        self._keep_columns(facts)
        roles = facts["roles"]
        texts = roles["texts"]
        self.past = Columns(roles["values"], texts)
        self.future = Columns(roles["known"], texts)
        self.static = Columns(roles["static"], texts)
        num_ahead = self.future.width + 2 * len(roles["calendar"])
        num_inputs = self.history * self.past.width + self.horizon * num_ahead
        num_inputs += self.static.width + sizes.embedding
        num_targets = len(facts["targets"])
        self.quantiles = Quantiles(sizes.quantiles or "0.5")
        num_outputs = self.horizon * num_targets * len(self.quantiles.levels)
        self.mixer = Mixer(num_inputs, sizes.width, sizes.depth)
        self.dropout = nn.Dropout(sizes.dropout)
        self.head = nn.Linear(sizes.width, num_outputs)
        self.linear = nn.Linear(self.history, self.horizon)
        self.ahead = nn.Linear(num_ahead, num_targets, bias=False) if num_ahead else None
        numbers = sizes.embedding
        self.embedding = nn.Embedding(self.num_series + 1, numbers) if numbers else None

    def _keep_columns(self, facts: dict[str, Any]) -> None:
        """Keep scales and places of columns as buffers: for a list, each step would wait."""
        known = facts["known"]  # columns whose future is known
        places = range(len(facts["columns"]))
        is_known = torch.tensor([place in known for place in places])
        buffer = partial(nn.Buffer, persistent=False)  # checkpoints do not store it
        self.targets = buffer(torch.tensor(facts["targets"]))  # (G,)
        self.known = buffer(torch.tensor(known, dtype=torch.int64))
        self.is_known = buffer(is_known)  # (C,)
        self.static_mean = buffer(torch.tensor(facts["static_mean"]))  # (K,)
        self.static_std = buffer(torch.tensor(facts["static_std"]))
        dtype = getattr(torch, facts["dtype"])
        self.mean = nn.Buffer(torch.tensor(facts["mean"], dtype=dtype))  # (C,)
        self.std = nn.Buffer(torch.tensor(facts["std"]))

    def blocks(self) -> list[nn.Module]:
        """The MLP, which is compiled and checkpointed."""
        return [self.mixer]

    # --- scales

    def scale(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return mean and deviation (B, 1, C) by which a window is standardized."""
        mean = batch["scale"][:, :1]
        std = batch["scale"][:, 1:]
        if self.scaling == "window":
            history = batch["rows"]
            of_window = history.nanmean(1, keepdim=True)
            mean = torch.where(of_window.isnan(), mean, of_window)
            variance = (history - mean).square().nanmean(1, keepdim=True)
            spread = variance.sqrt().nan_to_num()
            # A flat history would make everything after it huge.
            floor = torch.maximum(FLOOR * std, FLAT * mean.abs())
            std = torch.maximum(spread, floor)
        # The future of known columns is not in the history.
        mean = torch.where(self.is_known, self.mean, mean)
        std = torch.where(self.is_known, self.std, std)
        return mean, std.clamp(min=TINY)  # the deviation of padding is 0

    # --- the forecast

    def forecast(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return standardized quantiles (B, H, G, Q), in float32 even under autocast.

        With them, return mean and deviation (B, 1, G) of the targets.
        """
        mean, std = self.scale(batch)
        # An empty cell, with --fill none, counts as the mean.
        history = ((batch["rows"] - mean) / std).float().nan_to_num()
        past = self.past(history, batch["rows"].nan_to_num())
        inputs = [past.flatten(1)]
        future = self.look_ahead(batch)
        if future is not None:
            inputs.append(future.flatten(1))
        inputs += self.of_series(batch)
        hidden = self.mixer(torch.cat(inputs, 1))
        outputs = self.head(self.dropout(hidden)).float()
        by_step = outputs.unflatten(1, (self.horizon, -1))
        median, *spreads = by_step.split(len(self.targets), 2)
        by_row = history[:, :, self.targets].transpose(1, 2)  # (B, G, T)
        median = median + self.linear(by_row).float().transpose(1, 2)
        if self.ahead is not None:
            median = median + self.ahead(future).float()
        quantiles = self.quantiles(median, spreads)
        return quantiles, mean[:, :, self.targets], std[:, :, self.targets]

    def look_ahead(self, batch: Batch) -> Tensor | None:
        """Return what is known of the rows to forecast (B, H, inputs), or None."""
        parts = []
        if "known" in batch:
            values = batch["known"]
            mean = self.mean[self.known]
            scaled = (values - mean) / self.std[self.known]
            parts.append(self.future(scaled.float(), values))
        if "calendar" in batch:
            parts.append(batch["calendar"])
        return torch.cat(parts, -1) if parts else None

    def of_series(self, batch: Batch) -> list[Tensor]:
        """Return what is known of the series (B, …)."""
        parts = []
        if "static" in batch:
            values = batch["static"]
            scaled = (values - self.static_mean) / self.static_std
            parts.append(self.static(scaled.float(), values))
        if self.embedding is not None:
            number = batch["series"][:, 1]
            if self.training:
                number = forget(number, self.num_series)
            parts.append(self.embedding(number))
        return parts

    def losses(self, forecast: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each target (B, H, G). forecast: (B, H, G, Q), or with one level."""
        if self.is_squared:
            return (forecast[..., 0] - target).square()
        return self.quantiles.loss(forecast, target)

    def forward(self, batch: Batch) -> Output:
        forecast, mean, std = self.forecast(batch)
        present = ~batch["target"].isnan() & batch["present"][:, None, None]
        target = ((batch["target"] - mean) / std).float().nan_to_num()
        total_weight = present.sum(dtype=torch.float32)
        losses = self.losses(forecast, target) * present
        loss = losses.sum() / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)

        median = forecast[..., self.quantiles.middle]
        naive = self.repeat_season(batch, mean)
        scaled_naive = ((naive - mean) / std).float()
        error = (median - target).abs()
        sums = {
            "mae": error,
            "mse": error.square(),
            "mae_original": error * std,
            "loss_of_season": self.losses(scaled_naive[..., None], target),
            "loss_of_mean": self.losses(torch.zeros_like(forecast[..., :1]), target),
            **self.quantiles.measure(forecast, target),
        }
        metrics = {name: ((values * present).sum(), total_weight) for name, values in sums.items()}
        compared = Compared(median * std + mean, naive, batch["target"], present)
        by_group = {
            "series": sum_by_series(compared, batch["series"][:, 0], self.num_series),
            "step": sum_by_step(compared),
            "widths": self.quantiles.ratios(forecast, target, present),
        }
        return Output(loss, total_weight, metrics, by_group)

    def repeat_season(self, batch: Batch, mean: Tensor) -> Tensor:
        """Return the values a season before (B, H, G), or the last one if no season fits."""
        history = batch["rows"][:, :, self.targets]
        ahead = torch.arange(self.horizon, device=history.device) % self.season
        values = history[:, self.history - self.season + ahead]
        return torch.where(values.isnan(), mean, values)

    def calibrate(self, sums: Batch) -> None:
        """Widen the quantiles until they cover what was evaluated."""
        self.quantiles.calibrate(sums["widths"])

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B, H, G), and the quantiles by name, in the targets' own units."""
        forecast, mean, std = self.forecast(batch)
        quantiles = self.quantiles.widened(forecast)
        levels = [level * std + mean for level in quantiles.unbind(-1)]
        predictions = {"prediction": levels[self.quantiles.middle]}
        if len(levels) > 1:
            predictions |= dict(zip(self.quantiles.names, levels, strict=True))
        return predictions


def build_model(settings: Settings, facts: dict[str, Any]) -> nn.Module:
    """Build the forecaster for the dataset's metadata: columns, scales, history and horizon."""
    return Forecaster(settings, facts)
