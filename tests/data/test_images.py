"""Images of every kind: which pixels, classes and splits `prepare` stores, and what `predict`
writes."""

import csv
import gzip
import io
import os
import struct

import numpy as np
import pyarrow as pa
import pytest
from made_up import prepare
from PIL import Image
from pyarrow import parquet
from rendering import document
from workload import Workload

VISION = Workload("vision")
RANDOM = np.random.default_rng(0)
# Flat tiles: a decoder's filters do not blur what is compared.
TILES = np.kron(RANDOM.integers(0, 255, (6, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8)
RGB = Image.fromarray(TILES)  # 64 × 48
GREY = RGB.convert("L")
SHAPE = (48, 48, 3)


def file(image, kind="PNG", **options):
    """The content of an image file."""
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def pixels(content, shape=SHAPE, resize="crop"):
    return VISION.module("prepare.decoding").decode(content, shape, resize).astype(int)


def picture(seed, size=(12, 12)):
    """The content of a small image, another one for each seed."""
    values = np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)
    return file(Image.fromarray(values))


def tree(folder, files):
    """Write files by path; a number is a seed of an image."""
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(picture(content) if isinstance(content, int) else content)
    return folder


def classes(folder, *names, count=10):
    """A folder with so many images of each class."""
    for number, name in enumerate(names):
        tree(folder, {f"{name}/{n}.png": 1000 * number + n for n in range(count)})
    return folder


def done(folder, path, flags=""):
    """What a `prepare` said that succeeded, and its store."""
    result = prepare(folder, "vision", str(path), flags)
    assert result.code == 0, result.err[-2000:]
    return result.out, VISION.store(folder / "data")


def content_of(store, split="train"):
    """The image, name and class of each row of a split."""
    first, last = store.splits[split]
    arrays = {name: array.rows()[first:last] for name, array in store.arrays.items()}
    names = [os.fsdecode(name) for name in arrays["name"].tolist()]
    return arrays.get("image"), names, arrays["target"]


# ---- decoding ------------------------------------------------------------------------------------


def test_images_of_every_mode_have_the_right_pixels():
    exif = Image.Exif()
    exif[0x112] = 6
    turned = RGB.transpose(Image.Transpose.ROTATE_90)
    palette = RGB.quantize(64)
    half = np.where(np.arange(64) < 32, 255, 0)[None].repeat(48, 0).astype(np.uint8)
    on_white = TILES.copy()
    on_white[:, 32:] = 255
    deep = Image.fromarray(np.asarray(GREY).astype(np.uint16) * 257)
    frames = [RGB, Image.new("RGB", RGB.size), Image.new("RGB", RGB.size, "red")]
    expected = {"rgb": RGB, "grey": GREY.convert("RGB"), "white": Image.fromarray(on_white)}
    expected["one bit"] = GREY.convert("1").convert("RGB")
    smooth = {"quality": 100, "subsampling": 0}
    members = [
        ("rgb", file(RGB, "JPEG", **smooth)),
        ("rgb", file(turned, "JPEG", exif=exif.tobytes(), **smooth)),
        ("rgb", file(turned, exif=exif)),
        ("rgb", file(RGB.convert("CMYK"), "TIFF")),
        ("rgb", file(RGB.convert("CMYK"), "JPEG", **smooth)),
        ("rgb", file(palette)),
        ("rgb", file(palette, "GIF")),
        ("rgb", file(palette, "GIF", save_all=True, append_images=frames[1:])),
        ("rgb", file(RGB, save_all=True, append_images=frames[1:])),
        ("rgb", file(RGB, "WEBP", lossless=True)),
        ("rgb", file(RGB, "BMP")),
        ("white", file(Image.fromarray(np.dstack([TILES, half])))),
        ("white", file(Image.fromarray(np.dstack([TILES, half])).convert("RGBa").convert("RGBA"))),
        ("grey", file(GREY)),
        ("grey", file(deep)),
        ("grey", file(deep, "TIFF")),
        ("grey", b"P5 64 48 65535\n" + (np.asarray(deep).astype(">u2")).tobytes()),
        ("grey", file(GREY.convert("LA"))),
        ("one bit", file(GREY.convert("1"))),
        ("one bit", file(GREY.convert("1"), "TIFF", compression="group4")),
    ]
    for number, (name, content) in enumerate(members):
        wanted = pixels(file(expected[name]))
        error = np.abs(pixels(content) - wanted).max()
        assert error <= (3 if content[:2] == b"\xff\xd8" else 1), (number, name, error)
    shown = pixels(file(palette, transparency=palette.getpixel((20, 20))))
    assert (shown == 255).all(2).sum() >= 64
    grey = pixels(file(RGB), (48, 48, 1))
    assert np.abs(grey[..., 0] - np.asarray(GREY)[:, 8:56]).max() <= 1


def test_images_become_square_as_asked():
    wide = Image.fromarray(np.dstack([np.arange(200)[None].repeat(100, 0)] * 3).astype(np.uint8))
    crop = pixels(file(wide), (50, 50, 3))
    pad = pixels(file(wide), (50, 50, 3), "pad")
    stretch = pixels(file(wide), (50, 50, 3), "stretch")
    assert (crop[25, 0, 0], crop[25, -1, 0]) == (
        pytest.approx(50, abs=2),
        pytest.approx(149, abs=2),
    )
    assert (pad[:12] == 0).all()
    assert (pad[-12:] == 0).all()
    assert pad[25, -1, 0] > 190
    assert stretch[25, 0, 0] < 5
    assert stretch[25, -1, 0] > 190


# ---- where images come from ----------------------------------------------------------------------


def test_a_folder_has_the_classes_of_torchvision(tmp_path):
    """In its order, with nested folders. Hidden ones are left out, and others are counted."""
    root = classes(tmp_path / "in", "10", "2", "b", "Z")
    others = {"b/x/y/deep.png": 1, "top.png": 2, ".hid/x.png": 3, "b/._x.png": b"", "b/a.txt": b""}
    tree(root, {**others, "2/X.JPEG": file(RGB, "JPEG")})
    out, store = done(tmp_path, root)
    assert store.facts["classes"] == ["10", "2", "Z", "b"]
    assert store.facts["shape"] == [12, 12, 3]
    known = {}
    for split in store.splits:
        _images, names, targets = content_of(store, split)
        known |= dict(zip(names, targets.tolist(), strict=True))
    assert len(known) == 42
    assert all(store.facts["classes"][known[name]] == name.split("/")[0] for name in known)
    assert known["b/x/y/deep.png"] == 3
    assert "note: images in no folder of a class: 1, such as top.png" in out
    assert "note: files with other endings than images: 1, such as b/a.txt" in out
    assert "images:     34 train, 4 validation, 4 test" in out
    assert "pixels:     12 × 12 × 3 × 42 = 0.0 MB" in out
    assert "classes:    4: 10 8/1/1, 2 9/1/1, Z 8/1/1, b 9/1/1" in out
    assert out.count("\nimage ") == 3


def test_splits_are_given_or_stratified(tmp_path):
    """By folders, by a column, or by classes; a group stays together."""
    root = tmp_path / "in"
    for split, count in (("Train", 20), ("valid", 4), ("test", 5)):
        classes(root / split, "train", "cat", count=count)
    tree(root, {"extra/cat/a.png": 1, "test/flat.png": 2})
    out, store = done(tmp_path, root)
    assert store.splits == {"train": [0, 40], "validation": [40, 48], "test": [48, 58]}
    assert store.facts["classes"] == ["cat", "train"]
    assert "images in no folder of a class: 2, such as extra/cat/a.png, test/flat.png" in out
    # Without a folder of validation, the training images have some.
    for path in (root / "valid").rglob("*.png"):
        path.unlink()
    _, store = done(tmp_path, root)
    assert store.splits == {"train": [0, 36], "validation": [36, 40], "test": [40, 50]}
    assert store.facts["counts"] == [18, 18]
    # A class `train` among others is no split.
    out, store = done(tmp_path, classes(tmp_path / "vehicles", "train", "bus"))
    assert "note: the folders are classes, also that of a split" in out
    assert store.facts["classes"] == ["bus", "train"]


def table(folder, rows, header="path,label,patient,split"):
    lines = [header, *(",".join(row) for row in rows)]
    (folder / "table.csv").write_text("\n".join(lines))
    return folder / "table.csv"


def test_tables_name_images_labels_groups_and_splits(tmp_path):
    tree(tmp_path, {f"images/{n}.png": n for n in range(60)})
    rows = []
    for number in range(60):
        rows.append((f"{number}.png", f"{number % 3}.0", f"p{number // 6}", "val"))
    root = f"--root {tmp_path / 'images'}"
    header = "path,label,patient"
    path = table(tmp_path, [row[:3] for row in rows], header)
    _, store = done(tmp_path, path, f"{root} --label-column label --group patient")
    assert store.splits == {"train": [0, 48], "validation": [48, 54], "test": [54, 60]}
    assert store.facts["classes"] == ["0", "1", "2"]
    patients = []
    for split in store.splits:
        patients.append({int(name[:-4]) // 6 for name in content_of(store, split)[1]})
    assert len(patients[0] | patients[1] | patients[2]) == sum(map(len, patients)) == 10

    rows = [(*row[:3], "train" if number < 50 else "val") for number, row in enumerate(rows)]
    _, store = done(tmp_path, table(tmp_path, rows), f"{root} --label-column label")
    assert store.splits == {"train": [0, 50], "validation": [50, 60], "test": [60, 60]}
    # A column of splits at the end is not that of the labels.
    last = [(row[0], row[1], row[3]) for row in rows]
    _, store = done(tmp_path, table(tmp_path, last, "path,label,split"), root)
    assert store.facts["classes"] == ["0", "1", "2"]
    # Commas that separate no cells.
    commas = [(f"{row[0]};kind, {row[1][0]}",) for row in rows]
    _, store = done(tmp_path, table(tmp_path, commas, "path;label, kind"), root)
    assert store.facts["classes"] == ["kind, 0", "kind, 1", "kind, 2"]
    # Paths as Windows writes them; the labels by the name of their column.
    more = [(f".\\images\\{row[0]}", row[1], "9") for row in rows]
    out, store = done(tmp_path, table(tmp_path, more, "file,Class,width"))
    assert store.facts["classes"] == ["0", "1", "2"]
    assert "note: columns that are not used: 1, such as width" in out


def test_images_may_have_several_labels(tmp_path):
    tree(tmp_path, {f"{n}.png": n for n in range(30)})
    texts = ["cat;dog", "cat", "", "bird;dog;bird"]
    rows = [(f"{n}.png", texts[n % 4]) for n in range(30)]
    _, store = done(tmp_path, table(tmp_path, rows, "path,labels"), "--separator ;")
    assert store.facts["classes"] == ["bird", "cat", "dog"]
    assert store.facts["multilabel"]
    _, names, targets = content_of(store)
    assert targets.shape == (24, 3)
    assert targets.dtype == np.uint8
    for name, target in zip(names, targets, strict=True):
        labels = texts[int(name[:-4]) % 4].split(";")
        assert target.tolist() == [int(known in labels) for known in ("bird", "cat", "dog")]
    assert store.facts["counts"] == targets.sum(0).tolist()


def test_parquet_has_paths_or_the_contents_of_images(tmp_path):
    """Also as Hugging Face writes them."""
    contents = [picture(n) for n in range(20)]
    tree(tmp_path, {f"{n}.png": content for n, content in enumerate(contents)})
    labels = [n % 2 for n in range(20)]
    kinds = {
        "path": [f"{n}.png" for n in range(20)],
        "bytes": contents,
        "both": [{"bytes": content, "path": None} for content in contents],
        "dict": [{"bytes": None, "path": f"{n}.png"} for n in range(20)],
    }
    seen = []
    for images in kinds.values():
        parquet.write_table(pa.table({"image": images, "label": labels}), tmp_path / "t.parquet")
        _, store = done(tmp_path, "t.parquet")
        images, _, targets = content_of(store)
        seen.append((images.tobytes(), targets.tolist()))
    assert seen == seen[:1] * 4
    lists = [["a"] if n % 2 else ["a", "b"] for n in range(20)]
    parquet.write_table(pa.table({"image": contents, "label": lists}), tmp_path / "t.parquet")
    assert done(tmp_path, "t.parquet")[1].facts["multilabel"]


def idx(values):
    return struct.pack(f">4B{values.ndim}i", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def test_arrays_and_idx_files(tmp_path):
    """Names tell splits; rows stay pixel for pixel."""
    images = RANDOM.integers(0, 255, (40, 10, 14), np.uint8)
    labels = np.arange(40, dtype=np.uint8) % 12
    members = {
        "grey.npz": {"x": images, "y": labels},
        "channel.npz": {"images": images[..., None], "labels": labels[:, None].astype(float)},
        "int.npz": {"data": images.astype(int), "target": labels},
        "onehot.npz": {"X": images, "Y": np.eye(12, dtype=int)[labels]},
    }
    for name, arrays in members.items():
        np.savez(tmp_path / name, **arrays)
        _, store = done(tmp_path, name, "--split 28,12,0")
        rows, names, targets = content_of(store)
        assert store.facts["shape"] == [10, 14, 1]
        assert store.facts["classes"] == [str(n) for n in range(12)]
        for row, place, target in zip(rows, names, targets, strict=True):
            number = int(place.split()[-1]) - 1
            assert (row[..., 0] == images[number]).all()
            assert target == labels[number]

    np.savez(tmp_path / "many.npz", x=images, y=np.stack([labels % 2, labels % 3 == 0], 1))
    assert done(tmp_path, "many.npz", "--split 28,12,0")[1].facts["multilabel"]
    rgb = RANDOM.integers(0, 255, (40, 8, 8, 3), np.uint8)
    named = {"val_images": rgb[:24], "val_labels": labels[:24]}
    np.savez(tmp_path / "named.npz", train_images=rgb, train_labels=labels, **named)
    out, store = done(tmp_path, "named.npz")
    assert store.splits == {"train": [0, 40], "validation": [40, 64], "test": [64, 64]}
    assert "images of validation are copies of images in train: 24, such as" in out

    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, part in (("train", slice(0, 24)), ("t10k", slice(24, 40))):
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[part])))
        (folder / f"{name}-labels.idx1-ubyte").write_bytes(idx(labels[part]))
    _, store = done(tmp_path, folder)
    assert store.splits["test"] == [24, 40]
    rows, names, targets = content_of(store, "test")
    for row, place, target in zip(rows, names, targets, strict=True):
        number = int(place.split()[-1]) - 1
        assert (row[..., 0] == images[24 + number]).all()
        assert target == labels[24 + number]


# ---- encoded images, and predictions -------------------------------------------------------------


def test_encoded_images_are_decoded_alike(tmp_path):
    root = classes(tmp_path / "in", "cat", "dog")
    tree(root, {"cat/large.jpg": file(RGB.resize((600, 400)), "JPEG")})
    _, plain = done(tmp_path, root, "--size 16 --max-pixels 240000")
    images, names, _ = content_of(plain)
    facts = plain.facts
    _, encoded = done(tmp_path, root, "--size 16 --keep encoded")
    assert facts == encoded.facts
    assert "image" not in encoded.arrays
    assert content_of(encoded)[1] == names
    offset = encoded.arrays["offset"].rows()
    contents = encoded.arrays["bytes"].rows()
    assert len(offset) == 22
    for row, (image, name) in enumerate(zip(images, names, strict=True)):
        content = contents[offset[row] : offset[row + 1]].tobytes()
        assert content == (root / name).read_bytes()
        assert (pixels(content, (16, 16, 3)) == image).all()


SMALL = "--model.width 8 --training.max_steps 2 --data.batch_size 8 --monitor.every_steps 1"


def predicted(folder, *words):
    out = VISION.done("predict", *words, "--output", "p.csv", cwd=folder).out
    with open(folder / "p.csv", newline="") as table:
        return out, list(csv.DictReader(table))


def test_predictions_name_files_and_classes(tmp_path):
    root = classes(tmp_path / "in", "cat", "dog")
    _, store = done(tmp_path, root, "--size 8")
    VISION.done("train", *SMALL.split(), cwd=tmp_path)
    _, rows = predicted(tmp_path, "--split", "train")
    assert [row["file"] for row in rows] == content_of(store)[1]
    assert all(row["target"] == row["file"].split("/")[0] for row in rows)
    assert list(rows[0]) == ["file", "target", "prediction", "probability"]
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)
    known = {row["file"]: row["probability"] for row in rows}

    # A folder without classes, with a name that is not UTF-8 and a damaged image.
    flat = tree(tmp_path / "flat", {"a.png": 3, "deep/b.png": 1004, "bad.png": b""})
    (flat / os.fsdecode(b"\xff\n.png")).write_bytes(picture(5))
    result = VISION.run("predict", "--input", "flat", cwd=tmp_path)
    assert "error: cannot read the image" in result.err
    assert "bad.png" in result.err
    out, rows = predicted(tmp_path, "--input", "flat", "--skip-damaged")
    assert "note: left out: cannot read the image" in out
    assert [row["file"] for row in rows] == ["a.png", "\ufffd\n.png", "deep/b.png"]
    assert list(rows[0]) == ["file", "prediction", "probability"]
    for name, same in (("cat/3.png", "a.png"), ("dog/4.png", "deep/b.png")):
        if name in known:
            (row,) = [row for row in rows if row["file"] == same]
            assert float(row["probability"]) == pytest.approx(float(known[name]), abs=1e-6)
    assert predicted(tmp_path, "--input", "flat/a.png")[1][0]["file"] == "a.png"
    (tmp_path / "new.csv").write_text("which\na.png\n")
    assert len(predicted(tmp_path, "--input", "new.csv", "--root", "flat")[1]) == 1
    np.savez(tmp_path / "x.npz", x=RANDOM.integers(0, 255, (3, 20, 30), np.uint8))
    assert len(predicted(tmp_path, "--input", "x.npz")[1]) == 3


def test_predictions_of_several_labels_have_a_column_each(tmp_path):
    tree(tmp_path, {f"{n}.png": n for n in range(20)})
    rows = [(f"{n}.png", "a|b" if n % 2 else "b") for n in range(20)]
    done(tmp_path, table(tmp_path, rows, "path,labels"))
    VISION.done("train", *SMALL.split(), cwd=tmp_path)
    _, rows = predicted(tmp_path)
    columns = ["file", "target", "prediction", "probability of a", "probability of b"]
    assert list(rows[0]) == columns
    assert {row["target"] for row in rows} <= {"b", "a|b"}


# ---- the page ------------------------------------------------------------------------------------


def test_the_page_is_as_good_as_it_says(tmp_path):
    evaluation = VISION.follow("vision", tmp_path)
    assert evaluation["metrics"]["accuracy"] >= 0.97
    with open(tmp_path / "predictions.csv", newline="") as table:
        predictions = [row["prediction"] for row in csv.DictReader(table)]
    assert np.mean([name == "7" for name in predictions]) > 0.97
    page = document("vision").read_text(encoding="utf-8")
    out, _ = done(tmp_path, "digits")
    for line in out.splitlines()[:6]:
        assert line[:60] in page
