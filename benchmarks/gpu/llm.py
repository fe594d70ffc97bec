"""What each optimization is worth on a GPU: GPT-2 small (124M), block 1024, one table row after the
other.

fp32 without anything, then TF32, bf16, compile and fused AdamW one upon the other; a loop of
nanoGPT's structure with compile, which starts from the same weights; then, with all of it on,
the whole model compiled instead of its blocks, other memory segments, chunked loss, fp8, activation
checkpointing for its memory, hashes of all gradients, deterministic mode, and the monitor's own
cost. Our rows see the same tokens in the same order. Takes about 10 minutes on an H200, the
headline 4 of them.

FASTTRAIN_NANOGPT names a checkout of karpathy/nanoGPT: its own train.py is a row of the same run.

    make bench-gpu PART=llm
    make bench-gpu PART=llm ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rows import WARM, Book, begin, gain, ladder, project, share, spread, train

BATCH, BLOCK, VOCABULARY, EVERY = 16, 1024, 50_257, 5
FLAGS = {
    "data.block_size": BLOCK,
    "data.order": "random_start",
    "model.size": "small",
    "model.positions": "learned",
    "optimizer.learning_rate": 6e-4,
    "optimizer.weight_decay": 0.1,
    "schedule.warmup_steps": 10,
    "monitor.every_steps": EVERY,
}
OFF = {
    "training.precision": "fp32",
    "compile.enabled": "false",
    "optimizer.fused": "false",
    "model.chunked_loss": "false",
    "data.pin_memory": "false",
}
LADDER = {  # each row keeps what the rows above it have switched on
    "no optimization (fp32)": {},
    "+ TF32": {"training.precision": "tf32"},
    "+ bf16": {"training.precision": "bf16", "data.pin_memory": "true"},
    "+ compile": {"compile.enabled": "true"},
    "+ fused AdamW": {"optimizer.fused": "true"},
}
REHEARSAL = {
    "data.block_size": 16,
    "data.batch_size": 2,
    "monitor.every_steps": 1,
    "model.layers": 1,
    "model.width": 128,
    "model.heads": 2,
    "compile.enabled": "false",
    "training.fp8_emulation": "true",
}
WHOLE = "whole model compiled"
SEGMENTS = "memory in segments of fixed size"
GRAPHS = "CUDA graphs (reduce-overhead)"
BESIDE: dict[str, dict[str, Any]] = {  # all of the above, and this
    WHOLE: {},
    SEGMENTS: {},
    "chunked loss": {"model.chunked_loss": "true"},
    "fp8 instead of bf16": {"training.precision": "fp8"},
    "activation checkpointing": {"training.gradient_checkpointing": "true"},
    "monitor, ten samples a second": {"watch.every_seconds": 0.1},
    "monitor, no samples": {"watch.every_seconds": 0},
    GRAPHS: {"compile.mode": "reduce-overhead"},
    "hashes of all gradients": {"monitor.exact": "true"},
    "deterministic, chunked loss": {
        "reproducibility.deterministic": "true",
        "training.cudnn_benchmark": "false",
        "model.chunked_loss": "true",
    },
}
NANOGPT = "FASTTRAIN_NANOGPT"  # environment: a checkout of karpathy/nanoGPT
THEIR_OWN = "nanoGPT's own train.py"
THEIR_PROGRAM = """
import runpy, torch
runpy.run_path("train.py", run_name="__main__")
print("memory", torch.cuda.max_memory_allocated() / 2**30)
"""


# What is claimed of them: all of it against nothing and against nanoGPT's structure; what repeating
# costs.
FIRST = (
    "+ fused AdamW",
    THEIR_OWN,
    WHOLE,
    GRAPHS,
    SEGMENTS,
    "nanoGPT's structure, compiled, bf16",
    "no optimization (fp32)",
    "chunked loss",
    "deterministic, chunked loss",
)


def write_tokens(folder: Path, count: int, vocabulary: int) -> None:
    """A store of made-up tokens by Zipf's law; every second one follows from the one before it."""
    import numpy as np

    random = np.random.default_rng(0)
    drawn = np.minimum(random.zipf(1.2, count), vocabulary - 1).astype(np.int64)
    drawn[1::2] = (drawn[::2] * 31 + 7) % (vocabulary - 1)
    with project("engine.loading.store").StoreWriter(folder, "llm") as writer:
        writer.append("tokens", drawn.astype(np.uint16))
        writer.facts = {"vocabulary": vocabulary, "token_bytes": [4] * (vocabulary - 1) + [0]}
        writer.splits = {"train": [0, count], "validation": [count, count], "test": [count, count]}


