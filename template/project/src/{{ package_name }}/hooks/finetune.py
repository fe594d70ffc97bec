"""Starts a run from other weights, and freezes weights."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import RUNS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..engine.compute.optimization import Optimization
    from ..engine.training.project import Project
    from ..engine.training.run import Run

    Tensors = dict[str, Tensor]

INIT_FROM = "finetune.init_from"
CHECKPOINTS = "checkpoints"
BEST_OF_SCRIPT = "best_step"  # the name of that step in a script's checkpoint
SHOWN = 3  # tensors named in a note


class Hook:
    """Loads the weights of a new run."""

    trials = False

    def initialize(self, run: Run) -> None:
        """Load the weights of `finetune.init_from`, if it is set, and check what is frozen.

        Raises `UserError` if a frozen weight is a new one, which nobody has trained.
        """
        settings: Any = run.settings
        project = run.project
        new = [name for name, _ in project.model.named_parameters(remove_duplicate=False)]
        if settings.finetune.init_from:
            note, new = load_initial(project, settings.finetune.init_from)
            run.notes.append(note)
        is_loaded = getattr(settings.model, "pretrained", "") or settings.finetune.freeze_new
        for pattern in settings.finetune.freeze:
            frozen = fnmatch.filter(new, pattern)
            if frozen and not is_loaded:
                what = f"'{pattern}' freezes weights that are new and stay random: {frozen[0]}"
                remedy = f"set {INIT_FROM} to weights that have them, or finetune.freeze_new true"
                raise UserError(what, "finetune.freeze", remedy)


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[Optimization]:
    """Freeze the weights whose names match a pattern; return how many, if any, for `describe`.

    Call it before the model is wrapped and the optimizer is made: both then ignore these weights,
    and there is no update and no weight decay. Raises `UserError` if a pattern matches no name, or
    if nothing is left to train.
    """
    from ..engine.compute.optimization import Optimization

    weights = dict(model.named_parameters(remove_duplicate=False))  # tied weights have two names
    for pattern in patterns:
        matching = fnmatch.filter(weights, pattern)
        if not matching:
            names = ", ".join(list(weights)[:8])
            what = f"no weight's name matches '{pattern}'"
            raise UserError(what, "finetune.freeze", f"the names are {names}, …")
        for name in matching:
            weights[name].requires_grad_(False)

    if not patterns:
        return []
    keep_statistics(model)
    total = sum(weight.numel() for weight in model.parameters())
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    if frozen == total:
        raise UserError("every weight is frozen", "finetune.freeze", "leave some of them to train")
    why = f"{frozen:,} of {total:,} weights"
    return [Optimization("frozen weights", "finetune.freeze", f"{frozen / total:.1%}", why)]


def keep_statistics(model: nn.Module) -> None:
    """Let norms whose weights are frozen keep their running statistics, too."""
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        is_frozen = not any(weight.requires_grad for weight in own)
        if own and is_frozen and hasattr(module, "running_mean"):
            module.eval()
            # `model.train()` passes it by.
            module.train = lambda mode=True, kept=module: kept  # type: ignore[method-assign]


def load_initial(project: Project, place: str) -> tuple[str, list[str]]:
    """Load the weights in `place` into a new run's model; return a note, and what stays new.

    Weights and buffers whose name and shape fit are loaded. Tensors of integers, such as the codes
    of categories, are not: they follow from the data.
    """
    from torch import nn

    from ..engine.compute.filling import fill

    path, tensors = read_weights(place, project)
    target = _numbers(project.model.state_dict(keep_vars=True))
    source = _numbers(_renamed(tensors, target, getattr(project.model, "script_names", {})))
    fitting = []
    for name, tensor in source.items():
        goal = target.get(name)
        if goal is None or goal.is_complex() != tensor.is_complex():
            continue
        if goal.shape == tensor.shape:
            try:
                fill(goal, tensor)
            except RuntimeError as error:
                what = f"PyTorch cannot copy {name} from {tensor.dtype}"
                raise UserError(what, f"{INIT_FROM} {path}", "save it as float32") from error
            fitting.append(name)

    filled = {id(target[name]) for name in fitting}  # a tied weight has two names
    weights = [name for name, tensor in target.items() if isinstance(tensor, nn.Parameter)]
    new = [name for name in weights if id(target[name]) not in filled]
    unused = listed(source, sorted(source.keys() - fitting))
    if len(new) == len(weights):
        remedy = f"it has {unused}; the model has {listed(target, new)}"
        raise UserError("no weight fits this model", f"{INIT_FROM} {path}", remedy)
    counts = f"{len(fitting)} tensors fit; new: {listed(target, new)}"
    return f"weights of {path}: {counts}; unused: {unused}", new


def _numbers(tensors: Tensors) -> Tensors:
    """Leave out whole numbers, such as codes."""
    numbers = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex():
            numbers[name] = tensor
    return numbers


def _renamed(tensors: Tensors, target: Tensors, layers: dict[str, str]) -> Tensors:
    """Rename tensors that the model lacks, as `layers` says (those of `layout: script`)."""
    renamed = {}
    for name, tensor in tensors.items():
        layer, dot, parameter = name.partition(".")
        if name not in target:
            layer = layers.get(layer, layer)
        renamed[layer + dot + parameter] = tensor
    return renamed


def listed(tensors: Tensors, names: list[str]) -> str:
    """Name the first of many tensors: `head.weight 1×64, head.bias 1 and 4 more`."""
    shown = [f"{name} {'×'.join(map(str, tensors[name].shape))}".strip() for name in names[:SHOWN]]
    text = ", ".join(shown) or "nothing"
    return f"{text} and {len(names) - SHOWN} more" if len(names) > SHOWN else text


# --- where weights are


def read_weights(place: str, project: Project) -> tuple[Path, Tensors]:
    """Read the weights of a run or a checkpoint, or those in a file or folder of safetensors.

    In a run, they are in the best checkpoint that is intact, or else in the newest one. Runs and
    checkpoints of `layout: script` can be read, too. Any other file that `torch.save` wrote is read
    as it is. Returns where they are, and the tensors.
    """
    path = RUNS / place if os.path.isdir(RUNS / place) else Path(place)
    if (path / CHECKPOINTS).is_dir():
        return _read_checkpoint(path / CHECKPOINTS, "best", project)
    if path.parent.name == CHECKPOINTS:
        return _read_checkpoint(path.parent, path.name, project)

    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        remedy = "give a run, a checkpoint, or a folder or file of weights"
        raise UserError("there are no weights", f"{INIT_FROM} {place}", remedy)
    tensors: Tensors = {}
    for file in files:
        tensors |= _read_file(file)
    return path, tensors


def _read_file(path: Path) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from ..engine.training.checkpoint import read_plain

    if path.suffix != ".safetensors":
        return _weights_in(read_plain(path), path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        what = f"cannot read the weights ({error})"
        raise UserError(what, str(path), "copy the file again") from error


def _read_checkpoint(folder: Path, which: str, project: Project) -> tuple[Path, Tensors]:
    from ..engine.training.checkpoint import Checkpoint, step_name

    checkpoint = Checkpoint(folder, project.distributed)
    state = checkpoint.find(which)
    path = state["path"]
    with checkpoint.using(path):
        if which == "best" and BEST_OF_SCRIPT in state:  # a script does not mark names
            start = step_name(state[BEST_OF_SCRIPT])
            for best in checkpoint.candidates("last"):
                if best.name.startswith(start) and checkpoint.is_intact(best):
                    path = best
                    state = checkpoint.read(best)
        return path, _weights_in(checkpoint.complete({"model": state["model"]}, path), path)


def _weights_in(content: Any, path: Path) -> Tensors:
    """Return the weights in a file of `torch.save`: a state_dict, alone or with other values."""
    from torch import Tensor

    for name in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict):
        what = f"the file has a {type(content).__name__}, no weights"
        raise UserError(what, f"{INIT_FROM} {path}", "save the model's state_dict()")
    tensors = {}
    for name, value in content.items():
        if isinstance(name, str) and isinstance(value, Tensor):
            tensors[name] = value
            if not _is_plain(value):
                what = f"the weight {name} is sparse, nested, quantized, without values or the like"
                raise UserError(what, f"{INIT_FROM} {path}", "save it as a dense tensor")
    return tensors


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has a value for each place, as a weight has. One of FSDP is plain, too."""
    import torch

    is_plain_type = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not is_plain_type and not hasattr(tensor, "to_local"):
        return False
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return is_dense and not tensor.is_quantized and not tensor.is_meta
