"""A residual MLP for tables. Replace it with your own: the engine calls only `build_model`.

Shapes: `B` rows in a batch, `F` numeric columns, `C` category columns, `K` classes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .classes import sum_by_class
from .engine.interfaces import Batch, Output
from .prepare.rows import endings
from .settings import Settings


class Block(nn.Module):
    """A residual hidden layer: x + dropout(relu(linear(x))), (B, width) to (B, width)."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(functional.relu(self.linear(x)))


class Network(nn.Module):
    """An MLP from the columns to the outputs.

    The scaler is part of the network, since batches contain original units, maybe as float64. A
    missing number becomes the column's mean. For each column with gaps in training, an extra input
    is 1 where the number is missing. Categories share one embedding table. Row 0 of each category
    is for missing and unknown values, and is initialized to zero.
    """

    mean: Tensor
    std: Tensor
    gaps: Tensor
    offsets: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any], outputs: int):
        super().__init__()
        sizes = settings.model
        columns = facts["features"]
        levels = [len(column["values"]) + 1 for column in facts["categories"]]
        gaps = [number for number, column in enumerate(columns) if column["missing"]]
        dtype = getattr(torch, facts.get("dtype", "float32"))
        mean = torch.tensor([column["mean"] for column in columns], dtype=dtype)
        self.register_buffer("mean", mean)
        self.register_buffer("std", torch.tensor([column["std"] for column in columns]))
        self.register_buffer("gaps", torch.tensor(gaps, dtype=torch.int64))
        self.register_buffer("offsets", torch.tensor([0, *levels[:-1]]).cumsum(0))

        self.embedding = None
        if levels:
            self.embedding = nn.Embedding(sum(levels), sizes.category_width)
            self.embedding.weight.data[self.offsets] = 0.0
        inputs = len(columns) + len(gaps) + len(levels) * sizes.category_width
        self.first = nn.Linear(inputs, sizes.width)
        self.layers = nn.ModuleList(
            Block(sizes.width, sizes.dropout) for _ in range(sizes.depth - 1)
        )
        self.head = nn.Linear(sizes.width, outputs)

    def blocks(self) -> list[nn.Module]:
        """The repeated layers, which are compiled, checkpointed and sharded one by one."""
        return list(self.layers)

    def outputs(self, batch: Batch) -> Tensor:
        """Return outputs (B, outputs), in float32 even under autocast."""
        parts = []
        if len(self.mean):
            features = batch["features"]  # (B, F), NaN where a cell was empty
            scaled = ((features - self.mean) / self.std).float()
            if len(self.gaps):  # the length is known on the host, so the device need not wait
                parts.append(features[:, self.gaps].isnan().float())
                scaled = scaled.nan_to_num()
            parts.append(scaled)
        if self.embedding is not None:
            vectors = self.embedding(batch["categories"] + self.offsets)  # (B, C, category_width)
            parts.append(vectors.flatten(1))
        x = functional.relu(self.first(torch.cat(parts, 1)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x).float()


class Regression(Network):
    """Predicts a number per row, or several, in standard deviations of the training targets."""

    target_mean: Tensor
    target_std: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any], outputs: int):
        super().__init__(settings, facts, outputs)
        self.endings = endings(facts)
        mean = torch.tensor(facts["target"]["mean"], dtype=self.mean.dtype)
        self.register_buffer("target_mean", mean)
        self.register_buffer("target_std", torch.tensor(facts["target"]["std"]))

    def forward(self, batch: Batch) -> Output:
        prediction = self.outputs(batch).squeeze(1).t()  # (B,), or of several targets (G, B)
        present = batch["present"]
        total_weight = present.sum(dtype=torch.float32)
        target = ((batch["target"] - self.target_mean) / self.target_std).float().t()
        # Padding rows have no error.
        target = torch.where(present, target, prediction.detach())
        squares = functional.mse_loss(prediction, target, reduction="none").sum(-1)
        loss = squares.mean() / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)
        absolute = functional.l1_loss(prediction, target, reduction="none").sum(-1)
        sums = {
            "mse": squares,
            "mae": absolute,
            "mse_original": squares * self.target_std**2,
            "mae_original": absolute * self.target_std,
        }
        metrics = {}
        for name, value in sums.items():
            of_targets = value.reshape(-1)
            for ending, of_target in zip(self.endings, of_targets, strict=True):
                metrics[name + ending] = (of_target, total_weight)
            metrics[name] = (of_targets.mean(), total_weight)
        return Output(loss, total_weight, metrics)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B,), or of several targets (B, G), in their own units."""
        output = self.outputs(batch).squeeze(1) * self.target_std
        return {"prediction": output.to(self.target_mean.dtype) + self.target_mean}


class Classification(Network):
    """Predicts a class per row.

    With `data.balance`, all classes count the same in the loss, by the weights of their rows. If
    training draws all classes equally often, only evaluations have weights.
    """

    weights: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any], outputs: int):
        super().__init__(settings, facts, outputs)
        self.balance = settings.data.balance
        counts = torch.tensor(facts["target"]["counts"], dtype=torch.float32)
        weights = counts.sum() / (outputs * counts)  # a mean of 1 over the training rows
        if self.balance == "none":
            weights = torch.ones(outputs)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, batch: Batch) -> Output:
        logits = self.outputs(batch)  # (B, K)
        present = batch["present"]
        weights = present.float()
        if not (self.training and self.balance == "sampling"):
            weights = weights * self.weights[batch["target"]]
        total_weight = weights.sum()
        surprises = functional.cross_entropy(logits, batch["target"], reduction="none")
        loss = (surprises * weights).sum() / total_weight.clamp(min=1e-6)
        if self.training:
            return Output(loss, total_weight)
        count = present.sum(dtype=torch.float32)
        is_hit = (logits.argmax(1) == batch["target"]) & present
        metrics = {
            "accuracy": (is_hit.sum(dtype=torch.float32), count),
            "log_loss": ((surprises * present).sum(), count),
        }
        if self.balance != "none":
            metrics["baseline_loss"] = (total_weight * math.log(logits.shape[1]), total_weight)
        by_group = sum_by_class(logits, batch["target"], present)
        return Output(loss, total_weight, metrics, by_group)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B,) int64, the most likely class, and `probability` (B, K)."""
        probability = self.outputs(batch).softmax(1)
        return {"prediction": probability.argmax(1), "probability": probability}


def build_model(settings: Settings, facts: dict[str, Any]) -> nn.Module:
    """Build the network for the dataset's metadata: its columns, scaler, categories and task."""
    classes = facts["target"].get("classes")
    if classes:
        return Classification(settings, facts, outputs=len(classes))
    return Regression(settings, facts, outputs=len(endings(facts)))
