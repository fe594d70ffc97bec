"""Flags of the tokenizer, and the check of its vocabulary."""

from __future__ import annotations

import argparse

from ..engine.errors import UserError

BYTES = 257  # the smallest vocabulary of byte pairs: all bytes, and the end of a text


def add_tokenizer(parser: argparse.ArgumentParser, tokenizers: str, meaning: str) -> None:
    """Add the flags of the tokenizer. tokenizers: their names, separated by spaces."""
    meaning += " (default: byte)"
    parser.add_argument("--tokenizer", choices=tokenizers.split(), default="byte", help=meaning)
    meaning = "size of the vocabulary that bpe learns (default: 8192)"
    parser.add_argument("--vocabulary", type=int, default=8192, metavar="N", help=meaning)


def check_vocabulary(arguments: argparse.Namespace) -> None:
    """Raise `UserError` if byte pairs have no room for all bytes."""
    if arguments.tokenizer == "bpe" and arguments.vocabulary <= BYTES:
        what = f"byte pairs need a vocabulary above {BYTES}"
        where = f"--vocabulary {arguments.vocabulary}"
        raise UserError(what, where, "use a larger one, such as 8192")
