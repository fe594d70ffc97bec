"""Check GPU, driver, versions, answers, data and compiler, and show what training sets in torch.

Exits with 0, or with 1 when a check failed. A warning costs speed or deserves a look; nothing
breaks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..engine import gpus
from ..engine.errors import UserError
from ..engine.explanations import lacks_compiler, no_compiler
from ..engine.runs import device_line, versions

if TYPE_CHECKING:
    from ..config import Settings
    from ..engine.config import Training

ANSWERS = Path(".copier-answers.yml")
WHEELS = "https://download.pytorch.org/whl/"
# Oldest Linux driver of each CUDA major version:
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
DRIVERS = {"12": 525, "13": 580}
COMPILE_SECONDS = 180
COMPILED = """
import torch
def f(x):
    return torch.nn.functional.gelu(x) * 2 + x.sum(-1, keepdim=True)
x = torch.randn(64, 64, device={device!r})
torch.testing.assert_close(torch.compile(f)(x), f(x), rtol=1e-3, atol=1e-3)
"""
# Variables that change TF32 behind the settings, or are believed to.
VARIABLES = {
    "TORCH_ALLOW_TF32_OVERRIDE": "does nothing, there is no such variable",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "sets a default only, training.precision decides",
    "NVIDIA_TF32_OVERRIDE": (
        "as 0 turns TF32 off in all of NVIDIA's libraries, whatever the settings say"
    ),
}

Answers = Mapping[str, Any]
Found = tuple[str, str]
"""What a check found: ok, warning or failed, and one line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object instead of lines")
    add("--verify", action="store_true", help="compare all stored data with their checksums")


