"""What a sample is: whole conversations, packed into `data.block_size` tokens.

The prepared dataset has these arrays:

* `tokens` (N,): the tokens of all conversations, one after the other
* `answer` (N,) bool: whether a token is to be predicted, because the assistant wrote it
* `first` (N,) bool: whether a token begins a conversation
* `chats` (C, 2): first token and number of tokens of each conversation, in the order of the splits

Shapes: `B` packed samples in a batch, `T` tokens of a packed sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from .engine import interfaces
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.packing import pack
from .engine.loading.store import Store, StoreWriter
from .settings import WORKLOAD, Settings
from .tokenizer import Rejected, Rendered, Tokenizer, byte_tokenizer

IGNORE = -100
"""Marks a token that is not to be predicted; F.cross_entropy ignores it by default."""

TOGETHER = 512  # conversations that all cores tokenize together


class Samples(interfaces.Samples):
    """The packed samples of one split. It may also have `host` and `orders` of its base."""

    def __init__(self, store: Store, settings: Settings, split: str):
        first, last = store.splits[split]
        chats = store.arrays["chats"].rows()[first:last]
        self.block = settings.data.block_size
        lengths = chats[:, 1]
        longest = int(lengths.max(initial=0))
        if longest > self.block:
            what = f"a conversation has {longest} tokens, and a packed sample {self.block}"
            remedy = "raise it, or `prepare` again with a lower --max-tokens"
            raise UserError(what, "data.block_size", remedy)
        bins = pack(lengths, self.block)
        order = np.argsort(bins, kind="stable")
        self.chats = chats[order]
        self.ends = np.bincount(bins).cumsum()  # of each sample's conversations
        self.num_tokens = int(lengths.sum())

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def tokens(self) -> int:
        """The mean number of tokens in a sample, without padding, for tokens per second."""
        return round(self.num_tokens / max(len(self), 1))

    def typical(self) -> Batch:
        """Return one sample, to count FLOPs."""
        tokens = torch.zeros(1, self.block, dtype=torch.int64)
        positions = torch.arange(self.block)[None]
        return {
            "tokens": tokens,
            "targets": tokens,
            "first": positions == 0,
            "positions": positions,
        }

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        """Return the row of each token, −1 in padding."""
        rows = np.full((len(indices), self.block), -1, np.int64)
        for row, index in zip(rows, indices, strict=True):
            if index < 0:
                continue
            place = 0
            first_chat = self.ends[index - 1] if index else 0
            chats = self.chats[first_chat : self.ends[index]]
            for first, length in chats.tolist():
                row[place : place + length] = np.arange(first, first + length)
                place += length
        return dict.fromkeys(("tokens", "answer", "first"), Spans(rows, 1))

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return `tokens`, `targets` and `positions` (B, T) int64, and `first` (B, T) bool.

        Padding belongs to the last conversation of its sample, which does not look ahead.
        """
        stored = {name: array.values[..., 0] for name, array in rows.items()}
        tokens = stored["tokens"].to(torch.int64)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        first = stored["first"] | (place == 0)  # also without a conversation
        start = torch.where(first, place, 0).cummax(1).values
        answers = tokens.masked_fill(~stored["answer"], IGNORE)
        targets = functional.pad(answers[:, 1:], (0, 1), value=IGNORE)
        positions = place - start
        return {"tokens": tokens, "targets": targets, "first": first, "positions": positions}


# --- conversations to tokens


class Chat(NamedTuple):
    """A conversation: its messages, the other inputs of its template; or a plain text."""

    messages: list[dict[str, Any]]
    more: dict[str, Any]
    text: str = ""
    where: str = ""


class Encoded(NamedTuple):
    """The tokens of a conversation (T,), and which of them are to be predicted (T,)."""

    tokens: np.ndarray
    is_answer: np.ndarray
    num_hidden: int = 0  # answers that the template shows in another way once others follow


def encode(tokenizer: Tokenizer, chats: list[Chat]) -> Iterator[Encoded | Rejected]:
    """Yield the tokens of conversations, or why the template rejects one.

    A token is to be predicted if it begins in an answer; of a plain text, all but the first are.
    """
    rendered = [render(tokenizer, chat) for chat in chats]
    texts = [item.text if isinstance(item, Rendered) else "" for item in rendered]
    for chat, item, encoding in zip(chats, rendered, tokenizer.encode(texts), strict=True):
        if isinstance(item, Rejected):
            yield item
            continue
        tokens = np.array(encoding.tokens, np.int64)
        begins = np.array(encoding.begins, np.int64)
        is_answer = np.zeros(len(tokens), bool)
        for begin, end in item.spans:
            is_inside = (begins >= begin) & (begins < end)
            is_answer |= is_inside
        if not chat.messages:
            tokens = np.append(tokens, tokenizer.ends[0])
            is_answer = np.append(is_answer, True)
        is_answer[:1] = False
        yield Encoded(tokens, is_answer, item.num_hidden)


