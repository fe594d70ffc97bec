"""A script around HF Trainer, which docs/how-to/from-trainer.md converts: a GPT-2 from a config on bytes
of text."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

BLOCK, END = 32, 256


class Blocks(Dataset):
    def __init__(self, tokens: torch.Tensor):
        self.blocks = tokens[: len(tokens) // BLOCK * BLOCK].view(-1, BLOCK)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


if __name__ == "__main__":
    with open("input.txt", "rb") as file:
        tokens = torch.tensor([*file.read(), END])
    border = int(0.9 * len(tokens))
    sizes = {"n_positions": BLOCK, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(vocab_size=END + 1, bos_token_id=END, eos_token_id=END, **sizes)
    arguments = TrainingArguments(
        "output",
        per_device_train_batch_size=8,
        num_train_epochs=2,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = {"train_dataset": Blocks(tokens[:border]), "eval_dataset": Blocks(tokens[border:])}
    trainer = Trainer(GPT2LMHeadModel(config), arguments, **data)
    trainer.train()
    trainer.save_model("output")
