"""Tokenizers that can encode any text: bytes, and byte pairs that are learned from the text.

The manifest contains the whole tokenizer, so that a run needs no other file. Each tokenizer has one
more token, `end`, which ends a text and has no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

# Byte-level BPE writes the n-th of these bytes as chr(256 + n), as in openai/gpt-2.
UNPRINTABLE = [*range(33), *range(127, 161), 173]


class Tokenizer(Protocol):
    """The interface of a tokenizer."""

    kind: str
    end: int  # the last token, so that the vocabulary has end + 1 tokens

    def encode(self, text: bytes) -> np.ndarray:
        """Return tokens (T,).

        Raises `UnicodeError` if the text is not UTF-8, and `UserError` for an unknown character.
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
        # Another encoding is an error, and byte 255, which UTF-8 never has, may mean `end`.
        text.decode()
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
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Encode several texts on all cores."""
        encodings = self._tokenizer.encode_batch_fast([text.decode() for text in texts])
        return [np.array(encoding.ids, np.int64) for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> bytes:
        text = bytearray()
        for token in tokens:
            if token < self.end:
                letters = self._tokenizer.id_to_token(int(token)) or ""
                text.extend(map(_byte_of, letters))
        return bytes(text)

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "definition": self._definition}


def _byte_of(letter: str) -> int:
    """Return the byte that byte-level BPE writes as this letter."""
    number = ord(letter)
    return number if number < 256 else UNPRINTABLE[number - 256]
