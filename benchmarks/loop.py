"""The training loop's own cost: ours against a bare PyTorch loop that does the same work.

A 64-64-64 MLP, batch 32, 2,000 steps, one thread: a step of about a quarter of a millisecond, so that
every microsecond around it shows. Both sides clip to norm 1, follow warm-up + cosine, use fused AdamW
and log the loss every 50 steps; both take the same batches from memory. Rounds are interleaved,
and each round's ratio is taken on its own, so a drifting machine cancels out.

    python benchmarks/loop.py [--framework pytorch|lightning] [--rounds 9]
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

STEPS, BATCH, WIDTH, EVERY, WARMUP = 2000, 32, 64, 50, 100


def batches(torch: Any, count: int = 64) -> list[tuple[Any, Any]]:
    """A ring of batches that both loops read."""
    torch.manual_seed(0)
    return [(torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)) for _ in range(count)]


def network(torch: Any) -> Any:
    torch.manual_seed(1)
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    )


def bare(torch: Any, data: list[tuple[Any, Any]]) -> tuple[float, list[float]]:
    """Seconds of the loop that one would write by hand, and the losses it logged."""
    model = network(torch)
    matrices, vectors = (
        [p for p in model.parameters() if (p.dim() > 1) is wanted] for wanted in (True, False)
    )
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)

    def factor(step: int) -> float:
        if step < WARMUP:
            return (step + 1) / WARMUP
        return 0.1 + 0.9 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses = []
    start = time.perf_counter()
    for step in range(STEPS):
        x, y = data[step % len(data)]
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        if (step + 1) % EVERY == 0:
            losses.append(loss.item())
    return time.perf_counter() - start, losses


def ours(torch: Any, package: str, data: list[tuple[Any, Any]], folder: Path) -> tuple[float, list[float]]:
    """Seconds of a rendered project's `fit` around the same network and batches, and the losses it logged."""
    seams, train = (
        importlib.import_module(f"{package}.engine.seams"),
        importlib.import_module(f"{package}.train"),
    )
    session_module = importlib.import_module(f"{package}.engine.session")
    config = importlib.import_module(f"{package}.config")
    optimization = importlib.import_module(f"{package}.engine.optimization")
    precision = importlib.import_module(f"{package}.engine.precision")
    throughput = importlib.import_module(f"{package}.engine.throughput")
    distributed = importlib.import_module(f"{package}.engine.distributed").Distributed()
    count = torch.tensor(float(BATCH * WIDTH))

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(torch)

        def forward(self, batch: Any) -> Any:
            return seams.Output(torch.nn.functional.mse_loss(self.network(batch["x"]), batch["y"]), count)

    class InMemory:
        WITHOUT_EFFECT = ()
        samples, order = None, SimpleNamespace(slots=BATCH)

        def __len__(self) -> int:
            return STEPS

        def epoch(self, number: int, start_batch: int = 0) -> Iterator[Any]:
            fresh = torch.ones(BATCH, dtype=torch.bool)
            for step in range(start_batch, STEPS):
                x, y = data[step % len(data)]
                yield {"x": x, "y": y, "fresh": fresh}

        def close(self) -> None:
            """Nothing is open."""

    settings = config.load(
        overrides=[
            ("training.max_steps", str(STEPS)),
            ("monitor.every_steps", str(EVERY)),
            ("monitor.progress", "false"),
            ("schedule.warmup_steps", str(WARMUP)),
        ]
    )

    def assemble(settings: Any) -> Any:
        model = Wrapped()
        optimizer = optimization.make_optimizer(model, settings.optimizer)
        store = SimpleNamespace(fingerprint="", source={}, splits={}, files={}, folder=folder)
        return SimpleNamespace(
            work=lambda *_: throughput.Work(),
            settings=settings, store=store, device=distributed.device, distributed=distributed, model=model,
            wrapped=model, optimizer=optimizer, optimizations=[], loader=lambda *_, **__: InMemory(),
            precision=precision.Precision("fp32", distributed.device),
        )  # fmt: skip

    folder.mkdir()
    seconds = 0.0
    with session_module.Session(folder, settings, assemble) as session:
        for _ in session.phases():
            session.save = lambda: None  # the bare loop keeps no checkpoint
            start = time.perf_counter()
            train.fit(session)
            seconds = time.perf_counter() - start
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return seconds, [row["loss"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", default="pytorch")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    import torch
    from rendering import render

    torch.set_num_threads(1)
    project = render(workload="tabular", loader="memmap", framework=arguments.framework)
    sys.path.insert(0, str(project / "src"))
    data = batches(torch)
    ratios, bare_us, ours_us = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        stdout, sys.stdout = sys.stdout, open("/dev/null", "w")  # noqa: SIM115 - the loop's own lines
        for number in range(-1, arguments.rounds):
            first, expected = bare(torch, data)
            second, losses = ours(torch, "my_training", data, Path(temporary) / str(number))
            apart = max(abs(a - b) for a, b in zip(expected, losses, strict=True))
            assert apart < 1e-4, f"not the same work: losses differ by {apart}"
            if number >= 0:  # the first round warms up
                ratios.append(second / first)
                bare_us.append(1e6 * first / STEPS)
                ours_us.append(1e6 * second / STEPS)
        sys.stdout = stdout
    ratios.sort()
    low, high = ratios[max(len(ratios) // 2 - 2, 0)], ratios[min(len(ratios) // 2 + 2, len(ratios) - 1)]
    print(f"torch {torch.__version__}, Python {platform.python_version()}, 1 thread, {platform.machine()}")
    print(f"{STEPS} steps, batch {BATCH}, MLP {WIDTH}-{WIDTH}-{WIDTH}")
    print(f"{len(ratios)} interleaved rounds after 1 of warm-up")
    print(f"bare loop       {statistics.median(bare_us):8.1f} us/step (median)")
    print(f"{arguments.framework:<16}{statistics.median(ours_us):8.1f} us/step (median)")
    interval = f"about 95 % interval of the median {low:.3f} to {high:.3f}"
    print(f"ratio           {statistics.median(ratios):8.3f} ({interval})")


if __name__ == "__main__":
    main()
