"""Weights that a run starts from or leaves alone: `training.init_from`, `training.freeze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .checkpoint import MANIFEST, MODEL, Checkpoint
from .errors import UserError
from .files import sha256
from .runs import RUNS

if TYPE_CHECKING:
    from ..assemble import Project
    from .distributed import Distributed

INIT_FROM = "training.init_from"
Shapes = dict[str, tuple[int, ...]]
SCRIPT_CHECKPOINT = "step-*-*.pt"


def freeze(model: nn.Module, patterns: Sequence[str]) -> tuple[str, str]:
    """Weights whose names fit a pattern get no gradient; returns how many and why, for `describe`.

    Comes before wrapping and the optimizer, which then know nothing of them: no update, no weight decay.
    Raises `UserError` for a pattern that fits no name, and where nothing is left to train.
    """
    named = dict(model.named_parameters(remove_duplicate=False))  # tied weights have two names
    for pattern in patterns:
        fitting = [weight for name, weight in named.items() if fnmatchcase(name, pattern)]
        if not fitting:
            where, names = f"training.freeze {', '.join(patterns)}", ", ".join(list(named)[:8])
            raise UserError(f"no weight's name fits '{pattern}'", where, f"names are {names}, …")
        for weight in fitting:
            weight.requires_grad_(False)
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    count, frozen = sum(size for size, _ in sizes), sum(size for size, trained in sizes if not trained)
    if frozen == count:
        raise UserError("every weight is frozen", "training.freeze", "leave some of them to train")
    return f"{frozen / count:.1%}", f"training.freeze: {frozen:,} of {count:,}"


def begin(project: Project, restored: bool) -> list[str]:
    """Fills a new run's model from `training.init_from`; returns what a person should know of it.

    restored: the run goes on from a checkpoint of its own, which is stronger. Raises `UserError` where
    there are no weights, or none fits.
    """
    settings = project.settings
    if restored:
        return settings.without_effect([INIT_FROM], "the run goes on from its own checkpoint")
    if not settings.training.init_from:
        return []
    script_names = getattr(project.model, "script_names", {})
    source = Source(settings.training.init_from, project.distributed, script_names)
    taken, new = fitting(project.model, source.shapes)
    if source.is_script:  # it standardizes outside of its model: buffers are those of the data here
        weights = dict(project.model.named_parameters())
        new = {name: shape for name, shape in new.items() if name in weights}
    computed = {name for name, x in project.model.named_buffers() if not x.is_floating_point()}
    left = {name: shape for name, shape in source.shapes.items() if name not in {*taken, *computed}}
    if not any(isinstance(tensor, nn.Parameter) for tensor in taken.values()):
        remedy = f"it has {listed(left)}; the model has {listed(new)}"
        raise UserError("no weight fits this model", f"{INIT_FROM} {source.path}", remedy)
    filled: set[int] = set()
    for name, tensor in taken.items():
        if id(tensor) not in filled:
            fill(tensor, source.read(name))
        filled.add(id(tensor))
    parts = [f"{len(filled)} tensors fit", f"new: {listed(new)}", f"left: {listed(left)}"]
    return [*source.notes, f"weights of {source.path}: {'; '.join(parts)}"]


def fitting(model: nn.Module, shapes: Shapes) -> tuple[dict[str, Tensor], Shapes]:
    """Tensors of a model by those names of `shapes` that have their shape, and the shapes of the others.

    Buffers too, such as the scale of columns or running statistics, so that a model gives what it gave; but
    not whole numbers, such as the place of a category, which follow from the data.
    """
    kept, names = model.state_dict().keys(), dict[int, list[str]]()
    tensors = dict(
        chain(*(each(remove_duplicate=False) for each in (model.named_parameters, model.named_buffers)))
    )
    tensors = {name: x for name, x in tensors.items() if name in kept and x.is_floating_point()}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    taken = {name: x for name, x in tensors.items() if shapes.get(name) == tuple(x.shape)}
    new = {
        same[0]: tuple(tensors[same[0]].shape)
        for same in names.values()  # of a tied weight one name is enough
        if not taken.keys() & same
    }
    return taken, new


class Source:
    """Named tensors of a run's best checkpoint, else its newest; of a checkpoint; of any safetensors.

    Of a folder `model.safetensors`, with the shards of all ranks, where it has that, else all its files.
    Checkpoints of `layout: script` are read as well; script_names: what the model calls the script's layers.
    """

    def __init__(self, place: str, distributed: Distributed, script_names: Mapping[str, str] | None = None):
        self.notes: list[str] = []
        self.script_names = script_names or {}
        self.path, manifest = self._locate(place, distributed)
        self.is_script = self.path.suffix == ".pt"
        files = [self.path]
        if self.path.is_dir():
            whole = (self.path / MODEL).exists()
            files = sorted(self.path.glob("*.safetensors"), key=lambda file: (file.name != MODEL, file.name))
            files = [
                file for file in files if not whole or file.name == MODEL or file.name.startswith("shard-")
            ]
        self._parts: dict[str, list[Any]] = {}  # the rows of a tensor, one file after the other
        try:
            for file in files:
                self._open(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read the weights ({error})", str(self.path)) from error
        tied = manifest.get("aliases", {}) | manifest.get("shards", {})
        for name, other in tied.items():
            if isinstance(other, str):  # else the shape of a sharded tensor
                self._parts[_named(name)[1]] = self._parts[_named(other)[1]]
        self.shapes = {name: _shape(parts) for name, parts in self._parts.items()}

    def _locate(self, place: str, distributed: Distributed) -> tuple[Path, dict[str, Any]]:
        """The folder or file that is meant, and a checkpoint's manifest."""
        for path in (RUNS / place, Path(place)):
            script_checkpoint, damaged = find_script_checkpoint(path)
            if script_checkpoint is not None:
                self.notes = [f"skipped a damaged checkpoint: {file.name}" for file in damaged]
                return script_checkpoint, {}
            checkpoint = (path / MANIFEST).is_file()
            if checkpoint or (path / "checkpoints").is_dir():
                folder, which = (path.parent, path.name) if checkpoint else (path / "checkpoints", "best")
                checkpoints = Checkpoint(folder, distributed)
                if (manifest := checkpoints.find(which)) is None:
                    raise UserError("the run has no checkpoint yet", f"{INIT_FROM} {place}")
                self.notes = [f"skipped a damaged checkpoint: {name}" for name in checkpoints.skipped]
                return manifest["path"], manifest
            if (path.suffix == ".safetensors" and path.is_file()) or any(path.glob("*.safetensors")):
                return path, {}
        remedy = "give a run, a checkpoint, or a folder or file of safetensors"
        raise UserError("there are no weights", f"{INIT_FROM} {place}", remedy)

    def _open(self, file: Path) -> None:
        opened: Any = ScriptCheckpoint(file, self.script_names) if self.is_script else safe_open(file, "pt")
        for key in opened.keys():  # noqa: SIM118 - it is no dictionary
            part, name = _named(key)
            if not part and name in self._parts:
                what = f"two files have a tensor '{name}'"
                raise UserError(what, f"{INIT_FROM} {self.path}", "give the path of one file")
            if part in ("", "model"):
                self._parts.setdefault(name, []).append((opened, key))

    def read(self, name: str) -> Tensor:
        """All of a tensor, on the host."""
        rows = [opened.get_tensor(key) for opened, key in self._parts[name]]
        return torch.cat(rows) if len(rows) > 1 else rows[0]


