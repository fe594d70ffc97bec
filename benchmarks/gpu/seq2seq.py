"""What each optimization is worth on a GPU for T5: a ladder for T5-base, and T5-large in fp32 against TF32.

Fresh weights, made-up pairs of 512 source and 128 target tokens of T5's vocabulary, so that nothing is
padded. fp32 without anything, then TF32, bf16, compile and fused AdamW one upon the other, and fp8. Each row
is written when it ends, so that a lost machine loses one row only. Takes about 8 minutes on an H200; what
does not fit into the time is left out and named.

    make bench-gpu PART=seq2seq ARGS="--output benchmark_results"
    python benchmarks/gpu/seq2seq.py --project PROJECT      # without Copier: seq2seq, memmap, precision fp8
    python benchmarks/gpu/seq2seq.py --rehearse        # every row in small on a CPU, without worth as figures
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
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

SOURCE, TARGET, PAIRS, VOCABULARY, EVERY = 512, 128, 4096, 32_128, 5
SECONDS = 480
OFF = {
    "training.precision": "fp32",
    "compile.enabled": "false",
    "optimizer.fused": "false",
    "data.pin_memory": "false",
}
LADDER = {  # each row keeps what the rows above it have switched on
    "T5-base, no optimization (fp32)": {},
    "+ TF32": {"training.precision": "tf32"},
    "+ bf16": {"training.precision": "bf16", "data.pin_memory": "true"},
    "+ compile": {"compile.enabled": "true"},
    "+ fused AdamW": {"optimizer.fused": "true"},
}
LARGE = {"model.size": "large", "optimizer.fused": "true", "data.pin_memory": "true"}
BESIDE: dict[
    str, tuple[str, dict[str, Any]]
] = {  # name: (row to compare with, settings beside those of the ladder)
    "T5-base, fp8 instead of bf16": ("+ fused AdamW", {"training.precision": "fp8"}),
    "T5-large, fp32": ("", OFF | LARGE),
    "T5-large, TF32": ("T5-large, fp32", OFF | LARGE | {"training.precision": "tf32"}),
}
REHEARSAL = {
    "model.layers": 1,
    "model.width": 128,
    "model.heads": 2,
    "model.hidden": 128,
    "compile.enabled": "false",
    "training.fp8_emulation": "true",
}
REPORTED = (
    "nanoT5, T5-base on an A100: 4.10 s a step in FP32, 1.39 in TF32 (2.9x), 1.30 in bf16, 0.56 with compile"
)


def write_pairs(folder: Path, source: int, target: int, count: int) -> None:
    """A store of made-up pairs by Zipf's law; a target repeats the beginning of its source."""
    import numpy as np

    dataset = importlib.import_module("my_training.dataset")
    tokenizer = importlib.import_module("my_training.bytepairs").Byte()
    random = np.random.default_rng(0)
    drawn = np.minimum(random.zipf(1.2, (count, source)) + 300, VOCABULARY - 1)
    drawn[:, -1] = 1
    pairs = [dataset.Pair(row, np.append(row[: target - 1], 1), 4 * target) for row in drawn]
    facts = {"vocabulary": VOCABULARY, "start": 0, "prefix": "", "limits": [source, target]}
    dataset.write(folder, tokenizer, {"train": pairs, "validation": [], "test": []}, facts)


def measured(folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """A rendered project's own loop; the figures are those of its metrics."""
    load = importlib.import_module("my_training.config").load
    assembling = importlib.import_module("my_training.assemble")
    session_of = importlib.import_module("my_training.engine.session").Session
    distributed = importlib.import_module("my_training.engine.distributed").Distributed()
    fit = importlib.import_module("my_training.train").fit
    settings = load(overrides=[(key, str(value)) for key, value in overrides.items()])
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
    names = ("step_ms", "samples_per_second", "tokens_per_second", "mfu", "data_wait_fraction")
    found = {name: statistics.median(row[name] for row in late) for name in names if name in late[0]}
    return found | {"loss": rows[-1]["loss"], "start_s": ready, "fp8_layers": layers[0] if layers else ""}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; each against the one that it names."""
    lines = [
        "| | ms/step | pairs/s | target tokens/s | speed | against | MFU | peak memory | loss |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    done = {row["name"]: row for row in rows if "error" not in row}
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['name']} | {row['error']} | | | | | | | |")
            continue
        other = done.get(row["against"])
        speed = f"{row['samples_per_second'] / other['samples_per_second']:.2f}×" if other else ""
        cells = [
            row["name"],
            f"{row['step_ms']:.1f}",
            f"{row['samples_per_second']:,.1f}",
            f"{row['tokens_per_second']:,.0f}",
            speed,
            row["against"] if other else "",
            f"{row['mfu']:.1%}" if "mfu" in row else "n/a",
            f"{row['memory_gb']:.1f} GB",
            f"{row['loss']:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--project", type=Path, help="a project rendered with workload seq2seq, precision fp8"
    )
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "benchmark_results")))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="no row begins later (default: 480)")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    import torch

    if not (torch.cuda.is_available() or arguments.rehearse):
        sys.exit("error: no GPU: this benchmark has nothing to measure: benchmarks/seq2seq.py is the CPU's")
    if arguments.project is None:
        from rendering import render

        arguments.project = render(workload="seq2seq", precision="fp8", loader="memmap")
    sys.path.insert(0, str(arguments.project.resolve() / "src"))
    arguments.output.mkdir(parents=True, exist_ok=True)
    begun, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lengths = (24, 16, 256) if arguments.rehearse else (SOURCE, TARGET, PAIRS)
        write_pairs(folder / "data", *lengths)
        common = {"data.path": folder / "data", "data.batch_size": arguments.batch, "model.size": "base"}
        common |= {"training.max_steps": arguments.steps, "monitor.every_steps": EVERY}
        common |= {"monitor.progress": "false", "checkpoint.every_steps": 10**9, "schedule.warmup_steps": 10}
        plan, on, first = [], dict(OFF), next(iter(LADDER))
        for name, change in LADDER.items():
            on |= change
            plan.append((name, "" if name == first else first, dict(on)))
        plan += [(name, against, on | change) for name, (against, change) in BESIDE.items()]
        for name, against, overrides in plan:
            gc.unfreeze()
            gc.collect()
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            gpu = "none" if arguments.rehearse else torch.cuda.get_device_name()
            row: dict[str, Any] = {"name": name, "against": against, "gpu": gpu, "torch": torch.__version__}
            row |= {"batch": arguments.batch, "source": lengths[0], "target": lengths[1]}
            try:
                if time.perf_counter() - begun > arguments.seconds:
                    raise TimeoutError(f"left out, {arguments.seconds} s are over")
                row |= measured(folder, common | overrides | (REHEARSAL if arguments.rehearse else {}))
                row["memory_gb"] = torch.cuda.max_memory_allocated() / 2**30
            except Exception as error:  # the other rows are worth having all the same
                row["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            rows.append(row)
            with open(arguments.output / "seq2seq.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            (arguments.output / "seq2seq.md").write_text(f"{table(rows)}\n{REPORTED}.\n")
            print(table(rows).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
