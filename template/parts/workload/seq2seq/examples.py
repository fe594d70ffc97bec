"""Predicted pairs at an evaluation, for the report and the tracker. Yours to change.

`examples` returns texts in Markdown, or matplotlib figures, by name; hooks/examples.py calls it.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from .engine.report import table
from .tokenizer import restore

if TYPE_CHECKING:
    from torch import Tensor

    from .engine.interfaces import Batch
    from .engine.project import Project

SAMPLES = 1  # at least: one batch
PAIRS = 16  # of them


def answer(project: Project, batch: Batch) -> Batch:
    """`text` (PAIRS, longest), decoded greedily.

    For a sharded model, the likeliest token after the true ones: decoding ends at another length
    on each rank, and a sharded model needs all ranks for every token.
    """
    model = project.model
    if project.distributed.forward_exchanges:
        return {"text": model.predict(batch)["prediction"][:PAIRS]}
    source = batch["source"][:PAIRS]
    present = batch["source_present"][:PAIRS]
    return {"text": model.generate(source, present, model.longest)}


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, str]:
    """Sources, targets and what the model made of them, the least like first."""
    tokenizer = restore(project.store.facts["tokenizer"])

    def text(tokens: Tensor) -> str:
        numbers = tokens.tolist()
        if tokenizer.end in numbers:
            numbers = numbers[: numbers.index(tokenizer.end)]
        return tokenizer.decode(numbers).decode("utf-8", "replace")

    pairs = []
    sides = zip(batch["source"], batch["targets"], predictions["text"], strict=False)
    for source, target, prediction in sides:
        texts = (text(source), text(target), text(prediction))
        similarity = SequenceMatcher(None, texts[1], texts[2]).ratio()
        pairs.append((similarity, texts))
    rows = [(*texts, f"{similarity:.0%}") for similarity, texts in sorted(pairs)]
    title = "Pairs of the validation, the least alike first"
    lines = table(title, ("source", "target", "prediction", "alike"), rows)
    return {"pairs": "\n".join(lines)}
