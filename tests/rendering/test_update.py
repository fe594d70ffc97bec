"""`copier update` as users run it: a template of two released versions, projects under git, no
--trust."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from copier import VcsRef, run_update
from copiers import (
    COPIERS,
    OLD,
    _clean_home,  # noqa: F401
    commit,
    copied,
    git,
    in_process,
    run_copier,
)
from quick_copier import quickly
from rendering import REPOSITORY, render, replace, template
from test_tier_a import each_answer
from variants import PAIRWISE, extras, impossible, structural

NEW = "0.0.2"
CHANGE = ("update", "--defaults", "-r", ":current:", "-d")
PAGE = (REPOSITORY / "docs/how-to/update.md").read_text(encoding="utf-8")

every_copier = pytest.mark.parametrize("copier", COPIERS)


def every_copier_of_all(test):
    """By the newest Copier in `make test`, by both in `make test-all`."""
    return pytest.mark.first(1)(every_copier(test))


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    """The template as it stands, tagged OLD, and a later version of it, tagged NEW."""
    folder = tmp_path_factory.mktemp("upstream") / "fasttrain-template"
    commit(shutil.copytree(template(), folder), OLD)
    package = folder / "template/project/src/{{ package_name }}"
    config = folder / "template/parts/config/settings.yaml"
    new = "\n  seed: 42\n\n  # A setting of the new version.\n  new_setting: 1\n"
    replace(config, "\n  seed: 42\n", new)
    replace(config, "\n  keep: 2\n", "\n  keep: 3\n")
    order = package / "engine/loading/order.py"
    order.write_text(order.read_text(encoding="utf-8") + "\n\nNEW = True\n", encoding="utf-8")
    (package / "engine/later.py").write_text('"""Of the new version."""\n', encoding="utf-8")
    return commit(folder, NEW)


@pytest.fixture(scope="module")
def base(upstream, tmp_path_factory):
    """The default project of the older version."""
    return copied(upstream, tmp_path_factory.mktemp("base") / "project")


@pytest.fixture
def project(base, tmp_path):
    """A copy of it, to change."""
    return shutil.copytree(base, tmp_path / "project")


def answers_of(project):
    return yaml.safe_load((project / ".copier-answers.yml").read_text(encoding="utf-8"))


def content(project):
    """Files by path; of the answers without the version.

    Without `config.py`, which says in a project that was updated where its settings are.
    """
    texts = {}
    for path in sorted(project.rglob("*")):
        is_moved = path.match("src/*/config.py")
        if path.is_file() and ".git" not in path.relative_to(project).parts and not is_moved:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            texts[path.relative_to(project).as_posix()] = "".join(
                line for line in lines if not line.startswith(("_commit: ", "_src_path: "))
            )
    return texts


def changed(project):
    return git(project, "status", "--porcelain").splitlines()


# ---- a new version -----------------------------------------------------------------------------


@pytest.mark.first(1)
@every_copier
def test_update_without_edits_is_a_fresh_copy(upstream, tmp_path, copier):
    answers = {"gpu": "rtx_4090", "loader": "memmap", "extras": extras("timeseries")}
    project = copied(upstream, tmp_path / "project", which=copier, **answers)
    run_copier(copier, "update", "--defaults", cwd=project)
    assert content(project) == content(copied(upstream, tmp_path / "fresh", NEW, **answers))
    assert answers_of(project)["_commit"] == NEW
    commit(project)
    run_copier(copier, "update", "--defaults", cwd=project)
    assert changed(project) == [], "the second update changes nothing"


@every_copier
def test_edits_survive(project, copier):
    config = project / "config.yaml"
    package = project / "src/my_training"
    # The new setting comes between these two.
    replace(config, "\n  seed: 42\n", "\n  seed: 7\n")
    replace(config, "\n  deterministic: false\n", "\n  deterministic: true\n")
    # Replaced, as it is meant to be.
    (package / "model.py").write_text('"""My own model."""\n', encoding="utf-8")
    order = package / "engine/loading/order.py"
    order.write_text("# Mine.\n" + order.read_text(encoding="utf-8"), encoding="utf-8")
    (package / "mine.py").write_text("X = 1\n", encoding="utf-8")
    (package / "commands/report.py").unlink()
    commit(project)
    run_copier(copier, "update", "--defaults", cwd=project)

    assert git(project, "ls-files", "-u") == ""
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    assert settings["reproducibility"] == {"seed": 7, "new_setting": 1, "deterministic": True}
    assert settings["checkpoint"]["keep"] == 3
    left = content(package)
    assert left["model.py"] == '"""My own model."""\n'
    assert left["engine/loading/order.py"].startswith("# Mine.\n")
    assert left["engine/loading/order.py"].endswith("NEW = True\n")
    assert {"mine.py", "engine/later.py"} <= left.keys()
    assert "commands/report.py" not in left


@every_copier_of_all
def test_files_without_use_are_deleted_and_can_be_brought_back(upstream, tmp_path, copier):
    """What docs/how-to/update.md warns of: an edit goes with its file, and only git's status shows
    it."""
    extras = ["benchmark", "profile"]
    project = copied(upstream, tmp_path / "project", which=copier, extras=extras)
    edited = project / "src/my_training/commands/benchmark.py"
    edited.write_text(edited.read_text(encoding="utf-8") + "\n\nMINE = True\n", encoding="utf-8")
    commit(project)
    run_copier(copier, *CHANGE, "extras=[profile]", cwd=project)
    assert " D src/my_training/commands/benchmark.py" in changed(project)
    git(project, *update_page("git checkout HEAD"))
    assert "MINE = True" in edited.read_text(encoding="utf-8")


@every_copier_of_all
def test_edits_move_with_a_package_that_was_moved_first(project, upstream, tmp_path, copier):
    package = project / "src/my_training"
    model = (package / "model.py").read_text(encoding="utf-8") + "\n\nMINE = True\n"
    (package / "model.py").write_text(model, encoding="utf-8")
    (package / "mine.py").write_text("MINE = True\n", encoding="utf-8")
    commit(project)
    git(project, *update_page("git mv"))
    commit(project)
    update = update_page("copier update --defaults -r :current: -d package_name")
    run_copier(copier, *update, cwd=project)
    assert "src/other/model.py" in git(project, "ls-files", "-u")
    git(project, *update_page("git checkout --ours -- src/other"))
    renamed = copied(upstream, tmp_path / "fresh", package_name="other")
    mine = {"src/other/model.py": model, "src/other/mine.py": "MINE = True\n"}
    assert content(project) == content(renamed) | mine


def update_page(start):
    """The words, without the first, of the one command of docs/how-to/update.md that begins so."""
    lines = map(str.strip, PAGE.splitlines())
    (command,) = (line for line in lines if line.startswith(start))
    return shlex.split(command.partition("  #")[0].partition(" && ")[0])[1:]


@every_copier_of_all
def test_edit_of_the_same_line_is_a_conflict_that_git_knows(project, copier):
    replace(project / "config.yaml", "\n  keep: 2\n", "\n  keep: 5\n")
    commit(project)
    said = run_copier(copier, "update", "--defaults", cwd=project)
    assert "git ls-files -u" in said
    assert "config.yaml" in git(project, "ls-files", "-u")
    text = (project / "config.yaml").read_text(encoding="utf-8")
    assert re.search("<<<<<<<.*keep: 5.*=======.*keep: 3.*>>>>>>>", text, flags=re.DOTALL)


@every_copier_of_all
def test_edit_of_the_former_config_is_a_conflict_and_a_new_project_has_no_such_file(
    tmp_path, copier
):
    """Its settings moved to `settings.py`: an edit would vanish with a file that is removed."""
    folder = shutil.copytree(template(), tmp_path / "fasttrain-template")
    new = folder / "template/project/src/{{ package_name }}/config.py"
    moved = new.read_text(encoding="utf-8")
    old = new.with_name("config.py.jinja")
    questions = folder / "copier.yml"
    text = questions.read_text(encoding="utf-8")
    questions.write_text(re.sub(r".*config\.py.*\n", "", text), encoding="utf-8")
    new.rename(old).write_text("NAME = 'adamw'\n\n\nSCHEDULE = 'cosine'\n", encoding="utf-8")
    commit(folder, OLD)
    project = copied(folder, tmp_path / "project", which=copier)
    questions.write_text(text, encoding="utf-8")
    old.rename(new).write_text(moved, encoding="utf-8")
    commit(folder, NEW)
    edited = project / "src/my_training/config.py"
    replace(edited, "'adamw'", "'lion'")
    commit(project)
    run_copier(copier, "update", "--defaults", cwd=project)
    assert edited.name in git(project, "ls-files", "-u")
    conflict = edited.read_text(encoding="utf-8")
    assert re.search("<<<<<<<.*NAME = 'lion'.*=======.*Moved: ", conflict, flags=re.DOTALL)

    fresh = copied(folder, tmp_path / "fresh", NEW, which=copier)
    run_copier(copier, *CHANGE, "loader=chunk", cwd=fresh)
    assert not (fresh / "src/my_training/config.py").exists()


# ---- other answers -----------------------------------------------------------------------------


TEXTS = {
    "project_name": "other name",
    "package_name": "other",
    "project_description": "It trains.",
}
CHANGES = [TEXTS, *each_answer(*structural(), *PAIRWISE)]


@pytest.mark.parametrize("data", CHANGES, ids=lambda data: "-".join(map(str, data.values())))
@pytest.mark.first(2)
def test_changing_answers_is_a_fresh_copy(project, data):
    options = {"defaults": True, "vcs_ref": VcsRef.CURRENT, "overwrite": True, "quiet": True}
    with quickly():
        run_update(project, data=data, **options)
    answers = answers_of(project)
    assert data.items() <= answers.items()
    given = {key: answer for key, answer in answers.items() if key[0] != "_"}
    assert content(project) == content(render(**given))


@every_copier_of_all
def test_move_to_a_gpu_without_the_chosen_precision(upstream, tmp_path, copier):
    """What the old card could and the new one cannot goes back to auto, and never stays behind
    unnoticed."""
    assert impossible({"gpu": "v100", "precision": "bf16"})
    project = copied(upstream, tmp_path / "project", which=copier, gpu="h100", precision="bf16")
    run_copier(copier, *CHANGE, "gpu=v100", cwd=project)
    answers = answers_of(project)
    assert (answers["gpu"], answers["precision"]) == ("v100", "auto")
    assert "**fp16**" in (project / "README.md").read_text(encoding="utf-8")


def test_layout_changes_both_ways_and_what_is_not_asked_goes(upstream, tmp_path):
    """The tree of the other layout goes with edits in it; files of one's own stay."""
    chosen = {"workload": "llm", "gpu": "h100"}
    answers = {"distributed": "ddp", "tracker": "wandb", "extras": ["watch"]}
    project = copied(upstream, tmp_path / "project", **chosen, **answers)
    (project / "mine.py").write_text("MINE = True\n", encoding="utf-8")
    replace(project / "README.md", "# my-training\n", "# Mine\n")
    for layout, edited in (("script", "Makefile"), ("package", "train.py")):
        with (project / edited).open("a", encoding="utf-8") as file:
            file.write("# an edit\n")
        run_copier("newest", *CHANGE, f"layout={layout}", cwd=commit(project))
        left = content(project)
        wanted = content(render(**chosen, layout=layout))
        wanted |= {"mine.py": "MINE = True\n", "README.md": left["README.md"]}
        assert left == wanted
        assert left["README.md"].startswith("# Mine\n")


