"""Predict targets with a trained run: for a split of the prepared dataset, or for new sources."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import replacing
from ..engine.runs import typed_path
from ..prepare.pairs import read_texts
from ..texts import check_text, decoding
from ..trained import add_flags, open_run, output_path

if TYPE_CHECKING:
    from ..engine.interfaces import Batch
    from ..engine.loading.loader import Loader
    from ..engine.loading.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    output = ".jsonl (default: predictions.jsonl in the run's folder)"
    add_flags(parser, output=output)
    add = parser.add_argument
    new = parser.add_mutually_exclusive_group()
    new.add_argument(
        "--input",
        type=typed_path,
        metavar="FILE",
        help="new sources: lines of text (up to the first tab), .csv, .jsonl or .parquet",
    )
    new.add_argument(
        "--text",
        metavar="TEXT",
        help="a single source, whose prediction is printed; --output also writes it",
    )
    add(
        "--source-key",
        metavar="NAME",
        help="field or column with the source (default: as in `prepare`)",
    )
    meaning = "encoding of the texts (default: as in `prepare`)"
    add("--encoding", metavar="NAME", help=meaning)
    add(
        "--beams",
        type=int,
        default=1,
        metavar="N",
        help="beams of the search; 1 decodes greedily (default: 1)",
    )
    add(
        "--max-tokens",
        type=int,
        default=0,
        metavar="N",
        help="maximum length of a prediction (default: as in training)",
    )


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write a JSON object with source and prediction for each pair, and with target for a split."""
    from ..engine.loading.store import Store

    if arguments.beams < 1 or arguments.max_tokens < 0:
        what = "invalid number of beams or tokens"
        raise UserError(what, "--beams, --max-tokens", "use 1 or more")

    is_new = arguments.input or arguments.text is not None
    folder, project, step = open_run(arguments, load, needs_data=not is_new)
    sources = read_sources(arguments, project.store.source)
    output = output_path(arguments, folder, ".jsonl")
    with tempfile.TemporaryDirectory() as temporary:
        if sources:
            new_sources(sources, project.store, Path(temporary))
            project = replace(project, store=Store.open(Path(temporary)))
        loader = project.loader("input" if sources else arguments.split)
        rows = predict(project, loader, arguments)
    if sources:
        rows = [
            {"source": source, "prediction": row["prediction"]}
            for source, row in zip(sources, rows, strict=True)
        ]
    if arguments.text is not None:
        print(rows[0]["prediction"])
        if not arguments.output:
            return
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    with replacing(output) as file:
        file.write("".join(lines).encode())
    print(f"{len(rows):,} predictions of step {step} written to {output}")


def read_sources(arguments: argparse.Namespace, style: dict[str, Any]) -> list[str]:
    """Return new sources, or an empty list to predict a split.

    style: how the files of `prepare` were written.
    """
    if arguments.text is not None:
        check_text(arguments.text, "--text")
        return [arguments.text]
    if arguments.input is None:
        return []
    key = arguments.source_key or style.get("source_key", "source")
    encoding = arguments.encoding or style.get("encoding", "")
    with decoding(encoding, [Path(arguments.input)]):
        sources = [texts[0] for _, texts in read_texts(arguments.input, encoding, key)]
    if not sources:
        raise UserError("no source in the file", arguments.input, "provide one that is not empty")
    return sources


def new_sources(sources: list[str], trained: Store, folder: Path) -> None:
    """Write new sources as a dataset into `folder`, with the metadata of the training data.

    Long sources are cut to the training limit.
    """
    from ..dataset import tokenize, write
    from ..tokenizer import restore

    facts = trained.facts
    tokenizer = restore(facts["tokenizer"])
    pairs = []
    num_cut = 0
    for text in sources:
        pair, (is_cut, _) = tokenize(tokenizer, facts["prefix"] + text, "", facts["limits"])
        pairs.append(pair)
        num_cut += is_cut
    if num_cut:
        print(f"note: {num_cut:,} sources cut to {facts['limits'][0]:,} tokens")
    write(folder, tokenizer, {"input": pairs}, facts)


def predict(project: Any, loader: Loader, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Return `source`, `prediction` and `target` of each pair, in the order of the dataset."""
    from tqdm import tqdm

    from ..engine.training.evaluation import predictions
    from ..tokenizer import restore, text_of

    tokenizer = restore(project.store.facts["tokenizer"])
    longest = arguments.max_tokens or project.store.facts["longest"]

    def answer(batch: Batch) -> dict[str, Any]:
        source = batch["source"]
        present = batch["source_present"]
        return {"prediction": project.model.generate(source, present, longest, arguments.beams)}

    rows: dict[int, dict[str, str]] = {}
    names = ("index", "source", "targets")
    pairs = predictions(project, loader, names, answer)
    for batch, answered in tqdm(pairs, "predicting", len(loader), leave=False, disable=None):
        tensors = {"source": batch["source"], **answered, "target": batch["targets"]}
        tokens = {name: tensor.tolist() for name, tensor in tensors.items()}
        for place, number in enumerate(batch["index"].tolist()):
            row = {name: text_of(tokenizer, lists[place]) for name, lists in tokens.items()}
            rows[number] = row
    loader.close()
    return [rows[number] for number in sorted(rows)]
