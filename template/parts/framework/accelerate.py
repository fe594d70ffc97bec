"""The training loop with Hugging Face Accelerate; step, order, checkpoints and signals are the project's own.

Accelerate gets the model and the optimizer, and nothing else: it would cut batches over processes again,
step a schedule once per process, and choose a number format of its own.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

from .engine.distributed import ACCELERATE
from .engine.session import Session


def prepare(session: Session) -> None:
    """Lets Accelerate wrap what the step calls: the model, the optimizer, backward."""
    project, step = session.project, session.step
    options: dict[str, Any] = {
        "cpu": project.device.type == "cpu",
        "device_placement": False,  # all of it is there
        "mixed_precision": "no",  # the step's own precision does it, whatever `accelerate launch` says
        # The step accumulates by weight. As a plugin: `accelerate launch` outranks the number alone.
        "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=1),
    }
    accelerator = Accelerator(**options | ACCELERATE)
    # As if to evaluate: several processes are the project's own matter, and wrapped twice is averaged twice.
    project.wrapped = accelerator.prepare_model(project.wrapped, evaluation_mode=True)
    step.optimizer = accelerator.prepare_optimizer(project.optimizer)
    step.model, step.backward = project.wrapped, accelerator.backward


def fit(session: Session) -> None:
    """Trains the session's current phase to its end, or to a stop."""
    prepare(session)
    step, loader, progress = session.step, session.loader, session.progress
    if session.evaluation_due:  # a signal inside an evaluation left it undone
        session.evaluate()
    while not session.over:
        first = progress.batch  # of the open group of micro-batches
        batches = session.monitor.timed(loader.epoch(progress.epoch, first))
        for number, batch in enumerate(batches, start=first + 1):
            closes = number % session.accumulation == 0 or number == len(loader)
            step(batch, closes)  # forward and backward; the optimizer steps when the group closes
            if not closes:
                continue
            session.advance((first, number))
            first = number
            if session.evaluation_due:
                session.evaluate()
            if session.save_due:
                session.save()
            if session.over:
                break
