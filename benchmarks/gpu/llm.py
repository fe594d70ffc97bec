"""What each optimization is worth on a GPU: GPT-2 small (124M), block 1024, one table row after the other.

fp32 without anything, then TF32, bf16, compile, fused AdamW and chunked loss one upon the other, fp8, and
activation checkpointing for its memory; between them a loop of nanoGPT's structure with compile, which
starts from the same weights. All rows see the same tokens in the same order. Each row is written when it
ends, so that a lost machine loses one row only. Takes about 8 minutes on an H200.

    make bench-gpu PART=llm ARGS="--output benchmark_results"
    python benchmarks/gpu/llm.py --project build/gpu/projects/llm-memmap-pytorch
    python benchmarks/gpu/llm.py --rehearse        # every row in small on a CPU, without worth as figures
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "benchmarks")]

BLOCK, VOCABULARY, EVERY = 1024, 50_257, 5
FLAGS = {
    "data.block_size": BLOCK,
    "data.order": "random_start",
    "model.size": "small",
    "model.positions": "learned",
    "optimizer.learning_rate": 6e-4,
    "optimizer.weight_decay": 0.1,
    "schedule.warmup_steps": 10,
    "monitor.every_steps": EVERY,
    "monitor.progress": "false",
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
    "+ chunked loss": {"model.chunked_loss": "true"},
}
REHEARSAL = {
    "data.block_size": 16,
    "model.layers": 1,
    "model.width": 128,
    "model.heads": 2,
    "compile.enabled": "false",
    "training.fp8_emulation": "true",
}
BESIDE = {  # all of the above, and this
    "fp8 instead of bf16": {"training.precision": "fp8"},
    "activation checkpointing": {"training.gradient_checkpointing": "true"},
}


def write_tokens(folder: Path, count: int = 20_000_000) -> None:
    """A store of made-up tokens by Zipf's law; every second one follows from the one before it."""
    import numpy as np

    random = np.random.default_rng(0)
    drawn = np.minimum(random.zipf(1.2, count), VOCABULARY - 1).astype(np.int64)
    drawn[1::2] = (drawn[::2] * 31 + 7) % (VOCABULARY - 1)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "store-random.h5"  # no HDF5 inside: h5py need not be there
    drawn.astype(np.uint16).tofile(path)
    digest, blocks = importlib.import_module("my_training.engine.files").checksums(path)
    manifest = {
        **{"format": 1, "workload": "llm", "source": {}},
        "facts": {"vocabulary": VOCABULARY, "token_bytes": [4] * (VOCABULARY - 1) + [0]},
        "splits": {"train": [0, count], "validation": [count, count], "test": [count, count]},
        "arrays": {"tokens": {"file": path.name, "offset": 0, "shape": [count], "dtype": "uint16"}},
        "files": {path.name: {"bytes": 2 * count, "sha256": digest, "crc32": blocks}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def ours(torch: Any, folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """A rendered project's own loop; the figures are those of its metrics."""
    load = importlib.import_module("my_training.config").load
    assembling = importlib.import_module("my_training.assemble")
    session_of = importlib.import_module("my_training.engine.session").Session
    distributed = importlib.import_module("my_training.engine.distributed").Distributed()
    fit = importlib.import_module("my_training.train").fit
    settings = load(overrides=[(key, str(value)) for key, value in (FLAGS | overrides).items()])
    run = Path(tempfile.mkdtemp(dir=folder))
    start = time.perf_counter()
    build = lambda settings: assembling.assemble(settings, distributed, assembling.open_store(settings))  # noqa: E731
    with contextlib.redirect_stdout(open(run / "log", "w")), session_of(run, settings, build) as session:
        for project in session.phases():
            ready = time.perf_counter() - start
            session.save = lambda: None
            fit(session)
            if session.exit_code:  # a signal: the row would be of fewer steps than the others
                sys.exit(session.exit_code)
            layers = [entry["state"] for entry in project.optimizations if entry["name"] == "fp8"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    late = rows[2:]  # two to warm up
    found = {
        "step_ms": statistics.median(row["step_ms"] for row in late),
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in late),
        "data_wait": statistics.median(row["data_wait_fraction"] for row in late),
        "loss": rows[-1]["loss"],
        "start_s": ready,
        "why": session.work.why,
    }
    if "mfu" in late[0]:
        found["mfu"] = statistics.median(row["mfu"] for row in late)
    return found | ({"fp8_layers": layers[0]} if layers else {})


def theirs(torch: Any, folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """nanoGPT's loop with compile, bf16, TF32 and fused AdamW, from the weights that ours start from."""
    import nanogpt
    import numpy as np

    load = importlib.import_module("my_training.config").load
    model_of = importlib.import_module("my_training.model").build_model
    throughput = importlib.import_module("my_training.engine.throughput")
    settings = load(overrides=[(key, str(value)) for key, value in (FLAGS | overrides).items()])
    facts = json.loads((Path(settings.data.path) / "manifest.json").read_text())["facts"]
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(settings.reproducibility.seed)
    start = time.perf_counter()
    same = model_of(settings, facts)
    padded = same.embedding.num_embeddings
    model = nanogpt.GPT(nanogpt.Config(settings.model.context, padded, *settings.model.shape))
    nanogpt.load_ours(model, same)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        model = torch.compile(model.to(device))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.999), device)
    data = np.memmap(Path(settings.data.path) / "store-random.h5", dtype=np.uint16, mode="r")
    batch, block, steps = settings.data.batch_size, settings.data.block_size, settings.training.max_steps
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
        if (iteration + 1) % EVERY == 0:
            loss = output.item()
            times.append(time.perf_counter())
            ready = times[0] - start
    step = statistics.median(b - a for a, b in itertools.pairwise(times[1:])) / EVERY
    example = {name: torch.zeros(1, block, dtype=torch.int64) for name in ("tokens", "targets")}
    flops = throughput.count_flops(lambda: model_of(settings, facts), example)
    peak, why = throughput.peak_of(torch.device(device), "bf16")
    found = {
        "step_ms": 1000 * step,
        "tokens_per_second": batch * block / step,
        "loss": loss,
        "start_s": ready,
    }
    return found | {"why": why} | ({"mfu": batch * flops / step / peak} if peak else {})


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; each against the first one."""
    lines = [
        "| | ms/step | tokens/s | against the first | MFU | peak memory | loss | start |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['name']} | {row['error']} | | | | | | |")
            continue
        first = rows[0].get("tokens_per_second")
        cells = [
            row["name"],
            f"{row['step_ms']:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['tokens_per_second'] / first:.2f}×" if first else "",
            f"{row['mfu']:.1%}" if "mfu" in row else "n/a",
            f"{row['memory_gb']:.1f} GB",
            f"{row['loss']:.3f}",
            f"{row['start_s']:.0f} s",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", type=Path, help="a project rendered with workload llm and precision fp8")
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "benchmark_results")))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    import torch

    if not (torch.cuda.is_available() or arguments.rehearse):
        sys.exit("error: no GPU: this benchmark has nothing to measure: benchmarks/llm.py is the CPU's")
    if arguments.project is None:
        from rendering import render

        arguments.project = render(workload="llm", precision="fp8", loader="memmap")
    sys.path.insert(0, str(arguments.project.resolve() / "src"))
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tokens(folder / "data")
        common = {"data.path": folder / "data", "data.batch_size": arguments.batch}
        common |= {"training.max_steps": arguments.steps}
        last = REHEARSAL if arguments.rehearse else {}
        plan: list[tuple[str, Any, dict[str, Any]]] = []
        on = dict(OFF)
        for name, change in LADDER.items():
            on |= change
            plan.append((name, ours, dict(on)))
        plan.append(("nanoGPT's structure, compiled, bf16", theirs, {}))
        plan += [(name, ours, on | change) for name, change in BESIDE.items()]
        for name, measured, overrides in plan:
            gc.unfreeze()
            gc.collect()
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            gpu = "none" if arguments.rehearse else torch.cuda.get_device_name()
            row: dict[str, Any] = {
                "name": name,
                "gpu": gpu,
                "torch": torch.__version__,
            }
            row |= {"batch": arguments.batch, "block": BLOCK}
            try:
                row |= measured(torch, folder, common | overrides | last)
                row["memory_gb"] = torch.cuda.max_memory_allocated() / 2**30
            except Exception as error:  # the other rows are worth having all the same
                row["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            rows.append(row)
            with open(arguments.output / "llm.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            (arguments.output / "llm.md").write_text(table(rows))
            print(table(rows[:1] + rows[-1:]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
