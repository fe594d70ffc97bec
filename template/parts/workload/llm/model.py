"""A decoder-only transformer. Replace it with your own: the engine calls only `build_model`.

Shapes: `B` texts, `T` tokens, `C` width, `H` heads, `D` = C / H, `V` padded vocabulary, `N` = B × T
targets.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .dataset import IGNORE
from .engine.errors import UserError
from .engine.interfaces import Batch, Output
from .settings import Model, Settings

# The vocabulary is padded to a multiple of this, which suits tensor cores (nanoGPT: 25 % on A100).
PAD = 64
LOGITS_BYTES = 256 << 20  # the maximum size of a chunk of float32 logits
ROTARY_BASE = 10_000.0  # Su et al. 2021, section 3.2.2


def build_model(settings: Settings, facts: dict[str, Any]) -> GPT:
    """Build the model. Raises `UserError` for settings that do not fit the data or each other."""
    sizes = settings.model
    known = facts["vocabulary"]
    if 0 < sizes.vocabulary < known:
        what = f"a vocabulary of {sizes.vocabulary} is smaller than the data's {known}"
        raise UserError(what, "model.vocabulary", "raise it, or set it to 0")
    block_size = settings.data.block_size
    if sizes.positions == "learned" and block_size > sizes.context:
        what = f"a block of {block_size} is longer than the table of {sizes.context} positions"
        remedy = "raise model.context, or use model.positions rotary"
        raise UserError(what, "data.block_size", remedy)
    return GPT(sizes, block_size, facts)


class Attention(nn.Module):
    """Causal self-attention, (B, T, C) to (B, T, C), with PyTorch's fused kernels."""

    def __init__(self, sizes: Model):
        super().__init__()
        _, self.heads, width = sizes.shape
        self.qkv = nn.Linear(width, 3 * width, bias=sizes.bias)
        self.out = nn.Linear(width, width, bias=sizes.bias)
        self.dropout = sizes.dropout

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.unbind(2)  # each (B, T, H, D)
        if rotation is not None:
            query, key = rotate(qkv[:, :, :2], rotation).unbind(2)
        query = query.transpose(1, 2)  # (B, H, T, D)
        key = key.transpose(1, 2)
        value = value.transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each pair (d, d + D/2) of x (B, T, 2, H, D) by its angle.

    rotation: cosine and sine of the angles (T, D/2, 2).
    """
    cos, sin = rotation[:, None, None].unbind(-1)  # (T, 1, 1, D/2)
    first, second = x.chunk(2, -1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(turned, -1).type_as(x)


class Block(nn.Module):
    """Attention and a hidden layer of 4 × C units, each with a residual connection."""

    def __init__(self, sizes: Model):
        super().__init__()
        width = sizes.shape.width
        self.attention_norm = make_norm(sizes)
        self.hidden_norm = make_norm(sizes)
        self.attention = Attention(sizes)
        self.hidden = nn.Linear(width, 4 * width, bias=sizes.bias)
        self.out = nn.Linear(4 * width, width, bias=sizes.bias)
        self.dropout = sizes.dropout

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        mixed = self.attention(self.attention_norm(x), rotation)
        x = x + functional.dropout(mixed, self.dropout, self.training)
        hidden = functional.gelu(self.hidden(self.hidden_norm(x)))
        return x + functional.dropout(self.out(hidden), self.dropout, self.training)


def make_norm(sizes: Model) -> nn.Module:
    width = sizes.shape.width
    if sizes.norm == "rms":
        return nn.RMSNorm(width)
    return nn.LayerNorm(width, bias=sizes.bias)


class Head(nn.Module):
    """The last norm, and the loss over the vocabulary, computed with the embedding's weight."""

    # Its backward directly follows its forward, so activation checkpointing would save no memory.
    recomputes = False

    def __init__(self, sizes: Model):
        super().__init__()
        self.norm = make_norm(sizes)
        self.chunked = sizes.chunked_loss

    def forward(self, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of cross-entropies, () float32, of x (B, T, C) against targets (B, T).

        weight: the embedding's weight (V, C).
        """
        x = self.norm(x).flatten(0, 1)
        targets = targets.flatten()
        rows = max(LOGITS_BYTES // (4 * len(weight)), 1)
        chunked = self.chunked
        if chunked == "auto":
            chunked = not torch.compiler.is_compiling()
        if chunked and len(x) > rows:
            return chunked_cross_entropy(x, weight, targets, rows)
        logits = functional.linear(x, weight).float()
        return functional.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORE)


class GPT(nn.Module):
    """Predicts the next token at each position. Embedding and head share one weight."""

    # The names of these layers in weights from a project with `layout: script`.
    script_names: ClassVar = {"norm": "head.norm"}

    rotation: Tensor
    token_bytes: Tensor

    def __init__(self, sizes: Model, block_size: int, facts: dict[str, Any]):
        super().__init__()
        layers, heads, width = sizes.shape
        self.block_size = block_size
        self.vocabulary = facts["vocabulary"]
        padded = -(-max(sizes.vocabulary, self.vocabulary) // PAD) * PAD
        self.embedding = nn.Embedding(padded, width)
        self.positions: nn.Embedding | None = None
        if sizes.positions == "learned":
            self.positions = nn.Embedding(sizes.context, width)
        self.layers = nn.ModuleList(Block(sizes) for _ in range(layers))
        self.head = Head(sizes)
        self.dropout = sizes.dropout
        rotation = rotation_table(block_size, width // heads)
        self.register_buffer("rotation", rotation, persistent=False)
        token_bytes = torch.tensor(facts["token_bytes"])
        self.register_buffer("token_bytes", token_bytes, persistent=False)
        self.apply(_initialize)
        # Two residual branches per block add up along the depth: see GPT-2, section 2.3.
        for name, parameter in self.named_parameters():
            if name.endswith("out.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def blocks(self) -> list[nn.Module]:
        """The layers and the head, which are compiled, checkpointed and sharded one by one."""
        return [*self.layers, self.head]

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the output of the last block (B, T, C), before the last norm."""
        time = tokens.shape[1]
        x = self.embedding(tokens)
        rotation = None
        if self.positions is None:
            rotation = self.rotation[:time]
        else:
            x = x + self.positions.weight[:time]
        x = functional.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, rotation)
        return x

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token (B, T, vocabulary), without the padding of V."""
        x = self.head.norm(self.hidden(tokens))
        return functional.linear(x, self.embedding.weight)[..., : self.vocabulary]

    def forward(self, batch: Batch) -> Output:
        targets = batch["targets"]
        total = self.head(self.hidden(batch["tokens"]), self.embedding.weight, targets)
        present = targets != IGNORE
        total_weight = present.sum(dtype=torch.float32)
        loss = total / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)

        # The end of a document has no bytes.
        text = targets.masked_fill(~present, self.vocabulary - 1)
        num_bytes = self.token_bytes[text].sum()
        metrics = {"bits_per_byte": (total / math.log(2), num_bytes)}
        return Output(loss, total_weight, metrics)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B, T) int64, the most likely next token at each position."""
        return {"prediction": self.logits(batch["tokens"]).argmax(-1)}

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, count: int, temperature: float = 1.0, top_k: int = 0, seed: int = 0
    ) -> Tensor:
        """Continue tokens (B, T) by `count` more: (B, T + count).

        temperature: 0 takes the most likely token. top_k: sample from this number of most likely
        tokens; 0 samples from all. The model sees the last `block_size` tokens.
        """
        random = torch.Generator(tokens.device).manual_seed(seed)
        for _ in range(count):
            # torch.compile would compile again for every length.
            with torch.compiler.set_stance("force_eager"):
                logits = self.logits(tokens[:, -self.block_size :])[:, -1].float()
            token = draw(logits, temperature, top_k, random)
            tokens = torch.cat([tokens, token], 1)
        return tokens


