"""Write a trained model as a folder of Hugging Face: safetensors, config and tokenizer."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..engine.errors import UserError
from ..engine.files import read_json, write_json, write_text
from ..engine.runs import typed_path
from ..pretrained import INDEX, WEIGHTS, file_name
from ..trained import add_export_flags, export_weights, open_run

SHARD_BYTES = 4 << 30  # the maximum size of a file
MARK = "trained_in"  # a field of config.json in folders that this command wrote
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `export`."""
    add = parser.add_argument
    add_export_flags(parser)
    add("--output", type=typed_path, metavar="FOLDER", help="folder to write (default: RUN/export)")
    kinds = ["float32", "bfloat16", "float16"]
    add("--dtype", choices=kinds, default="bfloat16", help="of the weights (default: bfloat16)")


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write the folder under another name, give it its name, and print what it has."""
    folder, project, step = open_run(arguments, load, needs_data=False)
    weights = export_weights(arguments, folder, project)
    if not weights:
        return
    output = Path(arguments.output or folder / "export")
    pretrained = project.settings.model.pretrained
    check_output_folder(output, pretrained)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        model = project.model
        size = write_weights(weights, partial, arguments.dtype)
        config = {**model.config, "dtype": arguments.dtype, MARK: f"{folder.name}, step {step}"}
        config.pop("torch_dtype", None)  # the former name
        write_json(partial / "config.json", config)
        write_tokenizer(project.store.facts["tokenizer"], pretrained, partial)
        shutil.rmtree(output, ignore_errors=True)
        os.replace(partial, output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    print(f"{output}: {size / 1e6:,.1f} MB in {arguments.dtype}, checkpoint of step {step}")


def check_output_folder(folder: Path, pretrained: str) -> None:
    """Raise `UserError` if the folder has anything but an earlier export."""
    is_base = pretrained and folder.resolve() == Path(pretrained).resolve()
    try:
        has_files = folder.exists() and any(folder.iterdir())
        is_export = MARK in read_json(folder / "config.json")
    except OSError as error:
        raise UserError(f"no folder to write ({error})", f"--output {folder}") from error
    if is_base or (has_files and not is_export):
        what = "the folder has other files, which would be lost"
        raise UserError(what, f"--output {folder}", "name a new or an empty folder")


def write_weights(weights: dict[str, Tensor], folder: Path, dtype: str) -> int:
    """Write the weights in files of at most `SHARD_BYTES`; return their size in bytes."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    total = 0
    for name, weight in weights.items():
        tensor = weight.detach().to("cpu", getattr(torch, dtype)).contiguous()
        if size + tensor.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][file_name(name)] = tensor
        size += tensor.nbytes
        total += tensor.nbytes

    places = {}
    for number, shard in enumerate(shards, start=1):
        file = WEIGHTS
        if len(shards) > 1:
            file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
    if len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    return total


def write_tokenizer(facts: dict[str, Any], pretrained: str, folder: Path) -> None:
    """Copy the files of the pretrained model, or write those of a fresh one."""
    for name in COPIED:
        if pretrained and (Path(pretrained) / name).exists():
            shutil.copy(Path(pretrained) / name, folder / name)
    write_text(folder / "chat_template.jinja", facts["template"])
    if not pretrained:
        write_text(folder / "tokenizer.json", facts["definition"])
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **facts["special"]}
        write_text(folder / "tokenizer_config.json", json.dumps(settings, indent=2))
