"""Turn images into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import typed_path
from ..prepare.splits import print_next, split_shares

if TYPE_CHECKING:
    from ..prepare.images import ImageWriter

SHOWN = 10  # classes, and damaged images


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    text = (
        "folder with a folder for each class, maybe in train/, val/ and test/; or a table of paths"
        " and labels (CSV, Parquet), an .npz file, or MNIST's files"
    )
    add("--input", required=True, type=typed_path, metavar="PATH", help=text)
    text = "sides of the stored images (default: the median of their smaller sides, at most 224)"
    add("--size", type=int, default=0, metavar="PIXELS", help=text)
    text = "how other images become square (default: crop)"
    add("--resize", choices=["crop", "pad", "stretch"], default="crop", help=text)
    text = (
        "decoded: store pixels, which train fastest. encoded: store the files, which take less"
        " space; the loader decodes them in each epoch (default: decoded)"
    )
    add("--keep", choices=["decoded", "encoded"], default="decoded", help=text)
    text = "fractions that add up to 1, or numbers of images; test may be 0 (default: %(default)s)"
    add("--split", default="0.8,0.1,0.1", metavar="TRAIN,VALIDATION,TEST", help=text)
    add("--seed", type=int, default=0, help="seed of the shuffle before the split (default: 0)")
    text = "keep images of one value, such as a patient, in one split"
    add("--group", metavar="COLUMN", help=text)

    text = "column of a table with paths or images (default: the first)"
    add("--image-column", metavar="NAME", help=text)
    text = "column with the labels (default: the other one; of several, the one called label)"
    add("--label-column", metavar="NAME", help=text)
    text = "sign between several labels of an image (default: %(default)s)"
    add("--separator", default="|", metavar="SIGN", help=text)
    text = "folder that the paths in a table are relative to (default: that of the table)"
    add("--root", type=typed_path, metavar="FOLDER", help=text)
    text = "leave damaged images out, and name the first ones"
    add("--skip-damaged", action="store_true", help=text)
    text = "pixels of an image beyond which it is refused (default: %(default)s)"
    add("--max-pixels", type=int, default=178_000_000, metavar="N", help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read all images once, in blocks, and write them split by split."""
    from ..engine.loading.store import StoreWriter, check_folder
    from ..prepare.images import ImageWriter, common_shape
    from ..prepare.labels import describe, split_images
    from ..prepare.sources import open_images
    from ..settings import WORKLOAD

    if arguments.size and arguments.size < 8:
        raise UserError(f"{arguments.size} pixels are too few", "--size", "use 8 or more")
    if not arguments.separator:
        raise UserError("no sign between labels", "--separator", "use one, such as |")
    split_shares(arguments.split)
    flags = vars(arguments)
    folder = check_folder(load().data.path, arguments.input)
    source = open_images(Path(arguments.input), flags)
    if arguments.keep == "encoded" and not isinstance(source.items[0], str | bytes):
        raise UserError("arrays have no files", arguments.input, "remove --keep encoded")
    splits = split_images(source, arguments.split, arguments.seed)
    shape = common_shape(source, arguments.size)
    facts = describe(source, splits["train"], shape, arguments.resize)
    with StoreWriter(folder, WORKLOAD) as writer:
        images = ImageWriter(writer, source, facts, flags)
        images.write(splits)
        writer.source = {
            "file": Path(arguments.input).name,
            "image_column": arguments.image_column,
            "max_pixels": arguments.max_pixels,
        }
        report(images)
    print_next(folder)


def report(images: ImageWriter) -> None:
    """Print a summary, with three images: wrong labels are visible."""
    from ..prepare.images import DAMAGED
    from ..prepare.labels import label_texts
    from ..prepare.sources import shown

    writer = images.writer
    sizes = [f"{last - first:,} {name}" for name, (first, last) in writer.splits.items()]
    print(f"images:     {', '.join(sizes)}")
    names = [images.source.names[number] for number in images.written]
    shape = writer.facts["shape"]
    megabytes = math.prod(shape) * len(names) / 1e6
    print(f"pixels:     {' × '.join(map(str, shape))} × {len(names):,} = {megabytes:,.1f} MB")
    classes = writer.facts["classes"]
    parts = []
    for name, *numbers in zip(classes[:SHOWN], *images.counts.values(), strict=False):
        parts.append(f"{name} {'/'.join(map(str, numbers))}")
    more = ", …" if len(classes) > SHOWN else ""
    print(f"classes:    {len(classes):,}: {', '.join(parts)}{more}")
    texts = label_texts(writer.appended("target"), classes)
    for row in (0, len(names) // 2, len(names) - 1):
        print(f"image {row}: {shown(names[row])} → {texts[row]}")
    for what, noted in images.notes.items():
        if noted:
            count = SHOWN if what == DAMAGED else 3
            examples = ", ".join(map(shown, sorted(noted)[:count]))
            print(f"note: {what}: {len(noted):,}, such as {examples}")
