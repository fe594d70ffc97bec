"""Turn text files into the tokens that training reads."""

from __future__ import annotations

import argparse
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..splits import add_dry_run, conclude, destination, split_shares, split_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..bytepairs import Tokenizer

BYTES = 257  # the smallest vocabulary of byte pairs: all bytes, and the end of a document
FEW_FILES = 20  # with fewer, shares of files are coarse: the text is split by position


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        metavar="PATH",
        help="text, .jsonl (also .gz) or .parquet; or a folder of them",
    )
    add(
        "--column",
        default="text",
        metavar="NAME",
        help="of .jsonl and .parquet: a document a row (default: text)",
    )
    add("--glob", default="*", metavar="PATTERN", help="files of a folder, at any depth (default: all)")
    kinds = "a token for each byte or char; byte pairs of this text; those of GPT-2 (default: byte)"
    add("--tokenizer", choices=["byte", "char", "bpe", "gpt2"], default="byte", help=kinds)
    add("--vocabulary", type=int, default=8192, metavar="N", help="tokens that bpe learns (default: 8192)")
    split = "shares that add up to 1, or numbers of tokens or files; test may be 0 (default: %(default)s)"
    add("--split", default="0.9,0.05,0.05", metavar="TRAIN,VALIDATION,TEST", help=split)
    by = f"one text after the other, or whole shuffled files; auto is by file from {FEW_FILES} files on"
    add("--split-by", choices=["auto", "position", "file"], default="auto", help=by)
    add("--seed", type=int, default=0, metavar="N", help="of the files' shuffle (default: 0)")
    add_dry_run(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads each file twice: to find copies and learn the vocabulary, then to write its tokens."""
    from ..dataset import write
    from ..engine.files import writable_folder

    split_shares(arguments.split)  # before the work
    if arguments.tokenizer == "bpe" and arguments.vocabulary <= BYTES:
        where, remedy = f"--vocabulary {arguments.vocabulary}", "give more, such as 8192"
        raise UserError(f"byte pairs need a vocabulary above {BYTES}", where, remedy)
    files, copies = find_files(Path(arguments.input), arguments.glob)
    by_file = arguments.split_by == "file" or (arguments.split_by == "auto" and len(files) >= FEW_FILES)
    if by_file:
        random.Random(arguments.seed).shuffle(files)
    sizes = split_sizes(arguments.split, len(files), "file", rounded=1) if by_file else []
    tokenizer = make_tokenizer(arguments, files, sizes[0] if by_file else 0)

    def borders(ends: np.ndarray) -> list[int]:
        if by_file:
            return [int(ends[count - 1]) for count in accumulate(sizes)]
        return list(accumulate(split_sizes(arguments.split, int(ends[-1]), "token", rounded=1)))

    split_by = "file" if by_file else "position"
    source = {"file": Path(arguments.input).name, "files": len(files), "split_by": split_by}
    with destination(load().data.path, arguments.dry_run) as folder:
        folder = writable_folder(folder, "choose another data.path")
        store = write(folder, tokenizer, files, borders, source, arguments.column)
        parts = [f"{last - first:,} {name}" for name, (first, last) in store.splits.items()]
        left_out = f", {copies} copies left out" if copies else ""
        print(f"{'files:':14}{len(files):,}{left_out}, split by {split_by}")
        print(f"{'documents:':14}{store.facts['documents']:,}")
        print(f"{'vocabulary:':14}{tokenizer.end + 1:,} ({tokenizer.kind})")
        print(f"{'tokens:':14}{', '.join(parts)}")
        conclude(store, arguments.dry_run)


def find_files(path: Path, pattern: str) -> tuple[list[Path], int]:
    """Files with text, in the order of their names, each content once; and how many copies were left out.

    A copy in another split would let a model pass by heart. Raises `UserError` where nothing is left.
    """
    from ..texts import blocks, has_rows

    if not path.exists():
        raise UserError("no such file or folder", str(path), "check --input")
    found = sorted(entry for entry in path.rglob(pattern) if entry.is_file()) if path.is_dir() else [path]
    found = [file for file in found if not any(part[0] == "." for part in file.relative_to(path).parts)]
    if not found:
        raise UserError(f"no file is like '{pattern}'", str(path), "check --input and --glob")
    kept: dict[Any, Path] = {}
    sizes = Counter(file.stat().st_size for file in found)
    packed = any(file.suffix == ".gz" for file in found)  # a copy may have another size
    empty = 0
    for file in found:
        size: Any = file.stat().st_size
        if not has_rows(file) and size and (packed or sizes[size] > 1):
            digest, size = hashlib.sha256(), 0
            for _, text in blocks(file):
                digest.update(text)
                size += len(text)
            kept.setdefault(digest.digest() if size else b"", file)
        elif size:
            kept[file] = file
        empty += not size
    kept.pop(b"", None)
    if not kept:
        raise UserError("no text in it", str(path), "give a file that is not empty")
    return list(kept.values()), len(found) - empty - len(kept)


def make_tokenizer(arguments: argparse.Namespace, files: list[Path], training: int) -> Tokenizer:
    """The tokenizer that is asked for.

    Byte pairs are learnt from the first `training` files, or from all where 0: where a text is split by
    position, its end helps to choose them. Characters are those of all files, as another one could not
    be written at all.
    """
    from ..bytepairs import Byte, Pairs
    from ..texts import decoded, documents
    from ..tokenizer import Character, Gpt2

    if arguments.tokenizer == "byte":
        return Byte()
    if arguments.tokenizer == "gpt2":
        return Gpt2.fetch()
    learnt = files[: training or len(files)] if arguments.tokenizer == "bpe" else files
    texts = (decoded(part) for file in learnt for part in documents(file, arguments.column))
    if arguments.tokenizer == "char":
        return Character("".join(sorted(set().union(*texts))))
    return Pairs.learn(texts, arguments.vocabulary)
