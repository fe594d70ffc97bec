"""Home-made words and long sentences in what people read: pages, comments, docstrings, messages.

    python tools/prose.py            # each place, by file
    python tools/prose.py docs       # only those of files whose path starts with `docs`

tools/prose.yml has the words with their replacements, and the files in which some are still
allowed. tests/documents/test_prose.py holds these numbers, which can only become smaller.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
RULES = yaml.safe_load((REPOSITORY / "tools/prose.yml").read_text(encoding="utf-8"))
WORDS = {re.compile(word, re.IGNORECASE): better for word, better in RULES["words"].items()}

READ_BY_PEOPLE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "copier.yml", "docs", "template")
ENDINGS = (".md", ".yml", ".yaml", ".py", ".txt", ".jinja")
LONGEST_SENTENCE = 30  # words
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
JINJA = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)
LIST_ITEM = re.compile(r"\s*([*-]|\d+\.) ")

Text = tuple[int, str]  # the number of its first line, and the text


def files() -> list[Path]:
    """Return the files that people read, without the tables of GPUs."""
    paths: list[Path] = []
    for name in READ_BY_PEOPLE:
        path = REPOSITORY / name
        paths += sorted(path.rglob("*")) if path.is_dir() else [path]
    kept = [path for path in paths if path.suffix in ENDINGS and path.is_file()]
    return [path for path in kept if path.parent.name != "tables"]


def problems(path: Path) -> list[str]:
    """Return the places of a file with a home-made word or a long sentence, a line each."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".jinja":
        source = JINJA.sub(blank, source)
    name = path.relative_to(REPOSITORY)
    lines = []
    for number, text in texts(kind(path), source):
        for word, better in WORDS.items():
            for match in word.finditer(text):
                lines.append(f"{name}:{number}: {match.group()!r}: better {better}")
        for sentence in SENTENCE_END.split(text):
            length = len(sentence.split())
            if length > LONGEST_SENTENCE:
                lines.append(f"{name}:{number}: {length} words: {sentence[:60]} ...")
    return lines


def blank(match: re.Match[str]) -> str:
    """Return the line ends of a match alone, so that numbers of lines stay."""
    return "\n" * match.group().count("\n")


def kind(path: Path) -> str:
    """Return the ending of what a file becomes when it is rendered."""
    rendered = path.with_suffix("") if path.suffix == ".jinja" else path
    # Python with Jinja cannot be parsed: its comments are read like those of settings.
    is_template = path.suffix == ".jinja" and rendered.suffix != ".md"
    return ".yaml" if is_template else rendered.suffix


def texts(suffix: str, source: str) -> Iterator[Text]:
    """Yield each paragraph of a page, or each comment, docstring and message of code."""
    if suffix == ".py":
        yield from strings(source)
        yield from comments(source)
    elif suffix in (".yml", ".yaml"):
        yield from joined(
            (number, line.lstrip(" #"))
            for number, line in enumerate(source.splitlines(), start=1)
            if line.lstrip().startswith("#")
        )
    elif suffix == ".txt":
        yield from enumerate(source.splitlines(), start=1)
    else:
        yield from paragraphs(source)


def strings(source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, paragraph in paragraphs(node.value):
                yield node.lineno + number - 1, paragraph


def comments(source: str) -> Iterator[Text]:
    """Yield comments after code one by one, and those on lines of their own as paragraphs."""
    own_lines: list[Text] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = (token.start[0], token.string.lstrip("# "))
            if token.line.lstrip().startswith("#"):
                own_lines.append(text)
            else:
                yield text
    yield from joined(own_lines)


def paragraphs(source: str) -> Iterator[Text]:
    """Yield paragraphs, list items and cells of tables, without code and headings."""
    lines: list[Text] = []
    in_code = False
    for number, line in enumerate(source.splitlines(), start=1):
        in_code ^= line.lstrip().startswith("```")
        is_text = not in_code and not line.startswith(("    ", "#", "<!--", "```", "{%"))
        if is_text and line.startswith("|"):
            yield from ((number, cell) for cell in line.split("|"))
        elif is_text and line.strip():
            if LIST_ITEM.match(line):
                yield from joined(lines)
                lines = []
            lines.append((number, line.strip()))
        else:
            yield from joined(lines)
            lines = []
    yield from joined(lines)


def joined(lines: Iterable[Text]) -> Iterator[Text]:
    """Join the texts of consecutive lines, up to an empty one."""
    start = 0
    last = 0
    words: list[str] = []
    for number, text in lines:
        if words and (number > last + 1 or not text):
            yield start, " ".join(words)
            words = []
        if not words:
            start = number
        if text:
            words.append(text)
        last = number
    if words:
        yield start, " ".join(words)


def main(prefixes: list[str]) -> None:
    total = 0
    for path in files():
        name = str(path.relative_to(REPOSITORY))
        if name.startswith(tuple(prefixes or [""])):
            lines = problems(path)
            total += len(lines)
            print(*lines, sep="\n", end="\n" if lines else "")
    print(total)


if __name__ == "__main__":
    main(sys.argv[1:])
