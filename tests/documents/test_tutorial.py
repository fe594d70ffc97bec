"""The tutorials from their first command to their last, and the run of the README: each command runs,
and prints what the page shows."""

import re
import shlex
import shutil

import pytest
from copiers import _clean_home, commit  # noqa: F401
from rendering import REPOSITORY, document, render, template
from running import check_run
from shells import shell

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
RUN = re.compile(r"runs/[\d_-]+")
PAGES = ("tutorial", "many-series")
BLOCK = re.compile(
    r"(?:`(\w+\.py)`[^`]*)?^```(sh|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
SOURCE = "gh:org/fasttrain-template"
# These need a network. The tests' own environment has what they install.
INSTALLS = ('uv tool install "copier', "make setup", "source .venv/bin/activate")
PYTHON = "python -m my_training "
CELLS = re.compile(r"[\s,]+")  # a line may be of a CSV file
CLOSE = 0.05  # another processor rounds differently


def blocks(page):
    """(language, text, name of the file) of each block of a page."""
    for match in BLOCK.finditer(document(page).read_text(encoding="utf-8")):
        name, language, text = match.groups()
        yield language, text, name or ""


class Reader:
    """Somebody who types the commands, first in an empty folder and then in the project."""

    def __init__(self, folder, source):
        self.folder = folder
        self.source = source

    def type(self, command):
        """What a command prints."""
        if command.startswith(INSTALLS):
            return ""
        if command.startswith("cd "):
            self.folder /= command.removeprefix("cd ")
            return ""
        if command.startswith(PYTHON):
            words = shlex.split(command.removeprefix(PYTHON))
            return check_run(self.folder, *words, cwd=self.folder).out
        command = command.replace(SOURCE, str(self.source))
        return shell(self.folder, "sh", "-c", f"({command}) 2>&1")


def are_close(shown, printed):
    """Whether two words are equal, or two numbers with a decimal point are close."""
    if shown == printed:
        return True
    try:
        expected, measured = float(shown), float(printed)
    except ValueError:
        return False
    return "." in shown and measured == pytest.approx(expected, rel=CLOSE)


def is_shown(shown, printed):
    """Whether a line of the page stands for a printed line; `...` at its end stands for any words."""
    expected = CELLS.split(shown.strip())
    measured = CELLS.split(printed.strip())
    if expected and expected[-1] == "...":
        expected.pop()
        measured = measured[: len(expected)]
    return len(expected) == len(measured) and all(map(are_close, expected, measured))


def lines_of(text):
    return [line for line in text.splitlines() if line.strip()]


def compare(shown, printed):
    """Fail at the first line of the page that was not printed; a line `...` skips any lines."""
    may_skip = False
    place = 0
    for line in shown:
        if line == "...":
            may_skip = True
            continue
        while may_skip and place < len(printed) and not is_shown(line, printed[place]):
            place += 1
        assert place < len(printed), (line, printed)
        assert is_shown(line, printed[place]), (line, printed[place], printed)
        place += 1
        may_skip = False
    assert may_skip or place == len(printed), printed[place:]


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_every_command_prints_what_the_page_shows(page, tmp_path):
    source = commit(shutil.copytree(template(), tmp_path / "fasttrain-template"), "1.0.0")
    reader = Reader(tmp_path, source)
    for language, text, name in blocks(page):
        if language == "sh":
            lines = text.replace("\\\n", " ").splitlines()
            commands = [line.partition("  #")[0].strip() for line in lines]
            printed = "".join(map(reader.type, commands))
        elif language == "python":
            (reader.folder / name).write_text(text, encoding="utf-8")
        else:
            compare(lines_of(text), lines_of(printed))


def test_the_readme_shows_what_a_run_prints(tmp_path):
    (console,) = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    for entry in RUN.sub("RUN", console).split("$ ")[1:]:
        command, *shown = entry.splitlines()
        words = shlex.split(command.removeprefix(PYTHON))
        printed = check_run(render(), *words, cwd=tmp_path).out
        compare(lines_of("\n".join(shown)), lines_of(RUN.sub("RUN", printed)))
