"""Export a trained model: safetensors, a program that needs only torch, int8 weights."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..dataset import Samples
from ..engine.errors import UserError
from ..engine.files import replacing, write_json, write_text
from ..engine.runs import typed_path
from ..model import build_model
from ..trained import add_export_flags, export_weights, open_run

EXAMPLE = '''"""Predict with an exported model: python load.py (written by `export` of $package)."""

from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent


def load_weights() -> dict[str, torch.Tensor]:
    """Return all weights in float; int8 weights are stored with a scale for each row."""
    tensors = load_file(HERE / "$weights")
    weights = {}
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            continue
        if name + ".scale" in tensors:
            tensor = tensor * tensors[name + ".scale"]
        weights[name] = tensor
    return weights


def load_with_project() -> torch.nn.Module:
    """Build the model with the project; `$package` must be installed or on PYTHONPATH."""
    import json

    from $package.model import build_model
    from $package.settings import Settings

    facts = json.loads((HERE / "facts.json").read_text())
    model = build_model(Settings.load(HERE / "config.resolved.yaml"), facts)
    # Tied weights are stored under one of their names.
    model.load_state_dict(load_weights(), strict=False)
    return model.eval()


if __name__ == "__main__":
    batch = load_file(HERE / "example.safetensors")
    if (HERE / "model.pt2").exists():  # needs only torch
        predict = torch.export.load(HERE / "model.pt2").module()
    else:
        predict = load_with_project().predict
    with torch.no_grad():
        for name, value in predict(batch).items():
            print(name, tuple(value.shape), value.flatten()[:5].tolist())
'''


class Predictor(nn.Module):
    """A model whose forward is `predict`, for torch.export, without carried state."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.model.recurrent = None

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        predictions: dict[str, Tensor] = self.model.predict(batch)
        return predictions


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `export`."""
    add = parser.add_argument
    add_export_flags(parser)
    add("--output", type=typed_path, metavar="FOLDER", help="folder to write (default: RUN/export)")
    int8 = "also write int8 weights, and measure them on a held-out split"
    add("--int8", action="store_true", help=int8)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write the export folder, and print its files and their sizes."""
    folder, project, step = open_run(arguments, load)
    trained = export_weights(arguments, folder, project)
    if not trained:
        return
    output = make_folder(arguments.output or folder / "export")
    model: Any = build_model(project.settings, project.store.facts)  # not compiled, on the CPU
    model.load_state_dict(trained)
    model.eval()
    split = held_out(project)
    loader = project.loader(split)
    batch = {name: value.cpu().clone() for name, value in next(loader.epoch(0)).items()}

    weights = "model.safetensors"
    size = write(output / weights, stored(model, {}))
    write(output / "example.safetensors", batch)
    write_json(output / "facts.json", project.store.facts)
    write_text(output / "config.resolved.yaml", project.settings.to_yaml())
    print(f"{output}:\n{weights}: {size / 1e6:,.2f} MB, checkpoint of step {step}")
    print(write_program(output / "model.pt2", model, batch))
    if arguments.int8:
        weights = "model.int8.safetensors"
        write_int8(output / weights, model, batch, size, project, split, loader)
    loader.close()

    package = (__package__ or "").partition(".")[0]
    example = Template(EXAMPLE).substitute(package=package, weights=weights)
    write_text(output / "load.py", example)
    print(f"load.py: an example; run `python {output}/load.py`")


def make_folder(path: str | Path) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot create the folder ({error.strerror})"
        raise UserError(what, f"--output {folder}", "choose another folder") from error
    return folder


def held_out(project: Any) -> Any:
    """Return the test split, or another split if it is empty."""
    splits: Any = ("test", "validation", "train")
    for split in splits:
        if len(Samples(project.store, project.settings, split)):
            return split
    raise AssertionError("a store has samples")


def write_int8(
    path: Path,
    model: Any,
    batch: dict[str, Tensor],
    full_size: int,
    project: Any,
    split: str,
    loader: Any,
) -> None:
    """Write int8 weights, and print how the metrics of a split change."""
    from ..engine.monitoring.report import show
    from ..engine.training.evaluation import evaluate

    def measure() -> dict[str, float]:
        exported = replace(project, wrapped=model.to(project.device))
        return evaluate(exported, loader, split) or {}

    before = measure()
    on_device = {name: value.to(project.device) for name, value in batch.items()}
    rounded, notes = quantize(model, on_device)
    size = write(path, stored(model, rounded))
    fraction = f"{size / full_size:.0%}"
    print(f"{path.name}: {size / 1e6:,.2f} MB, {fraction}; {len(rounded)} weights in int8")
    for note in notes:
        print(f"note: {note}")
    print(f"measured on the {split} split:")
    after = measure()
    print(f"{'':<16} as trained    int8")
    for name, value in before.items():
        print(f"{name:<16} {show(value):<13} {show(after[name])}")


