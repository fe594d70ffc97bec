"""Texts that the model continues at an evaluation, for the report and the tracker. Yours to change.

`examples` returns texts in Markdown, or matplotlib figures, by name; hooks/examples.py calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tokenizer import restore

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.project import Project

SAMPLES = 1  # at least: one batch
TEXTS = 2  # texts of the validation split
PROMPT = 64  # tokens given
ADDED = 128  # tokens added
TEMPERATURE = 0.8


def answer(project: Project, batch: Batch) -> Batch:
    """`text` (TEXTS, PROMPT + ADDED), instead of `predict`, which needs all logits at once."""
    given = batch["tokens"][:TEXTS, :PROMPT]
    return {"text": project.model.generate(given, ADDED, TEMPERATURE)}


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, str]:
    """How the model continues a text."""
    tokenizer = restore(project.store.facts["tokenizer"])

    def quoted(title: str, tokens: list[int]) -> str:
        lines = tokenizer.decode(tokens).decode("utf-8", "replace").splitlines()
        return f"{title}:\n\n" + "\n".join(f"    {line}" for line in lines)

    paragraphs = ["## Texts of the validation, continued"]
    for tokens in predictions["text"].tolist():
        num_given = len(tokens) - ADDED
        paragraphs.append(quoted(f"{num_given} tokens given", tokens[:num_given]))
        paragraphs.append(quoted(f"{ADDED} added", tokens[num_given:]))
    return {"texts": "\n\n".join(paragraphs) + "\n"}
