"""Convert text to tokens and back.

The manifest contains the whole tokenizer, so that a run needs no other file. Each tokenizer has a
token `end`, which ends a text and has no characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .bytepairs import Byte, Pairs, Tokenizer

UNKNOWN = "\ufffd"


class Pretrained:
    """The tokenizer of a pretrained model, run by the `tokenizers` library.

    Or that of `learn_symbols`, of the kind `space`.
    """

    def __init__(self, definition: str, end: int, kind: str = "pretrained"):
        import tokenizers

        self.kind = kind
        self._definition = definition
        self.end = end
        self._tokenizer = tokenizers.Tokenizer.from_str(definition)

    def encode(self, text: bytes) -> np.ndarray:
        encoding = self._tokenizer.encode(text.decode(), add_special_tokens=False)
        return np.array(encoding.ids, np.int64)

    def decode(self, tokens: Sequence[int]) -> bytes:
        numbers = [int(token) for token in tokens]
        return self._tokenizer.decode(numbers, skip_special_tokens=True).encode()

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "definition": self._definition, "end": self.end}


def restore(facts: dict[str, Any]) -> Tokenizer:
    """Restore the tokenizer that `prepare` stored in the manifest."""
    if facts["kind"] == "byte":
        return Byte()
    if facts["kind"] == "bpe":
        return Pairs(facts["definition"])
    return Pretrained(facts["definition"], facts["end"], facts["kind"])


def learn_symbols(texts: Iterable[str]) -> Pretrained:
    """Return a tokenizer with one token per symbol between spaces, and one for unknown symbols."""
    import tokenizers

    symbols = {symbol for text in texts for symbol in text.split()}
    numbers = {symbol: number for number, symbol in enumerate(sorted({*symbols, UNKNOWN}))}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, UNKNOWN))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return Pretrained(library.to_str(), len(numbers), "space")


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text of the tokens before `end`."""
    if tokenizer.end in tokens:
        tokens = tokens[: tokens.index(tokenizer.end)]
    return tokenizer.decode(tokens).decode("utf-8", "replace")
