"""What `experiment` says of edits that change nothing, and of edits that change the rounding only.

    python tools/experiments.py [noops] [nulls]    # verdicts, and how many are wrong

An edit without effect must have an effect of exactly 0. Of edits that change the rounding alone,
`--worth 0` may keep one in a thousand, and the default none.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from forking import forked_sides
from rendering import render, replace
from running import PACKAGE, run
from sizes import TINY

Edit = tuple[str, str, str]
"""File, old text, new text."""

LENGTH = ("--steps", "20", "--schedule.warmup_steps", "2", "--minutes", "600")
OPTIMIZER: list[Edit] = [
    ("optimizer.py", "import torch\n", "import torch  # a comment\n"),
    ("optimizer.py", "trained = [", "unused = 1\n    trained = ["),
    ("optimizer.py", "peak: float = all", "top = peak = all"),
    ("optimizer.py", "if step < warmup:", "if not step >= warmup:"),
    ("optimizer.py", "def is_fused(", "UNUSED = 1\n\n\ndef is_fused("),
    ("optimizer.py", "    return peak\n", "    result = peak\n    return result\n"),
    ("optimizer.py", "weight.dim() >= 2]", "weight.dim() > 1]"),
]
NOOPS: dict[str, list[Edit]] = {
    "tabular": [
        ("model.py", "return self.head(x).float()", "y = self.head(x)\n        return y.float()"),
        (
            "model.py",
            "for layer in self.layers:",
            "for block in self.layers:\n            layer = block",
        ),
        ("model.py", "functional.relu(self.linear(x))", "torch.relu(self.linear(x))"),
        ("model.py", "return x + self.dropout", "return x + 1 * self.dropout"),
        (
            "model.py",
            "x = functional.relu(self.first(torch.cat(parts, 1)))",
            "x = torch.cat(parts, 1)\n        x = functional.relu(self.first(x))",
        ),
        ("model.py", "return list(self.layers)", "return [*self.layers]"),
        (
            "model.py",
            "total_weight = present.sum(dtype=torch.float32)\n        target",
            "total_weight = present.float().sum()\n        target",
        ),
    ],
    "timeseries": [
        ("model.py", "last = history[:, -1:]\n", "last = history[:, history.shape[1] - 1 :]\n"),
        (
            "model.py",
            "return self.encoder(inputs)[0]",
            "result = self.encoder(inputs)\n        return result[0]",
        ),
        ("model.py", "changes = history - last\n", "changes = torch.sub(history, last)\n"),
        ("model.py", "losses = error.abs() if", "losses = torch.abs(error) if"),
        ("model.py", "return losses.sum()", "total = losses.sum()\n        return total"),
        ("model.py", "return [self.encoder]", "return list([self.encoder])"),
        (
            "model.py",
            "loss = self.sum_losses(error) / total_weight.clamp(min=1)",
            "loss = self.sum_losses(error).div(total_weight.clamp(min=1))",
        ),
    ],
}
# (a + b) + c is now a + (b + c), a quotient is a product, a sum is computed in parts.
NULLS: dict[str, list[Edit]] = {
    "tabular": [
        (
            "model.py",
            "scaled = ((features - self.mean) / self.std).float()",
            "scaled = ((features - self.mean) * (1 / self.std)).float()",
        ),
        (
            "model.py",
            "return self.head(x).float()",
            "return (self.head(x / 3) * 3 - 2 * self.head.bias).float()",
        ),
        (
            "model.py",
            "x + self.dropout(functional.relu(self.linear(x)))",
            "x + self.dropout(functional.relu(self.linear(x.double().float() * 1.1 / 1.1)))",
        ),
        (
            "model.py",
            "loss = squares.mean() / total_weight",
            "loss = (squares / 3 + squares * 2 / 3).mean() / total_weight",
        ),
        ("optimizer.py", "fused=settings.fused or None", "fused=None"),
    ],
    "timeseries": [
        (
            "model.py",
            'history = ((batch["rows"] - self.mean) / self.std).float()',
            'history = ((batch["rows"] - self.mean) * (1 / self.std)).float()',
        ),
        (
            "model.py",
            "forecast = self.head(hidden).float()",
            "forecast = (self.head(hidden / 3) * 3 - 2 * self.head.bias).float()",
        ),
        (
            "model.py",
            "loss = self.sum_losses(error) / total",
            "loss = self.sum_losses(error * 3) / 3 / total",
        ),
        ("model.py", "return losses.sum()", "return losses.sum(2).sum(1).sum(0)"),
        ("optimizer.py", "fused=settings.fused or None", "fused=None"),
    ],
}


def git(folder: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    subprocess.run(command, cwd=folder, check=True)


def judge(folder: Path, workload: str, edit: Edit, *words: str) -> dict[str, object]:
    """Return the verdict on an edit."""
    file, old, new = edit
    replace(folder / "src" / PACKAGE / file, old, new)
    words = (*TINY[workload], *LENGTH, *words)
    done = run(folder, "experiment", *words, "--json", cwd=folder, before=forked_sides)
    git(folder, "reset", "-q", "--hard")
    return json.loads(done.out) if done.out else {"verdict": done.err, "why": "", "effect": None}


def project(workload: str, folder: Path) -> Path:
    shutil.copytree(render(workload=workload, extras=["experiment"]), folder)
    git(folder, "init", "-q")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def main(parts: list[str]) -> None:
    """Print each verdict, then the counts."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for workload in NOOPS:
            folder = project(workload, Path(name, workload))
            for part in parts or ["noops", "nulls"]:
                edits = [*OPTIMIZER, *NOOPS[workload]] if part == "noops" else NULLS[workload]
                seeds = range(1) if part == "noops" else range(4)
                worths = ("0.1",) if part == "noops" else ("0", "0.1")
                for edit in edits:
                    for worth in worths:
                        for seed in seeds:
                            seeded = ("--worth", worth, "--reproducibility.seed", str(42 + seed))
                            row = judge(folder, workload, edit, *seeded)
                            promising = "promising" in str(row["why"]) or row["verdict"] == "keep"
                            said = f"{part}, worth {worth}: {row['verdict']}"
                            counts[f"{said}{', was promising' if promising else ''}"] += 1
                            shown = (workload, *edit[:2], row["effect"], row["why"])
                            print(said, *shown, sep=" | ", flush=True)
    for text, number in sorted(counts.items()):
        print(f"{number:4} {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
