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
from ..engine.runs import typed_path
from ..prepare.splits import add_dry_run, destination, print_summary, split_shares, split_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..bytepairs import Tokenizer
    from ..engine.store import StoreWriter

BYTES = 257  # the smallest vocabulary of byte pairs: all bytes, and the end of a document
FEW_FILES = 20  # with fewer, shares of files are coarse: the text is split by position


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        type=typed_path,
        metavar="PATH",
        help="text, .jsonl (also .gz) or .parquet; or a folder of them",
    )
    add(
        "--column",
        default="text",
        metavar="NAME",
        help="of .jsonl and .parquet: a document a row (default: text)",
    )
    add(
        "--glob",
        default="*",
        metavar="PATTERN",
        help="files of a folder, at any depth (default: all)",
    )
    add(
        "--tokenizer",
        choices=["byte", "char", "bpe", "gpt2"],
        default="byte",
        help="a token for each byte or char; byte pairs of this text; those of GPT-2"
        " (default: byte)",
    )
    add(
        "--vocabulary",
        type=int,
        default=8192,
        metavar="N",
        help="tokens that bpe learns (default: 8192)",
    )
    add(
        "--split",
        default="0.9,0.05,0.05",
        metavar="TRAIN,VALIDATION,TEST",
        help="shares that add up to 1, or numbers of tokens or files; test may be 0"
        " (default: %(default)s)",
    )
    add(
        "--split-by",
        choices=["auto", "position", "file"],
        default="auto",
        help="one text after the other, or whole shuffled files;"
        f" auto is by file from {FEW_FILES} files on",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the files' shuffle (default: 0)")
    add_dry_run(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read each file twice: to find copies and learn the vocabulary, then to write its tokens."""
    from ..dataset import write

    check(arguments)
    files, num_copies = find_files(Path(arguments.input), arguments.glob)
    split_by = arguments.split_by
    if split_by == "auto":
        split_by = "file" if len(files) >= FEW_FILES else "position"
    sizes: list[int] = []
    num_training = 0
    if split_by == "file":
        random.Random(arguments.seed).shuffle(files)
        sizes = split_sizes(arguments.split, len(files), "file", rounded=1)
        num_training = sizes[0]
    tokenizer = make_tokenizer(arguments, files, num_training)

    def borders(ends: np.ndarray) -> list[int]:
        if split_by == "file":
            return [int(ends[count - 1]) for count in accumulate(sizes)]
        return list(accumulate(split_sizes(arguments.split, int(ends[-1]), "token", rounded=1)))

    source = {"file": Path(arguments.input).name, "files": len(files), "split_by": split_by}
    with destination(load().data.path, arguments.dry_run) as folder:
        store = write(folder, tokenizer, files, borders, source, arguments.column)
        report(store, tokenizer, num_copies)
        print_summary(store, arguments.dry_run)


def check(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for flags that cannot work, before the work begins."""
    split_shares(arguments.split)
    if arguments.tokenizer == "bpe" and arguments.vocabulary <= BYTES:
        what = f"byte pairs need a vocabulary above {BYTES}"
        where = f"--vocabulary {arguments.vocabulary}"
        raise UserError(what, where, "give more, such as 8192")


def report(store: StoreWriter, tokenizer: Tokenizer, num_copies: int) -> None:
    """Print what was made of the files."""
    source = store.source
    left_out = f", {num_copies} copies left out" if num_copies else ""
    sizes = [f"{last - first:,} {name}" for name, (first, last) in store.splits.items()]
    print(f"{'files:':14}{source['files']:,}{left_out}, split by {source['split_by']}")
    print(f"{'documents:':14}{store.facts['documents']:,}")
    print(f"{'vocabulary:':14}{tokenizer.end + 1:,} ({tokenizer.kind})")
    print(f"{'tokens:':14}{', '.join(sizes)}")


def find_files(path: Path, pattern: str) -> tuple[list[Path], int]:
    """Files with text, in the order of their names, each content once; and how many are copies.

    A copy in another split would let a model pass by heart. Raises `UserError` where nothing is
    left.
    """
    from ..texts import has_rows

    files = list_files(path, pattern)
    sizes = Counter(file.stat().st_size for file in files)
    is_packed = any(file.suffix == ".gz" for file in files)  # a copy may have another size
    kept: dict[Any, Path] = {}  # by what no other file has
    num_empty = 0
    for file in files:
        size = file.stat().st_size
        key: Any = file
        if size and not has_rows(file) and (is_packed or sizes[size] > 1):
            key, size = digest(file)
        if size:
            kept.setdefault(key, file)
        else:
            num_empty += 1
    if not kept:
        raise UserError("no text in it", str(path), "give a file that is not empty")
    return list(kept.values()), len(files) - num_empty - len(kept)


def list_files(path: Path, pattern: str) -> list[Path]:
    """The file, or the visible ones of the folder that are like the pattern, by their names."""
    if not path.exists():
        raise UserError("no such file or folder", str(path), "check --input")
    files = [path]
    if path.is_dir():
        files = sorted(entry for entry in path.rglob(pattern) if entry.is_file())
    visible = []
    for file in files:
        if not any(part[0] == "." for part in file.relative_to(path).parts):
            visible.append(file)
    if not visible:
        raise UserError(f"no file is like '{pattern}'", str(path), "check --input and --glob")
    return visible


def digest(file: Path) -> tuple[bytes, int]:
    """A hash of the text, and its bytes."""
    from ..texts import blocks

    hash_of_text = hashlib.sha256()
    size = 0
    for _, text in blocks(file):
        hash_of_text.update(text)
        size += len(text)
    return hash_of_text.digest(), size


def make_tokenizer(arguments: argparse.Namespace, files: list[Path], training: int) -> Tokenizer:
    """The tokenizer that is asked for.

    Byte pairs are learnt from the first `training` files, or from all where 0: where a text is
    split by position, its end helps to choose them. Characters are those of all files, as another
    one could not be written at all.
    """
    from ..bytepairs import Byte, Pairs
    from ..texts import decoded, documents
    from ..tokenizer import Character, Gpt2

    if arguments.tokenizer == "byte":
        return Byte()
    if arguments.tokenizer == "gpt2":
        return Gpt2.fetch()
    if arguments.tokenizer == "bpe" and training:
        files = files[:training]
    texts = (decoded(piece) for file in files for piece in documents(file, arguments.column))
    if arguments.tokenizer == "char":
        characters = set[str]().union(*texts)
        return Character("".join(sorted(characters)))
    return Pairs.learn(texts, arguments.vocabulary)
