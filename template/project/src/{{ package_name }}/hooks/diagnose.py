"""Explains why a run failed: which sample made a loss nan, and whether batches fit into memory.

At the start it estimates the memory of a batch before any data are read, and measures what half
precision costs on a CPU. If a loss or a gradient is not finite, it evaluates samples of the step
alone. To turn it off, delete this file.
"""

from __future__ import annotations

import timeit
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from .. import model as own_model
from ..engine.compute.precision import HALF
from ..engine.errors import NonFinite, UserError
from ..measure.memory_estimate import check_forward, check_rows
from ..measure.nonfinite import explain_non_finite

if TYPE_CHECKING:
    from ..engine.training.run import Run


class Hook:
    """Checks before the first batch; explains afterwards. It costs nothing in a step."""

    trials = False

    def before_first_batch(self, run: Run) -> None:
        """Raise `UserError` if a batch does not fit into the free memory."""
        loaders = [loader for loader in (run.loader, run.validation) if loader is not None]
        check_rows(run.project, loaders)
        check_forward(run.project, run.loader)

    def start(self, run: Run) -> None:
        """Print what half precision costs on a CPU."""
        name = run.project.precision.name
        if run.project.device.type == "cpu" and name in ("fp16", "bf16"):
            in_float32 = getattr(own_model, "FLOAT32_ON_CPU", "")
            run.log.line(f"note: {cost_on_cpu(name, in_float32)}")

    def explain(self, run: Run, error: NonFinite) -> UserError:
        return explain_non_finite(error, run)


def cost_on_cpu(name: str, in_float32: str = "") -> str:
    """Measure what fp16 or bf16 costs on this CPU.

    It takes a few hundredths of a second, and draws no random numbers. in_float32: the part of the
    model that computes in float32 even so.
    """
    values = torch.full((256, 256), 0.01)
    seconds = []
    for half in (True, False):
        with torch.autocast("cpu", HALF[name], enabled=half):
            times = timeit.repeat(lambda: functional.linear(values, values), number=1, repeat=4)
        seconds.append(min(times))  # the first call prepares the kernel
    ratio = seconds[0] / seconds[1]
    text = f"{name} on this CPU: a matrix product takes {ratio:.1f}× as long as in fp32 (measured)"
    if in_float32:
        text += f"; {in_float32} computes in float32"
    return text
