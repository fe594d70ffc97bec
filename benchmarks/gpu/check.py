"""Is all of it right on this machine's GPU? Runs the GPU tier of the tests; minutes, no figures.

`make bench-gpu PART=check ARGS="-k workloads"`
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("error: no GPU: there is nothing to check: start it on the machine that has one")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    command = (sys.executable, "-m", "pytest", "-n", "8", "-m", "gpu", "tests/gpu", *sys.argv[1:])
    sys.exit(subprocess.run(command, cwd=Path(__file__).resolve().parents[2]).returncode)


if __name__ == "__main__":
    main()
