"""What `experiment` says of edits that change nothing, the rounding only, or the learning rate.

    python tools/experiments.py [noops] [nulls] [rates] [WORKLOAD ...]    # verdicts, and their counts

An edit without effect must have an effect of exactly 0. Of edits that change the rounding alone,
`--worth 0` may keep one in a thousand, and the default none. A learning rate that is 10 % higher or
lower must not get the verdict of the other sign. Its truth is the median of 30 seeds. Where the
interval of that median has 0, undecided is right; elsewhere it is a missed effect.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from forking import forked_sides
from rendering import render, replace
from running import PACKAGE, Before, run
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
    "llm": [
        ("model.py", "present = targets != IGNORE", "present = targets.ne(IGNORE)"),
        ("model.py", "loss = total / total_weight", "loss = 1 * total / total_weight"),
        ("model.py", "[*self.layers, self.head]", "[*self.layers] + [self.head]"),
        ("model.py", "query = query.transpose(1, 2)", "query = query.permute(0, 2, 1, 3)"),
        (
            "model.py",
            "x = layer(x, rotation)",
            "y = layer(x, rotation)\n            x = y",
        ),
        (
            "model.py",
            "hidden = functional.gelu(self.hidden(self.hidden_norm(x)))",
            "hidden = self.hidden_norm(x)\n        hidden = functional.gelu(self.hidden(hidden))",
        ),
        (
            "model.py",
            "x = functional.dropout(x, self.dropout, self.training)\n        for",
            "x = functional.dropout(x, p=self.dropout, training=self.training)\n        for",
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


PARTS: dict[str, Any] = {"noops": NOOPS, "nulls": NULLS, "rates": TINY}  # each with its workloads


def git(folder: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    subprocess.run(command, cwd=folder, check=True)


def judge(
    folder: Path, workload: str, *words: str, before: Before = forked_sides
) -> dict[str, Any]:
    """Return the verdict of the command."""
    words = (*TINY[workload], *LENGTH, *words)
    done = run(folder, "experiment", *words, "--json", cwd=folder, before=before)
    failed = {"verdict": done.err, "why": "", "effect": None, "interval": None, "seeds": 0}
    return json.loads(done.out) if done.out else failed


def judge_edits(folder: Path, workload: str, part: str) -> Iterator[str]:
    """Print the verdicts on edits of files; yield what is counted."""
    edits = [*OPTIMIZER, *NOOPS[workload]] if part == "noops" else NULLS[workload]
    for file, old, new in edits:
        for worth in ("0.1",) if part == "noops" else ("0", "0.1"):
            for seed in range(1 if part == "noops" else 20):
                replace(folder / "src" / PACKAGE / file, old, new)
                seeded = ("--worth", worth, "--reproducibility.seed", str(42 + seed))
                row = judge(folder, workload, *seeded)
                git(folder, "reset", "-q", "--hard")
                promising = "promising" in str(row["why"]) or row["verdict"] == "keep"
                said = f"{part}, worth {worth}: {row['verdict']}"
                shown = (workload, file, " ".join(old.split()), row["effect"], row["why"])
                print(said, *shown, sep=" | ", flush=True)
                yield f"{said}{', was promising' if promising else ''}"


def with_all_seeds() -> None:
    """For `run(..., before=with_all_seeds)`: it trains as many seeds as it may."""
    forked_sides()
    module: Any = importlib.import_module(f"{PACKAGE}.measure.experiment")
    module.verdict = lambda gains, worth, most: "undecided" if len(gains) == most else ""


def judge_rates(folder: Path, workload: str) -> Iterator[str]:
    """Print the verdicts on other learning rates; yield whether they are right."""
    words = TINY[workload]
    flag = "--optimizer.learning_rate"
    rate = yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]["learning_rate"]
    if flag in words:
        rate = words[words.index(flag) + 1]
    for factor in (1.1, 0.9):
        change = ("--set", f"optimizer.learning_rate={factor * float(rate):.6g}", "--worth", "0")
        row = judge(folder, workload, *change)
        truth = judge(folder, workload, *change, "--seeds", "30", before=with_all_seeds)
        low, high = truth["interval"] or (0, 0)
        effect = truth["effect"] or 0
        right = {"keep": effect > 0, "discard": effect < 0, "undecided": low <= 0 <= high}
        said = "missed" if row["verdict"] == "undecided" else "wrong"
        if right.get(row["verdict"]):
            said = "right"
        effects = [f"{number or 0:+.3g} %" for number in (row["effect"], effect, low, high)]
        shown = (workload, factor, row["verdict"], row["seeds"], *effects, row["why"])
        print(said, *shown, sep=" | ", flush=True)
        yield f"rates: {said}"


def project(workload: str, folder: Path) -> Path:
    shutil.copytree(render(workload=workload, extras=["experiment"]), folder)
    git(folder, "init", "-q")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def main(words: list[str]) -> None:
    """Print each verdict, then the counts. words: parts and workloads."""
    parts = [word for word in PARTS if word in words] or list(PARTS)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for workload in [word for word in TINY if word in words] or TINY:
            folder = project(workload, Path(name, workload))
            for part in parts:
                if part == "rates":
                    counts.update(judge_rates(folder, workload))
                elif workload in PARTS[part]:
                    counts.update(judge_edits(folder, workload, part))
    for text, number in sorted(counts.items()):
        print(f"{number:4} {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
