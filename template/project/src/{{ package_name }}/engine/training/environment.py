"""The environment of a run: device, versions, commit."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..compute.gpus import this_card
from ..errors import without_secrets
from ..files import write_json
from ..runs import started

if TYPE_CHECKING:
    import torch


def write_environment(folder: Path, device: torch.device, **facts: object) -> None:
    """Write env.json: versions, device, commit, command, `facts`, when the first call started."""
    environment = {
        "versions": versions(),
        "gpu": device_line(device),
        "git": git_state(),
        **facts,
        "started": started(folder),
        "argv": [without_secrets(word) for word in sys.argv[1:]],
    }
    write_json(folder / "env.json", environment)


def device_line(device: torch.device) -> str:
    """Describe the device in output and report: name, capability, memory."""
    import torch

    card = this_card(device)
    if card.capability is None:
        threads = torch.get_num_threads()
        return f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    return f"{card.name}, sm {card.sm}, {card.memory_gb:.1f} GB"


def versions() -> dict[str, str]:
    """Return the versions that decide speed and numbers."""
    import torch

    cuda = torch.version.cuda or torch.version.hip or "none"
    return {"python": platform.python_version(), "torch": torch.__version__, "cuda": cuda}


def git_state() -> str:
    """Return the project's commit, with `+changes` if files differ from it; empty without git."""
    command = ["git", "describe", "--always", "--abbrev=7", "--dirty=+changes", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    return ""
