"""A language model's step on a CPU: a rendered project's loop against one of nanoGPT's structure.

nanoGPT's small setting: 4 layers, 4 heads, 128 wide, block 64, batch 12, character level, fp32, no
dropout. Both sides start from the same weights (logits equal to 1e-5), draw their own batches from
a mapped token file, clip to norm 1, follow warm-up + cosine and log the loss every 10 steps. Rounds
are interleaved; a round's figure is the tenth percentile of its step times, which a busy machine
moves least.

    python benchmarks/llm.py [step] [--threads 1 2] [--rounds 7] [--steps 50] [--write]
    python benchmarks/llm.py windows        # gathering windows against a copy per row
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from publish import command_line, machine, publish  # noqa: E402

BLOCK = 64
BATCH = 12
EVERY = 10
WARMUP = 20
RATE = 1e-3
CHARACTERS = 1_200_000
CALLS = 300  # of each way to gather windows
FIRST = -1  # the round that warms up
CLOCK = time.perf_counter
FLAGS = {
    "data.block_size": BLOCK,
    "data.batch_size": BATCH,
    "data.order": "random_start",
    "model.layers": 4,
    "model.heads": 4,
    "model.width": 128,
    "model.positions": "learned",
    "model.context": BLOCK,
    "optimizer.learning_rate": RATE,
    "optimizer.beta2": 0.99,
    "optimizer.weight_decay": 0.1,
    "schedule.warmup_steps": WARMUP,
    "monitor.every_steps": EVERY,
    "monitor.progress": "false",
}


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global CHARACTERS, CALLS, FIRST
    CHARACTERS = 60_000
    CALLS = 2
    FIRST = 0


def prepare(folder: Path) -> None:
    """The standard library's text, character by character."""
    dataset = importlib.import_module("my_training.dataset")
    tokenizer = importlib.import_module("my_training.tokenizer")
    source = Path(os.__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(source.glob("*.py")))
    kept = text.decode("ascii", "ignore")[:CHARACTERS].encode()
    (folder / "text").write_bytes(kept)
    characters = "".join(sorted(set(kept.decode())))
    borders = lambda ends: [int(0.9 * ends[-1]), int(0.95 * ends[-1]), int(ends[-1])]  # noqa: E731
    dataset.write(folder / "data", tokenizer.Character(characters), [folder / "text"], borders, {})


class Theirs:
    """nanoGPT's loop, its steps timed one by one."""

    def __init__(self, torch: Any, project: Any, data: Any, steps: int):
        import nanogpt

        self.torch = torch
        self.nanogpt = nanogpt
        self.data = data
        self.steps = steps
        vocabulary = project.model.embedding.num_embeddings
        self.model = nanogpt.GPT(nanogpt.GPTConfig(BLOCK, vocabulary, 4, 4, 128))
        nanogpt.load_ours(self.model, project.model)
        tokens = torch.from_numpy(data[: BATCH * BLOCK].astype("int64")).view(BATCH, BLOCK)
        with torch.no_grad():
            expected = self.model(tokens)[0]
            logits = project.model.logits(tokens)
        apart = (expected[..., : logits.shape[-1]] - logits).abs().max().item()
        assert apart < 1e-5, f"not the same function: logits differ by {apart}"
        self.optimizer = self.model.configure_optimizers(0.1, RATE, (0.9, 0.99), "cpu")

    def run(self) -> list[float]:
        """Milliseconds of each step."""
        torch = self.torch
        times = []
        X, Y = self.nanogpt.get_batch(self.data, BATCH, BLOCK, "cpu")
        for iteration in range(self.steps):
            start = CLOCK()
            rate = self.nanogpt.get_lr(iteration, RATE, WARMUP, self.steps, RATE / 10)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            _, loss = self.model(X, Y)
            X, Y = self.nanogpt.get_batch(self.data, BATCH, BLOCK, "cpu")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if iteration % EVERY == 0:
                loss.item()
            times.append(1000 * (CLOCK() - start))
        return times


class Ours:
    """A rendered project's own `train`, its steps timed by what the loop calls after each."""

    def __init__(self, folder: Path, steps: int):
        load = importlib.import_module("my_training.settings").Settings.load
        assembling = importlib.import_module("my_training.assemble")
        distributed = importlib.import_module(
            "my_training.engine.compute.distributed"
        ).Distributed()
        self.train = importlib.import_module("my_training.train").train
        flags = FLAGS | {"data.path": folder / "data", "training.max_steps": steps}
        settings = load(overrides=[(key, str(value)) for key, value in flags.items()])
        self.store = assembling.open_store(settings)
        run = Path(tempfile.mkdtemp(dir=folder))
        self.session = importlib.import_module("my_training.engine.training.session").Session(
            run, settings, distributed, trial=True
        )
        self.project = assembling.assemble(settings, distributed, self.store)

    def run(self) -> list[float]:
        run = self.session.run
        stamps = []
        end_step = run.end_step

        def timed(norm: Any) -> None:
            stamps.append(CLOCK())
            end_step(norm)

        run.end_step = timed
        stamps.append(CLOCK())
        self.train(run)
        if run.exit_code:  # a signal: fewer steps than the others
            sys.exit(run.exit_code)
        return [1000 * (after - before) for before, after in itertools.pairwise(stamps)]


