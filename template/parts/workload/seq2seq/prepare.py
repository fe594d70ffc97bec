"""Turn pairs of texts into the tokens that training reads."""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError

if TYPE_CHECKING:
    from ..bytepairs import Tokenizer
    from ..dataset import Pair

BYTES = 257  # the smallest vocabulary of byte pairs: all bytes, and the end of a text
Text = tuple[str, str, str]
"""Source, target, and where they stand."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add("--input", required=True, metavar="FILE", help="pairs: .tsv (source TAB target) or .jsonl, also .gz")
    add("--validation", metavar="FILE", help="pairs that validate; then --input is not split")
    add("--test", metavar="FILE", help="pairs that test, beside --validation")
    add("--source-key", default="source", metavar="NAME", help="of .jsonl (default: source)")
    add("--target-key", default="target", metavar="NAME", help="of .jsonl (default: target)")
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
    add(
        "--too-long",
        choices=["cut", "skip", "refuse"],
        default="cut",
        help="what happens to longer ones (default: cut)",
    )
    add(
        "--split",
        default="0.9,0.05,0.05",
        metavar="TRAIN,VALIDATION,TEST",
        help="shares that add up to 1, or numbers of pairs; test may be 0 (default: %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the shuffle before the split (default: 0)")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads all pairs, learns the tokenizer from the training ones, writes tokens; says what was cut."""
    from tqdm import tqdm

    from ..dataset import Samples, tokenize, write
    from ..engine.files import writable_folder
    from ..engine.store import Store

    settings = load()
    folder, limits = Path(settings.data.path), (arguments.max_source, arguments.max_target)
    check(arguments)
    texts, copies = split_texts(arguments)
    tokenizer, vocabulary, start = make_tokenizer(arguments, texts["train"])
    if arguments.tokenizer in ("char", "space") and not arguments.unknown:
        check_known(tokenizer, texts)
    counts: Counter[str] = Counter()
    splits: dict[str, list[Pair]] = {}
    for split, rows in texts.items():
        kept = splits[split] = []
        for source, target, where in tqdm(rows, split, unit="pair", leave=False, disable=None):
            pair, cut = tokenize(tokenizer, arguments.prefix + source, target, limits)
            for side, limit, long in zip(("source", "target"), limits, cut, strict=True):
                counts[f"{split}: long {side}s"] += long
                if long and arguments.too_long == "refuse":
                    remedy = f"raise --max-{side}, or use --too-long cut or skip"
                    raise UserError(f"a {side} of more than {limit} tokens", where, remedy)
            if any(cut) and arguments.too_long == "skip":
                counts["skipped"] += 1
            else:
                kept.append(pair)
        if not kept and (split != "test" or rows):
            raise UserError(f"no pair is left for {split}", where_of(arguments, split), "give it one")
    facts = {"vocabulary": vocabulary, "start": start, "prefix": arguments.prefix, "limits": list(limits)}
    source = {"file": Path(arguments.input).name, "pairs": sum(map(len, texts.values())), "copies": copies}
    write(writable_folder(folder, "choose another data.path"), tokenizer, splits, facts, source)
    say = lambda title, line: print(f"{title + ':':14}{line}")  # noqa: E731
    say("pairs", ", ".join(f"{len(kept):,} {split}" for split, kept in splits.items()))
    if copies:
        say("left out", f"{copies:,} copies of a pair that is there already")
    for title, count in sorted(counts.items()):
        if count:
            done = "skipped" if arguments.too_long == "skip" else "cut"
            say(title if title == "skipped" else done, f"{count:,} pairs" if title == "skipped" else f"{count:,} {title}")
    say("vocabulary", f"{vocabulary:,} ({tokenizer.kind})")
    samples = Samples(Store.open(folder), settings, "train")
    for kind in ("bucket", "full"):
        shares = padding(samples, settings, kind)
        say("padding", f"{shares[0]:.0%} of source, {shares[1]:.0%} of target places in order {kind}")
    say("written to", str(folder))


