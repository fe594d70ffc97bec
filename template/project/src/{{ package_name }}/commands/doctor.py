"""Check GPU, driver, versions, answers, data and compiler, and show what training sets in torch.

Exits with 0, or with 1 when a check failed. A warning costs speed or deserves a look; nothing breaks.
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
from ..engine.errors import UserError, lacks_compiler, no_compiler
from ..engine.runs import device_line, versions

if TYPE_CHECKING:
    from ..config import Settings, Training

ANSWERS = Path(".copier-answers.yml")
WHEELS = "https://download.pytorch.org/whl/"
# Oldest Linux driver of each CUDA major version: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
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
    "NVIDIA_TF32_OVERRIDE": "as 0 turns TF32 off in all of NVIDIA's libraries, whatever the settings say",
}

Answers = Mapping[str, Any]
Found = tuple[str, str]
"""What a check found: ok, warning or failed, and one line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--verify", action="store_true", help="compare all stored data with their checksums")


def run(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Runs every check, also after one that failed. Raises `UserError` where torch kills its process."""
    code = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode
    if code < 0:  # a signal: an instruction that this CPU does not know, a library of another system
        remedy = "install another build of it: its own is for another CPU or system"
        raise UserError(f"importing torch ends with {signal.Signals(-code).name}", platform.machine(), remedy)
    settings, card, answers = load(), gpus.this_card(), read_answers(ANSWERS)
    row, why = gpus.match(card.name, card.sm_count, card.memory_gb) if card.capability else (None, "")
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
    found = {name: attempt(check) for name, check in checks.items()}
    state, failed = state_of(settings, card), any(result == "failed" for result, _ in found.values())
    if arguments.json:
        listed = [{"name": name, "state": result, "line": line} for name, (result, line) in found.items()]
        print(json.dumps({"ok": not failed, "state": state, "checks": listed, "update": command}, indent=1))
    else:
        print("\n".join(f"{name:26} {value}" for name, value in state.items()), end="\n\n")
        print("\n".join(f"{result:8} {name:12} {line}" for name, (result, line) in found.items()))
    return int(failed)


def attempt(check: Callable[[], Found]) -> Found:
    """A check that breaks is a finding too, and the others still count."""
    try:
        return check()
    except Exception as error:
        line = str(error).partition("\n")[0]
        return "failed", line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"


def read_answers(path: Path) -> Answers:
    """The answers that this project was rendered from; empty where the file is missing or unreadable."""
    with suppress(OSError, ValueError, yaml.YAMLError):
        if isinstance(answers := yaml.safe_load(path.read_text(encoding="utf-8")), dict):
            return answers
    return {}


def update_command(card: gpus.Card, row: gpus.Gpu | None, answers: Answers) -> str | None:
    """What moves the project to this card; None where it fits, or was rendered to decide at the start."""
    answer, sm = answers.get("gpu", "auto"), answers.get("gpu_compute_capability", card.sm)
    fits = answer == "auto" or (answer == (row.key if row else "other") and sm == card.sm)
    if card.capability is None or fits or (row is None and card.hip):
        return None
    unknown = f"other -d gpu_compute_capability={card.sm} -d gpu_memory_gb={round(card.memory_gb)}"
    command = f"copier update --defaults -r :current: -d gpu={row.key if row else unknown}"
    # Copier refuses the update where the old precision is impossible on the new card.
    impossible = {"tf32", "bf16", "fp8"} - gpus.features(card.capability, card.hip)
    return command + (" -d precision=auto" if answers.get("precision") in impossible else "")


def state_of(settings: Settings, card: gpus.Card) -> dict[str, str]:
    """The machine, the versions, and what is on in torch, after setting it as training does."""
    import torch

    from ..engine.distributed import Distributed
    from ..engine.optimization import describe, set_deterministic
    from ..engine.precision import Precision

    distributed, training = Distributed(), settings.training
    with suppress(UserError):  # the check `precision` says it
        name, _ = gpus.resolve_precision(
            training.precision, card.capability, card.hip, training.fp8_emulation
        )
        Precision(name, distributed.device)
    set_deterministic(settings.reproducibility.deterministic, training.cudnn_benchmark)
    found = {"device": device_line(distributed.device)} | versions()
    found |= {row["name"]: row["state"] for row in describe(settings, distributed, {})}
    return found | {"float32 matmul precision": torch.get_float32_matmul_precision()}


def driver() -> tuple[str, str] | None:
    """(card, driver version) by nvidia-smi; None where there is none. Raises where it fails."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    first = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[0]
    name, comma, version = first.rpartition(",")
    if done.returncode or not comma:
        raise UserError(f"nvidia-smi fails: {first}", "", "reload or reinstall the driver")
    return name.strip(), version.strip()


def check_driver(card: gpus.Card, answers: Answers, found: tuple[str, str] | None) -> Found:
    """`found` is what `driver` gives."""
    import torch

    if found is None:
        return "ok", "nvidia-smi is not on the path" if card.capability else "no NVIDIA driver"
    (name, version), cuda = found, torch.version.cuda or ""
    line, least = f"{version}, {name}", DRIVERS.get(cuda.partition(".")[0], 0)
    if sys.platform == "linux" and int(version.partition(".")[0]) < least:
        remedy = f"CUDA {cuda} needs {least}: update it, or install torch for an older CUDA"
        return "warning" if card.capability else "failed", f"{line}: {remedy}"
    if card.capability:
        return "ok", line
    if "CUDA_VISIBLE_DEVICES" in os.environ or answers.get("gpu") == "cpu":
        return "warning", f"{line}: hidden by CUDA_VISIBLE_DEVICES, or the project is for a CPU"
    reason = "cannot use it" if cuda else f"is a CPU build: install another from {WHEELS}"
    return "failed", f"{line}: torch {torch.__version__} {reason}"


def check_wheel(card: gpus.Card, row: gpus.Gpu | None) -> Found:
    """Whether torch was built for the card: runs a kernel on it."""
    import torch

    line = f"torch {torch.__version__}"
    if card.capability is None:
        return "ok", line
    try:
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        remedy = f"torch{row.torch} from {WHEELS}{row.wheel}" if row else f"another build from {WHEELS}"
        built = ", ".join(torch.cuda.get_arch_list())
        return "failed", f"{line} has no code for sm {card.sm} ({built}): install {remedy}"
    return "ok", f"{line} has code for this card"


def check_card(card: gpus.Card, why: str, answers: Answers, command: str | None) -> Found:
    """The card against the answer `gpu`."""
    answer = answers.get("gpu")
    if answer is None:
        return "warning", f"no answers in {ANSWERS}: run this in the project's folder to compare with them"
    if card.capability is None:
        state = "ok" if answer in ("auto", "cpu") else "warning"
        return state, f"no GPU, training runs on the CPU; the project is for gpu={answer}"
    if command:
        return "warning", f"this is {card.name}, the project is for gpu={answer}: {command}"
    return "ok", f"{why}; the project is for gpu={answer}"


def check_precision(training: Training, card: gpus.Card) -> Found:
    """The precision that training takes; on a CPU also what bf16, or the chosen one, costs there."""
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
    lines = [f"{name}={environment[name]} {what}" for name, what in VARIABLES.items() if name in environment]
    return ("warning", "; ".join(lines)) if lines else ("ok", "no variable overrides TF32")


def check_data(settings: Settings) -> Found:
    """Reads what a first batch needs, through the project's own loader."""
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
    """Reads all stored data, also what is known to be good."""
    from ..assemble import open_store
    from ..engine.store import verify

    store = open_store(settings)
    return "ok", f"{verify(store, again=True) / 1e9:,.2f} GB in {store.folder} are as `prepare` wrote them"


def check_compile(settings: Settings, card: gpus.Card) -> Found:
    """A tiny function compiled in another process, against its eager result, where training compiles."""
    from ..engine.optimization import compiles

    used, why = compiles(settings, card.capability)
    if not used:
        return "ok", f"off ({why})"
    command = [sys.executable, "-c", COMPILED.format(device="cuda" if card.capability else "cpu")]
    alone = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no workers that outlive the time limit
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return "failed", f"no result after {COMPILE_SECONDS} s"
    if done.returncode:
        return "failed", why_not_compiled(done.stderr)
    return "ok", f"a small function compiled in {time.perf_counter() - begun:.0f} s"


def why_not_compiled(said: str) -> str:
    """The line of a traceback that names the error; torch's hints come after it."""
    if lacks_compiler(said):
        return str(no_compiler())
    lines = said.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]+: ", line)]
    return (errors or lines or ["died without a word"])[-1]
