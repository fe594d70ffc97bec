"""A decoder of the Llama family. Replace it with your own: the engine calls only `build_model`.

A batch is one sequence of `N` tokens: packed samples one after the other. Attention never leaves a
conversation, and positions begin at 0 in each, so packing changes no result.

Shapes: `N` tokens, `C` width, `H` heads, `D` numbers of a head, `V` vocabulary, `A` answer tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .cross_entropy import autocast_dtype, cross_entropy
from .dataset import IGNORE
from .engine.compute.gpus import this_card
from .engine.errors import UserError, note
from .engine.interfaces import Batch, Output
from .pretrained import Architecture, load_weights, model_folder, read_object
from .settings import Settings
from .tokenizer import read_definition

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
VARLEN_CAPABILITY = (8, 0)  # torch's attention over texts of any length needs this GPU, or a newer


def build_model(settings: Settings, facts: dict[str, Any]) -> Decoder:
    """Build the model. Raises `UserError` if pretrained weights cannot be loaded or do not fit."""
    sizes = settings.model
    vocabulary = facts["vocabulary"]
    if not sizes.pretrained:
        config = sizes.fresh(vocabulary, settings.data.block_size)
        model = Decoder(Architecture.of(config, "model"), config)
        model.initialize()
        return model

    folder = model_folder(sizes.pretrained)
    config = read_object(folder / "config.json")
    architecture = Architecture.of(config, str(folder / "config.json"))
    again = "prepare the data with this model.pretrained"
    if (
        architecture.vocabulary < vocabulary
        or read_definition(folder) != facts["tokenizer"]["definition"]
    ):
        raise UserError("the data have the tokens of another model", str(folder), again)
    if facts["max_tokens"] > architecture.context:
        what = f"the data have up to {facts['max_tokens']:,} tokens, but the model sees"
        raise UserError(
            f"{what} {architecture.context:,}", str(folder), f"{again} and --max-tokens"
        )
    probe = torch.empty(0)
    if probe.is_meta or type(probe) is not Tensor:  # to count FLOPs or bytes
        return Decoder(architecture, config)
    with torch.device("meta"):  # no weight is drawn only to be replaced
        model = Decoder(architecture, config)
    model.to_empty(device="cpu")
    model.frequencies = architecture.frequencies()
    load_weights(model, folder)
    return model


class Documents(NamedTuple):
    """Where conversations begin in a batch, in the form that the device's attention wants."""

    lengths: list[int] | None = None  # on a CPU
    borders: Tensor | None = None  # (documents + 1,) int32, for `varlen_attn`
    longest: int = 0
    mask: Tensor | None = None  # (N, N), True where a query may look


def find_documents(first: Tensor, dtype: torch.dtype) -> Documents:
    """Describe the conversations. first (B, T) is True at the first token of each."""
    num_samples, longest = first.shape
    if first.is_meta or type(first) is not Tensor:  # a shape alone, to count FLOPs and memory
        return Documents(lengths=[longest] * num_samples)
    if is_on_host(first):
        begins = first.flatten().nonzero()[:, 0].tolist()  # host sync, on the host
        lengths = np.diff([*begins, first.numel()]).tolist()
        return Documents(lengths=lengths)
    if has_varlen(first.device, dtype):
        return Documents(borders=borders_of(first), longest=longest)
    note("attention masks most of a batch, which is slow; half precision from sm 8.0 on does not")
    return Documents(mask=mask_of(first))


def is_on_host(tensor: Tensor) -> bool:
    """Whether values are there at once: not on a GPU, nor of a shape alone, as in `estimate`."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor


def borders_of(first: Tensor) -> Tensor:
    """Return where each conversation begins, and the end (documents + 1,) int32.

    A size that does not depend on the data needs no host sync. A conversation has at least two
    tokens; documents beyond the last one are empty.
    """
    count = first.numel()
    size = count // 2 + len(first)
    begins = torch.nonzero_static(first.flatten(), size=size, fill_value=count)[:, 0]
    borders = functional.pad(begins, (0, 1), value=count)
    return borders.int()


def mask_of(first: Tensor) -> Tensor:
    """Return where a query may look (N, N): at earlier tokens of its conversation."""
    number = first.flatten().cumsum(0)
    place = torch.arange(len(number), device=first.device)
    is_same = number[:, None] == number
    is_earlier = place[:, None] >= place
    return is_same & is_earlier


def has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has an attention over texts of any length for this device and dtype."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    capability = this_card(device).capability or (0, 0)
    return capability >= VARLEN_CAPABILITY


def attend(query: Tensor, key: Tensor, value: Tensor, documents: Documents) -> Tensor:
    """Causal attention inside each document: query (N, H, D), key and value with fewer heads."""
    if documents.lengths is not None:
        parts = [tensor.split(documents.lengths) for tensor in (query, key, value)]
        each = [causal(*part) for part in zip(*parts, strict=True)]
        return torch.cat(each)
    if documents.borders is not None:
        return attend_between(documents.borders, documents.longest, query, key, value)
    return causal(query, key, value, documents.mask)


def attend_between(
    borders: Tensor, longest: int, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Compute `attend` by torch's `varlen_attn`, which has other parameters before torch 2.12."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"window_size": (-1, 0)}
    if TORCH < (2, 11):
        options = {"is_causal": True}
    group = query.shape[1] // key.shape[1]
    if group > 1 and TORCH < (2, 12):
        key = key.repeat_interleave(group, 1)
        value = value.repeat_interleave(group, 1)
    elif group > 1:
        options["enable_gqa"] = True
    mixed: Any = varlen_attn(query, key, value, borders, borders, longest, longest, **options)
    return mixed


def causal(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Causal attention of query (T, H, D); a single query sees all keys (S, H, D)."""
    is_causal = mask is None and len(query) > 1
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, enable_gqa=True
    )
    return mixed[0].transpose(0, 1)


