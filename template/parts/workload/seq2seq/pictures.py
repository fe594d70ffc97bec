"""What a person wants to see of the model at an evaluation, for the report and the tracker. Yours to change.

`pictures` gives texts in Markdown, or matplotlib's figures, by name; hooks/pictures.py says when.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from .engine.report import table
from .tokenizer import restore

if TYPE_CHECKING:
    from torch import Tensor

    from .assemble import Project
    from .engine.seams import Batch

SAMPLES = 1  # at least: one batch
PAIRS = 16  # of them


def answer(project: Project, batch: Batch) -> Batch:
    """`text` (PAIRS, longest) decoded greedily; of a sharded model the likeliest after the true ones.

    Decoding ends elsewhere on each rank, and a sharded model needs all ranks for every token.
    """
    model = project.model
    if project.distributed.forward_exchanges:
        return {"text": model.predict(batch)["prediction"][:PAIRS]}
    return {
        "text": model.generate(
            batch["source"][:PAIRS], batch["source_present"][:PAIRS], model.longest
        )
    }


def pictures(batch: Batch, predictions: Batch, project: Project) -> dict[str, str]:
    """Sources, targets and what the model made of them, the least like first."""
    tokenizer = restore(project.store.facts["tokenizer"])

    def text(tokens: Tensor) -> str:
        numbers = tokens.tolist()
        end = numbers.index(tokenizer.end) if tokenizer.end in numbers else len(numbers)
        return tokenizer.decode(numbers[:end]).decode("utf-8", "replace")

    sides = batch["source"], batch["targets"], predictions["text"]
    pairs = [tuple(map(text, pair)) for pair in zip(*sides, strict=False)]
    alike = [SequenceMatcher(None, target, made).ratio() for _, target, made in pairs]
    rows = [(*pair, f"{share:.0%}") for share, pair in sorted(zip(alike, pairs, strict=True))]
    header = "source", "target", "prediction", "alike"
    return {
        "pairs": "\n".join(table("Pairs of the validation, the least alike first", header, rows))
    }
