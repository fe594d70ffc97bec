"""Adds whether the graphs are cached to the lines at the start of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.training.run import Run


class Hook:
    """Describes the graphs once."""

    def before_first_batch(self, run: Run) -> None:
        settings: Any = run.settings
        state = "cached"
        why = "read from the prepared dataset"
        if settings.graph_builder.use_in_training:
            state = "rebuilt"
            why = "built again for each batch"
        why = f"graph_builder.use_in_training: {why}"
        run.project.optimizations.append({"name": "graphs", "state": state, "why": why})
