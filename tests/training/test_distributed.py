"""Several processes of one run: the losses of one, stops that all agree on, one that writes."""

# ruff: noqa: F811 - the fixture `place` is imported

import errno
import functools
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from shlex import split

import pytest
import torch
from ranks import free_port, run_ranks, start_ranks
from rendering import render
from running import (
    PATIENCE,
    evaluation_of,
    evaluations,
    flip_bit,
    last_checkpoint,
    last_state,
    losses,
    newest_run,
    one_error,
    resumes,
    rows,
    run,
    status,
    step_of,
    until,
    weights,
)
from sizes import TINY
from synthetic import place  # noqa: F401
from variants import choices, name, products

CELLS = [
    cell
    for cell in products("workload", "framework", "distributed")
    if cell["distributed"] != "none"
]
STEPS = 24
# Samples of a step: two ranks take half each. Each rank would draw its own dropout: there is none.
BATCH = {"tabular": 64, "llm": 8, "graph": 4, "seq2seq": 8, "chat": 4, "vision": 64}
BATCH |= dict.fromkeys(("timeseries", "forecast", "windows"), 32)
LENGTH = split(
    "--training.precision fp32 --training.max_steps 24 --schedule.warmup_steps 4"
    " --evaluation.batch_size 16 --evaluation.every_steps 12 --checkpoint.every_steps 8"
    " --monitor.every_steps 1"
)
SHARDED = render(workload="llm", distributed="fsdp")
TABULAR = (*TINY["tabular"], *LENGTH, "--data.batch_size", "32")  # with dropout


def flags(workload, world, *more):
    size = str(BATCH[workload] // world)
    dropout = () if workload in ("chat", "vision") else ("--model.dropout", "0")
    return (*TINY[workload], *dropout, *LENGTH, "--data.batch_size", size, *more)


# An accuracy is a count: where two classes are nearly equal, a rounding decides. seq2seq validates
# 1,365 tokens.
ONE_TOKEN = 1e-3


@functools.cache
def alone(workload, place, *more):
    """The folder of one process with the same samples in a step."""
    folder: Path = place(workload)
    words = flags(workload, 1, *more)
    project = render(workload=workload, extras=["lanes"] if "lanes" in more else [])
    assert_good([run(project, "train", *words, cwd=folder)])
    return folder


def trained(folder, key="loss"):
    return [row[key] for row in rows(folder) if "split" not in row]


def measured(folder):
    """The metrics of each evaluation."""
    others = ("split", "best_by", "time", "seconds", "samples_per_second")
    evaluated = [row for row in rows(folder) if "split" in row]
    return [{name: row[name] for name in row if name not in others} for row in evaluated]


def assert_good(results):
    errors = [result.err[-2500:] for result in results]
    assert [result.code for result in results] == [0] * len(results), errors


def train_ranks(project, *words, cwd, **options):
    results = run_ranks(project, "train", *words, cwd=cwd, **options)
    assert_good(results)
    return results


def assert_close(folder, workload, place, *more):
    """Losses and evaluations are those of one process within 1e-5."""
    expected = alone(workload, place, *more)
    assert trained(folder) == pytest.approx(trained(expected), rel=1e-5)
    norms = trained(expected, "gradient_norm")
    assert trained(folder, "gradient_norm") == pytest.approx(norms, rel=1e-3)
    for row, wanted in zip(measured(folder), measured(expected), strict=True):
        assert row == pytest.approx(wanted, rel=1e-5, abs=ONE_TOKEN)
        assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-5)


