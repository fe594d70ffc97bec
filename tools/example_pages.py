"""Pages of the site that show the default project of each workload and layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from budget import measure
from examples import Example, write
from rendering import template

FOLDER = "projects"
# The files that are shown as a whole: those that an owner edits, the loop, and a script.
SHOWN = ("train.py", "model.py", "dataset.py", "optimizer.py", "settings.py", "examples.py")
LANGUAGES = {".py": "python", ".md": "markdown", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


def write_pages(pages: Path, scratch: Path, configurator: str) -> None:
    """Write the pages, the first of which lists the others.

    configurator: the address of the configurator from these pages; empty if it is not built.
    """
    folder = pages / FOLDER
    folder.mkdir()
    examples = write(scratch, template())
    lines = ["# Rendered projects", "", INTRODUCTION, ""]
    lines += ["| workload | layout | files | lines | tokens |", "|---|---|--:|--:|--:|"]
    for example in examples:
        project = scratch / example.name
        (folder / f"{example.name}.md").write_text(
            page(example, project, configurator), encoding="utf-8"
        )
        lines.append(row(example, project))
    lines += ["", "```{toctree}", ":hidden:", "", *(example.name for example in examples), "```"]
    (folder / "index.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


INTRODUCTION = """What Copier gives for each workload and layout, with every other answer as by default.
Tokens are Python's, without comments, docstrings, layout and tests."""


def files(project: Path) -> list[Path]:
    return sorted(path for path in project.rglob("*") if path.is_file())


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def row(example: Example, project: Path) -> str:
    paths = files(project)
    cells = [f"[`{example.workload}`]({example.name}.md)", example.layout, f"{len(paths)}"]
    cells += [f"{sum(map(count_lines, paths)):,}", f"{measure(project).code.tokens:,}"]
    return f"| {' | '.join(cells)} |"


def page(example: Example, project: Path, configurator: str) -> str:
    """The page of one project: its command, its files, and the code of those that one edits."""
    lines = [f"# `{example.workload}`, {example.layout}", "", *command(example)]
    if configurator:
        lines += ["", f"{link(example, configurator, '', 'Open it in the configurator')}, read "]
        lines += ["every file, compare it with other answers, and take it."]
    lines += ["", "## Files", "", "<ul>"]
    for path in files(project):
        name = path.relative_to(project).as_posix()
        shown = link(example, configurator, name, name) if configurator else name
        lines.append(f"<li>{shown}, {count_lines(path):,} lines</li>")
    lines += ["</ul>", ""]
    for path in sorted(edited(project)):
        lines += [f"## `{path.relative_to(project).as_posix()}`", "", *code(path), ""]
    return "\n".join(lines)


def command(example: Example) -> list[str]:
    layout = "" if example.layout == "package" else f" -d layout={example.layout}"
    words = f"copier copy --defaults -d workload={example.workload}{layout}"
    return ["```sh", f"{words} gh:org/fasttrain-template myproj", "```"]


def link(example: Example, configurator: str, file: str, text: str) -> str:
    answers = {"workload": example.workload, "layout": example.layout, "file": file}
    given = {name: value for name, value in answers.items() if value}
    return f'<a href="{configurator}#{urlencode(given)}">{text}</a>'


def edited(project: Path) -> Iterator[Path]:
    for name in SHOWN:
        for path in [project / name, *project.glob(f"src/*/{name}")]:
            if path.exists():
                yield path


def code(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return [f"````{LANGUAGES.get(path.suffix, 'text')}", text, "````"]
