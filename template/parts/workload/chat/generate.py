"""Ask a trained run: one question, the questions of a file, or in a chat."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..engine.files import replacing
from ..engine.runs import typed_path
from ..trained import add_flags, add_sampling_flags, check_sampling, open_run

Message = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `generate`."""
    add = parser.add_argument
    add("--prompt", metavar="TEXT", help="question to answer (default: a chat in the terminal)")
    text = "text file with a question a line, or file as for `prepare`, without its last answers"
    add("--input", type=typed_path, metavar="FILE", help=text)
    text = "JSONL to write, with the messages of each conversation (default: print the answers)"
    add("--output", type=typed_path, metavar="FILE", help=text)
    add("--system", metavar="TEXT", help="system message before the question")
    add_sampling_flags(parser, tokens=256, temperature=0)
    add_flags(parser, split=False)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Print or write the answers, or chat until the end of the input."""
    check_choices(arguments)
    _, project, _ = open_run(arguments, load, needs_data=False)

    from ..tokenizer import restore

    tokenizer = restore(project.store.facts["tokenizer"])
    rows = []
    for messages, more in questions(arguments):
        text = reply(project, tokenizer, messages, more, arguments)
        messages.append({"role": "assistant", "content": text})
        if arguments.output:
            rows.append(json.dumps({"messages": messages, **more}, ensure_ascii=False) + "\n")
        else:
            print(text)
    if arguments.output:
        with replacing(Path(arguments.output)) as file:
            file.write("".join(rows).encode())
        print(f"written to: {arguments.output}")


def questions(arguments: argparse.Namespace) -> Iterator[tuple[list[Message], dict[str, Any]]]:
    """Yield conversations that end with a question; without one, a growing one of the terminal.

    Next to the messages are the other inputs of the template, such as tools.
    """
    from ..prepare.conversations import read_questions

    messages = []
    if arguments.system is not None:
        messages.append({"role": "system", "content": arguments.system})
    if arguments.input:
        for asked in read_questions(Path(arguments.input)):
            yield [*messages, *asked.messages], asked.more
    elif arguments.prompt is not None:
        yield [*messages, {"role": "user", "content": arguments.prompt}], {}
    else:
        with suppress(EOFError):
            while True:
                messages.append({"role": "user", "content": input("> ")})
                yield messages, {}


def reply(
    project: Any,
    tokenizer: Any,
    messages: list[Message],
    more: dict[str, Any],
    arguments: argparse.Namespace,
) -> str:
    """Return the assistant's next turn.

    Raises `UserError` if the template rejects the others, or if the model does not see all of them.
    """
    import torch

    from ..tokenizer import Rejected

    try:
        text = tokenizer.render(messages, answers=True, **more)
    except Rejected as error:
        what = f"the chat template rejects the conversation ({error})"
        raise UserError(what, "generate", "ask in the order that the model knows") from error
    tokens = tokenizer.encode([text])[0].tokens
    context = project.model.sizes.context
    if len(tokens) >= context:
        what = f"a conversation of {len(tokens):,} tokens, and the model sees {context:,}"
        raise UserError(what, "generate", "shorten it, or begin a new one")
    with torch.inference_mode(), project.precision.autocast():
        added = project.model.generate(
            tokens,
            min(arguments.tokens, context - len(tokens)),
            tokenizer.ends,
            arguments.temperature,
            arguments.top_k or 0,
            arguments.seed,
        )
    decoded: str = tokenizer.decode(added)
    return decoded


def check_choices(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for a value that cannot be used."""
    from ..texts import check_text

    check_text(arguments.prompt or "", "--prompt")
    check_text(arguments.system or "", "--system")
    if arguments.prompt is not None and arguments.input:
        raise UserError("two sources of questions", "--prompt, --input", "choose one")
    if arguments.output and arguments.prompt is None and not arguments.input:
        raise UserError("a chat is not written", "--output", "add --prompt or --input")
    check_sampling(arguments, least_tokens=1)
