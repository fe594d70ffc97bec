"""Images: how exact the workload `vision` is on Fashion-MNIST and on digits, and what a CPU needs
for each image, next to torchvision's ImageFolder with a DataLoader.

`--fashion` is a folder with the four files of Fashion-MNIST (github.com/zalandoresearch/fashion-mnist;
Debian's package dataset-fashion-mnist has them). The digits are those of scikit-learn.

    python benchmarks/vision.py [accuracy loading] --fashion FOLDER [--seeds 5] [--write]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import numpy as np  # noqa: E402
from forecast import Ours  # noqa: E402
from PIL import Image  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402

TORCHVISION = ROOT / ".venv-vision/bin/python"  # `make bench PART=vision` makes it
FASHION = "--training.epochs 8"
DIGITS = "--training.epochs 20 --augment.flip false --data.batch_size 64"
PRECISIONS: tuple[str, ...] = ("fp32", "bf16")
SECONDS = 4.0  # of the process, for a round of a loader
SIDES: tuple[int, ...] = (28, 224)
COUNTS = {28: 6000, 224: 600}  # images in a folder
REHEARSED = False


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global FASHION, DIGITS, PRECISIONS, SECONDS, SIDES, COUNTS, REHEARSED
    FASHION = DIGITS = "--training.max_steps 2 --data.batch_size 32"
    PRECISIONS = ("fp32",)
    SECONDS = 0.1
    SIDES = (28,)
    COUNTS = {28: 300}
    REHEARSED = True


# ---- data ----------------------------------------------------------------------------------------


def made_up_fashion(folder: Path) -> Path:
    """What a rehearsal takes: the same files with few images."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for part, count in (("train", 200), ("t10k", 100)):
        arrays = {
            "images-idx3": random.integers(0, 256, (count, 28, 28)),
            "labels-idx1": np.arange(count) % 10,
        }
        for name, values in arrays.items():
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
            content = header + values.astype(np.uint8).tobytes()
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    return folder


def write_digits(path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(path, x=(digits.images * 15.9).astype(np.uint8), y=digits.target)


def write_folder(folder: Path, side: int, count: int) -> None:
    """Images of two classes: PNG of 28 pixels, or JPEG of 500 × 375 with the detail of photos."""
    random = np.random.default_rng(0)
    size = (28, 28) if side == 28 else (500, 375)
    for number in range(count):
        coarse = random.integers(0, 256, (size[1] // 4 + 1, size[0] // 4 + 1, 3)).astype(np.uint8)
        image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / (f"{number}.png" if side == 28 else f"{number}.jpg"))


# ---- accuracy ------------------------------------------------------------------------------------


def of_seeds(folder: Path, data: Path, flags: str, seeds: int) -> tuple[list[float], list[float]]:
    """Accuracy on the test split in percent, and CPU seconds of the training, of each seed."""
    ours = Ours("vision", folder)
    ours.prepare(data, "")
    accuracy = []
    seconds = []
    for seed in range(seeds):
        seconds.append(ours.train(seed, flags))
        accuracy.append(100 * ours.metrics()["accuracy"])
        print(f"{flags}, seed {seed}: {accuracy[-1]:.2f} %", file=sys.stderr, flush=True)
    return accuracy, seconds


def accuracy(fashion: Path, seeds: int, folder: Path) -> dict[str, Any]:
    """The table of both data sets."""
    digits = folder / "digits.npz"
    write_digits(digits)
    cases = []
    for precision in PRECISIONS:
        flags = f"{FASHION} --training.precision {precision}"
        cases.append((f"Fashion-MNIST, 8 epochs, {precision}", fashion, flags))
    cases.append(("digits, 20 epochs, fp32", digits, DIGITS))
    rows = []
    for number, (name, data, flags) in enumerate(cases):
        found, seconds = of_seeds(folder / f"run{number}", data, flags, seeds)
        spread = f"{min(found):.2f} to {max(found):.2f}"
        cpu = f"{statistics.median(seconds):.0f}"
        rows.append([name, f"{statistics.mean(found):.2f}", spread, cpu])
    columns = ["data", "test accuracy %, mean", "all seeds", "CPU s, median"]
    return {"columns": columns, "rows": rows}


# ---- loading -------------------------------------------------------------------------------------


def measured(python: str, side: str, folder: Path, size: int, cwd: Path, path: str = "") -> Any:
    """What `images.py` prints."""
    command = [python, str(ROOT / "benchmarks/images.py"), side, str(folder), str(size)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [*command, str(SECONDS)], cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def loading(rounds: int, folder: Path) -> tuple[dict[str, Any], str]:
    """The table of milliseconds, and the versions of the peer. Rounds are in turns."""
    rows = []
    versions = ""
    has_peer = TORCHVISION.exists()
    for side in SIDES:
        images = folder / f"images{side}"
        write_folder(images, side, COUNTS[side])
        ours = Ours("vision", folder / f"project{side}")
        ours.prepare(images, f"--size {side}")
        (ours.folder / "config.yaml").write_bytes((ours.project / "config.yaml").read_bytes())
        own = []
        theirs = []
        for _ in range(rounds):
            if has_peer:
                told = measured(str(TORCHVISION), "torchvision", images, side, folder)
                theirs.append(told["ms"])
                versions = ", ".join(f"{name} {text}" for name, text in told["versions"].items())
            source = str(ours.project / "src")
            told = measured(sys.executable, "project", images, side, ours.folder, source)
            own.append(told["ms"])
        name = f"{side} px, crops and flips on the CPU"
        cells: list[Any] = [f"{statistics.median(own):.4f}", None, None]
        if has_peer:
            ratios = [peer / mine for peer, mine in zip(theirs, own, strict=True)]
            spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
            cells[1:] = [
                f"{statistics.median(theirs):.3f}",
                f"{statistics.median(ratios):.1f} ({spread})",
            ]
        elif REHEARSED:
            cells[1:] = ["", ""]
        rows.append([name, *cells])
    columns = ["images", "`vision`, CPU ms", "ImageFolder + DataLoader, CPU ms", "ratio (rounds)"]
    return {"columns": columns, "rows": rows}, versions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("accuracy", "loading")
    parser.add_argument("part", nargs="*", choices=[[], *parts], help="(default: all)")
    parser.add_argument("--fashion", type=Path, metavar="FOLDER", help="Fashion-MNIST's files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = command_line(parser, seeds=1, rounds=1)
    if arguments.rehearse:
        shrink()
    chosen = arguments.part or parts
    how = f"{machine('pillow')}. One thread"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fashion = made_up_fashion(folder / "fashion") if arguments.rehearse else arguments.fashion
        if "accuracy" in chosen:
            if not fashion:
                parser.error("--fashion is missing: see the description")
            table = accuracy(fashion, arguments.seeds, folder)
            protocol = f"{how}, {arguments.seeds} seeds"
            publish("vision", "accuracy", protocol, table, arguments=arguments)
        if "loading" in chosen:
            table, versions = loading(arguments.rounds, folder)
            protocol = f"{how}, {arguments.rounds} rounds in turns, medians"
            protocol += f". torchvision with {versions}" if versions else ""
            publish("vision", "loading", protocol, table, arguments=arguments)


if __name__ == "__main__":
    main()
