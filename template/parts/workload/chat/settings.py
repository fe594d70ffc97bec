"""The settings that you own, such as those of data and model, and the list of all sections.

The text below a setting is its description in `config.yaml` and in `train --help`; `OptimizerName`
brings its own. The settings of the engine, and those that extras add, are in `engine/settings.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from .engine.errors import UserError
from .engine.settings import (
    Auto,
    BelowOne,
    EngineData,
    EngineEvaluation,
    EngineSettings,
    Factor,
    Natural,
    OptimizerName,
    Place,
    Positive,
    Section,
    UpToOne,
)

WORKLOAD = "chat"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""

PAD = 64  # fresh vocabularies are padded to a multiple of this, which suits tensor cores


class Data(EngineData):
    """Where the dataset is, how conversations are packed, and how they reach the device."""

    batch_size: Positive = 4
    """Packed samples per micro-batch. Larger batches use the GPU better and need more memory.
    Adjust the learning rate when you change this."""

    order: Literal[
        "auto",
        "full",
        "block",
        "time",
    ] = "auto"
    """Order of the packed training samples. full: shuffle all. block: shuffle within
    `shuffle_block` samples, for files larger than memory. time: keep the stored order. auto: full
    for up to 33 million samples, otherwise block."""

    block_size: Positive = 1024
    """Tokens of a packed sample. Whole conversations fill it as well as they fit; none is cut, and
    none sees another. A change needs no new `prepare`."""

    sample_chats: int = Field(2000, ge=20)
    """Conversations about sums to train on if nothing was prepared."""


class Size(NamedTuple):
    """Layers, heads, heads of keys and values, width, and units of the hidden layers."""

    layers: int
    heads: int
    key_value_heads: int
    width: int
    hidden: int


# small and medium are SmolLM2-135M and -360M (their config.json), large is Qwen2.5-0.5B.
SIZES = {
    "tiny": Size(4, 4, 2, 128, 384),
    "small": Size(30, 9, 3, 576, 1536),
    "medium": Size(32, 15, 5, 960, 2560),
    "large": Size(24, 14, 2, 896, 4864),
}


class Model(Section):
    """A decoder of the Llama family: Llama, Mistral, SmolLM2, Qwen2 or Qwen3."""

    pretrained: Place = ""
    """Folder of a model to start from, with config.json, safetensors and tokenizer.json, as Hugging
    Face stores it. Prepare the data with the same setting. "" starts from fresh weights."""

    size: Literal[
        "tiny",
        "small",
        "medium",
        "large",
    ] = "tiny"
    """Size of fresh weights. tiny: for a CPU. small and medium: SmolLM2-135M and -360M. large:
    Qwen2.5-0.5B. No effect with `pretrained`."""

    layers: Natural = 0
    """Blocks. 0 uses the number of `size`. No effect with `pretrained`, as for the next four."""

    heads: Natural = 0
    """Attention heads of a block. 0 uses the number of `size`."""

    key_value_heads: Natural = 0
    """Heads of keys and values; each serves several heads. 0 uses the number of `size`."""

    width: Natural = 0
    """Numbers that represent a token. Parameters and time grow with the square of the width. 0 uses
    the width of `size`."""

    hidden: Natural = 0
    """Units of the hidden layer of a block. 0 uses the number of `size`."""

    @property
    def shape(self) -> Size:
        """The size, with the settings below it where they are set.

        Raises `UserError` if the heads do not divide the width.
        """
        size = SIZES[self.size]
        for name in size._fields:
            value = getattr(self, name)
            if value:
                size = size._replace(**{name: value})
        if size.width % (2 * size.heads) or size.heads % size.key_value_heads:
            what = f"{size.heads} heads do not divide half of the width {size.width}"
            what += f", or {size.key_value_heads} heads of keys do not divide them"
            raise UserError(what, "model.heads", "choose other numbers")
        return size

    def fresh(self, vocabulary: int, context: int) -> dict[str, Any]:
        """Return the `config.json` of a Llama with fresh weights."""
        size = self.shape
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": -(-vocabulary // PAD) * PAD,
            "hidden_size": size.width,
            "intermediate_size": size.hidden,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.key_value_heads,
            "max_position_embeddings": context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": True,
        }


class Optimizer(Section):
    """How weights change at each step."""

    name: OptimizerName = "adamw"

    learning_rate: UpToOne | Auto = "auto"
    """Peak learning rate of the schedule. auto: 1e-3 for fresh weights, 2e-5 for all weights of a
    pretrained model, 2e-4 for the matrices of LoRA."""

    weight_decay: Factor = 0.01
    """Pulls weight matrices towards zero at each step. Biases and norms are excluded. 0 turns it
    off."""

    beta1: BelowOne = 0.9
    """Decay of the running mean of gradients. 0.9 averages over about 10 steps. No effect on
    adafactor."""

    beta2: BelowOne = 0.999
    """Decay of the running mean of squared gradients. 0.999 averages over about 1,000 steps; 0.95
    reacts faster. No effect on adafactor."""

    epsilon: UpToOne = 1e-8
    """Added to the denominator of the update. Larger values damp updates of weights with tiny
    gradients. No effect on adafactor."""

    fused: bool = True
    """Update all weights in one kernel instead of several kernels per weight. The mathematics is
    the same, but the rounding differs. No effect on adafactor."""


class Schedule(Section):
    """How the learning rate moves over the run."""

    name: Literal[
        "cosine",
        "onecycle",
        "linear",
        "wsd",
        "constant",
    ] = "cosine"
    """Shape after the warm-up: cosine, linear or constant. onecycle: rise to the peak, then fall to
    almost 0. wsd: stay at the peak, then decay. A resume can make runs with wsd and constant
    longer."""

    warmup_steps: Natural | Auto = "auto"
    """Optimizer steps from 0 to the peak learning rate. More steps are safer for high rates. auto:
    100 steps, or a tenth of the run if that is shorter; 30 % of the run for onecycle."""

    decay_steps: Natural | Auto = "auto"
    """Optimizer steps of the decay at the end of a run with wsd. auto: a fifth of the run; 10 to
    20 % reach the loss of cosine (arXiv 2405.18392). No effect with other schedules."""

    final_factor: Factor = 0.1
    """Final learning rate as a fraction of the peak. No effect with constant and onecycle."""


class Evaluation(EngineEvaluation):
    """When the validation samples are measured, and which metric decides."""

    # Add metrics that your model returns, or `finish` in dataset.py.
    metric: Literal[
        "loss",
        "perplexity",
        "token_accuracy",
        "exact_match",
    ] = "loss"
    """Metric that decides which checkpoint is the best, and when a run stops early: loss,
    perplexity, token_accuracy or exact_match."""

    higher_is_better: ClassVar = ("token_accuracy", "exact_match")  # a lower value of the others


class Settings(EngineSettings):
    """All settings of a run, by section. Add a line for each section that you write."""

    data: Data
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    evaluation: Evaluation
