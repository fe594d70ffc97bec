"""Read conversations from JSONL and Parquet files, in the forms that chat data have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..dataset import Chat
from ..engine.errors import UserError
from ..texts import ROWS, Seen, check_text, open_text, parquet_rows, row_format

Row = dict[str, Any]
Found = Iterator[tuple[str, Any]]
"""Where a row is, and its content; or the `Faulty` that it is."""

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",  # ShareGPT's names
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
}


class Faulty(Exception):
    """A row is no conversation to train on. Its text is one of few, so that rows are counted."""


class LeftOut:
    """Remembers where conversations are that are left out or cut, by reason.

    strict: raise `UserError` for the first one.
    """

    def __init__(self, strict: bool = False):
        self.strict = strict
        self.places: dict[str, list[str]] = {}

    def add(self, why: str, where: str) -> None:
        if self.strict:
            what = why.removeprefix("left out, ")
            raise UserError(what, where, "fix or remove it, or do without --strict")
        self.places.setdefault(why, []).append(where)

    def lines(self) -> Iterator[str]:
        """Yield a line for each reason."""
        for why, places in self.places.items():
            more = ", …" if len(places) > 3 else ""
            yield f"{why}: {len(places):,} ({'; '.join(places[:3])}{more})"


# --- forms of rows


def as_messages(row: Row) -> list[Row]:
    return [as_message(message, "role", "content") for message in row["messages"]]


def as_sharegpt(row: Row) -> list[Row]:
    turns = row["conversations"]
    if turns and "role" in turns[0]:
        return as_messages({"messages": turns})
    return [as_message(turn, "from", "value") for turn in turns]


def as_completion(row: Row) -> list[Row]:
    """Texts, or lists of messages as in trl."""
    if isinstance(row["prompt"], list):
        return as_messages({"messages": [*row["prompt"], *row["completion"]]})
    return question_and_answer(row["prompt"], row["completion"])


def as_alpaca(row: Row) -> list[Row]:
    question = row["instruction"]
    if row.get("input"):
        question += "\n\n" + row["input"]
    return question_and_answer(question, row["output"])


def question_and_answer(question: Any, answer: Any) -> list[Row]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return as_messages({"messages": messages})


# The columns of each form, and the function that reads it.
FORMS: list[tuple[set[str], Callable[[Row], list[Row]]]] = [
    ({"messages"}, as_messages),
    ({"conversations"}, as_sharegpt),
    ({"prompt", "completion"}, as_completion),
    ({"instruction", "output"}, as_alpaca),
]


def as_message(message: Row, role: str, content: str) -> Row:
    """Return a message with the usual names, without what is null.

    In a Parquet file, all messages have the same fields.
    """
    known = without_null(message)
    text = known.pop(content, "")
    if isinstance(text, list):
        text = "".join(text_of(part) for part in text)
    if not isinstance(text, str):
        raise Faulty("a message whose content is no text")
    named = known.pop(role)
    if named not in ROLES:
        raise Faulty(f"a role that is none of {', '.join(ROLES)}")
    return {"role": ROLES[named], "content": text, **known}


def text_of(part: Any) -> str:
    """Return the text of a part of a message."""
    if isinstance(part, dict) and part.get("type", "text") == "text":
        return str(part["text"])
    raise Faulty("a message with an image or another part that is no text")


def without_null(value: Any) -> Any:
    """Return a value of JSON without the fields that are null."""
    if isinstance(value, dict):
        return {name: without_null(held) for name, held in value.items() if held is not None}
    if isinstance(value, list):
        return [without_null(held) for held in value]
    return value


# --- rows


def read_chats(path: Path, seen: Seen, left_out: LeftOut) -> Iterator[Chat]:
    """Yield the new conversations of a file."""
    read = _parquet if row_format(path, "") == ROWS[1] else _json_lines
    for where, row in read(path):
        try:
            if isinstance(row, Faulty):
                raise row
            chat = read_chat(row, where)
        except Faulty as error:
            left_out.add(f"left out, {error}", where)
            continue
        if seen.add(json.dumps([chat.messages, chat.more, chat.text])):
            yield chat


def read_chat(row: Row, where: str = "") -> Chat:
    """Return the conversation of a row; or raise `Faulty`."""
    messages = messages_of(row)
    if messages is not None:
        check_messages(messages)
        more = {"tools": without_null(row["tools"])} if row.get("tools") else {}
        check_characters(json.dumps([messages, more], ensure_ascii=False))
        return Chat(messages, more, where=where)
    if isinstance(row.get("text"), str) and row["text"].strip():
        check_characters(row["text"])
        return Chat([], {}, row["text"], where)
    raise Faulty(f"no conversation in the columns {', '.join(sorted(row)) or '(none)'}")


def messages_of(row: Row) -> list[Row] | None:
    """Return the messages of a row, whose columns say which form it has; None if it has none."""
    columns = {name for name, value in row.items() if value is not None}
    for needed, read in FORMS:
        if needed <= columns:
            try:
                return read(row)
            except (AttributeError, KeyError, TypeError, IndexError) as error:
                raise Faulty("messages without a role or a text") from error
    return None


def read_questions(path: Path) -> list[list[Row]]:
    """Return the messages before each answer to generate; of a text file, each line is a question.

    The last answer of a conversation is left out. Raises `UserError` for a wrong row.
    """
    kind = row_format(path, "")
    if not kind:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        return [[{"role": "user", "content": line}] for line in lines if line.strip()]
    found = []
    for where, row in (_parquet if kind == ROWS[1] else _json_lines)(path):
        try:
            if isinstance(row, Faulty):
                raise row
            messages = messages_of({"completion": "", "output": "", **row}) or []
        except Faulty as error:
            raise UserError(str(error), where, "see `prepare --help` for the columns") from error
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages:
            raise UserError("no question", where, "see `prepare --help` for the columns")
        found.append(messages)
    return found


def check_messages(messages: list[Row]) -> None:
    """Raise `Faulty` for an order of roles that no model has learned, and for empty answers."""
    roles = [message["role"] for message in messages]
    turns = [role for role in roles if role not in ("system", "developer")]
    if "assistant" not in turns:
        raise Faulty("no answer of the assistant")
    if roles[-len(turns) :] != turns or len(roles) - len(turns) > 1:
        raise Faulty("a system message that is not the first one")
    if turns[0] == "assistant":
        raise Faulty("an answer of the assistant before any question")
    for message in messages:
        is_answer = message["role"] == "assistant"
        if is_answer and not message["content"].strip() and not message.get("tool_calls"):
            raise Faulty("an empty answer")


def check_characters(text: str) -> None:
    """Raise `Faulty` if UTF-8 cannot encode the text."""
    try:
        check_text(text, "")
    except UserError as error:
        raise Faulty("half of a character") from error


def _json_lines(path: Path) -> Found:
    with open_text(path, "", ROWS[0]) as (_, file, tick):
        for number, line in enumerate(file, 1):
            tick()
            text = line.decode().strip()
            if text:
                yield f"{path.name}, line {number}", parsed(text)


def parsed(text: str) -> Any:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        row = None
    return row if isinstance(row, dict) else Faulty("no JSON object")


def _parquet(path: Path) -> Found:
    for number, (_, row) in enumerate(parquet_rows(path), 1):
        yield f"{path.name}, row {number}", row