def compare(torch: Any, folder: Path, threads: int, rounds: int, steps: int) -> list[str]:
    """Interleaved rounds; threads, both medians, the median ratio and its interval."""
    import numpy as np

    def tenth(times: list[float]) -> float:
        """The first steps warm up."""
        return float(np.percentile(times[5:], 10))

    rounds_measured = []
    with open(os.devnull, "w") as nothing:
        for number in range(FIRST, rounds):
            stdout = sys.stdout
            sys.stdout = nothing
            ours = Ours(folder, steps)
            with ours.session as session:
                run = session.start(ours.project)
                store = run.project.store
                data = np.asarray(store.arrays["tokens"].rows()[slice(*store.splits["train"])])
                theirs = Theirs(torch, run.project, data, steps)
                sides: list[Any] = [theirs, ours] if number % 2 else [ours, theirs]
                figures = {type(side).__name__: tenth(side.run()) for side in sides}
            sys.stdout = stdout
            if number >= 0:  # the first round warms up
                ours_ms = figures["Ours"]
                theirs_ms = figures["Theirs"]
                rounds_measured.append((ours_ms, theirs_ms))
                line = f"ours {ours_ms:.3f} ms, nanoGPT's structure {theirs_ms:.3f} ms"
                print(f"round {number + 1}: {line}", flush=True)
    mine, other = (statistics.median(side) for side in zip(*rounds_measured, strict=True))
    ratios = sorted(a / b for a, b in rounds_measured)
    low = ratios[max(len(ratios) // 2 - 2, 0)]
    high = ratios[min(len(ratios) // 2 + 2, len(ratios) - 1)]
    clock = "CPU time" if CLOCK is time.process_time else "wall"
    middle = statistics.median(ratios)
    interval = f"{low:.3f} to {high:.3f}"
    return [str(threads), clock, f"{mine:.1f} ms", f"{other:.1f} ms", f"{middle:.3f}", interval]


def percentile(call: Callable[[], Any]) -> float:
    """The tenth percentile of some calls, in microseconds."""
    import numpy as np

    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - start))
    return float(np.percentile(times, 10))


def windows(torch: Any, folder: Path) -> list[list[str]]:
    """Blocks of the mapped tokens in one call, against `torch.stack` of a copy per row."""
    import numpy as np

    rows = importlib.import_module("my_training.engine.loading.rows")
    interfaces = importlib.import_module("my_training.engine.interfaces")
    store = importlib.import_module("my_training.engine.loading.store").Store.open(folder / "data")
    source = rows.mapped(store.arrays["tokens"])
    data = np.asarray(store.arrays["tokens"].rows())

    def stacked(starts: Any, block: int) -> Any:
        copies = [data[start : start + block].astype(np.int64) for start in starts]
        return torch.stack([torch.from_numpy(copy) for copy in copies])

    lines = []
    for block, batch in ((64, 12), (64, 256), (256, 64), (1024, 12)):
        starts = np.random.default_rng(0).integers(0, len(data) - block - 1, batch)
        spans = interfaces.Spans(starts, block + 1)
        gathered = functools.partial(rows.gather, source, spans)

        def copied(starts: Any = starts, block: int = block) -> Any:
            return stacked(starts, block), stacked(starts + 1, block)

        ours = percentile(gathered)
        theirs = percentile(copied)
        cells = [f"{ours:.1f} µs", f"{theirs:.1f} µs", f"{theirs / ours:.1f}×"]
        lines.append([f"{block:,}", str(batch), *cells])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["step", "windows"], help="(default: both)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--cpu-time", action="store_true", help="of one thread; for a machine that others use too"
    )
    arguments = command_line(parser, threads=[1], rounds=1, steps=7)
    if arguments.rehearse:
        shrink()
    import torch
    from rendering import render

    if arguments.cpu_time:
        global CLOCK
        CLOCK = time.process_time
    sys.path.insert(0, str(render(workload="llm") / "src"))
    protocol = machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        if arguments.part != "windows":
            rows = []
            for threads in arguments.threads:
                torch.set_num_threads(threads)
                rows.append(compare(torch, folder, threads, arguments.rounds, arguments.steps))
            columns = [
                "threads",
                "clock",
                "this project",
                "nanoGPT's structure",
                "ratio, median",
                "95 % interval",
            ]
            how = f"{protocol}, {arguments.rounds} rounds of {arguments.steps} steps"
            publish("llm", "step", how, {"columns": columns, "rows": rows}, arguments=arguments)
        if arguments.part != "step":
            torch.set_num_threads(1)
            columns = ["block", "batch", "gathered", "row by row", ""]
            rows = windows(torch, folder)
            how = f"{protocol}, tenth percentile of {CALLS} calls"
            publish("llm", "windows", how, {"columns": columns, "rows": rows}, arguments=arguments)


if __name__ == "__main__":
    main()
