"""Weights that a run starts from, and weights that it freezes.

The settings are `training.init_from` and `training.freeze`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
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
    from .distributed import Distributed
    from .project import Project

INIT_FROM = "training.init_from"
Shapes = dict[str, tuple[int, ...]]
SCRIPT_CHECKPOINT = "step-*-*.pt"


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
            where = f"training.freeze {', '.join(patterns)}"
            names = ", ".join(list(weights)[:8])
            raise UserError(f"no weight's name fits '{pattern}'", where, f"names are {names}, …")
        for weight in matching:
            weight.requires_grad_(False)

    total = 0
    frozen = 0
    for weight in model.parameters():
        total += weight.numel()
        if not weight.requires_grad:
            frozen += weight.numel()
    if frozen == total:
        remedy = "leave some of them to train"
        raise UserError("every weight is frozen", "training.freeze", remedy)
    return f"{frozen / total:.1%}", f"training.freeze: {frozen:,} of {total:,}"


def begin(project: Project, restored: bool) -> list[str]:
    """Load the weights of `training.init_from` into a new run's model; return notes for the user.

    restored: the run has loaded its own checkpoint, which takes precedence. Raises `UserError` if
    there are no weights, or none of them fits.
    """
    settings = project.settings
    if restored:
        reason = "the run goes on from its own checkpoint"
        return settings.without_effect([INIT_FROM], reason)
    if not settings.training.init_from:
        return []

    script_names = getattr(project.model, "script_names", {})
    source = Source(settings.training.init_from, project.distributed, script_names)
    taken, new = fitting(project.model, source.shapes)
    if source.is_script:
        # A script standardizes outside its model: the buffers are those of the data here.
        parameters = dict(project.model.named_parameters())
        new = {name: shape for name, shape in new.items() if name in parameters}
    left = _left(project.model, source.shapes, taken)
    if not any(isinstance(tensor, nn.Parameter) for tensor in taken.values()):
        where = f"{INIT_FROM} {source.path}"
        remedy = f"it has {listed(left)}; the model has {listed(new)}"
        raise UserError("no weight fits this model", where, remedy)

    filled: set[int] = set()  # a tied weight has two names
    for name, tensor in taken.items():
        if id(tensor) not in filled:
            fill(tensor, source.read(name))
            filled.add(id(tensor))
    counts = f"{len(filled)} tensors fit; new: {listed(new)}; left: {listed(left)}"
    return [*source.notes, f"weights of {source.path}: {counts}"]


def _left(model: nn.Module, shapes: Shapes, taken: dict[str, Tensor]) -> Shapes:
    """Return the source's tensors that are not taken, without those computed from the data."""
    left = dict(shapes)
    for name in taken:
        del left[name]
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point():
            left.pop(name, None)
    return left


def fitting(model: nn.Module, shapes: Shapes) -> tuple[dict[str, Tensor], Shapes]:
    """Return the model's tensors whose name and shape are in `shapes`, and the other ones' shapes.

    Buffers too, such as the scale of columns or running statistics, so that a model gives what it
    gave; but no integers, such as the number of a category, which follow from the data.
    """
    tensors = _floating_tensors(model)
    taken = {}
    for name, tensor in tensors.items():
        if shapes.get(name) == tuple(tensor.shape):
            taken[name] = tensor

    # One name is enough of a tied weight, and none if it is taken by another name.
    new = {}
    reported = set(map(id, taken.values()))
    for name, tensor in tensors.items():
        if id(tensor) not in reported:
            reported.add(id(tensor))
            new[name] = tuple(tensor.shape)
    return taken, new


