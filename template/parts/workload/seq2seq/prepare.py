"""Turn pairs of texts into the prepared dataset of tokens that training reads."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import typed_path
from ..prepare.pairs import is_header
from ..prepare.splits import (
    SPLITS,
    add_dry_run,
    destination,
    print_summary,
    split_shares,
    split_sizes,
)

if TYPE_CHECKING:
    import numpy as np

    from ..bytepairs import Tokenizer
    from ..dataset import Pair
    from ..engine.data.store import StoreWriter

    Made = tuple[Tokenizer, int, int]  # tokenizer, vocabulary, and the decoder's first token

BYTES = 257  # the smallest vocabulary of byte pairs: all bytes, and the end of a text
TOGETHER = 1024  # pairs that are fetched at a time
Text = tuple[str, str, str]
"""Source, target, and their place in a file."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        type=typed_path,
        metavar="FILE",
        help="file with pairs: .tsv (source TAB target) or .jsonl (also .gz), or .parquet",
    )
    add(
        "--validation",
        type=typed_path,
        metavar="FILE",
        help="file with the validation pairs, so that --input is not split",
    )
    add("--test", type=typed_path, metavar="FILE", help="file with the test pairs")
    add(
        "--source-key",
        default="source",
        metavar="NAME",
        help="field of .jsonl or .parquet with the source; its name in a header of .tsv, which is"
        " left out (default: source)",
    )
    add(
        "--target-key",
        default="target",
        metavar="NAME",
        help="field of .jsonl or .parquet with the target; its name in a header (default: target)",
    )
    prefix = 'text to add before each source, such as "summarize: "'
    add("--prefix", default="", metavar="TEXT", help=prefix)
    add_tokenizer(parser)
    add(
        "--max-source",
        type=int,
        default=512,
        metavar="N",
        help="maximum number of tokens of a source (default: 512)",
    )
    add(
        "--max-target",
        type=int,
        default=128,
        metavar="N",
        help="maximum number of tokens of a target (default: 128)",
    )
    add(
        "--too-long",
        choices=["cut", "skip"],
        default="cut",
        help="cut longer texts, or leave out their pairs (default: cut)",
    )
    add(
        "--split",
        default="0.9,0.05,0.05",
        metavar="TRAIN,VALIDATION,TEST",
        help="fractions that add up to 1, or numbers of pairs; test may be 0 (default: "
        "%(default)s)",
    )
    drop = "leave out pairs without a target, which are an error otherwise"
    add("--drop-missing-targets", action="store_true", help=drop)
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the shuffle before the split (default: 0)",
    )
    add_dry_run(parser)


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the tokenizer."""
    add = parser.add_argument
    add(
        "--tokenizer",
        choices=["byte", "char", "space", "bpe", "pretrained"],
        default="byte",
        help="one token per byte, per character or per word between spaces, byte pairs learned"
        " from the texts, or the tokenizer of --pretrained (default: byte)",
    )
    add(
        "--vocabulary",
        type=int,
        default=8192,
        metavar="N",
        help="size of the vocabulary that bpe learns (default: 8192)",
    )
    add("--pretrained", metavar="NAME", help="folder or hub name of the T5 whose tokenizer to use")
    add(
        "--unknown",
        action="store_true",
        help="replace symbols that training does not have by one token, instead of an error",
    )


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read all pairs, learn the tokenizer from the training pairs, and write the tokens."""
    from ..engine.data.store import StoreWriter
    from ..settings import WORKLOAD

    check(arguments)
    given = None
    if arguments.pretrained:
        given = pretrained_tokenizer(arguments.pretrained)
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            write_all(writer, arguments, given)
        print_summary(writer, arguments.dry_run)


def write_all(writer: StoreWriter, arguments: argparse.Namespace, given: Made | None) -> None:
    """Write all pairs, and print a summary. given: the tokenizer, unless it is to be learned."""
    from ..dataset import write_pairs

    reading = Reading(writer, arguments)
    texts = split_texts(reading)
    tokenizer, vocabulary, start = given or make_tokenizer(arguments, texts["train"])
    has_symbols = arguments.tokenizer in ("char", "space")
    if has_symbols and not arguments.unknown:
        check_known(tokenizer, texts)

    too_long = Counter[str]()
    splits = {}
    for name in SPLITS:
        splits[name] = encode(arguments, tokenizer, name, texts[name], too_long)
    facts = {
        "vocabulary": vocabulary,
        "start": start,
        "prefix": arguments.prefix,
        "limits": [arguments.max_source, arguments.max_target],
    }
    write_pairs(writer, tokenizer, splits, facts)
    writer.source = {
        "file": Path(arguments.input).name,
        "pairs": sum(map(len, texts.values())),
        "copies": reading.seen.num_copies,
        "unknown": arguments.unknown or not has_symbols,
    }

    sizes = [f"{last - first:,} {split}" for split, (first, last) in writer.splits.items()]
    print(f"{'pairs:':14}{', '.join(sizes)}")
    print(f"{'vocabulary:':14}{vocabulary:,} ({tokenizer.kind})")
    action = "cut" if arguments.too_long == "cut" else "left out, with its pair"
    notes = {
        "left out, copies of other pairs": reading.seen.num_copies,
        "left out, pairs without a target": reading.num_without_target,
        **{f"too long, {action}, {side}": count for side, count in too_long.items()},
    }
    for what, count in notes.items():
        if count:
            print(f"{'note:':14}{what}: {count:,}")


