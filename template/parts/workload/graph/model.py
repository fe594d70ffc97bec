"""Temporal fusion for each stock, and graph attention between stocks.

Replace it with your own: the engine calls only `build_model`.

Shapes: `B` days in a batch, `K` seats for stocks, `T` days of the window, `F` features, `P`
horizons. In layers: `N` nodes, `E` edges, `H` heads, `C` units of a head, `W` units of the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .engine.errors import UserError
from .engine.interfaces import Batch, Output

SLOPE = 0.2  # of the scores below 0 (Veličković et al. 2018)


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
        weights = (scores - peak.index_select(0, target)).exp_()
        totals = torch.zeros_like(peak).index_add_(0, target, weights)
        totals.clamp_(min=limits.tiny)
        weights /= totals.index_select(0, target)

        messages = values.index_select(0, source)  # (E, H, C)
        messages.mul_(weights.unsqueeze(2))
        out = torch.zeros_like(values).index_add_(0, target, messages)
        ctx.save_for_backward(values, weights, source, target, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, weights, source, target, out = ctx.saved_tensors
        arriving = gradient.index_select(0, target)  # (E, H, C)
        to_scores = values.index_select(0, source).mul_(arriving).sum(2)
        arriving.mul_(weights.unsqueeze(2))
        to_values = torch.zeros_like(values).index_add_(0, source, arriving)
        mean = (gradient * out).sum(2)  # (N, H): the softmax's own term, Σ weight · derivative
        to_scores.sub_(mean.index_select(0, target)).mul_(weights)
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
        assert edges.shape[:-1] == (2,), "edges must be two rows of node numbers"
        source, target = edges.unbind()
        values = self.linear(x).float()
        values = values.unflatten(1, (self.heads, -1))  # (N, H, C)
        weights = self._score_weights(x.shape[1])
        scores = functional.linear(x, weights)  # (N, 2H)
        leaving, arriving = scores.float().split(self.heads, 1)
        scores = leaving.index_select(0, source) + arriving.index_select(0, target)  # (E, H)
        scores = functional.leaky_relu(scores, SLOPE, inplace=True)
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


class FrequencyNormalization(nn.Module):
    """Splits each window into its strongest frequencies and a remainder (Ye et al. 2024).

    The strongest frequencies contain level and cycles, which drift. The remainder changes less from
    year to year.
    """

    def __init__(self, count: int):
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return main part and remainder, both (N, T, F) float32, of x (N, T, F)."""
        # In half precision, the FFT does not support every T.
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.fft.rfft(x.float(), dim=1)  # (N, T // 2 + 1, F)
            size = spectrum.abs()
            count = min(self.count, size.shape[1])
            strongest = size.topk(count, dim=1).indices
            kept = torch.zeros_like(size)
            kept.scatter_(1, strongest, 1.0)
            days = x.shape[1]
            main = torch.fft.irfft(spectrum * kept, n=days, dim=1)
            return main, x - main


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
        heads = heads.permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()  # (N, H, T, C) each
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        attended = self.attended(x, mixed)
        return self.gated(attended)


class Forecaster(nn.Module):
    """Predicts every horizon of each stock, from its window and its neighbours.

    The scaler is part of the model, since batches contain original units. No stock has weights of
    its own, so the order of stocks has no effect, and a new listing needs no training.
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, settings: Any, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        width = sizes.width
        features = facts["features"]
        targets = facts["target"]["horizons"]
        self.is_return = facts["target"]["kind"] == "return"
        self._register_scale("", features)
        self._register_scale("target_", targets)

        self.normalization: FrequencyNormalization | None = None
        inputs = len(features)
        if sizes.frequencies:
            self.normalization = FrequencyNormalization(sizes.frequencies)
            inputs = 2 * len(features)
        self.first = nn.Linear(inputs, width)
        self.place = nn.Parameter(0.02 * torch.randn(facts["window"], width))
        self.temporal = nn.ModuleList()
        for _ in range(sizes.temporal_layers):
            self.temporal.append(TemporalBlock(width, sizes.heads, sizes.dropout))
        self.graph = nn.ModuleList()
        for _ in range(sizes.graph_layers):
            self.graph.append(GraphAttention(width, width // sizes.heads, sizes.heads))
        self.joined = nn.ModuleList()
        for _ in range(sizes.graph_layers):
            self.joined.append(GatedResidual(width, sizes.dropout))
        self.head = nn.Linear(width + len(features), len(targets))

    def _register_scale(self, prefix: str, columns: list[dict[str, Any]]) -> None:
        for name in ("mean", "std"):
            values = [column[name] for column in columns]
            self.register_buffer(prefix + name, torch.tensor(values))

    def blocks(self) -> list[nn.Module]:
        """The temporal layers, which are compiled, checkpointed and sharded one by one."""
        return list(self.temporal)

    def outputs(self, batch: Batch) -> Tensor:
        """Return outputs (B, K, P), in float32 even under autocast; ignore those of empty seats."""
        features = batch["features"]  # (B, K, T, F)
        days, seats = features.shape[:2]
        x = (features - self.mean) / self.std
        x = x.clamp(-10, 10)
        x = x.flatten(0, 1)  # (N, T, F)
        last_day = x[:, -1]

        # Encode the window of each stock.
        if self.normalization is not None:
            x = torch.cat(self.normalization(x), 2)  # (N, T, 2F)
        x = self.first(x) + self.place
        for block in self.temporal:
            x = block(x)
        x = x[:, -1]  # (N, W): attention has seen the whole window

        # Add information from its neighbours.
        edges, present = disjoint_graph(batch["neighbors"])
        for attend, join in zip(self.graph, self.joined, strict=True):
            change = functional.elu(attend(x, edges, present))
            x = join(x, change)
        x = torch.cat([x, last_day], 1)
        outputs = self.head(x).float()
        return outputs.view(days, seats, -1)

    def forward(self, batch: Batch) -> Output:
        prediction = self.outputs(batch)
        target = (batch["target"] - self.target_mean) / self.target_std  # (B, K, P), NaN: unknown
        known = batch["listed"].unsqueeze(2) & target.isfinite()
        total_weight = known.sum(dtype=torch.float32)
        error = torch.where(known, prediction - target, 0.0)
        squares = error.square()
        loss = squares.sum() / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)

        absolute = error.abs()
        sums = {
            "mse": squares,
            "mae": absolute,
            "mse_original": squares * self.target_std**2,
            "mae_original": absolute * self.target_std,
        }
        metrics = {name: (value.sum(), total_weight) for name, value in sums.items()}
        if self.is_return:
            moved = known & (batch["target"] != 0)
            forecast = prediction * self.target_std + self.target_mean
            is_right = (forecast > 0) == (batch["target"] > 0)
            hits = is_right & moved
            metrics["direction_accuracy"] = (hits.sum(), moved.sum())
        return Output(loss, total_weight, metrics)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B, K, P) in the target's own units, NaN for empty seats."""
        prediction = self.outputs(batch) * self.target_std + self.target_mean
        listed = batch["listed"].unsqueeze(2)
        return {"prediction": prediction.where(listed, torch.nan)}


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


def build_model(settings: Any, facts: dict[str, Any]) -> nn.Module:
    """Build the network for the dataset's metadata: features, window, horizons and scaler."""
    width = settings.model.width
    heads = settings.model.heads
    if width % heads:
        what = f"a width of {width} is not divisible by {heads} heads"
        raise UserError(what, "model.width", "make it a multiple of model.heads")
    return Forecaster(settings, facts)