@contextlib.contextmanager
def one_block() -> Iterator[None]:
    """Lets the whole model be the only block that is compiled."""
    model = project("model").GPT
    own = model.blocks
    model.blocks = lambda self: [self]
    try:
        yield
    finally:
        model.blocks = own


@contextlib.contextmanager
def fixed_segments() -> Iterator[None]:
    """Lets PyTorch's allocator do without expandable segments."""
    import torch

    change = torch.cuda.memory._set_allocator_settings
    if not torch.cuda.is_available():
        yield
        return
    change("expandable_segments:False")
    try:
        yield
    finally:
        torch.cuda.empty_cache()
        change("expandable_segments:True")


AROUND = {WHOLE: one_block, SEGMENTS: fixed_segments}


def ours(folder: Path, overrides: dict[str, Any], name: str = "") -> dict[str, Any]:
    """A row of the project's own loop. name: what changes around it, if anything does."""
    with AROUND.get(name, contextlib.nullcontext)():
        found = train(folder, overrides)
    figures = found.steady("step_ms", "tokens_per_second", "data_wait_fraction", "mfu")
    built = found.run.project
    _, why = project("hooks.throughput").peak_of(built.device, built.precision.name)
    figures |= {"loss": found.rows[-1]["loss"], "start_s": found.ready_s, "why": why}
    return figures | {"fp8_layers": found.state("fp8")}


def theirs(overrides: dict[str, Any]) -> dict[str, Any]:
    """nanoGPT's loop with compile, bf16, TF32 and fused AdamW, from the weights that ours start
    from."""
    import nanogpt
    import torch

    model_of, throughput = project("model").build_model, project("hooks.throughput")
    settings = project("settings").Settings.load(
        overrides=[(key, str(value)) for key, value in overrides.items()]
    )
    store = project("engine.loading.store").Store.open(settings.data.path)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(settings.reproducibility.seed)
    same = model_of(settings, store.facts)
    padded = same.embedding.num_embeddings
    model: Any = nanogpt.GPT(
        nanogpt.GPTConfig(settings.model.context, padded, *settings.model.shape)
    )
    nanogpt.load_ours(model, same)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        model = torch.compile(model.to(device))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.999), device)
    data = store.arrays["tokens"].rows()
    batch, block, steps = (
        settings.data.batch_size,
        settings.data.block_size,
        settings.training.max_steps,
    )
    every = settings.monitor.every_steps
    X, Y = nanogpt.get_batch(data, batch, block, device)
    times, loss = [], 0.0
    for iteration in range(steps):
        rate = nanogpt.get_lr(iteration, 6e-4, 10, steps, 6e-5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device, torch.bfloat16):
            _, output = model(X, Y)
        X, Y = nanogpt.get_batch(data, batch, block, device)
        output.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (iteration + 1) % every == 0:
            loss = output.item()
            times.append(time.perf_counter())
    steps_ms = [1000 * (b - a) / every for a, b in itertools.pairwise(times[1:])]
    step = statistics.median(steps_ms) / 1000
    example = {name: torch.zeros(1, block, dtype=torch.int64) for name in ("tokens", "targets")}
    flops = throughput.count_flops(lambda: model_of(settings, store.facts), example)
    peak, why = throughput.peak_of(torch.device(device), "bf16")
    found = {
        "step_ms": 1000 * step,
        "step_ms_range": [min(steps_ms), max(steps_ms)],
        "tokens_per_second": batch * block / step,
        "loss": loss,
    }
    return found | {"why": why} | ({"mfu": batch * flops / step / peak} if peak else {})


