"""Train a network on the rows of a CSV file. One file to read, copy and change.

    python train.py                                                     # train on synthetic rows
    python train.py --data table.csv --target price --task regression   # train on your table
    python train.py --resume                       # continue the newest run, bit for bit

Each run is a folder in runs/. This file is ordered from top to bottom: settings, data, model,
precision and optimizer, checkpoints, metrics, training.
Shapes: B rows in a batch, F columns of numbers, C columns of categories, K classes.
"""

import argparse
import csv
import difflib
import fcntl
import gc
import gzip
import hashlib
import inspect
import io
import json
import math
import os
import random
import re
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

# -----------------------------------------------------------------------------
# Settings. Each one is a flag, and --help prints its comment. Two lists limit the numbers.

AT_LEAST_ONE = [
    "prefetch_factor",
    "width",
    "depth",
    "category_width",
    "batch_size",
    "epochs",
    "gradient_accumulation_steps",
    "log_every",
]
AT_MOST_ONE = [
    "dropout",
    "learning_rate",
    "weight_decay",
    "final_factor",
    "deterministic",
    "pin_memory",
    "persistent_workers",
]


@dataclass
class Settings:
    # data
    data: str = ""  # CSV or .csv.gz file with a header; if empty, synthetic rows
    target: str = ""  # column to predict; if empty, the last column
    task: str = "regression"  # regression (predict a number) or classification
    category: str = ""  # columns whose numbers are names, separated by commas
    split: str = "0.7,0.15,0.15"  # fractions for training, validation and test, after a shuffle
    num_workers: int = 0  # worker processes; use them if loading a sample takes work
    pin_memory: int = 1  # 1: pinned memory, which is copied to the GPU asynchronously; 0: off
    prefetch_factor: int = 2  # batches that each worker reads ahead
    persistent_workers: int = 1  # 1: keep workers between epochs; 0: start new ones
    # model
    width: int = 64  # units of each hidden layer
    depth: int = 3  # number of hidden layers; all but the first are residual
    dropout: float = 0.1  # fraction of the units of a block that dropout zeroes
    category_width: int = 8  # size of the embedding vector of a category
    # optimizer
    batch_size: int = 32  # rows in a micro-batch; 1024 fills a GPU, with a higher learning rate
    gradient_accumulation_steps: int = 1  # micro-batches per step
    learning_rate: float = 1e-3  # peak learning rate of the schedule
    weight_decay: float = 0.01  # weight decay of matrices; biases have none
    warmup_steps: int = -1  # steps of the linear warm-up; -1: 100, or a tenth of a shorter run
    final_factor: float = 0.1  # final learning rate as a fraction of the peak
    gradient_clip: float = 1.0  # maximum norm of the gradients; 0: no clipping
    precision: str = "auto"  # auto, fp32, tf32, fp16 or bf16; auto: the fastest one of the GPU
    compile: str = "auto"  # on, off or auto; auto: on for GPUs with sm 8.0 or later
    # run
    epochs: int = 10  # passes over the training rows
    max_steps: int = 0  # length of the run in steps; 0: use --epochs
    evaluate_every: int = 0  # steps between evaluations; 0: at the end of each epoch
    save_every: int = 0  # steps between checkpoints; 0: at the end of each epoch
    log_every: int = 50  # steps between log entries; each one waits for the GPU
    seed: int = 42  # seed of weights, dropout and the order of rows
    deterministic: int = 0  # 1: only deterministic operations, which are slower; 0: off

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "warmup_steps" or isinstance(value, str):
                continue
            lowest = 1 if name in AT_LEAST_ONE else 0
            highest = 1 if name in AT_MOST_ONE else 2**32 - 1
            if not lowest <= value <= highest:
                raise UserError(f"{value} is out of range: --{name}: use {lowest} to {highest}")


CHOICES = {
    "precision": ["auto", "fp32", "tf32", "fp16", "bf16"],
    "compile": ["auto", "on", "off"],
    "task": ["regression", "classification"],
}
# environment variables; each sets the setting of the same name
ENVIRONMENT = [
    "SEED",
    "DETERMINISTIC",
    "NUM_WORKERS",
    "PIN_MEMORY",
    "PREFETCH_FACTOR",
    "PERSISTENT_WORKERS",
]


class UserError(Exception):
    """An error that the user can fix; it is printed as one line, with exit code 2."""


