"""Tokenizers that take any text: its bytes, and pairs of them that are learnt from it.

Each is plain data in the manifest: a run needs no other file. All end a text with one more token of
their own, `end`, which stands for none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np


class Tokenizer(Protocol):
    """What prepare, training and generate know of one."""

    kind: str
    end: int  # its own token, and the last one: the vocabulary has end + 1

    def encode(self, text: bytes) -> np.ndarray:
        """(T,) token numbers.

        Raises `UnicodeDecodeError` where the tokenizer needs UTF-8 and this is none, `UserError`
        for a character it does not know.
        """

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The text of the tokens; `end` is none."""

    def facts(self) -> dict[str, Any]:
        """What `restore` makes it from."""


class Byte:
    """One token a byte: 256, any input, nothing to train."""

    kind = "byte"
    end = 256

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return bytes(token for token in tokens if token < self.end)

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind}


class Pairs:
    """Byte pairs learnt from the training text by the `tokenizers` library."""

    kind = "bpe"

    def __init__(self, definition: str):
        import tokenizers

        self._definition = definition
        self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        self.end = self._tokenizer.get_vocab_size()

    @classmethod
    def learn(cls, texts: Iterable[str], vocabulary: int) -> Pairs:
        """Learn `vocabulary` − 1 tokens; the first 256 are the bytes: nothing is unknown."""
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
        """Of several texts, on all cores."""
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
    """The byte of each printable letter that byte-level BPE writes for it.

    As in openai/gpt-2, bytes_to_unicode.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    for number, byte in enumerate(others):
        letters[chr(256 + number)] = byte
    return letters
