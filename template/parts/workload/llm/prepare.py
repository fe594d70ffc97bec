"""Turn text files into the prepared dataset of tokens that training reads."""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import check_input, typed_path
from ..prepare.folders import list_files
from ..prepare.splits import print_next, split_shares, split_sizes
from ..prepare.vocabulary import add_tokenizer, check_vocabulary

if TYPE_CHECKING:
    import numpy as np

    from ..bytepairs import Tokenizer
    from ..engine.loading.store import StoreWriter

FEW_FILES = 20  # with fewer files, whole files are too coarse: split the text by position


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        type=typed_path,
        metavar="PATH",
        help="text or JSON lines (also compressed), .parquet file, or a folder of them",
    )
    add(
        "--column",
        metavar="NAME",
        help="field of JSON lines or .parquet with one document per row, or `none` to read them as"
        " one text (default: text)",
    )
    add(
        "--glob",
        default="*",
        metavar="PATTERN",
        help="files of the folder to read, at any depth (default: all)",
    )
    meaning = "encoding of the texts, such as cp1252 or utf-16 (default: utf-8)"
    add("--encoding", default="", metavar="NAME", help=meaning)
    add_tokenizer(
        parser,
        "byte char bpe gpt2",
        "one token per byte or per character, byte pairs learned from the text, or GPT-2's",
    )
    add(
        "--split",
        default="0.9,0.05,0.05",
        metavar="TRAIN,VALIDATION,TEST",
        help="fractions that add up to 1, or numbers of tokens or files; test may be 0"
        " (default: %(default)s)",
    )
    add(
        "--split-by",
        choices=["auto", "position", "file"],
        default="auto",
        help="split the concatenated text by position, or shuffle and split whole files; auto"
        f" splits by file if there are at least {FEW_FILES} (default: auto)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the shuffle (default: 0)")


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Find copies and learn the vocabulary, then write the tokens."""
    from ..dataset import write
    from ..engine.loading.store import check_folder
    from ..texts import decoding

    split_shares(arguments.split)
    check_vocabulary(arguments)
    folder = check_folder(load().data.path, arguments.input)
    files, num_copies = find_files(Path(arguments.input), arguments.glob)
    split_by = arguments.split_by
    if split_by == "auto":
        split_by = "file" if len(files) >= FEW_FILES else "position"
    sizes = [len(files)]
    if split_by == "file":
        random.Random(arguments.seed).shuffle(files)
        sizes = split_sizes(arguments.split, len(files), rounded=1)

    def borders(ends: np.ndarray) -> list[int]:
        if split_by == "file":
            return ends_of_splits(ends, sizes)
        return list(accumulate(split_sizes(arguments.split, int(ends[-1]), rounded=1)))

    source = {"file": Path(arguments.input).name, "files": len(files), "split_by": split_by}
    encoding = arguments.encoding
    with decoding(encoding, files):
        tokenizer = make_tokenizer(arguments, files, training=files[: sizes[0]])
        store = write(folder, tokenizer, files, borders, source, arguments.column, encoding)
    report(store, tokenizer, num_copies)
    print_next(folder)


def ends_of_splits(ends: np.ndarray, sizes: list[int]) -> list[int]:
    """Return the tokens at which splits of `sizes` files end. ends: where each file ends."""
    stops = [int(ends[count - 1]) for count in accumulate(sizes)]
    if not 0 < stops[0] < stops[1]:
        what = "no new text in the files for training or validation"
        raise UserError(what, "--split", "give them more files, or use --split-by position")
    return stops


def report(store: StoreWriter, tokenizer: Tokenizer, num_copies: int) -> None:
    """Print a summary of the files and the tokens, and with which text each split begins."""
    from ..engine.loading.store import Store

    source = store.source
    sizes = [f"{last - first:,} {name}" for name, (first, last) in store.splits.items()]
    print(f"{'files:':14}{source['files']:,}, split by {source['split_by']}")
    print(f"{'documents:':14}{store.facts['documents']:,}")
    print(f"{'vocabulary:':14}{tokenizer.end + 1:,} ({tokenizer.kind})")
    print(f"{'tokens:':14}{', '.join(sizes)}")
    tokens = Store.open(store.folder).arrays["tokens"].rows()
    for name, (first, last) in store.splits.items():
        beginning = tokenizer.decode(tokens[first : min(first + 24, last)].tolist())
        print(f"{name + ':':14}begins with {beginning.decode(errors='replace')!r}")
    if last < len(tokens):
        print(f"{'note:':14}tokens in no split, see --split: {len(tokens) - last:,}")
    for what, count in (("files", num_copies), ("documents", source["copies"])):
        if count:
            print(f"{'note:':14}copies of other {what}, left out: {count:,}")


def find_files(path: Path, pattern: str) -> tuple[list[Path], int]:
    """Return the files with text, without copies, in the order of their names; and count copies.

    A copy in another split would let a model succeed by memorizing. Raises `UserError` if no file
    has text.
    """
    check_input(path)
    files = [path]
    if path.is_dir():
        files = list_files(path, lambda file: file.match(pattern or "*"))
    kept: dict[bytes, Path] = {}  # by the hash of the content
    files = [file for file in files if file.stat().st_size]
    for file in files:
        with open(file, "rb") as content:
            kept.setdefault(hashlib.file_digest(content, "sha256").digest(), file)
    if not kept:
        what = f"no text in a file that matches '{pattern}'"
        raise UserError(what, str(path), "check --input and --glob")
    return list(kept.values()), len(files) - len(kept)


def make_tokenizer(
    arguments: argparse.Namespace, files: list[Path], training: list[Path]
) -> Tokenizer:
    """Return the tokenizer that `--tokenizer` names.

    Byte pairs are learned from the files `training`. Characters come from all files, because
    unknown ones could not be encoded.
    """
    from ..bytepairs import Byte, Pairs
    from ..tokenizer import Character, Gpt2

    if arguments.tokenizer == "byte":
        return Byte()
    if arguments.tokenizer == "gpt2":
        return Gpt2.fetch()
    if arguments.tokenizer == "char":
        characters = set[str]().union(*texts_of(files, arguments))
        return Character("".join(sorted(characters)))
    return Pairs.learn(texts_of(training, arguments), arguments.vocabulary)


def texts_of(files: list[Path], arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the text of the files in pieces."""
    from ..prepare.documents import documents
    from ..texts import Seen

    seen = Seen()
    for file in files:
        for text, _ in documents(file, arguments.column, seen, arguments.encoding):
            yield text.decode()