def is_on(name: str) -> int:
    """Return 1 if an environment variable is on, and 0 if it is off."""
    word = os.environ[name].lower()
    if word in ("1", "true", "on", "yes"):
        return 1
    if word in ("0", "false", "off", "no"):
        return 0
    raise UserError(f"'{word}' is neither on nor off: {name}: use 1 or 0")


def parse(arguments: list[str]) -> dict:
    """Return the settings that the user gave, and `resume`."""
    # SUPPRESS leaves out flags that were not given, since the dataclass has the defaults.
    parser = argparse.ArgumentParser(
        usage=__doc__,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        exit_on_error=False,
    )
    parser.add_argument("--resume", nargs="?", const="", help="resume the newest run, or this one")
    comments = dict(re.findall(r"(\w+): .*  # (.*)", inspect.getsource(Settings)))
    for name, default in asdict(Settings()).items():
        # Accept both --max_steps and --max-steps.
        flags = sorted({f"--{name}", f"--{name.replace('_', '-')}"})
        text = f"{comments[name]} (default: {default})"
        parser.add_argument(*flags, type=type(default), choices=CHOICES.get(name), help=text)

    # A flag overrides its environment variable.
    environment: dict = {}
    for name in filter(os.environ.get, ENVIRONMENT):
        is_switch = name.lower() in AT_MOST_ONE  # 0 or 1
        environment[name.lower()] = is_on(name) if is_switch else os.environ[name]
    if os.environ.get("USE_AMP"):
        environment["precision"] = "auto" if is_on("USE_AMP") else "fp32"
    parser.set_defaults(**environment)

    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        similar = difflib.get_close_matches(unknown[0], parser._option_string_actions)
        remedy = f"did you mean {similar[0]}?" if similar else "see --help"
        raise UserError(f"unknown flag: {unknown[0]}: {remedy}")
    return vars(given)


