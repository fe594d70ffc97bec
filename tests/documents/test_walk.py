"""What a rendered README tells a new user to do, by its own commands.

`.venv` is a link to the environment of these tests, where `make setup` would make one, and
PYTHONPATH names the package that it would install. The data are those of the script's tests; chat,
which needs a pretrained model, has its own test (tests/workloads/test_chat.py).
"""

import re
import sys
from pathlib import Path

import pytest
from rendering import render_into, replace
from running import report_of
from scripts import CASES, shops
from shells import shell


@pytest.mark.full
@pytest.mark.parametrize("workload", CASES)
def test_a_first_run_then_data_of_your_own(workload, tmp_path):
    project = render_into(tmp_path / "myproj", workload=workload)
    (project / ".venv").symlink_to(Path(sys.executable).parents[1])

    def said(command):
        return shell(project, "sh", "-c", f"PYTHONPATH=src {command} 2>&1")

    assert "finished at step" in said('make try ARGS="--minutes 0.01"')
    said("make report")
    assert "validation" in report_of(project)

    readme = re.sub(r"\s*\\\n\s*", " ", (project / "README.md").read_text(encoding="utf-8"))
    block = readme.partition("## Your data\n")[2].partition("```sh\n")[2].partition("\n```")[0]
    for name in set(re.findall(r"--input (\S+)", block)):
        if workload == "forecast":  # its default windows are long
            shops(project / name, days=900, ahead=24)
        else:
            CASES[workload].write(project / name)
    prepare, train, predict = (line.strip() for line in block.splitlines())
    assert "next: " in said(prepare)
    replace(project / "config.yaml", "\n  max_steps: 0\n", "\n  max_steps: 6\n")
    assert train == "make train evaluate"
    assert "stopped at step 3 of 6" in said('make train ARGS="--max-steps 3"')
    said("make evaluate")
    said(predict)
    assert "finished at step 6 of 6" in said('make train ARGS="--resume"')
