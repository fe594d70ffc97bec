"""Check driver, PyTorch build, GPU, precision, data and compiler; print all optimizations.

The exit code is 1 if a check failed, otherwise 0. A warning is about lost speed or something to
look at; training works nevertheless.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine import gpus
from ..engine.errors import UserError
from ..engine.explanations import explain
from ..engine.runs import device_line, versions
from ..engine.yaml_text import read_yaml

if TYPE_CHECKING:
    from ..config import Settings

ANSWERS = Path(".copier-answers.yml")
WHEELS = "https://download.pytorch.org/whl/"

Answers = Mapping[str, Any]
Finding = tuple[str, str]
"""The result of a check: ok, warning or failed, and one line about it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify", action="store_true", help="compare all stored data with their checksums"
    )


def run(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Run every check, even if an earlier one failed; then print what training sets."""
    settings = load()
    card = gpus.this_card()
    answers: Any = {}
    if ANSWERS.exists():
        answers = read_yaml(ANSWERS)
    checks: dict[str, Callable[[], Finding]] = {
        "driver": lambda: check_driver(card, answers),
        "wheel": lambda: check_wheel(card),
        "card": lambda: check_card(card, answers),
        "precision": lambda: check_precision(settings, card),
        "data": lambda: check_data(settings, arguments.verify),
        "compile": lambda: check_compile(settings, card),
    }

    code = 0
    for name, check in checks.items():
        result, line = attempt(check, settings)
        print(f"{result:8} {name:12} {line}", flush=True)
        if result == "failed":
            code = 1
    print_state(settings)
    return code


def attempt(check: Callable[[], Finding], settings: Settings) -> Finding:
    """Run a check. An exception in it counts as a failed check, and the other checks still run."""
    try:
        return check()
    except Exception as error:
        explained = explain(error, settings) or error
        line = str(explained).partition("\n")[0]
        if not isinstance(explained, UserError):
            line = f"{type(error).__name__}: {line}"
        return "failed", line


def print_state(settings: Settings) -> None:
    """Print the device, the versions and the optimizations, as training sets them."""
    from ..engine.distributed import Distributed
    from ..engine.optimization import describe, set_deterministic
    from ..optimizer import is_fused

    distributed = Distributed()
    set_deterministic(settings.reproducibility.deterministic, settings.training.cudnn_benchmark)
    print()
    for name, value in {"device": device_line(distributed.device), **versions()}.items():
        print(f"{name:26} {value}")
    for row in describe(settings, distributed, {"fused optimizer": is_fused(settings)}):
        print(f"{row['name']:26} {row['state']:10} {row['why']}")


# --- the checks


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
        row, _ = gpus.match(card)
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

    row, why = gpus.match(card)
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


def check_precision(settings: Settings, card: gpus.Card) -> Finding:
    """Set the precision as training does."""
    from ..engine.distributed import Distributed
    from ..engine.precision import Precision

    training = settings.training
    chosen, why = gpus.resolve_precision(
        training.precision, card.capability, card.hip, training.fp8_emulation
    )
    Precision(chosen, Distributed().device)
    return "ok" if training.precision in ("auto", chosen) else "warning", f"{chosen}: {why}"


def check_data(settings: Settings, verify_all: bool) -> Finding:
    """Open the data. verify_all: compare all files with their checksums."""
    from ..assemble import open_store
    from ..dataset import Samples
    from ..engine.store import verify

    store = open_store(settings)
    samples = Samples(store, settings, "train")
    line = f"{len(samples):,} training samples in {store.folder}"
    if verify_all:
        line += f", {verify(store, again=True) / 1e6:,.1f} MB as `prepare` wrote them"
    return "ok", line


def check_compile(settings: Settings, card: gpus.Card) -> Finding:
    """Compile a small function, if training uses torch.compile."""
    import torch

    from ..engine.optimization import compiles

    used, why = compiles(settings, card.capability)
    if not used:
        return "ok", f"off ({why})"

    ones = torch.ones(64, 64, device="cuda" if card.capability else "cpu")
    sums = torch.compile(lambda x: (2 * x).sum(-1))(ones)
    torch.testing.assert_close(sums, torch.full_like(sums, 2 * 64))
    return "ok", "a small function was compiled"
