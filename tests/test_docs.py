"""The documents: every link leads somewhere, every page is in the navigation, and the site's pages
are those of docs/."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import build_site
import pytest
from links import (
    CODE_ADDRESS,
    DOCS,
    REPOSITORY,
    SITE_ADDRESS,
    anchors,
    documents,
    links,
    local_file,
    problems,
)
from links import main as check_other_sites
from rendering import render
from variants import choices, extras, scripts


def written(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_to_a_file_and_to_a_heading_of_it(path):
    assert problems(path) == []


@pytest.mark.parametrize("workload", choices("workload"))
def test_links_of_a_rendered_readme_lead_somewhere(workload):
    everything = {"extras": extras(workload), "tracker": "wandb"}
    for answers in ({}, everything):
        assert problems(render(workload=workload, **answers) / "README.md") == []


@pytest.mark.parametrize("workload", sorted({answers["workload"] for answers in scripts()}))
def test_links_of_a_script_s_readme_lead_somewhere(workload):
    assert problems(render(workload=workload, layout="script") / "README.md") == []


@pytest.mark.parametrize(
    "target",
    [
        "missing.md",
        "docs/../missing.md",
        "#no-such-heading",
        "page.md#no-such-heading",
        f"{CODE_ADDRESS}/blob/main/docs/missing.md",
        f"{CODE_ADDRESS}/blob/main/docs/update.md#no-such-heading",
        f"{SITE_ADDRESS}/missing.html",
        f"{SITE_ADDRESS}/update.html#no-such-heading",
    ],
)
def test_a_link_that_leads_nowhere_is_named_with_its_line(tmp_path, target):
    page = written(tmp_path, f"# Page\n\nA [link\nof two lines]({target}).\n")
    (problem,) = problems(page)
    assert problem.startswith(f"{page}:4: {target}: no such ")


@pytest.mark.parametrize(
    "target",
    [
        "page.md",
        "#a-word--code_here",
        "#twice-1",
        "#made-by-hand",
        f"{CODE_ADDRESS}/tree/main/template/parts",
        f"{CODE_ADDRESS}",
        f"{SITE_ADDRESS}",
        f"{SITE_ADDRESS}/overview.html",
        f"{SITE_ADDRESS}/benchmarks/",
        f"{SITE_ADDRESS}/update.html#what-an-update-may-change",
        "mailto:nobody",
    ],
)
def test_headings_have_the_anchors_that_github_gives_them(tmp_path, target):
    text = "# A [word](x.md) & `code_here`!\n\n## Twice\n\n## Twice\n\n"
    text += f'<a id="made-by-hand"></a>\n\n[link]: {target}\n'
    assert problems(written(tmp_path, text.replace("(x.md)", "(page.md)"))) == []


def test_what_looks_like_a_link_in_code_is_none(tmp_path):
    text = (
        "`a[0](b)` and\n\n    c[1](d)\n\n    e[2](f)\n\n```python\n# no heading\ng[3](h)\n```\n\n"
    )
    page = written(tmp_path, text + "<!-- [i](j) -->\n[real](k)\n")
    assert [link.target for link in links(page.read_text(encoding="utf-8"))] == ["k"]
    assert anchors(page) == frozenset()


def test_every_page_is_in_the_navigation_once():
    listed = [page.source for pages in build_site.navigation().values() for page in pages]
    assert len(listed) == len(set(listed))
    assert set(DOCS.rglob("*.md")) - {DOCS / "README.md"} <= set(listed)


def test_the_site_has_every_page_and_no_link_of_it_is_lost(tmp_path):
    build_site.copy_pages(tmp_path)
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
            assert inside or link.target.startswith(CODE_ADDRESS), f"{page}: {link.target}"


def test_a_page_that_asks_another_host_is_named(tmp_path):
    remote = [
        '<script defer src="https://cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example.org/css">',
        '<img alt="badge" src="https://badges.example.org/1.svg">',
        "<style>@import 'https://fonts.example.org/css'</style>",
        "<style>body { background: url(https://images.example.org/1.png) }</style>",
    ]
    for line in remote:
        (tmp_path / "page.html").write_text(line)
        assert len(list(build_site.remote_requests(tmp_path))) == 1, line
    own = '<script src="_static/x.js"></script><a href="https://example.org">elsewhere</a>'
    canonical = '<link rel="canonical" href="https://example.org/page.html">'
    (tmp_path / "page.html").write_text(own + canonical)
    assert list(build_site.remote_requests(tmp_path)) == []


class Site(BaseHTTPRequestHandler):
    """A site that has two pages, one of which it gives only whole."""

    def do_HEAD(self) -> None:
        self.send_response({"/page": 200, "/only-get": 405}.get(self.path, 404))
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response({"/only-get": 200}.get(self.path, 404))
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_make_links_names_an_address_that_is_gone(
    tmp_path,
    address,
    monkeypatch,
    capsys,
):
    monkeypatch.setattr("links.is_public", lambda address: True)
    page = written(tmp_path, f"[a]({address}/page), {address}/only-get.\n")
    assert check_other_sites([str(page)]) == 0
    assert capsys.readouterr().out == "2 addresses, 0 of them without an answer\n"
    page = written(tmp_path, f"\n`curl {address}/gone` and {address}/gone#place\n")
    assert check_other_sites([str(page)]) == 1
    expected = f"{page}:2: {address}/gone: HTTP Error 404: Not Found\n"
    assert capsys.readouterr().out.startswith(expected)