class Cache:
    """Keys and values of one layer, for the tokens so far."""

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep new keys and values (T, H, D); return those of all tokens so far."""
        if self.key is not None and self.value is not None:
            key = torch.cat([self.key, key])
            value = torch.cat([self.value, value])
        self.key = key
        self.value = value
        return key, value


class Attention(nn.Module):
    """Self-attention in which several heads share keys and values, (N, C) to (N, C)."""

    def __init__(self, sizes: Architecture):
        super().__init__()
        self.head = sizes.head
        inner = sizes.heads * sizes.head
        shared = sizes.key_value_heads * sizes.head
        self.q_proj = nn.Linear(sizes.width, inner, bias=sizes.input_bias)
        self.k_proj = nn.Linear(sizes.width, shared, bias=sizes.input_bias)
        self.v_proj = nn.Linear(sizes.width, shared, bias=sizes.input_bias)
        self.o_proj = nn.Linear(inner, sizes.width, bias=sizes.output_bias)
        self.normalizes_heads = sizes.normalizes_heads
        if sizes.normalizes_heads:
            self.q_norm = nn.RMSNorm(sizes.head, sizes.epsilon)
            self.k_norm = nn.RMSNorm(sizes.head, sizes.epsilon)

    def forward(
        self, x: Tensor, rotation: Tensor, documents: Documents, cache: Cache | None
    ) -> Tensor:
        query = self.q_proj(x).unflatten(-1, (-1, self.head))  # (N, H, D)
        key = self.k_proj(x).unflatten(-1, (-1, self.head))
        value = self.v_proj(x).unflatten(-1, (-1, self.head))
        if self.normalizes_heads:
            query = self.q_norm(query)
            key = self.k_norm(key)
        query = rotate(query, rotation).to(value.dtype)
        key = rotate(key, rotation).to(value.dtype)
        if cache is not None:
            key, value = cache.add(key, value)
        mixed = attend(query, key, value, documents)
        return self.o_proj(mixed.flatten(-2))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each pair (d, d + D/2) of x (N, H, D). rotation: cosine and sine (2, N, 1, D/2)."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    rotated_first = first * cos - second * sin
    rotated_second = second * cos + first * sin
    return torch.cat([rotated_first, rotated_second], -1)


class Hidden(nn.Module):
    """The gated hidden layer SwiGLU, (N, C) to (N, C)."""

    def __init__(self, sizes: Architecture):
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.hidden, bias=sizes.hidden_bias)
        self.up_proj = nn.Linear(sizes.width, sizes.hidden, bias=sizes.hidden_bias)
        self.down_proj = nn.Linear(sizes.hidden, sizes.width, bias=sizes.hidden_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate = functional.silu(self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x))


class Block(nn.Module):
    """Attention and a hidden layer, each with a norm before it and a residual connection.

    The names of all layers are those of Hugging Face, so weights need no mapping.
    """

    def __init__(self, sizes: Architecture):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.width, sizes.epsilon)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(sizes.width, sizes.epsilon)
        self.mlp = Hidden(sizes)

    def forward(
        self, x: Tensor, rotation: Tensor, documents: Documents, cache: Cache | None = None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, documents, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Predicts the next token of each conversation."""

    frequencies: Tensor

    def __init__(self, sizes: Architecture, config: dict[str, Any]):
        """config: the `config.json` of the model, which `export` writes."""
        super().__init__()
        self.sizes = sizes
        self.config = config
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, sizes.epsilon)
        self.lm_head = None
        if not sizes.is_tied:
            self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.register_buffer("frequencies", sizes.frequencies(), persistent=False)

    def initialize(self) -> None:
        """Draw fresh weights; the two residual branches of a block add up along the depth."""
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            deviation = 0.02
            if name.endswith(("o_proj.weight", "down_proj.weight")):  # the residual branches
                deviation /= math.sqrt(2 * self.sizes.layers)
            nn.init.normal_(weight, std=deviation)

    def blocks(self) -> list[nn.Module]:
        """The layers, which are compiled, checkpointed and sharded one by one."""
        return list(self.layers)

    @property
    def head_weight(self) -> Tensor:
        """The weight (V, C) of the logits."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def states(
        self,
        tokens: Tensor,
        positions: Tensor,
        documents: Documents,
        caches: list[Cache] | None = None,
    ) -> Tensor:
        """Return the last states (N, C) of tokens (N,), normalized."""
        angles = positions[:, None, None] * self.frequencies
        rotation = torch.stack([angles.cos(), angles.sin()])
        x = self.embed_tokens(tokens)
        for number, layer in enumerate(self.layers):
            cache = caches[number] if caches else None
            x = layer(x, rotation, documents, cache)
        return self.norm(x)

    def states_of(self, batch: Batch) -> Tensor:
        first = batch["first"]
        documents = find_documents(first, autocast_dtype(first.device.type))
        tokens = batch["tokens"].flatten()
        positions = batch["positions"].flatten()
        return self.states(tokens, positions, documents)

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits of each next token (B, T, V)."""
        states = self.states_of(batch)
        logits = functional.linear(states, self.head_weight)
        return logits.unflatten(0, batch["tokens"].shape)

    def forward(self, batch: Batch) -> Output:
        x = self.states_of(batch)
        targets = batch["targets"].flatten()
        # Logits are needed for answers only. On a GPU, counting these would be a host sync.
        chosen = targets != IGNORE if is_on_host(targets) else slice(None)
        x = x[chosen]  # host sync, on the host
        targets = targets[chosen]  # host sync, on the host
        total, is_right = cross_entropy(x, self.head_weight, targets, not self.training)
        present = targets != IGNORE
        total_weight = present.sum(dtype=torch.float32)
        output = Output(total / total_weight.clamp(min=1), total_weight)
        if self.training:
            return output

        number = batch["first"].flatten().cumsum(0)[chosen]  # host sync, on the host
        most = batch["first"].numel()
        return output._replace(metrics=hits(is_right, present, number, most, total_weight))

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B, T) int64, the most likely next token at each position."""
        return {"prediction": self.logits(batch).argmax(-1)}

    @torch.no_grad()
    def generate(
        self,
        tokens: list[int],
        count: int,
        ends: list[int],
        temperature: float = 0.0,
        top_k: int = 0,
        seed: int = 0,
    ) -> list[int]:
        """Return up to `count` tokens that continue a conversation, without the end.

        temperature: 0 takes the most likely token. top_k: sample from this number of most likely
        tokens; 0 samples from all.
        """
        device = self.frequencies.device
        random = torch.Generator(device).manual_seed(seed)
        caches = [Cache() for _ in self.layers]
        new = tokens
        added: list[int] = []
        while len(added) < count:
            end = len(tokens) + len(added)
            positions = torch.arange(end - len(new), end, device=device)
            # torch.compile would compile again for every length.
            with torch.compiler.set_stance("force_eager"):
                given = torch.tensor(new, device=device)
                x = self.states(given, positions, Documents(), caches)[-1:]
            logits = functional.linear(x, self.head_weight).float()
            token = int(draw(logits, temperature, top_k, random))
            if token in ends:
                break
            added.append(token)
            new = [token]
        return added


def hits(
    is_right: Tensor, present: Tensor, number: Tensor, most: int, total_weight: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return metrics of answers. number (A,): the conversation of each token, up to `most`.

    If every token is right given the true ones before it, greedy decoding gives this answer.
    """
    ones = torch.stack([is_right & present, present]).float()
    counts = torch.zeros(2, most + 1, device=number.device).index_add(1, number, ones)
    right, known = counts
    has_answer = known > 0
    is_exact = has_answer & (right == known)
    return {
        "token_accuracy": (right.sum(), total_weight),
        "exact_match": (is_exact.sum(), has_answer.sum()),
    }


def draw(logits: Tensor, temperature: float, top_k: int, random: torch.Generator) -> Tensor:
    """Sample a token (1, 1) from logits (1, V)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    probabilities = (logits / temperature).softmax(-1)
    return torch.multinomial(probabilities, 1, generator=random)
