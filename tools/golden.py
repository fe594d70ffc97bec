"""Whether two versions of the template compute the same, bit for bit.

    python tools/golden.py v0.1.0 .                    # a git revision against the working tree
    python tools/golden.py v0.1.0 . --only llm,graph --cells fp32,lightning
    python tools/golden.py --write                     # the curves that tests/training/test_golden.py keeps

OLD and NEW are git revisions, `.` for the working tree, or folders with a copier.yml. Each renders
the same answers, synthesizes its own data and trains the same few steps on one thread. Equal must
be each step's loss, what evaluations measure in between and after it, and the last checkpoint's
weights. Then each loader and each framework of NEW is compared with the first one. tf32, which is
fp32 on a CPU, is left out. Where the defaults of the two differ, both take OLD's.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
CURVES = ROOT / "tests/training/curves.json"
CURVE_STEPS = 15
PRECISIONS = ("fp32", "fp16", "bf16", "fp8")
# What the other loaders and frameworks are compared in.
OF_LOADERS = "bf16"
OF_FRAMEWORKS = "fp16"


class Cell(NamedTuple):
    """One project to train; the rest of its answers is `none`, or empty."""

    workload: str
    precision: str
    loader: str
    framework: str

    def __str__(self) -> str:
        return " ".join(self)


class Outcome(NamedTuple):
    """What a run computed: floats in hex, weights as (dtype, shape, digest), by step or name."""

    losses: dict[str, str]
    evaluations: dict[str, str]
    weights: dict[str, str]


class Tree:
    """One version of the template, its projects, and their data in a folder of its own."""

    def __init__(self, revision: str, folder: Path):
        self.revision = revision
        self.folder = folder
        self.source = folder / "template"
        if revision == ".":
            from rendering import copy_template

            copy_template(self.source)
        elif (Path(revision) / "copier.yml").is_file():
            self.source = Path(revision)
        else:
            command = ["git", "-C", str(ROOT), "archive", revision, "copier.yml", "template"]
            archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as file:
                file.extractall(self.source)

    @cached_property
    def questions(self) -> dict[str, Any]:
        """copier.yml's content."""
        return yaml.safe_load((self.source / "copier.yml").read_text(encoding="utf-8"))

    def choices(self, question: str) -> list[str]:
        offered = self.questions[question]["choices"].values()
        return [choice["value"] if isinstance(choice, dict) else choice for choice in offered]

    def render(self, cell: Cell) -> Path:
        """The cell's project."""
        from rendering import render_into

        folder = self.folder / "-".join(cell)
        if not folder.exists():
            none: dict[str, Any] = {
                "gpu": "auto",
                "distributed": "none",
                "tracker": "none",
                "extras": [],
            }
            render_into(folder, source=self.source, **none, **cell._asdict())
        return folder

    def defaults(self, cell: Cell) -> dict[str, Any]:
        """The values that the project's config.yaml gives, by dotted name."""
        text = (self.render(cell) / "config.yaml").read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        values.pop("profiles", None)  # no flag sets them, and no cell names one
        return dict(_leaves(values))


