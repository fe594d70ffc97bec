"""Records a hash of all gradients of each step, if `monitor.exact` is set, for `replay`.

Gradients are hashed as the optimizer gets them: means, clipped. A step that fp16 skips has no hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.training.run import Run


class Hook:
    """Hashes gradients on their device; only a record waits for it."""

    def __init__(self) -> None:
        self.hashes: dict[int, Any] = {}  # by step, since the last record

    def start(self, run: Run) -> None:
        """Hash the gradients before each update."""
        from ..engine.compute.precision import own
        from ..measure.rerun import hash_of

        if not run.settings.monitor.exact:
            return
        weights = list(run.project.model.parameters())

        def add_hash(*_: object) -> None:
            gradients = [own(weight.grad) for weight in weights if weight.grad is not None]
            self.hashes[run.step + 1] = hash_of(gradients)

        run.project.optimizer.register_step_pre_hook(add_hash)

    def before_record(self, run: Run, record: dict[str, Any]) -> None:
        """Add the hashes to a record (host sync)."""
        if run.settings.monitor.exact:
            record["gradients"] = {step: f"{int(one):x}" for step, one in self.hashes.items()}
            self.hashes = {}
