"""Write a trained model for use elsewhere: safetensors, a program that needs torch alone, int8 weights."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..dataset import Samples
from ..engine.errors import UserError
from ..engine.files import replacing, write_json, write_text
from ..engine.runs import find_run
from ..model import build_model
from .evaluate import add_weights, open_run, table

EXAMPLE = '''"""Predicts with an exported model: python load.py (made by the verb export of $package)."""

from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent


def load_weights() -> dict[str, torch.Tensor]:
    """All weights in float; those in int8 are whole numbers and a scale for each row."""
    stored = load_file(HERE / "$weights")
    scales = {name: stored.pop(name) for name in list(stored) if name.endswith(".scale")}
    return {n: w * scales[n + ".scale"] if n + ".scale" in scales else w for n, w in stored.items()}


def load_with_project() -> torch.nn.Module:
    """The model as the project builds it; `$package` must be installed or on PYTHONPATH."""
    import json

    from $package.config import load
    from $package.model import build_model

    facts = json.loads((HERE / "facts.json").read_text())
    model = build_model(load(HERE / "config.resolved.yaml"), facts)
    model.load_state_dict(load_weights(), strict=False)  # tied weights are stored under one of their names
    return model.eval()


if __name__ == "__main__":
    batch = load_file(HERE / "example.safetensors")
    if (HERE / "model.pt2").exists():  # needs torch alone
        predict = torch.export.load(HERE / "model.pt2").module()
    else:
        predict = load_with_project().predict
    with torch.no_grad():
        for name, value in predict(batch).items():
            if name != "carry":  # the state of data.order lanes
                print(name, tuple(value.shape), value.flatten()[:5].tolist())
'''


class Predictor(nn.Module):
    """A model whose forward is `predict`, as torch.export wants it; without the state that lanes carry."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value for name, value in self.model.predict(batch).items() if name != "carry"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `export`."""
    add = parser.add_argument
    add("--run", metavar="RUN", help="name or path of the run (default: the newest)")
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add_weights(parser)
    add("--output", metavar="FOLDER", help="(default: export in the run folder)")
    add("--int8", action="store_true", help="weights in int8 too, and what that costs on a held-out split")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes a folder, and says what is in it and how large it is."""
    from ..engine.evaluation import evaluate

    folder = find_run(arguments.run)
    project, step = open_run(folder, load(folder / "config.resolved.yaml"), arguments)
    output = Path(arguments.output) if arguments.output else folder / "export"
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder ({error.strerror})", f"--output {output}") from error
    model: Any = build_model(project.settings, project.store.facts)  # not compiled, on the CPU
    model.load_state_dict(project.model.state_dict())
    model.eval()
    splits: Any = ("test", "validation", "train")  # a project may have no test split
    split = next(name for name in splits if len(Samples(project.store, project.settings, name)))
    loader, weights = project.loader(split), "model.safetensors"
    batch = {name: value.cpu().clone() for name, value in next(loader.epoch(0)).items()}
    size = write(output / weights, stored(model, {}))
    write(output / "example.safetensors", batch)
    write_json(output / "facts.json", project.store.facts)
    write_text(output / "config.resolved.yaml", project.settings.to_yaml())
    print(f"{output}:\n{weights}: {size / 1e6:,.2f} MB, checkpoint of step {step}")
    print(write_program(output / "model.pt2", model, batch))
    if arguments.int8:
        measure = lambda: evaluate(model.to(project.device), loader, project.precision, project.distributed)  # noqa: E731
        before = measure() or {}
        rounded, notes = quantize(model, {name: value.to(project.device) for name, value in batch.items()})
        weights = "model.int8.safetensors"
        small = write(output / weights, stored(model, rounded))
        print(f"{weights}: {small / 1e6:,.2f} MB, {small / size:.0%}; {len(rounded)} weights in int8")
        print("".join(f"note: {line}\n" for line in notes), end="")
        print(f"measured on the {split} split:")
        print(table({"as trained": before, "int8": measure() or {}}))
    loader.close()
    text = Template(EXAMPLE).substitute(package=(__package__ or "").partition(".")[0], weights=weights)
    write_text(output / "load.py", text)
    print(f"load.py: an example, `python {output}/load.py`")


def stored(model: nn.Module, rounded: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Each weight once; those in `rounded` as int8 and `<name>.scale`."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if name in rounded:
            tensors[name], tensors[f"{name}.scale"] = rounded[name]
        elif not tensor.numel() or tensor.data_ptr() not in seen:  # tied weights have two names
            seen.add(tensor.data_ptr())
            tensors[name] = tensor
    return tensors


def write(path: Path, tensors: dict[str, Tensor]) -> int:
    """Replaces a file; returns its bytes."""
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    with replacing(path) as file:
        file.write(content)
    return len(content)


def write_program(path: Path, model: Any, batch: dict[str, Tensor]) -> str:
    """`predict` by torch.export for any batch size, compared with the model; or a line why there is none."""
    path.unlink(missing_ok=True)
    shapes = ({name: {0: torch.export.Dim.AUTO} for name in batch},)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(Predictor(model), (batch,), dynamic_shapes=shapes, strict=False)
            torch.export.save(exported, path)
            found, expected = torch.export.load(path).module()(batch), Predictor(model)(batch)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    except Exception as error:  # whatever a model of yours does that torch.export cannot follow
        path.unlink(missing_ok=True)
        return f"note: no model.pt2, torch.export refuses: {str(error).strip().splitlines()[0]}"
    return f"model.pt2: {path.stat().st_size / 1e6:,.2f} MB, runs with torch alone, on batches of any size"


def quantize(model: Any, batch: dict[str, Tensor]) -> tuple[dict[str, tuple[Tensor, Tensor]], list[str]]:
    """Rounds the weights of linear layers and LSTMs to int8 with a scale for each row.

    Linear layers then multiply from int8, by torchao. It has nothing for nn.LSTM, whose rounded weights
    are computed with as they were: smaller files, no speed. Returns {name: (int8, scale)} and notes.
    """
    logging.disable(logging.WARNING)  # of kernels that this torch has no build of
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    logging.disable(logging.NOTSET)
    rounded: dict[str, tuple[Tensor, Tensor]] = {}
    notes = []
    for prefix, layer in model.named_modules():
        if isinstance(layer, nn.RNNBase):
            notes.append(f"{prefix}: smaller, not faster: torchao has no int8 for {type(layer).__name__}")
            weights = {name: weight for name, weight in layer.named_parameters() if weight.dim() == 2}
            rounded |= {f"{prefix}.{name}": round_rows(weight) for name, weight in weights.items()}
    # What a head shares with an embedding stays.
    kept = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
    chosen = lambda layer, name: isinstance(layer, nn.Linear) and id(layer.weight) not in kept  # noqa: E731
    layers: dict[str, Any] = {name: layer for name, layer in model.named_modules() if chosen(layer, name)}
    quantize_(model, Int8WeightOnlyConfig(), filter_fn=chosen)
    rounded |= {f"{name}.weight": (layer.weight.qdata, layer.weight.scale) for name, layer in layers.items()}
    if not rounded:
        raise UserError("the model has no linear layer and no LSTM", "--int8", "export it without")
    try:
        with torch.no_grad():
            model.predict(batch)
    except NotImplementedError:  # the model takes a layer's weight itself and not its output
        for layer in layers.values():
            layer.weight = nn.Parameter(layer.weight.dequantize())
        notes.append("linear layers: smaller, not faster: the model uses their weights apart from them")
    return rounded, notes


def round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds in place; (int8, scale) of which the weight is now the product."""
    with torch.no_grad():
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        whole = (weight / scale).round()
        weight.copy_(whole * scale)
    return whole.to(torch.int8), scale
