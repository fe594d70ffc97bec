"""Figures of the benchmarks: kept as JSON in docs/benchmarks, from which the tables of its pages
are made.

A page NAME.md has a place `<!-- measured: PART -->` … `<!-- end -->` for each part of NAME.json;
what stands there is written by this file alone.

    python benchmarks/publish.py    # writes all tables again
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import tempfile
import textwrap
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parent.parent / "docs/benchmarks"
WIDTH = 118
EMPTY = "not measured yet"


def command_line(parser: argparse.ArgumentParser, **smallest: Any) -> argparse.Namespace:
    """The parsed command line, with the two flags that every benchmark has.

    smallest: values of the benchmark's options in a rehearsal, where the command line does not set
    them.
    """
    parser.add_argument(
        "--write", action="store_true", help="put the results onto a page of docs/benchmarks"
    )
    text = "run every part once in its smallest size, to see that it works; "
    text += "no result counts, no page changes"
    parser.add_argument("--rehearse", action="store_true", help=text)
    arguments = parser.parse_args()
    if arguments.rehearse:
        parser.set_defaults(**smallest)
        arguments = parser.parse_args()
    return arguments


def machine(*packages: str, device: str = "") -> str:
    """Date, machine, its load now, and versions; take it before the measurement."""
    facts = [time.strftime("%Y-%m-%d"), device or f"{platform.machine()}, {os.cpu_count()} cores"]
    facts += [f"load {os.getloadavg()[0]:.1f}", f"Linux {platform.release()}"]
    facts += [f"Python {platform.python_version()}"]
    for package in ("torch", *packages):
        try:
            facts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(facts)


def tables(figures: dict[str, Any]) -> str:
    """Markdown of one part: its tables, then how they were taken, unless a table says so itself."""
    text = []
    for table in figures["tables"]:
        columns = table["columns"]
        rows = table["rows"]
        text += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        text += ["| " + " | ".join(map(str, spoken(row))) + " |" for row in rows]
        text.append("")
        if "protocol" in table:
            text += [textwrap.fill(table["protocol"] + ".", WIDTH), ""]
    return "\n".join(text) + "\n" + textwrap.fill(figures["protocol"] + ".", WIDTH) + "\n"


def spoken(row: list[Any]) -> list[Any]:
    """The cells in words: one without a figure is marked, a row without any once."""
    name, *cells = row
    if all(cell is None for cell in cells):
        return [name, EMPTY, *[""] * (len(cells) - 1)]
    return [name, *(EMPTY if cell is None else cell for cell in cells)]


def publish(
    page: str,
    part: str,
    protocol: str,
    *tables_of_part: dict[str, Any],
    arguments: argparse.Namespace,
) -> None:
    """Prints the tables (`columns`, `rows`) of a part and, with `--write`, puts them onto the page.

    A rehearsal puts them onto a copy of the page, which is then deleted.
    """
    figures = {"protocol": protocol, "tables": list(tables_of_part)}
    print(tables(figures), flush=True)
    if arguments.rehearse:
        with tempfile.TemporaryDirectory() as folder:
            for suffix in (".json", ".md"):
                shutil.copy2(PAGES / f"{page}{suffix}", folder)
            put(Path(folder), page, part, figures)
        print(f"rehearsed: {page}, {part}", flush=True)
    elif arguments.write:
        put(PAGES, page, part, figures)


def put(pages: Path, page: str, part: str, figures: dict[str, Any]) -> None:
    """Writes a part into the JSON file and the page in the folder `pages`."""
    keep(pages / f"{page}.json", part, figures)
    page_of(pages / f"{page}.json")


def keep(path: Path, part: str, figures: dict[str, Any]) -> None:
    """Puts a part next to the others of a JSON file."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[part] = figures
    path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def page_of(path: Path) -> None:
    """Writes the tables of a JSON file into its page. Raises `ValueError` where that has no such
    place."""
    page = path.with_suffix(".md")
    text = page.read_text(encoding="utf-8")
    for part, figures in json.loads(path.read_text(encoding="utf-8")).items():
        begin = f"<!-- measured: {part} -->\n"
        end = "<!-- end -->"
        made = f"{begin}\n{tables(figures)}\n{end}"
        place = f"{re.escape(begin)}.*?{end}"
        text, count = re.subn(place, made.replace("\\", r"\\"), text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page} has {count} places for '{part}'")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for figures in sorted(PAGES.glob("*.json")):
        page_of(figures)
