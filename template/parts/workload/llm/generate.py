"""Continue a text with a trained run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..engine.files import replacing
from ..engine.runs import typed_path
from ..trained import add_flags, open_run

COLDEST = 1e-3  # logits divided by less overflow fp32, and the result would be that of 0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `generate`."""
    add = parser.add_argument
    add("--prompt", default="", metavar="TEXT", help="text to continue (default: a new document)")
    add("--tokens", type=int, default=200, metavar="N", help="tokens to generate (default: 200)")
    spread = "0 always takes the most likely token, 1 samples from the model (default: 0.8)"
    add("--temperature", type=float, default=0.8, metavar="X", help=spread)
    likeliest = "sample only from the N most likely tokens (default: all)"
    add("--top-k", type=int, metavar="N", help=likeliest)
    add("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default: 0)")
    add_flags(parser, split=False)
    add("--output", type=typed_path, metavar="FILE", help="also write the text to this file")


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Print the prompt and its continuation, up to the end of the document."""
    check_choices(arguments)
    _, project, _ = open_run(arguments, load, needs_data=False)

    import torch

    from ..tokenizer import restore

    tokenizer = restore(project.store.facts["tokenizer"])

    # In the training data, each document follows the end of another, so the prompt does, too.
    prompt = [tokenizer.end, *tokenizer.encode(arguments.prompt.encode()).tolist()]
    given = torch.tensor([prompt], device=project.device)
    with torch.inference_mode(), project.precision.autocast():
        tokens = project.model.generate(
            given, arguments.tokens, arguments.temperature, arguments.top_k or 0, arguments.seed
        )
    added = tokens[0, len(prompt) :].tolist()
    if tokenizer.end in added:
        added = added[: added.index(tokenizer.end)]
    text = tokenizer.decode(prompt + added)
    print(text.decode("utf-8", "replace"))
    if arguments.output:
        with replacing(Path(arguments.output)) as file:
            file.write(text + b"\n")


def check_choices(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for a value that cannot be used."""
    from ..texts import check_text

    check_text(arguments.prompt, "--prompt")
    ranges = {
        "tokens": arguments.tokens >= 0,
        "seed": 0 <= arguments.seed < 2**64,
        "top-k": arguments.top_k is None or arguments.top_k >= 1,
        "temperature": arguments.temperature == 0 or COLDEST <= arguments.temperature < math.inf,
    }
    for name, is_valid in ranges.items():
        if not is_valid:
            raise UserError("a number out of its range", f"--{name}", "see generate --help")
