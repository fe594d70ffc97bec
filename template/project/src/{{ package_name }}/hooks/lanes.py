"""The state that the model carries from batch to batch in the order `lanes`.

`assemble.py` chooses the model of this order. Nothing here imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.training.run import Run


class Hook:
    """The carried state of every rank, as a part of checkpoints.

    Another number of processes can resume a run if a batch over all of them keeps its size.
    """

    def before_first_batch(self, run: Run) -> None:
        self.run = run
        self.recurrent = getattr(run.project.model, "recurrent", None)

    def state_dict(self) -> dict[str, Any]:
        """Gather the states of all ranks; call it on every rank."""
        carried = self.recurrent.state_dict() if self.recurrent else None
        return {"ranks": self.run.project.distributed.gather_objects(carried)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.recurrent:
            device = self.run.project.device
            self.recurrent.load_state_dict(state["ranks"], self.run.loader.order, device)
