"""Fine-tuning on a GPU: a model of 135M and one of 1.2B weights, all of them or LoRA, next to a
hand-written loop.

The shapes are those of SmolLM2-135M and of Llama 3.2 1B, with random weights; the conversations are
made up and have mixed lengths. The other side is a plain loop around the same model and
`varlen_attn`: the same batches, all in memory, bf16, compiled blocks and fused AdamW. Takes about 6
minutes on an H200.

    make bench-gpu PART=chat
    make bench-gpu PART=chat ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rows import WARM, Book, begin, gain, project, share, spread, train

BLOCK, BATCH, CHATS, EVERY = 1024, 8, 6000, 5
SHAPES = {
    "135M": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "1.2B": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
COMMON = {"model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}
COMMON |= {"rope_theta": 500_000.0, "tie_word_embeddings": True, "eos_token_id": 257}
SMALL = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}
FLAGS = {
    "training.precision": "bf16",
    "schedule.warmup_steps": 10,
    "optimizer.learning_rate": 1e-4,
}
REHEARSAL: dict[str, Any] = {"data.batch_size": 1, "data.block_size": 64, "monitor.every_steps": 1}
REHEARSAL |= {"compile.enabled": "false"}
TRAINED = {"all weights": 0, "LoRA": 16}  # rank
BY_HAND = "hand-written loop"


def write_model(folder: Path, shape: dict[str, Any]) -> Path:
    """A folder of Hugging Face with random weights in bf16 and a tokenizer of bytes."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    config = COMMON | shape
    (folder / "config.json").write_text(json.dumps(config))
    facts = project("tokenizer").byte_tokenizer().facts
    (folder / "tokenizer.json").write_text(facts["definition"])
    (folder / "chat_template.jinja").write_text(facts["template"])
    (folder / "tokenizer_config.json").write_text(json.dumps(facts["special"]))
    pretrained = project("pretrained")
    with torch.device("meta"):
        model = project("model").Decoder(pretrained.Architecture.of(config, "config"), config)
    torch.manual_seed(0)
    weights = {}
    for name, weight in model.named_parameters():
        values = torch.ones(weight.shape, dtype=torch.bfloat16)
        if weight.dim() > 1:
            values.normal_(std=0.02)
        weights[pretrained.file_name(name)] = values
    save_file(weights, folder / "model.safetensors")
    return folder


