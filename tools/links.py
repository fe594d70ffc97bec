"""The links of Markdown files: where they lead, and which of them lead nowhere.

    python tools/links.py            # ask every other site that the documents name
    python tools/links.py FILE...    # only those that these files name

Tests check the links inside the repository with `problems`. Links to other sites need a network,
so `make links` checks them, and no test does.
"""

from __future__ import annotations

import functools
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
CODE_ADDRESS = "https://github.com/org/fasttrain-template"
SITE_ADDRESS = "https://org.github.io/fasttrain-template"
TIMEOUT = 20  # seconds
BROWSER = {"User-Agent": "Mozilla/5.0 (link check)"}  # some sites refuse Python's own name

FENCED = re.compile(r"^( *)(```+|~~~+).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4,}[^\n]*\n|\n(?= {4}))+")
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(
    r"""(?P<before>\]\(|^\[[^\]\n]+\]:[ ]+|<(?:a|img)[^>]*?(?:href|src)=")(?P<target>[^)\s"]+)""",
    re.MULTILINE,
)
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
NAMED_PLACE = re.compile(r"""<a (?:id|name)="([^"]+)">""")
ADDRESS = re.compile(r"https?://[^\s)>\]\"'`|\\]+")


class Link(NamedTuple):
    """One link of a document."""

    line: int
    target: str


def blank(match: re.Match[str]) -> str:
    """Spaces in place of a match, so that every line keeps its number."""
    return re.sub(r"[^\n]", " ", match[0])


def without_code(text: str, *, inline: bool = True) -> str:
    """A Markdown text with its blocks of code and its comments blanked out."""
    for pattern in (COMMENT, FENCED, INDENTED):
        text = pattern.sub(blank, text)
    return INLINE_CODE.sub(blank, text) if inline else text


def links(text: str) -> list[Link]:
    """The links of a Markdown text that a reader can follow."""
    prose = without_code(text)
    targets = []
    for match in LINK.finditer(prose):
        line = prose.count("\n", 0, match.start("target")) + 1
        targets.append(Link(line, match["target"]))
    return targets


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """Every place in a Markdown file to which a link can lead."""
    text = without_code(path.read_text(encoding="utf-8"), inline=False)
    names: list[str] = NAMED_PLACE.findall(text)
    headings = [slug(heading) for heading in HEADING.findall(text)]
    for number, name in enumerate(headings):
        repeated = headings[:number].count(name)
        names.append(f"{name}-{repeated}" if repeated else name)
    return frozenset(names)


def local_file(target: str, document: Path) -> Path | None:
    """The file that a link means, or None if it leads to another site.

    An address of this repository or of its site means a file here as well.
    """
    path = target.partition("#")[0]
    for kind in ("blob", "tree"):
        in_repository = re.match(rf"{CODE_ADDRESS}/{kind}/[^/]+/(.*)", path)
        if in_repository:
            return REPOSITORY / in_repository[1]
    if path == CODE_ADDRESS:
        return REPOSITORY / "README.md"
    if path.startswith(SITE_ADDRESS):
        return site_page(path.removeprefix(SITE_ADDRESS).strip("/"))
    if re.match(r"[a-z]+:", path):
        return None
    return document.parent / path if path else document


def site_page(path: str) -> Path:
    """The Markdown file of a page of the site; of pages that are made with it, what makes them."""
    outside = {
        "configurator": "tools/configurator/page/index.html",
        "projects": "tools/example_pages.py",
        "overview.html": "README.md",
        "contribute.html": "CONTRIBUTING.md",
        "changelog.html": "CHANGELOG.md",
    }
    if path in outside:
        return REPOSITORY / outside[path]
    file = path if path.endswith(".html") else f"{path}/index.html".lstrip("/")
    return DOCS / re.sub(r"(^|/)index\.html$", r"\1README.html", file).replace(".html", ".md")


def problems(document: Path) -> list[str]:
    """The links of a document that lead to no file or to no heading of it."""
    lines = []
    for link in links(document.read_text(encoding="utf-8")):
        file = local_file(link.target, document)
        if file is None:
            continue
        anchor = link.target.partition("#")[2]
        if not file.exists():
            lines.append(f"{document}:{link.line}: {link.target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.resolve()):
            lines.append(f"{document}:{link.line}: {link.target}: no such heading")
    return lines


def documents() -> list[Path]:
    """The Markdown files of the repository that a person reads first."""
    return [*sorted(REPOSITORY.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def texts_of_projects() -> list[Path]:
    """The template's texts that end up in a rendered README."""
    template = REPOSITORY / "template"
    return sorted([*template.rglob("*.md"), *template.rglob("*.md.jinja")])


def other_sites(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Every address of another site, once, and the first place that names it."""
    seen = set()
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for match in ADDRESS.findall(line):
                address = match.rstrip(".,;:*").partition("#")[0]
                if address not in seen and is_public(address):
                    seen.add(address)
                    yield address, f"{path}:{number}"


def is_public(address: str) -> bool:
    """Whether anybody can ask for this address: no example, no machine of the reader's own."""
    host = re.sub(r"https?://", "", address).partition("/")[0]
    if address.startswith((CODE_ADDRESS, SITE_ADDRESS)):
        return False
    return "." in host and not host.startswith("127.") and not re.search(r"[{}<…$]", address)


def answer_of(address: str) -> str:
    """What is wrong with an address; nothing if its site has it."""
    reason = ""
    for method in ("HEAD", "GET"):  # some sites answer only the second
        request = urllib.request.Request(address, headers=BROWSER, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT):
                return ""
        except (urllib.error.URLError, OSError) as error:
            reason = str(error)
    return reason


def main(arguments: list[str]) -> int:
    paths = [Path(name) for name in arguments] or [*documents(), *texts_of_projects()]
    failures = 0
    asked = 0
    for address, place in other_sites(paths):
        asked += 1
        reason = answer_of(address)
        if reason:
            failures += 1
            print(f"{place}: {address}: {reason}", flush=True)
    print(f"{asked} addresses, {failures} of them without an answer")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
