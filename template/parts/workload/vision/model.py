"""A convolutional network for small images (Jordan 2024, arXiv 2404.00498), or one of timm's.

Replace it with your own: the engine calls only `build_model`.
Shapes: `B` images, `C` channels, `H` and `W` sides, `K` classes or labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .augment import center, sides_of
from .classes import sum_by_class, sum_by_label
from .engine.interfaces import Batch, Output
from .settings import Settings

TOP = 5  # of the classes, for the metric `accuracy_top5`


class ConvGroup(nn.Module):
    """Two convolutions. The first halves the sides: (B, C, H, W) to (B, D, H / 2, W / 2)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.conv1(x), 2)
        x = functional.gelu(self.norm1(x))
        return functional.gelu(self.norm2(self.conv2(x)))


class Network(nn.Module):
    """Groups of convolutions after a stem that whitens: (B, C, H, W) to (B, K).

    The stem makes 8 · C uncorrelated channels of each 2 × 2 patch. Its weights follow from the
    training images and stay as they are.
    """

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        channels = facts["shape"][2]
        side = min(sides_of(settings, facts))
        depth = sizes.depth or max(1, int(math.log2(side / 3)))
        widths = [8 * channels, sizes.width, *[2 * sizes.width] * (depth - 1)]
        self.stem = nn.Conv2d(channels, widths[0], 2)
        self.stem.weight.requires_grad_(False)
        self.stem.weight.copy_(whitening(facts))
        self.groups = nn.Sequential(*map(ConvGroup, widths, widths[1:]))
        self.head = nn.Linear(widths[-1], len(facts["classes"]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.groups(functional.gelu(self.stem(x)))
        return self.head(x.amax((2, 3)))


def whitening(facts: dict[str, Any]) -> Tensor:
    """Return the filters (8 · C, C, 2, 2) that make the channels of a patch uncorrelated."""
    std = torch.tensor(facts["std"], dtype=torch.float64).repeat_interleave(4)
    covariance = torch.tensor(facts["whitening"], dtype=torch.float64) / std / std[:, None]
    values, vectors = torch.linalg.eigh(covariance)
    filters = (vectors / (values + 5e-4).sqrt()).T.reshape(-1, len(facts["std"]), 2, 2)
    return torch.cat([filters, -filters]).float()


class Classifier(nn.Module):
    """A network between pixels and classes: scales the pixels, computes losses and predictions."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        self.settings = settings.augment
        self.sides = sides_of(settings, facts)
        mean = torch.tensor(facts["mean"])
        std = torch.tensor(facts["std"])
        if settings.model.timm:
            self.network, mean, std = build_timm(settings, facts)
        else:
            self.network = Network(settings, facts)
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("std", std[:, None, None])
        self.memory_format = torch.contiguous_format
        if settings.model.channels_last:
            self.memory_format = torch.channels_last
            self.to(memory_format=self.memory_format)

    def blocks(self) -> list[nn.Module]:
        """The repeated layers, which are compiled and checkpointed one by one."""
        return list(inner_blocks(self.network))

    def logits(self, batch: Batch) -> Tensor:
        """Return (B, K), in float32 even under autocast."""
        image = center(batch["image"], self.sides)
        image = ((image - self.mean) / self.std).contiguous(memory_format=self.memory_format)
        logits = self.network(image)
        if self.settings.flip and not self.training:
            logits = (logits + self.network(image.flip(3))) / 2
        return logits.float()

    def forward(self, batch: Batch) -> Output:
        logits = self.logits(batch)
        target = batch["target"]
        present = batch["present"]
        total_weight = present.sum(dtype=torch.float32)
        losses = self.losses(logits, target)
        if "partner_target" in batch:  # of mixup and cutmix
            others = self.losses(logits, batch["partner_target"])
            losses = torch.lerp(others, losses, batch["own_weight"])
        loss = (losses * present).sum() / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)
        metrics = {}
        for name, is_right in self.hits(logits, target).items():
            metrics[name] = ((is_right * present).sum(dtype=torch.float32), total_weight)
        return Output(loss, total_weight, metrics, self.sum_by_class(logits, target, present))


class SingleLabel(Classifier):
    """Predicts the class of an image."""

    sum_by_class = staticmethod(sum_by_class)

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each image (B,)."""
        smoothing = self.settings.label_smoothing if self.training else 0.0
        return functional.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)

    def hits(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return whether each image is right (B,), by the name of the metric."""
        hits = {"accuracy": logits.argmax(1) == target}
        if logits.shape[1] > TOP:
            hits["accuracy_top5"] = (logits.topk(TOP, 1).indices == target[:, None]).any(1)
        return hits

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B,) int64, the most likely class, and `probability` (B, K)."""
        probability = self.logits(batch).softmax(1)
        return {"prediction": probability.argmax(1), "probability": probability}


class MultiLabel(Classifier):
    """Predicts the labels of an image, of which it has any number."""

    sum_by_class = staticmethod(sum_by_label)

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each image (B,), a mean over the labels."""
        truth = target.float()
        if self.training:
            smoothing = self.settings.label_smoothing
            truth = truth + smoothing * (0.5 - truth)
        losses = functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        return losses.mean(1)

    def hits(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return how right each image is (B,), by the name of the metric."""
        is_right = (logits > 0) == target.bool()
        return {"accuracy": is_right.float().mean(1), "exact_match": is_right.all(1)}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B, K) bool, the likely labels, and `probability` (B, K)."""
        probability = self.logits(batch).sigmoid()
        return {"prediction": probability > 0.5, "probability": probability}


def build_timm(settings: Settings, facts: dict[str, Any]) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network of timm, and the mean and the standard deviation of its pixels (C,)."""
    import timm

    sizes = settings.model
    channels = facts["shape"][2]
    overlay = {"file": sizes.timm_weights} if sizes.timm_weights else None
    network = timm.create_model(
        sizes.timm,
        pretrained=sizes.pretrained,
        pretrained_cfg_overlay=overlay,
        in_chans=channels,
        num_classes=len(facts["classes"]),
    )
    scale = network.pretrained_cfg
    mean = 255 * torch.tensor(scale["mean"])[:channels]
    return network, mean, 255 * torch.tensor(scale["std"])[:channels]


def inner_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks inside of PyTorch's own containers."""
    for child in module.children():
        if not type(child).__module__.startswith("torch.nn"):
            yield child
        else:
            yield from inner_blocks(child)


def build_model(settings: Settings, facts: dict[str, Any]) -> nn.Module:
    """Build the classifier for the dataset's metadata: its shape, scale and classes."""
    kind = MultiLabel if facts["multilabel"] else SingleLabel
    return kind(settings, facts)
