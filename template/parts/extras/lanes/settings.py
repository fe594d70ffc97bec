"""The order `lanes`: its settings, and what it needs: an order of samples, a model and its state.

`dataset.py` and `model.py` discover the two functions. The hook stores in checkpoints what the
model carries from batch to batch. Nothing here imports torch at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from .. import settings as workload
from ..engine.settings.config import Natural

if TYPE_CHECKING:
    from ..engine.data.order import Order
    from ..engine.run.run import Run
    from ..lanes import LaneForecaster
    from ..model import Forecaster


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


def orders(settings: Any, history: int) -> dict[str, Callable[..., Order]]:
    """Return the order by its name in `data.order`. history: rows, the default of the stride."""
    from ..engine.data.lanes import Lanes

    stride = settings.data.stride if settings else 0
    return {"lanes": partial(Lanes, stride=stride or history)}


def build_model(settings: Any, facts: dict[str, Any]) -> Forecaster | LaneForecaster:
    """Build the forecaster; with the order `lanes`, the one that carries its state."""
    from ..lanes import LaneForecaster
    from ..model import Forecaster

    forecaster = LaneForecaster if settings.data.order == "lanes" else Forecaster
    return forecaster(settings, facts)


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
