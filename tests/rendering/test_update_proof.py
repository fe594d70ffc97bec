"""`make prove-update`: after an update, a run has the same bits, or a difference that is listed."""

import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from copiers import (
    OLD,
    _clean_home,  # noqa: F401
    commit,
    copied,
    git,
    run_copier,
)
from examples import template_at
from rendering import REPOSITORY, replace, template
from running import check_run, run
from sizes import TINY

NEW = "0.0.2"
EDITED = "0.0.3"
NUMERICS = yaml.safe_load((REPOSITORY / "tests/numerics.yml").read_text(encoding="utf-8"))
LISTED = {entry["workload"]: entry for entry in NUMERICS["differences"]}
RUN = ("--training.max_steps", "24", "--monitor.every_steps", "10", "--checkpoint.every_steps", "9")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    """The template of an earlier commit, tagged OLD, and as it is, tagged NEW."""
    since = NUMERICS["since"]
    known = subprocess.run(["git", "cat-file", "-e", f"{since}^{{commit}}"], cwd=REPOSITORY)
    if known.returncode:
        pytest.skip(f"this checkout has no commit {since}")
    folder = tmp_path_factory.mktemp("upstream") / "fasttrain-template"
    folder.mkdir()
    commit(template_at(since, folder), OLD)
    shutil.rmtree(folder / "template")
    shutil.copytree(template(), folder, dirs_exist_ok=True)
    return commit(folder, NEW)


def trained(upstream, folder, workload):
    """A project of the old version, with a run."""
    project = copied(upstream, folder, workload=workload, extras=["replay"])
    check_run(project, "train", *TINY[workload], *RUN, "--name", "a", cwd=project)
    assert git(project, "status", "--porcelain", "--untracked-files=no") == ""
    for file in (".out", ".err"):
        (project / file).unlink()
    return project


def prove(project):
    """What `make prove-update` runs, in a process that has loaded PyTorch."""
    makefile = (project / "Makefile").read_text(encoding="utf-8")
    (words,) = re.findall(r"^prove-update:.*\n\t\$\(RUN\) (.*) \$\(ARGS\)$", makefile, re.MULTILINE)
    return run(project, *shlex.split(words), cwd=project)


@pytest.mark.parametrize("workload", sorted(TINY, key=lambda name: name != "timeseries"))
@pytest.mark.first(1)
def test_an_update_keeps_the_bits_of_a_run(workload, upstream, tmp_path):
    project = trained(upstream, tmp_path / "project", workload)
    run_copier("newest", "update", "--defaults", "-r", NEW, cwd=project)
    done = prove(project)
    if workload in LISTED:
        assert done.code == 1, done.err
        assert (
            done.out.splitlines()[-1]
            == f"first difference of the code: {LISTED[workload]['first']}"
        )
        assert LISTED[workload]["reason"]
    else:
        assert done.code == 0, (done.out, done.err)
        assert done.out.endswith("\nequal bits: steps 1 to 24\n")


@pytest.mark.full
def test_an_update_that_changes_numbers_is_named(upstream, tmp_path):
    """By the step and the layer: that of the first module after another activation."""
    project = trained(upstream, tmp_path / "project", "tabular")
    model = upstream / "template/parts/workload/tabular/model.py"
    replace(model, "functional.relu(self.first(", "functional.gelu(self.first(")
    commit(upstream, EDITED)
    run_copier("newest", "update", "--defaults", "-r", EDITED, cwd=project)
    done = prove(project)
    assert done.code == 1, done.err
    assert "different bits from step 1 on: loss " in done.out
    assert done.out.endswith("first difference of the code: step 1, forward of layers.0.linear\n")
