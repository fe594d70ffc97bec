"""What a sample is: a block of tokens, and the same block one token later as its targets.

The store holds one array, `tokens` (N,), uint16 or uint32 by the vocabulary; the splits are ranges of
it, and each document ends with the tokenizer's token `end`. Bytes of a text without byte 255, which UTF-8
never has, are uint8, and 255 stands for `end`. Blocks are cut when they are read, so another
`data.block_size` needs no new `prepare`.

Shapes: `B` blocks in a batch, `T` tokens of a block.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .bytepairs import Byte, Pairs, Tokenizer
from .counts import order_2
from .engine.errors import UserError
from .engine.seams import Batch, Rows, Spans
from .engine.store import FORMAT, Store, StoreWriter
from .settings import WORKLOAD
from .texts import PIECE, Document, decoded, documents
from .tokenizer import byte_counts, restore

IGNORE = -100
"""Target that is none; F.cross_entropy leaves it out by default."""

SHORT_END = 255  # how `end` is stored in 8 bits
BATCH = 2 << 20  # bytes of text whose pieces the cores tokenize together
COUNTED = 32 << 20  # tokens of training text that the count model learns from; more hardly changes its figure
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
FEWEST = 20  # modules of the sample text, so that each split has one

Borders = Callable[[np.ndarray], list[int]]


class Samples:
    """The blocks of one split: block i starts at token i × T. See `engine.seams.Samples`."""

    training = False  # set by the loader's maker; only then does `random_start` shift

    def __init__(self, store: Store, settings: Any, split: str):
        self.first, self.last = store.splits[split]
        self.block, self.seed = settings.data.block_size, settings.reproducibility.seed
        self.random_start = settings.data.order == "random_start"
        count = self.last - self.first
        if 0 < count <= self.block:
            what = f"the {split} split has {count} tokens and a block needs {self.block + 1}"
            remedy = "lower data.block_size, or prepare more text or another --split"
            raise UserError(what, str(store.folder), remedy)

    @property
    def tokens(self) -> int:
        """Targets of a sample, for tokens per second."""
        return self.block

    def typical(self) -> Batch:
        """One sample without content, for counting FLOPs."""
        return dict.fromkeys(("tokens", "targets"), torch.zeros(1, self.block, dtype=torch.int64))

    def __len__(self) -> int:
        """Every token but the first is a target once, so that the last block may be a shorter one."""
        return -(-max(self.last - self.first - 1, 0) // self.block)

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        """Rows i × T to i × T + T, both included: the last one is a target only."""
        present = indices >= 0
        starts = self.first + indices * self.block
        if self.training and self.random_start:
            shifts = shift(self.seed, epoch, indices) % np.uint64(self.block)
            starts = np.minimum(starts + shifts.astype(np.int64), self.last - self.block - 1)
        starts = np.where(present, starts, 0)
        lengths = np.where(present, np.minimum(self.last - starts, self.block + 1), 0)
        return {"tokens": Spans(starts, lengths, self.block + 1)}

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`tokens` and `targets` (B, T) int64; a target behind the end of the text is IGNORE."""
        stored, lengths = rows["tokens"]
        values = stored.to(torch.int64)
        if stored.dtype == torch.uint8:
            values.masked_fill_(values == SHORT_END, Byte.end)
        place = torch.arange(1, values.shape[1], device=values.device)
        targets = values[:, 1:].masked_fill(place >= lengths[:, None], IGNORE)
        return {"tokens": values[:, :-1], "targets": targets}


def shift(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """(B,) uint64 from (seed, epoch, index): splitmix64, the same for every loader and any worker."""
    with np.errstate(over="ignore"):
        factors = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], np.uint64)
        mixed = (np.array([seed, epoch], np.uint64) * factors).sum()
        value = indices.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9) + mixed
        for places, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ (value >> np.uint64(places))) * np.uint64(factor)
        return value ^ (value >> np.uint64(31))


def write(
    folder: Path,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    borders: Borders,
    source: dict[str, Any],
    column: str = "text",
) -> StoreWriter:
    """Tokenizes `files` one after the other into a store, a few pieces in memory at a time.

    borders: from the token at which each file ends to the three tokens at which train, validation and
    test end. column: of files whose rows are documents. Raises `UserError` with file and byte where a text
    is not in the tokenizer's encoding.
    """
    with StoreWriter(folder, WORKLOAD) as writer:
        found = write_tokens(writer, tokenizer, files, column, "uint8") if tokenizer.kind == "byte" else None
        if found:
            writer.format = FORMAT
        wide = "uint16" if tokenizer.end < 2**16 else "uint32"
        ends, count = found or write_tokens(writer, tokenizer, files, column, wide) or ([], 0)
        train, validation, test = borders(np.array(ends))
        writer.splits = {"train": [0, train], "validation": [train, validation], "test": [validation, test]}
        writer.source = source
        writer.facts = {
            "vocabulary": tokenizer.end + 1,
            "documents": count,
            "tokenizer": tokenizer.facts(),
            "token_bytes": byte_counts(tokenizer),
        }
    return writer


