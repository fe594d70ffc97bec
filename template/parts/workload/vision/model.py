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
from .classes import sum_by_class, sum_by_score
from .engine.errors import UserError
from .engine.interfaces import Batch, Groups, Output
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
        x = self.norm2(self.conv2(x))
        return functional.gelu(x)


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
        groups = map(ConvGroup, widths, widths[1:])
        self.groups = nn.Sequential(*groups)
        self.head = nn.Linear(widths[-1], len(facts["classes"]))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.stem(x))
        x = self.groups(x)
        return self.head(x.amax((2, 3)))


def whitening(facts: dict[str, Any]) -> Tensor:
    """Return the filters (8 · C, C, 2, 2) that make the channels of a patch uncorrelated."""
    std = torch.tensor(facts["std"], dtype=torch.float64).repeat_interleave(4)
    covariance = torch.tensor(facts["whitening"], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(covariance / std / std[:, None])
    filters = vectors / (values + 5e-4).sqrt()
    filters = filters.T.reshape(-1, len(std) // 4, 2, 2)
    return torch.cat([filters, -filters]).float()


class Classifier(nn.Module):
    """A network between pixels and classes: scales the pixels, computes losses and predictions."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        self.settings = settings.augment
        self.sides = sides_of(settings, facts)
        self.kind: Any = Labels() if facts["multilabel"] else Classes()
        if settings.model.timm:
            self.network, mean, std = build_timm(settings, facts)
        else:
            self.network = Network(settings, facts)
            mean = torch.tensor(facts["mean"])
            std = torch.tensor(facts["std"])
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("std", std[:, None, None])
        self.memory_format = torch.contiguous_format
        if settings.model.channels_last:
            self.memory_format = torch.channels_last
        nn.utils.convert_conv2d_weight_memory_format(self, self.memory_format)

    def blocks(self) -> list[nn.Module]:
        """The repeated layers, which are compiled and checkpointed one by one."""
        return list(inner_blocks(self.network))

    def logits(self, batch: Batch) -> Tensor:
        """Return (B, K), in float32 even under autocast."""
        image = center(batch["image"], self.sides)
        image = (image - self.mean).div_(self.std)  # without another copy of the batch
        image = image.contiguous(memory_format=self.memory_format)
        logits = self.network(image)
        if self.settings.flip and not self.training:
            mirrored = self.network(image.flip(3))
            logits = (logits + mirrored) / 2
        return logits.float()

    def forward(self, batch: Batch) -> Output:
        logits = self.logits(batch)
        target = batch["target"]
        present = batch["present"]
        total_weight = present.sum(dtype=torch.float32)
        smoothing = 0.0
        if self.training:
            smoothing = self.settings.label_smoothing
        losses = self.kind.losses(logits, target, smoothing)
        if "partner_target" in batch:  # of mixup and cutmix
            others = self.kind.losses(logits, batch["partner_target"], smoothing)
            losses = torch.lerp(others, losses, batch["own_weight"])
        loss = (losses * present).sum() / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)

        metrics = {}
        for name, is_right in self.kind.hits(logits, target).items():
            hits = (is_right * present).sum(dtype=torch.float32)
            metrics[name] = (hits, total_weight)
        by_group = self.kind.by_group(logits, target, present)
        return Output(loss, total_weight, metrics, by_group)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction`, the class (B,) or whether each label is likely (B, K).

        `probability` is (B, K).
        """
        prediction, probability = self.kind.predict(self.logits(batch))
        return {"prediction": prediction, "probability": probability}


class Classes:
    """What logits (B, K) mean if each image has one class, whose number is its target (B,)."""

    def losses(self, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """Return the loss of each image (B,)."""
        return functional.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)

    def hits(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return whether each image is right (B,), by the name of the metric."""
        hits = {"accuracy": logits.argmax(1) == target}
        if logits.shape[1] > TOP:
            likeliest = logits.topk(TOP, 1).indices
            hits["accuracy_top5"] = (likeliest == target[:, None]).any(1)
        return hits

    def by_group(self, logits: Tensor, target: Tensor, present: Tensor) -> dict[str, Groups]:
        """Return counts of images by class."""
        return sum_by_class(logits, target, present)

    def predict(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the likeliest class, and the probability of each."""
        probability = logits.softmax(1)
        return probability.argmax(1), probability


class Labels:
    """What logits (B, K) mean if an image has any number of labels: targets are 0 or 1, (B, K)."""

    def losses(self, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """Return the loss of each image (B,), a mean over the labels."""
        truth = target.float()
        truth = truth + smoothing * (0.5 - truth)
        losses = functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        return losses.mean(1)

    def hits(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return how right each image is (B,), by the name of the metric."""
        is_right = (logits > 0) == target.bool()
        accuracy = is_right.float().mean(1)
        return {"accuracy": accuracy, "exact_match": is_right.all(1)}

    def by_group(self, logits: Tensor, target: Tensor, present: Tensor) -> dict[str, Groups]:
        """Return counts of images by label: right ones, predicted ones, and by score."""
        num_labels = logits.shape[1]
        label = torch.arange(num_labels, device=logits.device)
        label = label.repeat(len(logits))
        predicted = (logits > 0) & present[:, None]
        hits = predicted & target.bool()
        scores = sum_by_score(logits.double(), target.long(), present)
        return {
            "hits": Groups(num_labels, label, hits.flatten()),
            "predicted": Groups(num_labels, label, predicted.flatten()),
            "scores": scores,
        }

    def predict(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return which labels are likely, and the probability of each."""
        return logits > 0, logits.sigmoid()


def build_timm(settings: Settings, facts: dict[str, Any]) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network of timm, and the mean and the standard deviation of its pixels (C,).

    Raises `UserError` if there is no such network, or if its weights cannot be loaded.
    """
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: of another torchvision
        what = f"timm cannot be imported ({error})"
        raise UserError(what, "model.timm", f"pip install {timm_packages()}") from error

    sizes = settings.model
    channels = facts["shape"][2]
    options: dict[str, Any] = {"in_chans": channels, "num_classes": len(facts["classes"])}
    # Nothing is loaded for a model that only counts FLOPs.
    options["pretrained"] = sizes.pretrained and torch.get_default_device().type != "meta"
    if sizes.timm_weights not in ("download", "none"):
        options["pretrained_cfg_overlay"] = {"file": sizes.timm_weights}
    try:
        if timm.get_pretrained_cfg_value(sizes.timm, "fixed_input_size"):
            options["img_size"] = sides_of(settings, facts)
        network = timm.create_model(sizes.timm, **options)
    except Exception as error:  # timm and the hub raise many classes
        reason = " ".join(str(error).split())[:160]
        what = f"timm cannot make the network ({reason})"
        remedy = "check the name; name a file in model.timm_weights, or none to load no weights"
        raise UserError(what, f"model.timm {sizes.timm}", remedy) from error
    scale = network.pretrained_cfg
    mean = torch.tensor(scale["mean"]) * 255
    std = torch.tensor(scale["std"]) * 255
    if channels == 1:
        mean = mean.mean(0, keepdim=True)
        std = std.mean(0, keepdim=True)
    return network, mean, std


def timm_packages() -> str:
    """Return what to install for timm. The pinned torch stays, and torchvision is made for it."""
    _, _, build = torch.__version__.partition("+")
    packages = f'timm torchvision "torch=={torch.__version__}"'
    if not build:
        return packages
    return f"{packages} --extra-index-url https://download.pytorch.org/whl/{build}"


def inner_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks inside of PyTorch's own containers."""
    for child in module.children():
        if not type(child).__module__.startswith("torch.nn"):
            yield child
        else:
            yield from inner_blocks(child)


def build_model(settings: Settings, facts: dict[str, Any]) -> nn.Module:
    """Build the classifier for the dataset's metadata: its shape, scale and classes."""
    return Classifier(settings, facts)
