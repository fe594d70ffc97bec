"""Weights that a run starts from (`training.init_from`) and freezes (`training.freeze`)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .checkpoint import Checkpoint, State, read_plain, step_name
from .errors import UserError
from .runs import RUNS, is_run
from .shards import fill

if TYPE_CHECKING:
    from .project import Project

INIT_FROM = "training.init_from"
CHECKPOINTS = "checkpoints"
MODEL = "model.safetensors"
BEST_OF_SCRIPT = "best_step"  # the name of that step in a script's checkpoint
SHOWN = 3  # tensors named in a note

Tensors = dict[str, Tensor]
Weights = tuple[Path, Tensors, list[str]]
"""Where the weights are, the tensors, and the names of damaged checkpoints."""


def freeze(model: nn.Module, patterns: Sequence[str]) -> tuple[str, str]:
    """Freeze the weights whose names match a pattern; return how many and why, for `describe`.

    Call it before the model is wrapped and the optimizer is made: both then ignore these weights,
    and there is no update and no weight decay. Raises `UserError` if a pattern matches no name, or
    if nothing is left to train.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))  # tied weights have two names
    for pattern in patterns:
        matching = fnmatch.filter(weights, pattern)
        if not matching:
            names = ", ".join(list(weights)[:8])
            what = f"no weight's name matches '{pattern}'"
            raise UserError(what, "training.freeze", f"the names are {names}, …")
        for name in matching:
            weights[name].requires_grad_(False)

    total = sum(weight.numel() for weight in model.parameters())
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    if frozen == total:
        raise UserError("every weight is frozen", "training.freeze", "leave some of them to train")
    return f"{frozen / total:.1%}", f"training.freeze: {frozen:,} of {total:,}"


def load_initial(project: Project, restored: bool) -> list[str]:
    """Load the weights of `training.init_from` into a new run's model; return notes for the user.

    Weights and buffers whose name and shape fit are loaded. Tensors of integers, such as the codes
    of categories, are not: they follow from the data. restored: the run has loaded its own
    checkpoint, which takes precedence.
    """
    settings = project.settings
    place = settings.training.init_from
    if restored:
        return settings.without_effect([INIT_FROM], "the run resumes from its own checkpoint")
    if not place:
        return []

    path, tensors, skipped = read_weights(place, project)
    source = _floats(tensors)
    target = _floats(project.model.state_dict(keep_vars=True))
    fitting = []
    for name, tensor in target.items():
        if name in source and source[name].shape == tensor.shape:
            fill(tensor, source[name])
            fitting.append(name)

    filled = {id(target[name]) for name in fitting}  # a tied weight has two names
    left = sorted(source.keys() - fitting)
    new = [
        name
        for name, tensor in target.items()
        if isinstance(tensor, nn.Parameter) and id(tensor) not in filled
    ]
    if filled.isdisjoint(map(id, project.model.parameters())):
        remedy = f"it has {listed(source, left)}; the model has {listed(target, new)}"
        raise UserError("no weight fits this model", f"{INIT_FROM} {path}", remedy)
    notes = [f"skipped a damaged checkpoint: {name}" for name in skipped]
    counts = f"{len(fitting)} tensors fit; new: {listed(target, new)}"
    return [*notes, f"weights of {path}: {counts}; unused: {listed(source, left)}"]


def _floats(tensors: Tensors) -> Tensors:
    return {
        name: tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point()
    }


def listed(tensors: Tensors, names: list[str]) -> str:
    """Name the first of many tensors: `head.weight 1×64, head.bias 1 and 4 more`."""
    shown = [f"{name} {'×'.join(map(str, tensors[name].shape))}".strip() for name in names[:SHOWN]]
    text = ", ".join(shown) or "nothing"
    if len(names) > SHOWN:
        text += f" and {len(names) - SHOWN} more"
    return text


# --- where weights are


def read_weights(place: str, project: Project) -> Weights:
    """Read the weights of a run or a checkpoint, or those in a file or folder of safetensors.

    In a run, they are in the best checkpoint that is intact, or else in the newest one. In a
    folder, they are in `model.safetensors`, or else in all of its files. Runs and checkpoints of
    `layout: script` can be read, too. A copy of a checkpoint elsewhere is read as it is.
    """
    path = RUNS / place if is_run(RUNS / place) else Path(place)
    if (path / CHECKPOINTS).is_dir():
        return _read_checkpoint(path / CHECKPOINTS, "best", project)
    if path.parent.name == CHECKPOINTS:
        return _read_checkpoint(path.parent, path.name, project)
    if path.suffix == ".pt":
        return path, _renamed(read_plain(path), project), []

    if (path / MODEL).exists():
        path = path / MODEL
    files = sorted(path.glob("*.safetensors"))
    if path.is_file():
        files = [path]
    if not files:
        remedy = "give a run, a checkpoint, or a folder or file of safetensors"
        raise UserError("there are no weights", f"{INIT_FROM} {place}", remedy)
    return path, _read_files(files), []


def _read_files(files: list[Path]) -> Tensors:
    tensors: Tensors = {}
    for file in files:
        try:
            content = load_file(file)
        except (OSError, SafetensorError) as error:
            what = f"cannot read the weights ({error})"
            raise UserError(what, str(file), "copy the file again") from error
        if content.keys() & tensors.keys():
            what = "two files have a tensor of the same name"
            raise UserError(what, f"{INIT_FROM} {file.parent}", "give the path of one file")
        tensors |= content
    return tensors


def _read_checkpoint(folder: Path, which: str, project: Project) -> Weights:
    checkpoint = Checkpoint(folder, project.distributed)
    state = checkpoint.find(which)
    if not state:
        where = f"{INIT_FROM} {folder.parent}"
        raise UserError("the run has no checkpoint yet", where, "name another run")
    if which == "best" and BEST_OF_SCRIPT in state:  # a script does not mark names
        for path in folder.glob(f"{step_name(state[BEST_OF_SCRIPT])}-*.pt"):
            if checkpoint.is_intact(path):
                state = {**checkpoint.read(path), "path": path}
    path = state["path"]
    weights = checkpoint.complete({"model": state["model"]}, path)
    return path, _renamed({**state, **weights}, project), checkpoint.skipped


def _renamed(state: State, project: Project) -> Tensors:
    """Return the weights of a file; layers of a script have the names of the package's model."""
    weights: Tensors = state.get("model", state)
    if BEST_OF_SCRIPT in state:
        return _rename(weights, getattr(project.model, "script_names", {}))
    return weights


def _rename(tensors: Tensors, layers: dict[str, str]) -> Tensors:
    """Rename layers as the model of the package names them."""
    renamed = {}
    for name, tensor in tensors.items():
        layer, dot, parameter = name.partition(".")
        renamed[layers.get(layer, layer) + dot + parameter] = tensor
    return renamed
