"""Where images and their labels come from: folders, tables, arrays of NumPy, and IDX files."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..engine.errors import UserError
from ..engine.runs import check_input
from .content import content_of
from .delimiters import find_delimiter

# The last ones are refused with a remedy, instead of being ignored.
IMAGE = re.compile(
    r"(?i)\.(jpe?g|jfif|png|webp|bmp|gif|tiff?|p[bgp]m|avif|jp2|hei[cf]|svg|jxl|psd|dcm)\Z"
)
IDX = re.compile(r"(images|labels).idx[13]")  # of MNIST and its relatives
SPLIT_OF = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
    "t10k": "test",  # of MNIST
}
# Words in the names of arrays, and of MNIST's files.
ARRAYS = {
    "image": {"x", "image", "images", "data"},
    "label": {"y", "label", "labels", "target", "targets"},
}
LABELS = ARRAYS["label"] | {"class", "category"}  # usual names of their column
FRACTION = re.compile(r"-?\d+\.\d+")
FOLDERS = "put each class into a folder, such as cat/1.jpg; give the folder that has all classes"
KINDS = "give a folder of images, a CSV (UTF-8) or Parquet file, .npz, or a folder of IDX files"
ARRAYS_REMEDY = "write it again: images as uint8, labels as numbers or texts, no objects"
OTHERS = "files with other endings than images"
OUTSIDE = "images in no folder of a class"
UNUSED = "columns that are not used"
Columns = dict[str, list[Any]]


@dataclass
class Source:
    """Images that are not decoded yet."""

    names: list[str]  # for messages, and in predictions
    items: list[Any]  # paths, contents of files, or arrays of pixels
    labels: list[list[str]] = field(default_factory=list)  # of each image; one is its class
    splits: list[str] = field(default_factory=list)  # of each image, if the source has splits
    groups: list[str] = field(default_factory=list)  # of each image; a group stays together
    multilabel: bool = False  # whether an image may have any number of labels
    left_out: dict[str, list[str]] = field(default_factory=dict)  # names, by the reason
    numbered: bool = True  # whether classes that are numbers are sorted by size: 2 before 10

    def __len__(self) -> int:
        return len(self.items)


def open_images(path: Path, flags: dict[str, Any], labelled: bool = True) -> Source:
    """Return the images of a folder, a table, an .npz file, or IDX files.

    labelled: whether images need labels. Raises `UserError` for anything else.
    """
    check_input(path)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    idx = [file for file in files if IDX.search(file.name)]
    if path.is_dir() and not idx:
        return from_folder(path, labelled)
    if IMAGE.search(path.name) and not labelled:
        return Source([path.name], [str(path)])
    are_arrays = bool(idx) or path.suffix == ".npz"
    remedy = ARRAYS_REMEDY if are_arrays else KINDS
    try:
        if are_arrays:
            return from_arrays(path, read_arrays(path, idx), labelled)
        return from_table(path, read_table(path), flags, labelled)
    except UserError:
        raise
    except Exception as error:  # NumPy, pyarrow, zipfile and zlib raise classes of their own
        what = f"cannot read the file ({error})".partition("\n")[0]
        raise UserError(what, str(path), remedy) from error


# --- folders


def from_folder(path: Path, labelled: bool) -> Source:
    """Return the images below a folder. Their classes are the folders in it, as in torchvision.

    If these are called train, val or test, they are splits, and the classes are the folders in
    them.
    """
    names, others = find_images(path)
    if not names:
        what = f"no images, by the endings of {len(others):,} files"
        raise UserError(what, str(path), FOLDERS if labelled else KINDS)
    if not labelled:
        items = [os.path.join(path, name) for name in names]
        return Source(names, items)

    tops = {name.partition(os.sep)[0] for name in names if os.sep in name}
    known = {SPLIT_OF.get(top.lower()) for top in tops}
    # A folder `train` among those of other vehicles is a class.
    has_splits = None not in known or len(known) > 2
    if not has_splits and len(known) > 1:
        print("note: the folders are classes, also that of a split: give only splits, to use them")
    source = Source([], [], numbered=False)
    outside = []
    for name in names:
        *folders, _ = name.split(os.sep)
        split = ""
        if has_splits and folders:
            split = SPLIT_OF.get(folders.pop(0).lower(), "")
        if not folders or (has_splits and not split):
            outside.append(name)
            continue
        source.names.append(name)
        source.items.append(os.path.join(path, name))
        source.labels.append(folders[:1])
        if has_splits:
            source.splits.append(split)
    source.left_out = {OTHERS: others, OUTSIDE: outside}
    if not len(source):
        raise UserError("no folder with the images of a class", str(path), FOLDERS)
    return source


def find_images(path: Path) -> tuple[list[str], list[str]]:
    """Return the images and the other files at any depth, without hidden ones."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    images: list[str] = []
    others: list[str] = []
    for folder, folders, files in os.walk(path, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        inside = Path(folder).relative_to(path)
        if len(inside.parts) > 21:
            raise UserError("folders within folders without end", folder, "remove a link")
        for name in sorted(files):
            if name[0] != ".":
                found = images if IMAGE.search(name) else others
                found.append(str(inside / name))
    return images, others


# --- tables


def read_table(path: Path) -> Columns:
    """Return the columns of a CSV or Parquet file, by name."""
    kind, content = content_of(path, open(path, "rb"), "a Parquet file")  # noqa: SIM115
    if kind:
        from pyarrow import parquet

        return parquet.read_table(path).to_pydict()

    text = content.read().decode("utf-8-sig")
    delimiter = find_delimiter(text)
    lines = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    rows = [line for line in lines if line]
    if not rows:
        raise ValueError("it is empty")
    if any(map(IMAGE.search, rows[0])):
        remedy = "add a line with the names of the columns, such as file,label"
        raise UserError("the first line is no header", str(path), remedy)
    columns: Columns = {}
    for place, (name, *cells) in enumerate(zip_longest(*rows, fillvalue="")):
        name = name.strip()
        # The first column may be an index without a name; the last ones may be empty.
        lacks_name = place > 0 and not name
        if lacks_name and not any(cells):
            continue
        if lacks_name or name in columns:
            remedy = f"name each column once, and quote cells that have a {delimiter}"
            raise UserError("a column without a name of its own", str(path), remedy)
        columns[name] = [cell.strip() for cell in cells]
    return columns


def from_table(path: Path, columns: Columns, flags: dict[str, Any], labelled: bool) -> Source:
    """Return the images that a table names or contains.

    By default, the first column has the images, and the other one, or the one called `label`, has
    the labels. A column `split` has the splits.
    """

    def chosen(name: str) -> list[Any]:
        if name not in columns:
            raise UserError(f"no column '{name}'", str(path), f"use one of {', '.join(columns)}")
        return columns[name]

    group = flags.get("group")
    split_column = next((name for name in columns if name.lower() == "split"), "")
    usual = [name for name in columns if name not in (split_column, group, "")]
    image = flags["image_column"] or next(iter(usual), "")
    source = with_files(path, chosen(image), flags)
    if not labelled:
        return source
    others = [name for name in usual if name != image]
    label = flags["label_column"] or label_column(others, path)
    source.left_out[UNUSED] = [name for name in others if name != label]
    add_labels(source, chosen(label), path, flags["separator"])
    if group:
        for row, cell in enumerate(chosen(group), 1):
            if cell in (None, ""):
                where = f"{path}, row {row}, column '{group}'"
                raise UserError("the group is missing", where, "fill it in, or remove the row")
            source.groups.append(str(cell))
    if split_column:
        for row, cell in enumerate(columns[split_column], 1):
            split = SPLIT_OF.get(str(cell).lower())
            if not split:
                where = f"{path}, row {row}, column '{split_column}'"
                raise UserError(f"'{cell}' is no split", where, "use train, validation or test")
            source.splits.append(split)
    return source


def label_column(names: list[str], path: Path) -> str:
    """Return the column of the labels. Raises `UserError` if it could be any of several."""
    called = [name for name in names if name.lower() in LABELS]
    likely = called or names
    if not likely:
        raise UserError("no labels", str(path), "add a column label")
    if len(likely) > 1:
        what = f"the labels may be in {' or '.join(likely)[:200]}"
        raise UserError(what, str(path), "add --label-column; if each is a class, join them")
    return likely[0]


def with_files(path: Path, cells: list[Any], flags: dict[str, Any]) -> Source:
    """Return the images that the cells of a table name or contain.

    Raises `UserError` if files are missing.
    """
    source = Source([], [])
    missing = []
    for row, cell in enumerate(cells, 1):
        name = f"{path.name}, row {row}"
        if isinstance(cell, dict):  # as Hugging Face writes images
            cell = cell.get("bytes") or cell.get("path")
        if not isinstance(cell, str | bytes) or not cell:
            where = f"{path}, row {row}"
            raise UserError(
                f"{repr(cell)[:60]} is no image", where, "fix it, or see --image-column"
            )
        if isinstance(cell, str):
            name = cell
            cell = os.path.join(flags["root"] or path.parent, cell)
            if "\\" in cell and not os.path.isfile(cell):
                cell = cell.replace("\\", "/")  # as Windows writes paths
            if not os.path.isfile(cell):
                missing.append(f"{path}, row {row}: {shown(cell)}")
        source.names.append(name)
        source.items.append(cell)
    if not len(source):
        raise UserError("no images", str(path), KINDS)
    if missing and not flags["skip_damaged"]:
        remedy = "fix the path, or add --skip-damaged"
        if len(missing) == len(source):
            remedy = "write file names with endings; add --root FOLDER if that is not the table's"
        what = f"{len(missing):,} of {len(source):,} files are missing"
        raise UserError(what, missing[0], remedy)
    return source


def shown(name: str) -> str:
    """Return a name for a message of one line."""
    return name if name.isprintable() else repr(name)


def add_labels(source: Source, cells: list[Any], path: Path, separator: str) -> None:
    """Set the labels of the images. If an image has several, or a list, all may have any number.

    Raises `UserError` for a class that is missing.
    """
    if len(cells) != len(source):
        what = f"{len(source):,} images, but {len(cells):,} labels"
        raise UserError(what, str(path), "give each image a label")
    source.multilabel = any(isinstance(cell, list) for cell in cells)
    for row, cell in enumerate(cells, 1):
        parts = cell.split(separator) if isinstance(cell, str) else cell
        if not isinstance(parts, list):
            parts = [parts]
        names = [class_name(part, f"{path}, row {row}") for part in parts]
        source.labels.append([name for name in names if name])
    source.multilabel |= any(len(names) > 1 for names in source.labels)
    if not source.multilabel and [] in source.labels:
        where = f"{path}, row {source.labels.index([]) + 1}"
        raise UserError("the label is missing", where, "fill it in, or remove the row")


def class_name(value: Any, where: str) -> str:
    """Return the name of a class, such as 3 for 3.0; an empty text if it is missing."""
    is_missing = value is None or value != value
    name = "" if is_missing else str(value).strip()
    if FRACTION.fullmatch(name):
        name, _, digits = name.partition(".")
        if int(digits):
            remedy = "use names or whole numbers, or see --label-column"
            raise UserError(f"the label {value} is a number between classes", where, remedy)
    return name


# --- arrays


def from_arrays(path: Path, arrays: dict[str, np.ndarray], labelled: bool) -> Source:
    """Return the images of arrays whose names say what they are.

    Such as x and y, x_train and y_train, or test_images and test_labels.
    """
    parts: dict[str, dict[str, str]] = defaultdict(dict)  # names, by split and content
    for name in arrays:
        words = set(re.split(r"[\W_]+", name.lower()))
        split = "".join(words & SPLIT_OF.keys()) or "train"
        for content, usual in ARRAYS.items():
            if words & usual:
                parts[split][content] = name
    source = Source([], [])
    cells = []
    for split, part in parts.items():
        if "image" in part:
            name = part["image"]
            images = as_pixels(arrays[name], f"{path}, {name}")
            source.items += list(images)
            source.names += [f"{name}, row {row}" for row in range(1, len(images) + 1)]
            if len(parts) > 1:
                source.splits += [SPLIT_OF[split]] * len(images)
        if "label" in part:
            cells += as_cells(arrays[part["label"]])
    if not len(source):
        remedy = "call arrays x and y, or x_train, y_train, x_val, y_val, x_test and y_test"
        raise UserError(f"no images in {', '.join(arrays)}", str(path), remedy)
    if labelled:
        add_labels(source, cells, path, "|")
    return source


def as_pixels(images: np.ndarray, where: str) -> np.ndarray:
    """Return images (N, H, W) or (N, H, W, C) as uint8. Raises `UserError` for other arrays."""
    shape = images.shape
    if images.ndim < 3 or shape[3:] not in ((), (1,), (3,), (4,)):
        remedy = "write (N, height, width) or (N, height, width, channels)"
        if images.ndim == 4 and shape[1] in (1, 3, 4):
            remedy = "write channels last: numpy.moveaxis(images, 1, -1)"
        raise UserError(f"an array of shape {shape}", where, remedy)
    is_whole = images.dtype.kind in "iu"
    if not is_whole or images.min(initial=0) < 0 or images.max(initial=0) > 255:
        remedy = "write uint8 from 0 to 255: if white is 1, (255 * images).astype('uint8')"
        raise UserError(f"pixels of type {images.dtype}", where, remedy)
    if shape[3:] == (1,):
        images = images[..., 0]
    return images.astype(np.uint8, copy=False)


def as_cells(labels: np.ndarray) -> list[Any]:
    """Return the label of each image, or a list of labels if there is a column for each label."""
    if labels.size == len(labels):
        return labels.ravel().tolist()
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("columns of labels that are neither 0 nor 1")
    if (labels.sum(1) == 1).all():
        return labels.argmax(1).tolist()
    return [np.flatnonzero(row).tolist() for row in labels]


def read_arrays(path: Path, idx: list[Path]) -> dict[str, np.ndarray]:
    """Return the arrays of IDX files or of an .npz file, by name."""
    if idx:
        return {file.name: read_idx(file) for file in idx}
    with np.load(path) as arrays:
        return dict(arrays)


def read_idx(path: Path) -> np.ndarray:
    """Read a file of MNIST's format, packed or not."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if content[:3] != b"\0\0\x08":
        raise UserError("no IDX file of bytes", str(path), "copy it again")
    shape = np.frombuffer(content, ">i4", content[3], 4)
    pixels = np.frombuffer(content, np.uint8, offset=4 + shape.nbytes)
    return pixels.reshape(shape)
