"""The shells around the code: Makefile and tests of a rendered project, tools and documents of this
one."""

import filecmp
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from copiers import _clean_home  # noqa: F401
from rendering import REPOSITORY, render, render_into
from shells import SHELL, shell
from variants import choices, extras, structural


@pytest.mark.parametrize(
    ("targets", "answers"),
    [  # each command of theirs is an interpreter of its own; test_changes.py has all, in forks
        (["test", "ARGS=-k padding"], {"workload": "tabular", "extras": []}),
        (["test"], {}),
        (["lint", "test"], {"framework": "lightning", "loader": "memmap", "tracker": "wandb"}),
    ],
    ids=str,
)
@pytest.mark.first(1)
def test_own_tests_of_a_project_pass(targets, answers, tmp_path):
    project = render_into(tmp_path / "a project of größe", **answers)
    assert "passed" in shell(project, "make", *targets)


def targets_of(project):
    makefile = (project / "Makefile").read_text(encoding="utf-8")
    return re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE)


def test_targets_of_a_project(tmp_path):
    """The README's first commands; set-up as far as it goes without an index of packages."""
    project = render_into(tmp_path / "project")
    short = "ARGS=--training.max_steps 20 --schedule.warmup_steps 5"
    shell(project, "make", "train", short)
    baseline = shell(project, "make", "--dry-run", "train-unoptimized", short).split()
    assert baseline[-6:] == ["train", "--no-optimize", *short.partition("=")[2].split()]
    assert "runs/" in shell(project, "make", "report")
    listed = shell(project, "make")
    assert [line.split()[0] for line in listed.splitlines()] == targets_of(project)


