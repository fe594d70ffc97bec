"""The build of the configurator: what the page could not compute stops it, and every Copier gives
the same."""

import re
import subprocess

import pytest
import yaml
from budget import measure_code
from configurator import coverage, private
from configurator.answers import WRITTEN, Answers
from configurator.build import contents_file, newest_release, read_page
from configurator.files import File
from configurator.programs import Programs
from configurator.reachable import Reached
from configurator.unknown import NotComputable
from configured import SOURCE, built
from copiers import LOWEST, _clean_home, commit, git  # noqa: F401
from rendering import REPOSITORY, template


@pytest.fixture(scope="module")
def page():
    return read_page(template())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return private.Template(template(), tmp_path_factory.mktemp("scratch"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ project_name | upper }}", "computes with the text project_name"),
        ("{% if project_name == 'x' %}y{% endif %}", "computes with the text project_name"),
        ("{% for e in extras %}{{ e }}{% endfor %}", "goes through all extras"),
        ("{{ extras | length }}", "goes through all extras"),
        ("{{ extras + [layout] }}", "goes through all extras"),
        ("{{ ['check'] + extras }}", "goes through all extras"),
        ("{% if gpu_memory_gb < 8 %}small{% endif %}", "computes with gpu_memory_gb"),
        ("{% if package_name %}y{% endif %}", "a condition reads the text package_name"),
        ("{{ project_name | quote }}", "reads the text project_name"),
        ("{{ project_name | tojson }}", "computes with a typed text"),
        ("{{ card.memory_gb if gpu == 'other' }}", "computes with a typed text"),
        ("{{ project_name ~ (gpu_memory_gb + 1) }}", "computes with gpu_memory_gb"),
    ],
)
def test_what_the_page_cannot_compute_stops_the_build(text, reason, source):
    with pytest.raises((NotComputable, TypeError), match=reason):
        Programs(source).text_tree(text)


@pytest.mark.parametrize("key", WRITTEN)
def test_a_rule_of_typed_texts_that_changes_stops_the_build(key, source, monkeypatch):
    name, _, field = key.partition(".")
    questions = {**source.questions, name: {**source.questions[name], field: "{{ other }}"}}
    monkeypatch.setattr(source, "questions", questions)
    with pytest.raises(NotComputable, match=re.escape(f"{key} in copier.yml changed")):
        Answers(source)


def test_independent_conditions_are_separate_decisions(source):
    programs = Programs(source)
    extras = [choice.value for choice in programs.answers.choices["extras"]]
    text = "".join(f"{{% if '{extra}' in extras %}}{extra} {{% endif %}}" for extra in extras)
    tree = programs.text_tree(text)
    assert programs.decisions.content(tree)[0] == "+"
    assert programs.decisions.renderings < 10 * len(extras)


def test_every_branch_is_reached_and_visited(page):
    """What no possible answers reach was left out, and the projects visit the rest."""
    reached = coverage.branches(page)
    nodes = {node for node, _ in reached.branches}
    for node in nodes:
        atom, branches = page.decisions.content(node)
        unreached = {
            index for index in range(len(branches)) if (node, index) not in reached.branches
        }
        others = [branches[index] for index in range(len(branches)) if index not in unreached]
        assert all(branches[index] in others for index in unreached), (atom, unreached)
    missing = set(reached.branches)
    for known in (reached.branches[branch] for branch in list(reached.branches)):
        if missing:
            missing -= coverage.visited_by(page, known)
    assert not missing


def test_answers_that_exclude_each_other_have_no_branch(page):
    possible = page.possible
    assert possible.answers({"gpu": "v100", "precision": "bf16"}) is None
    assert possible.answers({"workload": "tabular", "extras.frames": True}) is None
    assert possible.answers({"layout": "script", "extras.check": True}) is None
    assert possible.answers({"layout": "script", "framework": "lightning"}) is None
    found = possible.answers({"gpu": "other 9.0", "precision": "fp8"})
    assert found is not None
    assert found["workload"] in ("llm", "seq2seq")


def test_an_unreached_branch_is_left_out(source, page):
    programs = Programs(source)
    text = "{% if layout == 'script' %}{% if 'check' in extras %}a{% else %}b{% endif %}{% endif %}"
    tree = programs.text_tree(text)
    reached = Reached(programs.decisions, page.possible)
    reached.visit(File(programs.decisions.text("x"), tree, False))
    assert programs.decisions.possible(reached.kept(tree)) == {"", "b"}


@pytest.mark.skipif(not LOWEST.exists(), reason="not run: .venv-copier-lowest is missing")
def test_the_lowest_copier_builds_the_same(tmp_path):
    lowest = yaml.safe_load((REPOSITORY / "copier.yml").read_text())["_min_copier_version"]
    assert private.TESTED[0] == lowest
    python = LOWEST.with_name("python")
    words = [str(template()), str(tmp_path / "page"), "--source", SOURCE]
    subprocess.run(
        [str(python), "-m", "configurator.build", *words],
        cwd=REPOSITORY / "tools",
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for path in (tmp_path / "page").iterdir():
        assert path.read_bytes() == (built().folder / path.name).read_bytes(), path.name


def test_a_workload_has_its_texts_in_a_file_of_its_own():
    folder = built().folder
    names = {path.name for path in folder.glob("contents*.js")}
    workloads = yaml.safe_load((REPOSITORY / "copier.yml").read_text())["workload"]["choices"]
    assert names == {contents_file(name) for name in ["", "extras", *workloads.values()]}
    common = (folder / "contents.js").read_text(encoding="utf-8")
    assert "class TemporalBlock" not in common
    extras = (folder / "contents-extras.js").read_text(encoding="utf-8")
    tune = "Find the fastest settings for this machine"
    assert tune not in common
    assert tune in extras
    assert "class TemporalBlock" in (folder / "contents-graph.js").read_text(encoding="utf-8")


def test_the_page_shows_the_newest_release(tmp_path):
    assert newest_release(tmp_path) == "HEAD"
    commit(tmp_path)
    for tag in ("0.9.0", "v0.10.0", "v0.11.0rc1", "other"):
        git(tmp_path, "tag", tag)
    assert newest_release(tmp_path) == "v0.10.0"


def test_the_builder_reads_as_the_projects_do():
    # Without what npm installs there, which has programs in Python, too.
    code = measure_code((REPOSITORY / "tools/configurator").glob("*.py"))
    assert round(code.tokens_per_statement, 1) <= 10.5
    assert code.largest_function <= 350
    assert code.tuple_assignments == code.walrus == 0
