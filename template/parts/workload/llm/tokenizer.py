"""Convert text to tokens and back.

The manifest contains the whole tokenizer, so that a run needs no other file. Each tokenizer has one
more token, `end`, which ends a document and has no text.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .bytepairs import Byte, Pairs, Tokenizer
from .engine.errors import UserError

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""The pattern that splits text before GPT-2 merges pairs.

From openai/gpt-2, encoder.py, in the form that tiktoken uses.
"""


class Character:
    """One token per character of the text."""

    kind = "char"

    def __init__(self, characters: str):
        self.characters = characters
        self.end = len(characters)
        self._numbers = {character: number for number, character in enumerate(characters)}

    def encode(self, text: bytes) -> np.ndarray:
        try:
            numbers = [self._numbers[character] for character in text.decode()]
        except KeyError as error:
            what = f"character {error} is not in the vocabulary of the training text"
            remedy = "remove it, or prepare with --tokenizer byte"
            raise UserError(what, "tokenizer char", remedy) from error
        return np.array(numbers, np.int64)

    def decode(self, tokens: Sequence[int]) -> bytes:
        characters = [self.characters[token] for token in tokens if token < self.end]
        return "".join(characters).encode()

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters}


class Gpt2:
    """The 50,256 byte pairs of GPT-2, encoded by tiktoken."""

    kind = "gpt2"

    def __init__(self, ranks: dict[bytes, int]):
        import tiktoken

        self._ranks = ranks
        self.end = len(ranks)
        self._encoding = tiktoken.Encoding(
            "gpt2",
            pat_str=GPT2_PATTERN,
            mergeable_ranks=ranks,
            special_tokens={"<|endoftext|>": self.end},
        )

    @classmethod
    def fetch(cls) -> Gpt2:
        """Download the vocabulary into TIKTOKEN_CACHE_DIR if needed; tiktoken checks its sha256."""
        import tiktoken_ext.openai_public

        default = str(Path.home() / ".cache" / "tiktoken")
        folder = os.environ.setdefault("TIKTOKEN_CACHE_DIR", default)
        try:
            return cls(tiktoken_ext.openai_public.gpt2()["mergeable_ranks"])
        # The errors of requests are OSErrors; a wrong hash is a ValueError.
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0][:120]
            what = f"GPT-2's vocabulary could not be loaded ({reason})"
            remedy = f"go online once, or copy the folder from another machine: {folder}"
            raise UserError(what, "--tokenizer gpt2", remedy) from error

    def encode(self, text: bytes) -> np.ndarray:
        return np.array(self._encoding.encode_ordinary(text.decode()), np.int64)

    def decode(self, tokens: Sequence[int]) -> bytes:
        numbers = [int(token) for token in tokens if token < self.end]
        return self._encoding.decode_bytes(numbers)

    def facts(self) -> dict[str, Any]:
        ordered = sorted(self._ranks, key=self._ranks.__getitem__)
        ranks = [base64.b64encode(pair).decode() for pair in ordered]
        return {"kind": self.kind, "ranks": ranks}


def restore(facts: dict[str, Any]) -> Tokenizer:
    """Restore the tokenizer that `prepare` stored in the manifest."""
    if facts["kind"] == "char":
        return Character(facts["characters"])
    if facts["kind"] == "bpe":
        return Pairs(facts["definition"])
    if facts["kind"] == "gpt2":
        pairs = [base64.b64decode(pair) for pair in facts["ranks"]]
        return Gpt2({pair: rank for rank, pair in enumerate(pairs)})
    return Byte()


def byte_counts(tokenizer: Tokenizer) -> list[int]:
    """Count the bytes of each token, for bits per byte, which compare any vocabularies."""
    return [len(tokenizer.decode([token])) for token in range(tokenizer.end + 1)]
