"""What a sample is: a pair of texts, a source and the target to predict from it.

The prepared dataset has four arrays, without padding:

* `source` (N,): the tokens of all sources, one after the other
* `target` (M,): the tokens of all targets
* `offsets` (P + 1, 2): where each pair begins in both
* `target_bytes` (P,): the number of bytes of each target's text

Every text ends with the token `end`.

Shapes: `P` pairs, `B` pairs in a batch, `S` source and `T` target tokens (the longest of a batch,
rounded up).
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from .bytepairs import Byte, Tokenizer
from .engine import interfaces
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.buckets import Buckets
from .engine.loading.store import Store, StoreWriter
from .settings import WORKLOAD, Settings

IGNORE = -100
"""Marks a missing target; F.cross_entropy ignores it by default."""

SIDES = ("source", "target")
# Lengths are padded to a multiple of this: fp8 needs 16, and 8 suits other tensor cores.
MULTIPLE = {"fp8": 16}
TOGETHER = 1024  # pairs that are written at a time
SAMPLE_LIMITS = (160, 64)  # bytes of a synthetic source and target
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


class Samples(interfaces.Samples):
    """The pairs of one split. It may also have `host` and `orders` of its base."""

    def __init__(self, store: Store, settings: Settings, split: str):
        first, last = store.splits[split]
        self.first = first
        self.offsets = store.arrays["offsets"].rows()[first : last + 1]
        self.start = store.facts["start"]
        self.multiple = MULTIPLE.get(settings.training.precision, 8)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def orders(self) -> dict[str, Callable[..., Buckets]]:
        return {"bucket": partial(Buckets, lengths=self.likeness())}

    def likeness(self) -> np.ndarray:
        """Return sort keys (P,) that put sources and targets of similar length next to each other.

        Keys order sources by steps of 30 %, and targets within a step, upwards and downwards in
        turn. If the two lengths are nearly independent, this gives a quarter less padding than
        sorting by their sum.
        """
        source, target = np.diff(self.offsets, axis=0).T
        step = np.ceil(np.log(source) / np.log(1.3)).astype(np.int64)
        longest = int(target.max(initial=0))
        inside = np.where(step % 2, target, longest - target)
        return step * (longest + 1) + inside

    @property
    def tokens(self) -> int:
        """The mean number of targets per sample, without padding, for tokens per second."""
        return round(self._mean()[1])

    def typical(self) -> Batch:
        """Return one sample of zeros with the mean lengths, to count FLOPs."""
        source_length, target_length = (max(round(length), 1) for length in self._mean())
        source = torch.zeros(1, source_length, dtype=torch.int64)
        target = torch.zeros(1, target_length, dtype=torch.int64)
        return {
            "source": source,
            "source_present": source == 0,
            "decoder_input": target,
            "targets": target,
        }

    def _mean(self) -> np.ndarray:
        return (self.offsets[-1] - self.offsets[0]) / max(len(self), 1)

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        present = indices >= 0
        pair = np.where(present, indices, 0)
        starts = self.offsets[pair]  # (B, 2)
        lengths = (self.offsets[pair + 1] - starts) * present[:, None]
        spans = {}
        for side, name in enumerate(SIDES):
            longest = max(int(lengths[:, side].max()), 1)
            width = -(-longest // self.multiple) * self.multiple
            spans[name] = Spans(starts[:, side], width, lengths[:, side])
        if not self.training:
            spans["target_bytes"] = Spans(np.where(present, self.first + pair, -1), 1)
        return spans

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return `source` and `source_present` (B, S), `decoder_input` and `targets` (B, T).

        Targets after the end are IGNORE. The decoder sees the targets shifted by one, after
        `start`.
        """
        source = rows["source"].values.to(torch.int64)
        target = rows["target"].values.to(torch.int64)
        longest = max(source.shape[1], target.shape[1])
        place = torch.arange(longest, device=source.device)
        # Padding rows also get one token, because attention over nothing would be nan.
        lengths = rows["source"].lengths.clamp(min=1)
        present = place[: source.shape[1]] < lengths[:, None]
        behind = place[: target.shape[1]] >= rows["target"].lengths[:, None]
        batch = {
            "source": source,
            "source_present": present,
            "decoder_input": functional.pad(target[:, :-1], (1, 0), value=self.start),
            "targets": target.masked_fill(behind, IGNORE),
        }
        if "target_bytes" in rows:
            batch["target_bytes"] = rows["target_bytes"].values[:, 0]
        return batch