def check(arguments: argparse.Namespace) -> None:
    """Raises `UserError` for flags that are wrong alone or together."""
    if arguments.tokenizer == "bpe" and arguments.vocabulary <= BYTES:
        where = f"--vocabulary {arguments.vocabulary}"
        raise UserError(f"byte pairs need a vocabulary above {BYTES}", where, "give more, such as 8192")
    if (arguments.tokenizer == "pretrained") != (arguments.pretrained is not None):
        what = "--tokenizer pretrained and --pretrained belong together"
        raise UserError(what, "command line", "give both, such as --pretrained google-t5/t5-base, or none")
    if arguments.test and not arguments.validation:
        raise UserError("a file to test and none to validate", "--test", "give --validation too")
    for name in ("max_source", "max_target"):
        if getattr(arguments, name) < 2:
            flag = f"--{name.replace('_', '-')} {getattr(arguments, name)}"
            raise UserError("a text has a token and its end", flag, "give 2 or more")
    if arguments.seed < 0:
        raise UserError(f"a seed cannot be {arguments.seed}", "--seed", "give a whole number from 0 on")


def where_of(arguments: argparse.Namespace, split: str) -> str:
    """Where a split comes from."""
    if not arguments.validation:
        return f"{arguments.input}, --split {arguments.split}"
    return {"train": arguments.input, "validation": arguments.validation, "test": arguments.test}[split]


def split_texts(arguments: argparse.Namespace) -> tuple[dict[str, list[Text]], int]:
    """The pairs of each split, each pair once; and how many copies were left out.

    A copy in another split would let a model pass by heart.
    """
    names = ("train", "validation", "test")
    keys, files = (arguments.source_key, arguments.target_key), (arguments.input,)
    if arguments.validation:
        files = (arguments.input, arguments.validation, *([arguments.test] if arguments.test else []))
    seen: set[tuple[str, str]] = set()
    found: list[list[Text]] = []
    count = 0
    for file in files:
        rows = []
        for text in read_pairs(Path(file), *keys):
            count += 1
            if text[:2] not in seen:
                seen.add(text[:2])
                rows.append(text)
        found.append(rows)
    copies = count - len(seen)
    if arguments.validation:
        return {name: rows for name, rows in zip(names, [*found, []], strict=False)}, copies
    import numpy as np

    (rows,) = found
    order = np.random.default_rng(arguments.seed).permutation(len(rows)).tolist()
    splits, first = {}, 0
    for name, size in zip(names, split_sizes(arguments.split, len(rows)), strict=True):
        splits[name] = [rows[number] for number in order[first : first + size]]
        first += size
    return splits, copies


def read_pairs(path: Path, source_key: str, target_key: str) -> Iterator[Text]:
    """The pairs of a file. Raises `UserError`, with the line, for what is no pair."""
    if "".join(path.suffixes[-2:]).removesuffix(".gz") not in (".tsv", ".jsonl"):
        raise UserError("pairs come from .tsv or .jsonl, also .gz", str(path), "rename or convert the file")
    parse = parse_json if ".jsonl" in path.suffixes[-2:] else parse_tab
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        source, target = parse(line, where, source_key, target_key)
        for name, text in (("source", source), ("target", target)):
            if not text.strip():
                raise UserError(f"the {name} is empty", where, "fill it in, or take the line out")
        yield source, target, where


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not blank, of a plain or gzipped UTF-8 file."""
    from tqdm import tqdm

    number = 0
    try:
        with open(path, "rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            for number, line in enumerate(tqdm(file, path.name, unit="line", leave=False, disable=None), 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if text:
                    yield number, text
    except UnicodeDecodeError as error:
        where = f"{path}, line {number}, byte {error.start}"
        raise UserError("not UTF-8 text", where, "convert the file to UTF-8") from error
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"cannot read the file ({error})", str(path), "check the path and the file") from error


def parse_tab(line: str, where: str, *_: str) -> tuple[str, str]:
    parts = line.split("\t")
    if len(parts) != 2:
        what = "no tab between source and target" if len(parts) == 1 else f"{len(parts) - 1} tabs in a pair"
        raise UserError(what, where, "write one pair a line: source, one tab, target")
    return parts[0], parts[1]


def parse_json(line: str, where: str, *keys: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
        source, target = (row[key] for key in keys)
    except (ValueError, KeyError, TypeError):
        what = f"no JSON object with '{keys[0]}' and '{keys[1]}'"
        raise UserError(what, where, "mend it, or name the keys by --source-key and --target-key") from None
    if not (isinstance(source, str) and isinstance(target, str)):
        raise UserError("source and target must be texts", where, "put them between quotes")
    return source, target


def make_tokenizer(arguments: argparse.Namespace, train: list[Text]) -> tuple[Tokenizer, int, int]:
    """The tokenizer that is asked for, learnt from the training pairs; its vocabulary; the decoder's first token."""
    from ..bytepairs import Byte, Pairs
    from ..tokenizer import Symbols

    if arguments.tokenizer == "pretrained":
        return pretrained_tokenizer(arguments.pretrained)
    prefix = arguments.prefix
    texts = (text for source, target, _ in train for text in (prefix + source, target))
    tokenizer: Tokenizer
    if arguments.tokenizer == "byte":
        tokenizer = Byte()
    elif arguments.tokenizer == "bpe":
        tokenizer = Pairs.learn(texts, arguments.vocabulary)
    else:
        tokenizer = Symbols.learn(arguments.tokenizer, texts)
    return tokenizer, tokenizer.end + 1, tokenizer.end


