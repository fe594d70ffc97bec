"""Let a trained run continue a text."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..engine.runs import find_run, typed_path, typed_run
from .evaluate import add_weights, open_run, write_output

COLDEST = 1e-3  # logits over less leave the range of fp32, and 0 says the same


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `generate`."""
    add = parser.add_argument
    add(
        "--prompt", default="", metavar="TEXT", help="how the text begins (default: a new document)"
    )
    add("--tokens", type=int, default=200, metavar="N", help="how many to add (default: 200)")
    spread = "0 is the likeliest token each time, 1 the model's own spread (default: 0.8)"
    add("--temperature", type=float, default=0.8, metavar="X", help=spread)
    likeliest = "draw from the N likeliest tokens only (default: all)"
    add("--top-k", type=int, default=0, metavar="N", help=likeliest)
    add(
        "--seed", type=int, default=0, metavar="N", help="the same seed, the same text (default: 0)"
    )
    add(
        "--run", type=typed_run, metavar="RUN", help="name or path of the run (default: the newest)"
    )
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add_weights(parser)
    add("--output", type=typed_path, metavar="FILE", help="write the text there too")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Print prompt and continuation, up to the end of the document that the model writes."""
    check(arguments)
    folder = find_run(arguments.run)
    settings = load(folder / "config.resolved.yaml")
    project, _ = open_run(folder, settings, arguments, needs_data=False)

    import torch

    from ..tokenizer import restore

    tokenizer = restore(project.store.facts["tokenizer"])
    # A document's end comes before each new one, so that is how a text begins.
    try:
        prompt = [tokenizer.end, *tokenizer.encode(os.fsencode(arguments.prompt)).tolist()]
    except UnicodeDecodeError:
        remedy = f"tokenizer {tokenizer.kind} needs it"
        raise UserError("not UTF-8 text", "--prompt", remedy) from None

    given = torch.tensor([prompt], device=project.device)
    with torch.inference_mode(), project.precision.autocast():
        tokens = project.model.generate(
            given, arguments.tokens, arguments.temperature, arguments.top_k, arguments.seed
        )
    added = tokens[0, len(prompt) :].tolist()
    if tokenizer.end in added:
        added = added[: added.index(tokenizer.end)]
    text = tokenizer.decode(prompt + added)
    print(text.decode("utf-8", "replace"))
    if arguments.output:
        write_output(Path(arguments.output), text + b"\n")


def check(arguments: argparse.Namespace) -> None:
    """Raises `UserError` for numbers that are out of range."""
    numbers = {"tokens": arguments.tokens, "top-k": arguments.top_k, "seed": arguments.seed}
    for name, value in numbers.items():
        if value < 0:
            raise UserError(f"a negative number {value}", f"--{name}", "give 0 or more")
    temperature = arguments.temperature
    if not (temperature == 0 or COLDEST <= temperature < float("inf")):
        remedy = f"give 0, or {COLDEST} or more"
        raise UserError(f"temperature {temperature}", "--temperature", remedy)
    if arguments.seed >= 2**64:
        what = f"a seed of {len(str(arguments.seed))} digits"
        raise UserError(what, "--seed", "give one below 2 to the 64")
