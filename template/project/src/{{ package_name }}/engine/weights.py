"""Weights that a run starts from (`training.init_from`) and freezes (`training.freeze`)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .checkpoint import MANIFEST, MODEL, Checkpoint
from .errors import UserError
from .files import sha256
from .runs import RUNS
from .shards import fill

if TYPE_CHECKING:
    from .distributed import Distributed
    from .project import Project

INIT_FROM = "training.init_from"
SCRIPT_CHECKPOINT = "step-*-*.pt"
SHOWN = 3  # tensors named in a note

Tensors = dict[str, Tensor]
Shape = Sequence[int]


def freeze(model: nn.Module, patterns: Sequence[str]) -> tuple[str, str]:
    """Freeze the weights whose names match a pattern; return how many and why, for `describe`.

    Call it before wrapping and before making the optimizer, which then do not know of them: no
    update, no weight decay. Raises `UserError` if a pattern matches no name, or nothing is left to
    train.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))  # tied weights have two names
    for pattern in patterns:
        matching = [weight for name, weight in weights.items() if fnmatchcase(name, pattern)]
        if not matching:
            names = ", ".join(list(weights)[:8])
            what = f"no weight's name fits '{pattern}'"
            raise UserError(what, "training.freeze", f"names are {names}, …")
        for weight in matching:
            weight.requires_grad_(False)

    total = sum(weight.numel() for weight in model.parameters())
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    if frozen == total:
        remedy = "leave some of them to train"
        raise UserError("every weight is frozen", "training.freeze", remedy)
    return f"{frozen / total:.1%}", f"training.freeze: {frozen:,} of {total:,}"


def load_initial(project: Project, restored: bool) -> list[str]:
    """Load the weights of `training.init_from` into a new run's model; return notes for the user.

    What fits by name and shape is taken: weights, and buffers such as running statistics. Whole
    numbers, such as the codes of categories, follow from the data. restored: the run has loaded its
    own checkpoint, which takes precedence.
    """
    settings = project.settings
    if restored:
        return settings.without_effect([INIT_FROM], "the run resumes from its own checkpoint")
    if not settings.training.init_from:
        return []

    path, source = read_weights(settings.training.init_from, project.distributed)
    if path.suffix == ".pt":
        source = _rename(source, getattr(project.model, "script_names", {}))
    taken: set[int] = set()  # by id: a tied weight has two names
    new: dict[int, tuple[str, Shape]] = {}
    for name, tensor in project.model.state_dict(keep_vars=True).items():
        if not tensor.is_floating_point():
            source.pop(name, None)
        elif name in source and source[name].shape == tensor.shape:
            fill(tensor, source.pop(name))
            taken.add(id(tensor))
        elif isinstance(tensor, nn.Parameter):
            new[id(tensor)] = (name, tensor.shape)

    missing = [entry for key, entry in new.items() if key not in taken]
    left = [(name, tensor.shape) for name, tensor in source.items()]
    if taken.isdisjoint(map(id, project.model.parameters())):
        remedy = f"it has {listed(left)}; the model has {listed(missing)}"
        raise UserError("no weight fits this model", f"{INIT_FROM} {path}", remedy)
    counts = f"{len(taken)} tensors fit; new: {listed(missing)}; left: {listed(left)}"
    return [f"weights of {path}: {counts}"]


def listed(shapes: Sequence[tuple[str, Shape]]) -> str:
    """Name the first of many tensors: `head.weight 1×64, head.bias 1 and 4 more`."""
    shown = [f"{name} {'×'.join(map(str, shape))}".strip() for name, shape in shapes[:SHOWN]]
    text = ", ".join(shown) or "nothing"
    if len(shapes) > SHOWN:
        text += f" and {len(shapes) - SHOWN} more"
    return text


# --- where weights are


def read_weights(place: str, distributed: Distributed) -> tuple[Path, Tensors]:
    """Find a run, a checkpoint or safetensors; return its path and its tensors.

    Of a run, the best checkpoint that is not damaged, or else the newest; of a folder,
    `model.safetensors`, or else all its files. Runs and checkpoints of `layout: script` too.
    """
    for path in (RUNS / place, Path(place)):
        script_files = sorted((path / "checkpoints").glob(SCRIPT_CHECKPOINT), reverse=True)
        if path.match(SCRIPT_CHECKPOINT) and path.is_file():
            script_files = [path]
        if script_files:
            return _read_script(script_files)
        if (path / MANIFEST).is_file():
            return _read_checkpoint(path.parent, path.name, distributed)
        if (path / "checkpoints").is_dir():
            return _read_checkpoint(path / "checkpoints", "best", distributed)
        if (path / MODEL).exists():
            path = path / MODEL
        files = sorted(path.glob("*.safetensors"))
        if path.suffix == ".safetensors" and path.is_file():
            files = [path]
        if files:
            return path, _read_files(files)
    remedy = "give a run, a checkpoint, or a folder or file of safetensors"
    raise UserError("there are no weights", f"{INIT_FROM} {place}", remedy)


def _read_files(files: list[Path]) -> Tensors:
    tensors: Tensors = {}
    for file in files:
        try:
            content = load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read the weights ({error})", str(file)) from error
        if content.keys() & tensors.keys():
            what = "two files have a tensor of the same name"
            raise UserError(what, f"{INIT_FROM} {file.parent}", "give the path of one file")
        tensors |= content
    return tensors


def _read_checkpoint(folder: Path, which: str, distributed: Distributed) -> tuple[Path, Tensors]:
    manifest = Checkpoint(folder, distributed).find(which)
    if manifest is None:
        raise UserError("the run has no checkpoint yet", f"{INIT_FROM} {folder.parent}")
    path = manifest["path"]
    tensors = load_file(path / MODEL)
    rows: dict[str, list[Tensor]] = {}
    for file in sorted(path.glob("shard-*.safetensors")):
        for key, tensor in load_file(file).items():
            rows.setdefault(key, []).append(tensor)
    for key, shards in rows.items():
        if key.startswith("model/"):
            tensors[key.removeprefix("model/")] = torch.cat(shards)

    for alias, name in (manifest["aliases"] | manifest["shards"]).items():
        if isinstance(name, str):  # else the shape of a sharded tensor
            tensors[alias.removeprefix("model/")] = tensors[name.removeprefix("model/")]
    return path, tensors


def _read_script(files: list[Path]) -> tuple[Path, Tensors]:
    """Read the best one of a script's checkpoints, newest first; each has its hash in its name."""
    intact = [file for file in files if file.stem.endswith(sha256(file)[:16])]
    if not intact:
        where = f"{INIT_FROM} {files[0].parent}"
        raise UserError("no valid checkpoint", where, "name another run")
    newest = torch.load(intact[0], map_location="cpu", weights_only=True)
    best = [file for file in intact if file.match(f"step-{newest['best_step']:08d}-*")]
    path = [*best, *intact][0]
    return path, torch.load(path, map_location="cpu", weights_only=True)["model"]


def _rename(tensors: Tensors, layers: dict[str, str]) -> Tensors:
    """Give layers the names that they have in the package's model."""
    renamed = {}
    for name, tensor in tensors.items():
        layer, dot, parameter = name.partition(".")
        renamed[layers.get(layer, layer) + dot + parameter] = tensor
    return renamed