def write_chats(folder: Path, model: Path, vocabulary: int, block: int, count: int) -> None:
    """A store of made-up conversations; the second half of each is the answer."""
    import numpy as np

    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(5.0, 0.9, count)).clip(8, block).astype(np.int64)
    begins = lengths.cumsum() - lengths
    total = int(lengths.sum())
    tokens = np.minimum(random.zipf(1.2, total), vocabulary - 1)
    place = np.arange(total) - np.repeat(begins, lengths)
    splits = {"train": [0, count], "validation": [count, count], "test": [count, count]}
    with project("engine.loading.store").StoreWriter(folder, "chat") as writer:
        writer.append("tokens", tokens.astype(np.uint32))
        writer.append("answer", place >= np.repeat(lengths // 2, lengths))
        writer.append("first", place == 0)
        writer.append("chats", np.stack([begins, lengths], 1))
        writer.splits = splits
        facts = project("tokenizer").read_tokenizer(model).facts
        writer.facts = {"vocabulary": vocabulary, "tokenizer": facts, "max_tokens": block}


def ours(folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """A row of the project's own loop."""
    found = train(folder, overrides)
    names = ("step_ms", "tokens_per_second", "data_wait_fraction", "mfu")
    return found.steady(*names) | {"loss": found.rows[-1]["loss"]}


def by_hand(overrides: dict[str, Any]) -> dict[str, Any]:
    """The same steps in a plain loop, whose batches are all in memory."""
    import torch

    words = [(key, str(value)) for key, value in overrides.items()]
    settings = project("settings").Settings.load(overrides=words)
    store = project("engine.loading.store").Store.open(settings.data.path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps, every = settings.training.max_steps, settings.monitor.every_steps
    samples = project("dataset").Samples(store, settings, "train")
    batches = batches_of(samples, store, settings, device)

    model = project("model").build_model(settings, store.facts)
    if settings.lora.rank:
        base = "bf16" if device.type == "cuda" else "fp32"
        project("hooks.lora").attach(model, settings.lora, base, torch.bfloat16)
    model.to(device)
    if device.type == "cuda":
        for layer in model.layers:
            layer.compile()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    times = []
    for step in range(steps):
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(batches[step % len(batches)]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % every == 0:
            last = loss.item()  # waits for the GPU
            times.append(time.perf_counter())
    steps_ms = [1000 * (after - before) / every for before, after in pairwise(times[WARM - 1 :])]
    step_ms = statistics.median(steps_ms)
    tokens = samples.tokens * settings.data.batch_size
    return {
        "step_ms": step_ms,
        "step_ms_range": [min(steps_ms), max(steps_ms)],
        "tokens_per_second": 1000 * tokens / step_ms,
        "loss": last,
    }


def batches_of(samples: Any, store: Any, settings: Any, device: Any) -> list[dict[str, Any]]:
    """The batches of the first steps."""
    samples.training = True
    order = project("engine.training.project").make_order(samples, settings, train=True)
    loader = project("engine.loading.loader").Loader(samples, store, settings, order, device)
    found = []
    for batch in loader.epoch(0):
        found.append({name: value.clone() for name, value in batch.items()})
        if len(found) == settings.training.max_steps:
            break
    loader.close()
    return found


COLUMNS = ["", "ms/step", "range", "tokens/s", "speed", "against", "MFU", "peak memory", "loss"]


def against(name: str) -> str:
    """The row of a hand-written loop that a row of ours is compared with."""
    return "" if name.endswith(BY_HAND) else f"{name}, {BY_HAND}"


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    other = against(row["name"])
    return [
        f"{row['step_ms']:.1f}",
        spread(row, "step_ms", ".1f"),
        f"{row['tokens_per_second']:,.0f}",
        gain(row, done.get(other), "tokens_per_second"),
        other,
        share(row, "mfu"),
        f"{row['memory_gb']:.1f} GB",
        f"{row['loss']:.3f}",
    ]


def plan_of(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    small = REHEARSAL if arguments.rehearse else {}
    block, count = (64, 40) if arguments.rehearse else (BLOCK, CHATS)
    plan: dict[str, Any] = {}
    for size, shape in SHAPES.items():
        shape = SMALL if arguments.rehearse else shape
        model = write_model(folder / size, shape)
        data = folder / f"data-{size}"
        write_chats(data, model, shape["vocab_size"], block, count)
        common = FLAGS | {"model.pretrained": model, "data.path": data}
        common |= {"data.block_size": BLOCK, "data.batch_size": BATCH}
        common |= {"training.max_steps": arguments.steps, "monitor.every_steps": EVERY}
        for trained, rank in TRAINED.items():
            flags = common | {"lora.rank": rank} | small
            name = f"{size}, {trained}"
            plan[f"{name}, {BY_HAND}"] = partial(by_hand, flags)
            plan[name] = partial(ours, folder, flags)
    return plan


def main() -> None:
    arguments = begin(__doc__, "chat", steps=40)
    names = []
    for size in SHAPES:
        for trained in TRAINED:
            names += [f"{size}, {trained}, {BY_HAND}", f"{size}, {trained}"]
    how = f"batch {BATCH}, block {BLOCK}, bf16, {arguments.steps} steps a row"
    how += f", the first {WARM * EVERY} not counted"
    book = Book("chat", COLUMNS, cells, names, arguments, how)
    with tempfile.TemporaryDirectory() as temporary:
        book.run(lambda: plan_of(Path(temporary), arguments))


if __name__ == "__main__":
    main()