def _floating_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and saved buffers by all their names."""
    saved = model.state_dict().keys()
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= model.named_buffers(remove_duplicate=False)
    return {name: x for name, x in tensors.items() if name in saved and x.is_floating_point()}


class Source:
    """Named tensors of a run, of a checkpoint, or of any safetensors.

    Of a run, the best checkpoint, or else the newest. Of a folder, `model.safetensors` with the
    shards of all ranks if it has that, or else all its files.

    Runs and checkpoints of `layout: script` too. script_names: what the model calls its layers.
    """

    def __init__(
        self, place: str, distributed: Distributed, script_names: Mapping[str, str] | None = None
    ):
        self.notes: list[str] = []
        self.path, manifest = self._locate(place, distributed)
        self.is_script = self.path.suffix == ".pt"
        self.script_names = script_names or {}
        self._parts: dict[str, list[Any]] = {}  # (file, key) of a tensor's rows, in their order
        try:
            for file in self._files():
                self._open(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read the weights ({error})", str(self.path)) from error

        tied = manifest.get("aliases", {}) | manifest.get("shards", {})
        for name, other in tied.items():
            if isinstance(other, str):  # else the shape of a sharded tensor
                self._parts[_named(name)[1]] = self._parts[_named(other)[1]]
        self.shapes = {name: _shape(parts) for name, parts in self._parts.items()}

    def _locate(self, place: str, distributed: Distributed) -> tuple[Path, dict[str, Any]]:
        """Find the folder or file, and the manifest if it is a checkpoint."""
        for path in (RUNS / place, Path(place)):
            script_checkpoint = self._script_checkpoint(path)
            if script_checkpoint is not None:
                return script_checkpoint, {}
            if (path / MANIFEST).is_file():
                return self._checkpoint(place, path.parent, path.name, distributed)
            if (path / "checkpoints").is_dir():
                return self._checkpoint(place, path / "checkpoints", "best", distributed)
            if path.suffix == ".safetensors" and path.is_file():
                return path, {}
            if any(path.glob("*.safetensors")):
                return path, {}
        remedy = "give a run, a checkpoint, or a folder or file of safetensors"
        raise UserError("there are no weights", f"{INIT_FROM} {place}", remedy)

    def _checkpoint(
        self, place: str, folder: Path, which: str, distributed: Distributed
    ) -> tuple[Path, dict[str, Any]]:
        checkpoints = Checkpoint(folder, distributed)
        manifest = checkpoints.find(which)
        if manifest is None:
            raise UserError("the run has no checkpoint yet", f"{INIT_FROM} {place}")
        self.notes = [f"skipped a damaged checkpoint: {name}" for name in checkpoints.skipped]
        return manifest["path"], manifest

    def _script_checkpoint(self, path: Path) -> Path | None:
        """Find the best checkpoint of a script's run, or else the newest, or `path` if it is one.

        Each has the first digits of its sha256 in its name.
        """
        files = sorted((path / "checkpoints").glob(SCRIPT_CHECKPOINT), reverse=True)
        if path.match(SCRIPT_CHECKPOINT) and path.is_file():
            files = [path]
        intact = []
        for file in files:
            if file.stem.endswith(sha256(file)[:16]):
                intact.append(file)
            else:
                self.notes.append(f"skipped a damaged checkpoint: {file.name}")
        if files and not intact:
            raise UserError("no valid checkpoint", f"{INIT_FROM} {path}", "name another run")
        if not intact:
            return None

        newest = torch.load(intact[0], map_location="cpu", weights_only=True)
        for file in intact:
            if file.name.startswith(f"step-{newest['best_step']:08d}-"):
                return file
        return intact[0]

    def _files(self) -> list[Path]:
        """List the files to read, the main one first."""
        if not self.path.is_dir():
            return [self.path]
        files = sorted(self.path.glob("*.safetensors"))
        model = self.path / MODEL
        if not model.exists():
            return files
        return [model, *(file for file in files if file.name.startswith("shard-"))]

    def _open(self, file: Path) -> None:
        opened = self._opened(file)
        for key in opened.keys():  # noqa: SIM118 - it is no dictionary
            part, name = _named(key)
            if not part and name in self._parts:
                what = f"two files have a tensor '{name}'"
                where = f"{INIT_FROM} {self.path}"
                raise UserError(what, where, "give the path of one file")
            if part in ("", "model"):
                self._parts.setdefault(name, []).append((opened, key))

    def _opened(self, file: Path) -> Any:
        if self.is_script:
            return ScriptWeights(file, self.script_names)
        return safe_open(file, "pt")

    def read(self, name: str) -> Tensor:
        """Read a complete tensor, on the host."""
        rows: list[Tensor] = [opened.get_tensor(key) for opened, key in self._parts[name]]
        if len(rows) == 1:
            return rows[0]
        return torch.cat(rows)


class ScriptWeights:
    """The weights of a script's checkpoint, with the methods of an open safetensors file."""

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

    def get_slice(self, name: str) -> ScriptSlice:
        return ScriptSlice(self.tensors[name])


class ScriptSlice(NamedTuple):
    tensor: Tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)


def _named(key: str) -> tuple[str, str]:
    """Split a key: `model/head.weight` in a shard, `head.weight` in other files."""
    part, _, name = key.rpartition("/")
    return part, name


def _shape(parts: list[Any]) -> tuple[int, ...]:
    shapes = [opened.get_slice(key).get_shape() for opened, key in parts]
    if not shapes[0]:
        return ()
    num_rows = sum(shape[0] for shape in shapes)
    return (num_rows, *shapes[0][1:])


def listed(shapes: Mapping[str, tuple[int, ...]], most: int = 3) -> str:
    """Name the first of many tensors: `head.weight 1×64, head.bias 1 and 4 more`."""
    shown = [f"{name} {'×'.join(map(str, shape))}".strip() for name, shape in shapes.items()]
    if not shown:
        return "nothing"
    names = ", ".join(shown[:most])
    if len(shown) > most:
        names += f" and {len(shown) - most} more"
    return names


def fill(tensor: Any, source: Tensor) -> None:
    """Copy a complete tensor in place; of a sharded one, each rank takes its rows (collective)."""
    source = source.to(tensor.device)
    if hasattr(tensor, "to_local") and not hasattr(source, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = tensor
        source = distribute_tensor(source, sharded.device_mesh, sharded.placements)
    with torch.no_grad():
        own(tensor).copy_(own(source))


def own(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a sharded tensor, or another tensor as it is."""
    if hasattr(tensor, "to_local"):
        local: Tensor = tensor.to_local()
        return local
    return tensor