def run(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Run every check, also after one that failed.

    Raises `UserError` where torch kills its process.
    """
    check_import()
    settings = load()
    card = gpus.this_card()
    answers = read_answers(ANSWERS)
    row = None
    why = ""
    if card.capability:
        row, why = gpus.match(card.name, card.sm_count, card.memory_gb)
    command = update_command(card, row, answers)

    checks: dict[str, Callable[[], Found]] = {
        "driver": lambda: check_driver(card, answers, driver()),
        "wheel": lambda: check_wheel(card, row),
        "card": lambda: check_card(card, why, answers, command),
        "precision": lambda: check_precision(settings.training, card),
        "environment": lambda: check_environment(os.environ),
        "data": lambda: check_data(settings),
        "compile": lambda: check_compile(settings, card),
    }
    if arguments.verify:
        checks["checksums"] = lambda: check_sums(settings)
    findings = {name: attempt(check) for name, check in checks.items()}
    state = state_of(settings, card)

    failed = any(result == "failed" for result, _ in findings.values())
    if arguments.json:
        print_json(findings, state, command, ok=not failed)
    else:
        print_lines(findings, state)
    return int(failed)


def check_import() -> None:
    """Import torch in another process. Raises `UserError` where a signal kills that."""
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True)
    # An instruction that this CPU does not know, or a library of another system.
    if done.returncode < 0:
        what = f"importing torch ends with {signal.Signals(-done.returncode).name}"
        remedy = "install another build of it: its own is for another CPU or system"
        raise UserError(what, platform.machine(), remedy)


def print_json(
    findings: dict[str, Found], state: dict[str, str], command: str | None, ok: bool
) -> None:
    """Print one JSON object. command: what updates the project, if that is needed."""
    checks = []
    for name, (result, line) in findings.items():
        checks.append({"name": name, "state": result, "line": line})
    content = {"ok": ok, "state": state, "checks": checks, "update": command}
    print(json.dumps(content, indent=1))


def print_lines(findings: dict[str, Found], state: dict[str, str]) -> None:
    """Print the state, then a line for each check."""
    for name, value in state.items():
        print(f"{name:26} {value}")
    print()
    for name, (result, line) in findings.items():
        print(f"{result:8} {name:12} {line}")


def attempt(check: Callable[[], Found]) -> Found:
    """Run a check; one that breaks is a finding too, and the others still count."""
    try:
        return check()
    except Exception as error:
        line = str(error).partition("\n")[0]
        if not isinstance(error, UserError):
            line = f"{type(error).__name__}: {line}"
        return "failed", line


def read_answers(path: Path) -> Answers:
    """Return the answers that this project was rendered from; empty where they cannot be read."""
    with suppress(OSError, ValueError, yaml.YAMLError):
        answers = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(answers, dict):
            return answers
    return {}


def update_command(card: gpus.Card, row: gpus.Gpu | None, answers: Answers) -> str | None:
    """Return what moves the project to this card.

    None where it fits, or was rendered to decide at the start.
    """
    if card.capability is None or (row is None and card.hip):
        return None
    answer = answers.get("gpu", "auto")
    sm = answers.get("gpu_compute_capability", card.sm)
    this_card = row.key if row else "other"
    if answer == "auto" or (answer == this_card and sm == card.sm):
        return None

    command = f"copier update --defaults -r :current: -d gpu={this_card}"
    if row is None:
        command += f" -d gpu_compute_capability={card.sm}"
        command += f" -d gpu_memory_gb={round(card.memory_gb)}"
    # Copier refuses the update where the old precision is impossible on the new card.
    impossible = {"tf32", "bf16", "fp8"} - gpus.features(card.capability, card.hip)
    if answers.get("precision") in impossible:
        command += " -d precision=auto"
    return command


def state_of(settings: Settings, card: gpus.Card) -> dict[str, str]:
    """Return machine, versions, and what is on in torch, after setting it as training does."""
    import torch

    from ..engine.distributed import Distributed
    from ..engine.optimization import describe, set_deterministic
    from ..engine.precision import Precision

    distributed = Distributed()
    training = settings.training
    with suppress(UserError):  # the check `precision` says it
        name, _ = gpus.resolve_precision(
            training.precision, card.capability, card.hip, training.fp8_emulation
        )
        Precision(name, distributed.device)
    set_deterministic(settings.reproducibility.deterministic, training.cudnn_benchmark)

    state = {"device": device_line(distributed.device)}
    state |= versions()
    for row in describe(settings, distributed, {}):
        state[row["name"]] = row["state"]
    state["float32 matmul precision"] = torch.get_float32_matmul_precision()
    return state


def driver() -> tuple[str, str] | None:
    """Return (card, driver version) by nvidia-smi; None where there is none.

    Raises `UserError` where it fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    output = done.stdout.strip() or done.stderr.strip() or "no output"
    first = output.splitlines()[0]
    name, comma, version = first.rpartition(",")
    if done.returncode or not comma:
        raise UserError(f"nvidia-smi fails: {first}", "", "reload or reinstall the driver")
    return name.strip(), version.strip()


def check_driver(card: gpus.Card, answers: Answers, found: tuple[str, str] | None) -> Found:
    """Compare the driver with torch's CUDA. `found` is what `driver` gives."""
    import torch

    if found is None:
        return "ok", "nvidia-smi is not on the path" if card.capability else "no NVIDIA driver"
    name, version = found
    line = f"{version}, {name}"
    cuda = torch.version.cuda or ""
    least = DRIVERS.get(cuda.partition(".")[0], 0)
    if sys.platform == "linux" and int(version.partition(".")[0]) < least:
        remedy = f"CUDA {cuda} needs {least}: update it, or install torch for an older CUDA"
        return "warning" if card.capability else "failed", f"{line}: {remedy}"
    if card.capability:
        return "ok", line
    if "CUDA_VISIBLE_DEVICES" in os.environ or answers.get("gpu") == "cpu":
        reason = "hidden by CUDA_VISIBLE_DEVICES, or the project is for a CPU"
        return "warning", f"{line}: {reason}"
    reason = "cannot use it" if cuda else f"is a CPU build: install another from {WHEELS}"
    return "failed", f"{line}: torch {torch.__version__} {reason}"


def check_wheel(card: gpus.Card, row: gpus.Gpu | None) -> Found:
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
        remedy = f"another build from {WHEELS}"
        if row is not None:
            remedy = f"torch{row.torch} from {WHEELS}{row.wheel}"
        built = ", ".join(torch.cuda.get_arch_list())
        return "failed", f"{line} has no code for sm {card.sm} ({built}): install {remedy}"
    return "ok", f"{line} has code for this card"


def check_card(card: gpus.Card, why: str, answers: Answers, command: str | None) -> Found:
    """Compare the card with the answer `gpu`."""
    answer = answers.get("gpu")
    if answer is None:
        remedy = "run this in the project's folder to compare with them"
        return "warning", f"no answers in {ANSWERS}: {remedy}"
    if card.capability is None:
        state = "ok" if answer in ("auto", "cpu") else "warning"
        return state, f"no GPU, training runs on the CPU; the project is for gpu={answer}"
    if command:
        return "warning", f"this is {card.name}, the project is for gpu={answer}: {command}"
    return "ok", f"{why}; the project is for gpu={answer}"


def check_precision(training: Training, card: gpus.Card) -> Found:
    """Name the precision that training takes; on a CPU also what bf16, or the chosen one, costs."""
    from .. import model
    from ..engine.precision import HALF, cost_on_cpu

    name = training.precision
    chosen, why = gpus.resolve_precision(name, card.capability, card.hip, training.fp8_emulation)
    line = f"{chosen}: {why}"
    if card.capability is None and chosen in HALF:
        line += "; " + cost_on_cpu(chosen, getattr(model, "FLOAT32_ON_CPU", ""))
    elif card.capability is None:
        line += "; " + cost_on_cpu("bf16")
    return "ok" if name in ("auto", chosen) else "warning", line


def check_environment(environment: Mapping[str, str]) -> Found:
    lines = []
    for name, what in VARIABLES.items():
        if name in environment:
            lines.append(f"{name}={environment[name]} {what}")
    if lines:
        return "warning", "; ".join(lines)
    return "ok", "no variable overrides TF32"


def check_data(settings: Settings) -> Found:
    """Read what a first batch needs, through the project's own loader."""
    import torch

    from ..assemble import open_store
    from ..dataset import Samples
    from ..engine.loader import Loader
    from ..engine.order import order_of

    store = open_store(settings)
    samples = Samples(store, settings, "train")
    loader = Loader(samples, store, settings, order_of(samples, settings), torch.device("cpu"))
    next(loader.epoch(0))
    loader.close()
    size = sum(entry["bytes"] for entry in store.files.values())
    return "ok", f"{len(samples):,} training samples, {size / 1e6:,.1f} MB in {store.folder}"


def check_sums(settings: Settings) -> Found:
    """Read all stored data, also what is known to be good."""
    from ..assemble import open_store
    from ..engine.store import verify

    store = open_store(settings)
    size = verify(store, again=True) / 1e9
    return "ok", f"{size:,.2f} GB in {store.folder} are as `prepare` wrote them"


def check_compile(settings: Settings, card: gpus.Card) -> Found:
    """Compile a tiny function in another process, where training compiles; compare with eager."""
    from ..engine.optimization import compiles

    used, why = compiles(settings, card.capability)
    if not used:
        return "ok", f"off ({why})"
    code = COMPILED.format(device="cuda" if card.capability else "cpu")
    # No workers that outlive the time limit.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "failed", f"no result after {COMPILE_SECONDS} s"
    if done.returncode:
        return "failed", why_not_compiled(done.stderr)
    return "ok", f"a small function compiled in {time.perf_counter() - begun:.0f} s"


def why_not_compiled(said: str) -> str:
    """Return the line of a traceback that names the error; torch's hints come after it."""
    if lacks_compiler(said):
        return str(no_compiler())
    lines = said.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]+: ", line)]
    return (errors or lines or ["died without a word"])[-1]