def write_tokens(
    writer: StoreWriter, tokenizer: Tokenizer, files: Sequence[Path], column: str, dtype: str
) -> tuple[list[int], int] | None:
    """Writes the tokens of all files: at which of them each ends, and how many documents there are.

    None, and nothing is written, where 8 bits are too few for a text.
    """
    short = dtype == "uint8"
    together = BATCH if isinstance(tokenizer, Pairs) else PIECE
    end = np.array([min(tokenizer.end, SHORT_END) if short else tokenizer.end], dtype)
    held, size, count, ends = list[Document](), 0, 0, list[int]()
    for path in files:
        for document in chain(documents(path, column, cut=not short), [None]):
            if document:
                held.append(document)
                size, count = size + len(document[2]), count + document[3]
            if size >= together or not document:
                parts = [end[:0]]
                for tokens, (_, _, text, last) in zip(encoded(tokenizer, held), held, strict=True):
                    if short and b"\xff" in text:
                        writer.drop("tokens")
                        return None
                    parts += [tokens.astype(dtype, copy=False), end[: int(last)]]
                writer.append("tokens", np.concatenate(parts))
                held, size = [], 0
        ends.append(writer.arrays["tokens"]["shape"][0])
    return ends, count


def encoded(tokenizer: Tokenizer, held: list[Document]) -> list[np.ndarray]:
    """The tokens of each piece."""
    texts = [text for _, _, text, _ in held]
    try:
        if isinstance(tokenizer, Pairs):
            return tokenizer.encode_all([text.decode("utf-8") for text in texts])
        return [tokenizer.encode(text) for text in texts]
    except UnicodeDecodeError:
        for document in held:
            decoded(document)
        raise


def synthesize(folder: Path, settings: Any) -> None:
    """Writes the source text of this machine's Python standard library, without its tests: no download.

    The modules are shuffled, always in the same way, and a twentieth of them each validates and tests.
    """
    root = Path(sysconfig.get_path("stdlib"))
    kept = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(root).parts)]
    random.Random(0).shuffle(kept)
    files: list[Path] = []
    size = 0
    for path in kept:
        if size < settings.data.sample_mb * 1e6 or len(files) < FEWEST:
            files.append(path)
            size += path.stat().st_size
    last = max(len(files) // 20, 1)
    source = {"kind": "synthetic", "text": "Python's standard library", "bytes": size}
    write(folder, Byte(), files, lambda ends: ends[[-1 - 2 * last, -1 - last, -1]].tolist(), source)


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Adds `perplexity`, e to the mean loss of a token."""
    return {**metrics, "perplexity": float(np.exp(metrics["loss"]))}


def naive(store: Store, split: str) -> float:
    """The loss of a guess: every token is as likely."""
    return float(np.log(store.facts["vocabulary"]))


def baselines(store: Store, settings: Any, split: str) -> dict[str, dict[str, float]]:
    """What one reaches by counting which byte follows which two, in the training text."""
    tokenizer = restore(store.facts["tokenizer"])
    train, measured = (_symbols(store, tokenizer, name) for name in ("train", split))
    if len(measured) < 3:
        return {}
    return {"order-2 counts": {"bits_per_byte": order_2(train, measured)}}


def _symbols(store: Store, tokenizer: Tokenizer, split: str) -> np.ndarray:
    """(N,) bytes of a split's text as int64, 256 at the end of a document."""
    first, last = store.splits[split]
    stored = np.asarray(store.arrays["tokens"].rows()[first : min(last, first + COUNTED)])
    tokens = stored.astype(np.int64)
    if tokenizer.kind == "byte":
        return np.where(tokens == SHORT_END, Byte.end, tokens) if stored.dtype == np.uint8 else tokens
    parts = []
    for document in np.split(tokens, np.flatnonzero(tokens == tokenizer.end) + 1):
        parts.append(np.frombuffer(tokenizer.decode(document.tolist()), np.uint8).astype(np.int64))
        parts.append(np.full(int((document[-1:] == tokenizer.end).sum()), 256))
    return np.concatenate(parts)
