"""Convert text to tokens and back.

The manifest contains the whole tokenizer, so that a run needs no other file. Each tokenizer has a
token `end`, which ends a text and has no characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .bytepairs import Byte, Pairs, Tokenizer


class Symbols:
    """One token per character, or per word between spaces, of the training pairs.

    One more token, `unknown`, stands for all other symbols.
    """

    def __init__(self, kind: str, symbols: Sequence[str]):
        self.kind = kind
        self.symbols = list(symbols)
        self.unknown = len(self.symbols)
        self.end = len(self.symbols) + 1
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}

    @classmethod
    def learn(cls, kind: str, texts: Iterable[str]) -> Symbols:
        """Learn every symbol of `texts`. kind: `char` or `space`."""
        symbols = {symbol for text in texts for symbol in split(kind, text)}
        return cls(kind, sorted(symbols))

    def encode(self, text: bytes) -> np.ndarray:
        symbols = split(self.kind, text.decode())
        numbers = [self._numbers.get(symbol, self.unknown) for symbol in symbols]
        return np.array(numbers, np.int64)

    def unseen(self, text: str) -> list[str]:
        """Return the symbols of `text` that become `unknown`."""
        return [symbol for symbol in split(self.kind, text) if symbol not in self._numbers]

    def decode(self, tokens: Sequence[int]) -> bytes:
        symbols = []
        for token in tokens:
            if token < self.unknown:
                symbols.append(self.symbols[token])
            elif token < self.end:
                symbols.append("\ufffd")
        between = "" if self.kind == "char" else " "
        return between.join(symbols).encode()

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "symbols": self.symbols}


def split(kind: str, text: str) -> Sequence[str]:
    return text if kind == "char" else text.split()


class Pretrained:
    """The tokenizer of a pretrained model, run by the `tokenizers` library."""

    kind = "pretrained"

    def __init__(self, definition: str, end: int):
        import tokenizers

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
    if facts["kind"] == "pretrained":
        return Pretrained(facts["definition"], facts["end"])
    return Symbols(facts["kind"], facts["symbols"])


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text of the tokens before `end`."""
    if tokenizer.end in tokens:
        tokens = tokens[: tokens.index(tokenizer.end)]
    return tokenizer.decode(tokens).decode("utf-8", "replace")
