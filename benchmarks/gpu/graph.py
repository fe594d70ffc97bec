"""The graph workload on a GPU: cached graphs against rebuilt ones, and how busy a training keeps it.

    make bench-gpu PART=graph

Utilisation is NVML's, sampled twice a second by `nvidia-smi` during a training run. It counts windows in
which any kernel ran, so the samples per second stand beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=500")


def training(folder: Path, steps: int = 300) -> None:
    """Trains on synthetic stocks in the folder; prints samples per second and utilisation."""
    from rendering import render

    project = render(workload="graph")
    words = (
        "train",
        "--training.max_steps",
        str(steps),
        "--monitor.every_steps",
        "50",
        "--data.batch_size",
        "32",
    )
    with subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True) as watch:
        command = (sys.executable, "-m", "my_training", *words)
        environment = {"PYTHONPATH": str(project / "src"), "PATH": "/usr/bin:/bin"}
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        watch.terminate()
        busy = [int(line) for line in (watch.stdout or []) if line.strip().isdigit()]
    (run,) = (folder / "runs").iterdir()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [row["samples_per_second"] for row in rows if "split" not in row][1:]
    rate, share = statistics.median(rates), statistics.median(busy)
    print(f"training, batch 32 days: {rate:,.1f} days/s, GPU busy {share} % of the time (medians)")


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("no GPU here: run this on the machine that has one")
    import graph
    from publish import machine, publish

    publish("graph", "graphs", machine(device=torch.cuda.get_device_name()), graph.graphs(4))
    with tempfile.TemporaryDirectory() as folder:
        training(Path(folder))


if __name__ == "__main__":
    main()