def _leaves(section: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield before + name, value


class Trials:
    """Runs of cells, each done once, as forks of this process, where torch is loaded.

    like: the version whose defaults hold for all.
    """

    def __init__(self, like: Tree, steps: int):
        self.like = like
        self.steps = steps
        self._done: dict[tuple[Path, Cell], Outcome | str] = {}

    def results(self, wanted: Iterable[tuple[Tree, Cell]]) -> list[Outcome | str]:
        """An outcome each, or the line that says why there is none; runs that are new go side by
        side."""
        wanted = list(wanted)
        new = {(tree.folder, cell): (tree, cell) for tree, cell in wanted}
        new = {key: value for key, value in new.items() if key not in self._done}
        failed = self.train(new.values())
        failed |= self._side_by_side([new[key] for key in new if key not in failed], "evaluate")
        for key in new:
            self._done[key] = failed.get(key) or _outcome(_run_folder(*key))
        return [self._done[tree.folder, cell] for tree, cell in wanted]

    def train(self, pairs: Collection[tuple[Tree, Cell]]) -> dict[tuple[Path, Cell], str]:
        """Trains each; the last line of those that failed."""
        without = {(tree.folder, cell.workload): (tree, cell) for tree, cell in pairs}
        without = {key: pair for key, pair in without.items() if not (key[0] / key[1]).exists()}
        failed = self._side_by_side(without.values(), "train", "--max-steps", "1", synthesize=True)
        return failed | self._side_by_side(pairs, "train")

    def _side_by_side(
        self,
        pairs: Iterable[tuple[Tree, Cell]],
        command: str,
        *words: str,
        synthesize: bool = False,
    ) -> dict[tuple[Path, Cell], str]:
        """Starts all, waits for all; the last line of those that failed.

        synthesize: in the folder whose data the others use.
        """
        from running import start

        begun = []
        failed = {}
        for tree, cell in pairs:
            base = tree.folder / cell.workload
            folder = base if synthesize else _run_folder(tree.folder, cell)
            folder.mkdir(parents=True, exist_ok=True)
            if not synthesize and not (folder / "data").exists():
                (folder / "data").symlink_to(base / "data")
            flags = self.flags(tree, cell) if command == "train" else []
            running = start(tree.render(cell), command, *flags, *words, cwd=folder)
            begun.append(((tree.folder, cell), running))
        for key, running in begun:
            result = running.wait(seconds=300)
            if result.code:
                failed[key] = (result.err.strip().splitlines() or [f"exit code {result.code}"])[-1]
        return failed

    def flags(self, tree: Tree, cell: Cell) -> list[str]:
        """Small sizes, a row of metrics each step, and the defaults of the version that is
        followed."""
        from sizes import EMULATED, TINY

        every = str(max(self.steps // 2, 1))
        words = [
            *TINY[cell.workload],
            *(EMULATED if cell.precision == "fp8" else ()),
            "--training.precision",
            cell.precision,
            "--monitor.every_steps",
            "1",
        ]
        words += ["--training.max_steps", str(self.steps)]
        words += ["--evaluation.every_steps", every, "--checkpoint.every_steps", every]
        for name, (_, value) in self.changed(tree, cell).items():
            if f"--{name}" not in words:
                words += [f"--{name}", json.dumps(value) if not isinstance(value, str) else value]
        return words

    def changed(self, tree: Tree, cell: Cell) -> dict[str, tuple[Any, Any]]:
        """Settings whose default is another in the version that is followed: (its own, the
        other's)."""
        if tree is self.like or any(
            choice not in self.like.choices(name) for name, choice in cell._asdict().items()
        ):
            return {}
        own = tree.defaults(cell)
        other = self.like.defaults(cell)
        return {
            name: (own[name], other[name])
            for name in own
            if name in other and own[name] != other[name]
        }


def _run_folder(folder: Path, cell: Cell) -> Path:
    return folder / f"run-{'-'.join(cell)}"


def _outcome(folder: Path) -> Outcome:
    """What the newest run in `folder` has written."""
    from running import newest_run

    run = newest_run(folder)
    losses = {}
    evaluations = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "split" in row:
            evaluations[f"step {row['step']}"] = float(row["loss"]).hex()
        else:
            losses[f"step {row['step']}"] = float(row["loss"]).hex()
    measured = json.loads((run / "evaluation.json").read_text())["metrics"]
    evaluations |= {name: float(value).hex() for name, value in measured.items()}
    newest = max((run / "checkpoints").glob("step-*"))
    return Outcome(losses, evaluations, dict(_weights(newest)))


def _weights(checkpoint: Path) -> Iterator[tuple[str, str]]:
    """Names, and what is to be equal. A checkpoint was a folder once."""
    if checkpoint.is_dir():
        tensors = load_file(checkpoint / "model.safetensors")
        aliases = json.loads((checkpoint / "manifest.json").read_text())["aliases"]
        tensors |= {alias: tensors[name] for alias, name in aliases.items()}
    else:
        tensors = torch.load(checkpoint, weights_only=True)["model"]
    for name, tensor in tensors.items():
        content = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()
        yield name, f"{tensor.dtype} {list(tensor.shape)} {digest[:12]}"


def difference(old: Outcome | str, new: Outcome | str) -> str:
    """The first thing that differs, or that only `old` has; empty where all is equal."""
    if isinstance(old, str) or isinstance(new, str):
        return f"failed: {old if isinstance(old, str) else new}"
    for kind in Outcome._fields:
        before = getattr(old, kind)
        after = getattr(new, kind)
        for name, value in before.items():
            if after.get(name) != value:
                other = _readable(after.get(name, "nothing"))
                return f"{kind}, {name}: {_readable(value)} and {other}"
    return ""


def _readable(value: str) -> str:
    return f"{float.fromhex(value):.9g} ({value})" if value.lstrip("-").startswith("0x") else value


def plan(old: Tree, new: Tree) -> Iterator[tuple[str, tuple[Tree, Cell], tuple[Tree, Cell]]]:
    """What is to be equal: a name, and two runs. Print what only one of the versions has."""
    from sizes import TINY

    common = {
        name: [c for c in new.choices(name) if c in old.choices(name)] for name in Cell._fields
    }
    for name, tree in (("workload", old), ("workload", new), ("loader", old), ("loader", new)):
        alone = [choice for choice in tree.choices(name) if choice not in common[name]]
        if alone:
            print(f"skipped: {name} {', '.join(alone)} of {tree.revision} alone")
    for workload in new.choices("workload"):
        if workload not in TINY:
            print(f"skipped: {workload} has no small sizes in tools/sizes.py")
            continue
        precisions = [precision for precision in PRECISIONS if possible(workload, precision)]
        first = Cell(workload, "fp32", common["loader"][0], common["framework"][0])
        if workload in common["workload"]:
            for precision in precisions:
                cell = first._replace(precision=precision)
                yield f"{cell}: {old.revision} and {new.revision}", (old, cell), (new, cell)
        for kind, precision in (("loader", OF_LOADERS), ("framework", OF_FRAMEWORKS)):
            cell = first._replace(precision=precision)
            for choice in new.choices(kind):
                if choice != getattr(first, kind):
                    other = cell._replace(**{kind: choice})
                    yield f"{other}: as {getattr(cell, kind)}", (new, cell), (new, other)


def possible(workload: str, precision: str) -> bool:
    from sizes import LARGE_PRODUCTS

    return precision != "fp8" or (
        workload in LARGE_PRODUCTS and importlib.util.find_spec("torchao") is not None
    )


def compare(arguments: argparse.Namespace, scratch: Path) -> int:
    """Prints a line a cell, then a table. Returns 1 where something differs, else 0."""
    old = Tree(arguments.old, scratch / "old")
    new = Tree(arguments.new, scratch / "new")
    trials = Trials(old, arguments.steps)
    table = []
    only = arguments.only.split(",") if arguments.only else []
    words = arguments.cells.split(",")
    said: set[tuple[str, str]] = set()
    for name, left, right in plan(old, new):
        cell = right[1]
        if (only and cell.workload not in only) or not any(word in name for word in words):
            continue
        for setting, (own, other) in trials.changed(*right).items():
            if (cell.workload, setting) not in said:
                print(
                    f"{cell.workload}: {setting} is {own!r} in {new.revision}; both take {other!r}"
                )
                said.add((cell.workload, setting))
        differs = difference(*trials.results([left, right]))
        print(f"{name}: {'differs: ' + differs if differs else 'equal'}", flush=True)
        table.append((cell, left[0] is old, differs))
    print(f"\n{'workload':12}{'versions':28}{'loaders and frameworks':28}")
    for workload in dict.fromkeys(cell.workload for cell, _, _ in table):
        sides = {True: "", False: ""}
        for cell, versions, differs in table:
            if cell.workload == workload:
                label = cell.framework if cell.precision == OF_FRAMEWORKS else cell.loader
                if versions:
                    label = cell.precision
                sides[versions] += f"{label} {'≠' if differs else '='}  "
        print(f"{workload:12}{sides[True]:28}{sides[False]:28}")
    wrong = sum(bool(differs) for _, _, differs in table)
    print(f"{len(table) - wrong} of {len(table)} comparisons are equal")
    return 1 if wrong or not table else 0


def curve(tree: Tree, trials: Trials, cell: Cell) -> list[float]:
    """Losses of the cell's first steps."""
    for line in trials.train([(tree, cell)]).values():
        raise RuntimeError(f"{cell}: {line}")
    from running import losses

    return [float.fromhex(loss) for _, loss in losses(_run_folder(tree.folder, cell))]


def steps_to_first_overflow(tree: Tree, cell: Cell) -> int:
    """Number of the steps of a trained cell up to the first one whose gradients overflowed."""
    from running import rows

    records = [row for row in rows(_run_folder(tree.folder, cell)) if "split" not in row]
    for number, record in enumerate(records, start=1):
        if record["skipped_steps"]:
            return number
    return len(records)


def write(scratch: Path) -> int:
    """Replaces the file of curves, which are in fp32, by what the working tree computes here."""
    tree = Tree(".", scratch)
    trials = Trials(tree, CURVE_STEPS)
    curves = {}
    for workload in tree.choices("workload"):
        cell = Cell(workload, "fp32", tree.choices("loader")[0], tree.choices("framework")[0])
        curves[str(cell)] = curve(tree, trials, cell)
        print(f"{cell}: {curves[str(cell)][0]:.6g} → {curves[str(cell)][-1]:.6g}", flush=True)
    CURVES.parent.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(losses)}" for name, losses in curves.items())
    CURVES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", nargs="?", metavar="OLD")
    parser.add_argument("new", nargs="?", metavar="NEW")
    parser.add_argument("--only", default="", metavar="WORKLOAD,…", help="these workloads")
    parser.add_argument(
        "--cells", default="", metavar="WORD,…", help="cells with one of these words in their name"
    )
    parser.add_argument(
        "--steps", type=int, default=30, metavar="N", help="of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {CURVES.relative_to(ROOT)} instead"
    )
    arguments = parser.parse_args(words)
    if arguments.write != (arguments.new is None):
        parser.error("give two revisions to compare, or --write alone")
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        return write(Path(scratch)) if arguments.write else compare(arguments, Path(scratch))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
