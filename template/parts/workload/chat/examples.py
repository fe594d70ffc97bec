"""Answers to questions of the validation split, for the report and the tracker.

`examples` returns texts in Markdown, or matplotlib figures, by name. hooks/examples.py calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .dataset import IGNORE
from .tokenizer import restore

if TYPE_CHECKING:
    from torch import Tensor

    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 1  # the minimum, which is one batch
TEXTS = 3  # conversations of the first packed sample
ADDED = 64  # tokens to generate


def answer(project: Project, batch: Batch) -> Batch:
    """Return `added` (1, TEXTS, ADDED): tokens that follow the first questions of a sample.

    Each process generates as many tokens as the others, since FSDP's processes wait for each other.
    """
    tokens = batch["tokens"][0].tolist()
    places = first_questions(batch)
    added = []
    for number in range(TEXTS):
        begin, given, _ = places[number % len(places)]
        question = tokens[begin:given]
        added.append(project.model.generate(question, ADDED, ends=[]))
    return {"added": torch.tensor([added])}


def first_questions(batch: Batch) -> list[tuple[int, int, int]]:
    """Return where the first conversations begin, and where their first answers begin and end."""
    is_answer = batch["targets"][0] != IGNORE
    places = []
    for begin in batch["first"][0].nonzero()[:TEXTS, 0].tolist():
        given = next_place(is_answer, begin) + 1  # the target of a token is the next one
        end = next_place(~is_answer, given - 1) + 1
        places.append((begin, given, end))
    return places


def next_place(chosen: Tensor, start: int) -> int:
    """Return the first place from `start` on that is chosen (T,), or the end."""
    places = chosen[start:].nonzero()
    return start + int(places[0]) if len(places) else len(chosen)


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, str]:
    """Show how the model answers the first question of some conversations."""
    tokenizer = restore(project.store.facts["tokenizer"])
    tokens = batch["tokens"][0].tolist()
    paragraphs = ["## Answers to questions of the validation split"]
    for place, added in zip(first_questions(batch), predictions["added"][0].tolist(), strict=False):
        begin, given, end = place
        question = tokenizer.library.decode(tokens[begin:given], skip_special_tokens=False)
        ends = [number for number, token in enumerate(added) if token in tokenizer.ends]
        length = min(ends, default=ADDED)
        quoted = {
            "Question": question,
            "Answer in the data": tokenizer.decode(tokens[given:end]),
            "Answer of the model": tokenizer.decode(added[:length]),
        }
        for title, text in quoted.items():
            lines = [f"    {line}" for line in text.splitlines()]
            paragraphs.append(f"{title}:\n\n" + "\n".join(lines))
    return {"texts": "\n\n".join(paragraphs) + "\n"}
