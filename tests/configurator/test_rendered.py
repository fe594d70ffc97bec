"""`make examples` writes the default projects, and shows what a change of the template does to them."""

import shutil
import subprocess
import sys

import examples
import pytest
from copiers import _clean_home, commit  # noqa: F401
from example_pages import write_pages
from rendering import render, replace, template


def test_each_workload_and_layout_has_an_example(tmp_path):
    written = examples.write(tmp_path / "examples", template())
    assert {"timeseries-package", "llm-script"} <= {example.name for example in written}
    ours = tmp_path / "examples/tabular-package"
    expected = render(workload="tabular")
    for path in expected.rglob("*.py"):
        name = path.relative_to(expected)
        assert (ours / name).read_bytes() == path.read_bytes(), name


def test_what_a_change_does_to_projects_is_shown(tmp_path, monkeypatch, capsys):
    repository = commit(shutil.copytree(template(), tmp_path / "template"))
    readme = repository / "template/project/README.md.jinja"
    replace(readme, "# {{ project_name }}\n", "# {{ project_name }}\n\nOf a change.\n")
    monkeypatch.setattr(examples, "REPOSITORY", repository)
    monkeypatch.setattr(examples, "template", lambda: repository)
    only = [examples.Example("tabular-package", "tabular", "package")]
    monkeypatch.setattr(examples, "examples", lambda: only)
    assert examples.main([str(tmp_path / "out"), "--against", "HEAD"]) == 0
    shown = capsys.readouterr().out
    assert "1 file changed, 2 insertions(+)" in shown
    assert "+Of a change." in shown
    assert examples.main([str(tmp_path / "out"), "--against", "HEAD"]) == 0


def test_a_commit_that_does_not_exist_is_one_line(tmp_path):
    command = [sys.executable, "tools/examples.py", str(tmp_path / "out"), "--against", "no-such"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=examples.REPOSITORY)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: no such commit: no-such")


@pytest.mark.parametrize("configurator", ["", "../configurator/index.html"])
def test_pages_of_projects_link_to_the_configurator(configurator, tmp_path, monkeypatch):
    only = [examples.Example("tabular-script", "tabular", "script")]
    monkeypatch.setattr(examples, "examples", lambda: only)
    write_pages(tmp_path, tmp_path / "scratch", configurator)
    page = (tmp_path / "projects/tabular-script.md").read_text(encoding="utf-8")
    assert "copier copy --defaults -d workload=tabular -d layout=script" in page
    assert "def main(" in page
    link = '<a href="../configurator/index.html#workload=tabular&layout=script">'
    assert (link in page) == bool(configurator)
    assert "[`tabular`](tabular-script.md)" in (tmp_path / "projects/index.md").read_text()
