"""What each optimization is worth on a GPU for T5: T5-base, and T5-large in fp32 against TF32.

Fresh weights, made-up pairs of 512 source and 128 target tokens of T5's vocabulary, so that nothing
is padded. fp32 without anything, then TF32, bf16, compile and fused AdamW, cumulative, and fp8.
Takes about 8 minutes on an H200.

    make bench-gpu PART=seq2seq
    make bench-gpu PART=seq2seq ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rows import WARM, Book, begin, gain, ladder, project, share, spread, train

BATCH, SOURCE, TARGET, PAIRS, VOCABULARY, EVERY = 16, 512, 128, 4096, 32_128, 5
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
    "T5-base, Adafactor instead of AdamW": ("+ fused AdamW", {"optimizer.name": "adafactor"}),
    "T5-large, fp32": ("", OFF | LARGE),
    "T5-large, TF32": ("T5-large, fp32", OFF | LARGE | {"training.precision": "tf32"}),
}
# What is claimed of them: everything against nothing; TF32 for a large one.
FIRST = ("T5-base, no optimization (fp32)", "+ fused AdamW", "T5-large, fp32", "T5-large, TF32")
REHEARSAL = {
    "data.batch_size": 2,
    "monitor.every_steps": 1,
    "model.layers": 1,
    "model.width": 128,
    "model.heads": 2,
    "model.hidden": 128,
    "compile.enabled": "false",
    "training.fp8_emulation": "true",
}


def write_pairs(folder: Path, source: int, target: int, count: int, vocabulary: int) -> None:
    """A store of made-up pairs by Zipf's law; a target repeats the beginning of its source."""
    import numpy as np

    dataset = project("dataset")
    tokenizer = project("bytepairs").Byte()
    random = np.random.default_rng(0)
    drawn = np.minimum(random.zipf(1.2, (count, source)) + 300, vocabulary - 1)
    drawn[:, -1] = 1
    pairs = [dataset.Pair(row, np.append(row[: target - 1], 1), 4 * target) for row in drawn]
    facts = {"vocabulary": vocabulary, "start": 0, "prefix": "", "limits": [source, target]}
    dataset.write(folder, tokenizer, {"train": pairs, "validation": [], "test": []}, facts)


def ours(folder: Path, against: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """A row of the project's own loop, to compare with another row."""
    measured = train(folder, overrides)
    names = ("step_ms", "samples_per_second", "tokens_per_second", "mfu", "data_wait_fraction")
    figures = measured.steady(*names) | {
        "loss": measured.rows[-1]["loss"],
        "start_s": measured.ready_s,
    }
    return figures | {"against": against, "fp8_layers": measured.state("fp8")}


COLUMNS = [
    "",
    "ms/step",
    "range",
    "pairs/s",
    "target tokens/s",
    "speed",
    "against",
    "MFU",
    "peak memory",
    "loss",
]


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{row['step_ms']:.1f}",
        spread(row, "step_ms", ".1f"),
        f"{row['samples_per_second']:,.1f}",
        f"{row['tokens_per_second']:,.0f}",
        gain(row, done.get(row["against"]), "samples_per_second"),
        row["against"],
        share(row, "mfu"),
        f"{row['memory_gb']:.1f} GB",
        f"{row['loss']:.3f}",
    ]


def main() -> None:
    arguments = begin(__doc__, "seq2seq", steps=40)
    source, target, pairs, vocabulary = SOURCE, TARGET, PAIRS, VOCABULARY
    if arguments.rehearse:
        source, target, pairs, vocabulary = 24, 16, 64, 512
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_pairs(folder / "data", source, target, pairs, vocabulary)
        common = {"data.path": folder / "data", "data.batch_size": BATCH, "model.size": "base"}
        common |= {"training.max_steps": arguments.steps, "monitor.every_steps": EVERY}
        common |= {"schedule.warmup_steps": 10}
        small = REHEARSAL if arguments.rehearse else {}
        rungs = ladder(OFF, LADDER)
        first, *others = rungs
        plan = {first: ("", rungs[first])} | {name: (first, rungs[name]) for name in others}
        for name, (against, change) in BESIDE.items():
            plan[name] = (against, list(rungs.values())[-1] | change)
        how = f"batch {BATCH}, {source}/{target} tokens, "
        how += f"{arguments.steps} steps a row, the first {WARM * EVERY} not counted"
        book = Book("seq2seq", COLUMNS, cells, list(plan), arguments, how)
        works: dict[str, Any] = {
            name: lambda against=against, on=on: ours(folder, against, common | on | small)
            for name, (against, on) in plan.items()
        }
        book.run(lambda: works, FIRST)


if __name__ == "__main__":
    main()
