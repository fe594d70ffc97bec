"""The tokenizer and the chat template of a model.

The manifest contains both, so that a run needs no other file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .engine.errors import UserError
from .engine.files import exists
from .pretrained import COPY_AGAIN, read_object

Message = dict[str, Any]
"""`role` and `content`, and whatever else the template reads, such as `tool_calls`."""

# Copier renders this file, so it cannot contain the signs of a template.
CHATML = (
    "[% for message in messages %]<|im_start|>[[ message.role ]]\n"
    "[[ message.content ]]<|im_end|>\n[% endfor %]"
    "[% if add_generation_prompt %]<|im_start|>assistant\n[% endif %]"
)
CHATML = CHATML.replace("[", "{").replace("]", "}")
START = "<|im_start|>"
END = "<|im_end|>"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")  # names that templates know
# Around the number of a special token that a message contains; Unicode has no such characters.
OPEN = "\ufdd0"
CLOSE = "\ufdd1"
UNKNOWN = "\ufffd"
QUOTED = re.compile(f"({OPEN}[0-9]+{CLOSE})")


class Rejected(Exception):
    """The chat template does not accept a conversation."""


class Rendered(NamedTuple):
    """A conversation as the model sees it."""

    text: str
    spans: list[tuple[int, int]]  # where the assistant's answers begin and end in the text
    num_hidden: int = 0  # answers that the template shows in another way once others follow


class Tokens(NamedTuple):
    """The tokens of a text, and where each begins in it."""

    tokens: list[int]
    begins: list[int]


class Tokenizer:
    """Renders conversations, and encodes them with the `tokenizers` library."""

    def __init__(self, facts: dict[str, Any]):
        import tokenizers

        self.facts = facts
        self.ends: list[int] = facts["ends"]  # tokens that end an answer
        self.library = tokenizers.Tokenizer.from_str(facts["definition"])
        self.library.no_truncation()
        self.library.no_padding()
        added = self.library.get_added_tokens_decoder().values()
        self.special = [token.content for token in added if token.special and token.content]

    @property
    def vocabulary(self) -> int:
        return max(self.library.get_vocab().values()) + 1

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.library.decode(list(tokens), skip_special_tokens=True)
        return text

    # --- text to tokens

    def encode(self, texts: list[str]) -> list[Tokens]:
        """Encode texts on all cores. A special token between OPEN and CLOSE is ordinary text."""
        encoded = []
        for text, encoding in zip(texts, self._encode_all(texts), strict=True):
            if OPEN in text:
                encoded.append(self._encode_parts(text))
            else:
                encoded.append(Tokens(encoding.ids, [begin for begin, _ in encoding.offsets]))
        return encoded

    def _encode_parts(self, text: str) -> Tokens:
        tokens: list[int] = []
        begins: list[int] = []
        place = 0
        for part in QUOTED.split(text):
            is_quoted = part.startswith(OPEN)
            content = self.special[int(part[1:-1])] if is_quoted else part
            self.library.encode_special_tokens = is_quoted
            encoding = self._encode_all([content])[0]
            self.library.encode_special_tokens = False
            tokens += encoding.ids
            begins += [place if is_quoted else place + begin for begin, _ in encoding.offsets]
            place += len(part)
        return Tokens(tokens, begins)

    def _encode_all(self, texts: list[str]) -> list[Any]:
        encodings: list[Any] = self.library.encode_batch(texts, add_special_tokens=False)
        return encodings

    # --- conversation to text

    @cached_property
    def template(self) -> Any:
        return compiled(self.facts["template"])

    def render(self, messages: list[Message], answers: bool = False, **more: Any) -> str:
        """Return a conversation as the model sees it. answers: begin the assistant's next turn.

        Raises `Rejected` if the template does not accept it.
        """
        import jinja2

        names = {"tools": None, "documents": None, **self.facts["special"], **more}
        quoted = [self._quoted(message) for message in messages]
        try:
            text: str = self.template.render(
                messages=quoted, add_generation_prompt=answers, **names
            )
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise Rejected(" ".join(str(error).split())[:160]) from error
        return text

    def _quoted(self, message: Message) -> Message:
        """Mark special tokens in the content of a message, so that they stay ordinary text."""
        content = message.get("content")
        if not isinstance(content, str):
            return message
        content = content.replace(OPEN, UNKNOWN)
        for number, token in enumerate(self.special):
            content = content.replace(token, f"{OPEN}{number}{CLOSE}")
        return {**message, "content": content}

    def rendered(self, messages: list[Message], **more: Any) -> Rendered:
        """Render a conversation, and find what the assistant wrote: the answers.

        An answer is all after the beginning of the assistant's turn, up to the token that ends it.
        A template may show an earlier turn in another way than the last one (Qwen3 removes its
        thoughts). Then only the last turn is an answer.
        """
        text = self.render(messages, **more)
        spans = []
        num_hidden = 0
        for number, message in enumerate(messages):
            if not is_trained(message):
                continue
            before = self.render(messages[:number], answers=True, **more)
            turn = self.render(messages[: number + 1], **more)
            if text.startswith(turn) and turn.startswith(before):
                spans.append((len(before), len(turn.rstrip())))
            else:
                num_hidden += 1
        return Rendered(text, spans, num_hidden)


def is_trained(message: Message) -> bool:
    """Whether a message is an answer to learn; one of weight 0 is not, as in OpenAI's format."""
    return message["role"] == "assistant" and message.get("weight") != 0


