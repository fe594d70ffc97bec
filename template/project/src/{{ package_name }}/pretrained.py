"""Read the model folders of Hugging Face: config.json and safetensors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .engine.errors import UserError
from .engine.files import exists

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
PREFIX = "model."  # of the names in the files, except for the head
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
COPY_AGAIN = "copy or download it again"


@dataclass(frozen=True)
class Architecture:
    """What a decoder of the Llama family is made of."""

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head: int  # numbers of a head
    context: int  # tokens of the longest text
    epsilon: float
    rope: dict[str, Any]
    is_tied: bool  # the head has the embedding's weight
    input_bias: bool  # of queries, keys and values
    output_bias: bool
    hidden_bias: bool
    normalizes_heads: bool  # an RMSNorm of each query and key (Qwen3)

    @classmethod
    def of(cls, config: dict[str, Any], where: str) -> Architecture:
        """Read a `config.json`. Raises `UserError` for what this project's model cannot be."""
        check_supported(config, where)
        family = config["model_type"]
        try:
            heads = int(config["num_attention_heads"])
            width = int(config["hidden_size"])
            has_bias = bool(config.get("attention_bias", False))
            return cls(
                vocabulary=int(config["vocab_size"]),
                width=width,
                hidden=int(config["intermediate_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                key_value_heads=int(config.get("num_key_value_heads") or heads),
                head=int(config.get("head_dim") or width // heads),
                context=context_of(config),
                epsilon=float(config["rms_norm_eps"]),
                rope=rope_of(config),
                is_tied=bool(config.get("tie_word_embeddings", False)),
                input_bias=has_bias or family == "qwen2",
                output_bias=has_bias,
                hidden_bias=bool(config.get("mlp_bias", False)),
                normalizes_heads=family == "qwen3",
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise UserError(f"a wrong config ({error!r})", where, COPY_AGAIN) from error

    def frequencies(self) -> Tensor:
        """Return the angle per position of each pair of numbers (D/2,)."""
        exponents = torch.arange(0, self.head, 2, dtype=torch.int64).float() / self.head
        frequencies = 1.0 / self.rope["rope_theta"] ** exponents
        if self.rope["rope_type"] == "linear":
            return frequencies / self.rope["factor"]
        if self.rope["rope_type"] == "llama3":
            return scaled_as_llama3(frequencies, self.rope)
        return frequencies


def check_supported(config: dict[str, Any], where: str) -> None:
    """Raise `UserError` for a model that differs from the Llama family."""
    family = config.get("model_type")
    if family not in FAMILIES:
        remedy = f"choose one of {', '.join(FAMILIES)}; SmolLM2 is a llama"
        raise UserError(f"a model of type {family} is not supported", where, remedy)
    unsupported = {
        "quantized weights": config.get("quantization_config"),
        f"the activation {config.get('hidden_act')}": config.get("hidden_act", "silu") != "silu",
    }
    for what, is_there in unsupported.items():
        if is_there:
            raise UserError(f"{what} are not supported", where, "choose another model")


def context_of(config: dict[str, Any]) -> int:
    """Return the number of tokens up to which the model sees a whole text.

    Up to there, attention in a sliding window is attention to everything.
    """
    context = int(config.get("max_position_embeddings", 2048))
    is_windowed = config.get("use_sliding_window", config["model_type"] == "mistral")
    if is_windowed and config.get("sliding_window"):
        return min(context, int(config["sliding_window"]))
    return context


def rope_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rule of the rotary positions. Raises `ValueError` for an unsupported one."""
    stored = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = {"rope_theta": config.get("rope_theta", 10_000.0), **stored}
    rope["rope_type"] = stored.get("rope_type", stored.get("type", "default"))
    needed = {
        "default": (),
        "linear": ("factor",),
        "llama3": (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
    }
    if rope["rope_type"] not in needed:
        raise ValueError(f"rope_type {rope['rope_type']} is none of {', '.join(needed)}")
    for name in ("rope_theta", *needed[rope["rope_type"]]):
        rope[name] = float(rope[name])
    return rope


def scaled_as_llama3(frequencies: Tensor, rope: dict[str, Any]) -> Tensor:
    """Slow down low frequencies by `factor`, high ones not at all, and blend between (Llama 3)."""
    context = rope["original_max_position_embeddings"]
    low = rope["low_freq_factor"]
    high = rope["high_freq_factor"]
    turns = context * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / rope["factor"] + kept * frequencies


# --- files


def model_folder(name: str) -> Path:
    """Return the folder of a model. Raises `UserError`, with the way to get it, if it is none."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    remedy = "check the path"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        local = folder.name
        remedy = f"`hf download {name} --local-dir {local}` fetches it (after `hf auth login`, if"
        remedy += f" it is gated); then set model.pretrained to {local}"
    raise UserError("no such folder", f"model.pretrained {name}", remedy)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model's folder. Raises `UserError` if it is missing or no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        remedy = "set model.pretrained to the complete folder of a model"
        raise UserError("the model's folder lacks a file", str(path), remedy) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read it ({error})", str(path), COPY_AGAIN) from error
    if not isinstance(content, dict):
        raise UserError("no JSON object", str(path), COPY_AGAIN)
    return content


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the weights. Raises `UserError` if there are none."""
    if exists(folder / INDEX):
        places = read_object(folder / INDEX).get("weight_map")
        names = places.values() if isinstance(places, dict) else [None]
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise UserError("a wrong index of files", str(folder / INDEX), COPY_AGAIN)
        return [folder / name for name in sorted(set(names))]
    if exists(folder / WEIGHTS):
        return [folder / WEIGHTS]
    if any(folder.glob("pytorch_model*.bin")):
        what = "the weights are in pytorch_model.bin, a format that can run code"
        remedy = "load and save the model with transformers, which writes safetensors"
        raise UserError(what, str(folder), remedy)
    raise UserError(f"no {WEIGHTS}", str(folder), "download the complete folder")


def tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights in the files of a folder, by our names; one at a time is in memory."""
    from safetensors import SafetensorError, safe_open

    for path in weight_files(folder):
        try:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    yield name.removeprefix(PREFIX), file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read the weights ({error})", str(path), COPY_AGAIN) from error


def load_weights(model: nn.Module, folder: Path) -> None:
    """Copy the weights of a folder into the model. Raises `UserError` unless they fit exactly."""
    targets = dict(model.named_parameters())
    missing = set(targets)
    for name, tensor in tensors(folder):
        is_tied_head = name == "lm_head.weight" and name not in targets  # stored twice
        if is_tied_head or name.endswith("rotary_emb.inv_freq"):  # computed, in old files
            continue
        if name not in targets or targets[name].shape != tensor.shape:
            what = f"the weight {name} of shape {tuple(tensor.shape)} does not fit config.json"
            raise UserError(what, str(folder), "download the complete folder again")
        if not tensor.is_floating_point():
            what = f"the weight {name} is {tensor.dtype}"
            raise UserError(what, str(folder), "choose a model that is not quantized")
        with torch.no_grad():
            targets[name].copy_(tensor)
        missing.discard(name)
    if missing:
        what = f"{len(missing)} weights are missing, such as {min(missing)}"
        raise UserError(what, str(folder), "download the complete folder again")


def file_name(name: str) -> str:
    """Return the name of a weight in the files of Hugging Face."""
    return name if name.startswith("lm_head.") else PREFIX + name
