"""What a second process gains: samples per second of two under `ddp` against one, one thread each, on a CPU.

Both processes train a rendered project's GPT by its own `fit`, with the same batch size each; a round is
rank 0 alone (rank 1 waits), then both together, and a ratio of its own. Loading, the exchange of gradients
by gloo, clipping, AdamW and the log are in the figure.

    python benchmarks/distributed.py [--rounds 9] [--steps 20] [--width 256] [--write]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from publish import machine, publish  # noqa: E402

WANTED = 1.7
FLAGS = {
    "data.block_size": 64,
    "data.batch_size": 8,
    "model.layers": 4,
    "model.heads": 4,
    "training.precision": "fp32",
    "monitor.every_steps": 10,
    "monitor.progress": "false",
    "evaluation.every_steps": 10**9,
    "checkpoint.every_steps": 10**9,
}


def session(folder: Path, distributed: Any, width: int) -> Any:
    """A training under way, without evaluations and checkpoints."""
    assembling = importlib.import_module("my_training.assemble")
    flags = {**FLAGS, "model.width": width, "training.max_steps": 10**6, "data.path": folder / "data"}
    load = importlib.import_module("my_training.config").load
    settings = load(overrides=[(key, str(value)) for key, value in flags.items()])
    store = assembling.open_store(settings)
    run = folder / f"run-{distributed.world}"
    if distributed.is_main:
        run.mkdir()
    build = lambda settings: assembling.assemble(settings, distributed, store)  # noqa: E731
    make = importlib.import_module("my_training.engine.session").Session
    made = make(run, settings, build, rank=distributed.rank).__enter__()
    next(made.phases())
    made.evaluate = made.save = lambda: None
    return made


def per_second(session: Any, steps: int) -> float:
    """Samples a second of all its processes over so many steps."""
    session.limit = session.progress.step + steps
    start = time.perf_counter()
    importlib.import_module("my_training.train").fit(session)
    return steps * session.loader.order.slots / (time.perf_counter() - start)


def work(folder: Path, rank: int, arguments: argparse.Namespace) -> list[list[float]]:
    """[[alone, together], …] of each round, on rank 0."""
    make = importlib.import_module("my_training.engine.distributed").Distributed
    alone = None
    if rank == 0:
        alone = session(folder, make(), arguments.width)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    distributed = make()
    together, found = session(folder, distributed, arguments.width), []
    per_second(together, 3)
    for _ in range(arguments.rounds):
        first = per_second(alone, arguments.steps) if alone else 0.0
        distributed.gather(rank)  # rank 1 waits here, asleep
        found.append([first, per_second(together, arguments.steps)])
    distributed.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks/distributed.md")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from ranks import free_port
    from rendering import render
    from running import run

    torch.set_num_threads(1)
    protocol = machine()
    project = render(workload="llm", distributed="ddp")
    sys.path.insert(0, str(project / "src"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepared = run(project, "train", "--max-steps", "1", "--data.block_size", "64", cwd=folder)
        assert prepared.code == 0, prepared.err
        (folder / "data").rename(folder / "all")
        (folder / "all/synthetic").rename(folder / "data")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        children = []
        for rank in range(2):
            if not (child := os.fork()):
                sys.stdout = open(folder / f"out{rank}", "w")  # noqa: SIM115 - the runs' own lines
                code = 1
                try:
                    found = work(folder, rank, arguments)
                    (folder / f"found{rank}").write_text(json.dumps(found))
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            sys.exit(f"exit codes {codes}")
        rounds = json.loads((folder / "found0").read_text())
    alone, together = zip(*rounds, strict=True)
    ratios = sorted(two / one for one, two in rounds)
    step = 1000 * FLAGS["data.batch_size"] / statistics.median(alone)
    row = [
        f"{step:.0f} ms",
        *(f"{statistics.median(rates):.1f}" for rates in (alone, together)),
        f"{statistics.median(ratios):.2f}",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        f"≥ {WANTED}",
    ]
    columns = ["step of one", "one, samples/s", "two, samples/s", "ratio, median", "all rounds", "wanted"]
    how = f"{protocol}, {arguments.rounds} rounds of {arguments.steps} steps, width {arguments.width}"
    publish("distributed", "ddp", how, {"columns": columns, "rows": [row]}, write=arguments.write)


if __name__ == "__main__":
    main()
