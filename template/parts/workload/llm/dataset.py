"""What a sample is: a block of tokens, and the same block one token later as its targets.

The prepared dataset has one array, `tokens` (N,), uint16 or uint32 as the vocabulary needs. Splits
are ranges of it, and each document ends with the tokenizer's token `end`. With the tokenizer
`byte`, tokens are uint8, and 255 means `end`, since UTF-8 never has this byte.
Blocks are cut when they are read, so you can change `data.block_size` without a new `prepare`.

Shapes: `B` blocks in a batch, `T` tokens of a block.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .bytepairs import Byte, Pairs, Tokenizer
from .engine import interfaces
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.store import Store, StoreWriter
from .prepare.documents import PIECE, Piece, documents
from .prepare.splits import SPLITS
from .settings import WORKLOAD, Settings
from .texts import Seen
from .tokenizer import byte_counts

IGNORE = -100
"""Marks a missing target; F.cross_entropy ignores it by default."""

SHORT_END = 255  # how `end` is stored in 8 bits
BATCH = 2 << 20  # bytes of text that all cores tokenize together
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
FEWEST = 20  # modules of the sample text, so that each split has one

Borders = Callable[[np.ndarray], list[int]]


class Samples(interfaces.Samples):
    """The blocks of one split: block i starts at token i × T.

    It may also have `host` and `orders` of its base.
    """

    def __init__(self, store: Store, settings: Settings, split: str):
        self.first, self.last = store.splits[split]
        self.block = settings.data.block_size
        self.seed = settings.reproducibility.seed
        self.random_start = settings.data.order == "random_start"
        count = self.last - self.first
        if 0 < count <= self.block:
            what = f"the {split} split has {count} tokens and a block needs {self.block + 1}"
            remedy = "lower data.block_size, or prepare more text or another --split"
            raise UserError(what, str(store.folder), remedy)

    @property
    def tokens(self) -> int:
        """The number of targets in a sample, for tokens per second."""
        return self.block

    def typical(self) -> Batch:
        """Return one sample of zeros, to count FLOPs."""
        empty = torch.zeros(1, self.block, dtype=torch.int64)
        return {"tokens": empty, "targets": empty}

    def __len__(self) -> int:
        """Count blocks: every token but the first is a target once, so the last may be short."""
        targets = max(self.last - self.first - 1, 0)
        return -(-targets // self.block)

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        """Return rows i × T to i × T + T, both included: the last one is only a target."""
        present = indices >= 0
        starts = self.first + indices * self.block
        if self.training and self.random_start:
            shifts = shift(self.seed, epoch, indices) % np.uint64(self.block)
            last_start = self.last - self.block - 1
            starts = np.minimum(starts + shifts.astype(np.int64), last_start)
        starts = np.where(present, starts, 0)
        lengths = np.minimum(self.last - starts, self.block + 1)
        lengths = np.where(present, lengths, 0)
        return {"tokens": Spans(starts, self.block + 1, lengths)}

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return `tokens` and `targets` (B, T) int64; targets after the end are IGNORE."""
        stored, lengths = rows["tokens"]
        values = stored.to(torch.int64)
        if stored.dtype == torch.uint8:
            values.masked_fill_(values == SHORT_END, Byte.end)
        place = torch.arange(1, values.shape[1], device=values.device)
        targets = values[:, 1:].masked_fill(place >= lengths[:, None], IGNORE)
        return {"tokens": values[:, :-1], "targets": targets}


