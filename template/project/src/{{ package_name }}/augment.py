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
NARROWEST = 3 / 4  # width ÷ height of a random crop
WIDEST = 4 / 3
TOGETHER = 2**19  # pixels that fit into the cache of a processor
# The numbers that are drawn for an image. Each has its place, so that a switch changes no other.
DRAWS = (
    "partner",
    "padding",
    "top",
    "left",
    "shift_y",
    "shift_x",
    "flip",
    "area",
    "ratio",
    "brightness",
    "contrast",
    "saturation",
    "hidden_y",
    "hidden_x",
    "kind_of_mix",
    "own_weight",
    "pasted_y",
    "pasted_x",
)
Random = dict[str, Tensor]
"""Numbers from 0 to 1 by the name of the draw, (B, 1) each."""


# --- sizes


def sides_of(settings: Settings, facts: dict[str, Any]) -> tuple[int, int]:
    """Return the height and width that the model sees. Raises `UserError` if they are not there."""
    height, width, _ = facts["shape"]
    size = settings.data.image_size
    if not size:
        return height, width
    if size > min(height, width):
        what = f"the stored images have {height} × {width} pixels, fewer than {size}"
        raise UserError(what, "data.image_size", f"prepare with --size {size}, or lower it")
    return size, size


def center(image: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return the center of images (B, C, …)."""
    height, width = sides
    top = (image.shape[2] - height) // 2
    left = (image.shape[3] - width) // 2
    return image[:, :, top : top + height, left : left + width]


# --- random numbers


def scramble(number: Any) -> Any:
    """Mix the bits of 32-bit numbers: an int, or int64 of NumPy or torch (Ettinger's lowbias32)."""
    number = number ^ number >> 16
    number = number * 0x7FEB352D & BITS
    number = number ^ number >> 15
    number = number * 0x846CA68B & BITS
    return number ^ number >> 16


def draw(seed: int, epoch: int, index: Any, place: Any) -> Any:
    """Return random integers below 2²⁴ for the images `index` and the places of `DRAWS`."""
    key = scramble(scramble(seed) ^ epoch)
    number = index * len(DRAWS) + place & BITS
    number = scramble(number) ^ key
    return scramble(number) >> 8


def draw_all(seed: int, epoch: int, index: Tensor) -> Random:
    """Return all numbers for the images `index` (B,)."""
    places = torch.arange(len(DRAWS), device=index.device)
    whole = draw(seed, epoch, index[:, None], places)
    numbers = whole.float() / 2**24
    columns = numbers.split(1, 1)
    return dict(zip(DRAWS, columns, strict=True))


# --- changes


def augment(
    batch: Batch, settings: Augment, sides: tuple[int, int], seed: int, epoch: int
) -> Batch:
    """Return a batch whose `image` (B, C, *sides) is float32, from 0 to 255."""
    changed = dict(batch)
    random = draw_all(seed, epoch, batch["index"])
    image = move(batch["image"], random, settings, sides)
    if settings.color:
        image = recolor(image, random, settings.color)
    if "partner_image" in batch:
        # The partner has draws of its own. They belong to the image, too, not to the partner.
        others = draw_all(seed + 1, epoch, batch["index"])
        partner = move(changed.pop("partner_image"), others, settings, sides)
        weight = own_weight(image, random, settings)
        image = partner + (image - partner) * weight
        changed["own_weight"] = weight.mean((1, 2, 3))  # against `partner_target`
    if settings.cutout:
        hidden = rectangle(image, random["hidden_y"], random["hidden_x"], settings.cutout)
        image = image.masked_fill(hidden, GREY)
    changed["image"] = image
    return changed


def move(image: Tensor, random: Random, settings: Augment, sides: tuple[int, int]) -> Tensor:
    """Crop, enlarge, shift and flip in one bilinear pass; the border is mirrored."""
    stored_height, stored_width = image.shape[2:]
    height, width = sides
    crop_height: Any = height
    crop_width: Any = width
    if settings.crop < 1:
        area = 1 - (1 - settings.crop) * random["area"]
        ratio = NARROWEST + (WIDEST - NARROWEST) * random["ratio"]
        crop_height = (area / ratio).sqrt().clamp(max=1) * stored_height
        crop_width = (area * ratio).sqrt().clamp(max=1) * stored_width

    most = settings.shift
    y = sampled(height, stored_height, crop_height, random["top"], random["shift_y"], most)
    x = sampled(width, stored_width, crop_width, random["left"], random["shift_x"], most)
    if settings.flip:
        x = torch.where(random["flip"] < 0.5, -x, x)

    together = 1 + TOGETHER // (height * width)
    if image.device.type == "cpu" and len(image) > together:
        return resample_in_cache(image, y, x, together)
    return resample(image, y, x)


def resample(image: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return the pixels in rows y (B, H) and columns x (B, W), which count from −1 to 1."""
    columns, rows = torch.broadcast_tensors(x[:, None, :], y[:, :, None])
    grid = torch.stack([columns, rows], 3)
    return functional.grid_sample(
        image.float(), grid, padding_mode="reflection", align_corners=False
    )


def resample_in_cache(image: Tensor, y: Tensor, x: Tensor, count: int) -> Tensor:
    """Do the same for `count` images at a time: 1.4 times as fast on a CPU with 224 × 224."""
    height = y.shape[1]
    width = x.shape[1]
    result = torch.empty(*image.shape[:2], height, width)
    for first in range(0, len(image), count):
        part = slice(first, first + count)
        result[part] = resample(image[part], y[part], x[part])
    return result


def sampled(count: int, stored: int, crop: Any, first: Tensor, shift: Tensor, most: int) -> Tensor:
    """Return where `count` pixels of a random crop are, from −1 to 1 as grid_sample counts.

    (B, count). stored: pixels of the image. most: the largest shift, in pixels.
    """
    last = stored - crop
    start = (first * (last + 1)).floor().clamp(max=last)
    centers = torch.arange(count, device=first.device) + 0.5
    pixels = start + centers * (crop / count)
    offset = (shift * (2 * most + 1)).floor() - most
    return 2 * (pixels + offset) / stored - 1


def recolor(image: Tensor, random: Random, most: float) -> Tensor:
    """Change brightness, contrast and saturation by a factor from 1 − most to 1 + most."""
    brightness = factor(random["brightness"], most)
    contrast = factor(random["contrast"], most)
    saturation = factor(random["saturation"], most)
    image = image * brightness
    mean = image.mean((1, 2, 3), keepdim=True)
    image = mean + (image - mean) * contrast
    grey = image.mean(1, keepdim=True)
    image = grey + (image - grey) * saturation
    return image.clamp(0, 255)


def factor(random: Tensor, most: float) -> Tensor:
    """Return numbers from 1 − most to 1 + most, (B, 1, 1, 1)."""
    change = most * (2 * random[:, :, None, None] - 1)
    return 1 + change


def own_weight(image: Tensor, random: Random, settings: Augment) -> Tensor:
    """Return how much of each pixel an image keeps against its partner, (B, 1, H, W).

    It is blended with the partner, shows a rectangle of it, or stays as it is.
    """
    kind = random["kind_of_mix"]
    own = random["own_weight"]
    is_blended = kind < settings.mixup
    is_pasted = (kind < settings.mixup + settings.cutmix) & ~is_blended
    fraction = torch.where(is_pasted, (1 - own).sqrt(), 0.0)
    pasted = rectangle(image, random["pasted_y"], random["pasted_x"], fraction)
    blended = torch.where(is_blended, own, 1.0)
    return blended[:, :, None, None] * ~pasted


def rectangle(image: Tensor, y: Tensor, x: Tensor, fraction: Any) -> Tensor:
    """Return where a rectangle is whose center is at y and x: (B, 1, H, W) bool.

    fraction: of each side of the image.
    """
    rows = distance(y, image.shape[2]) < fraction / 2
    columns = distance(x, image.shape[3]) < fraction / 2
    return rows[:, None, :, None] & columns[:, None, None, :]


def distance(middle: Tensor, count: int) -> Tensor:
    """Return how far `count` pixels of a side are from the middle (B, 1), as fractions of it."""
    centers = torch.arange(count, device=middle.device) + 0.5
    return (centers / count - middle).abs()