def restore(facts: dict[str, Any]) -> Tokenizer:
    """Restore the tokenizer that `prepare` stored in the manifest."""
    return Tokenizer(facts)


def compiled(template: str) -> Any:
    """Compile a chat template, as transformers does, in a sandbox: it may come from anyone.

    It has no clock: `prepare` gives the same tokens tomorrow.
    """
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    class Generation(jinja2.ext.Extension):
        """The tag `generation` marks an answer; `rendered` finds answers without it."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own form

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(template)


# --- a model's folder


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read tokenizer and template from a model's folder. Raises `UserError` for wrong ones."""
    settings = read_object(folder / "tokenizer_config.json")
    template = read_template(folder, settings)
    special = {}
    for name in SPECIAL:
        token = settings.get(name)
        special[name] = str(token.get("content", "") if isinstance(token, dict) else token or "")
    facts: dict[str, Any] = {
        "definition": read_definition(folder),
        "template": template,
        "special": special,
        "ends": [],
    }
    try:
        tokenizer = Tokenizer(facts)
    except Exception as error:  # tokenizers raises no class of its own
        where = str(folder / "tokenizer.json")
        raise UserError(f"not a tokenizer ({error})", where, COPY_AGAIN) from error

    ends: set[Any] = {tokenizer.library.token_to_id(special["eos_token"])}
    for name in ("generation_config.json", "config.json"):
        if exists(folder / name):
            named = read_object(folder / name).get("eos_token_id")
            ends.update(named if isinstance(named, list) else [named])
    facts["ends"] += sorted(end for end in ends if isinstance(end, int))
    if not facts["ends"]:
        remedy = "add eos_token to tokenizer_config.json"
        raise UserError("no token ends an answer", str(folder), remedy)
    check_template(tokenizer, folder)
    return tokenizer


def read_definition(folder: Path) -> str:
    """Return the tokenizer of a model's folder, as the manifest of prepared data has it."""
    return json.dumps(read_object(folder / "tokenizer.json"), ensure_ascii=False)


def read_template(folder: Path, settings: dict[str, Any]) -> str:
    """Return a model's chat template, the default one of several."""
    path = folder / "chat_template.jinja"
    template = settings.get("chat_template")
    if exists(path):
        try:
            template = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read it ({error})", str(path), COPY_AGAIN) from error
    if isinstance(template, list):  # several, by name
        named = [entry for entry in template if isinstance(entry, dict)]
        template = {entry.get("name"): entry.get("template") for entry in named}.get("default")
    if not template or not isinstance(template, str):
        remedy = "use the Instruct variant of the model, or add its chat_template.jinja"
        raise UserError("the model has no chat template", str(folder), remedy)
    return template


def check_template(tokenizer: Tokenizer, folder: Path) -> None:
    """Raise `UserError` if the template cannot render a short conversation."""
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    try:
        text, spans, _ = tokenizer.rendered(messages)
    except Rejected as error:
        what = f"the chat template fails ({error})"
        remedy = "fix chat_template.jinja; a template gets neither a clock nor a network"
        raise UserError(what, str(folder), remedy) from error
    if not any("Hi" in text[begin:end] for begin, end in spans):
        what = "the chat template writes an answer in another way than it begins one"
        remedy = "fix add_generation_prompt in chat_template.jinja"
        raise UserError(what, str(folder), remedy)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with a token for each byte, for conversations without a model."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    numbers = {letter: number for number, letter in enumerate(alphabet)}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=numbers, merges=[]))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens([START, END])
    special = {"bos_token": START, "eos_token": END, "pad_token": END}
    ends = [library.token_to_id(END)]
    facts = {"definition": library.to_str(), "template": CHATML, "special": special, "ends": ends}
    return Tokenizer(facts)
