"""Continue a text with a trained run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.files import replacing
from ..engine.runs import typed_path
from ..trained import add_flags, add_sampling_flags, check_sampling, open_run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `generate`."""
    add = parser.add_argument
    add("--prompt", default="", metavar="TEXT", help="text to continue (default: a new document)")
    add_sampling_flags(parser, tokens=200, temperature=0.8)
    add_flags(parser, split=False)
    add("--output", type=typed_path, metavar="FILE", help="also write the text to this file")


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Print the prompt and its continuation, up to the end of the document."""
    from ..texts import check_text

    check_text(arguments.prompt, "--prompt")
    check_sampling(arguments, least_tokens=0)
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