@pytest.mark.parametrize("cell", CELLS, ids=name)
@pytest.mark.cover(1, "framework", "distributed")
def test_two_ranks_train_stop_resume_and_evaluate_as_one(cell, place):
    project = render(**cell)
    workload = cell["workload"]
    folder = place(workload)
    train_ranks(project, *flags(workload, 2), "--max-steps", "11", cwd=folder)
    train_ranks(project, "--resume", cwd=folder)
    if workload == "vision":  # each rank normalizes its own images, so one process differs
        whole = place(workload)
        train_ranks(project, *flags(workload, 2), cwd=whole)
        assert losses(folder) == losses(whole)
        assert measured(folder) == measured(whole)
        assert weights(folder) == weights(whole)
    else:
        assert_close(folder, workload, place)
    assert len(list((folder / "runs").iterdir())) == 1
    assert resumes(folder) == [11]
    assert len(list(rows(folder))) == STEPS + len(measured(folder)), "one rank writes"

    words = split("evaluate --split validation --checkpoint last")
    results = run_ranks(project, *words, cwd=folder)
    assert_good(results)
    said = [line for line in results[1].out.splitlines() if not line.startswith("[Gloo]")]
    assert said == []  # torch 2.10 says that its ranks are connected
    together = evaluation_of(folder)["metrics"]
    assert_good([run(project, *words, cwd=folder)])
    by_one = evaluation_of(folder)["metrics"]
    assert together == pytest.approx(by_one, rel=1e-6)
    assert together["loss"] == pytest.approx(measured(folder)[-1]["loss"], rel=1e-6)


@pytest.fixture(scope="module")
def undisturbed(place):
    """Two ranks, with dropout, from beginning to end."""
    folder: Path = place("tabular")
    train_ranks(render(workload="tabular", distributed="ddp"), *TABULAR, cwd=folder)
    return folder


def assert_same(folder, reference):
    """Bit for bit, weights too; the status is that of a run that came to its end."""
    assert losses(folder) == losses(reference)
    assert evaluations(folder) == evaluations(reference)
    assert weights(folder) == weights(reference)
    assert status(folder)["state"] == "finished"


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_signal_to_one_rank_stops_all_after_the_same_step(framework, place, undisturbed):
    """Rank 1 alone gets it. Random numbers of each rank continue as if nothing had been."""
    project = render(workload="tabular", framework=framework, distributed="ddp")
    folder = place("tabular")
    ranks = start_ranks(project, "train", *TABULAR, cwd=folder)
    ranks[0].wait_for_rows(3)
    ranks[1].kill(signal.SIGTERM)
    results = ranks.wait()
    assert [result.code for result in results] == [143, 143], results[0].err
    last = losses(folder)[-1][0]
    assert last < STEPS
    assert step_of(last_checkpoint(folder)) == last
    train_ranks(project, "--resume", cwd=folder)
    assert_same(folder, undisturbed)


def test_a_rank_that_dies_ends_the_other_in_one_line(place, undisturbed):
    project = render(workload="tabular", distributed="ddp", extras=["diagnose"])
    folder = place("tabular")
    ranks = start_ranks(project, "train", *TABULAR, cwd=folder)
    ranks[0].wait_for_rows(10)
    ranks[1].kill(signal.SIGKILL)
    main, other = ranks.wait()
    assert other.code == -signal.SIGKILL
    one_error(main, "another process of this run is gone", "--resume")
    assert status(folder)["state"] == "failed"
    train_ranks(project, "--resume", cwd=folder)
    assert_same(folder, undisturbed)


def spoil_rank_one(rank):
    """The fifth training batch of rank 1 has a target that is no number."""
    from my_training import dataset  # type: ignore[import-not-found]

    real = dataset.Samples.batch
    calls = iter(range(10**6))

    def batch(self, rows):
        result = real(self, rows)
        if (
            rank == 1 and self.training and next(calls) == 6
        ):  # two are of the checks before the first step
            result["target"] = result["target"] * float("nan")
        return result

    dataset.Samples.batch = batch


def test_a_loss_of_one_rank_that_is_not_finite_is_told_once(place):
    """With the samples of that rank: in the order of time, the second half of each batch."""
    answers = {"distributed": "ddp", "loader": "memmap", "extras": ["diagnose"]}
    project = render(workload="tabular", **answers)
    words = ("train", *TABULAR, "--data.order", "time")
    main, other = run_ranks(project, *words, cwd=place("tabular"), before=spoil_rank_one)
    one_error(main, "loss of step 5 is not finite", "training samples 288, 289")
    assert other.code == 2
    assert other.errors() == []


