"""Turn pairs of texts into the tokens that training reads."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..splits import add_dry_run, conclude, destination, split_shares, split_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..bytepairs import Tokenizer
    from ..dataset import Pair
    from ..engine.store import StoreWriter

BYTES = 257  # the smallest vocabulary of byte pairs: all bytes, and the end of a text
TOGETHER = 1024  # pairs that are fetched at a time
PADDED = 100_000  # pairs that tell the share of padding
SPLITS = ("train", "validation", "test")
Text = tuple[str, str, str]
"""Source, target, and where they stand."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        metavar="FILE",
        help="pairs: .tsv (source TAB target), .jsonl (also .gz), .parquet",
    )
    add("--validation", metavar="FILE", help="pairs that validate; then --input is not split")
    add("--test", metavar="FILE", help="pairs that test, beside --validation")
    add("--source-key", default="source", metavar="NAME", help="of .jsonl and .parquet (default: source)")
    add("--target-key", default="target", metavar="NAME", help="of .jsonl and .parquet (default: target)")
    add("--prefix", default="", metavar="TEXT", help='before each source, such as "summarize: "')
    add(
        "--tokenizer",
        choices=["byte", "char", "space", "bpe", "pretrained"],
        default="byte",
        help="a token for each byte, char or word between spaces; byte pairs of these texts; those of"
        " --pretrained (default: byte)",
    )
    add("--vocabulary", type=int, default=8192, metavar="N", help="tokens that bpe learns (default: 8192)")
    add("--pretrained", metavar="NAME", help="folder or hub name of the T5 whose tokenizer to take")
    add("--unknown", action="store_true", help="one token for what training has not, instead of an error")
    add("--max-source", type=int, default=512, metavar="N", help="tokens of a source (default: 512)")
    add("--max-target", type=int, default=128, metavar="N", help="tokens of a target (default: 128)")
    add("--too-long", choices=["cut", "skip", "refuse"], default="cut", help="longer ones (default: cut)")
    add(
        "--split",
        default="0.9,0.05,0.05",
        metavar="TRAIN,VALIDATION,TEST",
        help="shares that add up to 1, or numbers of pairs; test may be 0 (default: %(default)s)",
    )
    drop = "leave pairs without a target out; without it they are an error"
    add("--drop-missing-targets", action="store_true", help=drop)
    add("--seed", type=int, default=0, metavar="N", help="of the shuffle before the split (default: 0)")
    add_dry_run(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads all pairs, learns the tokenizer from the training ones, writes tokens; says what was cut."""
    from ..dataset import Samples, write_pairs
    from ..engine.store import Store, StoreWriter
    from ..settings import WORKLOAD

    settings = load()
    check(arguments)
    limits, counts = [arguments.max_source, arguments.max_target], Counter[str]()
    given = pretrained_tokenizer(arguments.pretrained) if arguments.pretrained else None
    with destination(settings.data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            texts, copies, without_target = split_texts(writer, arguments)
            tokenizer, vocabulary, start = given or make_tokenizer(arguments, texts["train"])
            if arguments.tokenizer in ("char", "space") and not arguments.unknown:
                check_known(tokenizer, texts)
            splits: Any = {name: encode(arguments, tokenizer, name, texts[name], counts) for name in SPLITS}
            facts = {"vocabulary": vocabulary, "start": start, "prefix": arguments.prefix, "limits": limits}
            write_pairs(writer, tokenizer, splits, facts)
            pairs = sum(map(len, texts.values()))
            writer.source = {"file": Path(arguments.input).name, "pairs": pairs, "copies": copies}
            writer.source["unknown"] = arguments.unknown or arguments.tokenizer not in ("char", "space")
        store = Store.open(folder)
        sizes = (f"{last - first:,} {split}" for split, (first, last) in store.splits.items())
        lines = [("pairs", ", ".join(sizes))]
        lines += [("left out", f"{copies:,} copies of other pairs")] if copies else []
        lines += [("left out", f"{without_target:,} pairs without a target")] if without_target else []
        action = {"cut": "cut", "skip": "left out, with its pair"}.get(arguments.too_long)
        lines += [("too long", f"{count:,} {what}: {action}") for what, count in counts.items() if count]
        lines.append(("vocabulary", f"{vocabulary:,} ({tokenizer.kind})"))
        samples = Samples(store, settings, "train")
        samples.offsets = samples.offsets[: PADDED + 1]
        for kind in ("bucket", "full"):
            shares = padding(samples, settings, kind)
            lines.append(("padding", f"{shares[0]:.0%} of source, {shares[1]:.0%} of target, order {kind}"))
        print("\n".join(f"{title + ':':14}{line}" for title, line in lines))
        conclude(store, arguments.dry_run)


def check(arguments: argparse.Namespace) -> None:
    """Raises `UserError` for flags that are wrong alone or together."""
    split_shares(arguments.split)
    if arguments.tokenizer == "bpe" and arguments.vocabulary <= BYTES:
        where = f"--vocabulary {arguments.vocabulary}"
        raise UserError(f"byte pairs need a vocabulary above {BYTES}", where, "give more, such as 8192")
    if (arguments.tokenizer == "pretrained") != (arguments.pretrained is not None):
        what = "--tokenizer pretrained and --pretrained belong together"
        raise UserError(what, "command line", "give both, such as --pretrained google-t5/t5-base, or none")
    if arguments.test and not arguments.validation:
        raise UserError("a file to test and none to validate", "--test", "give --validation too")
    if min(arguments.max_source, arguments.max_target) < 2:
        raise UserError("a text has a token and its end", "--max-source, --max-target", "give 2 or more")
    if arguments.seed < 0:
        raise UserError(f"a seed cannot be {arguments.seed}", "--seed", "give a whole number from 0 on")


class Texts:
    """Pairs by their numbers, in a file that a writer has for the time being: not in memory."""

    def __init__(self, writer: StoreWriter, numbers: np.ndarray):
        self._writer, self._numbers = writer, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Text]:
        content, stops = self._writer.appended(".texts").data, self._writer.appended(".stops")
        for first in range(0, len(self), TOGETHER):
            numbers = self._numbers[first : first + TOGETHER]
            starts = (stops[numbers - 1, 2] * (numbers > 0)).tolist()
            for start, (source, target, where) in zip(starts, stops[numbers].tolist(), strict=True):
                marks = pairwise([start, source, target, where])
                one, other, place = (str(content[begin:end], "utf-8") for begin, end in marks)
                yield one, other, place


def split_texts(writer: StoreWriter, arguments: argparse.Namespace) -> tuple[dict[str, Texts], int, int]:
    """The pairs of each split, each once; how many copies were left out, and how many had no target.

    A copy in another split would let a model pass by heart.
    """
    import numpy as np

    from ..texts import Seen, together

    seen, count, size, marks, without_target = Seen(), 0, 0, [0], 0
    for file in filter(None, (arguments.input, arguments.validation, arguments.test)):
        kept, found = 0, read_pairs(Path(file), arguments)
        for pairs in together(found):
            batch = [pair for pair in pairs if pair[1].strip()]
            without_target += len(pairs) - len(batch)
            is_new = seen.add([f"{len(source)} {source}{target}".encode() for source, target, _ in batch])
            parts = [part.encode() for text in compress(batch, is_new) for part in text]
            if parts:
                stops = size + np.cumsum([len(part) for part in parts]).reshape(-1, 3)
                writer.append(".texts", np.frombuffer(b"".join(parts), np.uint8))
                writer.append(".stops", stops)
                size, kept = int(stops[-1, 2]), kept + len(stops)
            count += len(batch)
        if not kept:
            raise UserError("no pair in it", file, "give a file with pairs that the others have not")
        marks.append(marks[-1] + kept)
    order = np.arange(marks[-1])
    if not arguments.validation:
        marks = np.cumsum([0, *split_sizes(arguments.split, len(order), "pair", rounded=1)]).tolist()
        order = np.random.default_rng(arguments.seed).permutation(len(order))
    numbers = [order[slice(*part)] for part in pairwise([*marks, marks[-1]])]
    splits = {split: Texts(writer, part) for split, part in zip(SPLITS, numbers, strict=False)}
    return splits, count - len(order), without_target


def read_pairs(path: Path, arguments: argparse.Namespace) -> Iterator[Text]:
    """The pairs of a file. Raises `UserError`, with the line, for what is no pair; targets may be empty where
    `--drop-missing-targets` says so."""
    from ..texts import has_rows, lines, rows

    if not has_rows(path) and ".tsv" not in path.suffixes[-2:]:
        what = "pairs come from .tsv or .jsonl, also .gz, or from .parquet"
        raise UserError(what, str(path), "rename or convert the file")
    found: Iterable[tuple[str, tuple[str, ...]]]
    drop, keys = arguments.drop_missing_targets, (arguments.source_key, arguments.target_key)
    if has_rows(path):
        remedy = "mend it, or name the keys by --source-key and --target-key"
        found = rows(path, keys, remedy, may_lack=keys[1:] if drop else ())
    else:
        found = ((f"{path}, line {number}", tuple(line.split("\t"))) for number, line in lines(path))
    for where, pair in found:
        if len(pair) != 2:
            what = "no tab between source and target" if len(pair) == 1 else f"{len(pair) - 1} tabs in a pair"
            raise UserError(what, where, "write one pair a line: source, one tab, target")
        for name, text in zip(("source", "target"), pair, strict=True):
            if not text.strip() and not (drop and name == "target"):
                remedy = "fill it in, or take the line out"
                if name == "target":
                    remedy += ", or say --drop-missing-targets"
                raise UserError(f"the {name} is empty", where, remedy)
        yield pair[0], pair[1], where


def encode(
    arguments: argparse.Namespace, tokenizer: Tokenizer, split: str, texts: Texts, counts: Counter[str]
) -> Iterator[Pair]:
    """The tokens of a split's pairs; `counts` learns what was too long."""
    from tqdm import tqdm

    from ..dataset import tokenize

    limits, kept = (arguments.max_source, arguments.max_target), 0
    for source, target, where in tqdm(texts, split, unit="pair", leave=False, disable=None):
        pair, long = tokenize(tokenizer, arguments.prefix + source, target, limits)
        for side, limit, is_long in zip(("source", "target"), limits, long, strict=True):
            counts[f"{side}s of {split}"] += is_long
            if is_long and arguments.too_long == "refuse":
                remedy = f"raise --max-{side}, or use --too-long cut or skip"
                raise UserError(f"a {side} of more than {limit} tokens", where, remedy)
        if not any(long) or arguments.too_long == "cut":
            kept += 1
            yield pair
    if len(texts) and not kept:
        raise UserError(f"every pair of {split} is too long", f"--too-long {arguments.too_long}", "use cut")


def make_tokenizer(arguments: argparse.Namespace, train: Texts) -> tuple[Tokenizer, int, int]:
    """The tokenizer that is asked for, its vocabulary, and the token that a decoder starts from.

    It is learnt from the training pairs alone.
    """
    from ..bytepairs import Byte, Pairs
    from ..tokenizer import Symbols

    texts = (text for source, target, _ in train for text in (arguments.prefix + source, target))
    tokenizer: Tokenizer = Byte()
    if arguments.tokenizer == "bpe":
        tokenizer = Pairs.learn(texts, arguments.vocabulary)
    elif arguments.tokenizer != "byte":
        tokenizer = Symbols.learn(arguments.tokenizer, texts)
    return tokenizer, tokenizer.end + 1, tokenizer.end


def pretrained_tokenizer(name: str) -> tuple[Tokenizer, int, int]:
    """Of a T5 in a folder or on the hub: `tokenizer.json` and the numbers in `config.json`."""
    from tokenizers import Tokenizer as Library
    from transformers import T5Config

    from ..tokenizer import Pretrained

    folder = Path(name)
    try:
        config: Any = T5Config.from_pretrained(name)
        local = folder.is_dir()
        found = Library.from_file(str(folder / "tokenizer.json")) if local else Library.from_pretrained(name)
        end, start, vocabulary = config.eos_token_id, config.decoder_start_token_id, config.vocab_size
    except Exception as error:  # of the hub's own classes, and of tokenizers' Rust
        lacking = [file for file in ("config.json", "tokenizer.json") if not (folder / file).is_file()]
        reason = " ".join(str(error).split())[:160]
        what = f"it has no {lacking[0]}" if folder.is_dir() and lacking else reason
        remedy = "give a folder with all of the model's files, or go online once"
        raise UserError(f"the tokenizer cannot be loaded ({what})", f"--pretrained {name}", remedy) from error
    return Pretrained(found.to_str(), end), vocabulary, start


def check_known(tokenizer: Any, texts: dict[str, Texts]) -> None:
    """Raises `UserError` for the first symbol that training has not."""
    for split in ("validation", "test"):
        for source, target, where in texts[split]:
            if unseen := tokenizer.unseen(source) + tokenizer.unseen(target):
                what = f"{split} has {unseen[0]!r}, which no training pair has"
                remedy = "--unknown makes one token of all such symbols, --tokenizer byte knows all"
                raise UserError(what, where, remedy)


def padding(samples: Any, settings: Any, kind: str) -> list[float]:
    """Shares of source and target places that are padding, in the batches of an epoch of training."""
    from ..engine.order import Order

    order = samples.orders.get(kind, Order)(len(samples), settings)
    order.kind = kind
    places = Counter[str]()
    for numbers, _ in order.batches(0):
        for name, spans in samples.spans(numbers[numbers >= 0], 0).items():
            places[name] += spans.width * len(spans.lengths)
            places[f"{name} kept"] += int(spans.lengths.sum())
    return [1 - places[f"{name} kept"] / places[name] for name in ("source", "target")]