def shift(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Return random (B,) uint64 from (seed, epoch, index), equal in every worker (splitmix64)."""
    with np.errstate(over="ignore"):
        factors = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], np.uint64)
        mixed = (np.array([seed, epoch], np.uint64) * factors).sum()
        value = indices.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9) + mixed
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def write(
    folder: Path,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    borders: Borders,
    source: dict[str, Any],
    column: str | None = "none",
    encoding: str = "",
) -> StoreWriter:
    """Tokenize `files` one after the other into a dataset, with a few pieces in memory at a time.

    borders: maps the tokens at which files end to the three tokens at which the splits end.
    column: the field with the text, in files whose rows are documents; `none` if each file is one
    text. encoding: UTF-8 by default. Raises `UnicodeError` for a text that has another one, and
    `UserError` for one that the tokenizer cannot encode.
    """
    with StoreWriter(folder, WORKLOAD) as writer:
        seen = Seen()
        pieces = Pieces(writer, tokenizer)
        ends = []
        for path in files:
            for text, is_end in documents(path, column, seen, encoding):
                pieces.hold(text, is_end)
            pieces.write()
            ends.append(writer.arrays["tokens"]["shape"][0])
        stops = borders(np.array(ends))
        splits = zip(SPLITS, pairwise([0, *stops]), strict=True)
        writer.splits = {name: list(rows) for name, rows in splits}
        writer.source = {**source, "copies": seen.num_copies}
        writer.facts = {
            "vocabulary": tokenizer.end + 1,
            "documents": pieces.num_documents,
            "tokenizer": tokenizer.facts(),
            "token_bytes": byte_counts(tokenizer),
        }
    return writer


class Pieces:
    """Collects pieces of texts and tokenizes them together."""

    def __init__(self, writer: StoreWriter, tokenizer: Tokenizer):
        self.writer = writer
        self.tokenizer = tokenizer
        self.end = tokenizer.end
        self.dtype = "uint16" if self.end < 2**16 else "uint32"
        if isinstance(tokenizer, Byte):
            self.end = SHORT_END
            self.dtype = "uint8"
        self.full_size = BATCH if isinstance(tokenizer, Pairs) else PIECE
        self.num_documents = 0
        self.held: list[Piece] = []
        self.size = 0  # bytes of the held pieces

    def hold(self, text: bytes, is_end: bool) -> None:
        """Keep a piece; write all if there are enough."""
        self.held.append((text, is_end))
        self.size += len(text)
        self.num_documents += is_end
        if self.size >= self.full_size:
            self.write()

    def write(self) -> None:
        """Tokenize and write the held pieces."""
        texts = [text for text, _ in self.held]
        if isinstance(self.tokenizer, Pairs):
            tokens_of_pieces = self.tokenizer.encode_all(texts)
        else:
            tokens_of_pieces = [self.tokenizer.encode(text) for text in texts]
        parts = [np.zeros(0, self.dtype)]
        for tokens, (_, is_end) in zip(tokens_of_pieces, self.held, strict=True):
            parts.append(tokens.astype(self.dtype, copy=False))
            if is_end:
                parts.append(np.array([self.end], self.dtype))
        self.writer.append("tokens", np.concatenate(parts))
        self.held = []
        self.size = 0


def synthesize(folder: Path, settings: Settings) -> None:
    """Write the source code of the installed Python standard library, without its tests.

    Nothing is downloaded. The modules are shuffled, always in the same way. One in twenty is for
    validation, and one in twenty for the test.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(root.rglob("*.py"))
    paths = [path for path in paths if not LEFT_OUT & set(path.relative_to(root).parts)]
    random.Random(0).shuffle(paths)
    files: list[Path] = []
    size = 0
    for path in paths:
        if size < settings.data.sample_mb * 1e6 or len(files) < FEWEST:
            files.append(path)
            size += path.stat().st_size

    held_out = max(len(files) // 20, 1)

    def borders(ends: np.ndarray) -> list[int]:
        return ends[[-1 - 2 * held_out, -1 - held_out, -1]].tolist()

    source = {"kind": "synthetic", "text": "Python's standard library", "bytes": size}
    write(folder, Byte(), files, borders, source)


def finish(metrics: dict[str, float], store: Store, split: str, sums: Batch) -> dict[str, float]:
    """Add `perplexity`, the exponential of the mean loss per token."""
    return {**metrics, "perplexity": float(np.exp(metrics["loss"]))}


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of a uniform guess over the vocabulary."""
    return float(np.log(store.facts["vocabulary"]))
