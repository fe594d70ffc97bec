"""Average the weights over the steps of a run (Polyak & Juditsky 1992).

The averages are often better than the last weights. They are on the device and need as much memory
as the weights; an update is one pass over both, without a host sync. Evaluations also measure the
averages, in columns that end in `_averaged`. `evaluate`, `predict`, `generate` and `export` use
them with `--weights averaged`. A sharded model has sharded averages. Buffers, such as running
statistics, come from the trained model, except those that the model calibrates: there is a second
value of these, for the averages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.training.checkpoint import Checkpoint, State
    from ..engine.training.run import Run

AVERAGED = "averaged"  # the value of `--weights` that selects the averages


class Hook:
    """Updates the averages, and measures them at evaluations, without a host sync."""

    def __init__(self) -> None:
        self.averages: dict[str, Tensor] = {}
        self.updates = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averages = state["averages"]
        self.updates = state["updates"]

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages, "updates": self.updates}

    def start(self, run: Run) -> None:
        """Begin with the restored averages, or with the current weights."""
        from ..engine.compute.filling import fill

        model = run.project.model
        settings: Any = run.project.settings
        self.settings = settings.ema
        saved = self.averages
        self.averages = {}
        self.originals = with_averages(model)
        for name, tensor in self.originals.items():
            self.averages[name] = tensor.detach().clone()
            if saved:
                fill(self.averages[name], saved[name])
        self.num_weights = sum(weight.requires_grad for weight in model.parameters())

    def after_step(self, run: Run) -> None:
        """Move the averages towards the weights, faster at first, to forget initial weights."""
        import torch

        from ..engine.compute.precision import own

        if run.step % self.settings.every_steps:
            return
        share = 1.0
        if run.step > self.settings.start_step:
            self.updates += 1
            share = max(1 - self.settings.decay, 9 / (10 + self.updates))
        averages = [own(average) for average in self.averages.values()][: self.num_weights]
        weights = [own(weight) for weight in self.originals.values()][: self.num_weights]
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, share)

    @contextmanager
    def evaluating(self, run: Run) -> Iterator[None]:
        """Measure the averages before the weights: a resume after a signal then measures both."""
        from ..engine.training.evaluation import evaluate

        project = run.project
        self._exchange(project.model)
        try:
            metrics = evaluate(project, run.validation, "validation", run.agree, calibrate=True)
            self.metrics = metrics or {}
        finally:
            self._exchange(project.model)
        yield

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Add the results; those of the trained weights still decide the best checkpoint."""
        self.metrics.pop("baseline_loss", None)
        for name, value in self.metrics.items():
            metrics[f"{name}_{AVERAGED}"] = value

    def _exchange(self, model: Any) -> None:
        """Swap weights and averages in place, since CUDA graphs and buckets keep addresses."""
        import torch

        from ..engine.compute.precision import own

        with torch.no_grad():
            for name, original in self.originals.items():
                previous = own(original).clone()
                own(original).copy_(own(self.averages[name]))
                own(self.averages[name]).copy_(previous)
        # FSDP keeps the weights outside of blocks gathered after a forward without backward. The
        # next forward would use those from before the exchange.
        if hasattr(model, "reshard"):
            model.reshard()


def load_averages(checkpoint: Checkpoint, saved: State) -> None:
    """Copy the averages of a checkpoint into the model. Raises `UserError` if there are none."""
    if "ema" not in saved.get("hooks", ()):
        what = "the checkpoint has no averaged weights"
        remedy = "use --weights trained, or continue training with the extra ema"
        raise UserError(what, f"--weights {AVERAGED}", remedy)
    from ..engine.compute.filling import fill

    with checkpoint.using(saved["path"]):
        state = checkpoint.complete(saved["hooks"]["ema"], saved["path"])
        for name, tensor in with_averages(checkpoint.parts["model"]).items():
            fill(tensor, state["averages"][name])


def with_averages(model: Any) -> dict[str, Tensor]:
    """Return the trained weights of a model, and after them the buffers that it calibrates."""
    tensors = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            tensors[name] = weight
    calibrated = getattr(model, "calibrated", ())
    for name, buffer in model.named_buffers():
        if name in calibrated:
            tensors[name] = buffer
    return tensors