class Pair(NamedTuple):
    """The tokens of a source and its target, both with `end`; and the bytes of the target text."""

    source: np.ndarray
    target: np.ndarray
    target_bytes: int


def tokenize(
    tokenizer: Tokenizer, source: str, target: str, limits: Sequence[int]
) -> tuple[Pair, list[bool]]:
    """Tokenize a pair, cut to `limits` tokens including `end`; also return which sides were cut."""
    sides = []
    is_cut = []
    for text, limit in zip((source, target), limits, strict=True):
        tokens = tokenizer.encode(text.encode())
        is_cut.append(len(tokens) >= limit)
        sides.append(np.append(tokens[: limit - 1], tokenizer.end))

    target_text = target.encode()
    if is_cut[1]:
        target_text = tokenizer.decode(sides[1][:-1].tolist())
    return Pair(sides[0], sides[1], len(target_text)), is_cut


def write(
    folder: Path,
    tokenizer: Tokenizer,
    splits: Mapping[str, Iterable[Pair]],
    facts: dict[str, Any],
    source: dict[str, Any] | None = None,
) -> StoreWriter:
    """Write pairs as a dataset.

    facts: its metadata, with at least `vocabulary` and `start`; `longest`, by default, is the
    length of the longest training target.
    """
    dtype = "uint16" if facts["vocabulary"] <= 2**16 else "uint32"
    lengths = [np.zeros((1, 2), np.int64)]  # the first pair begins at 0
    count = 0
    with StoreWriter(folder, WORKLOAD) as writer:
        for split, pairs in splits.items():
            first = count
            for batch in batched(pairs):
                sources, targets, target_bytes = zip(*batch, strict=True)
                writer.append("source", np.concatenate(sources).astype(dtype))
                writer.append("target", np.concatenate(targets).astype(dtype))
                writer.append("target_bytes", np.array(target_bytes, np.int32))
                lengths.append(np.array([(len(pair.source), len(pair.target)) for pair in batch]))
                count += len(batch)
            writer.splits[split] = [first, count]
        all_lengths = np.concatenate(lengths)
        writer.append("offsets", all_lengths.cumsum(0))
        _, num_training = next(iter(writer.splits.values()))
        writer.facts = {
            "longest": int(all_lengths[: num_training + 1, 1].max()),
            **facts,
            "end": tokenizer.end,
            "tokenizer": tokenizer.facts(),
        }
        writer.source = source or {}
    return writer


def batched(pairs: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield pairs in batches."""
    pairs = iter(pairs)
    batch = list(islice(pairs, TOGETHER))
    while batch:
        yield batch
        batch = list(islice(pairs, TOGETHER))


def synthesize(folder: Path, settings: Settings) -> None:
    """Write docstrings of the installed Python standard library.

    Sources are their bodies, and targets their summary lines. The modules are shuffled, always in
    the same way. One pair in ten is for validation, and one in ten for the test.
    """
    tokenizer = Byte()
    texts = islice(docstrings(), settings.data.sample_pairs)
    pairs = [tokenize(tokenizer, body, summary, SAMPLE_LIMITS)[0] for body, summary in texts]
    random.Random(0).shuffle(pairs)
    held_out = max(len(pairs) // 10, 1)
    splits = {
        "train": pairs[2 * held_out :],
        "validation": pairs[held_out : 2 * held_out],
        "test": pairs[:held_out],
    }
    facts = {
        "vocabulary": tokenizer.end + 1,
        "start": tokenizer.end,
        "prefix": "",
        "limits": SAMPLE_LIMITS,
    }
    source = {"kind": "synthetic", "text": "Python's docstrings"}
    write(folder, tokenizer, splits, facts, source)


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield (body, summary line) of the standard library's docstrings that have both, each once."""
    seen = set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in modules():
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, documented):
                continue
            docstring = ast.get_docstring(node) or ""
            summary, _, body = docstring.partition("\n\n")
            pair = (" ".join(body.split()), " ".join(summary.split()))
            if all(pair) and pair not in seen:
                seen.add(pair)
                yield pair


def modules() -> list[Path]:
    """Return the modules of the standard library without its tests, in a fixed random order."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(root.rglob("*.py"))
    paths = [path for path in paths if not LEFT_OUT & set(path.relative_to(root).parts)]
    random.Random(0).shuffle(paths)
    return paths


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of a uniform guess over the vocabulary."""
    return float(np.log(store.facts["vocabulary"]))