def render(tokenizer: Tokenizer, chat: Chat) -> Rendered | Rejected:
    if not chat.messages:
        whole = (0, len(chat.text))
        return Rendered(chat.text, [whole])
    try:
        return tokenizer.rendered(chat.messages, **chat.more)
    except Rejected as error:
        return error


class ChatWriter:
    """Writes conversations in their order, and remembers where each one is.

    leave_out: called with the reason and the place of each conversation that is left out or cut.
    """

    def __init__(
        self,
        writer: StoreWriter,
        tokenizer: Tokenizer,
        max_tokens: int,
        cuts: bool = True,
        leave_out: Callable[[str, str], None] = lambda why, where: None,
    ):
        self.writer = writer
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.cuts = cuts
        self.leave_out = leave_out
        self.dtype = "uint16" if tokenizer.vocabulary <= 2**16 else "uint32"
        self.places: list[tuple[int, int]] = []
        self.num_tokens = 0
        self.num_answers = 0
        self.num_hidden = 0

    def write(self, chats: Iterable[Chat]) -> None:
        """Tokenize and write conversations. Too long ones are cut at their end, or left out."""
        chats = iter(chats)
        together = list(islice(chats, TOGETHER))
        while together:
            encodings = encode(self.tokenizer, together)
            for chat, encoded in zip(together, encodings, strict=True):
                if isinstance(encoded, Rejected):
                    why = f"left out, rejected by the chat template ({encoded})"
                    self.leave_out(why, chat.where)
                else:
                    self._write(encoded, chat.where)
            together = list(islice(chats, TOGETHER))

    def _write(self, encoded: Encoded, where: str) -> None:
        tokens = encoded.tokens[: self.max_tokens]
        is_answer = encoded.is_answer[: self.max_tokens]
        is_long = len(encoded.tokens) > self.max_tokens
        if is_long and not self.cuts:
            self.leave_out(f"left out, longer than {self.max_tokens:,} tokens", where)
        elif not is_answer.any():
            self.leave_out("left out, no answer within --max-tokens", where)
        else:
            if is_long:
                self.leave_out(f"cut to {self.max_tokens:,} tokens", where)
            self.num_hidden += encoded.num_hidden
            self._append(tokens, is_answer)

    def _append(self, tokens: np.ndarray, is_answer: np.ndarray) -> None:
        self.writer.append("tokens", tokens.astype(self.dtype))
        self.writer.append("answer", is_answer)
        is_first = np.arange(len(tokens)) == 0
        self.writer.append("first", is_first)
        self.places.append((self.num_tokens, len(tokens)))
        self.num_tokens += len(tokens)
        self.num_answers += int(is_answer.sum())

    def finish(self, order: np.ndarray, splits: dict[str, list[int]]) -> None:
        """Write where each conversation is. order: of the conversations in the splits."""
        places = np.array(self.places, np.int64).reshape(-1, 2)
        self.writer.append("chats", places[order])
        self.writer.splits = splits
        self.writer.facts = {
            "vocabulary": self.tokenizer.vocabulary,
            "tokenizer": self.tokenizer.facts,
            "max_tokens": self.max_tokens,
        }


def synthesize(folder: Path, settings: Settings) -> None:
    """Write conversations about sums, always the same. One in ten is for validation and test."""
    with StoreWriter(folder, WORKLOAD) as writer:
        chats = ChatWriter(writer, byte_tokenizer(), settings.data.block_size)
        chats.write(about_sums(settings.data.sample_chats))
        tenth = len(chats.places) // 10
        splits = {
            "train": [0, 8 * tenth],
            "validation": [8 * tenth, 9 * tenth],
            "test": [9 * tenth, 10 * tenth],
        }
        chats.finish(np.arange(10 * tenth), splits)
        writer.source = {"kind": "synthetic", "text": "conversations about sums"}


def about_sums(count: int) -> Iterator[Chat]:
    """Yield conversations of one to three questions."""
    numbers = random.Random(0)
    for _ in range(count):
        messages = []
        for _ in range(numbers.randint(1, 3)):
            first = numbers.randint(0, 99)
            second = numbers.randint(0, 99)
            question = f"{first} + {second}?"
            answer = f"It is {first + second}."
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        yield Chat(messages, {})


# --- metrics


def finish(metrics: dict[str, float], store: Store, split: str, sums: Batch) -> dict[str, float]:
    """Add `perplexity`, the exponential of the mean loss per answer token."""
    perplexity = float(np.exp(metrics["loss"]))
    return {**metrics, "perplexity": perplexity}


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of a uniform guess over the vocabulary."""
    vocabulary = store.facts["vocabulary"]
    return float(np.log(vocabulary))
