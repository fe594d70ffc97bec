"""Build the documentation's site: `.venv-docs/bin/python tools/build_site.py build/site`.

The pages of docs/ are plain Markdown with links between files, as GitHub shows them. This copies
them to a folder of their own, points their links at pages of the site, adds the navigation of
docs/navigation.yml to the start page, and runs Sphinx. A warning of Sphinx is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import example_pages
import yaml
from configurator import build, bundle
from links import DOCS, LINK, REPOSITORY, SITE_ADDRESS

CONFIGURATION = REPOSITORY / "tools/docs_site"
OWNER_AND_NAME = os.environ.get("GITHUB_REPOSITORY", "org/fasttrain-template")
CODE_ADDRESS = f"https://github.com/{OWNER_AND_NAME}"
CONFIGURATOR = "configurator/index.html"
MADE = (CONFIGURATOR, f"{example_pages.FOLDER}/index.html")  # with the site, of the template
REMOTE = re.compile(
    r"""<(?:script|img|iframe|source|video)[^>]*\ssrc="(?:https?:)?//[^"]+"
    |<link(?![^>]*rel="canonical")[^>]*\shref="(?:https?:)?//[^"]+"
    |url\(["']?(?:https?:)?//[^)]+
    |@import\s+["'](?:https?:)?//[^"']+""",
    re.VERBOSE,
)


class Page(NamedTuple):
    """One page of the site."""

    source: Path
    name: str  # its path on the site, without a suffix
    title: str | None  # in the sidebar, if not the page's own


def site_name(path: str) -> str:
    """A page's path on the site: a folder's README.md is the folder's first page."""
    return re.sub(r"(^|/)README$", r"\1index", path.removesuffix(".md"))


def navigation() -> dict[str, list[Page]]:
    """The pages of docs/navigation.yml by section, with those that do not exist yet."""
    sections = {}
    for section in yaml.safe_load((DOCS / "navigation.yml").read_text(encoding="utf-8")):
        for caption, entries in section.items():
            sections[caption] = [listed(entry) for entry in entries]
    return sections


def listed(entry: str | dict[str, str]) -> Page:
    """The page of one line of docs/navigation.yml."""
    if isinstance(entry, str):
        return Page(DOCS / entry, site_name(entry), None)
    ((title, path),) = entry.items()
    return Page((DOCS / path).resolve(), title.lower(), title)


def site_files() -> dict[Path, str]:
    """Where each file goes: all of docs/, and the listed files outside of it."""
    names = {}
    for path in sorted(DOCS.rglob("*")):
        name = path.relative_to(DOCS).as_posix()
        if path.suffix == ".md":
            names[path] = f"{site_name(name)}.md"
        elif path.is_file() and path.name != "navigation.yml":
            names[path] = name
    for pages in navigation().values():
        for page in pages:
            if page.source.exists():
                names[page.source] = f"{page.name}.md"
    return names


def site_link(target: str, source: Path, names: dict[Path, str]) -> str:
    """A link of a document as it reads on the site.

    Files that are no page are shown by GitHub. What leads nowhere stays, and Sphinx refuses it.
    """
    path, hash_sign, anchor = target.partition("#")
    made = f"{path.removeprefix(SITE_ADDRESS).strip('/')}/index.html"
    if made in MADE and (made != CONFIGURATOR or bundle.is_installed()):
        relative = os.path.relpath(made, Path(names[source]).parent)
        return Path(relative).as_posix() + hash_sign + anchor
    if not path or re.match(r"[a-z]+:", path):
        return target
    file = (source.parent / path).resolve()
    if file in names:
        relative = os.path.relpath(names[file], Path(names[source]).parent)
        return Path(relative).as_posix() + hash_sign + anchor
    if file.exists():
        kind = "tree" if file.is_dir() else "blob"
        return f"{CODE_ADDRESS}/{kind}/HEAD/{file.relative_to(REPOSITORY).as_posix()}"
    return target


def site_text(source: Path, names: dict[Path, str]) -> str:
    """A document with its links as they read on the site."""

    def replace(match: re.Match[str]) -> str:
        return match["before"] + site_link(match["target"], source, names)

    return LINK.sub(replace, source.read_text(encoding="utf-8"))


def sidebar() -> str:
    """The navigation, in the words of Sphinx; pages that do not exist yet are left out."""
    text = ""
    for caption, pages in navigation().items():
        lines = [
            f"{page.title} <{page.name}>" if page.title else page.name
            for page in pages
            if page.source.exists()
        ]
        if caption == "Reference":
            lines.append(f"{example_pages.FOLDER}/index")
        text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *lines])
        text += "\n```\n"
    return text


def copy_pages(folder: Path) -> None:
    """Write into `folder` what Sphinx reads."""
    names = site_files()
    for source, name in names.items():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            copy.write_text(site_text(source, names), encoding="utf-8")
        else:
            shutil.copyfile(source, copy)
    with (folder / "index.md").open("a", encoding="utf-8") as start_page:
        start_page.write(sidebar())


def remote_requests(site: Path) -> Iterator[str]:
    """What a browser would ask another host for when it shows a page."""
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        for match in REMOTE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {match}"


def write_configurator(folder: Path) -> None:
    """Write the page on which a project is configured."""
    page = build.read_page(REPOSITORY)
    build.write_data(page, f"gh:{OWNER_AND_NAME}", folder)
    bundle.write_page(folder)


def run_sphinx(pages: Path, site: Path) -> int:
    """Make the site of the copied pages."""
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    options = ["--builder", "html", "--conf-dir", str(CONFIGURATION)]
    cache = ["--doctree-dir", str(pages / ".doctrees")]
    return subprocess.call([*sphinx, *options, *cache, str(pages), str(site)])


def main(site: Path) -> int:
    pages = site.with_name(f"{site.name}-source")
    projects = site.with_name(f"{site.name}-projects")
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    has_configurator = bundle.install()
    address = f"../{CONFIGURATOR}" if has_configurator else ""
    copy_pages(pages)
    example_pages.write_pages(pages, projects, address)
    code = run_sphinx(pages, site)
    if code:
        return code
    if has_configurator:
        write_configurator(site / "configurator")
    else:
        print("not built: the configurator; it needs Node, and npm's registry for its libraries")
    requests = list(remote_requests(site))
    for line in requests:
        print(f"error: a page asks another host: {line}", file=sys.stderr)
    print(f"{site}/index.html")
    if has_configurator:
        print(f"{site}/{CONFIGURATOR}")
    return 1 if requests else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