def check(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for flags that are invalid, alone or together."""
    from ..texts import check_text

    split_shares(arguments.split)
    if arguments.tokenizer == "bpe" and arguments.vocabulary <= BYTES:
        where = f"--vocabulary {arguments.vocabulary}"
        what = f"byte pairs need a vocabulary above {BYTES}"
        raise UserError(what, where, "use a larger one, such as 8192")
    if (arguments.tokenizer == "pretrained") != (arguments.pretrained is not None):
        what = "--tokenizer pretrained and --pretrained belong together"
        remedy = "add both, such as --pretrained google-t5/t5-base, or none"
        raise UserError(what, "command line", remedy)
    if arguments.test and not arguments.validation:
        what = "a test file, but no validation file"
        raise UserError(what, "--test", "add --validation, too")
    if min(arguments.max_source, arguments.max_target) < 2:
        where = "--max-source, --max-target"
        raise UserError("a text needs a token and its end", where, "use 2 or more")
    if arguments.seed < 0:
        raise UserError(f"a seed cannot be {arguments.seed}", "--seed", "use 0 or more")
    check_text(arguments.prefix, "--prefix")


class Texts:
    """The pairs with the given numbers, read from a writer's temporary file, not from memory."""

    def __init__(self, writer: StoreWriter, numbers: np.ndarray):
        self._writer = writer
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Text]:
        content = self._writer.appended(".texts").data
        stops = self._writer.appended(".stops")
        for first in range(0, len(self), TOGETHER):
            numbers = self._numbers[first : first + TOGETHER]
            starts = (stops[numbers - 1, 2] * (numbers > 0)).tolist()
            for start, ends in zip(starts, stops[numbers].tolist(), strict=True):
                borders = pairwise([start, *ends])
                source, target, where = (
                    str(content[begin:end], "utf-8", "surrogateescape") for begin, end in borders
                )
                yield source, target, where


class Reading:
    """Reads the pairs of files into temporary arrays of a writer, without copies."""

    def __init__(self, writer: StoreWriter, arguments: argparse.Namespace):
        from ..texts import Seen

        self.writer = writer
        self.arguments = arguments
        self.seen = Seen()
        self.size = 0  # bytes of text so far
        self.num_without_target = 0

    def read(self, file: str) -> int:
        """Read a file; return how many of its pairs are new."""
        from ..dataset import batched

        num_kept = 0
        for pairs in batched(self._new_pairs(file)):
            self._write(pairs)
            num_kept += len(pairs)
        if not num_kept:
            remedy = "provide a file with pairs that no other file has"
            raise UserError("no new pair in the file", file, remedy)
        return num_kept

    def _new_pairs(self, file: str) -> Iterator[Text]:
        for source, target, where in read_pairs(Path(file), self.arguments):
            if not target.strip():
                self.num_without_target += 1
            elif self.seen.add(f"{len(source)} {source}{target}".encode()):
                yield source, target, where

    def _write(self, pairs: list[Text]) -> None:
        import numpy as np

        # The path in `where` may not be UTF-8.
        texts = [text.encode(errors="surrogateescape") for pair in pairs for text in pair]
        stops = self.size + np.cumsum([len(text) for text in texts]).reshape(-1, 3)
        self.writer.append(".texts", np.frombuffer(b"".join(texts), np.uint8))
        self.writer.append(".stops", stops)
        self.size = int(stops[-1, 2])


def split_texts(reading: Reading) -> dict[str, Texts]:
    """Return the pairs of each split, without copies.

    A copy in another split would let a model succeed by memorizing.
    """
    import numpy as np

    arguments = reading.arguments
    sizes = [reading.read(arguments.input)]
    for file in (arguments.validation, arguments.test):
        if file:
            sizes.append(reading.read(file))

    order = np.arange(sum(sizes))
    if not arguments.validation:
        sizes = split_sizes(arguments.split, len(order), "pair", rounded=1)
        order = np.random.default_rng(arguments.seed).permutation(len(order))
    borders = np.cumsum([0, *sizes]).tolist()
    borders.append(borders[-1])  # an empty test split, if there is --validation without --test
    splits = {}
    for name, (first, last) in zip(SPLITS, pairwise(borders), strict=False):
        splits[name] = Texts(reading.writer, order[first:last])
    return splits


