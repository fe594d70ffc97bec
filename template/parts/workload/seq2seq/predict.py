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
from ..engine.runs import find_run, typed_path
from ..prepare.pairs import is_header
from ..texts import check_text, has_rows, lines, rows
from ..trained import add_flags, open_run, output_path, write_output

if TYPE_CHECKING:
    from ..engine.data.loader import Loader
    from ..engine.data.store import Store
    from ..engine.interfaces import Batch


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    output = ".tsv or .jsonl (default: predictions.tsv in the run's folder)"
    add_flags(parser, output=output)
    add = parser.add_argument
    add(
        "--input",
        type=typed_path,
        metavar="FILE",
        help="new sources: .tsv (the text before the first tab), .jsonl, .parquet or .txt",
    )
    add(
        "--text",
        metavar="TEXT",
        help="a single source, whose prediction is printed; --output also writes it",
    )
    add(
        "--source-key",
        default="source",
        metavar="NAME",
        help="field of .jsonl or .parquet with the source (default: source)",
    )
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


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write a line with source and prediction for each pair, and with target for a split.

    Each line of `--input` has a line; the prediction of a source without text is empty.
    """
    from ..engine.data.store import Store

    folder = find_run(arguments.run)
    output = output_path(arguments.output, folder / "predictions.tsv", ".tsv", ".jsonl")
    if arguments.beams < 1 or arguments.max_tokens < 0:
        what = "invalid number of beams or tokens"
        raise UserError(what, "--beams, --max-tokens", "use 1 or more")

    sources = read_sources(arguments)
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not sources)
    with tempfile.TemporaryDirectory() as temporary:
        if sources:
            new_sources([text for text in sources if text.strip()], project.store, Path(temporary))
            project = replace(project, store=Store.open(Path(temporary)))
        loader = project.loader("input" if sources else arguments.split)
        rows = predict(project, loader, arguments)
    if sources:
        predicted = iter(rows)
        rows = []
        for text in sources:
            prediction = next(predicted)["prediction"] if text.strip() else ""
            rows.append({"source": text, "prediction": prediction})
    if arguments.text is not None:
        print(rows[0]["prediction"])
        if not arguments.output:
            return
    as_line = as_tab if output.suffix == ".tsv" else as_json
    write_output(output, "".join(as_line(row) + "\n" for row in rows).encode())
    print(f"{len(rows):,} predictions of step {step} written to {output}")


def read_sources(arguments: argparse.Namespace) -> list[str]:
    """Return new sources, or an empty list to predict a split."""
    if arguments.text is not None:
        if arguments.input:
            raise UserError("both --text and --input", "command line", "use one of them")
        check_text(arguments.text, "--text")
        if not arguments.text.strip():
            raise UserError("no text", "--text", "give a source: a prediction would mean nothing")
        return [arguments.text]
    if arguments.input is None:
        return []
    path = Path(arguments.input)
    sources = []
    if has_rows(path):
        for _, (text,) in rows(path, (arguments.source_key,), "name the field with --source-key"):
            sources.append(text)
    else:
        has_targets = ".tsv" in path.suffixes[-2:]
        for number, line in lines(path, keep_blank=True):
            cells = line.split("\t")
            if has_targets and number == 1 and is_header(cells, arguments.source_key):
                print(f"note: the first line of {path} is a header, without a prediction: {line!r}")
            else:
                sources.append(cells[0] if has_targets else line)
    num_blank = sum(not text.strip() for text in sources)
    if num_blank == len(sources):
        raise UserError("no source in the file", str(path), "provide a file that is not empty")
    if num_blank:
        print(f"note: sources without text, which have an empty prediction: {num_blank:,}")
    return sources


def new_sources(sources: list[str], trained: Store, folder: Path) -> None:
    """Write new sources as a dataset into `folder`, with the metadata of the training data.

    Long sources are cut to the training limit. Raises `UserError` for symbols that training does
    not know, unless `prepare` had the flag `--unknown`.
    """
    from ..dataset import tokenize, write
    from ..tokenizer import restore

    facts = trained.facts
    tokenizer = restore(facts["tokenizer"])
    check_known(sources, tokenizer, trained)

    pairs = []
    num_cut = 0
    for text in sources:
        pair, (is_cut, _) = tokenize(tokenizer, facts["prefix"] + text, "", facts["limits"])
        pairs.append(pair)
        num_cut += is_cut
    if num_cut:
        print(f"note: {num_cut:,} sources cut to {facts['limits'][0]:,} tokens")
    write(folder, tokenizer, {"input": pairs}, facts)


def check_known(sources: list[str], tokenizer: Any, trained: Store) -> None:
    """Print the symbols that are new. Raises `UserError` if training had no unknown symbol."""
    if not hasattr(tokenizer, "unseen"):  # bytes and byte pairs can encode every text
        return
    unseen = sorted({symbol for text in sources for symbol in tokenizer.unseen(text)})
    if not unseen:
        return
    what = f"symbols that are in no training pair: {', '.join(map(repr, unseen[:5]))}"
    if not trained.source.get("unknown", True):
        remedy = "remove them, or run prepare with --unknown and train again"
        raise UserError(what, "--text, --input", remedy)
    print(f"note: {what}; the model sees them all as one unknown symbol")


def predict(project: Any, loader: Loader, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Return `source`, `prediction` and `target` of each pair, in the order of the dataset."""
    from tqdm import tqdm

    from ..engine.run.evaluation import predictions
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


def as_json(row: dict[str, str]) -> str:
    return json.dumps(row, ensure_ascii=False)


def as_tab(row: dict[str, str]) -> str:
    """Join the texts with tabs; tabs and newlines inside a text become spaces."""
    return "\t".join(" ".join(value.replace("\t", " ").splitlines()) for value in row.values())
