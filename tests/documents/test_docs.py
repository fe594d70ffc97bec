"""The documents: every link leads somewhere, every page is in the navigation, and the site's pages
are those of docs/."""

import re

import build_site
import pytest
from links import (
    CODE_ADDRESS,
    DOCS,
    REPOSITORY,
    SITE_ADDRESS,
    documents,
    links,
    local_file,
    problems,
)
from rendering import render
from variants import SCRIPTS, choices, extras


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_to_a_file_and_to_a_heading_of_it(path):
    assert problems(path) == []


@pytest.mark.parametrize("workload", choices("workload"))
def test_links_of_a_rendered_readme_lead_somewhere(workload):
    everything = {"extras": extras(workload), "tracker": "wandb"}
    script = {"layout": "script"} if workload in SCRIPTS else {}
    for answers in ({}, everything, script):
        assert problems(render(workload=workload, **answers) / "README.md") == []


@pytest.mark.parametrize(
    "target",
    [
        "missing.md",
        "docs/../missing.md",
        "#no-such-heading",
        "page.md#no-such-heading",
        f"{CODE_ADDRESS}/blob/main/docs/missing.md",
        f"{CODE_ADDRESS}/blob/main/docs/how-to/update.md#no-such-heading",
        f"{SITE_ADDRESS}/missing.html",
        f"{SITE_ADDRESS}/how-to/update.html#no-such-heading",
    ],
)
def test_a_link_that_leads_nowhere_is_named_with_its_line(tmp_path, target):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nA [link\nof two lines]({target}).\n", encoding="utf-8")
    (problem,) = problems(page)
    assert problem.startswith(f"{page}:4: {target}: no such ")


def test_the_readme_begins_with_the_commands_of_the_repository():
    """They exist, and continuous integration calls the one for tests as it is written there."""
    beginning, _, _ = (REPOSITORY / "README.md").read_text().partition("\n## ")
    demo, test = re.findall(r"^(make \S+) ", beginning, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):.*## ", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert {demo, test} <= {f"make {target}" for target in targets}
    assert (REPOSITORY / ".ci/run").read_text().splitlines()[-1] == f"exec {test}"


def test_every_page_is_in_the_navigation_once():
    listed = [page.source for pages in build_site.navigation().values() for page in pages]
    assert len(listed) == len(set(listed))
    assert set(DOCS.rglob("*.md")) - {DOCS / "README.md"} <= set(listed)


def test_folders_of_tests_are_described_and_files_have_names_of_their_own():
    """Faults name a test by its file."""
    tests = REPOSITORY / "tests"
    listed = re.findall(r"^\| `(\w+)/` \|", (tests / "README.md").read_text(), re.MULTILINE)
    folders = {path.parent.relative_to(tests).parts[0] for path in tests.glob("*/**/*.py")}
    assert set(listed) == folders
    assert problems(tests / "README.md") == []
    names = [path.name for path in tests.rglob("test_*.py")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("has_node", [True, False])
def test_the_site_has_every_page_and_no_link_of_it_is_lost(has_node, tmp_path, monkeypatch):
    """Without Node the site has no configurator, so its link leads to the published one."""
    monkeypatch.setattr(build_site.bundle, "is_installed", lambda: has_node)
    build_site.copy_pages(tmp_path)
    for name in build_site.MADE:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    pages = sorted(tmp_path.rglob("*.md"))
    assert (
        len(pages) == len(list(DOCS.rglob("*.md"))) + 3
    )  # README.md, CONTRIBUTING.md, CHANGELOG.md
    assert tmp_path / "index.md" in pages
    for page in pages:
        assert problems(page) == []
        for link in links(page.read_text(encoding="utf-8")):
            file = local_file(link.target, page)
            inside = file is None or tmp_path in file.resolve().parents
            published = link.target == f"{SITE_ADDRESS}/configurator/" and not has_node
            is_code = link.target.startswith(CODE_ADDRESS)
            assert inside or published or is_code, f"{page}: {link.target}"