class ScriptCheckpoint:
    """The weights in a checkpoint of `layout: script`, with the methods of an open safetensors file."""

    def __init__(self, path: Path, names: Mapping[str, str]):
        self.tensors: dict[str, Tensor] = {}
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        for name, tensor in checkpoint["model"].items():
            layer, dot, parameter = name.partition(".")
            self.tensors[names.get(layer, layer) + dot + parameter] = tensor

    def keys(self) -> list[str]:
        return list(self.tensors)

    def get_tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def get_slice(self, name: str) -> ScriptTensor:
        return ScriptTensor(self.tensors[name])


class ScriptTensor(NamedTuple):
    tensor: Tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)


def find_script_checkpoint(path: Path) -> tuple[Path | None, list[Path]]:
    """The best checkpoint of a script's run, else its newest one, or `path` if it is one; and damaged ones.

    Each has a part of its sha256 in its name. Raises `UserError` if all are damaged.
    """
    files = sorted((path / "checkpoints").glob(SCRIPT_CHECKPOINT), reverse=True)
    if path.match(SCRIPT_CHECKPOINT) and path.is_file():
        files = [path]
    intact = [file for file in files if file.stem.endswith(sha256(file)[:16])]
    damaged = [file for file in files if file not in intact]
    if files and not intact:
        what = f"no valid checkpoint: {', '.join(file.name for file in damaged)}"
        raise UserError(what, str(path), "restore one, or name another run")
    if not intact:
        return None, []
    newest = torch.load(intact[0], map_location="cpu", weights_only=True)
    best = f"step-{newest['best_step']:08d}-"
    return next((file for file in intact if file.name.startswith(best)), intact[0]), damaged


def _named(key: str) -> tuple[str, str]:
    """Part of a checkpoint and name: a shard has `model/head.weight`, other files `head.weight`."""
    part, _, name = key.rpartition("/")
    return part, name


def _shape(parts: list[Any]) -> tuple[int, ...]:
    shapes = [opened.get_slice(key).get_shape() for opened, key in parts]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()


def listed(shapes: Mapping[str, tuple[int, ...]], most: int = 3) -> str:
    """`head.weight 1×64, head.bias 1 and 4 more`; the first names of many."""
    shown = [f"{name} {'×'.join(map(str, shape))}".strip() for name, shape in shapes.items()]
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more or "nothing"


def fill(tensor: Any, source: Tensor) -> None:
    """Copies a whole tensor in place; of a sharded one each rank takes its own rows, by a collective."""
    source = source.to(tensor.device)
    if hasattr(tensor, "to_local") and not hasattr(source, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = tensor
        source = distribute_tensor(source, sharded.device_mesh, sharded.placements)
    with torch.no_grad():
        own(tensor).copy_(own(source))


def own(tensor: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor; another one as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
