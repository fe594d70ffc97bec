"""The other side of `benchmarks/chat.py`: peft with transformers' Trainer and with TRL.

It has an environment of its own. Each mode prints its results as lines of JSON:

    chatting.py speed FOLDER CHATS     # one for each line of its input: {"side": "padded", "seed": 1}
    chatting.py equal FOLDER CHATS     # one: losses from the adapter in `first`, logits of `last`
    chatting.py damage FOLDER CHATS    # one for each case
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("torch", "transformers", "peft", "trl")
POOL = 50  # batches that are sorted together, as transformers' LengthGroupedSampler does
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
QUIET: dict[str, Any] = {
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "optim": "adamw_torch_fused",
    "dataloader_pin_memory": False,
}

Chats = list[dict[str, list[int]]]  # input_ids and labels of each


def read_chats(path: Path) -> Chats:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def adapted(folder: Path, dropout: float = 0.0) -> Any:
    """The model of a folder with fresh LoRA matrices."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return get_peft_model(model, LoraConfig(**LORA, lora_dropout=dropout))


def trainer_of(side: str, model: Any, tokenizer: Any, chats: Chats, options: dict[str, Any]) -> Any:
    """Trainer with padding, or TRL's with or without packing. options: of its arguments."""
    if side in ("padded", "sorted", "Trainer"):
        from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

        rows = [{**chat, "attention_mask": [1] * len(chat["input_ids"])} for chat in chats]
        arguments = TrainingArguments(**QUIET, **options)
        collator = DataCollatorForSeq2Seq(tokenizer)
        return Trainer(model, arguments, train_dataset=rows, data_collator=collator)
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    # Activation checkpointing is TRL's default, and costs time for memory.
    config = SFTConfig(**QUIET, gradient_checkpointing=False, bf16=False, **options)
    rows = Dataset.from_list(chats)
    return SFTTrainer(model, config, train_dataset=rows, processing_class=tokenizer)


# ---- speed ---------------------------------------------------------------------------------------


def chosen(side: str, chats: Chats, seed: int, batch: int, steps: int) -> Chats:
    """The conversations of a round, in the order of their batches."""
    random = np.random.default_rng(seed)
    count = min(POOL, len(chats) // batch) * batch
    places = random.permutation(len(chats))[:count]
    if side == "sorted":
        lengths = [len(chats[place]["input_ids"]) for place in places]
        batches = places[np.argsort(lengths, kind="stable")].reshape(-1, batch)
        places = batches[random.permutation(len(batches))[:steps]].flatten()
    elif side == "padded":
        places = places[: steps * batch]
    return [chats[place] for place in places.tolist()]


def speed(plan: argparse.Namespace) -> None:
    """Real tokens per CPU second of each round. The model is loaded once."""
    from transformers import AutoTokenizer, TrainerCallback

    model = adapted(plan.folder)
    tokenizer = AutoTokenizer.from_pretrained(plan.folder)
    chats = read_chats(plan.chats)

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.seconds = -time.process_time()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.seconds += time.process_time()

    for line in sys.stdin:
        order = json.loads(line)
        side = order["side"]
        rows = chosen(side, chats, order["seed"], plan.batch, plan.steps)
        with tempfile.TemporaryDirectory() as place:
            options: dict[str, Any] = {"output_dir": place, "save_strategy": "no"}
            options |= {"max_steps": plan.steps, "learning_rate": 1e-5, "logging_steps": 10**6}
            options["per_device_train_batch_size"] = plan.batch
            if side == "packed":
                options |= {"packing": True, "max_length": plan.block}
                options |= {"per_device_train_batch_size": 1, "max_steps": plan.packs}
            else:
                options["train_sampling_strategy"] = "sequential"
            trainer = trainer_of(side, model, tokenizer, rows, options)
            tokens = count_tokens(trainer)
            clock = Clock()
            trainer.add_callback(clock)
            trainer.train()
        result = {"tokens": sum(tokens), "seconds": clock.seconds, "versions": versions()}
        print(json.dumps(result), flush=True)


def count_tokens(trainer: Any) -> list[int]:
    """Real tokens of each batch that the trainer will see: its attention mask, or all of them."""
    counts: list[int] = []
    step = trainer.training_step

    def counting(model: Any, inputs: Any, *more: Any, **names: Any) -> Any:
        mask = inputs.get("attention_mask")
        present = inputs["input_ids"] if mask is None else mask
        counts.append(present.numel() if mask is None else int(mask.sum()))
        return step(model, inputs, *more, **names)

    trainer.training_step = counting
    return counts


def versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


# ---- damage --------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Flip the highest bit of an exponent, in the last number of the file but 100."""
    content = bytearray(path.read_bytes())
    content[-401] ^= 0x40
    path.write_bytes(content)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "none": ("adapter_model.safetensors", lambda path: None),
    "flipped bit": ("adapter_model.safetensors", flip),
    "truncated file": ("optimizer.pt", cut),
    "missing file": ("rng_state.pth", Path.unlink),
}