def their_own(folder: Path, overrides: dict[str, Any], checkout: Path) -> dict[str, Any]:
    """nanoGPT's train.py as it is, with compile, on the same tokens in batches of the same size.

    It waits for the GPU at the lines that it prints, so the time between two lines is exact.
    """
    import torch

    place = Path(tempfile.mkdtemp(dir=folder))
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(checkout / name, place)
    tokens = (
        project("engine.loading.store").Store.open(overrides["data.path"]).arrays["tokens"].rows()
    )
    for name in ("train", "val"):
        path = place / f"data/zipf/{name}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        tokens.tofile(path)
    steps, batch = overrides["training.max_steps"], overrides["data.batch_size"]
    block = overrides["data.block_size"]
    words = ["--dataset=zipf", f"--batch_size={batch}", "--gradient_accumulation_steps=1"]
    words += [f"--block_size={block}", f"--max_iters={steps}"]
    words += ["--eval_iters=1", "--warmup_iters=10", f"--lr_decay_iters={steps}"]
    words += [f"--eval_interval={10**9}", f"--log_interval={overrides['monitor.every_steps']}"]
    if not torch.cuda.is_available():
        words += ["--device=cpu", "--compile=False"]
    times = []
    found: dict[str, Any] = {}
    command = [sys.executable, "-u", "-c", THEIR_PROGRAM, *words]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if measured := re.match(r"iter (\d+): loss ([\d.]+)", line):
                times.append(time.perf_counter())
                found["loss"] = float(measured[2])
            elif line.startswith("memory "):
                found["memory_gb"] = float(line.split()[1])
    if process.returncode:
        raise RuntimeError(f"train.py ended with {process.returncode}")
    every = overrides["monitor.every_steps"]
    steps_ms = [1000 * (b - a) / every for a, b in itertools.pairwise(times[WARM:])]
    step = statistics.median(steps_ms) / 1000
    found |= {"step_ms": 1000 * step, "tokens_per_second": batch * block / step}
    return found | {"step_ms_range": [min(steps_ms), max(steps_ms)]}


COLUMNS = ["", "ms/step", "range", "tokens/s", "against the first", "MFU", "peak memory", "loss"]
COLUMNS += ["start"]


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{row['step_ms']:.1f}",
        spread(row, "step_ms", ".1f"),
        f"{row['tokens_per_second']:,.0f}",
        gain(row, done.get(next(iter(LADDER))), "tokens_per_second"),
        share(row, "mfu"),
        f"{row['memory_gb']:.1f} GB",
        f"{row['loss']:.3f}",
        f"{row['start_s']:.0f} s" if "start_s" in row else "",
    ]


def main() -> None:
    arguments = begin(__doc__, "llm", steps=40)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tokens(
            folder / "data", *((10_000, 500) if arguments.rehearse else (20_000_000, VOCABULARY))
        )
        common = FLAGS | {"data.path": folder / "data", "data.batch_size": BATCH}
        common |= {"training.max_steps": arguments.steps}
        small = REHEARSAL if arguments.rehearse else {}
        plan: dict[str, Any] = {
            name: lambda on=on: ours(folder, common | on | small)
            for name, on in ladder(OFF, LADDER).items()
        }
        plan["nanoGPT's structure, compiled, bf16"] = lambda: theirs(common | small)
        checkout = os.environ.get(NANOGPT)
        if checkout:
            their_folder = Path(checkout).resolve()
            plan[THEIR_OWN] = lambda: their_own(folder, common | small, their_folder)
        everything = list(ladder(OFF, LADDER).values())[-1]
        for name, change in BESIDE.items():
            on = common | everything | change | small
            plan[name] = lambda on=on, name=name: ours(folder, on, name)
        how = f"batch {BATCH}, block {BLOCK}, {arguments.steps} steps a row"
        how += f", the first {WARM * EVERY} not counted"
        book = Book("llm", COLUMNS, cells, list(plan), arguments, how)
        book.run(lambda: plan, tuple(name for name in FIRST if name in plan))


if __name__ == "__main__":
    main()
