"""Texts that the model continues, for the report and the tracker. Change them as you like.

`examples` returns texts in Markdown, or matplotlib figures, by name. hooks/examples.py calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tokenizer import restore

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 1  # the minimum, which is one batch
TEXTS = 2  # texts of the validation split
PROMPT = 64  # tokens to continue
ADDED = 128  # tokens to generate
TEMPERATURE = 0.8


def answer(project: Project, batch: Batch) -> Batch:
    """Return `text` (TEXTS, PROMPT + ADDED); unlike `predict`, it needs few logits at a time."""
    given = batch["tokens"][:TEXTS, :PROMPT]
    return {"text": project.model.generate(given, ADDED, TEMPERATURE)}


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, str]:
    """Show how the model continues texts."""
    tokenizer = restore(project.store.facts["tokenizer"])

    def quoted(title: str, tokens: list[int]) -> str:
        lines = tokenizer.decode(tokens).decode("utf-8", "replace").splitlines()
        return f"{title}:\n\n" + "\n".join(f"    {line}" for line in lines)

    paragraphs = ["## Continued texts of the validation split"]
    for tokens in predictions["text"].tolist():
        num_given = len(tokens) - ADDED
        paragraphs.append(quoted(f"{num_given} tokens given", tokens[:num_given]))
        paragraphs.append(quoted(f"{ADDED} added", tokens[num_given:]))
    return {"texts": "\n\n".join(paragraphs) + "\n"}
