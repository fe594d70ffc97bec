"""Attention, encoder and decoder of a T5, computed with the library's layers.

The library adds mask and relative positions in every layer; here they are added once.

Shapes: `B` pairs, `S` source and `T` target tokens, `C` width, `H` heads, `D` units of a head, `V`
padded vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **named: Any,
) -> tuple[Tensor, None]:
    """Attention with one bias for positions and mask; query (B, H, T, D) to (B, T, H, D).

    T5 does not scale its scores. The library's `generate` passes positions and mask separately;
    training has already added them.
    """
    bias = named["position_bias"]
    if attention_mask is not None:
        bias = bias + attention_mask
    bias = bias.to(query.dtype)
    if query.device.type == UNFUSED:
        weights = (query @ key.mT).add_(bias).softmax(-1)
        mixed = functional.dropout(weights, named["dropout"]) @ value
    else:
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=named["dropout"], scale=1.0
        )
    return mixed.transpose(1, 2), None


UNFUSED = "cpu"  # where PyTorch's fused kernel lacks dropout and a gradient of the bias
ATTENTION = "one_bias"  # the name of `attend` in the library
AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, eager_mask)


def encode(t5: Any, source: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden states (B, S, C), and a mask for the padding (B, 1, 1, S)."""
    stack = t5.encoder
    absent = ~present[:, None, None]
    bias = positions(stack, source.shape[1]).masked_fill(absent, -math.inf)
    x = stack.dropout(stack.embed_tokens(source))
    for layer in stack.block:
        x = layer(x, None, bias)[0]
    closed = torch.where(absent, -math.inf, 0.0).to(bias)
    return stack.dropout(stack.final_layer_norm(x)), closed


def decode(t5: Any, tokens: Tensor, memory: Tensor, closed: Tensor) -> Tensor:
    """Return logits (B, T, V). Padding needs no mask, since it comes after all targets."""
    stack = t5.decoder
    length = tokens.shape[1]
    place = torch.arange(length, device=tokens.device)
    later = place > place[:, None]
    bias = positions(stack, length).masked_fill(later, -math.inf)
    x = stack.dropout(stack.embed_tokens(tokens))
    for layer in stack.block:
        x = layer(x, None, bias, memory, None, closed)[0]
    x = stack.dropout(stack.final_layer_norm(x))
    if t5.config.scale_decoder_outputs:
        x = x * t5.model_dim**-0.5
    return t5.lm_head(x)


def positions(stack: Any, length: int) -> Tensor:
    """Return the bias of relative positions (1, H, length, length), in the dtype of attention."""
    bias = stack.block[0].layer[0].SelfAttention.compute_bias(length, length)
    device = bias.device.type
    # FLOPs are counted on "meta", which has no autocast; torch 2.11 cannot compile a call to ask.
    if device != "meta" and torch.is_autocast_enabled(device):
        return bias.to(torch.get_autocast_dtype(device))
    return bias
