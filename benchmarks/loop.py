"""The training loop's own cost: ours against a bare PyTorch loop, and against each framework's own.

A 64-64-64 MLP, batch 32, 2,000 steps, one thread: a step of about a quarter of a millisecond, so
that every microsecond around it shows. All sides clip to norm 1, follow warm-up + cosine, use fused
AdamW, log the loss every 50 steps and take the same batches from memory; their networks must agree
at the end.

`counts`: operators of PyTorch and calls of Python in a step. They are the same on a busy machine.

`loop`: times. Rounds are interleaved, and each round's ratio is taken on its own, so a drifting
machine cancels out. Times are seconds of the process, so that other work on the machine counts
little.

    python benchmarks/loop.py [counts loop] [--rounds 7] [--only pytorch lightning ...] [--write]

HF Trainer takes part where `transformers` is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import logging
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import torch  # noqa: E402
from count_step import count_step  # noqa: E402
from importing import imported  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402

STEPS = 2000
BATCH = 32
WIDTH = 64
EVERY = 50
WARMUP = 100
FINAL = 0.1
CLIP = 1.0
RATE = 1e-3
DECAY = 0.01
Data = list[tuple[Tensor, Tensor]]
Result = tuple[
    float, list[float]
]  # seconds of the process, and losses of the network that was trained


def batches(count: int = 64) -> Data:
    """A ring of batches that all loops read."""
    torch.manual_seed(0)
    return [(torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)) for _ in range(count)]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
    )


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay on matrices only, as everywhere."""
    matrices, vectors = (
        [p for p in model.parameters() if (p.dim() > 1) is wanted] for wanted in (True, False)
    )
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, fused=True)


def factor(step: int) -> float:
    if step < WARMUP:
        return (step + 1) / WARMUP
    return FINAL + (1 - FINAL) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


def trained(network: Any, data: Data) -> list[float]:
    """Losses of some batches afterwards, by which networks are compared: rows hold means, or single
    ones."""
    with torch.no_grad():
        return [mse_loss(network(x), y).item() for x, y in data[:8]]


class Ring:
    """An epoch of the batches."""

    def __init__(self, data: Data):
        self.data = data

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.data[step % len(self.data)] for step in range(STEPS))


# ---- the sides ---------------------------------------------------------------------------------


def bare_pytorch(data: Data, folder: Path) -> Result:
    """A hand-written loop."""
    model = network()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses = []
    start = time.process_time()
    for step, (x, y) in enumerate(Ring(data), start=1):
        loss = mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        if step % EVERY == 0:
            losses.append(loss.item())
    return time.process_time() - start, trained(model, data)


def bare_accelerate(data: Data, folder: Path) -> Result:
    """The loop of Accelerate's own examples (huggingface/accelerate, examples/nlp_example.py), with
    clipping.

    Its batches are not prepared, only model, optimizer and scheduler are: that spares it work.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    losses = []
    start = time.process_time()
    for step, (x, y) in enumerate(Ring(data), start=1):
        loss = mse_loss(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            losses.append(loss.item())
    return time.process_time() - start, trained(model, data)


def bare_lightning(data: Data, folder: Path, log: bool = True) -> Result:
    """Lightning's Trainer with its automatic optimization, clipping, a scheduler, and `self.log`
    into CSV.

    log: without, it has no logger and `training_step` says nothing; less than what the others do.
    """
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    losses = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            loss = mse_loss(self.network(x), y)
            if log:
                self.log("loss", loss)
            if (batch_idx + 1) % EVERY == 0:
                losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = adamw(self)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        gradient_clip_val=CLIP,
        logger=CSVLogger(folder) if log else False,
        log_every_n_steps=EVERY,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    start = time.process_time()
    trainer.fit(module, Ring(data))
    return time.process_time() - start, trained(module.network, data)


def lightning_without_log(data: Data, folder: Path) -> Result:
    return bare_lightning(data, folder, log=False)


def hf_trainer(data: Data, folder: Path) -> Result:
    """Trainer of transformers, with batches that are ready instead of a collator."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": mse_loss(self.network(x), labels)}

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            pairs: Any = [{"x": x, "labels": y} for x, y in Ring(data)]
            return torch.utils.data.DataLoader(pairs, batch_size=None, sampler=range(STEPS))

    class Losses(TrainerCallback):
        def on_log(self, *arguments: Any, **facts: Any) -> None:
            if "loss" in facts["logs"]:
                losses.append(float(facts["logs"]["loss"]))

    losses: list[float] = []
    model = Model()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    options = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        logging_steps=EVERY,
        max_grad_norm=CLIP,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        log_level="error",
    )
    trainer = Own(
        model=model, args=options, train_dataset=[0] * STEPS, optimizers=(optimizer, scheduler)
    )
    trainer.add_callback(Losses())
    start = time.process_time()
    trainer.train()
    return time.process_time() - start, trained(model.network, data)