def test_make_add_keeps_the_extras_that_a_project_has(upstream, tmp_path, monkeypatch):
    project = copied(upstream, tmp_path / "project", extras=["watch"])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    unnamed = subprocess.run(["make", "add"], cwd=project, capture_output=True, text=True)
    assert "error: no extra: EXTRA: name one, as in: make add EXTRA=check" in unnamed.stderr
    assert changed(project) == []
    subprocess.run(["make", "add", "EXTRA=check, ema"], cwd=project, check=True)
    assert content(project) == content(render(extras=["watch", "check", "ema"]))


# ---- the environment ---------------------------------------------------------------------------


def copier_commands(page):
    """Those of a document, without the comment behind; one may take two lines."""
    lines = map(str.strip, page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines())
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("copier ")]


def documented():
    """Every Copier command of the documents and of a rendered README."""
    pages = [
        REPOSITORY / "README.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
        render() / "README.md",
    ]
    return sorted({command for page in pages for command in copier_commands(page)})


def test_what_stops_an_update_is_on_the_page(project):
    """Copier says what the page says, and after the page's command the update works."""
    update = [sys.executable, "-m", "copier", *CHANGE, "loader=chunk"]

    def last_line(environment=None):
        env = {**os.environ, **(environment or {})}
        done = subprocess.run(update, cwd=project, env=env, capture_output=True, text=True)
        assert done.returncode != 0
        return done.stderr.strip().splitlines()[-1]

    def on_page(line):
        return f"| `{line}` |" in PAGE or f"| `{line.partition('. ')[0]}.` |" in PAGE

    other = project.with_name("other")
    other.mkdir()
    commit(other)
    assert last_line({"GIT_DIR": str(other / ".git")}) == f"ValueError: Unknown revision: '{OLD}'"
    assert "`ValueError: Unknown revision: '…'`" in PAGE
    (project / "mine").touch()
    assert on_page(last_line())
    git(project, "rm", "--quiet", ".copier-answers.yml")
    commit(project)
    assert on_page(last_line())
    (restore,) = re.findall(r"^    (git checkout .* -- .copier-answers.yml)  ", PAGE, re.MULTILINE)
    subprocess.run(restore, shell=True, cwd=project, check=True)
    commit(project)
    in_process(*update[3:], cwd=project)
    assert "loader: chunk" in (project / ".copier-answers.yml").read_text()
    shutil.rmtree(project / ".git")
    assert on_page(last_line())


@pytest.mark.parametrize("command", documented())
@pytest.mark.first(2)
def test_documented_command_works(upstream, project, command):
    command = command.replace("gh:org/fasttrain-template", str(upstream))
    # Without `--defaults` it asks on a terminal.
    command = re.sub(r"^copier (\w+)( --defaults)?", r"-m copier \1 --defaults", command)
    words = ["sh", "-c", f"{sys.executable} {command}"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True)
    if "gpu=v100 -d precision=bf16" in command:  # shown as an example of a refusal
        assert done.stderr.strip().rpartition(": ")[2] in PAGE
        assert changed(project) == []
    else:
        assert done.returncode == 0, done.stderr
        # The project has the layout already, and another project is next to it.
        is_elsewhere = command.endswith("layout=package") or " ../" in command
        assert bool(changed(project)) != is_elsewhere
