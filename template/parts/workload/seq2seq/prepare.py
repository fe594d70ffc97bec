"""Turn pairs of texts into the prepared dataset of tokens that training reads."""

from __future__ import annotations

import argparse
import json
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import typed_path
from ..prepare.pairs import read_texts
from ..prepare.splits import SPLITS, print_next, split_shares, split_sizes
from ..prepare.vocabulary import add_tokenizer, check_vocabulary

if TYPE_CHECKING:
    from ..bytepairs import Tokenizer
    from ..dataset import Pair
    from ..texts import Seen

    Made = tuple[Tokenizer, int, int]  # tokenizer, vocabulary, and the decoder's first token

Text = tuple[str, str]
"""Source and target."""


class Texts:
    """Pairs of texts, in a temporary file: they need only 16 bytes of memory each.

    sources: the hash of each source.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it goes with this object
        self._ends = array("q", [0])
        self.sources = array("q")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, pair: Text) -> None:
        self._file.write(json.dumps(pair).encode())
        self._ends.append(self._file.tell())
        self.sources.append(hash(pair[0]))

    def chosen(self, numbers: Iterable[int]) -> Iterator[Text]:
        """Yield the pairs of these numbers."""
        for number in numbers:
            first, end = self._ends[number : number + 2]
            self._file.seek(first)
            source, target = json.loads(self._file.read(end - first))
            yield source, target


Split = tuple[Texts, Any]
"""Texts of a file, and the numbers of the pairs in this split, as a range or an array."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        type=typed_path,
        metavar="FILE",
        help="file with pairs: .tsv (source TAB target), .csv or .jsonl (also compressed), or"
        " .parquet",
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
        help="field of .jsonl or .parquet with the source, or column of .tsv or .csv with a header"
        " (default: source)",
    )
    add(
        "--target-key",
        default="target",
        metavar="NAME",
        help="field or column with the target (default: target)",
    )
    meaning = "encoding of the texts, such as cp1252 or utf-16 (default: utf-8)"
    add("--encoding", default="", metavar="NAME", help=meaning)
    prefix = 'text to add before each source, such as "summarize: "'
    add("--prefix", default="", metavar="TEXT", help=prefix)
    add_tokenizer(
        parser,
        "byte space bpe pretrained",
        "one token per byte or per symbol between spaces, byte pairs learned from the texts, or"
        " those of --pretrained",
    )
    add("--pretrained", metavar="NAME", help="folder or hub name of the T5 whose tokenizer to use")
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
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the shuffle before the split (default: 0)",
    )


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read all pairs, learn the tokenizer from the training pairs, and write the tokens."""
    from ..dataset import write
    from ..engine.loading.store import check_folder
    from ..texts import decoding

    check(arguments)
    inputs = (arguments.input, arguments.validation, arguments.test)
    folder = check_folder(load().data.path, *inputs)
    given = None
    if arguments.pretrained:
        given = pretrained_tokenizer(arguments.pretrained)
    with decoding(arguments.encoding, [Path(file) for file in inputs if file]):
        texts, num_copies = read_splits(arguments)
    tokenizer, vocabulary, start = given or make_tokenizer(arguments, texts["train"])
    facts = {
        "vocabulary": vocabulary,
        "start": start,
        "prefix": arguments.prefix,
        "limits": [arguments.max_source, arguments.max_target],
    }
    source = {
        "file": Path(arguments.input).name,
        "copies": num_copies,
        "source_key": arguments.source_key,
        "encoding": arguments.encoding,
    }
    too_long = Counter[str]()
    splits = {}
    for name in SPLITS:
        splits[name] = encode_pairs(arguments, tokenizer, name, texts[name], too_long)
    store = write(folder, tokenizer, splits, facts, source)
    sizes = [f"{last - first:,} {split}" for split, (first, last) in store.splits.items()]
    print(f"{'pairs:':14}{', '.join(sizes)}")
    print(f"{'vocabulary:':14}{vocabulary:,} ({tokenizer.kind})")
    print_pairs(texts["train"])
    action = "cut" if arguments.too_long == "cut" else "left out, with its pair"
    notes = {f"too long, {action}, {side}": count for side, count in too_long.items()}
    notes["left out, copies of other pairs"] = num_copies
    notes["in validation and test, with a source of train"] = count_shared(texts)
    for what, count in notes.items():
        if count:
            print(f"{'note:':14}{what}: {count:,}")
    print_next(folder)


def print_pairs(split: Split) -> None:
    """Print three pairs of the file, so that a header, swapped columns and quotes are visible."""
    pairs, _ = split
    last = len(pairs) - 1
    for source, target in pairs.chosen([0, last // 2, last]):
        print(f"{'pair:':14}{source[:40]!r} → {target[:40]!r}")


def check(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for flags that are invalid, alone or together."""
    from ..texts import check_text

    split_shares(arguments.split)
    check_vocabulary(arguments)
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


