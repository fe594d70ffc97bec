"""Read conversations from JSONL and Parquet files, in the forms that chat data have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..dataset import Chat
from ..engine.errors import UserError
from ..texts import ROWS, Seen, check_text, open_text, parquet_rows, row_format
from ..tokenizer import is_trained

Row = dict[str, Any]
Rows = Iterator[tuple[str, Any]]
"""Where each row is, and its content: an object, unless it is faulty."""

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",  # ShareGPT's names
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
}


ROW_FILE = re.compile(r"(?i)\.(jsonl|ndjson|parquet)(\.\w+)?$")


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
        """Yield a line for each reason, the most frequent one first."""
        by_count = sorted(self.places.items(), key=lambda entry: -len(entry[1]))
        for why, places in by_count:
            more = ", …" if len(places) > 3 else ""
            named = "; ".join(places[:3])
            yield f"{why}: {len(places):,} ({named}{more})"


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
    """A question and its answer, maybe after earlier ones."""
    question = row["instruction"]
    if row.get("input"):
        question += "\n\n" + row["input"]
    messages = []
    for asked, answered in [*(row.get("history") or []), (question, row["output"])]:
        messages += question_and_answer(asked, answered)
    return messages


def with_system(messages: list[Row], system: Any) -> list[Row]:
    """Put the text of a column `system` before messages without a system message of their own."""
    if not system or messages[0]["role"] == "system":
        return messages
    return [as_message({"role": "system", "content": system}, "role", "content"), *messages]


def question_and_answer(question: Any, answer: Any) -> list[Row]:
    asked = {"role": "user", "content": question}
    answered = {"role": "assistant", "content": answer}
    return as_messages({"messages": [asked, answered]})


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
    for call in known.get("tool_calls", []):
        function = call.get("function", call)
        function["arguments"] = arguments_of(function)
    return {"role": ROLES[named], "content": text, **known}


def arguments_of(function: Row) -> Any:
    """Return the arguments of a call as an object, which templates expect; OpenAI has JSON."""
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = parsed(arguments)
    if not isinstance(arguments, dict):
        raise Faulty("a tool call whose arguments are no object")
    return arguments


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
    """Yield the new conversations of a file, or of the files in a folder."""
    for file in files_with_rows(path):
        for where, row in rows_of(file, row_format(file, "")):
            try:
                chat = read_chat(row, where)
            except Faulty as error:
                left_out.add(f"left out, {error}", where)
                continue
            content = json.dumps([chat.messages, chat.more, chat.text])
            if seen.add(content):
                yield chat


def files_with_rows(path: Path) -> list[Path]:
    """Return the file, or those with rows in a folder, in the order of their names."""
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.rglob("[!.]*")) if ROW_FILE.search(file.name)]
    if not files:
        raise UserError("no .jsonl or .parquet file in the folder", str(path), "check --input")
    return files


def rows_of(path: Path, kind: str) -> Rows:
    return parquet_rows(path) if kind == ROWS[1] else json_lines(path)


def read_chat(row: Any, where: str = "") -> Chat:
    """Return the conversation of a row; or raise `Faulty`."""
    messages = messages_of(row)
    if messages is not None:
        check_messages(messages)
        more = tools_in(row)
        check_characters(json.dumps([messages, more], ensure_ascii=False))
        return Chat(messages, more, where=where)
    if isinstance(row.get("text"), str) and row["text"].strip():
        check_characters(row["text"])
        return Chat([], {}, row["text"], where)
    raise Faulty(f"no conversation in the columns {', '.join(sorted(row)) or '(none)'}")


def tools_in(row: Row) -> Row:
    """Return the list of tools of a row, if it has one; it may also be written as JSON."""
    tools = row.get("tools")
    if not tools:
        return {}
    listed = parsed(tools) if isinstance(tools, str) else without_null(tools)
    if not isinstance(listed, list):
        raise Faulty("tools that are no list")
    return {"tools": listed}


def messages_of(row: Any, **assumed: str) -> list[Row] | None:
    """Return the messages of a row, whose columns say which form it has; None if it has none.

    assumed: columns that the row may lack.
    """
    if not isinstance(row, dict):
        raise Faulty("no JSON object")
    row = {**assumed, **row}
    columns = {name for name, value in row.items() if value is not None}
    for needed, read in FORMS:
        if needed <= columns:
            try:
                return with_system(read(row), row.get("system"))
            except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
                raise Faulty("messages without a role or a text") from error
    return None


def read_questions(path: Path) -> list[Chat]:
    """Return the messages before each answer to generate; of a text file, each line is a question.

    The last answer of a conversation is left out. Raises `UserError` for a wrong row.
    """
    found = []
    kind = row_format(path, "")
    if not kind:
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            if line.strip():
                found.append(Chat([{"role": "user", "content": line}], {}))
    for where, row in rows_of(path, kind) if kind else ():
        try:
            messages = messages_of(row, completion="", output="") or []
            more = tools_in(row)
        except Faulty as error:
            raise UserError(str(error), where, "see `prepare --help` for the columns") from error
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages:
            raise UserError("no question", where, "see `prepare --help` for the columns")
        found.append(Chat(messages, more))
    if not found:
        raise UserError("no question", str(path), "write a question a line")
    return found


def check_messages(messages: list[Row]) -> None:
    """Raise `Faulty` for an order of roles that no model has learned, and for empty answers."""
    roles = [message["role"] for message in messages]
    turns = [role for role in roles if role not in ("system", "developer")]
    answers = [message for message in messages if is_trained(message)]
    if not answers:
        raise Faulty("no answer of the assistant")
    if roles[-len(turns) :] != turns or len(roles) - len(turns) > 1:
        raise Faulty("a system message that is not the first one")
    if turns[0] == "assistant":
        raise Faulty("an answer of the assistant before any question")
    for message in answers:
        if not message["content"].strip() and not message.get("tool_calls"):
            raise Faulty("an empty answer")


def check_characters(text: str) -> None:
    """Raise `Faulty` if UTF-8 cannot encode the text."""
    try:
        check_text(text, "")
    except UserError as error:
        raise Faulty("half of a character") from error


def json_lines(path: Path) -> Rows:
    with open_text(path, "", ROWS[0]) as (_, file, tick):
        for number, line in enumerate(file, 1):
            tick()
            text = line.decode().strip()
            if text:
                yield f"{path.name}, line {number}", parsed(text)


def parsed(text: str) -> Any:
    """Return the content of a line, or None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
