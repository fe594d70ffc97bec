"""Check GPU, driver, versions, answers, data and compiler.

Exits with 0, or with 1 when a check failed. A warning costs speed or deserves a look; nothing breaks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..engine import gpus
from ..engine.errors import UserError
from ..engine.gpus import Card, this_card

ANSWERS = Path(".copier-answers.yml")
WHEELS = "https://download.pytorch.org/whl/"
# Oldest Linux driver of each CUDA major version: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
DRIVERS = {"12": "525.60.13", "13": "580.65.06"}
READ_SECONDS = 2.0
COMPILE_SECONDS = 180
COMPILED = """
import torch
def f(x):
    return torch.nn.functional.gelu(x) * 2 + x.sum(-1, keepdim=True)
x = torch.randn(64, 64, device={device!r})
torch.testing.assert_close(torch.compile(f)(x), f(x), rtol=1e-3, atol=1e-3)
"""

Found = tuple[str, str]
"""What a check found: ok, warning or failed, and one line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--verify", action="store_true", help="compare all stored data with their checksums")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> int:
    """Runs every check, also after one that failed."""
    settings = load()
    card, answers = this_card(), read_answers(ANSWERS)
    row, why = gpus.match(card.name, card.sm_count, card.memory_gb) if card.capability else (None, "")
    command = update_command(card, row, answers)
    checks: dict[str, Callable[[], Found]] = {
        "driver": lambda: check_driver(card, answers, driver()),
        "wheel": lambda: check_wheel(card, row),
        "card": lambda: check_card(card, why, answers, command),
        "precision": lambda: check_precision(settings.training.precision, card),
        "environment": lambda: check_environment(os.environ),
        "disk": lambda: check_disk(Path.cwd(), Path(settings.data.path).absolute()),
        "limits": lambda: check_limits(*limits()),
        "data": lambda: check_data(settings),
        "compile": lambda: check_compile(settings, card),
    }
    if arguments.verify:
        checks["checksums"] = lambda: check_sums(settings)
    found = {name: attempt(check) for name, check in checks.items()}
    state = report_state(settings, card) | versions()
    failed = any(result == "failed" for result, _ in found.values())
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
        line = " ".join(str(error).split("\n")[:1])
        return "failed", line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"


def read_answers(path: Path) -> dict[str, Any]:
    """The answers that this project was rendered from; empty where the file is missing or unreadable."""
    import yaml

    try:
        answers = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return answers if isinstance(answers, dict) else {}


def update_command(card: Card, row: gpus.Gpu | None, answers: Mapping[str, Any]) -> str | None:
    """What moves the project to this card; None where it fits, or was rendered to decide at the start."""
    answer = answers.get("gpu", "auto")
    if card.capability is None or answer == "auto" or (row is None and card.hip):
        return None
    if answer == (row.key if row else "other") and answers.get("gpu_compute_capability", card.sm) == card.sm:
        return None
    unknown = f"other -d gpu_compute_capability={card.sm} -d gpu_memory_gb={round(card.memory_gb)}"
    command = f"copier update --defaults -r :current: -d gpu={row.key if row else unknown}"
    # Copier refuses the update where the old precision is impossible on the new card.
    impossible = {"tf32", "bf16", "fp8"} - gpus.features(card.capability, card.hip)
    return command + (" -d precision=auto" if answers.get("precision") in impossible else "")


def report_state(settings: Any, card: Card) -> dict[str, Any]:
    """What is set in torch, after setting it as training does."""
    import torch

    from ..engine.precision import Precision
    from ..engine.reproducibility import set_deterministic

    try:
        name, _ = gpus.resolve_precision(settings.training.precision, card.capability, card.hip)
        Precision(name, torch.device("cuda" if card.capability else "cpu"))
    except UserError:
        name = "impossible here"  # the check `precision` says why
    set_deterministic(settings.reproducibility.deterministic, settings.training.cudnn_benchmark)
    switches = {
        "matmul TF32": torch.backends.cuda.matmul.allow_tf32,
        "cuDNN TF32": torch.backends.cudnn.allow_tf32,
        "cuDNN benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    return {
        "device": card.name,
        "compute capability": card.sm,
        "memory": f"{card.memory_gb:.1f} GB" if card.capability else "none",
        "precision": name,
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        **{label: "on" if value else "off" for label, value in switches.items()},
    }


