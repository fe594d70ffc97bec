"""Images: how exact the workload `vision` is on Fashion-MNIST and on digits, from fresh and from
trained weights; what a CPU needs for each image, next to the loaders of torchvision and timm; and
for each step, next to loops written by hand.

`--fashion` is a folder with the four files of Fashion-MNIST (github.com/zalandoresearch/fashion-mnist;
Debian's package dataset-fashion-mnist has them). The digits are those of scikit-learn.

    python benchmarks/vision.py [accuracy transfer step loading] --fashion FOLDER [--write]
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
from running import Result, evaluation_of  # noqa: E402

TORCHVISION = ROOT / ".venv-vision/bin/python"  # `make bench PART=vision` makes it
FASHION = "--training.epochs 8"
DIGITS = "--training.epochs 20 --augment.flip false --data.batch_size 64"
PRECISIONS: tuple[str, ...] = ("fp32", "bf16")
SECONDS = 4.0  # of the process, for a round of a loader
SIDES: tuple[int, ...] = (28, 224)
COUNTS = {28: 6000, 224: 600}  # images in a folder
STEPS = 100  # of each side that is timed
TIMM = "tf_efficientnet_lite0"
TENTH = "--data.fraction 0.1 --data.batch_size 64 --training.epochs 6"  # of Fashion-MNIST
REHEARSED = False

Table = dict[str, Any]


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global FASHION, DIGITS, PRECISIONS, SECONDS, SIDES, COUNTS, STEPS, REHEARSED
    FASHION = DIGITS = "--training.max_steps 2 --data.batch_size 32"
    PRECISIONS = ("fp32",)
    SECONDS = 0.1
    SIDES = (28,)
    COUNTS = {28: 300}
    STEPS = 2
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


# ---- transfer ------------------------------------------------------------------------------------


class OursWithTimm(Ours):
    """A project of `vision` that runs with the Python that has timm."""

    def run(self, *words: str) -> Result:
        path = str(self.project / "src")
        finished(TORCHVISION, "-m", "my_training", *words, cwd=self.folder, path=path)
        return Result(0, "", "")

    def metrics(self) -> dict[str, float]:
        self.run("evaluate")
        return evaluation_of(self.folder)["metrics"]


def transfer(fashion: Path, seeds: int, folder: Path) -> Table:
    """Accuracy of a network of timm after equal steps from trained and from fresh weights."""
    columns = ["start", "test accuracy %, mean", "all seeds", "CPU s, median"]
    starts = {f"weights of ImageNet, `{TIMM}`": "", f"fresh weights, `{TIMM}`": "none"}
    if not TORCHVISION.exists():
        return {"columns": columns, "rows": [[name, *unknown(3)] for name in starts]}
    weights = folder / "weights.pth"
    finished(TORCHVISION, str(ROOT / "benchmarks/vision_weights.py"), str(weights), cwd=folder)
    ours = OursWithTimm("vision", folder / "transfer")
    ours.prepare(fashion, "--size 56")
    rows = []
    for name, start in starts.items():
        found = []
        seconds = []
        flags = f"{TENTH} --model.timm {TIMM} --model.timm_weights {start or weights}"
        for seed in range(seeds):
            seconds.append(ours.train(seed, flags))
            found.append(100 * ours.metrics()["accuracy"])
            print(f"{name}, seed {seed}: {found[-1]:.2f} %", file=sys.stderr, flush=True)
        spread = f"{min(found):.2f} to {max(found):.2f}"
        middle = f"{statistics.median(seconds):.0f}"
        rows.append([name, f"{statistics.mean(found):.2f}", spread, middle])
    return {"columns": columns, "rows": rows}


# ---- step ----------------------------------------------------------------------------------------


def step(fashion: Path, folder: Path) -> Table:
    """The table of a training step, next to loops written by hand."""
    ours = Ours("vision", folder / "step")
    ours.prepare(fashion, "")
    (ours.folder / "config.yaml").write_bytes((ours.project / "config.yaml").read_bytes())
    rows = []
    for batch in (32,) if REHEARSED else (128, 256):
        program = str(ROOT / "benchmarks/vision_step.py")
        path = str(ours.project / "src")
        command = (Path(sys.executable), program, str(STEPS), str(batch))
        times = finished(*command, cwd=ours.folder, path=path)
        cells = [f"{batch} images", f"{statistics.median(times['vision']):.1f}"]
        for peer in ("same", "epoch"):
            ratios = [own / bare for own, bare in zip(times["vision"], times[peer], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
        rows.append(cells)
    columns = ["batch", "`vision`, CPU ms a step", "÷ a bare loop", "÷ a bare loop, crops by epoch"]
    return {"columns": columns, "rows": rows}


# ---- loading -------------------------------------------------------------------------------------


def finished(python: Path, *words: str, cwd: Path, path: str = "") -> Any:
    """What a program prints as JSON in its last line, if it does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TRAINING_ROOT": "."}
    command = [str(python), *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    last = done.stdout.strip().rpartition("\n")[2]
    return json.loads(last) if last.startswith("{") else None


def measured(side: str, images: Path, size: int, ours: Ours) -> Any:
    """What `images.py` prints."""
    is_own = side in ("project", "host")
    python = Path(sys.executable) if is_own else TORCHVISION
    path = str(ours.project / "src") if is_own else ""
    words = (str(ROOT / "benchmarks/images.py"), side, str(images), str(size), str(SECONDS))
    return finished(python, *words, cwd=ours.folder, path=path)


def unknown(count: int) -> list[Any]:
    """Cells that this machine cannot measure."""
    return ["" if REHEARSED else None] * count


def ratio_cell(own: list[float], theirs: list[float]) -> list[Any]:
    """Milliseconds of the peer, and how many times as long it takes."""
    ratios = [peer / mine for peer, mine in zip(theirs, own, strict=True)]
    spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
    return [f"{statistics.median(theirs):.3f}", f"{statistics.median(ratios):.1f} ({spread})"]


def loading(rounds: int, folder: Path) -> tuple[Table, Table, str]:
    """The tables of the workload and of other decoders, and the versions of the peers.

    Rounds are in turns.
    """
    rows: list[list[Any]] = []
    others: list[list[Any]] = []
    versions = ""
    has_peer = TORCHVISION.exists()
    for size in SIDES:
        images = folder / f"images{size}"
        write_folder(images, size, COUNTS[size])
        ours = Ours("vision", folder / f"project{size}")
        ours.prepare(images, f"--size {size}")
        (ours.folder / "config.yaml").write_bytes((ours.project / "config.yaml").read_bytes())
        peers = ["torchvision", "timm"]
        if size == 224:
            peers.append("decode_jpeg")  # the small images are PNG
        sides = ["project", "host", *(peers if has_peer else [])]
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side in sides:
                told = measured(side, images, size, ours)
                times[side].append(told["ms"])
                if side == "torchvision":
                    named = told["versions"].items()
                    versions = ", ".join(f"{name} {text}" for name, text in named)
        for side, name in (("project", "all on the CPU"), ("host", "crops and flips on a GPU")):
            own = times[side]
            cells = unknown(2)
            if has_peer:
                cells = ratio_cell(own, times["torchvision"])
            rows.append([f"{size} px, {name}", f"{statistics.median(own):.4f}", *cells])
        for peer in peers[1:]:
            cells = ratio_cell(times["project"], times[peer]) if has_peer else unknown(2)
            others.append([f"{size} px, {peer}", *cells])
    columns = ["images", "`vision`, CPU ms", "ImageFolder + DataLoader, CPU ms", "ratio (rounds)"]
    table = {"columns": columns, "rows": rows}
    columns = ["other loaders", "CPU ms", "÷ `vision`, all on the CPU (rounds)"]
    return table, {"columns": columns, "rows": others}, versions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("accuracy", "transfer", "step", "loading")
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
        if not fashion and set(chosen) != {"loading"}:
            parser.error("--fashion is missing: see the description")
        if "accuracy" in chosen:
            table = accuracy(fashion, arguments.seeds, folder)
            protocol = f"{how}, {arguments.seeds} seeds"
            publish("vision", "accuracy", protocol, table, arguments=arguments)
        if "transfer" in chosen:
            seeds = min(arguments.seeds, 3)
            table = transfer(fashion, seeds, folder)
            publish("vision", "transfer", f"{how}, {seeds} seeds", table, arguments=arguments)
        if "step" in chosen:
            table = step(fashion, folder)
            protocol = f"{how}, {STEPS} steps of each side in turns, medians and quartiles"
            publish("vision", "step", protocol, table, arguments=arguments)
        if "loading" in chosen:
            table, others, versions = loading(arguments.rounds, folder)
            protocol = f"{how}, {arguments.rounds} rounds in turns, medians"
            protocol += f". Peers with {versions}" if versions else ""
            publish("vision", "loading", protocol, table, others, arguments=arguments)


if __name__ == "__main__":
    main()