HOOK = """
class Hook:
    def before_step(self, run): ...

    def after_step(self, run): ...
"""


SETTINGS = {
    "training.max_steps": STEPS,
    "training.gradient_clip": CLIP,
    "training.precision": "fp32",
    "monitor.every_steps": EVERY,
    "monitor.progress": "false",
    "schedule.warmup_steps": WARMUP,
    "schedule.final_factor": FINAL,
    "optimizer.learning_rate": RATE,
    "optimizer.weight_decay": DECAY,
}


class InMemory:
    """The batches of the other sides, as a loader."""

    samples = None

    def __init__(self, data: Data):
        self.data = data
        self.order = SimpleNamespace(
            batch_size=BATCH,
            batch_size_all_ranks=BATCH,
            count=STEPS * BATCH,
            by_width=False,
            step_fraction=lambda *place: 1.0,
        )

    def __len__(self) -> int:
        return STEPS

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[Any]:
        every = torch.ones(BATCH, dtype=torch.bool)
        for x, y in Ring(self.data):
            yield {"x": x, "y": y, "present": every}

    def describe(self) -> list[dict[str, str]]:
        return [{"name": "loader", "state": "in memory", "why": ""}]

    def close(self) -> None:
        """Nothing is open."""


class Wrapped(nn.Module):
    """The network with the interface of a project's model. output: the project's class for it."""

    def __init__(self, output: Any):
        super().__init__()
        self.network = network()
        self.output = output
        self.count = torch.tensor(float(BATCH * WIDTH))

    def forward(self, batch: Any) -> Any:
        return self.output(mse_loss(self.network(batch["x"]), batch["y"]), self.count)


class Project:
    """A rendered project whose model and data are those of the other sides."""

    def __init__(self, path: Path, data: Data, run_folder: Path):
        self.path = path
        self.data = data
        self.run_folder = run_folder
        self.distributed = self.module("engine.compute.distributed").Distributed()

    def module(self, name: str) -> Any:
        return imported(self.path, name)

    def assemble(self, settings: Any) -> Any:
        model = Wrapped(self.module("engine.interfaces").Output)
        own = self.module("optimizer")
        optimizer = own.build_optimizer(model, settings)
        store = SimpleNamespace(fingerprint="", source={}, splits={}, resident={})
        store.folder = self.run_folder
        store.remember = lambda run: None
        device = self.distributed.device
        return SimpleNamespace(
            settings=settings,
            store=store,
            device=device,
            distributed=self.distributed,
            model=model,
            wrapped=model,
            optimizer=optimizer,
            warmup_and_decay=own.warmup_and_decay,
            optimizations=[],
            optimization_lines=list,
            loader=lambda *_, **__: InMemory(self.data),
            precision=self.module("engine.compute.precision").Precision("fp32", device),
        )

    def train(self) -> Result:
        flags = SETTINGS | {"training.max_steps": STEPS}
        settings = self.module("settings").Settings.load(
            overrides=[(key, str(value)) for key, value in flags.items()]
        )
        self.run_folder.mkdir()
        # A trial: the other loops keep no checkpoint.
        session_type = self.module("engine.training.session").Session
        arguments = (self.run_folder, settings, self.distributed)
        with session_type(*arguments, trial=True) as session:
            run = session.start(self.assemble(settings))
            start = time.process_time()
            self.module("train").train(run)
            seconds = time.process_time() - start
            losses = trained(run.project.model.network, self.data)
        return seconds, losses


def ours(framework: str, hook: str = "", **answers: Any) -> Callable[[Data, Path], Result]:
    """A rendered project's `train` around the same network and batches. hook: the source of one in
    `hooks/`."""

    def side(data: Data, folder: Path) -> Result:
        project = render(workload="tabular", loader="memmap", framework=framework, **answers)
        if hook:
            project = Path(shutil.copytree(project, folder.with_name("hooked"), dirs_exist_ok=True))
            (project / "src/my_training/hooks/own.py").write_text(hook)
        return Project(project, data, folder).train()

    return side


SIDES: dict[str, Callable[[Data, Path], Result]] = {
    "bare PyTorch": bare_pytorch,
    "pytorch": ours("pytorch"),
    "pytorch, a hook that does nothing": ours("pytorch", hook=HOOK),
    "pytorch, ema": ours("pytorch", extras=["ema"]),
    "bare Accelerate": bare_accelerate,
    "accelerate": ours("accelerate"),
    "bare Lightning": bare_lightning,
    "bare Lightning, nothing logged": lightning_without_log,
    "lightning": ours("lightning"),
    "HF Trainer": hf_trainer,
}
PAIRS = [  # ours, theirs, at most
    ("pytorch", "bare PyTorch", 1.05),
    ("pytorch, a hook that does nothing", "pytorch", None),
    ("pytorch, ema", "pytorch", None),
    ("accelerate", "bare Accelerate", 1.0),
    ("lightning", "bare Lightning", 1.0),
    ("lightning", "bare Lightning, nothing logged", None),
    ("pytorch", "HF Trainer", 1.0),
]


