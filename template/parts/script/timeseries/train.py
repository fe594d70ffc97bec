"""Trains a forecaster for a series in a CSV file. One file: read it, paste it anywhere, change it.

    python train.py                                # a synthetic series, until you give yours
    python train.py --data series.csv --epochs 5   # each run is a folder in runs/
    python train.py --resume                       # goes on with the newest, bit for bit, also after a kill

Settings, data, model, what makes it fast, checkpoint, loop: from top to bottom. On the same data and settings
the losses are those of the template's `layout: package`, to the last bit.

Shapes: `B` windows in a batch, `T` rows of history, `H` rows of horizon, `C` columns, `G` target columns.
"""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

# ---- settings: defaults < the run that goes on < environment < flags ----------------------------


def given(default: Any, text: str, least: Any = None, below: float = math.inf, among: Any = None) -> Any:
    """A setting: its default, what `--help` says, the range or the words that it takes."""
    return field(default=default, metadata={"text": text, "range": (least, below), "among": among})


@dataclass(frozen=True)
class Settings:
    data: str = given("", "CSV, also .gz: a header line, times in the first column; empty: synthetic")
    targets: str = given("", "columns to forecast, with commas between; empty: all")
    history: int = given(96, "rows that a forecast looks at", 1)
    horizon: int = given(24, "rows to forecast", 1)
    split: str = given("0.7,0.15,0.15", "train, validation, test, by time: shares, or numbers of rows")
    batch_size: int = given(64, "windows in a micro-batch; larger fills a GPU better", 1)
    width: int = given(64, "hidden units of the LSTM", 1)
    depth: int = given(1, "layers of the LSTM", 1)
    dropout: float = given(0.2, "share of the units dropped before the last layer", 0, 1)
    learning_rate: float = given(1e-3, "peak of the schedule", 0, 1)
    weight_decay: float = given(0.01, "pulls matrices towards zero, biases not", 0, 1)
    warmup_steps: int = given(-1, "steps up to the peak; -1 is 100, or a tenth of a shorter run", -1)
    final_factor: float = given(0.1, "last learning rate as a share of the peak", 0, 1.001)
    precision: str = given("auto", "auto: what the card has", among=["auto", "fp32", "tf32", "fp16", "bf16"])
    epochs: int = given(10, "passes over the training windows", 1)
    max_steps: int = given(0, "length of the run in steps instead; 0 goes by epochs", 0)
    gradient_accumulation_steps: int = given(1, "micro-batches to a step", 1)
    gradient_clip: float = given(1.0, "largest norm of all gradients; 0 is off", 0)
    evaluate_every: int = given(0, "steps between two evaluations; 0 is the end of each epoch", 0)
    save_every: int = given(0, "steps between two checkpoints; 0 is the end of each epoch", 0)
    log_every: int = given(50, "steps between two lines; reading the loss waits for the GPU", 1)
    seed: int = given(42, "of every random generator", 0, 2**32)
    deterministic: int = given(0, "1: only operations that repeat bit for bit; some per cent slower", 0, 2)


# Names of the environment, and the setting that each stands for. No process reads ahead: some decide nothing.
ENVIRONMENT = {"SEED": "seed", "DETERMINISTIC": "deterministic", "USE_AMP": "precision"}
SWITCHES = {"USE_AMP=0": "--precision=fp32", "USE_AMP=1": "--precision=auto"}
UNUSED = ("NUM_WORKERS", "PIN_MEMORY", "PREFETCH_FACTOR", "PERSISTENT_WORKERS", "ALLOW_UNSAFE_DATALOADER")
PACKAGE = "the package has more: copier update --defaults -r :current: -d layout=package"


