"""Decode one image: upright, without transparency, 8 bits, and of the size that is asked for."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F"}  # modes of Pillow
CUBIC = Image.Resampling.BICUBIC
RESIZE: dict[str, Any] = {
    "crop": ImageOps.fit,
    "pad": ImageOps.pad,
    "stretch": Image.Image.resize,
}
Image.MAX_IMAGE_PIXELS = None  # `--max-pixels` is the limit
warnings.filterwarnings("ignore", module="PIL")  # damaged EXIF, which it skips


def decode(item: Any, shape: Sequence[int], resize: str) -> np.ndarray:
    """Return an image of a shape (H, W, C), uint8. See `open_image` and `to_pixels`."""
    image = open_image(item)
    return to_pixels(image, shape, resize)


def file_of(item: str | bytes) -> io.BufferedReader:
    """Return the opened file of an image: `item` is its path or its content."""
    if isinstance(item, bytes):
        return io.BufferedReader(io.BytesIO(item))
    return open(item, "rb")


def open_image(item: Any) -> Image.Image:
    """Return an image that is not decoded yet: `item` is a path, a content or an array."""
    if isinstance(item, np.ndarray):
        return Image.fromarray(item)
    return Image.open(file_of(item))


def to_pixels(image: Image.Image, shape: Sequence[int], resize: str) -> np.ndarray:
    """Return an image of a shape (H, W, C), uint8.

    resize: a key of `RESIZE`. The first frame counts. What is transparent becomes white.
    """
    height, width, channels = shape
    side = 2 * max(height, width)
    image.draft(None, (side, side))  # a large JPEG is decoded at a fraction of its size
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        image = to_bytes(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = RESIZE[resize](image, (width, height), CUBIC)
    return np.asarray(image).reshape(shape)


def to_bytes(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits for one of 16; Pillow would cut off what is above 255.

    Raises ValueError for any other type of number.
    """
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError("its pixels have neither 8 nor 16 bits")
    grey = values >> 8
    return Image.fromarray(grey.astype(np.uint8))
