"""What a second process gains: samples per second of two under `ddp` against one, one thread each,
on a CPU.

Both processes train a rendered project by its own `fit`, with the same batch size each: a GPT,
whose weights are many for what it computes, in two sizes of a step, and an LSTM, whose weights are
few. A round has a ratio of its own: rank 0 alone (rank 1 waits); both beside each other, each a run
of its own, which is the most that this machine's memory and caches let two processes do; both
together, as one run. Loading, the exchange of gradients by gloo, clipping, AdamW and the log are in
the figures.

    python benchmarks/distributed.py [--rounds 4] [--steps 20] [--write]
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
sys.path.insert(0, str(ROOT / "tools"))

from publish import command_line, machine, publish  # noqa: E402

WANTED = 1.7
FLAGS = {
    "training.precision": "fp32",
    "training.max_steps": 10**6,
    "monitor.every_steps": 10,
    "monitor.progress": "false",
}
GPT = {"data.block_size": 64, "model.layers": 4, "model.heads": 4, "model.width": 256}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # workload, settings; a row each
    "GPT, batch 8": ("llm", GPT | {"data.batch_size": 8}),
    "GPT, batch 16": ("llm", GPT | {"data.batch_size": 16}),
    "LSTM, batch 128": ("timeseries", {"model.width": 128, "data.batch_size": 128}),
}


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    small: dict[str, dict[str, Any]] = {
        "llm": {"model.layers": 1, "model.heads": 2, "model.width": 32, "data.sample_mb": 0.05},
        "timeseries": {"model.width": 8},
    }
    del CASES["GPT, batch 16"]
    for workload, shape in CASES.values():
        shape |= small[workload] | {"data.batch_size": 4}


def begun(folder: Path, distributed: Any, shape: dict[str, Any]) -> Any:
    """A run under way, without evaluations and checkpoints."""
    assembling = importlib.import_module("my_training.assemble")
    flags = FLAGS | shape | {"data.path": folder / "data"}
    load = importlib.import_module("my_training.settings").Settings.load
    settings = load(overrides=[(key, str(value)) for key, value in flags.items()])
    store = assembling.open_store(settings)
    run = folder / f"run-{os.getpid()}-of-{distributed.world}"
    run.mkdir()
    make = importlib.import_module("my_training.engine.training.session").Session
    session = make(run, settings, distributed, trial=True).__enter__()
    return session.start(assembling.assemble(settings, distributed, store))


def per_second(run: Any, steps: int) -> float:
    """Samples a second of all its processes over so many steps."""
    run.limit = run.step + steps
    start = time.perf_counter()
    importlib.import_module("my_training.train").train(run)
    return steps * run.loader.order.batch_size_all_ranks / (time.perf_counter() - start)


def work(
    folder: Path, rank: int, shape: dict[str, Any], arguments: argparse.Namespace
) -> list[list[float]]:
    """[[alone, side by side, together], …] of each round, in samples a second of all."""
    make = importlib.import_module("my_training.engine.compute.distributed").Distributed
    own = begun(folder, make(), shape)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    distributed = make()
    shared = begun(folder, distributed, shape)
    rates = []
    for one in (own, shared):
        per_second(one, 3)
    for _ in range(arguments.rounds):
        distributed.gather_objects(rank)
        alone = 0.0 if rank else per_second(own, arguments.steps)
        distributed.gather_objects(rank)  # rank 1 has waited here, asleep
        side_by_side = sum(distributed.gather_objects(per_second(own, arguments.steps)))
        distributed.gather_objects(rank)
        rates.append([alone, side_by_side, per_second(shared, arguments.steps)])
    distributed.close()
    return rates


def measured(case: str, arguments: argparse.Namespace) -> list[str]:
    """`work` in two processes, as a row of the table."""
    from ranks import free_port
    from rendering import render
    from running import run

    workload, shape = CASES[case]
    project = render(workload=workload, distributed="ddp", loader="memmap")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        flags = [
            word for key, value in (FLAGS | shape).items() for word in (f"--{key}", str(value))
        ]
        prepared = run(project, "train", *flags, "--max-steps", "1", cwd=folder)
        assert prepared.code == 0, prepared.err
        (folder / "data").rename(folder / "all")
        (folder / "all/synthetic").rename(folder / "data")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        rounds = in_two_processes(folder, project, shape, arguments)
    return row_of(case, int(shape["data.batch_size"]), rounds)


def in_two_processes(
    folder: Path, project: Path, shape: dict[str, Any], arguments: argparse.Namespace
) -> list[list[float]]:
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            sys.stdout = open(folder / f"out{rank}", "w")  # noqa: SIM115 - the runs' own lines
            sys.path.insert(0, str(project / "src"))
            code = 1
            try:
                rates = work(folder, rank, shape, arguments)
                (folder / f"found{rank}").write_text(json.dumps(rates))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        sys.exit(f"exit codes {codes}")
    return json.loads((folder / "found0").read_text())


def row_of(case: str, batch: int, rounds: list[list[float]]) -> list[str]:
    rates = [statistics.median(column) for column in zip(*rounds, strict=True)]
    limits, ratios, shares = (
        sorted(round[i] / round[j] for round in rounds) for i, j in ((1, 0), (2, 0), (2, 1))
    )
    return [
        case,
        f"{1000 * batch / rates[0]:.0f} ms",
        *(f"{rate:.1f}" for rate in rates),
        f"{statistics.median(limits):.2f}",
        f"{statistics.median(ratios):.2f}",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        f"≥ {WANTED}",
        f"{statistics.median(shares):.1%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    arguments = command_line(parser, rounds=1, steps=1)
    if arguments.rehearse:
        shrink()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    protocol = machine()
    rows = [measured(case, arguments) for case in CASES]
    columns = [
        "each process",
        "step of one",
        "one, samples/s",
        "two runs at once",
        "one run on two",
    ]
    columns += ["most that two can", "ratio, median", "all rounds", "wanted", "of the most"]
    how = f"{protocol}, {arguments.rounds} rounds of {arguments.steps} steps"
    publish("distributed", "ddp", how, {"columns": columns, "rows": rows}, arguments=arguments)


if __name__ == "__main__":
    main()
