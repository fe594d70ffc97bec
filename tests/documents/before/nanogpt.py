"""A run in nanoGPT's structure, which docs/how-to/from-nanogpt.md converts: settings as globals,
characters in .bin files, random blocks, everything in out/ckpt.pt. Beside it lies model.py, as in
nanoGPT.
"""

import math
import os
import pickle

import numpy as np
import torch
from model import GPT, GPTConfig

out_dir = "out"
batch_size = 8
block_size = 32
n_layer, n_head, n_embd = 2, 2, 32
dropout = 0.0
bias = False
learning_rate, min_lr = 1e-2, 1e-3
max_iters = lr_decay_iters = 30
warmup_iters = 3
weight_decay, beta1, beta2 = 1e-1, 0.9, 0.99
grad_clip = 1.0
config = {
    name: value for name, value in globals().items() if isinstance(value, (int, float, bool, str))
}

torch.manual_seed(1337)

# data/NAME/prepare.py
with open("input.txt") as file:
    text = file.read()
chars = sorted(set(text))
stoi = {char: number for number, char in enumerate(chars)}
ids = np.array([stoi[char] for char in text], np.uint16)
parts = {"train": ids[: int(0.9 * len(ids))], "val": ids[int(0.9 * len(ids)) :]}
os.makedirs(out_dir, exist_ok=True)
for split, part in parts.items():
    part.tofile(f"{split}.bin")
with open("meta.pkl", "wb") as file:
    pickle.dump({"vocab_size": len(chars), "stoi": stoi}, file)


# train.py
def get_batch(split):
    data = np.memmap(f"{split}.bin", np.uint16, "r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
    )
    return x, y


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = torch.stack([model(*get_batch("val"))[1] for _ in range(5)]).mean()
    model.train()
    return found


model_args = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "block_size": block_size}
model_args |= {"bias": bias, "vocab_size": len(chars), "dropout": dropout}
model = GPT(GPTConfig(**model_args))
optimizer = model.configure_optimizers(weight_decay, learning_rate, (beta1, beta2), "cpu")

for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    logits, loss = model(*get_batch("train"))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

checkpoint = {
    "model": {
        f"_orig_mod.{name}": weight for name, weight in model.state_dict().items()
    },  # compiled
    "optimizer": optimizer.state_dict(),
    "model_args": model_args,
    "iter_num": max_iters,
    "best_val_loss": estimate_loss(),
    "config": config,
}
torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
