"""A closed output and a library that does not load end in one line."""

import json
import os
import signal
import subprocess
import sys

import pytest
from rendering import render

ENDLESS = ("--training.epochs", "100000", "--monitor.every_steps", "1", "--name", "a")


def start(folder, *words, path=""):
    """`python -m my_training WORDS` of a small project, in a process of its own."""
    source = render(workload="tabular", extras=["diagnose"]) / "src"
    environment = {**os.environ, "PYTHONPATH": f"{path}:{source}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "my_training", *words]
    (folder / "config.yaml").touch()
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_closed_output_stops_a_run_in_one_line(tmp_path):
    trained = start(tmp_path, "train", *ENDLESS)
    trained.stdout.readline()
    trained.stdout.close()
    said = trained.stderr.read()
    assert trained.wait() == 128 + signal.SIGPIPE
    assert said.splitlines()[-1:] == ["stopped: the output of train was closed"]
    assert "Traceback" not in said
    status = json.loads((tmp_path / "runs/a/status.json").read_text())
    assert (status["state"], status["reason"]) == ("stopped", "its output was closed")
    assert (tmp_path / "runs/a/report.md").exists()


MISSING = "libgomp.so.1: cannot open shared object file: No such file or directory"
LOADED = [  # what importing torch does, and the line
    (
        f'raise ImportError("{MISSING}", name="torch")',
        f"torch cannot be loaded: {MISSING}: `make setup` installs it",
    ),
    (
        f'raise OSError("{MISSING}")',
        f"libgomp cannot be loaded: {MISSING}: install it with the packages",
    ),
]


@pytest.mark.parametrize(("torch", "line"), LOADED, ids=["torch", "libgomp"])
@pytest.mark.parametrize("command", ["train", "doctor"])
@pytest.mark.cover(1)
def test_a_library_that_cannot_be_loaded_is_one_line(command, torch, line, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(torch)
    broken = start(tmp_path, command, path=str(tmp_path))
    out, said = broken.communicate()
    assert broken.returncode == 2
    assert said.startswith(f"error: {line}")
    assert (out, said.count("\n")) == ("", 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.cover(1)
def test_a_signal_during_the_first_imports_ends_without_a_traceback(number, tmp_path):
    """A library may swallow the exception, or print its own."""
    (tmp_path / "pydantic.py").write_text(
        f"import os\ntry:\n    os.kill(os.getpid(), {number})\n"
        "except BaseException as error:\n    raise ImportError(name='pydantic') from error\n"
    )
    stopped = start(tmp_path, "train", path=str(tmp_path))
    assert stopped.communicate() == ("", "")
    assert stopped.returncode == 128 + number


READS = """
import os, tempfile
from my_training.engine import runs
runs.prepare_process()
print(tempfile.gettempdir())
print(os.environ["TORCHINDUCTOR_CACHE_DIR"])
import matplotlib.figure
matplotlib.figure.Figure().savefig("plot.png")
"""


def test_what_libraries_read_from_the_environment_is_put_right_for_them(tmp_path):
    """A notebook's backend that is missing here, and a folder whose sockets have too long names."""
    long = tmp_path / ("x" * 77)
    long.mkdir()
    environment = {
        "TMPDIR": str(long),
        "MPLBACKEND": "module://nowhere.inline",
        "PYTHONPATH": str(render(workload="tabular") / "src"),
        "PATH": os.environ["PATH"],
    }
    command = [sys.executable, "-c", READS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    temporary, compiled = done.stdout.split()
    assert len(temporary) < 64
    assert compiled == str(render(workload="tabular") / ".cache/inductor")
    assert (tmp_path / "plot.png").exists()
    assert "note: $TMPDIR is too long for sockets" in done.stderr
