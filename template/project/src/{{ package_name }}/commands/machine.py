"""Compare driver, build and GPU with the answers, try the compiler; --verify: all stored data.

The exit code is 1 if a check failed. A warning is about lost speed or something to look at;
training works nevertheless.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.compute import gpus
from ..engine.compute.gpu_table import match
from ..engine.errors import UserError
from ..engine.sources import read
from ..engine.training.explanations import explain

if TYPE_CHECKING:
    from ..settings import Settings

ANSWERS = Path(".copier-answers.yml")
WHEELS = "https://download.pytorch.org/whl/"

Answers = Mapping[str, Any]
Finding = tuple[str, str]
"""The result of a check: ok, warning or failed, and one line about it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify", action="store_true", help="compare all stored data with their checksums"
    )


def main(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Run every check, even if an earlier one failed."""
    settings = load()
    card = gpus.this_card()
    answers: Any = {}
    if ANSWERS.exists():
        answers = read(ANSWERS)
    checks: dict[str, Callable[[], Finding]] = {
        "driver": lambda: check_driver(card, answers),
        "wheel": lambda: check_wheel(card),
        "card": lambda: check_card(card, answers),
        "compile": lambda: check_compile(settings, card),
    }
    if arguments.verify:
        checks["data"] = lambda: check_data(settings)

    code = 0
    for name, check in checks.items():
        try:
            state, line = check()
        except Exception as error:
            state = "failed"
            line = failure(error)
        print(f"{state:8} {name:12} {line}", flush=True)
        if state == "failed":
            code = 1
    return code


def failure(error: Exception) -> str:
    """Describe an error in one line."""
    explained = explain(error) or error
    line = str(explained).partition("\n")[0]
    return line if isinstance(explained, UserError) else f"{type(error).__name__}: {line}"


def check_driver(card: gpus.Card, answers: Answers) -> Finding:
    """Ask the driver for its version, and check that torch can use it."""
    import torch

    program = shutil.which("nvidia-smi")
    if program is None:
        return "ok", "nvidia-smi is not installed"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    version = (done.stdout or done.stderr).strip().partition("\n")[0]
    if done.returncode:
        return "failed", f"nvidia-smi fails: {version}: reload or reinstall the driver"
    if card.capability is None and answers.get("gpu") != "cpu":
        remedy = f"update the driver, or install another build from {WHEELS}"
        return "failed", f"{version}: torch {torch.__version__} cannot use the GPU: {remedy}"
    return "ok", version


def check_wheel(card: gpus.Card) -> Finding:
    """Run a kernel on the GPU: this build of torch may have no code for it."""
    import torch

    line = f"torch {torch.__version__}"
    if card.capability is None:
        return "ok", line
    try:
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        row, _ = match(card)
        build = f"another build from {WHEELS}"
        if row is not None:
            build = f"torch{row.torch} from {WHEELS}{row.wheel}"
        return "failed", f"{line} has no code for sm {card.sm}: install {build}"
    return "ok", f"{line} has code for this GPU"


def check_card(card: gpus.Card, answers: Answers) -> Finding:
    """Compare the GPU with the answer `gpu`; if they differ, name the command that adapts it."""
    answer = answers.get("gpu")
    if card.capability is None:
        result = "ok" if answer in ("auto", "cpu") else "warning"
        return result, f"no GPU, training runs on the CPU; the project is for gpu={answer}"

    row, why = match(card)
    key = row.key if row else "other"
    same_sm = answers.get("gpu_compute_capability", card.sm) == card.sm
    if answer == "auto" or (answer == key and same_sm):
        return "ok", f"{why}; the project is for gpu={answer}"
    command = f"copier update --defaults -r :current: -d gpu={key}"
    if row is None:
        command += f" -d gpu_compute_capability={card.sm} -d gpu_memory_gb={card.memory_gb:.0f}"
    # Copier rejects the update if the new GPU does not support the old precision.
    native = gpus.features(card.capability, card.hip)
    if answers.get("precision") in {"tf32", "bf16", "fp8"} - native:
        command += " -d precision=auto"
    return "warning", f"this GPU is {card.name}, but the project is for gpu={answer}: {command}"


def check_compile(settings: Settings, card: gpus.Card) -> Finding:
    """Compile a small function, if training uses torch.compile."""
    import torch

    from ..engine.compute.optimization import compiles

    used, why = compiles(settings, card.capability)
    why = why or "set by compile.enabled"
    if not used:
        return "ok", f"off ({why})"
    ones = torch.ones(64, 64, device="cuda" if card.capability else "cpu")
    torch.compile(lambda x: (2 * x).sum(-1))(ones)
    return "ok", f"on ({why}): a small function was compiled"


def check_data(settings: Settings) -> Finding:
    """Compare all files of the prepared dataset with their checksums."""
    from ..assemble import open_store

    store = open_store(settings)
    num_bytes = 0
    for name, entry in store.files.items():
        store.verify(name)
        num_bytes += entry["bytes"]
    return "ok", f"{num_bytes / 1e6:,.1f} MB in {store.folder} are as `prepare` wrote them"
