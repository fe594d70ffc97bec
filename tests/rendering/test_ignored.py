"""No code is in a path that a common ignore list hides: git would not store it, and an update would
overwrite the edits there."""

import subprocess

import pytest
from rendering import render
from variants import all_variants, scripts

# The patterns that can meet a path of a project, of github/gitignore (Python.gitignore,
# TeX.gitignore, MATLAB and editors in Global/) and drivendataorg/cookiecutter-data-science
# (.gitignore of a project), and the names of folders that people add to such a list.
LISTS = {
    "python": """__pycache__/ *.py[codz] *$py.class *.so .Python build/ develop-eggs/ dist/ downloads/
        eggs/ .eggs/ lib/ lib64/ parts/ sdist/ var/ wheels/ share/python-wheels/ *.egg-info/
        .installed.cfg *.egg MANIFEST *.manifest *.spec htmlcov/ .tox/ .nox/ .coverage .coverage.*
        .cache *.cover *.lcov .hypothesis/ .pytest_cache/ cover/ *.mo *.pot *.log local_settings.py
        instance/ docs/_build/ .pybuilder/ target/ .ipynb_checkpoints profile_default/
        __pypackages__/ *.rdb *.pid *.sage.py .env .envrc .venv env/ venv/ ENV/ .ropeproject /site
        .mypy_cache/ .pyre/ .pytype/ cython_debug/ .ruff_cache/ .pypirc""",
    "data science": """data/ models/ log/ logs/ runs/ output/ outputs/ results/ weights/ checkpoints/
        wandb/ mlruns/ lightning_logs/ tmp/ temp/ cache/ *.csv *.pkl *.h5 *.hdf5 *.npy *.npz *.pt
        *.pth *.ckpt *.parquet *.tar.gz *.zip .DS_Store .idea/ .vscode/ *.swp *~""",
    "latex": """*.aux *.lof *.log *.lot *.fls *.out *.toc *.fmt *.dvi *.bbl *.bcf *.blg *.run.xml
        *.synctex *.alg *.loa *.thm *.nav *.pre *.snm *.vrb *.soc *.loc *.cut *.cpt *.spl *.ent
        *.lox *.mf *.mp *.end *.?end *.acn *.acr *.glg *.glo *.gls *.gnuplot *.table *.trc *.xref
        *.hd *.brf *.lol *.idx *.ilg *.ind *.maf *.mlf *.pax *.wrt *.listing *.loe *.md5 *.tdo
        *.ver *.lod *.bak *.sav *.backup ./auto/* *.el *.sta *.tps""",
}


@pytest.fixture(scope="module")
def paths():
    """Every path that some project has."""
    found = set()
    for answers in (*all_variants(), *scripts()):
        project = render(**answers)
        files = [path for path in project.rglob("*") if path.is_file()]
        found.update(path.relative_to(project).as_posix() for path in files)
    return sorted(path for path in found if "__pycache__" not in path)


@pytest.mark.parametrize("name", LISTS)
def test_no_file_of_a_project_is_hidden(name, paths, tmp_path):
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("\n".join(LISTS[name].split()) + "\n")
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    asked = "\n".join([*paths, "data/rows.log"])
    done = subprocess.run(command, cwd=tmp_path, input=asked, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["data/rows.log"]  # so the lists are read
