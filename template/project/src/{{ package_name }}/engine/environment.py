"""Where a run takes place: the device, the versions that decide speed and numbers, the commit."""

from __future__ import annotations

import platform
import subprocess

import torch


def device_line(device: torch.device) -> str:
    """The device as lines and the report name it: name, capability, memory."""
    if device.type != "cuda":
        return f"CPU, {torch.get_num_threads()} threads"
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    return f"{properties.name}, sm {capability}, {properties.total_memory / 2**30:.1f} GB"


def versions() -> dict[str, str]:
    """Of what decides speed and numbers."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
    }


def git_state() -> str:
    """Commit of the project, with `+changes` where files differ from it; empty outside git."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+changes" if commit and _git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, timeout=5).stdout.strip()
