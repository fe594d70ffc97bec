"""Seeds, strict determinism, and the state of every random generator as plain data."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy, PyTorch and CUDA; PYTHONHASHSEED for children, as it changes nothing in here."""
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # all CUDA devices too


def set_deterministic(enabled: bool, cudnn_benchmark: bool) -> None:
    """Strict mode: an operation without a deterministic form raises. Costs some percent of speed.

    Never `warn_only`: a warning is not determinism. TF32 is deterministic and stays as `precision` says.
    """
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS and cuDNN's LSTM ask for it
    torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.deterministic = enabled
    # Tunes convolutions per shape: pays for fixed shapes only, and may pick another kernel in the next run.
    torch.backends.cudnn.benchmark = cudnn_benchmark and not enabled


def random_state() -> dict[str, Any]:
    """State of all generators in types that `torch.load(weights_only=True)` accepts."""
    version, internal, gauss = random.getstate()
    numbers: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = numbers
    return {
        "python": [version, list(internal), gauss],
        "numpy": [
            name,
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Puts the generators back; CUDA's only where there are as many devices as when it was saved."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
