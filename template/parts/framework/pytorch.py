"""The training loop in plain PyTorch, readable from top to bottom."""

from __future__ import annotations

from .engine.session import Session


def fit(session: Session) -> None:
    """Trains the session's current phase to its end, or to a stop."""
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