def draw(logits: Tensor, temperature: float, top_k: int, random: torch.Generator) -> Tensor:
    """Sample a token (B, 1) from logits (B, V)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    probabilities = (logits / temperature).softmax(-1)
    return torch.multinomial(probabilities, 1, generator=random)


def rotation_table(time: int, width: int) -> Tensor:
    """Return cosine and sine of the angle of each position and pair (T, D/2, 2)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(time), frequencies)
    return torch.stack([angles.cos(), angles.sin()], -1)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def chunked_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
    """Return the sum of cross-entropies, () float32, with the logits of `rows` targets at a time.

    x (N, C), weight (V, C), targets (N,).
    """
    device = x.device.type
    # FLOPs are counted on "meta", which has no autocast; torch 2.11 cannot compile a call to ask.
    if device != "meta" and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x = x.to(dtype)
        weight = weight.to(dtype)
    return ChunkedCrossEntropy.apply(x, weight, targets, rows)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Computes each chunk's gradients with its loss, so that backward needs no logits."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
        total = x.new_zeros((), dtype=torch.float32)
        x_gradients = []
        weight_gradient = None
        for chunk, target in zip(x.split(rows), targets.split(rows), strict=True):
            present = (target != IGNORE)[:, None]
            index = target.clamp(min=0)[:, None]
            scores = (chunk @ weight.t()).float().log_softmax(1)  # (rows, V)
            total = total - (scores.gather(1, index) * present).sum()
            if not any(context.needs_input_grad):
                continue

            gradient = scores.exp()
            minus_one = gradient.new_full(index.shape, -1.0)
            gradient = gradient.scatter_add(1, index, minus_one) * present
            gradient = gradient.to(x.dtype)
            x_gradients.append(gradient @ weight)
            product = (gradient.t() @ chunk).float()
            weight_gradient = product if weight_gradient is None else weight_gradient + product
        if any(context.needs_input_grad):
            context.save_for_backward(torch.cat(x_gradients), weight_gradient)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        scaled = [saved * gradient.to(saved.dtype) for saved in context.saved_tensors]
        return *scaled, None, None  # targets and rows have no gradients