class Mistake(Exception):
    """What a person can mend: one line, and exit code 2."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message}: see --help; {PACKAGE}")


def read_settings(words: list[str]) -> tuple[Settings, Path, bool]:
    """The settings, the run's folder, and whether it goes on. Raises `Mistake`."""
    parser = Parser(usage=__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--resume", nargs="?", const="", metavar="RUN", help="the newest run, or RUN")
    types: dict[Any, Any] = {"int": int, "float": float, "str": str}
    for each in fields(Settings):
        about: dict[str, Any] = {"help": each.metadata["text"], "metavar": str(each.default)}
        parser.add_argument(f"--{each.name}", type=types[each.type], choices=each.metadata["among"], **about)
    for name in filter(os.environ.get, (*ENVIRONMENT, *UNUSED)):  # a flag comes later, and is stronger
        text = os.environ[name]
        if name in UNUSED:
            print(f"note: {name} has no effect: no process reads ahead of the step")
        elif flag := SWITCHES.get(f"{name}={text}", f"--{ENVIRONMENT[name]}={text}"):
            words = [flag, *words]
    values = vars(parser.parse_args(words))
    for each in fields(Settings):
        (least, below), value = each.metadata["range"], values.get(each.name, each.default)
        if least is not None and not least <= value < below:
            parser.error(f"argument --{each.name}: {value} is not from {least} on and below {below}")
    if (resume := values.pop("resume", None)) is None:
        run = Path("runs", time.strftime("%Y%m%d-%H%M%S-") + str(time.time_ns())[10:13])
        return Settings(**values), run, False
    run = Path(resume) if resume else max(Path("runs").glob("*"), default=Path("runs"))
    if not (run / "settings.json").exists():
        raise Mistake(f"no run to go on with: --resume: {run} has no settings.json")
    settings = Settings(**json.loads((run / "settings.json").read_text()))
    for name, value in values.items():
        if value != (old := getattr(settings, name)):
            raise Mistake(f"the run began with {name} {old}: --resume: {value} makes another run of it")
    return settings, run, True


# ---- data ---------------------------------------------------------------------------------------

Batch = dict[str, Tensor]
Output = tuple[Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]  # loss, targets, metrics: (sum, count)


class Data:
    """The series, whole on the device, and the windows of each split.

    A window belongs to the split that holds all its targets. Training windows have their history in the
    training rows as well, and the scaler sees those alone: nothing of the future leaks into training.
    """

    def __init__(self, settings: Settings, device: torch.device):
        names, values = read_csv(settings) if settings.data else synthesize()
        self.history, self.horizon, self.device = settings.history, settings.horizon, device
        wanted = [name.strip() for name in settings.targets.split(",")] if settings.targets else names
        if lost := [name for name in wanted if name not in names]:
            raise Mistake(f"no column '{lost[0]}': --targets: there are {', '.join(names)}")
        self.targets = [names.index(name) for name in wanted]
        splits = split_by_time(settings.split, len(values))
        self.first = {name: max(first, self.history) for name, (first, _) in splits.items()}  # target row
        self.count = {name: max(splits[name][1] - self.horizon + 1 - self.first[name], 0) for name in splits}
        if not (self.count["train"] and self.count["validation"]):
            raise Mistake(f"no window fits: --split {settings.split}: more rows, or a smaller --history")
        known = values[: splits["train"][1]].astype(np.float64)
        constant = (known.max(0) == known.min(0)) | (known.std(0) < np.finfo(np.float32).tiny)
        self.mean = np.where(constant, known[0], known.mean(0)).tolist()
        self.std = np.where(constant, 1.0, known.std(0)).tolist()
        self.weight = self.horizon * len(self.targets)  # targets of a sample
        self.fingerprint = hashlib.sha256(values.tobytes()).hexdigest()
        self.rows = torch.from_numpy(values).to(device)  # (N, C): no copy, no worker, no wait in the loop

    def batches(self, split: str, *place: int) -> Iterator[tuple[np.ndarray, Batch]]:
        for numbers in order(self.count[split], *place):
            yield numbers, self.batch(split, numbers)

    def batch(self, split: str, numbers: np.ndarray) -> Batch:
        """Windows by number, in original units; −1 fills a batch up and counts for nothing."""
        present, width = numbers >= 0, self.history + self.horizon
        starts = np.where(present, numbers + self.first[split] - self.history, 0)
        rows, columns = self.rows.shape
        windows = self.rows.as_strided((rows - width + 1, width, columns), (columns, columns, 1))  # a view
        both = windows.index_select(0, torch.from_numpy(starts).to(self.device, non_blocking=True))
        history, target = both[:, : self.history], both[:, self.history :, self.targets]
        present_there = torch.from_numpy(present).to(self.device, non_blocking=True)
        return {"rows": history, "target": target, "present": present_there}  # (B, T, C), (B, H, G), (B,)


def read_rows(path: Path) -> list[list[str]]:
    """Stripped cells of a CSV file, the header first."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise Mistake(f"cannot read the file ({error}): {path}: --data is a CSV file in UTF-8") from None
    odd = [number for number, row in enumerate(rows, 1) if len(row) != len(rows[0])]
    if len(rows) < 2 or odd:
        raise Mistake(f"not as many cells as the header: {path}, row {(odd or [2])[0]}: mend it")
    return rows


def read_csv(settings: Settings) -> tuple[list[str], np.ndarray]:
    """Names of the columns and (N, C) float32, oldest first. Raises `Mistake` with the row."""
    (header, *table), path = read_rows(Path(settings.data)), settings.data
    if len(header) < 2:
        raise Mistake(f"no column beside the time: {path}: columns with commas between; {PACKAGE}")
    values, before = np.empty((len(table), len(header) - 1)), -math.inf
    for row, (when, *cells) in enumerate(table):
        try:
            now = int(when) if when.isdecimal() else int(np.datetime64(when, "s").astype(np.int64))
            values[row] = [float(cell) for cell in cells]
            if now <= before or not (np.abs(values[row]) < 3.4e38).all():
                raise ValueError("the time does not go on" if now <= before else "not a finite number")
        except ValueError as error:
            raise Mistake(f"{error}: {path}, row {row + 2}: mend it; {PACKAGE}") from None
        before = now
    return header[1:], values.astype(np.float32)


def split_by_time(split: str, count: int) -> dict[str, tuple[int, int]]:
    """First and last + 1 row of each split."""
    try:
        parts = [float(part) for part in split.split(",")]
        shares = abs(sum(parts) - 1) < 1e-6
        if len(parts) != 3 or min(parts) < 0 or not (shares or sum(parts) <= count):
            raise ValueError
    except ValueError:
        raise Mistake(f"'{split}' splits nothing: --split, {count} rows: such as 0.7,0.15,0.15") from None
    marks = [round(sum(parts[:place]) * (count if shares else 1)) for place in range(4)]
    return {name: (marks[at], marks[at + 1]) for at, name in enumerate(("train", "validation", "test"))}


def synthesize() -> tuple[list[str], np.ndarray]:
    """20,000 hours of two made-up columns, always the same: days, weeks and noise."""
    day, noise = 2 * np.pi / 24 * np.arange(20_000), np.random.default_rng(22).standard_normal((2, 20_000))
    columns = [50 + 8 * np.sin(day) + 4 * np.sin(day / 7) + noise[0], 30 + 9 * np.sin(2 * day) + 2 * noise[1]]
    return ["load", "price"], np.stack(columns, 1).astype(np.float32)


# ---- model --------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """The LSTM. Under bf16 torch's autocast runs cuDNN's in float16, whatever else it is set to.

    Not compiled: Dynamo breaks the graph at cuDNN's RNNs, and nothing is faster.
    """

    def __init__(self, columns: int, width: int, depth: int):
        super().__init__()
        self.lstm = nn.LSTM(columns, width, depth, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to the last output (B, width)."""
        with torch.autocast("cpu", enabled=False):  # few CPUs have an LSTM in half precision
            return self.lstm(x.float())[0][:, -1].float()


class Model(nn.Module):
    """History to all horizons at once. The scaler is part of it: batches hold original units."""

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        self.targets, self.horizon, self.dropout = data.targets, data.horizon, settings.dropout
        self.mean_rows, self.std_rows = (nn.Buffer(torch.tensor(part)) for part in (data.mean, data.std))
        self.target_mean = nn.Buffer(self.mean_rows[None, data.targets])  # (1, G)
        self.target_std = nn.Buffer(self.std_rows[None, data.targets])
        self.encoders = nn.ModuleList([Encoder(len(data.mean), settings.width, settings.depth)])
        self.head = nn.Linear(settings.width, self.horizon * len(data.targets))
        self.line = nn.Linear(data.history, self.horizon)

    def forecast(self, rows: Tensor) -> Tensor:
        """(B, T, C) in original units to (B, H, G) float32 in standard deviations."""
        x = (rows - self.mean_rows) / self.std_rows
        hidden = self.encoders[0](x - x[:, -1:])  # the change against the last known value
        hidden = functional.dropout(hidden, self.dropout, self.training)
        forecast = self.head(hidden).float().unflatten(1, (self.horizon, len(self.targets)))
        series = x[:, :, self.targets]  # (B, T, G)
        last = series[:, -1:]
        change = self.line((series - last).transpose(1, 2))  # (B, G, H): one linear map for all targets
        return forecast + change.float().transpose(1, 2) + last

    def forward(self, batch: Batch) -> Output:
        """The mean loss, of how many targets, and for evaluation sums by name."""
        present = batch["present"]
        weight = present.sum(dtype=torch.float32) * (self.horizon * len(self.targets))
        target = (batch["target"] - self.target_mean) / self.target_std
        error = (self.forecast(batch["rows"]) - target) * present[:, None, None]
        squares = error.square()
        loss = squares.sum() / weight.clamp(min=1)
        sums = {} if self.training else {"mse": squares.sum(), "mae": error.abs().sum()}
        return loss, weight, {name: (value, weight) for name, value in sums.items()}


# ---- order: which sample when, a pure function of seed and epoch ---------------------------------


def permuted(places: np.ndarray, count: int, *seed: int) -> np.ndarray:
    """(n,) int64 places to their values in a permutation of range(count), computed where it is asked for.

    A Feistel network (Luby, Rackoff 1988) over the bits of the largest number: half of them change by a
    hash of the other half, in turns; a value beyond `count` goes through it again. No epoch is held.
    """
    bits = max(count - 1, 1).bit_length()
    widths = bits - bits // 2, bits // 2  # low, high
    keys = np.random.SeedSequence(seed).generate_state(max(6, 64 // bits))
    values, outside = places.copy(), np.arange(len(places))
    while outside.size:
        walked = values[outside]
        halves = [part.astype(np.uint32) for part in (walked & ((1 << widths[0]) - 1), walked >> widths[0])]
        for number, key in enumerate(keys):
            turn = number % 2
            mixed = (halves[1 - turn] + key) * np.uint32(0x7FEB352D)  # lowbias32 (Wellons 2018)
            mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x846CA68B)
            halves[turn] ^= mixed >> np.uint32(32 - widths[turn])
        values[outside] = (halves[1].astype(np.int64) << widths[0]) | halves[0]
        outside = outside[values[outside] >= count]
    return values


def order(count: int, size: int, start: int = 0, *seed: int) -> Iterator[np.ndarray]:
    """(B,) sample numbers of each batch from `start` on; −1 fills up. seed: and epoch, to shuffle."""
    total, some = -(-count // size), max(1, 65536 // size)  # batches computed at once
    for first in range(start, total, some):
        places = np.arange(first * size, min(first + some, total) * size)
        places[places >= count] = -1
        if seed:
            places[places >= 0] = permuted(places[places >= 0], count, *seed)
        yield from places.reshape(-1, size)


# ---- what makes it fast -------------------------------------------------------------------------


class Precision:
    """Number format and the guarded step. `--precision fp32` turns all of it off.

    tf32: products on tensor cores with 3 digits. bf16: half the memory and more speed, fp32's range. fp16:
    the same before sm 8.0; gradients are scaled, and a step that overflows is skipped, on the device.
    """

    def __init__(self, name: str, device: torch.device, targets: int):
        capability = torch.cuda.get_device_capability() if device.type == "cuda" else (0, 0)
        best = "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"
        if device.type == "cuda" and name == "bf16" != best:  # is_bf16_supported() counts slow emulation
            raise Mistake(f"sm {capability} has no bf16: --precision bf16: take {best}")
        self.name = best if name == "auto" else "fp32" if name == "tf32" and capability < (8, 0) else name
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.name)
        self.autocast = torch.autocast(device.type, dtype, enabled=dtype is not None)  # weights stay float32
        # Gradients are sums over all targets: a first scale that fits them spares the search for it.
        scale = 65536.0 / 2 ** math.ceil(math.log2(targets))
        self.scaler = torch.amp.GradScaler(device.type, scale, enabled=self.name == "fp16")
        # These two and no more: mixed with the newer `fp32_precision` flags, reading them raises.
        tf32 = self.name == "tf32" or dtype is not None
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32  # its RNNs and convolutions use it even in "highest"

    def step(self, optimizer: torch.optim.Optimizer, clip: float, targets: Tensor) -> Tensor:
        """Unscales, divides by the targets, clips, steps, clears; no host sync. Returns the norm."""
        self.scaler.unscale_(optimizer)
        gradients = [x.grad for part in optimizer.param_groups for x in part["params"] if x.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        # One pass over the gradients for both: g / targets, or g / norm * clip where that is smaller.
        torch._foreach_div_(gradients, torch.maximum(targets, norm / clip) if clip else targets)
        self.scaler.step(optimizer)  # the fused kernel looks at fp16's overflow itself
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return norm / targets


def prepare_process(settings: Settings) -> None:
    """Memory in segments that grow, so that odd shapes do not fragment it; determinism; seeds."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):  # the new and the old name
        os.environ.setdefault(name, "expandable_segments:True")
    if settings.deterministic:  # strict: an operation without a deterministic form raises
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(settings.deterministic == 1)
    random.seed(settings.seed)
    np.random.seed(settings.seed)
    torch.manual_seed(settings.seed)  # all CUDA devices too


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """AdamW in one fused kernel for all weights; weight decay on matrices only."""
    decay = {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": settings.weight_decay}
    others = {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}
    return torch.optim.AdamW([decay, others], lr=settings.learning_rate, fused=True)


def learning_rate(settings: Settings, step: int, total: int) -> float:
    """Of step `step` (from 0): a linear warm-up, then a cosine. A formula has no state to save."""
    warmup = settings.warmup_steps if settings.warmup_steps >= 0 else min(100, total // 10)
    if step < warmup:
        return settings.learning_rate * ((step + 1) / warmup)
    passed, final = min((step - warmup) / max(total - warmup, 1), 1.0), settings.final_factor
    return settings.learning_rate * (final + (1.0 - final) * (1 + math.cos(math.pi * passed)) / 2)


# ---- checkpoint: whole or absent, checked before it is used --------------------------------------


def random_state() -> dict[str, Any]:
    """Of every generator, in types that `weights_only` reads."""
    numbers: Any = [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": numbers, "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sync(path: Path) -> None:
    """Makes a closed file, or a rename inside a folder, survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save(folder: Path, model: nn.Module, state: dict[str, Any]) -> None:
    """Writes a hidden folder and renames it; keeps the two newest and the best. The package reads it too."""
    step, partial, best = f"step-{state['step']:08d}", folder / ".saving", f"step-{state['best_step']:08d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(model.state_dict(), partial / "model.safetensors")
    torch.save({**state, "random": random_state()}, partial / "state.pt")
    digests = {path.name: sha256(path.read_bytes()) for path in partial.iterdir()}
    manifest = {"format": 2, "step": state["step"], "facts": {"data": state["data"]}, "rules": {"order": 2}}
    manifest |= {"aliases": {}, "shards": {}, "sha256": digests}
    manifest |= {"seal": sha256(json.dumps(manifest, sort_keys=True).encode())}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=1))
    for path in (*partial.iterdir(), partial):
        sync(path)
    shutil.rmtree(folder / step, ignore_errors=True)  # a damaged one that was passed over
    os.replace(partial, folder / step)
    (folder / ".best").write_text(json.dumps({"checkpoint": best, "loss": state["best_loss"]}))
    os.replace(folder / ".best", folder / "best.json")
    sync(folder)
    older = sorted(path for path in folder.glob("step-*") if path.name <= step)[:-2]
    for path in {*older} - {folder / best}:
        shutil.rmtree(path, ignore_errors=True)  # killed in here, its hashes tell


def valid(path: Path) -> bool:
    """Whether a checkpoint is as it was saved: one flipped bit would load silently."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        seal, digests = manifest.pop("seal"), manifest["sha256"]
        whole = all(sha256((path / name).read_bytes()) == digests[name] for name in digests)
        return whole and seal == sha256(json.dumps(manifest, sort_keys=True).encode())
    except (OSError, ValueError, KeyError):
        return False


def newest(folder: Path) -> Path | None:
    """The newest valid checkpoint. Raises `Mistake` where there are some and none is valid."""
    found = sorted(folder.glob("step-*"), reverse=True)
    whole = next(filter(valid, found), None)
    if found and whole is None:
        raise Mistake(f"no valid checkpoint: {folder}: restore one, or start a new run")
    if found and whole != found[0]:
        print(f"note: {found[0]} is damaged: the newest that is whole is {whole}")
    return whole


# ---- loop ---------------------------------------------------------------------------------------


class Records:
    """metrics.jsonl, a row a line; rows behind `step`, of a run that died later, are dropped."""

    def __init__(self, run: Path, step: int):
        self.path = run / "metrics.jsonl"
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        self.rows = [row for row in rows if row["step"] <= step and row.get("split") != "test"]
        self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def add(self, **row: Any) -> None:
        # JSON has neither nan nor infinity, which the norm of a step is that overflows.
        self.rows.append(row := {name: x if x == x != math.inf else None for name, x in row.items()})
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
        texts = (f"{name} {x:.5g}" if isinstance(x, float) else f"{name} {x}" for name, x in row.items())
        print("  ".join(texts), flush=True)

    def draw(self) -> None:
        """curves.png beside it."""
        axes = (figure := Figure(figsize=(8, 5))).subplots()
        for split in ("train", "validation"):
            rows = [row for row in self.rows if row.get("split", "train") == split]
            axes.plot([row["step"] for row in rows], [row["loss"] for row in rows], label=f"{split} loss")
        axes.legend()
        figure.savefig(self.path.with_name("curves.png"))


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, split: str, size: int, precision: Precision) -> dict[str, float]:
    """Metrics of a whole split: sums and counts in float64, one host sync at the end, no random number."""
    totals: dict[str, Any] = {}
    model.eval()
    for _, batch in data.batches(split, size):
        with precision.autocast:
            loss, targets, metrics = model(batch)
        for name, (total, count) in {"loss": (loss * targets, targets), **metrics}.items():
            totals[name] = totals.get(name, 0.0) + torch.stack([total.double(), count.double()])
    model.train()
    sums = torch.stack(list(totals.values())).tolist()
    return {name: total / max(count, 1.0) for name, (total, count) in zip(totals, sums, strict=True)}


def check(recent: list[Any]) -> None:
    """Ends a run whose loss went bad since the last row, and names the samples (host sync)."""
    losses = torch.stack([loss for _, loss, *_ in recent]).tolist() if recent else []
    for (step, *_, samples), loss in zip(recent, losses, strict=True):
        if not math.isfinite(loss):
            numbers = samples[samples >= 0][:64].tolist()
            raise Mistake(f"the loss of step {step} is {loss}: training samples {numbers}: look at them")


def train(settings: Settings, run: Path, resumed: bool, stop: list[int]) -> None:
    """The whole run, to its end or to a signal, whose number `stop` gets."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepare_process(settings)
    data = Data(settings, device)
    count, size, accumulation = data.count["train"], settings.batch_size, settings.gradient_accumulation_steps
    precision = Precision(settings.precision, device, size * data.weight)
    model = Model(settings, data).to(device)
    optimizer = make_optimizer(model, settings)
    length = -(-count // size)  # micro-batches of an epoch; its last group may be a short one
    total = settings.max_steps or settings.epochs * -(-length // accumulation)

    folder = run / "checkpoints"
    state: dict[str, Any] = {"step": 0, "epoch": 0, "batch": 0, "best_loss": math.inf, "best_step": 0}
    state |= {"data": data.fingerprint, "recent": []}
    if resumed and (path := newest(folder)):
        state |= torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        if state["data"] != data.fingerprint:
            raise Mistake(f"the run was trained on other data: --resume {run}: restore the file of --data")
        model.load_state_dict(load_file(path / "model.safetensors"))
        optimizer.load_state_dict(state.pop("optimizer"))
        precision.scaler.load_state_dict(state.pop("scaler"))
        set_random_state(state.pop("random"))
    run.mkdir(parents=True, exist_ok=True)
    (run / "settings.json").write_text(json.dumps(asdict(settings), indent=1) + "\n")
    records = Records(run, state["step"])
    print(f"{run}: {device}, {precision.name}, step {state['step']} of {total}")
    gc.collect()
    gc.freeze()  # the collector need not walk over what lives as long as the run

    # (step, loss, targets, samples) of each micro-batch since the last row, on the device.
    state["recent"] = recent = [(step, *(x.to(device) for x in rest)) for step, *rest in state["recent"]]
    since, steps, ending = time.perf_counter(), 0, state["step"] >= total
    while not ending:
        epoch, first = state["epoch"], state["batch"]
        weights: list[Tensor] = []  # targets of the open step's micro-batches
        batches = data.batches("train", size, first, settings.seed, epoch)
        for number, (samples, batch) in enumerate(batches, start=first + 1):
            with precision.autocast:
                loss, targets, _ = model(batch)
            # loss × targets: a step of unequal micro-batches is one mean over all of its targets.
            loss.backward(gradient=precision.scaler.scale(targets))
            recent.append((state["step"] + 1, loss.detach(), targets, torch.from_numpy(samples)))
            weights.append(targets)
            ended = number == length
            if number % accumulation and not ended:
                continue
            rate = learning_rate(settings, state["step"], total)
            for trained in optimizer.param_groups:
                trained["lr"] = rate
            # A step that an epoch has too few samples for moves the weights by its share.
            share = (min(number * size, count) - state["batch"] * size) / min(accumulation * size, count)
            whole = torch.stack(weights).sum().clamp(min=1) / share
            norm = precision.step(optimizer, settings.gradient_clip, whole)
            step, steps = state["step"] + 1, steps + 1
            state |= {"step": step, "epoch": epoch + ended, "batch": 0 if ended else number}
            weights = []

            last, early = step == total, step in (1, 2, 5, 10, 20) and step < settings.log_every
            if last or early or step % settings.log_every == 0:
                means, sizes = (torch.stack(parts) for parts in list(zip(*recent, strict=True))[1:3])
                mean = (means * sizes).sum() / sizes.sum().clamp(min=1)  # over the steps since the last row
                seen, size_of = torch.stack([mean, norm]).tolist()  # the only host sync
                check(recent)
                recent.clear()
                seconds = (time.perf_counter() - since) / steps
                row = {"epoch": epoch + 1, "loss": seen, "learning_rate": rate, "gradient_norm": size_of}
                samples_per_second = count / length * accumulation / seconds
                records.add(step=step, **row, samples_per_second=samples_per_second, step_ms=1000 * seconds)
                since, steps = time.perf_counter(), 0
            begun, better = time.perf_counter(), False
            if last or due(settings.evaluate_every, step, ended):
                metrics = evaluate(model, data, "validation", size, precision)
                if better := metrics["loss"] < state["best_loss"]:
                    state |= {"best_loss": metrics["loss"], "best_step": step}
                records.add(step=step, split="validation", **metrics)
            # Asked once: a signal that comes later is for the next step, which is saved in its turn.
            if (ending := last or bool(stop)) or better or due(settings.save_every, step, ended):
                check(recent)
                parts = {"optimizer": optimizer.state_dict(), "scaler": precision.scaler.state_dict()}
                save(folder, model, state | parts)
            since += time.perf_counter() - begun
            if ending:
                break
    records.draw()
    best = folder / f"step-{state['best_step']:08d}"
    if state["step"] == total and data.count["test"] and valid(best):
        model.load_state_dict(load_file(best / "model.safetensors"))
        records.add(step=state["best_step"], split="test", **evaluate(model, data, "test", size, precision))


def due(every: int, step: int, ended: bool) -> bool:
    return step % every == 0 if every else ended


def main(words: list[str] | None = None) -> int:
    """Exit code 0; 2 and one line for a mistake; 128 + the signal's number, after saving, for a signal."""
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.append(number))
    try:
        train(*read_settings(sys.argv[1:] if words is None else words), stop)
        return 128 + stop[0] if stop else 0
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
