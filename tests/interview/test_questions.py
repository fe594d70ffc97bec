"""The questions: what is refused, why, and that nothing is written then; the tables behind them."""

import importlib.metadata
import itertools
import keyword
import re
import subprocess
import sys

import pytest
import yaml
from copier import run_copy
from copiers import _clean_home, refusal, run_copier  # noqa: F401
from packaging.specifiers import SpecifierSet
from rendering import REPOSITORY, render, template
from variants import choices, gpus, impossible

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")


# ---- precision by GPU --------------------------------------------------------------------------


def refused():
    """(gpu, precision) that the interview refuses of a workload that may have each."""
    pairs = itertools.product(choices("gpu"), choices("precision"))
    return [
        (gpu, precision)
        for gpu, precision in pairs
        if impossible({"workload": "llm", "gpu": gpu, "precision": precision})
    ]


@pytest.mark.parametrize(("gpu", "precision"), refused())
@pytest.mark.cover(1)
def test_impossible_precision_is_refused_with_its_reason(gpu, precision, tmp_path):
    message = refusal(tmp_path, workload="llm", gpu=gpu, precision=precision)
    peaks = {"bf16": gpu == "other"}
    if gpu in gpus():
        peaks = gpus()[gpu]["tflops"]
        assert gpus()[gpu]["label"] in message
    best = next((name for name in ("bf16", "fp16") if peaks.get(name)), "fp32")
    assert f" has no {precision}; choose {best}".lower() in message.lower()


def test_fp8_is_refused_where_no_product_is_large(tmp_path):
    message = refusal(tmp_path, workload="tabular", gpu="h100", precision="fp8")
    assert "tabular has no large matmuls" in message
    assert message.endswith("; choose bf16")


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package_name", "reason"),
    [
        ("class", "keyword"),
        ("json", "module of Python"),
        ("Torch", "dependency"),  # the same folder as torch on a Mac
        ("con", "device"),
        ("x" * 61, "60 characters"),
        ("tests", "another folder's name"),
        ("3d", "a letter, then"),
        ("größe", "a letter, then"),
        ("name\n", "a letter, then"),
        ("", "a letter, then"),
    ],
)
def test_bad_package_names_are_refused(package_name, reason, tmp_path):
    assert reason in refusal(tmp_path, package_name=package_name)


@pytest.mark.parametrize(
    ("project_name", "package"),
    [
        ("My Training (2)", "my_training_2"),
        ("3d-models", "project_3d_models"),
        ("torch", "torch_training"),
        ("株価", "my_training"),
        ('a "quoted" name', "a_quoted_name"),
    ],
)
def test_package_name_follows_from_the_project_name(project_name, package):
    project = render(project_name=project_name)
    assert [path.name for path in (project / "src").iterdir()] == [package]


def test_reserved_names_hold_every_module_of_python_and_every_dependency():
    reserved = yaml.safe_load(
        (REPOSITORY / "template/tables/reserved_names.yml").read_text(encoding="utf-8")
    )
    modules = {name.lower() for name in sys.stdlib_module_names if name[0] != "_"}
    assert modules <= set(reserved["standard_library"])
    assert set(keyword.kwlist) == set(reserved["keywords"])

    # Those of all variants: each is a line of the template's pyproject.toml.
    text = (REPOSITORY / "template/project/pyproject.toml.jinja").read_text(encoding="utf-8")
    declared = set(re.findall(r'^  "([a-z0-9_-]+)[^"]*",', text, flags=re.MULTILINE)) | {"torch"}
    modules = set()
    for module, owners in importlib.metadata.packages_distributions().items():
        is_public = module[0] != "_" and "/" not in module
        if is_public and declared & {owner.lower() for owner in owners}:
            modules.add(module.lower())
    assert {"torch", "yaml", "lightning"} <= modules
    known = {*reserved["dependencies"], *reserved["standard_library"]}  # torchao has a `test`
    assert modules - {"pylab", "mpl_toolkits"} <= known


@pytest.mark.parametrize(
    "answers",
    [
        {"project_name": " "},
        {"project_name": "two\nlines"},
        {"gpu": "h1000"},
        {"precision": "fp64"},
        {"workload": ""},
        {"extras": ["benchmark", "everything"]},
        {"gpu": "other", "gpu_compute_capability": "sm_90"},
        {"gpu": "other", "gpu_compute_capability": "3.7"},
        {"gpu": "other", "gpu_memory_gb": 0},
        {"gpu": "h100", "gpu_memory_gb": 80},
    ],
)
def test_other_bad_answers_are_refused(answers, tmp_path):
    assert list(answers)[-1] in refusal(tmp_path, **answers)