def spoil_the_loss_of_rank_one(rank):
    """The fifth loss of rank 1 is no number, but its gradient is."""
    from my_training import assemble

    real = assemble.build_model
    calls = iter(range(10**6))

    def build(*arguments):
        model = real(*arguments)
        forward = model.forward

        def spoiled(batch):
            output = forward(batch)
            # One call is of the check before the first step.
            if rank == 1 and model.training and next(calls) == 5:
                output = output._replace(loss=output.loss + float("nan"))
            return output

        model.forward = spoiled
        return model

    assemble.build_model = build


def test_a_bad_loss_whose_gradient_is_good_ends_all_ranks(place):
    project = render(workload="tabular", distributed="ddp")
    spoil = spoil_the_loss_of_rank_one
    main, other = run_ranks(project, "train", *TABULAR, cwd=place("tabular"), before=spoil)
    one_error(main, "loss of step 5 is not finite")
    assert (other.code, other.errors()) == (2, [])


def no_memory_on_rank_one(rank):
    from my_training import assemble  # type: ignore[import-not-found]

    real = assemble.build_model

    def forward(batch):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def build(*arguments):
        model = real(*arguments)
        if rank == 1:
            model.forward = forward
        return model

    assemble.build_model = build


def test_too_little_memory_on_one_rank_ends_all_before_the_first_step(place):
    project = render(workload="tabular", distributed="ddp")
    folder = place("tabular")
    main, other = run_ranks(project, "train", *TABULAR, cwd=folder, before=no_memory_on_rank_one)
    one_error(main, "out of GPU memory")
    assert other.code == 2
    assert other.errors() == []
    assert list((folder / "runs").iterdir()) == []


def failing(rank, error):
    """In the second step, when the others wait for this rank's gradients."""

    def put(this):
        from my_training.engine.training.run import Run  # type: ignore[import-not-found]

        real = Run.divisor

        def divisor(self):
            if this == rank and self.step == 1:
                raise error
            return real(self)

        Run.divisor = divisor

    return put


NO_MEMORY = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
FAILURES = [  # of a rank, and the reason that the run is given
    (1, NO_MEMORY, "rank 1: out of GPU memory: train: try, in this order"),
    (1, MemoryError(), "rank 1: out of memory: train: try, in this order"),
    (1, ValueError("a bug"), "rank 1: ValueError: a bug"),
    (0, NO_MEMORY, "out of GPU memory: train: try, in this order"),
]


@pytest.mark.parametrize("distributed", ["ddp", pytest.param("fsdp", marks=pytest.mark.full)])
def test_the_reason_of_a_run_is_that_of_the_rank_that_failed(distributed, place):
    """It and rank 0 say it, each in one line."""
    workload = "tabular" if distributed == "ddp" else "llm"
    project = render(workload=workload, distributed=distributed)
    for rank, error, reason in FAILURES:
        folder = place(workload)
        words = flags(workload, 2)
        results = run_ranks(project, "train", *words, cwd=folder, before=failing(rank, error))
        assert status(folder)["reason"].startswith(reason), reason
        assert results[0].errors()[0].startswith(f"error: {reason}")
        assert "Traceback" not in results[1 - rank].err
        # Rank 0 has the store: as it ends, torch may print a page of its own on the other rank.
        assert rank == 0 or len(results[1 - rank].err.splitlines()) < 3


def alone_at_first(project, folder, number):
    """Rank 0 of two gets a signal while it waits for the other one, which does not come."""

    def wait():
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        from my_training.engine.compute import group  # type: ignore[import-not-found]

        join = group.Group._join

        def joined(self):
            threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
            join(self)

        group.Group._join = joined

    return run(project, "train", *TABULAR, cwd=folder, before=wait)


