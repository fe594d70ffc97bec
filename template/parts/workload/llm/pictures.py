"""What a person wants to see of the model at an evaluation, for the report and the tracker. Yours to change.

`pictures` gives texts in Markdown, or matplotlib's figures, by name; hooks/pictures.py says when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tokenizer import restore

if TYPE_CHECKING:
    from .assemble import Project
    from .engine.seams import Batch

SAMPLES = 1  # at least: one batch
TEXTS, PROMPT, ADDED = 2, 64, 128  # texts of the validation split, tokens given and tokens added
TEMPERATURE = 0.8


def answer(project: Project, batch: Batch) -> Batch:
    """`text` (TEXTS, PROMPT + ADDED): instead of the model's `predict`, which needs all logits at once."""
    given = batch["tokens"][:TEXTS, :PROMPT]
    return {"text": project.model.generate(given, ADDED, TEMPERATURE)}


def pictures(batch: Batch, predictions: Batch, project: Project) -> dict[str, str]:
    """How the model goes on with a text."""
    tokenizer, parts = restore(project.store.facts["tokenizer"]), ["## Texts of the validation, continued"]
    for text in predictions["text"].tolist():
        given = len(text) - ADDED
        for title, tokens in ((f"{given} tokens given", text[:given]), (f"{ADDED} added", text[given:])):
            lines = tokenizer.decode(tokens).decode("utf-8", "replace").splitlines()
            parts.append(f"{title}:\n\n" + "\n".join(f"    {line}" for line in lines))
    return {"texts": "\n\n".join(parts) + "\n"}
