"""The layers of the model: attention along time, and over the graph of the stocks.

Shapes: `N` nodes, `E` edges, `H` heads, `C` units of a head, `W` units of the model. `T` days of
the window, `F` features. `B` days in a batch, `K` seats for stocks, `k` neighbours of a seat.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class SegmentAttention(torch.autograd.Function):
    """out[i] = Σ softmax(scores of edges into i) · values[their sources], for edges in any order.

    As in flash attention, backward computes the messages again. So memory keeps one number per edge
    and head, not C. The output of a node is 0 if it has no edge, or if all its scores are −inf.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, scores: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return (N, H, C) from values (N, H, C), scores (E, H), source (E,) and target (E,)."""
        nodes, heads = values.shape[:2]
        limits = torch.finfo(scores.dtype)
        peak = scores.new_full((nodes, heads), limits.min)
        target_of_head = target.unsqueeze(1).expand(-1, heads)
        peak.scatter_reduce_(0, target_of_head, scores, "amax")

        # Softmax over the edges into each node.
        weights = scores - peak.index_select(0, target)
        weights.exp_()
        totals = torch.zeros_like(peak)
        totals.index_add_(0, target, weights)
        totals.clamp_(min=limits.tiny)
        weights /= totals.index_select(0, target)

        messages = values.index_select(0, source)  # (E, H, C)
        messages.mul_(weights.unsqueeze(2))
        out = torch.zeros_like(values)
        out.index_add_(0, target, messages)
        ctx.save_for_backward(values, weights, source, target, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, weights, source, target, out = ctx.saved_tensors
        arriving = gradient.index_select(0, target)  # (E, H, C)
        leaving = values.index_select(0, source)
        leaving.mul_(arriving)
        to_scores = leaving.sum(2)
        mean = (gradient * out).sum(2)  # (N, H): the softmax's own term, Σ weight · derivative
        to_scores.sub_(mean.index_select(0, target))
        to_scores.mul_(weights)
        del leaving  # as large as the messages

        arriving.mul_(weights.unsqueeze(2))
        to_values = torch.zeros_like(values)
        to_values.index_add_(0, source, arriving)
        return to_values, to_scores, None, None


class GraphAttention(nn.Module):
    """Graph attention (Veličković et al. 2018) over any graph, (N, inputs) to (N, H·C).

    The heads are concatenated. Memory grows with the number of edges, without any N × N matrix. A
    node attends to itself only if `edges` contains the loop; without any edge, its output is the
    bias.
    """

    def __init__(self, inputs: int, width: int, heads: int = 1):
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(inputs, heads * width, bias=False)
        self.source = nn.Parameter(torch.empty(heads, width))
        self.target = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads * width))
        nn.init.xavier_uniform_(self.source)
        nn.init.xavier_uniform_(self.target)

    def forward(self, x: Tensor, edges: Tensor, present: Tensor | None = None) -> Tensor:
        """Return (N, H·C) from x (N, inputs) and edges (2, E) int64, from row 0 to row 1.

        present: the edges that count (E,) bool.
        """
        source, target = edges.unbind()
        values = self.linear(x).float()
        values = values.unflatten(1, (self.heads, -1))  # (N, H, C)
        weights = self._score_weights(x.shape[1])
        scores = functional.linear(x, weights)  # (N, 2H)
        leaving, arriving = scores.float().split(self.heads, 1)
        scores = leaving.index_select(0, source) + arriving.index_select(0, target)  # (E, H)
        scores = functional.leaky_relu(scores, 0.2, inplace=True)  # the paper's slope
        if present is not None:
            scores = scores.masked_fill(~present.unsqueeze(1), -torch.inf)
        mixed = SegmentAttention.apply(values, scores, source, target)
        return mixed.flatten(1) + self.bias

    def _score_weights(self, inputs: int) -> Tensor:
        """Return weights (2H, inputs) that compute scores from x, without the values in between."""
        weight = self.linear.weight.view(self.heads, -1, inputs)
        leaving = (weight * self.source.unsqueeze(2)).sum(1)
        arriving = (weight * self.target.unsqueeze(2)).sum(1)
        return torch.cat([leaving, arriving])


def split_frequencies(x: Tensor, count: int) -> Tensor:
    """Split windows (N, T, F) into main part and remainder, (N, T, 2F) (Ye et al. 2024).

    The main part is the strongest frequencies: level and cycles, which drift. The remainder changes
    less from year to year.
    """
    # In half precision, the FFT does not support every T.
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.rfft(x.float(), dim=1)  # (N, T // 2 + 1, F)
        size = spectrum.abs()
        count = min(count, size.shape[1])
        strongest = size.topk(count, dim=1).indices
        kept = torch.zeros_like(size)
        kept.scatter_(1, strongest, 1.0)
        main = torch.fft.irfft(spectrum * kept, n=x.shape[1], dim=1)
        return torch.cat([main, x - main], 2)


class GatedResidual(nn.Module):
    """A layer that can switch itself off: norm(x + gate · change) (Lim et al. 2021)."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.dropout = dropout

    def forward(self, x: Tensor, change: Tensor | None = None) -> Tensor:
        """Return (…, W) from x (…, W); without `change`, the change is computed from x."""
        if change is None:
            change = x
        change = functional.elu(self.first(change))
        change = functional.dropout(change, self.dropout, self.training)
        gated = functional.glu(self.second(change), -1)
        return self.norm(x + gated)


class TemporalBlock(nn.Module):
    """Causal attention over the days of a window, then a gated layer."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.queries = nn.Linear(width, 3 * width)
        self.attended = GatedResidual(width, dropout)
        self.gated = GatedResidual(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, T, W) from x (N, T, W)."""
        heads = self.queries(x)
        heads = heads.unflatten(2, (3, self.heads, -1))
        heads = heads.transpose(1, 3)
        query, key, value = heads.unbind(2)  # (N, H, T, C) each
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        attended = self.attended(x, mixed)
        return self.gated(attended)


def disjoint_graph(neighbors: Tensor) -> tuple[Tensor, Tensor]:
    """Join the graphs of all days into one; return edges (2, E) and which are present (E,).

    neighbors: the seats (B, K, k) whose edges lead to each seat, −1 for none. E is always B·K·k, so
    that shapes are static and the host need not wait for a count.
    """
    days, seats, count = neighbors.shape
    nodes = torch.arange(days * seats, device=neighbors.device)
    target = nodes.repeat_interleave(count)
    first = (nodes - nodes % seats).repeat_interleave(count)
    seat = neighbors.flatten()
    source = first + seat.clamp(min=0)
    return torch.stack([source, target]), seat >= 0