def run_side(side: str, steps: int, data: Data, folder: Path) -> Result:
    """Train one side without its output."""
    global STEPS
    STEPS = steps
    gc.collect()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return SIDES[side](data, folder)


def spoken(side: str) -> str:
    is_ours = side.startswith(("pytorch", "accelerate", "lightning"))
    return f"`{side}`, ours" if is_ours else side


# ---- counts ------------------------------------------------------------------------------------


def count_sides(sides: list[str], few: int, many: int) -> dict[str, Any]:
    """Operators and calls in a step of each side, by trainings of few and of many steps."""
    data = batches()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for side in sides:

            def train(steps: int, side: str = side) -> None:
                run_side(side, steps, data, Path(tempfile.mkdtemp(dir=temporary)) / "run")

            counts = count_step(train, few, many)
            rows.append([spoken(side), *(f"{value:.1f}" for value in counts)])
    return {"columns": ["loop", "operators", "calls of Python", "calls of C"], "rows": rows}


# ---- times -------------------------------------------------------------------------------------


def measure(sides: list[str], rounds: int, steps: int) -> dict[str, list[float]]:
    """Microseconds a step of each side in each round; the first round warms up and does not
    count."""
    data = batches()
    times: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(-1, rounds):
            order = sides if number % 2 else sides[::-1]
            expected: list[float] = []
            for side in ["bare PyTorch", *(side for side in order if side != "bare PyTorch")]:
                folder = Path(temporary) / f"{number} {side}"
                seconds, losses = run_side(side, steps, data, folder)
                expected = expected or losses
                apart = max(abs(a - b) for a, b in zip(expected, losses, strict=True))
                assert apart < 1e-4, f"not the same work: losses of {side} differ by {apart}"
                if number >= 0:
                    times[side].append(1e6 * seconds / steps)
    return times


def tables(measured: dict[str, list[float]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times, then ratios with the interval that holds the median with about 95 %."""
    times = [
        [spoken(side), *(f"{figure(values):.1f}" for figure in (statistics.median, min, max))]
        for side, values in measured.items()
    ]
    compared = []
    for mine, theirs, limit in PAIRS:
        if mine in measured and theirs in measured:
            ratios = sorted(a / b for a, b in zip(measured[mine], measured[theirs], strict=True))
            low, high = interval(ratios)
            wanted = f"≤ {limit:.2f}" if limit else ""
            median = f"{statistics.median(ratios):.3f}"
            compared.append([f"`{mine}`", theirs, median, f"{low:.3f} to {high:.3f}", wanted])
    return (
        {"columns": ["loop", "µs a step, median", "fastest", "slowest"], "rows": times},
        {
            "columns": ["ours", "against", "ratio, median", "95 % interval", "wanted"],
            "rows": compared,
        },
    )


def interval(ordered: list[float]) -> tuple[float, float]:
    """Order statistics around the median, by the binomial distribution; the whole range below 6
    values."""
    count = len(ordered)
    skip = max(k for k in range(count // 2 + 1) if k == 0 or outside(count, k) <= 0.05)
    return ordered[max(skip - 1, 0)], ordered[min(count - skip, count - 1)]


def outside(count: int, k: int) -> float:
    """Chance that fewer than k, or more than count − k, of `count` values lie below the median."""
    return 2 * sum(math.comb(count, i) for i in range(k)) / 2**count


def available(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


PARTS = ("counts", "loop")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; by default all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="of a round (default: %(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(SIDES), metavar="LOOP", help=", ".join(SIDES)
    )
    parser.set_defaults(few=200, many=300)  # steps of the trainings that `counts` compares
    arguments = command_line(parser, rounds=1, steps=WARMUP + 10, few=30, many=80)
    parts = arguments.parts or PARTS
    torch.set_num_threads(1)
    gc.freeze()  # what is imported so far needs no walk in the collections before each training
    sides = [side for side in SIDES if side != "HF Trainer" or available("transformers")]
    if arguments.only:
        sides = [side for side in sides if side in ("bare PyTorch", *arguments.only)]
    libraries = ("lightning", "accelerate", "transformers")
    if "counts" in parts:
        few = arguments.few
        many = arguments.many
        how = f"{machine(*libraries)}, ({many} steps − {few} steps) / {many - few}"
        publish("loop", "counts", how, count_sides(sides, few, many), arguments=arguments)
    if "loop" in parts:
        rounds = f"{arguments.rounds} rounds of {arguments.steps} steps"
        how = f"{machine(*libraries)}, one thread, {rounds}"
        measured = measure(sides, arguments.rounds, arguments.steps)
        publish("loop", "loop", how, *tables(measured), arguments=arguments)


if __name__ == "__main__":
    main()
