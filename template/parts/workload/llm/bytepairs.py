"""Tokenizers that can encode any text: bytes, and byte pairs that are learned from the text.

The manifest contains the whole tokenizer, so that a run needs no other file. Each tokenizer has one
more token, `end`, which ends a text and has no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np


class Tokenizer(Protocol):
    """The interface of a tokenizer."""

    kind: str
    end: int  # the last token, so that the vocabulary has end + 1 tokens

    def encode(self, text: bytes) -> np.ndarray:
        """Return tokens (T,).

        Raises `UnicodeDecodeError` if the tokenizer needs UTF-8 and the text is not, and
        `UserError` for an unknown character.
        """

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Return the text of the tokens; `end` has no text."""

    def facts(self) -> dict[str, Any]:
        """Return what `restore` needs to build it again."""


class Byte:
    """One token per byte: 256 tokens for any input, without training."""

    kind = "byte"
    end = 256

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return bytes(token for token in tokens if token < self.end)

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind}


class Pairs:
    """Byte pairs that the `tokenizers` library learns from the training text."""

    kind = "bpe"

    def __init__(self, definition: str):
        import tokenizers

        self._definition = definition
        self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        self.end = self._tokenizer.get_vocab_size()

    @classmethod
    def learn(cls, texts: Iterable[str], vocabulary: int) -> Pairs:
        """Learn `vocabulary` − 1 tokens, including all 256 bytes, so that nothing is unknown."""
        import tokenizers

        learner = tokenizers.Tokenizer(tokenizers.models.BPE())
        learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        learner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary - 1,
            initial_alphabet=learner.pre_tokenizer.alphabet(),
            show_progress=False,
        )
        learner.train_from_iterator(texts, trainer)
        return cls(learner.to_str())

    def encode(self, text: bytes) -> np.ndarray:
        return self.encode_all([text.decode("utf-8")])[0]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode several texts on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return [np.array(encoding.ids, np.int64) for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> bytes:
        letters = _bytes_of_letters()
        text = bytearray()
        for token in tokens:
            if token < self.end:
                word = self._tokenizer.id_to_token(int(token)) or ""
                text.extend(letters[letter] for letter in word)
        return bytes(text)

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "definition": self._definition}


@cache
def _bytes_of_letters() -> dict[str, int]:
    """Map each printable letter of byte-level BPE to its byte.

    As `bytes_to_unicode` in openai/gpt-2.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    for number, byte in enumerate(others):
        letters[chr(256 + number)] = byte
    return letters
