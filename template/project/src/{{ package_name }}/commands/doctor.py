"""Check driver, wheel, card, precision, data and compiler, and show what training sets in torch.

Exits with 0, or with 1 when a check failed. A warning costs speed or deserves a look; nothing
breaks.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..engine import gpus
from ..engine.errors import UserError
from ..engine.explanations import explain
from ..engine.runs import device_line, versions

if TYPE_CHECKING:
    from ..config import Settings

ANSWERS = Path(".copier-answers.yml")
WHEELS = "https://download.pytorch.org/whl/"

Answers = Mapping[str, Any]
Finding = tuple[str, str]
"""Of a check: ok, warning or failed, and one line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify", action="store_true", help="compare all stored data with their checksums"
    )


def run(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Run every check, also after one that failed; then show what is set.

    Raises `UserError` where torch kills its process.
    """
    check_import()
    settings = load()
    card = gpus.this_card()
    answers = read_answers()
    checks: dict[str, Callable[[], Finding]] = {
        "driver": lambda: check_driver(card, answers),
        "wheel": lambda: check_wheel(card),
        "card": lambda: check_card(card, answers),
        "precision": lambda: check_precision(settings, card),
        "data": lambda: check_data(settings, arguments.verify),
        "compile": lambda: check_compile(settings, card),
    }

    failed = False
    for name, check in checks.items():
        result, line = attempt(check, settings)
        print(f"{result:8} {name:12} {line}", flush=True)
        failed = failed or result == "failed"
    print_state(settings)
    return int(failed)


def check_import() -> None:
    """Import torch in another process. Raises `UserError` where a signal kills that."""
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True)
    # An instruction that this CPU does not know, or a library of another system.
    if done.returncode < 0:
        what = f"importing torch ends with {signal.Signals(-done.returncode).name}"
        remedy = "install another build of it: its own is for another CPU or system"
        raise UserError(what, platform.machine(), remedy)


def attempt(check: Callable[[], Finding], settings: Settings) -> Finding:
    """Run a check; one that breaks is a finding too, and the others still count."""
    try:
        return check()
    except Exception as error:
        explained = explain(error, settings, None) or error
        line = str(explained).partition("\n")[0]
        if not isinstance(explained, UserError):
            line = f"{type(error).__name__}: {line}"
        return "failed", line


def print_state(settings: Settings) -> None:
    """Print machine, versions, and what is on in torch, as training sets it."""
    import torch

    from ..engine.distributed import Distributed
    from ..engine.optimization import describe, set_deterministic

    distributed = Distributed()
    set_deterministic(settings.reproducibility.deterministic, settings.training.cudnn_benchmark)
    state = {"device": device_line(distributed.device), **versions()}
    state |= {row["name"]: row["state"] for row in describe(settings, distributed, {})}
    state["float32 matmul precision"] = torch.get_float32_matmul_precision()
    print()
    for name, value in state.items():
        print(f"{name:26} {value}")


def read_answers() -> Answers:
    """Return the answers that this project was rendered from; empty without that file."""
    if not ANSWERS.exists():
        return {}
    return dict(yaml.safe_load(ANSWERS.read_text(encoding="utf-8")))


# --- the checks


def check_driver(card: gpus.Card, answers: Answers) -> Finding:
    """Ask the driver for its version, and whether torch can use it."""
    import torch

    program = shutil.which("nvidia-smi")
    if program is None:
        return "ok", "there is no nvidia-smi"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    version = (done.stdout or done.stderr).strip().partition("\n")[0]
    if done.returncode:
        return "failed", f"nvidia-smi fails: {version}: reload or reinstall the driver"
    if card.capability is None and answers.get("gpu") != "cpu":
        what = f"torch {torch.__version__} cannot use the GPU"
        remedy = f"update the driver, install another build from {WHEELS}"
        return "failed", f"{version}: {what}: {remedy}, or unset CUDA_VISIBLE_DEVICES"
    return "ok", version


def check_wheel(card: gpus.Card) -> Finding:
    """Run a kernel on the card: torch may be built for others."""
    import torch

    line = f"torch {torch.__version__}"
    if card.capability is None:
        return "ok", line
    try:
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        row, _ = gpus.match(card.name, card.sm_count, card.memory_gb)
        remedy = f"another build from {WHEELS}"
        if row is not None:
            remedy = f"torch{row.torch} from {WHEELS}{row.wheel}"
        return "failed", f"{line} has no code for sm {card.sm}: install {remedy}"
    return "ok", f"{line} has code for this card"


def check_card(card: gpus.Card, answers: Answers) -> Finding:
    """Compare the card with the answer `gpu`; name the command that moves the project to it."""
    answer = answers.get("gpu")
    if card.capability is None:
        state = "ok" if answer in ("auto", "cpu") else "warning"
        return state, f"no GPU, training runs on the CPU; the project is for gpu={answer}"

    row, why = gpus.match(card.name, card.sm_count, card.memory_gb)
    key = row.key if row else "other"
    same_sm = answers.get("gpu_compute_capability", card.sm) == card.sm
    if answer == "auto" or (answer == key and same_sm):
        return "ok", f"{why}; the project is for gpu={answer}"
    command = update_command(card, row, answers)
    return "warning", f"this is {card.name}, the project is for gpu={answer}: {command}"


def update_command(card: gpus.Card, row: gpus.Gpu | None, answers: Answers) -> str:
    """Return what moves the project to this card. row: of the table; None if it is not there."""
    command = "copier update --defaults -r :current: -d gpu="
    if row is not None:
        command += row.key
    else:
        command += f"other -d gpu_compute_capability={card.sm}"
        command += f" -d gpu_memory_gb={round(card.memory_gb)}"
    # Copier refuses the update where the old precision is impossible on the new card.
    impossible = {"tf32", "bf16", "fp8"} - gpus.features(card.capability or (0, 0), card.hip)
    if answers.get("precision") in impossible:
        command += " -d precision=auto"
    return command


def check_precision(settings: Settings, card: gpus.Card) -> Finding:
    """Set the precision that training takes; on a CPU say what it costs, or what bf16 would."""
    from ..assemble import choose_precision
    from ..engine.distributed import Distributed
    from ..engine.precision import HALF, Precision, cost_on_cpu

    device = Distributed().device
    chosen, why = choose_precision(settings, device, card)
    Precision(chosen, device)
    line = f"{chosen}: {why}"
    if card.capability is None and chosen not in HALF:
        line += "; " + cost_on_cpu("bf16")
    return "ok" if settings.training.precision in ("auto", chosen) else "warning", line


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
    """Compile a tiny function, if training compiles; compare with eager."""
    import torch

    from ..engine.optimization import compiles

    used, why = compiles(settings, card.capability)
    if not used:
        return "ok", f"off ({why})"

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x) * 2 + x.sum(-1, keepdim=True)

    x = torch.randn(64, 64, device="cuda" if card.capability else "cpu")
    torch.testing.assert_close(torch.compile(function)(x), function(x), rtol=1e-3, atol=1e-3)
    return "ok", "a small function was compiled"