def versions() -> dict[str, str]:
    """Of Python and of what decides speed."""
    import torch

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    toolkit = f"ROCm {torch.version.hip}" if torch.version.hip else torch.version.cuda or "none"
    own = {"Python": sys.version.split()[0], "torch": torch.__version__, "CUDA": toolkit}
    return own | {package: version(package) for package in ("triton", "h5py", "numpy")}


def driver() -> tuple[str, str] | None:
    """(card, driver version) by nvidia-smi; None where there is none. Raises where it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    first = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[0]
    name, comma, version = first.rpartition(",")
    if done.returncode or not comma:
        raise UserError(f"nvidia-smi fails: {first}", "", "reload or reinstall the driver")
    return name.strip(), version.strip()


def check_driver(card: Card, answers: Mapping[str, Any], found: tuple[str, str] | None) -> Found:
    """`found` is what `driver` gives."""
    import torch

    if found is None:
        return "ok", "nvidia-smi is not on the path" if card.capability else "no NVIDIA driver"
    (name, version), cuda = found, torch.version.cuda or ""
    line, trouble = f"{version}, {name}", "warning" if card.capability else "failed"
    least = DRIVERS.get(cuda.partition(".")[0], "0") if sys.platform == "linux" else "0"
    if numbers(version) < numbers(least):
        return trouble, f"{line}: CUDA {cuda} needs {least}: update it, or install torch for an older CUDA"
    if card.capability:
        return "ok", line
    if "CUDA_VISIBLE_DEVICES" in os.environ or answers.get("gpu") == "cpu":
        return "warning", f"{line}: hidden by CUDA_VISIBLE_DEVICES, or the project is for a CPU"
    reason = "cannot use it" if cuda else f"is a CPU build: install another from {WHEELS}"
    return "failed", f"{line}: torch {torch.__version__} {reason}"


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def check_wheel(card: Card, row: gpus.Gpu | None) -> Found:
    """Whether torch was built for the card."""
    import torch

    built, line = torch.cuda.get_arch_list(), f"torch {torch.__version__}"
    if card.capability is None or card.hip:
        return "ok", line
    if has_code(built, card.capability):
        return "ok", f"{line} has code for this card ({', '.join(built)})"
    remedy = f"torch{row.torch} from {WHEELS}{row.wheel}" if row else f"another build from {WHEELS}"
    return "failed", f"{line} has no code for sm {card.sm} ({', '.join(built)}): install {remedy}"


def has_code(built: list[str], capability: gpus.Capability) -> bool:
    """Whether a wheel built for these architectures runs on a card of this capability.

    A card runs code of its own major version up to its own minor one (8.9 runs sm_86), and compiles
    PTX (`compute_90`) of any older one; code for one architecture alone (`sm_90a`) runs there only.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#application-compatibility
    """
    for kind, major, minor, suffix in re.findall(r"(sm|compute)_(\d+)(\d)([a-z]?)", " ".join(built)):
        build = (int(major), int(minor))
        related = suffix != "a" and (kind == "compute" or build[0] == capability[0])
        if build == capability or (related and build < capability):
            return True
    return False


def check_card(card: Card, why: str, answers: Mapping[str, Any], command: str | None) -> Found:
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


def check_precision(name: str, card: Card) -> Found:
    chosen, why = gpus.resolve_precision(name, card.capability, card.hip)
    return "ok" if name in ("auto", chosen) else "warning", f"{chosen}: {why}"


def check_environment(environment: Mapping[str, str]) -> Found:
    """Variables that change TF32 behind the settings, or are believed to."""
    effects = {
        "TORCH_ALLOW_TF32_OVERRIDE": "does nothing, there is no such variable",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "sets a default only, training.precision decides",
        "NVIDIA_TF32_OVERRIDE": "as 0 turns TF32 off in all of NVIDIA's libraries, whatever the settings say",
    }
    lines = [
        f"{name}={environment[name]} {effect}" for name, effect in effects.items() if name in environment
    ]
    return ("warning", "; ".join(lines)) if lines else ("ok", "no variable overrides TF32")


def check_disk(*paths: Path) -> Found:
    """Room for checkpoints and data, in GB."""
    existing = [next(folder for folder in (path, *path.parents) if folder.exists()) for path in paths]
    free = {
        str(path): shutil.disk_usage(folder).free / 1e9 for path, folder in zip(paths, existing, strict=True)
    }
    least = min(free.values())
    line = "; ".join(f"{room:,.1f} GB free in {path}" for path, room in free.items())
    return "failed" if least < 1 else "warning" if least < 10 else "ok", line


def limits() -> tuple[float, int]:
    """GB that are free in shared memory, and files that a process may open; infinite where nobody counts."""
    try:
        import resource

        free = shutil.disk_usage("/dev/shm").free / 1e9
        return free, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):
        return float("inf"), 1 << 20


def check_limits(shared: float, files: int) -> Found:
    """What loader workers need: they hand batches over in shared memory, as open files."""
    line = f"{shared:,.1f} GB of shared memory free, {files:,} open files"
    if shared < 1:
        return "warning", f"{line}: start the container with --shm-size=8g, or data.num_workers 0"
    if 0 <= files < 1024:
        return "warning", f"{line}: raise it with `ulimit -n 4096`, or data.num_workers 0"
    return "ok", line


def check_data(settings: Any) -> Found:
    """Reads for a moment what training would read, through the project's own loader, and then the disk."""
    import torch

    from ..assemble import open_store
    from ..dataset import Samples
    from ..engine.loader import Loader

    store = open_store(settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(Samples(store, settings, "train"), store, settings, device)
    first: Any = loader.epoch(0)
    next(first, None)  # as before a run: from then on a loader for GPUs reads large chunks
    first.close()
    samples, start, begun = 0, 0.0, time.perf_counter()
    for number, batch in enumerate(loader.epoch(0)):
        valid = int((batch["index"] >= 0).sum())
        if number == 0:  # starts workers and maps files
            start = time.perf_counter()
            continue
        samples += valid
        if time.perf_counter() - begun > READ_SECONDS:
            break
    seconds = time.perf_counter() - start
    loader.close()
    if not samples:
        return "ok", f"a single batch from {store.folder}"
    spans = loader.samples.spans(loader.order.samples[:1], 0)
    size = sum(x.starts.size * x.width * store.arrays[name].row_bytes for name, x in spans.items())
    rate = f"{samples / seconds:,.0f} samples/s = {samples / seconds * size / 1e6:,.0f} MB/s"
    largest = max((array.path for array in store.arrays.values()), key=lambda path: path.stat().st_size)
    return "ok", f"{rate} from {store.folder}; the disk gives {raw_speed(largest) / 1e6:,.0f} MB/s"


def raw_speed(path: Path, seconds: float = 0.5) -> float:
    """Bytes a second of a file read from its beginning, without what the page cache holds of it."""
    total, start = 0, time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(8 << 20)
        while (count := file.readinto(buffer)) and time.perf_counter() - start < seconds:
            total += count
    return total / (time.perf_counter() - start)


def check_sums(settings: Any) -> Found:
    """Reads all stored data, also what is known to be good."""
    from ..assemble import open_store
    from ..engine.verification import verify

    store = open_store(settings)
    return "ok", f"{verify(store, again=True) / 1e9:,.2f} GB in {store.folder} are as `prepare` wrote them"


def check_compile(settings: Any, card: Card) -> Found:
    """A tiny function compiled in another process, against its eager result."""
    import torch

    from ..engine.optimization import compiles

    device = torch.device("cuda" if card.capability else "cpu")
    used, why = compiles(settings, card.capability)
    if card.capability and not used:
        return "ok", f"off ({why})"
    if not card.capability and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        return "failed" if used else "ok", "no C++ compiler, which torch.compile needs on a CPU"
    begun, trouble = time.perf_counter(), "failed" if used else "warning"
    suffix = "" if used else f"; not used in training ({why})"
    command = [sys.executable, "-c", COMPILED.format(device=device.type)]
    alone = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no workers that outlive the time limit
    try:
        done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return trouble, f"no result after {COMPILE_SECONDS} s{suffix}"
    if done.returncode:
        return trouble, (done.stderr.strip().splitlines() or ["died without a word"])[-1] + suffix
    return "ok", f"a small function compiled in {time.perf_counter() - begun:.0f} s{suffix}"