class Machine:
    """Programs that stand for Python, pip, the driver and the system: nothing is downloaded."""

    def __init__(
        self,
        folder,
        *,
        driver=False,
        system="Linux",
        offline=False,
        version=(3, 11),
    ):
        self.log = folder / "pip.log"
        self.log.touch()
        self.programs = folder / "programs"
        self.programs.mkdir()
        # The Python of an environment: it logs what pip does, and offline no index of PyTorch
        # answers.
        pip = f"""#!/bin/sh
shift 2
echo "$*" | sed 's/ --no-compile//' >> "{self.log}"
case "$*" in *--index-url*) exit {int(offline)} ;; esac
"""
        self.program("pip", pip)
        self.program("pre-commit", "#!/bin/sh\necho hooks are installed\n")
        venv = f"""#!/bin/sh
case "$1" in -c) exec {sys.executable} -c "import sys; sys.version_info = {version}; $2" "$3" ;; esac
mkdir -p "$3/bin"
cp "{self.programs}/pip" "$3/bin/python"
cp "{self.programs}/pre-commit" "$3/bin"
"""
        self.program("python3", venv)
        self.program("nvidia-smi", f"#!/bin/sh\nexit {0 if driver else 9}\n")
        self.program("uname", f"#!/bin/sh\necho {system}\n")

    def program(self, name, text):
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def make(self, project, *words):
        environment = {**SHELL, "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}
        for name in ("TORCH", "TORCH_INDEX"):
            environment.pop(name, None)
        # A machine of these tests may have a driver: DRIVER is where the Makefile looks for one.
        command = ["make", *words, f"DRIVER={self.log.parent / 'driver'}"]
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)

    def set_up(self, project, *words):
        """What pip was asked to install, and what `make setup` said about drivers and builds."""
        self.log.write_text("")
        done = self.make(project, "setup", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        said = [line for line in done.stdout.splitlines() if line.startswith(("No ", "Nothing "))]
        logged = self.log.read_text().splitlines()
        return [line for line in logged if line.startswith("install")], said


def shell_of(folder, **answers):
    """Of a project what `make setup` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(render(**answers) / name, folder)
    return folder


WHEELS = "https://download.pytorch.org/whl"


CPU = f" --index-url {WHEELS}/cpu --no-deps"
# (answers, machine, words of make, how pip takes torch, the vendor whose driver is missed)
SET_UPS: list[tuple[dict[str, Any], dict[str, Any], str, str, str]] = [
    ({}, {"driver": True}, "", "torch>=2.10", ""),
    ({"gpu": "v100"}, {"driver": True}, "", f"torch>=2.10,<2.15 --index-url {WHEELS}/cu126", ""),
    ({"gpu": "cpu"}, {"driver": True}, "", f"torch>=2.10 --index-url {WHEELS}/cpu", ""),
    ({}, {}, "TORCH=torch==2.13.0", f"torch==2.13.0{CPU}", "NVIDIA"),
    ({"gpu": "mi300x"}, {}, "", f"torch>=2.13,<2.14{CPU}", "AMD"),
    ({"gpu": "h100"}, {}, "TORCH_INDEX=gpu", f"torch>=2.10 --index-url {WHEELS}/cu130", ""),
    ({}, {}, "TORCH_INDEX=https://own/simple", "torch>=2.10 --index-url https://own/simple", ""),
    # On macOS there is one build; what sets a container up needs no driver.
    ({"gpu": "h100"}, {"system": "Darwin"}, "", "torch>=2.10", ""),
    ({"extras": ["docker"], "gpu": "h100"}, {}, "", f"torch>=2.10 --index-url {WHEELS}/cu130", ""),
]


@pytest.mark.parametrize(("answers", "machine", "words", "torch", "missed"), SET_UPS, ids=str)
def test_set_up_takes_torch_from_where_the_card_has_it(
    answers,
    machine,
    words,
    torch,
    missed,
    tmp_path,
):
    project = shell_of(tmp_path / "project", **answers)
    installed, said = Machine(tmp_path, **machine).set_up(project, *words.split())
    assert installed == [f"install {torch}", f"install {torch.split()[0]} --editable .[dev]"]
    line = f"No {missed} driver: using PyTorch for CPUs. To undo: make setup TORCH_INDEX=gpu"
    assert said == ([line] if missed else [])


def test_set_up_replaces_a_build_from_another_index(tmp_path):
    """pip would keep it, as its version fits."""
    project = shell_of(tmp_path / "project")
    machine = Machine(tmp_path)

    def removed(*words):
        machine.set_up(project, *words)
        return "uninstall" in machine.log.read_text()

    removed()
    assert not removed()
    assert removed("TORCH_INDEX=gpu")
    assert not removed("TORCH_INDEX=gpu")
    assert removed()


def test_set_up_refuses_an_old_python(tmp_path):
    done = Machine(tmp_path, version=(3, 10)).make(shell_of(tmp_path / "project"), "setup")
    assert done.returncode
    assert done.stderr.startswith("error: Python 3.11 or later is needed: python3: name one")


def test_set_up_continues_where_the_cpu_builds_cannot_be_reached(tmp_path):
    project = shell_of(tmp_path / "project")
    installed, said = Machine(tmp_path, offline=True).set_up(project)
    assert said[1:] == [f"Nothing at {WHEELS}/cpu: installing the usual build of PyTorch."]
    assert installed[1] == "install torch>=2.10 --editable .[dev]"


def test_targets_before_set_up_say_so_in_one_line(tmp_path):
    project = shell_of(tmp_path / "project", distributed="ddp", extras=extras("timeseries"))
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    environment = {**SHELL, "PATH": f"{bare / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    targets = set(targets_of(project)) - {"help", "setup"}
    for target in targets:
        command = ["make", target]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
        (line,) = (done.stdout + done.stderr).splitlines()
        assert "run make setup first" in line


@pytest.mark.parametrize("where", [".", "packages/trainer"])
def test_hooks_go_into_a_repository_that_is_the_projects_own(where, tmp_path):
    """Inside a larger one they would take the place of the root's."""
    project = shell_of(tmp_path / where, extras=["pre_commit"])
    shell(tmp_path, "git", "init", "--quiet")
    said = Machine(tmp_path).make(project, "setup").stdout
    assert ("hooks are installed" in said) == (where == ".")
    assert ("no hooks installed" in said) == (where != ".")


def test_choices_are_those_of_the_readme():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    for question in (*structural(), "layout", "precision", "tracker", "extras"):
        (row,) = re.findall(rf"^\| {question} \| (.+?) \|", readme, flags=re.MULTILINE)
        assert set(choices(question)) <= set(re.findall(r"`(\w+)`", row)), question


def test_tables_of_the_figures_are_those_that_were_measured(tmp_path):
    """A page of docs/benchmarks holds what `benchmarks/publish.py` makes of the JSON beside it."""
    shutil.copytree(REPOSITORY / "docs/benchmarks", tmp_path / "docs/benchmarks")
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(REPOSITORY / "benchmarks/publish.py", tmp_path / "benchmarks")
    shell(tmp_path, sys.executable, "benchmarks/publish.py")
    kept = REPOSITORY / "docs/benchmarks"
    names = [page.name for page in kept.glob("*.md")]
    assert filecmp.cmpfiles(kept, tmp_path / "docs/benchmarks", names, shallow=False)[0] == names


def test_a_requeued_job_leaves_out_what_a_resumed_run_has(tmp_path):
    script = render(workload="tabular", extras=["slurm"]) / "launch/slurm.sbatch"
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool, content in (("srun", 'echo "$@"'), ("scontrol", "echo here")):
        (tools / tool).write_text(f"#!/bin/sh\n{content}\n")
        (tools / tool).chmod(0o755)
    run = tmp_path / "runs/slurm-7"
    run.mkdir(parents=True)
    (run / "config.resolved.yaml").touch()
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "here",
    }
    gone = ["--minutes", "5", "--config", "a.yaml", "--minutes=5", "--config=a.yaml"]
    job = ["bash", script, *gone, "--monitor.every_steps", "2"]
    output = subprocess.check_output(job, env=environment, text=True)
    assert output.rstrip().endswith(" train --resume slurm-7 --monitor.every_steps 2")

    named = subprocess.run([*job, "--name", "a"], env=environment, capture_output=True, text=True)
    assert (named.returncode, named.stderr[:32]) == (2, "error: the run has the name of t"), named
