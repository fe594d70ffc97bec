"""T5 from `transformers`: its layers, weights and decoding.

Replace it with your own: the engine calls only `build_model`.

Training calls the library's layers in the loops of `layers.py`, with the same results.

Shapes: `B` pairs, `S` source and `T` target tokens, `V` padded vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block
from transformers.utils import logging

from .dataset import IGNORE
from .engine.errors import UserError
from .engine.interfaces import Batch, Output
from .layers import ATTENTION, decode, encode
from .settings import Model, Settings

# The vocabulary is padded to a multiple of this, which suits tensor cores (nanoGPT: 25 % on A100).
PAD = 64


def build_model(settings: Settings, facts: dict[str, Any]) -> Seq2Seq:
    """Build the model. Raises `UserError` if pretrained weights cannot be loaded or do not fit."""
    sizes = settings.model
    if sizes.pretrained:
        return Seq2Seq(load_pretrained(sizes, facts), facts)
    size = sizes.shape
    # These two are not in the type hints of T5Config.
    of_tokens = {"decoder_start_token_id": facts["start"], "eos_token_id": facts["end"]}
    config: Any = T5Config(
        vocab_size=-(-facts["vocabulary"] // PAD) * PAD,
        d_model=size.width,
        d_kv=size.head,
        d_ff=size.hidden,
        num_layers=size.layers,
        num_heads=size.heads,
        feed_forward_proj=sizes.feed_forward,
        dropout_rate=sizes.dropout,
        pad_token_id=facts["start"],
        **of_tokens,
    )
    config._attn_implementation = ATTENTION
    return Seq2Seq(T5ForConditionalGeneration(config), facts)


def load_pretrained(sizes: Model, facts: dict[str, Any]) -> T5ForConditionalGeneration:
    """Load a T5 from a folder, or by name from the hub or its cache.

    The sizes come from the checkpoint, dropout from the settings. Weights are float32, from
    safetensors, because loading a pickle can run code.
    """
    name = sizes.pretrained
    where = f"model.pretrained {name}"
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    library: Any = T5ForConditionalGeneration
    try:
        config: Any = T5Config.from_pretrained(name, dropout_rate=sizes.dropout)
        config._attn_implementation = ATTENTION
        check_fit(config, facts, where)
        probe = torch.empty(0)
        if probe.is_meta or type(probe) is not Tensor:  # to count FLOPs or bytes
            return library(config)
        model, report = library.from_pretrained(
            name,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        what = f"the pretrained model cannot be loaded ({reason})"
        remedy = "provide a folder with config.json and model.safetensors, or go online once"
        raise UserError(what, where, remedy) from error

    missing = sorted(report["missing_keys"])
    if missing:
        what = f"weights missing in the checkpoint: {len(missing)}, such as {missing[0]}"
        raise UserError(what, where, "provide the complete checkpoint")
    return model


def check_fit(config: Any, facts: dict[str, Any], where: str) -> None:
    """Raise `UserError` for a checkpoint that is not a T5, or does not fit the data's tokens."""
    if config.model_type != "t5":
        what = f"the pretrained model is a {config.model_type}, not a T5"
        raise UserError(what, where, "choose a T5")
    start = getattr(config, "decoder_start_token_id", None)
    theirs = (config.vocab_size, config.eos_token_id, start)
    ours = (facts["vocabulary"], facts["end"], facts["start"])
    if theirs != ours:
        numbers = f"{ours} in the data and {theirs} in the pretrained model"
        remedy = "prepare with --tokenizer pretrained and the same --pretrained"
        raise UserError(f"vocabulary, end and start are {numbers}", where, remedy)


class Layer(T5Block):
    """A layer of the library's encoder or decoder, with what the engine needs to know."""

    ragged = True  # batches have many lengths, so compile for dynamic shapes

    def apart(self) -> list[nn.Module]:
        """Return the module of relative positions, which only the first layer has."""
        attention: Any = self.layer[0].SelfAttention
        if attention.has_relative_attention_bias:
            return [attention.relative_attention_bias]
        return []


class Seq2Seq(nn.Module):
    """Predicts target tokens from source tokens. Both embeddings and the head share one weight."""

    def __init__(self, t5: Any, facts: dict[str, Any]):
        super().__init__()
        self.t5 = t5
        self.vocabulary = facts["vocabulary"]
        self.end = facts["end"]
        self.longest = facts["longest"]
        for layer in self.blocks():
            layer.__class__ = Layer
        unused = list(range(self.vocabulary, t5.config.vocab_size))  # the padding of the vocabulary
        t5.generation_config = GenerationConfig(
            eos_token_id=self.end,
            pad_token_id=self.end,
            decoder_start_token_id=facts["start"],
            suppress_tokens=unused or None,
        )

    def blocks(self) -> list[nn.Module]:
        """All layers, which are compiled, checkpointed and sharded one by one."""
        return [*self.t5.encoder.block, *self.t5.decoder.block]

    def forward(self, batch: Batch) -> Output:
        targets = batch["targets"]
        memory, bias = encode(self.t5, batch["source"], batch["source_present"])
        logits = decode(self.t5, batch["decoder_input"], memory, bias).float()  # (B, T, V)
        total = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORE
        )
        present = targets != IGNORE
        total_weight = present.sum(dtype=torch.float32)
        output = Output(total / total_weight.clamp(min=1), total_weight)
        if self.training:
            return output

        right = logits[..., : self.vocabulary].argmax(-1) == targets
        sample = present.any(1)
        # If every token is right given the true ones before it, greedy decoding gives this target.
        exact = (right | ~present).all(1) & sample
        metrics = {
            "loss_per_byte": (total, batch["target_bytes"].sum()),
            "token_accuracy": (right.sum(), total_weight),
            "exact_match": (exact.sum(), sample.sum()),
        }
        return output._replace(metrics=metrics)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B, longest training target) int64: each token after the true ones.

        It is padded with `end`. Unlike this method, `generate` needs no targets.
        """
        memory, bias = encode(self.t5, batch["source"], batch["source_present"])
        logits = decode(self.t5, batch["decoder_input"], memory, bias)
        tokens = logits[..., : self.vocabulary].argmax(-1)
        tokens = tokens.masked_fill(batch["targets"] == IGNORE, self.end)
        lacking = self.longest - tokens.shape[1]
        return {"prediction": functional.pad(tokens, (0, lacking), value=self.end)}

    @torch.no_grad()
    def generate(self, source: Tensor, present: Tensor, longest: int, beams: int = 1) -> Tensor:
        """Return targets (B, longest) for sources (B, S), by greedy or beam search.

        Rows are padded with `end`. The library decodes with a cache of keys and values. This is not
        compiled, because lengths change with every token.
        """
        with torch.compiler.set_stance("force_eager"):
            targets = self.t5.generate(
                input_ids=source,
                attention_mask=present.long(),
                max_new_tokens=longest,
                num_beams=beams,
                do_sample=False,
            )[:, 1:]
        lacking = longest - targets.shape[1]
        return functional.pad(targets, (0, lacking), value=self.end)
