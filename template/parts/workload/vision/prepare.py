"""Turn images into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..engine.runs import typed_path
from ..prepare.splits import print_next, split_sizes


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    what = (
        "a folder with a folder for each class, maybe in train/, val/ and test/; a CSV or Parquet"
    )
    what += " file of paths or images, and labels; an .npz file; or a folder of IDX files"
    add("--input", required=True, type=typed_path, metavar="PATH", help=what)
    text = "sides of the stored images in pixels (default: those of the first image, at most 224)"
    add("--size", type=int, default=0, metavar="N", help=text)
    text = "how images become square (default: crop)"
    add("--resize", choices=["crop", "pad", "stretch"], default="crop", help=text)
    text = "decoded: store pixels, which train fastest. encoded: store the files, which take less"
    text += " space; the loader's workers decode them (default: decoded)"
    add("--keep", choices=["decoded", "encoded"], default="decoded", help=text)
    add("--skip-damaged", action="store_true", help="leave damaged images out, and count them")
    text = "column of a table with paths or images (default: the first)"
    add("--image-column", metavar="NAME", help=text)
    add("--label-column", metavar="NAME", help="column with the labels (default: the last)")
    text = "sign between several labels of an image (default: %(default)s)"
    add("--separator", default="|", metavar="SIGN", help=text)
    text = "fractions that add up to 1, or numbers of images (default: %(default)s)"
    add("--split", default="0.8,0.1,0.1", metavar="TRAIN,VALIDATION,TEST", help=text)
    text = "seed of the shuffle before the split (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read all images once, in blocks, and write them split by split."""
    from ..engine.loading.store import StoreWriter
    from ..prepare.images import common_shape, describe, open_images, split_images, write
    from ..settings import WORKLOAD

    source = open_images(Path(arguments.input), vars(arguments))
    splits = split_images(source, partial(split_sizes, arguments.split), arguments.seed)
    shape = common_shape(source, arguments.size)
    facts = describe(source, splits["train"], shape, arguments.resize)
    folder = load().data.path
    encoded = arguments.keep == "encoded"
    with StoreWriter(folder, WORKLOAD) as writer:
        counts = write(writer, source, splits, facts, encoded, arguments.skip_damaged)
        writer.source = {"file": Path(arguments.input).name}
    sizes = [f"{last - first:,} {name}" for name, (first, last) in writer.splits.items()]
    print(f"images:     {', '.join(sizes)}, {'×'.join(map(str, shape))}")
    print(f"classes:    {len(facts['classes'])}")
    for name, count in counts.items():
        if count:
            print(f"note: {name}: {count:,}")
    print_next(folder)