def read_pairs(path: Path, arguments: argparse.Namespace) -> Iterator[Text]:
    """Yield the pairs of a file. Raises `UserError`, with the line, for an invalid pair.

    Targets may be empty with `--drop-missing-targets`.
    """
    for where, pair in read_rows(path, arguments):
        if len(pair) != 2:
            what = "no tab between source and target"
            if len(pair) > 1:
                what = f"{len(pair) - 1} tabs in a pair"
            raise UserError(what, where, "write one pair per line: source, one tab, target")
        source, target = pair
        if not source.strip():
            remedy = "fill it in, or remove the line"
            raise UserError("the source is empty", where, remedy)
        if not target.strip() and not arguments.drop_missing_targets:
            remedy = "fill it in, remove the line, or add --drop-missing-targets"
            raise UserError("the target is empty", where, remedy)
        yield source, target, where


def read_rows(path: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (where, texts) of each row or line."""
    from ..texts import has_rows, lines, rows

    if has_rows(path):
        may_lack = (arguments.target_key,) if arguments.drop_missing_targets else ()
        remedy = "fix it, or name the fields with --source-key and --target-key"
        keys = (arguments.source_key, arguments.target_key)
        yield from rows(path, keys, remedy, may_lack)
    elif ".tsv" in path.suffixes[-2:]:
        for place, (number, line) in enumerate(lines(path)):
            cells = line.split("\t")
            if place == 0 and is_header(cells, arguments.source_key, arguments.target_key):
                print(f"note: the first line of {path} is a header, not a pair: {line!r}")
            else:
                yield f"{path}, line {number}", tuple(cells)
    else:
        what = "the file is not .tsv or .jsonl (also .gz), nor .parquet"
        raise UserError(what, str(path), "rename or convert the file")


def encode(
    arguments: argparse.Namespace,
    tokenizer: Tokenizer,
    split: str,
    texts: Texts,
    too_long: Counter[str],
) -> Iterator[Pair]:
    """Yield the tokens of a split's pairs, and count long texts in `too_long`."""
    from tqdm import tqdm

    from ..dataset import SIDES, tokenize

    limits = (arguments.max_source, arguments.max_target)
    num_kept = 0
    for source, target, _ in tqdm(texts, split, unit="pair", leave=False, disable=None):
        pair, is_long = tokenize(tokenizer, arguments.prefix + source, target, limits)
        for side, side_is_long in zip(SIDES, is_long, strict=True):
            too_long[f"{side}s of {split}"] += side_is_long
        if arguments.too_long == "cut" or not any(is_long):
            num_kept += 1
            yield pair
    if len(texts) and not num_kept:
        what = f"every pair of {split} is too long"
        raise UserError(what, f"--too-long {arguments.too_long}", "use --too-long cut")


def make_tokenizer(arguments: argparse.Namespace, train: Texts) -> Made:
    """Return the tokenizer that `--tokenizer` names, its vocabulary, and the decoder's first token.

    It is learned from the training pairs only.
    """
    from ..bytepairs import Byte, Pairs
    from ..tokenizer import Symbols

    def texts() -> Iterator[str]:
        for source, target, _ in train:
            yield arguments.prefix + source
            yield target

    tokenizer: Tokenizer
    if arguments.tokenizer == "byte":
        tokenizer = Byte()
    elif arguments.tokenizer == "bpe":
        tokenizer = Pairs.learn(texts(), arguments.vocabulary)
    else:
        tokenizer = Symbols.learn(arguments.tokenizer, texts())
    return tokenizer, tokenizer.end + 1, tokenizer.end


def pretrained_tokenizer(name: str) -> Made:
    """Load the tokenizer of a T5 from a folder or the hub, with the numbers in `config.json`."""
    from tokenizers import Tokenizer as Library
    from transformers import T5Config

    from ..tokenizer import Pretrained

    folder = Path(name)
    try:
        config: Any = T5Config.from_pretrained(name)
        if folder.is_dir():
            library = Library.from_file(str(folder / "tokenizer.json"))
        else:
            library = Library.from_pretrained(name)
    except Exception as error:  # the hub and tokenizers (in Rust) raise classes of their own
        reason = " ".join(str(error).split())[:160]
        what = f"the tokenizer cannot be loaded ({reason})"
        remedy = "provide a folder with tokenizer.json and config.json, or go online once"
        raise UserError(what, f"--pretrained {name}", remedy) from error
    pretrained = Pretrained(library.to_str(), config.eos_token_id)
    return pretrained, config.vocab_size, config.decoder_start_token_id


def check_known(tokenizer: Any, texts: dict[str, Texts]) -> None:
    """Raise `UserError` for the first symbol that no training pair has."""
    for split in ("validation", "test"):
        for source, target, where in texts[split]:
            unseen = tokenizer.unseen(source) + tokenizer.unseen(target)
            if unseen:
                what = f"{split} has {unseen[0]!r}, which no training pair has"
                remedy = "add --unknown to use one token for such symbols, or use --tokenizer byte"
                raise UserError(what, where, remedy)
