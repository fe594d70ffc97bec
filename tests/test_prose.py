"""What people read has the field's words and sentences that one breath can hold."""

import sys
from pathlib import Path

import pytest
from rendering import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tools"))

import prose


def test_words_and_sentences() -> None:
    places = []
    for path in prose.files():
        name = str(path.relative_to(REPOSITORY))
        lines = prose.problems(path)
        allowed = prose.RULES["allowed"].get(name, 0)
        if len(lines) > allowed:
            places += lines
        assert len(lines) >= allowed, f"tools/prose.yml: lower the number of {name} to {len(lines)}"
    assert places == [], "\n".join(places)


def test_files_that_are_allowed_something_exist() -> None:
    names = {str(path.relative_to(REPOSITORY)) for path in prose.files()}
    assert set(prose.RULES["allowed"]) <= names


@pytest.mark.parametrize(
    ("suffix", "source"),
    [
        (".md", "A picture of it.\n"),
        (".md", "word " * 31 + "\n"),
        (".yml", "# It goes\n# on.\n"),
        (".py", '"""A docstring.\n\nIt goes on\n"""\n'),
        (".py", "raise ValueError('a mistake')\n"),
    ],
)
def test_a_fault_is_found(
    suffix: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prose, "REPOSITORY", tmp_path)
    page = tmp_path / f"page{suffix}"
    page.write_text(source, encoding="utf-8")
    assert len(prose.problems(page)) == 1


def test_code_and_short_sentences_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prose, "REPOSITORY", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A picture\n\n    a verb\n\n```\nbeside\n```\n\n" + "Short. " * 40)
    assert prose.problems(page) == []
