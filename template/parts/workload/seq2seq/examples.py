"""Predictions for some pairs, for the report and the tracker. Change them as you like.

`examples` returns texts in Markdown, or matplotlib figures, by name. hooks/examples.py calls it.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from .engine.monitoring.report import table
from .tokenizer import restore, text_of

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 1  # the minimum, which is one batch
PAIRS = 16  # pairs of that batch to show


def answer(project: Project, batch: Batch) -> Batch:
    """Return `text` (PAIRS, longest), decoded greedily.

    A sharded model predicts each token after the true ones instead. It needs all ranks for every
    token, but decoding ends at another length on each rank.
    """
    model = project.model
    if project.distributed.forward_exchanges:
        return {"text": model.predict(batch)["prediction"][:PAIRS]}
    source = batch["source"][:PAIRS]
    present = batch["source_present"][:PAIRS]
    return {"text": model.generate(source, present, model.longest)}


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, str]:
    """Show sources, targets and predictions, the least similar ones first."""
    tokenizer = restore(project.store.facts["tokenizer"])

    pairs = []
    sides = zip(batch["source"], batch["targets"], predictions["text"], strict=False)
    for tensors in sides:
        texts = [text_of(tokenizer, tokens.tolist()) for tokens in tensors]
        similarity = SequenceMatcher(None, texts[1], texts[2]).ratio()
        pairs.append((similarity, texts))
    rows = [(*texts, f"{similarity:.0%}") for similarity, texts in sorted(pairs)]
    title = "Pairs of the validation split, least similar first"
    lines = table(title, ("source", "target", "prediction", "similarity"), rows)
    return {"pairs": "\n".join(lines)}
