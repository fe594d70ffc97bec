"""Random changes of training images, on the device. Change them as you like.

Every draw is a pure function of (seed, epoch, index of the image). So each loader, number of
workers, number of processes and resumed run sees the same images. All operations round alike
everywhere: +, ×, ÷ and square roots do, powers do not.

Shapes: `B` images, `C` channels, `H` and `W` sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from .engine.errors import UserError
from .engine.interfaces import Batch

if TYPE_CHECKING:
    from .settings import Augment, Settings

BITS = 0xFFFFFFFF
GREY = 127  # the color of hidden pixels
# The numbers that are drawn for an image. Each has its place, so that a switch changes no other.
DRAWS = (
    *("partner", "padding", "top", "left", "shift_y", "shift_x", "flip", "area", "ratio"),
    *("brightness", "contrast", "saturation", "hidden_y", "hidden_x"),
    *("kind_of_mix", "own_weight", "pasted_y", "pasted_x"),
)
Random = dict[str, Tensor]
"""Numbers from 0 to 1 by the name of the draw, (B, 1) each."""


# --- sizes


def sides_of(settings: Settings, facts: dict[str, Any]) -> tuple[int, int]:
    """Return the height and width that the model sees. Raises `UserError` if they are not there."""
    height, width, _ = facts["shape"]
    size = settings.data.image_size
    if size > min(height, width):
        what = f"the stored images have {height} × {width} pixels, fewer than {size}"
        raise UserError(what, "data.image_size", f"prepare with --size {size}, or lower it")
    return (size, size) if size else (height, width)


def center(image: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return the center of images (B, C, …)."""
    top = (image.shape[2] - sides[0]) // 2
    left = (image.shape[3] - sides[1]) // 2
    return image[:, :, top : top + sides[0], left : left + sides[1]]


# --- random numbers


def scramble(number: Any) -> Any:
    """Mix the bits of 32-bit numbers: an int, or int64 of NumPy or torch (Ettinger's lowbias32)."""
    number = ((number ^ number >> 16) * 0x7FEB352D) & BITS
    number = ((number ^ number >> 15) * 0x846CA68B) & BITS
    return number ^ number >> 16


def draw(seed: int, epoch: int, index: Any, place: Any) -> Any:
    """Return random integers below 2²⁴ for the images `index` and the places of `DRAWS`."""
    key = scramble(scramble(seed) ^ epoch)
    number = (index * len(DRAWS) + place) & BITS
    return scramble(scramble(number) ^ key) >> 8


def draw_all(seed: int, epoch: int, index: Tensor) -> Random:
    """Return all numbers for the images `index` (B,)."""
    places = torch.arange(len(DRAWS), device=index.device)
    numbers = draw(seed, epoch, index[:, None], places).float() / 2**24
    return dict(zip(DRAWS, numbers.split(1, 1), strict=True))


# --- changes


def augment(
    batch: Batch, settings: Augment, sides: tuple[int, int], seed: int, epoch: int
) -> Batch:
    """Return a batch whose `image` (B, C, *sides) is float32, from 0 to 255."""
    random = draw_all(seed, epoch, batch["index"])
    image = move(batch["image"].float(), random, settings, sides)
    if settings.color:
        image = recolor(image, random, settings.color)
    changed = {**batch, "image": image}
    if "partner_image" in batch:
        # The partner has draws of its own, which belong to the image, too.
        others = draw_all(seed + 1, epoch, batch["index"])
        partner = move(changed.pop("partner_image").float(), others, settings, sides)
        mix(changed, partner, random, settings)
    if settings.cutout:
        hidden = rectangle(sides, random["hidden_y"], random["hidden_x"], settings.cutout)
        changed["image"] = changed["image"].masked_fill(hidden, GREY)
    return changed


def move(image: Tensor, random: Random, settings: Augment, sides: tuple[int, int]) -> Tensor:
    """Crop, enlarge, shift and flip in one bilinear pass; the border is mirrored."""
    height, width = image.shape[2:]
    crop_height: Any
    crop_width: Any
    crop_height, crop_width = sides
    if settings.crop < 1:
        area = 1 - (1 - settings.crop) * random["area"]
        ratio = 0.75 + random["ratio"] * (4 / 3 - 0.75)
        crop_height = height * (area * ratio).sqrt().clamp(max=1)
        crop_width = width * (area / ratio).sqrt().clamp(max=1)
    y = places(height, crop_height, sides[0], random["top"])
    x = places(width, crop_width, sides[1], random["left"])
    y = y + 2 / height * whole(random["shift_y"], settings.shift)
    x = x + 2 / width * whole(random["shift_x"], settings.shift)
    if settings.flip:
        x = torch.where(random["flip"] < 0.5, -x, x)
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), 3)
    return functional.grid_sample(image, grid, padding_mode="reflection", align_corners=False)


def places(stored: int, crop: Any, side: int, random: Tensor) -> Tensor:
    """Return where the `side` pixels of a crop are: (B, side), from −1 to 1 for `stored` pixels."""
    first = (random * (stored - crop + 1)).floor().clamp(max=stored - crop)
    centers = torch.arange(side, device=random.device) + 0.5
    return 2 / stored * (first + centers * (crop / side)) - 1


def whole(random: Tensor, most: int) -> Tensor:
    """Return whole numbers from −most to most."""
    return ((2 * most + 1) * random).floor() - most


def recolor(image: Tensor, random: Random, most: float) -> Tensor:
    """Change brightness, contrast and saturation by a factor from 1 − most to 1 + most."""

    def factor(name: str) -> Tensor:
        return 1 + most * (2 * random[name][:, :, None, None] - 1)

    image = image * factor("brightness")
    mean = image.mean((1, 2, 3), keepdim=True)
    image = mean + (image - mean) * factor("contrast")
    grey = image.mean(1, keepdim=True)
    return (grey + (image - grey) * factor("saturation")).clamp(0, 255)


def rectangle(sides: tuple[int, int], y: Tensor, x: Tensor, fraction: Any) -> Tensor:
    """Return where a rectangle is whose center is at y and x: (B, 1, H, W) bool.

    fraction: of each side of the image.
    """
    inside = []
    for side, middle in zip(sides, (y, x), strict=True):
        centers = (torch.arange(side, device=y.device) + 0.5) / side
        inside.append((centers - middle).abs() < fraction / 2)  # (B, side)
    rows, columns = inside
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def mix(batch: Batch, partner: Tensor, random: Random, settings: Augment) -> None:
    """Blend images with their partners, or paste a rectangle of the partner into them.

    `own_weight` (B,) becomes the weight of an image's own target against `partner_target`.
    """
    image = batch["image"]
    kind = random["kind_of_mix"]
    own = random["own_weight"]
    blended = torch.where(kind < settings.mixup, own, 1.0)
    is_pasted = (kind >= settings.mixup) & (kind < settings.mixup + settings.cutmix)
    fraction = torch.where(is_pasted, (1 - own).sqrt(), 0.0)
    pasted = rectangle(image.shape[2:], random["pasted_y"], random["pasted_x"], fraction)
    weight = blended[:, :, None, None] * ~pasted  # of each pixel, (B, 1, H, W)
    batch["image"] = partner + (image - partner) * weight
    batch["own_weight"] = weight.mean((1, 2, 3))
