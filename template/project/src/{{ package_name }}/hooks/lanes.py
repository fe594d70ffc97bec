"""The order `lanes`: its settings, and the state that the model carries from batch to batch.

`assemble.py` chooses the model of this order. Nothing here imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .. import settings as workload
from ..engine.settings.config import Natural

if TYPE_CHECKING:
    from ..engine.run.run import Run


class Data(workload.Data):
    """Where the dataset is, the order of its windows, and how they reach the device."""

    # mypy does not want a wider type in a subclass.
    order: Literal["auto", "full", "block", "time", "lanes"] = "auto"  # type: ignore[assignment]
    """Order of the training windows. full: shuffle all. block: shuffle within blocks, for files
    larger than memory. time: keep the stored order. lanes: keep the order of time and carry the
    hidden state from window to window. auto: full for up to 33 million windows, otherwise block."""

    stride: Natural = 0
    """Rows between two samples of a lane if `order` is lanes. 0 uses the history length, so that no
    row is seen twice."""


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