def test_a_signal_ends_a_rank_that_waits_for_another_one(place):
    """At the start. In a training whose peer does not answer, the second one does."""
    project = render(workload="tabular", distributed="ddp")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        folder = place("tabular")
        assert alone_at_first(project, folder, number).code == 128 + number
        assert not list(folder.glob("runs/*"))

    folder = place("tabular")
    ranks = start_ranks(project, "train", *TABULAR, cwd=folder)
    ranks[0].wait_for_rows(3)
    ranks[1].kill(signal.SIGSTOP)
    for _ in range(2):
        ranks[0].kill(signal.SIGTERM)
        time.sleep(0.2)
    assert ranks[0].wait().code == 143
    ranks[1].kill(signal.SIGCONT)
    one_error(ranks[1].wait(), "another process of this run is gone")


def hang_at_the_end(rank):
    """Leaving the group takes a minute, in which no other thread gets the GIL."""
    import ctypes

    from my_training.engine.compute import group  # type: ignore[import-not-found]

    group.PATIENCE_TO_END = 0.5
    group.dist.destroy_process_group = lambda: ctypes.PyDLL(None).sleep(60)


def test_a_rank_that_cannot_leave_its_group_ends(place):
    """With code 1, as its group is not closed; the run is complete by then."""
    folder = place("tabular")
    project = render(workload="tabular", distributed="ddp")
    results = run_ranks(project, "train", *TABULAR, cwd=folder, before=hang_at_the_end)
    assert [result.code for result in results] == [1, 1]  # 0 after the minute
    assert status(folder)["state"] == "finished"


def train_shards(place, before):
    """Two ranks, each with its shard of a language model, that save at steps 8, 16 and 24."""
    folder = place("llm")
    words = ("train", *flags("llm", 2, "--evaluation.every_steps", "100"))
    return folder, run_ranks(SHARDED, *words, cwd=folder, before=before)


def assert_ended(folder, place, *saved):
    """As one process does it, with these checkpoints."""
    assert trained(folder) == pytest.approx(trained(alone("llm", place)), rel=1e-5)
    assert sorted(map(step_of, (newest_run(folder) / "checkpoints").iterdir())) == list(saved)


