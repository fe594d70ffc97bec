"""T5 on a CPU: a rendered project's loop against loops around the library's own model, and
bucketing.

loop: the project's `fit` against a bare loop around `T5ForConditionalGeneration` with the same
weights, on the same batches, which it has in memory; both fused AdamW, clipped to norm 1, warm-up +
cosine, a loss read every 10 steps. A round's figure is the tenth percentile of its step times.

epoch: target tokens per second over one epoch of pairs of mixed length: the project as it is by
default (order bucket), with order full, and transformers' Trainer with its defaults (fused AdamW,
shuffled, padded to the longest of a batch), the same batch size, seed and weights, dropout 0.1.
Nothing is saved or evaluated.

Rounds are interleaved, their order turns, and each round's ratio is taken on its own.

    python benchmarks/seq2seq.py [loop|epoch] [--threads 1] [--rounds 3] [--steps 40] [--cpu-time]
    [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BATCH = 16
PAIRS = 640
EVERY = 10
WARMUP = 5
RATE = 1e-3
LENGTHS = (256, 96)  # the longest source and target
CLOCK = time.perf_counter
FIRST = -1  # the round that warms up
FLAGS: dict[str, Any] = {
    "data.batch_size": BATCH,
    "optimizer.learning_rate": RATE,
    "schedule.warmup_steps": WARMUP,
    "monitor.every_steps": EVERY,
    "monitor.progress": "false",
}


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global BATCH, FIRST, LENGTHS
    BATCH = 2
    FIRST = 0
    LENGTHS = (16, 8)
    FLAGS.update({"data.batch_size": BATCH, "model.layers": 1, "model.width": 32})


def prepare(folder: Path, count: int) -> list[Any]:
    """Pairs of mixed length: log-normal, sources of 8 to 256 tokens, targets of 4 to 96, half
    correlated."""
    import numpy as np

    dataset = importlib.import_module("my_training.dataset")
    tokenizer = importlib.import_module("my_training.bytepairs").Byte()
    random = np.random.default_rng(0)
    first, second = random.standard_normal((2, count))
    sources = np.exp(4.2 + 0.8 * first).clip(8, LENGTHS[0]).astype(int)
    targets = np.exp(3.2 + 0.7 * (0.5 * first + 0.75**0.5 * second)).clip(4, LENGTHS[1]).astype(int)
    pairs = [
        dataset.Pair(
            *(np.append(random.integers(32, 127, length - 1), 256) for length in both), both[1] - 1
        )
        for both in zip(sources.tolist(), targets.tolist(), strict=True)
    ]
    facts = {"vocabulary": 257, "start": 256, "prefix": "", "limits": list(LENGTHS)}
    splits = {"train": pairs, "validation": pairs[:BATCH], "test": []}
    dataset.write(folder / "data", tokenizer, splits, facts)
    return pairs


class Ours:
    """A rendered project's own `fit`, timed by what the loop calls after each step."""

    def __init__(self, folder: Path, **flags: Any):
        load = importlib.import_module("my_training.settings").Settings.load
        assembling = importlib.import_module("my_training.assemble")
        distributed = importlib.import_module(
            "my_training.engine.compute.distributed"
        ).Distributed()
        self.train = importlib.import_module("my_training.train").train
        given = FLAGS | {"data.path": folder / "data"} | flags
        settings = load(overrides=[(key, str(value)) for key, value in given.items()])
        store = assembling.open_store(settings)
        run = Path(tempfile.mkdtemp(dir=folder))
        self.project = assembling.assemble(settings, distributed, store)
        make = importlib.import_module("my_training.engine.training.session").Session
        self.session = make(run, settings, distributed, trial=True)

    def run(self) -> list[float]:
        """Seconds of each step."""
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
        return [after - before for before, after in itertools.pairwise(stamps)]


