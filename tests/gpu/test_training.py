"""Tier C: what only a GPU can show. `pytest -m gpu`; every test is skipped where there is none.

The projects are rendered here, or taken from the folder in FASTTRAIN_PROJECTS on a machine without
Copier (`python tools/gpu.py` fills one).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu import answers_of, name_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
LOADERS = ("dataloader", "chunk", "memmap")
FRAMEWORKS = ("pytorch", "lightning", "accelerate")
OPTIONS = (
    *("--monitor.every_steps", "1", "--training.max_steps", "60"),
    *("--schedule.warmup_steps", "10"),
)


def project(workload="tabular", loader="memmap", framework="pytorch"):
    """The rendered project of these answers, as benchmarks/gpu has it."""
    answers = {**answers_of(workload), "loader": loader, "framework": framework}
    carried = os.environ.get("FASTTRAIN_PROJECTS")
    if carried:
        return Path(carried).resolve() / name_of(answers)
    from rendering import render

    return render(**answers)


def train(folder, *words, code=0, before="", **answers):
    """`python -m my_training WORDS` in `folder`; `before` is Python that runs first."""
    root = project(**answers)
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text((root / "config.yaml").read_text())
    start = f"import sys; sys.path.insert(0, {str(root / 'src')!r})\n{before}\n"
    start += "from my_training.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", start, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


def losses(folder):
    newest = max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    entries = map(json.loads, (newest / "metrics.jsonl").read_text().splitlines())
    return [entry["loss"] for entry in entries if "split" not in entry]


def mean_loss(folder, *words, **answers):
    """Train in the folder; the mean of the last ten losses."""
    train(folder, "train", *OPTIONS, *words, **answers)
    return sum(losses(folder)[-10:]) / 10


def check_resume(folder, *words, **answers):
    """In deterministic mode a resumed run repeats the other one bit for bit, on a GPU as well."""
    whole = folder / "whole"
    parts = folder / "parts"
    words = (*OPTIONS, *words, "--reproducibility.deterministic", "true")
    train(whole, "train", *words, **answers)
    train(parts, "train", *words, "--max-steps", "33", **answers)
    train(parts, "train", "--resume", **answers)
    assert losses(parts) == losses(whole)
    assert losses(whole)[-1] <= 0.9 * losses(whole)[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_learns_and_resumes(precision, loader, framework, tmp_path):
    pytest.importorskip(framework.replace("pytorch", "torch"))
    words = ("--training.precision", precision)
    check_resume(tmp_path, *words, loader=loader, framework=framework)


def test_out_of_memory_names_the_ladder(tmp_path):
    limit = "import torch; torch.cuda.set_per_process_memory_fraction(0.002)"
    words = ("--model.width", "8192", "--model.depth", "8")
    done = train(tmp_path, "train", *OPTIONS, *words, before=limit, code=2)
    assert "out of GPU memory" in done.stderr
    assert "--training.gradient_checkpointing true" in done.stderr
    assert "Traceback" not in done.stderr