def test_computed_values_cannot_be_set(tmp_path):
    with pytest.raises(ValueError, match="'best_precision': is computed"):
        run_copy(str(template()), tmp_path / "p", data={"best_precision": "fp8"}, defaults=True)


# ---- the questionnaire -------------------------------------------------------------------------


def message_after_copying(project, *options):
    """The lines that Copier prints at the end."""
    words = ("copy", "--defaults", *options, str(template()), str(project))
    said = run_copier("newest", *words, cwd=project.parent)
    return said[said.index("The project is ready") :].splitlines()


LONG = "a folder of forty letters and some spaces"


@pytest.mark.parametrize(
    ("layout", "folder"),
    [
        ("package", "a project"),
        ("script", f"{LONG}/{LONG}"),
        ("package", f"{LONG}/it's/{LONG}/{LONG}"),
    ],
)
def test_message_after_copying_gives_commands_that_work(layout, folder, tmp_path):
    """Each line fits a terminal of 80 columns, whatever the name and the place of the project."""
    project = tmp_path / folder
    project.parent.mkdir(parents=True, exist_ok=True)
    names = ("-d", f"project_name={LONG * 3}", "-d", "package_name=mine")
    lines = message_after_copying(project, "-d", f"layout={layout}", *names)
    assert [line for line in lines if len(line) > 80] == []
    commands = [line.partition("  #")[0].strip() for line in lines if line.startswith("  ")]
    (git,) = [command for command in commands if command.startswith("git rev-parse")]
    enter = commands[: commands.index(git)]

    subprocess.run(["sh", "-c", "\n".join(["set -e", *enter, git])], cwd=tmp_path, check=True)
    assert (project / ".git").is_dir()
    if layout == "package":
        makefile = (project / "Makefile").read_text(encoding="utf-8")
        targets = [line.removeprefix("make ") for line in commands if line.startswith("make ")]
        assert len(targets) == 3
        assert all(f"\n{target}:" in makefile for target in targets)


def test_message_after_copying_makes_no_repository_inside_another(tmp_path):
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    project = tmp_path / "project"
    (command,) = [
        line for line in message_after_copying(project) if line.startswith("  git rev-parse")
    ]
    subprocess.run(["sh", "-c", command], cwd=project, check=True)
    assert not (project / ".git").exists()


# ---- the table of GPUs -------------------------------------------------------------------------


@pytest.mark.parametrize("key", gpus())
def test_row_is_complete_and_sane(key):
    row = gpus()[key]
    assert list(row) == list(gpus()["h100"])
    capability = tuple(map(int, row["sm"].split(".")))
    assert all(row[name] for name in ("aliases", "source", "sm_count", "memory_gb"))
    peaks = row["tflops"]
    assert tuple(peaks) == PRECISIONS
    ordered = [peaks[name] for name in PRECISIONS if peaks[name] is not None]
    assert ordered == sorted(ordered), "fp32 ≤ TF32 ≤ fp16 = bf16 ≤ fp8"
    # What the hardware lacks is what its generation lacks.
    has = {
        "tf32": capability >= (8, 0),
        "fp16": capability >= (7, 0),
        "bf16": capability >= (8, 0),
        "fp8": capability >= (8, 9),
    }
    assert {name: peaks[name] is not None for name in has} == has
    if peaks["bf16"] is not None:
        assert peaks["tf32"] == pytest.approx(peaks["bf16"] / 2, rel=0.03)
    if peaks["fp8"] is not None:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.03)


@pytest.mark.parametrize("key", gpus())
def test_wheel_of_row_has_code_for_the_card(key):
    row = gpus()[key]
    versions = SpecifierSet(row["torch"])
    assert "2.9.1" not in versions, "older releases execute code from checkpoints: CVE-2026-24747"
    assert "2.13.0" in versions, "the release that the tests run"
    major, minor = map(int, row["sm"].split("."))
    if row["wheel"].startswith("rocm"):
        return
    built = {  # archs in the builds, and the last release that has the index
        "cu126": ([(5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)], "2.14.1"),
        "cu130": ([(7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)], "2.15.0"),
    }
    archs, last = built[row["wheel"]]
    # A card runs code of its own major version and of no later minor one.
    assert any(arch[0] == major and arch[1] <= minor for arch in archs)
    assert last in versions
    assert ("2.15.0" in versions) == (last == "2.15.0")


def test_no_two_rows_claim_the_same_card():
    claims = [(alias, row["memory_gb"]) for row in gpus().values() for alias in row["aliases"]]
    assert len(set(claims)) == len(claims)