def unreadable_for_rank_one(rank):
    """It cannot read back what it wrote for the second checkpoint; one process left a folder."""
    from my_training.engine.training import checkpoint  # type: ignore[import-not-found]

    short_hash = checkpoint.short_hash
    calls = iter(range(10**6))

    def hashed(path):
        if next(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return short_hash(path)

    if rank == 1:
        checkpoint.short_hash = hashed


def test_an_error_of_reading_on_one_rank_costs_that_checkpoint_only(place):
    """No rank waits for the other, and an event is logged for each complete checkpoint."""
    folder, results = train_shards(place, unreadable_for_rank_one)
    assert_good(results)
    assert results[0].err.count("(Input/output error)") == 1
    assert results[0].err.count("training continues") == 1
    assert_ended(folder, place, 8, 24)
    events = [row["step"] for row in rows(folder, "events") if row["event"] == "checkpoint"]
    assert events == [8, 24]


def unreadable_at(owner, name, rank):
    """Rank 1 cannot read a checkpoint: `name` of this module fails."""
    module = importlib.import_module(owner)

    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if rank == 1:
        classes = name.split(".")
        setattr(functools.reduce(getattr, classes[:-1], module), classes[-1], fail)


READS = {
    "state": ("my_training.engine.training.whole_checkpoint", "read_plain"),
    "places": ("torch.distributed.checkpoint", "HuggingFaceStorageReader.read_metadata"),
    "rows": ("torch.distributed.checkpoint", "HuggingFaceStorageReader.read_data"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.full
def test_an_error_of_reading_on_one_rank_ends_all_in_one_line(read, place):
    """And the run resumes when it has passed."""
    folder = place("llm")
    words = flags("llm", 2, "--evaluation.every_steps", "100")
    train_ranks(SHARDED, *words, "--max-steps", "8", cwd=folder)
    fail = functools.partial(unreadable_at, *READS[read])
    ranks = start_ranks(SHARDED, "train", "--resume", cwd=folder, before=fail)
    for result in ranks.wait(60):
        assert result.code == 2, result.err
        assert "Traceback" not in result.err
        assert all("cannot use the checkpoint" in line for line in result.errors())
    train_ranks(SHARDED, "--resume", cwd=folder)
    assert resumes(folder) == [8]
    assert_ended(folder, place, 16, 24)


def slow_to_write(rank):
    """Rank 0 writes a checkpoint only when the step after next is made, except for the last one."""
    from my_training.engine.training import checkpoint, run  # type: ignore[import-not-found]

    end_step, write_state = run.Run.end_step, checkpoint.write_state
    steps = {number: threading.Event() for number in range(1, STEPS + 1)}

    def ended(self, norm):
        end_step(self, norm)
        steps[self.step].set()

    def written(state, path):
        is_later = state["step"] == STEPS or steps[state["step"] + 2].wait(60)
        with open("written", "a") as file:
            print(state["step"], is_later, file=file)
        return write_state(state, path)

    run.Run.end_step = ended
    if rank == 0:
        checkpoint.write_state = written


def test_training_continues_while_shards_are_written(place):
    """And what is written is the state of the step at which the save began."""
    folder, results = train_shards(place, slow_to_write)
    assert_good(results)
    assert (folder / "written").read_text() == "8 True\n16 True\n24 True\n"
    for checkpoint in sorted((newest_run(folder) / "checkpoints").iterdir()):
        state = torch.load(checkpoint / "state.pt", weights_only=True)
        updates = {int(values["step"]) for values in state["optimizer"]["state"].values()}
        assert updates == {step_of(checkpoint)} == {state["progress"]["step"]}
    assert_ended(folder, place, 16, 24)


def die_while_shards_are_written(rank):
    """Rank 1 is killed when its rows of the second checkpoint are written."""
    from my_training.engine.training import checkpoint  # type: ignore[import-not-found]

    short_hash = checkpoint.short_hash
    calls = iter(range(10**6))

    def hashed(path):
        if next(calls) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return short_hash(path)

    if rank == 1:
        checkpoint.short_hash = hashed


def die_at_the_second_checkpoint(rank, is_named=False):
    """Rank 0 is killed where a checkpoint gets its name: before it, or just after."""
    real = os.replace
    calls = iter(range(10**6))

    def replace(source, target):
        dies = Path(target).parent.name == "checkpoints" and next(calls) == 1
        if not dies or is_named:
            real(source, target)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    if rank == 0:
        os.replace = replace


@pytest.mark.parametrize(
    ("kill", "step"),
    [
        (die_while_shards_are_written, 8),
        (die_at_the_second_checkpoint, 8),
        (functools.partial(die_at_the_second_checkpoint, is_named=True), 16),
    ],
    ids=["written", "renaming", "renamed"],
)
def test_a_kill_while_shards_are_saved_leaves_whole_checkpoints(kill, step, place):
    folder, results = train_shards(place, kill)
    assert -signal.SIGKILL in [result.code for result in results]
    train_ranks(SHARDED, "--resume", cwd=folder)
    assert resumes(folder) == [step]
    assert_ended(folder, place, 16, 24)


@pytest.mark.parametrize("order", ["lanes", "full"])
@pytest.mark.first(1)
def test_another_number_of_processes_continues_with_the_same_samples(order, place):
    """From the middle of an epoch, to one rank and back; in lanes with the carried state."""
    given = ("--data.order", order)
    project = render(workload="timeseries", distributed="ddp", extras=["lanes"])
    folder = place("timeseries")
    train_ranks(project, *flags("timeseries", 2, *given), "--max-steps", "7", cwd=folder)
    for carried in last_state(folder)["hooks"]["lanes"]["ranks"]:
        assert (carried is not None) == (order == "lanes")
    words = split("train --resume --data.batch_size 32 --max-steps 15")
    assert_good([run(project, *words, cwd=folder)])
    train_ranks(project, "--resume", "--data.batch_size", "16", cwd=folder)
    assert_close(folder, "timeseries", place, *given)


def test_a_step_of_another_size_is_refused(place):
    """And one of the same size continues, in smaller batches from the middle of an epoch."""
    project = render(workload="tabular", distributed="ddp")
    folder = place("tabular")
    train_ranks(project, *flags("tabular", 2), "--max-steps", "5", cwd=folder)
    refused = run(project, "train", "--resume", cwd=folder)
    one_error(refused, "samples a step was 64 .* is 32 now")
    words = "train --resume --data.batch_size 32 --training.gradient_accumulation_steps 2"
    assert_good([run(project, *words.split(), cwd=folder)])
    assert_close(folder, "tabular", place)


def test_each_rank_draws_its_own_numbers(undisturbed):
    """Dropout would else be the same on all of them."""
    first, second = (rank["random"] for rank in last_state(undisturbed)["ranks"]["ranks"])
    assert not torch.equal(first["torch"], second["torch"])


@pytest.mark.parametrize("world", [3, 1])
@pytest.mark.first(1)
def test_shards_of_two_ranks_are_read_by_any_number(world, place):
    """As if there had always been so many processes; a checkpoint with a damaged shard is
    skipped."""
    folder = place("llm")
    words = flags("llm", 2, "--data.batch_size", "6", "--max-steps", "11")
    train_ranks(SHARDED, *words, cwd=folder)
    newest = last_checkpoint(folder)
    assert step_of(newest) == 11
    _, shard = sorted(newest.glob("shard-*.safetensors"))
    flip_bit(shard, shard.stat().st_size // 2)

    size = ("--data.batch_size", str(12 // world))
    results = train_ranks(SHARDED, "--resume", *size, cwd=folder, world=world)
    assert f"skipped a damaged checkpoint: {newest.name}" in results[0].err
    expected = trained(alone("llm", place, "--data.batch_size", "12"))
    assert trained(folder) == pytest.approx(expected, rel=1e-5)


def test_adafactor_is_refused_for_shards(place):
    project = render(workload="llm", distributed="fsdp", extras=["diagnose"])
    main, _ = run_ranks(project, "train", "--optimizer.name", "adafactor", cwd=place("llm"))
    one_error(main, "this optimizer cannot update sharded weights")


def overflow_of_rank_one(rank):
    """In the fifth step: under fsdp in its shard, which rank 0 cannot see; under ddp on both."""
    from my_training.engine.compute import precision  # type: ignore[import-not-found]

    precision.SCALE = 1024.0  # no other step overflows
    real = torch.amp.GradScaler.unscale_
    calls = iter(range(1, 10**6))

    def unscale(self, optimizer):
        gradient = optimizer.param_groups[0]["params"][0].grad
        is_sharded = hasattr(gradient, "to_local")
        if next(calls) == 5 and (rank == 1 or not is_sharded):
            local = gradient.to_local() if is_sharded else gradient
            local.fill_(float("inf"))
        real(self, optimizer)

    torch.amp.GradScaler.unscale_ = unscale  # type: ignore[method-assign]


HALF = {"fp16": 5e-3, "bf16": 1e-2}  # tolerances: bf16 rounds at 2^-8


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.first(1)
def test_half_precision_over_ranks(precision, place):
    """A step that overflows for one rank is skipped by all."""
    fault = overflow_of_rank_one if precision == "fp16" else None
    curves = {}
    for distributed in ("ddp", "fsdp"):
        project = render(workload="llm", distributed=distributed)
        folder = place("llm")
        words = flags("llm", 2, "--training.precision", precision)
        train_ranks(project, *words, cwd=folder, before=fault)
        curves[distributed] = trained(folder)
        skipped = [row["step"] for row in rows(folder) if row.get("skipped_steps")]
        assert skipped == ([5] if precision == "fp16" else [])
    assert curves["fsdp"] == pytest.approx(curves["ddp"], rel=HALF[precision])
    assert curves["ddp"] == pytest.approx(trained(alone("llm", place)), rel=0.1)


RANK = {"WORLD_SIZE": "2", "RANK": "0"}
WRONG = {
    "no address": ("ddp", "train", RANK, "cannot find each other.*MASTER_ADDR=None"),
    "no number": ("ddp", "train", {"WORLD_SIZE": "two"}, "'two' is not a number.*WORLD_SIZE"),
    "command": ("ddp", "predict", RANK, "one process.*WORLD_SIZE=2.*without torchrun"),
    "project": ("none", "train", RANK, "one process.*WORLD_SIZE=2.*without torchrun"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_environment_is_one_line(wrong, place):
    distributed, command, environment, pattern = WRONG[wrong]
    project = render(workload="tabular", distributed=distributed)
    folder = place("tabular")
    result = run(project, command, cwd=folder, before=lambda: os.environ.update(environment))
    one_error(result, pattern)
    assert not (folder / "runs").exists()


TORCHRUN = split("torch.distributed.run --standalone --nproc_per_node=2 --max-restarts=1 -m")


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="finds processes in Linux's /proc"
)
@pytest.mark.full
def test_an_elastic_run_survives_the_kill_of_a_rank(place, undisturbed):
    """SIGKILL of one of two ranks: torchrun starts both again; the run ends as if undisturbed."""
    project = render(workload="tabular", distributed="ddp")
    folder = place("tabular")
    (folder / "config.yaml").symlink_to(project / "config.yaml")
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", *TORCHRUN, "my_training", "train", *TABULAR)
    running = subprocess.Popen(command, cwd=folder, env=environment)

    def has_rows():
        files = [*folder.glob("runs/*/metrics.jsonl")]
        return bool(files) and files[0].read_text().count("\n") >= 12

    until(has_rows, "12 records of metrics")
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    ranks = {Path(f"/proc/{child}/environ").read_text(): int(child) for child in children}
    (victim,) = (child for names, child in ranks.items() if "\0RANK=1\0" in names)
    os.kill(victim, signal.SIGKILL)
    assert running.wait(PATIENCE) == 0
    assert len(list((folder / "runs").iterdir())) == 1
    assert resumes(folder) == [8]
    assert_same(folder, undisturbed)


SRUN = """#!/usr/bin/env python3
# Starts its command as two tasks; once there are $ROWS rows of metrics, each task gets SIGTERM.
import glob, os, signal, subprocess, sys, time
command = sys.argv[2:]
assert sys.argv[1] == "--kill-on-bad-exit=1"
tasks = []
for task in ("0", "1"):
    names = {"SLURM_PROCID": task, "SLURM_LOCALID": task, "SLURM_NTASKS": "2"}
    tasks.append(subprocess.Popen(command, env={**os.environ, **names}))
while os.environ.get("ROWS") and all(task.poll() is None for task in tasks):
    found = glob.glob("runs/*/metrics.jsonl")
    if found and open(found[0]).read().count("\\n") >= int(os.environ["ROWS"]):
        for task in tasks:
            task.send_signal(signal.SIGTERM)
        break
    time.sleep(0.002)
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then echo 127.0.0.1; echo node2; else echo "$@" >> requeued; fi
"""


@pytest.mark.full
def test_the_slurm_job_saves_requeues_and_resumes(place, undisturbed):
    """The script itself; srun and scontrol are stand-ins for two tasks, and note what is asked."""
    project = render(workload="tabular", distributed="ddp", extras=["slurm"])
    folder = place("tabular")
    script = project / "launch/slurm.sbatch"
    assert "\n#SBATCH --signal=TERM@" in script.read_text()
    tools = folder / "bin"
    tools.mkdir()
    for tool, content in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / tool).write_text(content)
        (tools / tool).chmod(0o755)
    for link in ("src", "config.yaml"):
        (folder / link).symlink_to(project / link)
    number = str(free_port())
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    (folder / "mine.yaml").write_text((project / "config.yaml").read_text())
    job = ["bash", str(script), "--config", "mine.yaml", *TABULAR]
    first = subprocess.run(job, env={**environment, "ROWS": "5"}, capture_output=True, text=True)
    assert first.returncode == 143, first.stderr
    assert (folder / "requeued").read_text() == f"requeue {number}\n"
    assert status(folder)["state"] == "stopped"
    (folder / "mine.yaml").write_text("model: {width: 8}\n")  # for the next experiment
    second = subprocess.run(job, env=environment, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert (folder / "requeued").read_text().count("\n") == 1
    assert newest_run(folder).name == f"slurm-{number}"
    assert_same(folder, undisturbed)