def read_splits(arguments: argparse.Namespace) -> tuple[dict[str, Split], int]:
    """Return the pairs of each split, without copies, and count the copies.

    A copy in another split would let a model succeed by memorizing.
    """
    import numpy as np

    from ..texts import Seen

    seen = Seen()
    splits: dict[str, Split] = {}
    if arguments.validation:
        files = (arguments.input, arguments.validation, arguments.test)
        for name, file in zip(SPLITS, files, strict=True):
            texts = read_pairs(file, arguments, seen) if file else Texts()
            splits[name] = (texts, range(len(texts)))
        return splits, seen.num_copies

    texts = read_pairs(arguments.input, arguments, seen)
    sizes = split_sizes(arguments.split, len(texts), rounded=1)
    order = np.random.default_rng(arguments.seed).permutation(len(texts))
    first = 0
    for name, size in zip(SPLITS, sizes, strict=True):
        splits[name] = (texts, order[first : first + size])
        first += size
    if first < len(texts):
        print(f"note: {len(texts) - first:,} pairs are in no split, see --split")
    return splits, seen.num_copies


def read_pairs(file: str, arguments: argparse.Namespace, seen: Seen) -> Texts:
    """Return the new pairs of a file. Raises `UserError`, with the line, for an invalid pair."""
    pairs = Texts()
    keys = (arguments.source_key, arguments.target_key)
    for where, (source, target) in read_texts(file, arguments.encoding, *keys):
        if not target.strip():
            raise UserError("the target is empty", where, "fill it in, or remove the line")
        if seen.add(f"{len(source)} {source}{target}"):
            pairs.append((source, target))
    if not pairs:
        remedy = "provide a file with pairs that no other file has"
        raise UserError("no new pair in the file", file, remedy)
    return pairs


def count_shared(splits: dict[str, Split]) -> int:
    """Return how many pairs of validation and test have a source that training pairs have."""
    import numpy as np

    sources = [np.array(texts.sources)[numbers] for texts, numbers in splits.values()]
    return int(np.isin(np.concatenate(sources[1:]), sources[0]).sum())


def encode_pairs(
    arguments: argparse.Namespace,
    tokenizer: Tokenizer,
    split: str,
    texts: Split,
    too_long: Counter[str],
) -> Iterator[Pair]:
    """Yield the tokens of a split's pairs, and count long texts in `too_long`."""
    from tqdm import tqdm

    from ..dataset import SIDES, tokenize

    limits = (arguments.max_source, arguments.max_target)
    num_kept = 0
    pairs, numbers = texts
    chosen = pairs.chosen(numbers)
    for source, target in tqdm(chosen, split, len(numbers), False, unit="pair", disable=None):
        pair, is_long = tokenize(tokenizer, arguments.prefix + source, target, limits)
        for side, side_is_long in zip(SIDES, is_long, strict=True):
            too_long[f"{side}s of {split}"] += side_is_long
        if arguments.too_long == "cut" or not any(is_long):
            num_kept += 1
            yield pair
    if len(numbers) and not num_kept:
        what = f"every pair of {split} is too long"
        raise UserError(what, f"--too-long {arguments.too_long}", "use --too-long cut")


def make_tokenizer(arguments: argparse.Namespace, train: Split) -> Made:
    """Return the tokenizer that `--tokenizer` names, its vocabulary, and the decoder's first token.

    It is learned from the training pairs only.
    """
    from ..bytepairs import Byte, Pairs
    from ..tokenizer import learn_symbols

    def texts() -> Iterator[str]:
        pairs, numbers = train
        for source, target in pairs.chosen(numbers):
            yield arguments.prefix + source
            yield target

    tokenizer: Tokenizer = Byte()
    if arguments.tokenizer == "bpe":
        tokenizer = Pairs.learn(texts(), arguments.vocabulary)
    if arguments.tokenizer == "space":
        tokenizer = learn_symbols(texts())
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