def read_settings(arguments: list[str]) -> tuple[Settings, Path]:
    """Return the settings and the folder of the run."""
    given = parse(arguments)
    resume = given.pop("resume", None)
    if resume is None:
        return Settings(**given), Path("runs", f"{datetime.now():%Y%m%d-%H%M%S-%f}")

    path = Path(resume, "settings.json")
    if not resume:
        path = max(Path("runs").glob("*/settings.json"), default=path)
    if not path.exists():
        raise UserError(f"no run to resume: {path} does not exist: check --resume")
    try:
        settings = Settings(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise UserError(f"the file is damaged: {path}: restore it, or start a new run") from None
    for name, value in given.items():
        saved = getattr(settings, name)
        if value != saved:
            raise UserError(f"cannot resume with a different value: --{name}: use {saved}")
    return settings, path.parent


# -----------------------------------------------------------------------------
# Data


def find_file(name: str) -> Path:
    """Return the path of --data. Raise an error if nothing is there."""
    if "://" in name:
        raise UserError(f"{name} is an address: --data: download the file, and give its path")
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder: --data: give the path of a file")
    if not os.path.exists(path):
        raise UserError(f"no such file: {path}: check --data")
    return Path(path)


def read_rows(path: Path) -> list[list[str]]:
    """Return the cells of a CSV file, with the header first."""
    open_file: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rt", encoding="utf-8-sig", newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (EOFError, ValueError, csv.Error, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"cannot read the file ({error}): {path}: check --data") from None
    header = rows[0] if rows else []
    for delimiter in ";\t|":
        if len(header) == 1 and delimiter in header[0]:
            raise UserError(
                f"cells are separated by {delimiter!r}: {path}: separate them by commas"
            )
    if len(rows) < 2 or len(header) < 2:
        raise UserError(f"no data: {path}: write a header with at least two columns, and rows")
    if "" in header:
        raise UserError(
            f"column {header.index('') + 1} has no name: {path}, row 1: "
            "give it a name; if it is a pandas index, export index=False"
        )
    num_names = len({*header})
    for number, row in enumerate(rows, start=1):
        if len(row) != num_names:
            raise UserError(
                f"{len(row)} cells for {num_names} different column names: "
                f"{path}, row {number}: fix it"
            )
    return rows


def read_number(cell: str) -> float:
    """Return the number in a cell, or nan for a text."""
    try:
        return float(cell.replace("_", "x"))  # Python reads 1_2 as 12
    except ValueError:
        return math.nan


def read_table(settings: Settings) -> dict[str, np.ndarray]:
    """Return each column by name: text if --category names it or most cells are, else float32."""
    header, *rows = read_rows(find_file(settings.data))
    categories = [name.strip() for name in settings.category.split(",") if name]
    for name in categories:
        if name not in header:
            raise UserError(f"no column '{name}': --category: use {', '.join(header)}")
    if settings.task == "classification":
        categories.append(settings.target or header[-1])
    table = {}
    for name, *cells in zip(header, *rows, strict=True):
        numbers = [read_number(cell) for cell in cells]
        is_category = name in categories or np.isnan(numbers).mean() > 0.5
        for row, cell in enumerate(cells):
            is_missing = cell in ("", "NA", "nan", "NaN")
            is_number = abs(numbers[row]) < 3.4e38
            if is_missing or not (is_category or is_number):
                remedy = "fill it, or remove the row" if is_missing else "fix it, or use --category"
                raise UserError(
                    f"cannot read '{cell}': {settings.data}, row {row + 2}, column '{name}': "
                    f"{remedy}"
                )
        table[name] = np.array(cells) if is_category else np.array(numbers, np.float32)
    return table


def synthesize() -> dict[str, np.ndarray]:
    """Return 20,000 synthetic rows, always the same: two numbers, a category and a target."""
    numbers = np.random.default_rng(20).standard_normal((4, 20_000))
    rain, sun, soil, noise = numbers.astype(np.float32)
    soil = soil.round()
    harvest = 50 + 10 * (np.sin(2 * rain) + rain * sun + soil) + 3 * noise
    return {"rain": rain, "sun": sun, "soil": soil.astype(str), "harvest": harvest}


def split_rows(split: str, num_rows: int) -> dict[str, range]:
    """Return the rows of each split, after the shuffle."""
    try:
        train, validation, test = [float(share) for share in split.split(",")]
        first = round(num_rows * train)
        last = num_rows - round(num_rows * test)
        if not 0 < first < last <= num_rows or abs(train + validation + test - 1) > 1e-6:
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(
            f"'{split}' does not split {num_rows} rows: --split: "
            "use fractions that add up to 1, such as 0.7,0.15,0.15"
        ) from None
    return {"train": range(first), "validation": range(first, last), "test": range(last, num_rows)}


def standardize(values: np.ndarray, num_train: int) -> tuple[np.ndarray, list[float]]:
    """Return standardized values (N,), and the mean and standard deviation of training rows."""
    train = values[:num_train].astype(np.float64)
    mean = np.float32(train.mean())
    std = np.float32(train.std() if np.ptp(train) else 1.0)
    return (values - mean) / std, [float(mean), float(std)]


def encode(values: np.ndarray, num_train: int) -> tuple[np.ndarray, list[str]]:
    """Return codes (N,) from 1, with 0 for values that no training row has, and their names."""
    # Sort whole numbers by size.
    names = set(values[:num_train].tolist())
    ordered = sorted(names, key=lambda name: (len(name) * name.isdecimal(), name))
    codes = {name: code for code, name in enumerate(ordered, start=1)}
    return np.array([codes.get(name, 0) for name in values.tolist()]), ordered


@dataclass
class Rows(Dataset):
    """Reads batches by the numbers of their rows, in worker processes if there are any.

    YOUR OWN DATA GOES HERE: images, sound, another file. `__getitem__` takes the numbers of at most
    `batch_size` rows and returns what `compute_loss` needs, padded to `batch_size`. A resumed run
    repeats the draws of `random` and `np.random`; with workers, only those that you seed with the
    numbers.
    """

    arrays: dict[str, np.ndarray]
    batch_size: int

    def __getitem__(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        padded = np.resize(numbers, self.batch_size)
        batch = {name: values[padded] for name, values in self.arrays.items()}
        batch["is_real"] = np.arange(self.batch_size) < len(numbers)
        return batch


class Data:
    """The table in memory, shuffled and split. Scales and categories come from training rows."""

    def __init__(self, settings: Settings, device: torch.device):
        self.device = device
        self.batch_size = settings.batch_size
        self.targets_per_batch = settings.batch_size
        table = read_table(settings) if settings.data else synthesize()
        target = settings.target or list(table)[-1]
        if target not in table:
            raise UserError(f"no column '{target}': --target: use one of {', '.join(table)}")
        num_rows = len(table[target])
        self.splits = split_rows(settings.split, num_rows)
        shuffle = np.random.default_rng(0).permutation(num_rows)

        # Categories share one embedding: codes of a category begin where the previous ones end.
        self.facts: dict = {}
        self.offsets = [0]
        features = []
        categories = []
        for name, column in table.items():
            prepare = standardize if column.dtype == np.float32 else encode
            values, self.facts[name] = prepare(column[shuffle], len(self.splits["train"]))
            if name == target:
                answer = values
            elif values.dtype == np.float32:
                features.append(values)
            else:
                categories.append(values + self.offsets[-1])
                self.offsets.append(self.offsets[-1] + len(self.facts[name]) + 1)

        self.num_features = len(features)
        self.num_outputs = 1
        if settings.task == "classification":
            answer = answer - 1
            self.num_outputs = len(self.facts[target])
            if answer.min() < 0 or self.num_outputs < 2:
                raise UserError(f"a class has no training row: --target {target}: remove its rows")
        elif answer.dtype != np.float32:
            raise UserError(f"column '{target}' has text: --task: use classification")
        arrays = {"target": answer}
        if features:
            arrays["features"] = np.stack(features, axis=1)
        if categories:
            arrays["categories"] = np.stack(categories, axis=1)
        self.make_loaders(settings, arrays)

    def make_loaders(self, settings: Settings, arrays: dict[str, np.ndarray]) -> None:
        content = b"".join(values.tobytes() for values in arrays.values())
        self.facts["sha256"] = hashlib.sha256(content).hexdigest()
        workers = settings.num_workers
        if os.environ.get("ALLOW_UNSAFE_DATALOADER") and not is_on("ALLOW_UNSAFE_DATALOADER"):
            workers = 0
        self.loaders = {
            split: DataLoader(
                Rows(arrays, self.batch_size),
                batch_size=None,
                sampler=[],  # `batches` fills it
                num_workers=workers,
                pin_memory=settings.pin_memory == 1 and self.device.type == "cuda",
                prefetch_factor=settings.prefetch_factor if workers else None,
                persistent_workers=workers * settings.persistent_workers > 0,
                worker_init_fn=ignore_signals,
                generator=torch.Generator(),  # separate, so that workers do not change dropout
            )
            for split in self.splits
        }

    def batches(self, split: str, numbers: np.ndarray) -> Iterator:
        """Yield the numbers of rows and their batch."""
        chunks = np.split(numbers, range(self.batch_size, len(numbers), self.batch_size))
        sampler: Any = self.loaders[split].sampler
        sampler[:] = chunks
        for chunk, batch in zip(chunks, self.loaders[split], strict=True):
            yield chunk, {name: x.to(self.device, non_blocking=True) for name, x in batch.items()}


def ignore_signals(worker: int) -> None:
    """Ignore signals in a worker, because the main process handles them and ends the workers."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def training_steps(data: Data, settings: Settings, step: int, steps_per_epoch: int) -> Iterator:
    """Yield the micro-batches of each step after `step`. An epoch has each sample once."""
    while True:
        epoch, steps_done = divmod(step, steps_per_epoch)
        shuffle = np.random.RandomState([settings.seed, epoch])
        order = shuffle.permutation(len(data.splits["train"]))
        start = steps_done * settings.batch_size * settings.gradient_accumulation_steps
        batches = data.batches("train", order[start:])
        for _ in range(steps_done, steps_per_epoch):
            yield islice(batches, settings.gradient_accumulation_steps)
            step += 1


# -----------------------------------------------------------------------------
# Model


class Block(nn.Module):
    """A residual hidden layer, (B, width) to (B, width)."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(F.relu(self.linear(x)))


class Model(nn.Module):
    """An MLP from columns to outputs: one number, or a score for each class."""

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        width = settings.width
        *unknown, num_codes = data.offsets
        num_inputs = data.num_features + len(unknown) * settings.category_width
        if unknown:
            self.embedding = nn.Embedding(num_codes, settings.category_width)
            self.embedding.weight.data[unknown] = 0.0
        self.first = nn.Linear(num_inputs, width)
        self.layers = nn.ModuleList(
            Block(width, settings.dropout) for _ in range(settings.depth - 1)
        )
        self.head = nn.Linear(width, data.num_outputs)
        # Compile block by block, which takes a fifth of the time of compiling the whole model. The
        # first steps wait for it. Like bf16, Triton needs a GPU with sm 8.0 or later.
        is_capable = torch.cuda.is_bf16_supported(including_emulation=False)
        if settings.compile == "on" or (settings.compile == "auto" and is_capable):
            for block in self.layers:
                block.compile(fullgraph=True)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return (B, 1) or (B, K) from features (B, F) and categories (B, C)."""
        inputs = []
        if "features" in batch:
            inputs.append(batch["features"])
        if "categories" in batch:
            inputs.append(self.embedding(batch["categories"]).flatten(1))
        x = F.relu(self.first(torch.cat(inputs, 1)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x).float()


def compute_loss(model: nn.Module, batch: dict) -> tuple[Tensor, Tensor, dict]:
    """Return the mean loss, the number of targets, and sum and count of other metrics."""
    output = model(batch)
    target = batch["target"]
    is_real = batch["is_real"]
    num_targets = is_real.sum(dtype=torch.float32)
    if target.is_floating_point():
        errors = (output.squeeze(1) - target) * is_real
        total = errors.square().sum()
        metrics = {"mse": (total, num_targets), "mae": (errors.abs().sum(), num_targets)}
    else:
        losses = F.cross_entropy(output, target, reduction="none")
        total = (losses * is_real).sum()
        hits = (output.argmax(1) == target) & is_real
        metrics = {"accuracy": (hits.sum(), num_targets), "log_loss": (total, num_targets)}
    return total / num_targets, num_targets, metrics


# -----------------------------------------------------------------------------
# Precision and optimizer


def configure_torch(settings: Settings) -> None:
    """Configure PyTorch's allocator and determinism, and seed all random generators."""
    # Expandable segments reduce fragmentation when shapes vary. A version of PyTorch reads one of
    # the two names, so your value counts for both.
    value = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    value = os.environ.setdefault("PYTORCH_ALLOC_CONF", value)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", value)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    random.seed(settings.seed)
    np.random.seed(settings.seed)
    torch.manual_seed(settings.seed)


def make_autocast(
    name: str, device: torch.device, batch_targets: int
) -> tuple[str, torch.autocast, torch.amp.GradScaler]:
    """Return the name of the precision, the autocast context and the gradient scaler.

    Weights stay float32. Only fp16 scales the loss, so that small gradients do not vanish.
    """
    capability = torch.cuda.get_device_capability() if device.type == "cuda" else (0, 0)
    fastest = "fp32"
    if capability >= (7, 0):
        fastest = "fp16"
    if capability >= (8, 0):
        fastest = "bf16"
    if name == "bf16" and (0, 0) < capability < (8, 0):
        raise UserError(f"this GPU does not support bf16: --precision bf16: use {fastest}")
    if name == "auto":
        name = fastest
    if name == "tf32" and fastest != "bf16":
        name = "fp32"

    # Do not mix these with the newer `fp32_precision` flags, or PyTorch raises an error.
    use_tf32 = name != "fp32"
    torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = use_tf32
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name)
    autocast = torch.autocast(device.type, dtype, enabled=dtype is not None)
    # Gradients are sums over a batch, so divide the usual first scale by its number of targets.
    scale = 65536.0 / 2 ** math.ceil(math.log2(batch_targets))
    return name, autocast, torch.amp.GradScaler(device.type, scale, enabled=name == "fp16")


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """Return a fused AdamW, with weight decay for matrices only, and without frozen weights."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise UserError("no weight to train: class Model: add a layer, or freeze fewer of them")
    matrices: dict[str, Any] = {"params": [p for p in weights if p.dim() >= 2]}
    biases: dict[str, Any] = {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}
    return torch.optim.AdamW([matrices, biases], weight_decay=settings.weight_decay, fused=True)


def learning_rate_at(step: int, total_steps: int, settings: Settings) -> float:
    """Return the rate of a step: linear warm-up, then cosine decay. It has no state to save."""
    warmup_steps = settings.warmup_steps
    if warmup_steps < 0:
        warmup_steps = min(100, total_steps // 10)
    if step < warmup_steps:
        return settings.learning_rate * ((step + 1) / warmup_steps)
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    final = settings.final_factor
    return settings.learning_rate * (final + (1.0 - final) * (1 + math.cos(math.pi * progress)) / 2)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    num_targets: Tensor,
    clip: float,
    learning_rate: float,
) -> Tensor:
    """Turn summed gradients into means, clip them and step. Return their norm before clipping.

    Nothing here waits for the GPU: the fused optimizer itself skips a step that overflows in fp16.
    """
    weights = []
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
        weights += group["params"]
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in weights if p.grad is not None]  # an unused weight has none
    norm = torch.nn.utils.get_total_norm(gradients)
    # One division takes the mean and clips: by num_targets, or by norm / clip if that is larger.
    divisor = torch.maximum(num_targets, norm / clip) if clip else num_targets
    torch._foreach_div_(gradients, divisor)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norm / num_targets


# -----------------------------------------------------------------------------
# Checkpoints: step-<step>-<sha256>.pt, named as in torch.hub. After a crash, a checkpoint is
# complete or absent. Damaged ones are skipped.


def generators() -> list[torch.Generator]:
    return [torch.default_generator, *torch.cuda.default_generators]


def random_states() -> dict:
    """Return the states of all random generators, without NumPy arrays: torch.load refuses them."""
    state: Any = np.random.get_state()
    name, keys, *others = state
    return {
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), *others],
        "torch": [generator.get_state() for generator in generators()],
    }


def restore(parts: dict, checkpoint: dict, run: Path) -> None:
    """Restore the model, the optimizer, the scaler and all random generators."""
    try:
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        states = checkpoint["random_states"]
    except (KeyError, ValueError, RuntimeError) as error:
        reason = str(error).rpartition("\n")[2].strip()
        raise UserError(
            f"the checkpoint does not fit this train.py ({reason[:200]}): {run}: "
            "use the train.py that wrote it, or start a new run"
        ) from None
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    for generator, state in zip(generators(), states["torch"], strict=False):
        generator.set_state(state.cpu())


def lock(run: Path) -> None:
    """Reserve the run for this process until it ends."""
    file = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process uses the run: {run}: wait until it ends") from None
    except OSError:
        pass  # a file system without locks


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a temporary file and rename it, so that a crash leaves the old file or the new one."""
    temporary = path.with_name("temporary")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # wait until the content is on the disk
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_checkpoint(folder: Path, checkpoint: dict) -> None:
    """Save a checkpoint. Keep the two newest and the best."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    content = buffer.getbuffer()
    digest = hashlib.sha256(content).hexdigest()[:16]
    write(folder / f"step-{checkpoint['step']:08d}-{digest}.pt", content)
    best = f"step-{checkpoint['best_step']:08d}-"
    for path in sorted(folder.glob("step-*.pt"))[:-2]:
        if best not in path.name:
            path.unlink()


def load_checkpoint(folder: Path, device: torch.device, pattern: str = "step-*.pt") -> dict:
    """Return the newest undamaged checkpoint, or an empty dictionary."""
    for path in sorted(folder.glob(pattern), reverse=True):
        content = path.read_bytes()
        if path.stem.endswith(hashlib.sha256(content).hexdigest()[:16]):
            try:
                return torch.load(io.BytesIO(content), map_location=device, weights_only=True)
            except Exception as error:  # the hash is right: another program wrote it
                raise UserError(
                    f"cannot load ({type(error).__name__}): {path}: restore it"
                ) from None
        # With another name, it does not count as one of the two newest.
        print(f"warning: {path} is damaged: renamed to .damaged")
        path.rename(path.with_suffix(".damaged"))
    return {}


# -----------------------------------------------------------------------------
# Metrics: metrics.jsonl has one JSON object per line, for training and evaluation.


def log(run: Path, record: dict) -> None:
    """Append a record to metrics.jsonl and print it."""
    # JSON has no NaN and no infinity, which is the norm of a step that overflows in fp16.
    line = re.sub("NaN|-?Infinity", "null", json.dumps(record))
    with open(run / "metrics.jsonl", "a") as file:
        file.write(line + "\n")
    for name, value in record.items():
        print(f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}", end="  ")
    print(flush=True)


def plot_curves(run: Path, curves: dict) -> None:
    figure = Figure()
    axes = figure.subplots()
    for split, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=f"{split} loss")
    axes.legend()
    figure.savefig(run / "curves.png")


# -----------------------------------------------------------------------------
# Training


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, split: str, autocast: torch.autocast) -> dict:
    """Return the loss and the metrics of a split, as means over all its targets."""
    model.eval()
    sums: dict = {}
    for _, batch in data.batches(split, np.array(data.splits[split])):
        with autocast:
            loss, num_targets, metrics = compute_loss(model, batch)
        metrics = {"loss": (loss * num_targets, num_targets), **metrics}
        for name, sum_and_count in metrics.items():
            sums[name] = sums.get(name, 0) + torch.stack(sum_and_count).double()
    model.train()
    return {name: (total / count).item() for name, (total, count) in sums.items()}


def mean_loss(micro_batches: list[tuple], norms: list[tuple]) -> float:
    """Return the mean loss over all targets. Reading it waits for the GPU.

    Raise an error for the first loss or gradient norm that is not finite.
    """
    steps, losses, sizes, samples = zip(*micro_batches, strict=True)
    means = torch.stack(losses)
    weights = torch.stack(sizes)
    values = [*zip(steps, ["loss"] * len(steps), means.tolist(), samples, strict=True)]
    values += [(step, "gradient norm", norm.item(), numbers) for step, norm, numbers in norms]
    # Sorting keeps the order within a step: its losses come before the norm.
    for step, name, value, numbers in sorted(values, key=lambda entry: entry[0]):
        if not math.isfinite(value):
            raise UserError(
                f"the {name} of step {step} is {value}: training samples {numbers[:64]}: check "
                "these samples, Model and compute_loss, or use a smaller --learning_rate"
            )
    return ((means * weights).sum() / weights.sum()).item()


def finite_names(model: nn.Module) -> set[str]:
    """Return the names of the weights and buffers without NaN and infinity. Waits for the GPU."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name for name, tensor in tensors if tensor.isfinite().all()}


def check_tensors(model: nn.Module, finite: set[str], step: int) -> None:
    """Raise an error if a weight or a buffer that was finite no longer is."""
    broken = sorted(finite - finite_names(model))
    if broken:
        raise UserError(
            f"not finite after step {step}: {', '.join(broken[:3])}: "
            "check Model, or use a smaller --learning_rate"
        )


def collect_signals() -> list[int]:
    """Return a list that receives signals, so that the loop saves and stops; a second one exits."""
    signals: list[int] = []

    def receive(number: int, frame: object) -> None:
        if signals:
            os._exit(128 + number)
        signals.append(number)
        print(
            f"{signal.Signals(number).name}: saving after this step; press again to exit at once",
            file=sys.stderr,
        )

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        # Keep ignoring signals that nohup ignores.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, receive)
    return signals


def train(settings: Settings, run: Path) -> int:
    """Train from the newest checkpoint, if any, to the end or a signal. Return the exit code."""
    signals = collect_signals()

    # Build.
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    configure_torch(settings)
    data = Data(settings, device)
    model = Model(settings, data).to(device)
    optimizer = make_optimizer(model, settings)
    precision, autocast, scaler = make_autocast(settings.precision, device, data.targets_per_batch)
    num_samples = len(data.splits["train"])
    step_size = settings.batch_size * settings.gradient_accumulation_steps
    steps_per_epoch = math.ceil(num_samples / step_size)
    total_steps = settings.max_steps or settings.epochs * steps_per_epoch
    evaluate_every = settings.evaluate_every or steps_per_epoch
    save_every = settings.save_every or steps_per_epoch

    # Resume.
    parts: dict = {"model": model, "optimizer": optimizer, "scaler": scaler}
    step = 0
    best_step = 0
    best_loss = math.inf
    # (step, loss, number of targets, samples) of each micro-batch since the last log entry
    micro_batches: list[tuple] = []
    norms: list[tuple] = []  # (step, gradient norm, samples) of each step since then
    curves: dict = {"train": [], "validation": []}
    metrics_file = run / "metrics.jsonl"
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    lock(run)
    checkpoint = load_checkpoint(checkpoints, device)
    if checkpoint:
        if checkpoint["data"] != data.facts:
            raise UserError(f"the data changed since the run began: {run}: restore the file")
        restore(parts, checkpoint, run)
        step = checkpoint["step"]
        best_step = checkpoint["best_step"]
        best_loss = checkpoint["best_loss"]
        micro_batches = checkpoint["micro_batches"]
        curves = checkpoint["curves"]
        # Drop the records after the checkpoint, because the run writes them again.
        metrics_file.touch()
        write(metrics_file, metrics_file.read_bytes()[: checkpoint["metrics_size"]])
    elif any(checkpoints.glob("*.damaged")):
        raise UserError(f"all checkpoints are damaged: {checkpoints}: restore one")
    else:
        write(run / "settings.json", json.dumps(asdict(settings), indent=1).encode())
        write(metrics_file, b"")
    print(f"{run}: {device}, {precision}, step {step} of {total_steps}")
    finite = finite_names(model)  # a mask of -inf is not one of them
    gc.freeze()  # these objects live as long as the run, so garbage collection can skip them

    steps = training_steps(data, settings, step, steps_per_epoch)
    logged_step = step
    start_time = time.perf_counter()
    is_over = step >= total_steps
    while not is_over:
        # Forward and backward. The gradients of the micro-batches add up.
        step_targets = torch.zeros((), device=device)
        samples: list[int] = []
        for numbers, batch in next(steps):
            with autocast:
                loss, num_targets, _ = compute_loss(model, batch)
            scaler.scale(loss * num_targets).backward()
            micro_batches.append((step + 1, loss.detach(), num_targets, numbers.tolist()))
            step_targets += num_targets
            samples += numbers.tolist()

        # Update. The gradient of an incomplete last step is scaled by its number of samples.
        fraction = len(samples) / min(step_size, num_samples)
        divisor = step_targets / fraction
        learning_rate = learning_rate_at(step, total_steps, settings)
        norm = optimizer_step(optimizer, scaler, divisor, settings.gradient_clip, learning_rate)
        step += 1
        if not scaler.is_enabled():  # fp16 skips a step that overflows, which is no error
            norms.append((step, norm, samples))
        is_last = step == total_steps

        # Log, also some of the first steps, so that you see something soon.
        is_early = step in (1, 2, 5, 10, 20) and step < settings.log_every
        if is_last or is_early or step % settings.log_every == 0:
            train_loss = mean_loss(micro_batches, norms)
            curves["train"].append((step, train_loss))
            seconds = (time.perf_counter() - start_time) / (step - logged_step)
            record = {
                "step": step,
                "epoch": math.ceil(step / steps_per_epoch),
                "loss": train_loss,
                "learning_rate": learning_rate,
                "gradient_norm": norm.item(),
                "samples_per_second": step_size / seconds,
                "step_ms": 1000 * seconds,
            }
            log(run, record)
            micro_batches.clear()
            norms.clear()
            logged_step = step
            start_time = time.perf_counter()

        # Evaluate.
        pause_time = time.perf_counter()
        if is_last or step % evaluate_every == 0:
            metrics = evaluate(model, data, "validation", autocast)
            log(run, {"step": step, "split": "validation", **metrics})
            curves["validation"].append((step, metrics["loss"]))
            if metrics["loss"] < best_loss:
                best_loss = metrics["loss"]
                best_step = step

        # Save. A signal that comes later stops the run after the next step.
        is_over = is_last or bool(signals)
        if is_over or best_step == step or step % save_every == 0:
            # Raise an error instead of saving weights that are not finite.
            if micro_batches:
                mean_loss(micro_batches, norms)
            check_tensors(model, finite, step)
            checkpoint = {
                **{name: part.state_dict() for name, part in parts.items()},
                "random_states": random_states(),
                "step": step,
                "best_step": best_step,
                "best_loss": best_loss,
                "micro_batches": micro_batches,
                "curves": curves,
                "metrics_size": metrics_file.stat().st_size,
                "data": data.facts,
            }
            save_checkpoint(checkpoints, checkpoint)
        start_time += time.perf_counter() - pause_time

    plot_curves(run, curves)
    best = load_checkpoint(checkpoints, device, f"step-{best_step:08d}-*.pt")
    if best and step >= total_steps and data.splits["test"]:
        model.load_state_dict(best["model"])
        metrics = evaluate(model, data, "test", autocast)
        log(run, {"step": best_step, "split": "test", **metrics})
    return 128 + signals[0] if signals else 0


def main(arguments: list[str]) -> int:
    """Return the exit code: 2 for an error, 128 + the number of a signal."""
    try:
        return train(*read_settings(arguments))
    except (UserError, argparse.ArgumentError) as error:
        message = str(error)
    except OSError as error:
        message = f"{error}: check the path and the free space; --resume continues a run"
    except (MemoryError, RuntimeError) as error:
        # the words of CUDA, of its libraries, and of PyTorch on a CPU
        words = re.search("out of memory|ALLOC_FAILED|allocate memory", str(error))
        if not words and not isinstance(error, MemoryError):
            raise
        message = (
            "out of memory: lower --batch_size (and raise --gradient_accumulation_steps as much, "
            "for the same result), or use a smaller model or less data"
        )
    # without the password of an address
    message = re.sub(r"/\S*:\S*@", "/…@", message)
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
