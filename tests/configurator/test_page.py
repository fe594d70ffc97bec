"""The configurator's page as people use it: in a browser; its command and its zip with Copier."""

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from configurator import build, bundle, screenshot
from configured import CHECKS, SOURCE, in_node, needs_node, page_folder
from copiers import _clean_home, commit, git  # noqa: F401
from rendering import replace, template

CHROMIUM = os.environ.get("CHROMIUM") or "/usr/bin/chromium"
LINKS = [
    {"workload": "llm", "gpu": "h100", "precision": "fp8", "extras": ["check", "slurm"]},
    {"workload": "tabular", "layout": "script", "project_name": "Cats & 'dogs'"},
    {"gpu": "other", "gpu_compute_capability": "7.0", "gpu_memory_gb": 11.5, "extras": ["docker"]},
]

needs_libraries = pytest.mark.skipif(
    not bundle.ESBUILD.exists(), reason="not run: npm ci in tools/configurator was not run"
)
needs_browser = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="not run: there is no Chromium; CHROMIUM names another"
)


@needs_node
@needs_libraries
@needs_browser
def test_the_page_works_in_a_browser(tmp_path):
    folder = page_folder(tmp_path / "page")
    done = subprocess.run(
        ["node", str(CHECKS / "browser.js"), str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "CHROMIUM": CHROMIUM, "HOME": str(tmp_path)},
    )
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert done.returncode == 0, "\n".join([*failures, done.stderr])
    assert done.stdout.count("ok  ") > 30


@needs_node
@needs_libraries
@needs_browser
def test_the_screenshot_of_the_readme_shows_the_page(tmp_path):
    """`make screenshot` takes it anew."""
    folder = page_folder(tmp_path / "page")
    assert screenshot.kept_words(screenshot.SCREENSHOT) == screenshot.take(
        folder, tmp_path / "screenshot.png"
    )


@needs_node
@needs_libraries
def test_the_page_is_written_into_a_folder_of_this_one(tmp_path, monkeypatch):
    """esbuild runs elsewhere."""
    monkeypatch.chdir(tmp_path)
    bundle.write_page(Path("site/configurator"))
    names = {path.name for path in Path("site/configurator").iterdir()}
    assert names == {"index.html", "app.css", "app.js"}


@needs_node
@needs_libraries
def test_the_modules_are_clean():
    command = [str(bundle.HERE / "node_modules/.bin/eslint"), "--max-warnings", "0"]
    done = subprocess.run(
        [*command, "page", "checks"], cwd=bundle.HERE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """The template at its public address, which git finds on this machine, and the page of it."""
    folder = tmp_path_factory.mktemp("origin")
    upstream = commit(shutil.copytree(template(), folder / "org/fasttrain-template.git"))
    page = build.read_page(upstream)
    build.write_data(page, SOURCE, folder / "page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_COUNT", "1")
        patch.setenv("GIT_CONFIG_KEY_0", f"url.file://{folder}/.insteadOf")
        patch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/")
        yield folder


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and ".git" not in name.parts:
            files[name.as_posix()] = (path.read_bytes(), bool(path.stat().st_mode & 0o111))
    return files


@needs_node
@needs_libraries
@pytest.mark.parametrize("answers", LINKS, ids=["package", "script", "other"])
@pytest.mark.first(2)
def test_command_and_zip_are_equal_and_an_update_keeps_an_edit(answers, origin, tmp_path):
    archive = tmp_path / "project.zip"
    command = in_node("take.js", str(origin / "page"), str(archive), given=answers)
    words = shlex.split(command)
    assert words[0] == "copier"
    (tmp_path / "copied").mkdir()
    run(*words[1:], cwd=tmp_path / "copied")
    subprocess.run(["unzip", "-q", str(archive), "-d", str(tmp_path / "zip")], check=True)
    (copied,) = (tmp_path / "copied").iterdir()
    (project,) = (tmp_path / "zip").iterdir()
    assert project.name == copied.name == words[-1]
    assert tree(project) == tree(copied)
    with zipfile.ZipFile(archive) as content:
        assert len(content.namelist()) == len(tree(copied))

    commit(project)
    train = next(path for path in project.rglob("train.py") if path.parent.name != "commands")
    edited = train.read_text(encoding="utf-8") + "\n# mine\n"
    train.write_text(edited, encoding="utf-8")
    commit(project)
    newer = newer_version(origin, tmp_path / "newer")
    run("update", "--defaults", "-r", newer, cwd=project)
    updated = train.read_text(encoding="utf-8")
    assert updated.endswith("\n# mine\n")
    assert "Of the newer version." in (project / "README.md").read_text(encoding="utf-8")
    assert not git(project, "diff", "--name-only", "--diff-filter=U")


def run(*words: str, cwd: Path) -> None:
    """Copier as a process of its own: it asks git with the variables of its start."""
    subprocess.run(
        [sys.executable, "-m", "copier", *words], cwd=cwd, check=True, capture_output=True
    )


def newer_version(origin: Path, folder: Path) -> str:
    """A commit of the template with another README, on a branch of its own; its name."""
    git(folder.parent, "clone", "--quiet", str(origin / "org/fasttrain-template.git"), str(folder))
    for path in ("template/project/README.md.jinja", "template/script/README.md.jinja"):
        replace(
            folder / path,
            "# {{ project_name }}\n",
            "# {{ project_name }}\n\nOf the newer version.\n",
        )
    commit(folder)
    git(folder, "push", "--quiet", "origin", f"HEAD:refs/heads/{folder.parent.name}")
    return git(folder, "rev-parse", "HEAD").strip()