def library_model(project: Any) -> Any:
    """The library's model with its default attention and the project's weights: the same
    function."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config.from_dict(project.model.t5.config.to_dict()))
    model.load_state_dict(project.model.t5.state_dict())
    return model


def bare(torch: Any, project: Any, batches: list[Any]) -> list[float]:
    """Seconds of each step of a plain loop."""
    model = library_model(project).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    total = len(batches)
    times = []
    for step, batch in enumerate(batches):
        start = CLOCK()
        share = (step - WARMUP) / max(total - WARMUP, 1)
        rate = step / WARMUP if step < WARMUP else 0.1 + 0.45 * (1 + math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % EVERY == 0:
            loss.item()
        times.append(CLOCK() - start)
    return times


def trainer(torch: Any, project: Any, pairs: list[Any], folder: Path) -> float:
    """Seconds that an epoch of transformers' Trainer takes, from its beginning to its last step's
    end."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        begin = end = 0.0

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.begin = CLOCK()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.end = CLOCK()

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        pad = lambda name, value: torch.nn.utils.rnn.pad_sequence(  # noqa: E731
            [row[name] for row in rows], batch_first=True, padding_value=value
        )
        source = pad("input_ids", 0)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
        return {"input_ids": source, "attention_mask": mask, "labels": pad("labels", -100)}

    rows = [
        {"input_ids": torch.from_numpy(pair.source), "labels": torch.from_numpy(pair.target)}
        for pair in pairs
    ]
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    clock = Clock()
    Trainer(
        library_model(project),
        arguments,
        train_dataset=rows,
        data_collator=collate,
        callbacks=[clock],
    ).train()
    return clock.end - clock.begin


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median, and the order statistics around it that hold it in about 95 of 100 cases."""
    ordered = sorted(ratios)
    middle = len(ratios) // 2
    return (
        statistics.median(ordered),
        ordered[max(middle - 2, 0)],
        ordered[min(middle + 2, len(ordered) - 1)],
    )


@contextlib.contextmanager
def quiet() -> Any:
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        yield


def measure_loop(torch: Any, folder: Path, rounds: int, steps: int) -> list[list[str]]:
    import numpy as np

    rounds_measured = []
    for number in range(FIRST, rounds):
        made = Ours(folder, **{"training.max_steps": steps})
        with quiet(), made.session as session:
            run = session.start(made.project)
            batches = []
            for batch in itertools.islice(run.loader.epoch(0), steps):
                names = {"input_ids": "source", "attention_mask": "present", "labels": "targets"}
                kept = {name: batch[ours].clone() for name, ours in names.items()}
                batches.append(kept | {"attention_mask": kept["attention_mask"].long()})
            if number % 2:
                library = bare(torch, run.project, batches)
                mine = made.run()
            else:
                mine = made.run()
                library = bare(torch, run.project, batches)
        if number >= 0:  # the first round warms up
            both = [1000 * float(np.percentile(times[3:], 10)) for times in (mine, library)]
            rounds_measured.append(both)
            print(
                f"round {number + 1}: ours {both[0]:.2f} ms, bare loop {both[1]:.2f} ms", flush=True
            )
    ratio, low, high = interval([mine / other for mine, other in rounds_measured])
    ours, theirs = (statistics.median(side) for side in zip(*rounds_measured, strict=True))
    middle = [f"{ours:.1f} ms", f"{theirs:.1f} ms", f"{ratio:.3f}", f"{low:.3f} to {high:.3f}"]
    return [["a step, against the bare loop", *middle, "at most 1.00"]]


def measure_epoch(torch: Any, folder: Path, pairs: list[Any], rounds: int) -> list[list[str]]:
    rounds_measured = []
    tokens = sum(len(pair.target) for pair in pairs)

    def ours(order: str) -> float:
        with quiet():
            made = Ours(folder, **{"training.epochs": 1, "data.order": order})
            with made.session as session:
                session.start(made.project)
                return tokens / sum(made.run())

    def theirs() -> float:
        with quiet():
            project = Ours(folder, **{"training.epochs": 1}).project
            return tokens / trainer(torch, project, pairs, folder)

    sides = {"bucket": lambda: ours("bucket"), "full": lambda: ours("full"), "Trainer": theirs}
    for number in range(FIRST, rounds):
        names = list(sides) if number % 2 else list(reversed(sides))
        rates = {name: sides[name]() for name in names}
        if number >= 0:
            rounds_measured.append(rates)
            line = ", ".join(f"{name} {rates[name]:,.0f}" for name in sides)
            print(f"round {number + 1}: target tokens/s {line}", flush=True)
    return rates_table(rounds_measured)


def rates_table(rounds_measured: list[dict[str, float]]) -> list[list[str]]:
    """Rows of the table. found: target tokens a second of each side, in each round."""
    rows = []
    for title, one, other, goal in (
        ("target tokens/s, against Trainer", "bucket", "Trainer", "1.15"),
        ("the same without bucketing", "full", "Trainer", ""),
        ("bucketing, against order full", "bucket", "full", "1.3"),
    ):
        ratio, low, high = interval([rates[one] / rates[other] for rates in rounds_measured])
        mine, theirs = (
            statistics.median(rates[name] for rates in rounds_measured) for name in (one, other)
        )
        goal = f"at least {goal}" if goal else ""
        middle = [f"{mine:,.0f}", f"{theirs:,.0f}", f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"]
        rows.append([title, *middle, goal])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["loop", "epoch"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help="of an epoch (default: %(default)s)"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="of one thread, where others use the machine"
    )
    from publish import command_line, machine, publish

    arguments = command_line(parser, rounds=1, steps=4, pairs=8)
    if arguments.rehearse:
        shrink()
    import torch
    import transformers
    from rendering import render

    if arguments.cpu_time:
        global CLOCK
        CLOCK = time.process_time
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    sys.path.insert(0, str(render(workload="seq2seq", loader="memmap") / "src"))
    clock = "CPU time" if arguments.cpu_time else "wall time"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs = prepare(folder, arguments.pairs)
        steps = min(arguments.steps, arguments.pairs // BATCH)
        how = f"{machine()}, transformers {transformers.__version__}, {arguments.threads} thread"
        how += f"{'s' * (arguments.threads > 1)}, {clock}, {arguments.rounds} rounds"
        columns = ["", "this project", "the other", "ratio, median", "95 % interval", "aim"]
        if arguments.part != "epoch":
            rows = measure_loop(torch, folder, arguments.rounds, steps)
            table = {"columns": columns, "rows": rows}
            publish("seq2seq", "loop", f"{how} of {steps} steps", table, arguments=arguments)
        if arguments.part != "loop":
            rows = measure_epoch(torch, folder, pairs, arguments.rounds)
            table = {"columns": columns, "rows": rows}
            publish("seq2seq", "epoch", f"{how} of an epoch", table, arguments=arguments)


if __name__ == "__main__":
    main()