def stored(model: nn.Module, rounded: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return each weight once; weights in `rounded` become int8 and `<name>.scale`."""
    tensors: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in model.state_dict().items():
        if name in rounded:
            whole, scale = rounded[name]
            tensors[name] = whole
            tensors[f"{name}.scale"] = scale
        elif not tensor.numel() or tensor.data_ptr() not in addresses:  # tied weights: two names
            addresses.add(tensor.data_ptr())
            tensors[name] = tensor
    return tensors


def write(path: Path, tensors: dict[str, Tensor]) -> int:
    """Replace a file; return its size in bytes."""
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(on_host)
    with replacing(path) as file:
        file.write(content)
    return len(content)


def write_program(path: Path, model: Any, batch: dict[str, Tensor]) -> str:
    """Export `predict` with torch.export for any batch size, and compare it with the model.

    Returns a line to print, with the reason if the export fails.
    """
    path.unlink(missing_ok=True)
    predictor = Predictor(model)
    # A program traced with one row takes one row only.
    rows = {name: torch.cat([value, value]) for name, value in batch.items()}
    shapes = ({name: {0: torch.export.Dim.AUTO} for name in batch},)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(predictor, (rows,), dynamic_shapes=shapes, strict=False)
            torch.export.save(program, path)
            predictions = torch.export.load(path).module()(batch)
            expected = predictor(batch)
        torch.testing.assert_close(predictions, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    except Exception as error:  # torch.export raises many classes for code that it cannot trace
        path.unlink(missing_ok=True)
        reason = str(error).strip().splitlines()[0]
        return f"note: no model.pt2, because torch.export failed: {reason}"
    size = path.stat().st_size / 1e6
    return f"model.pt2: {size:,.2f} MB, needs only torch, for batches of any size"


def quantize(
    model: Any, batch: dict[str, Tensor]
) -> tuple[dict[str, tuple[Tensor, Tensor]], list[str]]:
    """Round the weights of linear layers and LSTMs to int8, with a scale for each row.

    Linear layers then multiply in int8 with torchao. It does not support nn.LSTM, whose rounded
    weights stay in float: files are smaller, but not faster. Returns {name: (int8, scale)}, notes.
    """
    logging.disable(logging.WARNING)  # hide warnings about kernels that torch was built without
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    logging.disable(logging.NOTSET)
    rounded, notes = round_rnns(model)
    # A weight that a head shares with an embedding stays in float.
    embeddings = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}

    def is_chosen(layer: Any, name: str) -> bool:
        return isinstance(layer, nn.Linear) and id(layer.weight) not in embeddings

    layers: dict[str, Any] = {}
    for name, layer in model.named_modules():
        if is_chosen(layer, name):
            layers[name] = layer
    quantize_(model, Int8WeightOnlyConfig(), filter_fn=is_chosen)
    for name, layer in layers.items():
        rounded[f"{name}.weight"] = (layer.weight.qdata, layer.weight.scale)
    if not rounded:
        what = "the model has no linear layer and no LSTM"
        raise UserError(what, "--int8", "remove --int8")

    try:
        with torch.no_grad():
            model.predict(batch)
    except NotImplementedError:
        # The model uses the weight of a layer directly, not through its forward.
        for layer in layers.values():
            layer.weight = nn.Parameter(layer.weight.dequantize())
        reason = "the model uses their weights directly"
        notes.append(f"linear layers: smaller, not faster: {reason}")
    return rounded, notes


def round_rnns(model: Any) -> tuple[dict[str, tuple[Tensor, Tensor]], list[str]]:
    rounded: dict[str, tuple[Tensor, Tensor]] = {}
    notes = []
    for prefix, layer in model.named_modules():
        if isinstance(layer, nn.RNNBase):
            kind = type(layer).__name__
            notes.append(f"{prefix}: smaller, not faster: torchao has no int8 for {kind}")
            for name, weight in layer.named_parameters():
                if weight.dim() == 2:
                    rounded[f"{prefix}.{name}"] = round_rows(weight)
    return rounded, notes


def round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight in place; return (int8, scale), whose product is the new weight."""
    with torch.no_grad():
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        whole = (weight / scale).round()
        weight.copy_(whole * scale)
    return whole.to(torch.int8), scale
