"""The parts of the forecaster: its MLP, columns of categories, and quantiles."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional

from .engine.errors import UserError
from .engine.interfaces import Groups
from .prepare.panel import MOST_TEXTS

TINY = 1e-6
BINS = 4096  # of a histogram of widths, from 2⁻⁸ to 2⁸
UNKNOWN = 0.1  # of the training windows have a series, or a text, that counts as unknown


class Mixer(nn.Module):
    """A residual MLP of a whole window, a block that is compiled and checkpointed."""

    def __init__(self, inputs: int, width: int, depth: int):
        super().__init__()
        self.input = nn.Linear(inputs, width)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            layer = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, width),
                nn.GELU(),
                nn.Linear(width, width),
            )
            self.layers.append(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden units (B, width) for x (B, inputs)."""
        hidden = self.input(x)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return hidden


class Columns(nn.Module):
    """Turns the codes of texts into columns of zeros and ones, and keeps all other columns."""

    def __init__(self, names: list[str], texts: dict[str, dict[str, int]]):
        """texts: the codes, from 1, of the texts in training, by column."""
        super().__init__()
        self.texts: dict[int, int] = {}  # how many there are, by place
        numbers = []  # places of the columns of numbers
        # The place of a text's column (C, codes); 0 for a text that is not in training.
        ranks = torch.zeros(len(names), MOST_TEXTS + 1, dtype=torch.int64)
        for place, name in enumerate(names):
            if name in texts:
                codes = [*texts[name].values()]
                size = len(codes)
                ranks[place, codes] = 1 + torch.arange(size)
                self.texts[place] = size
            else:
                numbers.append(place)
        places = torch.tensor(numbers, dtype=torch.int64)
        self.numbers = nn.Buffer(places, persistent=False)
        self.ranks = nn.Buffer(ranks, persistent=False)
        self.width = len(names) + sum(self.texts.values())

    def forward(self, scaled: Tensor, values: Tensor) -> Tensor:
        """Return (…, width) for standardized and original values (B, …, C)."""
        if not self.texts:
            return scaled
        parts = [scaled[..., self.numbers]]
        for place, size in self.texts.items():
            codes = values[..., place].long()
            ranks = self.ranks[place, codes]
            if self.training:
                ranks = forget(ranks, 0)
            is_text = functional.one_hot(ranks, size + 1)
            parts.append(is_text.to(scaled.dtype))
        return torch.cat(parts, -1)


def forget(numbers: Tensor, unknown: int) -> Tensor:
    """Replace the numbers (B, …) of some windows by that of the unknown, so that it is trained."""
    ones = [1] * (numbers.dim() - 1)
    chances = torch.rand(len(numbers), *ones, device=numbers.device)
    is_forgotten = chances < UNKNOWN
    return torch.where(is_forgotten, unknown, numbers)


class Quantiles(nn.Module):
    """Makes quantiles from a median and spreads, so that they never cross.

    `widths` scales the distance of each quantile from the median, so that it covers what it should
    on the validation split (conformal prediction, Romano et al. 2019).
    """

    def __init__(self, text: str):
        super().__init__()
        levels = read_levels(text)
        self.names = [f"q{level:g}" for level in levels]
        self.middle = levels.index(0.5)
        self.levels = nn.Buffer(torch.tensor(levels), persistent=False)  # (Q,), ascending
        widths = torch.ones(len(levels))
        self.widths = nn.Buffer(widths, persistent=len(levels) > 1)  # (Q,)

    def forward(self, median: Tensor, spreads: list[Tensor]) -> Tensor:
        """Return quantiles (B, H, G, Q) of a median and Q − 1 spreads (B, H, G)."""
        if not spreads:
            return median[..., None]
        median = median[..., None]
        steps = functional.softplus(torch.stack(spreads, -1))
        lower = steps[..., : self.middle]
        upper = steps[..., self.middle :]
        below = lower.flip(-1).cumsum(-1).flip(-1)
        above = upper.cumsum(-1)
        zero = torch.zeros_like(median)
        return median + torch.cat([-below, zero, above], -1)

    def loss(self, quantiles: Tensor, target: Tensor) -> Tensor:
        """Return twice the pinball loss (B, H, G): of a median alone, it is the absolute error."""
        error = target[..., None] - quantiles
        too_low = self.levels * error
        too_high = (self.levels - 1) * error
        loss = torch.maximum(too_low, too_high)
        return 2 * loss.mean(-1)

    def widened(self, quantiles: Tensor) -> Tensor:
        """Return the quantiles with calibrated distances from the median."""
        median = quantiles[..., self.middle, None]
        return median + self.widths * (quantiles - median)

    def ratios(self, quantiles: Tensor, target: Tensor, present: Tensor) -> Groups:
        """Return a histogram of the widths at which each target is at its quantile (·, Q)."""
        median = quantiles[..., self.middle, None]
        distance = (quantiles - median).abs().clamp(min=TINY)
        side = torch.where(self.levels < 0.5, -1, 1)
        ratio = side * (target[..., None] - median) / distance
        exponents = ratio.clamp(min=TINY).log2()
        places = (exponents + 8) * BINS / 16
        places = places.long().clamp(0, BINS - 1)
        num_levels = len(self.levels)
        firsts = BINS * torch.arange(num_levels, device=places.device)
        group = places + firsts
        counts = present[..., None].expand_as(group).float()
        return Groups(BINS * num_levels, group.flatten(), counts.flatten())

    def measure(self, quantiles: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return coverage and width (B, H, G) of the interval from the first to the last one."""
        if len(self.levels) == 1:
            return {}
        widened = self.widened(quantiles)
        low = widened[..., 0]
        high = widened[..., -1]
        is_inside = (low <= target) & (target <= high)
        return {"coverage": is_inside, "width": high - low}

    def calibrate(self, histogram: Tensor) -> None:
        """Set the widths so that each quantile covers its fraction of the targets."""
        counts = histogram.view(-1, BINS)
        totals = counts.sum(1, keepdim=True)
        covered = counts.cumsum(1) / totals.clamp(min=1)
        wanted = torch.maximum(self.levels, 1 - self.levels)
        is_short = covered < wanted.to(covered)[:, None]
        places = is_short.sum(1).clamp(max=BINS - 1)
        exponents = (places + 0.5) * 16 / BINS - 8
        self.widths.copy_(torch.exp2(exponents))


def read_levels(text: str) -> list[float]:
    """Return the quantiles in `model.quantiles`; raise `UserError` if they are none."""
    levels = []
    with suppress(ValueError):
        levels = [float(part) for part in text.split(",")]
    is_ordered = levels == sorted(set(levels))
    is_inside = all(0 < level < 1 for level in levels)
    if not is_ordered or not is_inside or 0.5 not in levels:
        remedy = "give ascending numbers between 0 and 1, with 0.5, such as 0.1,0.5,0.9"
        raise UserError(f"'{text}' has no quantiles", "model.quantiles", remedy)
    return levels