def pretrained_tokenizer(name: str) -> tuple[Tokenizer, int, int]:
    """Of a T5 in a folder or on the hub: `tokenizer.json` and the numbers in `config.json`."""
    import tokenizers
    from transformers import T5Config

    from ..tokenizer import Pretrained

    folder = Path(name)
    for file in ("config.json", "tokenizer.json"):
        if folder.is_dir() and not (folder / file).is_file():
            what = f"the pretrained folder is incomplete: no {file}"
            raise UserError(what, f"--pretrained {name}", "copy all files of the model")
    try:
        config = T5Config.from_pretrained(name)
        if folder.is_dir():
            found = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            found = tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:  # of the hub's own classes, and of tokenizers' Rust
        reason = str(error).strip().partition("\n")[0][:160]
        remedy = "give a folder with the model's files, or go online once"
        raise UserError(f"the tokenizer could not be loaded ({reason})", f"--pretrained {name}", remedy) from error
    tokenizer = Pretrained(found.to_str(), config.eos_token_id)
    return tokenizer, config.vocab_size, config.decoder_start_token_id


def check_known(tokenizer: Any, texts: dict[str, list[Text]]) -> None:
    """Raises `UserError` for the first symbol that training has not."""
    for split in ("validation", "test"):
        for source, target, where in texts[split]:
            if unseen := tokenizer.unseen(source) + tokenizer.unseen(target):
                what = f"{split} has {unseen[0]!r}, which no training pair has"
                remedy = "--unknown makes one token of all such symbols, --tokenizer byte knows all"
                raise UserError(what, where, remedy)


def split_sizes(split: str, count: int) -> list[int]:
    """How many of `count` pairs train, validate and test."""
    try:
        parts = [float(part) for part in split.split(",")]
        parts += [0.0] * (3 - len(parts))
        shares = abs(sum(parts) - 1) < 1e-6
        if len(parts) != 3 or min(parts) < 0 or not (shares or all(part == int(part) for part in parts)):
            raise ValueError
    except (ValueError, OverflowError):
        remedy = "give three shares that add up to 1, such as 0.9,0.05,0.05, or three whole numbers"
        raise UserError(f"'{split}' splits nothing", "--split", remedy) from None
    sizes = [int(part) for part in parts]
    if shares:
        middle, last = round(count * parts[1]), round(count * parts[2])
        sizes = [count - middle - last, middle, last]
    for name, size in zip(("training", "validation"), sizes, strict=False):
        if size < 1:
            raise UserError(f"no pair is left for {name}", f"--split {split}, {count} pairs", "give it one")
    if sum(sizes) > count:
        raise UserError(f"the split needs {sum(sizes)} pairs", f"--split {split}", f"there are {count}")
    return sizes


def padding(samples: Any, settings: Any, kind: str) -> list[float]:
    """Shares of source and target places that are padding, in the batches of an epoch of training."""
    from ..engine.order import Order

    seed, size = settings.reproducibility.seed, settings.data.batch_size
    order = Order(kind, len(samples), size, seed=seed, lengths=samples.lengths())
    places, real = [0, 0], [0, 0]
    for numbers in order.epoch(0)[0]:
        for side, name in enumerate(("source", "target")):
            spans = samples.spans(numbers[numbers >= 0], 0)[name]
            places[side] += spans.width * len(spans.lengths)
            real[side] += int(spans.lengths.sum())
    return [1 - kept / whole for kept, whole in zip(real, places, strict=True)]