def damage(plan: argparse.Namespace) -> None:
    """What a resume of each trainer does after each kind of damage to its newest checkpoint."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(plan.folder)
    chats = read_chats(plan.chats)
    options: dict[str, Any] = {"max_steps": 6, "save_steps": 2, "logging_steps": 1}
    options |= {"per_device_train_batch_size": 4, "learning_rate": 1e-2}

    def losses(side: str, place: Path, resume: bool) -> dict[int, float]:
        model = adapted(plan.folder, dropout=0.1)
        trainer = trainer_of(side, model, tokenizer, chats, {**options, "output_dir": place})
        trainer.train(resume_from_checkpoint=resume)
        history = trainer.state.log_history
        return {row["step"]: row["loss"] for row in history if "loss" in row}

    for side in ("Trainer", "TRL"):
        for case, (name, spoil) in DAMAGE.items():
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                whole = losses(side, place, resume=False)
                shutil.rmtree(place / "checkpoint-6")
                spoil(place / "checkpoint-4" / name)
                outcome = resumed(lambda: losses(side, place, resume=True), whole)  # noqa: B023
            facts = {"side": side, "case": case, "versions": versions()}
            print(json.dumps({**facts, **outcome}), flush=True)


def resumed(run: Callable[[], dict[int, float]], whole: dict[int, float]) -> dict[str, Any]:
    """The error of a resumed run, or how far its losses are from those of a whole one."""
    try:
        found = run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    distances = [abs(found[step] - loss) for step, loss in whole.items()]
    is_finite = all(math.isfinite(distance) for distance in distances)
    return {"distance": max(distances) if is_finite else None}


# ---- equality ------------------------------------------------------------------------------------


def equal(plan: argparse.Namespace) -> None:
    """Losses of peft's own training from the same matrices, on padded batches of the same chats;
    and logits of the adapter that the other side ended with, next to the weights and merged."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(plan.folder, dtype=torch.float32)

    place = plan.chats.parent
    model = PeftModel.from_pretrained(base(), place / "first", is_trainable=True).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=plan.rate, weight_decay=0.0)
    chats = read_chats(plan.chats)
    losses = []
    for begin in range(0, len(chats), plan.batch):
        rows = chats[begin : begin + plan.batch]
        longest = max(len(row["input_ids"]) for row in rows)
        batch = {}
        for name, padding in (("input_ids", 0), ("labels", -100)):
            filled = [row[name] + [padding] * (longest - len(row[name])) for row in rows]
            batch[name] = torch.tensor(filled)
        mask = [
            [1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows
        ]
        loss = model(**batch, attention_mask=torch.tensor(mask)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    loaded = PeftModel.from_pretrained(base(), place / "last").eval()
    tokens = torch.tensor([chats[0]["input_ids"]])
    with torch.no_grad():
        logits = loaded(tokens).logits
        merged = loaded.merge_and_unload()(tokens).logits
    np.savez(place / "logits.npz", adapter=logits.numpy(), merged=merged.numpy())
    print(json.dumps({"losses": losses, "versions": versions()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["speed", "equal", "damage"])
    parser.add_argument("folder", type=Path, help="of the model")
    parser.add_argument("chats", type=Path, help="JSON lines with input_ids and labels")
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--packs", type=int, default=2, help="steps with packing")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of `equal`")
    plan = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    {"speed": speed, "equal": equal, "damage": damage}[plan.mode](plan)


if __name__ == "__main__":
    main()
