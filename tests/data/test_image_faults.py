"""Images, folders, tables and arrays that are wrong: one line each, with the file and a remedy."""

import os
import re
import zipfile

import numpy as np
import pytest
from made_up import prepare
from PIL import Image
from running import one_error
from test_images import RGB, classes, content_of, done, file, idx, picture, table, tree
from workload import Workload

VISION = Workload("vision")


def refused(folder, path, *parts, flags=""):
    """One line, and nothing written."""
    line = one_error(prepare(folder, "vision", str(path), flags), *parts)
    assert len(line) < 400
    assert not (folder / "data" / "manifest.json").exists()
    return line


def archive():
    with zipfile.ZipFile("/tmp/x.zip", "w") as packed:
        packed.writestr("a.txt", "text")
    return open("/tmp/x.zip", "rb").read()


WRONG = {
    "zip": (b"PK\x03\x04" + 40 * b"\0", "ZIP archive: .*cat/bad.jpg: unpack it"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG drawing: .*bad.jpg: .*PNG"),
    "svg with a head": (b"<?xml version='1.0'?>\n<!-- x --><svg>", "SVG drawing"),
    "heic": (b"\0\0\0\x18ftypheic" + 40 * b"\0", "HEIC image: .*bad.jpg: convert it"),
    "page": (b"<!DOCTYPE html><html>", "web page: .*bad.jpg: download"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1", "Git LFS: .*lfs pull"),
    "pdf": (b"%PDF-1.4", "PDF"),
    "empty": (b"", "no format that Pillow knows.*bad.jpg: .*--skip-damaged"),
    "text": (b"hello", "no format"),
    "cut": (file(RGB, "JPEG")[:700], "truncated.*bad.jpg: replace or remove"),
    "cut png": (file(RGB)[:300], "bad.jpg: replace or remove"),
    "dot": (picture(1, (1, 1)), "an image of 1 × 1 pixels.*bad.jpg"),
    "thin": (picture(1, (1, 500)), "an image of 500 × 1 pixels.*bad.jpg"),
    "float": (file(RGB.convert("F"), "TIFF"), "neither 8 nor 16 bits.*bad.jpg"),
    "deep": (file(Image.new("I", (9, 9), 1 << 20), "TIFF"), "neither 8 nor 16 bits"),
}


def test_a_damaged_image_is_named(tmp_path):
    root = classes(tmp_path / "in", "cat", "dog")
    for content, line in WRONG.values():
        tree(root, {"cat/bad.jpg": content})
        refused(tmp_path, root, line)
    (root / "cat/bad.jpg").unlink()
    tree(root, {"cat/large.png": 1})
    refused(tmp_path, root, "12 × 12 pixels, more than --max-pixels", flags="--max-pixels 99")


def test_damaged_images_are_skipped_and_named(tmp_path):
    root = classes(tmp_path / "in", "cat", "dog", count=20)
    tree(root, {f"dog/bad{n:02}.png": b"" for n in range(12)})
    out, store = done(tmp_path, root, "--skip-damaged")
    assert sum(store.facts["counts"]) == store.facts["images"]
    assert sum(last - first for first, last in store.splits.values()) == 40
    assert "note: damaged images left out: 12, such as " in out
    assert out.count("dog/bad") == 10
    tree(root, {f"dog/{n}.png": b"" for n in range(20)})
    (tmp_path / "data" / "manifest.json").unlink()
    refused(tmp_path, root, "class 'dog'", flags="--skip-damaged")


def test_a_name_with_a_line_break_is_one_line_and_may_be_used(tmp_path):
    root = tree(classes(tmp_path / "in", "cat", "dog"), {"cat/a\nb.png": 7})
    (root / os.fsdecode(b"dog/\xff.png")).write_bytes(picture(8))
    _, store = done(tmp_path, root)
    names = {name for split in store.splits for name in content_of(store, split)[1]}
    assert {"cat/a\nb.png", os.fsdecode(b"dog/\xff.png")} <= names
    (tmp_path / "data" / "manifest.json").unlink()
    tree(root, {"cat/a\nb.png": b"x"})
    refused(tmp_path, root, r"'cat/a\\nb.png'")


def test_files_without_permission_are_named(tmp_path, monkeypatch):
    """Whoever runs the tests may be allowed everything."""
    root = classes(tmp_path / "in", "cat", "dog")
    decoding = VISION.module("prepare.decoding")

    def denied(path, mode):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(decoding, "open", denied, raising=False)
    refused(tmp_path, root, "Permission denied.*/\\d.png: replace or remove")
    monkeypatch.undo()

    scandir = os.scandir

    def closed(path):
        if os.fspath(path) == str(root / "cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    refused(tmp_path, root, "Permission denied.*in/cat")


def test_frames_and_copies_are_noted(tmp_path):
    root = classes(tmp_path / "in", "cat", "dog", count=12)
    frames = [Image.new("RGB", RGB.size, name) for name in ("red", "blue")]
    tree(root, {"cat/apng.png": file(RGB, save_all=True, append_images=frames)})
    deep = Image.fromarray(np.full((12, 12), 4095, np.uint16))
    tree(root, {"dog/deep.png": file(deep)})
    out, _ = done(tmp_path, root, "--size 12")
    assert "note: images of 16 bits, which become 8: stretch dark ones to 16 bits before: 1" in out
    assert (
        "note: images with several frames, of which only the first one counts: 1, such as cat/apng.png"
        in out
    )
    assert "copies" not in out
    tree(root, {"cat/both.png": 99, "dog/both.png": 99})
    out, _ = done(tmp_path, root, "--size 12 --split 25,1,0")
    assert re.search("note: .*copies of .*, with other labels: 1, such as (cat|dog)/both.png", out)
    for split in ("train", "test"):
        classes(tmp_path / "given" / split, "a", "b", count=3)
    out, _ = done(tmp_path, tmp_path / "given", "--split 0.5,0.5,0")
    assert "images of test are copies of images in train" in out
    assert "test/a/0.png = " in out


def test_folders_without_usable_classes(tmp_path):
    flat = tree(tmp_path / "flat", {"1.png": 1, "2.png": 2})
    refused(tmp_path, flat, "no folder with the images of a class.*flat: put each class")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    refused(tmp_path, tmp_path / "empty", "no images, by the endings of 0 files: .*empty")
    refused(tmp_path, tmp_path / "none", "no such file or folder")
    inner = classes(tmp_path / "outer" / "inner", "a", "b")
    refused(tmp_path, inner.parent, "all images have one class")
    refused(tmp_path, flat / "1.png", "an image: .*1.png")
    refused(
        tmp_path, tree(classes(tmp_path / "one", "a"), {"b/1.png": 1}), "class 'b' has only one"
    )
    for other in ("Cat", "cat "):
        case = classes(tmp_path / other.encode().hex(), other, "cat")
        refused(tmp_path, case, "differ only in case or form: '.*' and '.*'")
    composed = classes(tmp_path / "form", "café", "cafe\u0301")
    refused(tmp_path, composed, r"case or form: 'cafe.u0301' and 'caf.xe9'")
    lack = classes(tmp_path / "lack" / "train", "a", "b").parent
    classes(lack / "test", "a", "new")
    refused(tmp_path, lack, "class 'new' is in no training image.*test/new/")
    untrained = classes(tmp_path / "u" / "test", "a", "b").parent
    classes(untrained / "val", "a", "b")
    refused(tmp_path, untrained, "no images are left for training")
    (classes(tmp_path / "loop", "a", "b") / "a" / "up").symlink_to("..")
    refused(tmp_path, tmp_path / "loop", "without end")


def test_tables_with_wrong_paths_and_labels(tmp_path):
    tree(tmp_path, {f"in/{n}.png": n for n in range(20)})
    good = [(f"in/{n}.png", "ab"[n % 2]) for n in range(20)]

    def wrong(rows, *parts, header="path,label", flags=""):
        refused(tmp_path, table(tmp_path, rows, header), *parts, flags=flags)

    # A column for each class would have trained on the last one alone.
    columns = [(name, label, "1") for name, label in good]
    line = "the labels may be in cat or dog.*table.csv: add --label-column"
    wrong(columns, line, header="path,cat,dog")
    wrong(columns, "may be in label or class", header="path,label,class")
    names = [(str(n), "ab"[n % 2]) for n in range(20)]
    wrong(names, "20 of 20 files are missing.*write file names with endings")

    wrong([(path[3:], label) for path, label in good], "20 of 20 files are missing", "--root")
    wrong([*good[:7], ("in/x.png", "a"), *good[8:]], "1 of 20 files", "row 8: .*x.png: fix")
    wrong([*good[:7], (good[7][0], ""), *good[8:]], "the label is missing.*row 8: fill it in")
    wrong(
        [(path, str(n / 7)) for n, (path, _) in enumerate(good)], "a number between classes.*row 2"
    )
    wrong(good[1:], "the first line is no header", header=",".join(good[0]))
    wrong([(path,) for path, _ in good], "no labels", header="path")
    wrong([], "no images")
    wrong([*good[:7], ("", "a")], "'' is no image.*row 8: ")
    wrong([(*row, "dev") for row in good], "'dev' is no split.*row 1", header="path,label,split")
    capital = [(*row, "dev") for row in good]
    wrong(capital, "no split: .*, column 'Split'", header="path,label,Split")
    wrong(
        [*good[:7], ("in/7.png", "b", "c"), *good[8:]], "without a name.*quote cells that have a ,"
    )
    twice = [(*row, "a") for row in good]
    wrong(twice, "without a name of its own.*table.csv: name each", header="path,label,label")
    gaps = [(*row, "p" * (n % 3)) for n, row in enumerate(good)]
    line = "the group is missing: .*row 1, column 'who': fill it in"
    wrong(gaps, line, header="path,label,who", flags="--label-column label --group who")
    wrong(good, "no column 'x'.*path, label", flags="--label-column x")
    wrong(good, "no column 'x'", flags="--group x")
    wrong([(str(n), *row) for n, row in enumerate(good)], "20 of 20", header="id,path,label")
    rows = [(*row, "g") for row in good]
    wrong(
        rows,
        "no images are left for .*--group",
        header="path,label,who",
        flags="--label-column label --group who",
    )
    (tmp_path / "table.csv").write_bytes(b"path,label\n\xff.png,a")
    refused(tmp_path, "table.csv", "cannot read the file .*table.csv")
    (tmp_path / "table.parquet").write_bytes(b"PAR1\0")
    refused(tmp_path, "table.parquet", "cannot read the file .*table.parquet")


def test_arrays_that_are_no_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8), np.uint8)
    labels = np.arange(20) % 2

    def wrong(*parts, flags="", **arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        refused(tmp_path, "a.npz", "a.npz", *parts, flags=flags)

    wrong("pixels of type float64", "uint8", x=images / 255, y=labels)
    wrong("pixels of type int64", x=images.astype(int) * 2, y=labels)
    wrong("channels last", x=np.stack([images] * 3, 1), y=labels)
    wrong("shape \\(20, 64\\)", x=images.reshape(20, 64), y=labels)
    wrong("20 images, but 19 labels", x=images, y=labels[:19])
    wrong("20 images, but 0 labels", x=images)
    wrong("no images in arr_0, arr_1: .*x and y", arr_0=images, arr_1=labels)
    wrong("Object arrays.*no objects", x=images, y=labels.astype(object))
    wrong("the label is missing", x=images, y=np.where(labels, 1, np.nan))
    wrong("a number between classes", x=images, y=labels / 2)
    parts = np.stack([labels, 1 - labels / 2], 1)
    wrong("columns of labels that are neither 0 nor 1", x=images, y=parts)
    wrong("arrays have no files", flags="--keep encoded", x=images, y=labels)
    wrong("no images in x, y", x=images[:0], y=labels[:0])
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 cut")
    refused(tmp_path, "a.npz", "cannot read the file .*a.npz")
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images)[:-9])
    refused(tmp_path, folder, "cannot read the file .*mnist")
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    refused(tmp_path, folder, "20 images, but 0 labels.*mnist")
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b cut")
    refused(tmp_path, folder, "cannot read the file|labels")


@pytest.mark.parametrize(
    "flags",
    ["--size 3", "--size -1", "--max-pixels 0", "--separator=", "--split 2,0", "--resize x"],
)
def test_wrong_flags(flags, tmp_path):
    refused(tmp_path, classes(tmp_path / "in", "a", "b"), "--", flags=flags)
