"""Turn conversations into the prepared dataset of tokens that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..engine.runs import typed_path
from ..prepare.splits import SPLITS, print_next, split_shares, split_sizes


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        type=typed_path,
        metavar="PATH",
        help=".jsonl (also compressed) or .parquet, or a folder, with a conversation a row: columns"
        " messages, conversations, prompt and completion, instruction and output, or text",
    )
    add(
        "--validation",
        type=typed_path,
        metavar="FILE",
        help="file with the validation conversations, so that --input is not split",
    )
    add("--test", type=typed_path, metavar="FILE", help="file with the test conversations")
    add(
        "--max-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="maximum number of tokens of a conversation (default: %(default)s)",
    )
    add(
        "--too-long",
        choices=["cut", "skip"],
        default="cut",
        help="cut longer conversations at their end, or leave them out (default: cut)",
    )
    text = "refuse the first conversation that would be left out or cut"
    add("--strict", action="store_true", help=text)
    add(
        "--split",
        default="0.9,0.05,0.05",
        metavar="TRAIN,VALIDATION,TEST",
        help="fractions that add up to 1, or numbers of conversations; test may be 0 (default: "
        "%(default)s)",
    )
    seed = "seed of the shuffle before the split (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=seed)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read conversations, render them with the model's template, and write the tokens."""
    from ..dataset import ChatWriter
    from ..engine.loading.store import StoreWriter, check_folder
    from ..prepare.conversations import LeftOut, files_with_rows, read_chats
    from ..settings import WORKLOAD
    from ..texts import Seen, decoding

    check(arguments)
    settings = load()
    inputs = (arguments.input, arguments.validation, arguments.test)
    folder = check_folder(settings.data.path, *inputs)
    tokenizer = tokenizer_of(settings.model.pretrained, arguments.max_tokens)
    paths = [Path(path) for path in inputs if path]
    files = [file for path in paths for file in files_with_rows(path)]
    seen = Seen()
    left_out = LeftOut(arguments.strict)
    ends = [0]
    with StoreWriter(folder, WORKLOAD) as writer, decoding("", files):
        cuts = arguments.too_long == "cut"
        chats = ChatWriter(writer, tokenizer, arguments.max_tokens, cuts, left_out.add)
        for path in paths:
            chats.write(read_chats(path, seen, left_out))
            if len(chats.places) == ends[-1]:
                reasons = (
                    "; ".join(left_out.lines()) or "the file is empty, or has only copies of others"
                )
                remedy = "see `prepare --help` for the columns that it reads"
                raise UserError(f"no conversation is left: {reasons}", str(path), remedy)
            ends.append(len(chats.places))
        order, splits = split_chats(arguments, ends)
        chats.finish(order, splits)
        model = settings.model.pretrained
        writer.source = {
            "file": paths[0].name,
            "copies": seen.num_copies,
            "model": model,
        }
    report(chats, splits, left_out, seen.num_copies)
    print_next(folder)


def check(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for invalid flags before any file is read."""
    split_shares(arguments.split)
    if arguments.test and not arguments.validation:
        what = "a test file, but no validation file"
        raise UserError(what, "--test", "add --validation, too")
    if arguments.max_tokens < 2:
        raise UserError("a conversation needs two tokens", "--max-tokens", "use 2 or more")
    if arguments.seed < 0:
        raise UserError(f"a seed cannot be {arguments.seed}", "--seed", "use 0 or more")


def tokenizer_of(pretrained: str, max_tokens: int) -> Any:
    """Return the tokenizer of the pretrained model, or of bytes; or raise `UserError`."""
    from ..pretrained import Architecture, model_folder, read_object
    from ..tokenizer import byte_tokenizer, read_tokenizer

    if not pretrained:
        return byte_tokenizer()
    folder = model_folder(pretrained)
    where = str(folder / "config.json")
    architecture = Architecture.of(read_object(folder / "config.json"), where)
    tokenizer = read_tokenizer(folder)
    if tokenizer.vocabulary > architecture.vocabulary:
        sizes = f"{tokenizer.vocabulary:,} tokens, and the model knows {architecture.vocabulary:,}"
        remedy = "use the tokenizer.json that belongs to the model"
        raise UserError(f"the tokenizer has {sizes}", where, remedy)
    if max_tokens > architecture.context:
        what = f"the model sees {architecture.context:,} tokens at most"
        raise UserError(what, f"--max-tokens {max_tokens}", "lower it")
    return tokenizer


def split_chats(arguments: argparse.Namespace, ends: list[int]) -> tuple[Any, dict[str, list[int]]]:
    """Return the order of the conversations, and the borders of the splits in it.

    ends: how many conversations the first files have, from 0 on.
    """
    import numpy as np

    order = np.arange(ends[-1])
    if not arguments.validation:
        order = np.random.default_rng(arguments.seed).permutation(ends[-1])
        sizes = split_sizes(arguments.split, ends[-1], rounded=1)
        ends = [0, *np.cumsum(sizes).tolist()]
    ends = ends + [ends[-1]] * (4 - len(ends))
    splits = {split: ends[place : place + 2] for place, split in enumerate(SPLITS)}
    return order, splits


def report(chats: Any, splits: dict[str, list[int]], left_out: Any, num_copies: int) -> None:
    """Print a summary of the conversations and the tokens."""
    sizes = [f"{last - first:,} {name}" for name, (first, last) in splits.items()]
    print(f"{'conversations:':15}{', '.join(sizes)}")
    fraction = chats.num_answers / max(chats.num_tokens, 1)
    print(f"{'tokens:':15}{chats.num_tokens:,}, of which {fraction:.0%} are to be predicted")
    notes = [*left_out.lines()]
    if num_copies:
        notes.append(f"left out, copies of others: {num_copies:,}")
    if chats.num_hidden:
        what = "not predicted, as the template shows them in another way once others follow"
        notes.append(f"answers {what}: {chats.num_hidden:,}")
    for text in notes:
        print(f"{'note:':15}{text}")
    print_chats(chats)


def print_chats(chats: Any) -> None:
    """Print three conversations: what the model sees of each, and what it is to predict."""
    from ..engine.loading.store import Store

    arrays = Store.open(chats.writer.folder).arrays
    decode = chats.tokenizer.library.decode
    last = len(chats.places) - 1
    for number in sorted({0, last // 2, last}):
        first, length = chats.places[number]
        tokens = arrays["tokens"].rows()[first : first + length]
        is_answer = arrays["answer"].rows()[first : first + length]
        seen = decode(tokens[~is_answer].tolist(), skip_special_tokens=False)
        predicted = decode(tokens[is_answer].tolist(), skip_special_tokens=False)
        print(f"conversation {number + 1}: sees {seen[:100]!r}, predicts {predicted[:100]!r}")
