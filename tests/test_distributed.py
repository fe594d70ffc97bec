"""Several processes of one run: the losses of one, stops that all agree on, one that writes."""

# ruff: noqa: F811 - the fixture `place` is imported

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import free_port, run_ranks, start_ranks
from rendering import render
from running import PATIENCE, evaluations, losses, newest_run, one_error, rows, run, until, weights
from test_tier_b import TINY, place  # noqa: F401
from variants import choices, name, products

CELLS = [
    cell
    for cell in products("workload", "framework", "distributed")
    if cell["distributed"] != "none"
]
STEPS = 24
# Samples of a step: two ranks take half each. Dropout would draw other numbers on each: there is none.
BATCH = {"tabular": 64, "llm": 8, "graph": 4, "timeseries": 32, "seq2seq": 8, "windows": 32}
SAME = (
    *("--model.dropout", "0", "--training.precision", "fp32", "--monitor.every_steps", "1"),
    *(
        "--training.max_steps",
        str(STEPS),
        "--evaluation.every_steps",
        "12",
        "--checkpoint.every_steps",
        "8",
    ),
    *("--evaluation.batch_size", "16", "--schedule.warmup_steps", "4"),
)


def flags(workload: str, world: int, *more: str) -> tuple[str, ...]:
    return (*TINY[workload], *SAME, "--data.batch_size", str(BATCH[workload] // world), *more)


@functools.cache
def alone(
    workload: str, place, *more: str
) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    """Losses and evaluations of one process with the same samples in a step."""
    folder, words = place(workload), flags(workload, 1, *more)
    result = run(
        render(workload=workload), "train", *words, cwd=folder, before=precisely(workload, *more)
    )
    assert result.code == 0, result.err
    return folder, trained(folder), measured(folder)


def trained(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if "split" not in row]


def measured(folder: Path) -> list[dict[str, Any]]:
    drop = ("seconds", "time", "split")
    return [
        {key: row[key] for key in row if key not in drop} for row in rows(folder) if "split" in row
    ]


def assert_good(results: list) -> None:
    assert [result.code for result in results] == [0] * len(results), [
        result.err[-2500:] for result in results
    ]


def assert_close(folder: Path, workload: str, place, *more: str) -> None:
    """Losses and evaluations are those of one process within 1e-5."""
    _, expected, evaluated = alone(workload, place, *more)
    wished = [row["loss"] for row in expected]
    assert [row["loss"] for row in trained(folder)] == pytest.approx(wished, rel=1e-5)
    norms = [row["gradient_norm"] for row in expected]
    assert [row["gradient_norm"] for row in trained(folder)] == pytest.approx(norms, rel=1e-3)
    for row, wanted in zip(measured(folder), evaluated, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("cell", CELLS, ids=name)
@pytest.mark.cover(1, "framework", "distributed")
def test_two_ranks_train_stop_resume_and_evaluate_as_one(cell: dict[str, str], place) -> None:
    project, workload = render(**cell), cell["workload"]
    folder = place(workload)
    assert_good(run_ranks(project, "train", *flags(workload, 2), "--max-steps", "11", cwd=folder))
    assert len(losses(folder)) == 11
    assert_good(run_ranks(project, "train", "--resume", cwd=folder))
    assert_close(folder, workload, place)
    (found,) = (folder / "runs").iterdir()
    assert json.loads((found / "status.json").read_text())["resumes"] == [11]
    assert sum(1 for _ in rows(folder)) == STEPS + len(measured(folder)), "one rank writes"

    results = run_ranks(
        project, "evaluate", "--split", "validation", "--checkpoint", "last", cwd=folder
    )
    assert_good(results)
    assert "samples/s" in results[0].out
    assert results[1].out == ""
    together = json.loads((found / "evaluation.json").read_text())
    assert_good(
        [run(project, "evaluate", "--split", "validation", "--checkpoint", "last", cwd=folder)]
    )
    by_one = json.loads((found / "evaluation.json").read_text())
    assert together["metrics"] == pytest.approx(by_one["metrics"], rel=1e-6)
    assert together["metrics"]["loss"] == pytest.approx(measured(folder)[-1]["loss"], rel=1e-6)


# Epochs of a few steps, the last of which has too few samples.
SHORT = ("--training.gradient_accumulation_steps", "3", "--data.fraction", "0.03")


def precisely(workload: str, *more: str) -> Callable[..., None] | None:
    """What makes weights float64, where eight pairs learnt by heart let rounding grow from 1e-7 to 2e-5."""
    small = workload == "seq2seq" and more == SHORT
    return (lambda *rank: torch.set_default_dtype(torch.float64)) if small else None


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_accumulation_over_ranks(workload: str, place) -> None:
    """Groups of three micro-batches, gradients exchanged once: as one process with three times the batch."""
    folder, project = place(workload), render(workload=workload, distributed="ddp")
    words, before = flags(workload, 2, *SHORT), precisely(workload, *SHORT)
    assert_good(run_ranks(project, "train", *words, cwd=folder, before=before))
    assert_close(folder, workload, place, *SHORT)


TABULAR = (*TINY["tabular"], *SAME[2:], "--data.batch_size", "32")  # with dropout


@pytest.fixture(scope="module")
def undisturbed(place) -> Path:
    """Two ranks, with dropout, from beginning to end."""
    folder = place("tabular")
    assert_good(
        run_ranks(render(workload="tabular", distributed="ddp"), "train", *TABULAR, cwd=folder)
    )
    return folder


def assert_same(folder: Path, reference: Path) -> None:
    """Bit for bit, weights too; the status is that of a run that came to its end."""
    assert losses(folder) == losses(reference)
    assert evaluations(folder) == evaluations(reference)
    assert weights(folder) == weights(reference)
    assert json.loads((newest_run(folder) / "status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_signal_to_one_rank_stops_all_after_the_same_step(
    framework: str,
    place,
    undisturbed: Path,
) -> None:
    """Rank 1 alone is told. Random numbers of each rank go on as if nothing had been."""
    project, folder = (
        render(workload="tabular", framework=framework, distributed="ddp"),
        place("tabular"),
    )
    ranks = start_ranks(project, "train", *TABULAR, cwd=folder)
    ranks[0].wait_for_rows(3)
    ranks[1].kill(signal.SIGTERM)
    results = ranks.wait()
    assert [result.code for result in results] == [143, 143], results[0].err
    last = losses(folder)[-1][0]
    assert last < STEPS
    assert (newest_run(folder) / f"checkpoints/step-{last:08d}").exists()
    assert_good(run_ranks(project, "train", "--resume", cwd=folder))
    assert_same(folder, undisturbed)


def test_a_rank_that_dies_ends_the_other_in_one_line(place, undisturbed: Path) -> None:
    project, folder = render(workload="tabular", distributed="ddp"), place("tabular")
    ranks = start_ranks(project, "train", *TABULAR, cwd=folder)
    ranks[0].wait_for_rows(10)
    ranks[1].kill(signal.SIGKILL)
    main, other = ranks.wait()
    assert other.code == -signal.SIGKILL
    one_error(main, "another process of this run is gone", "--resume")
    assert json.loads((newest_run(folder) / "status.json").read_text())["state"] == "failed"
    assert_good(run_ranks(project, "train", "--resume", cwd=folder))
    assert_same(folder, undisturbed)


def spoil_rank_one(rank: int) -> None:
    """The fifth training batch of rank 1 has a target that is no number."""
    from my_training import dataset  # type: ignore[import-not-found]

    real, calls = dataset.Samples.batch, iter(range(10**6))

    def batch(self: Any, parts: dict) -> dict:
        result = real(self, parts)
        if rank == 1 and self.training and next(calls) == 5:  # the first one is the dry run's
            result["target"] = result["target"] * float("nan")
        return result

    dataset.Samples.batch = batch


def test_a_loss_of_one_rank_that_is_not_finite_is_told_once(place) -> None:
    """With the samples of the rank where it happened: the second half of each batch in the order of time."""
    project, folder = (
        render(workload="tabular", distributed="ddp", loader="memmap"),
        place("tabular"),
    )
    words = (*TABULAR, "--data.order", "time")
    main, other = run_ranks(project, "train", *words, cwd=folder, before=spoil_rank_one)
    one_error(main, "loss of step 5 is not finite", "training samples 288, 289")
    assert other.code == 2
    assert other.errors() == []


def no_memory_on_rank_one(rank: int) -> None:
    from my_training import assemble  # type: ignore[import-not-found]
    from my_training.engine import errors, optimization  # type: ignore[import-not-found]

    real = assemble.build_model

    def build(*arguments: Any) -> Any:
        model = real(*arguments)

        def forward(batch: Any) -> Any:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        if rank == 1:
            model.forward = forward
        return model

    assemble.build_model = build
    optimization.out_of_memory = lambda *_: errors.UserError(
        "out of GPU memory", "", "smaller batches"
    )


def no_room_on_rank_one(rank: int) -> None:
    from my_training.engine import memory  # type: ignore[import-not-found]

    memory.free_memory = lambda device: 1000 if rank == 1 else 1 << 40


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (no_memory_on_rank_one, "out of GPU memory"),
        (
            no_room_on_rank_one,
            r"out of memory: a batch of [\d,]+ samples needs about .+: data.batch_size: ",
        ),
    ],
)
def test_too_little_memory_on_one_rank_ends_all_before_the_first_step(
    fault: Any, says: str, place
) -> None:
    project, folder = render(workload="tabular", distributed="ddp"), place("tabular")
    main, other = run_ranks(project, "train", *TABULAR, cwd=folder, before=fault)
    one_error(main, says)
    assert (other.code, other.errors()) == (2, [])
    assert list((folder / "runs").iterdir()) == []


def full_disk(rank: int) -> None:
    """Rank 1 cannot write its second checkpoint."""
    from my_training.engine import checkpoint  # type: ignore[import-not-found]

    real, calls = checkpoint._save_model, iter(range(10**6))

    def save(*arguments: Any) -> Any:
        if rank == 1 and next(calls) == 1:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    checkpoint._save_model = save


def test_a_disk_full_for_one_shard_costs_that_checkpoint_only(place) -> None:
    project, folder = render(workload="llm", distributed="fsdp"), place("llm")
    words = (*flags("llm", 2), "--evaluation.every_steps", "100")
    main, other = run_ranks(project, "train", *words, cwd=folder, before=full_disk)
    assert_good([main, other])
    assert main.out.count("training goes on") == 1
    steps = sorted(path.name for path in (newest_run(folder) / "checkpoints").glob("step-*"))
    assert steps == ["step-00000008", "step-00000024"]
    assert_close(folder, "llm", place, "--evaluation.every_steps", "100")


@pytest.mark.parametrize("order", ["full", "lanes"])
@pytest.mark.first(1)
def test_another_number_of_processes_goes_on_with_the_same_samples(order: str, place) -> None:
    """From the middle of an epoch, from two ranks to one and back; in lanes the carried state goes along."""
    words, size = ("--data.order", order), BATCH["timeseries"]
    project, folder = render(workload="timeseries", distributed="ddp"), place("timeseries")
    assert_good(
        run_ranks(project, "train", *flags("timeseries", 2, *words), "--max-steps", "7", cwd=folder)
    )
    newest = newest_run(folder) / "checkpoints/step-00000007/state.pt"
    carried = [
        rank.get("carry") for rank in torch.load(newest, weights_only=True)["ranks"]["ranks"]
    ]
    assert [carry is not None for carry in carried] == [order == "lanes"] * 2
    one, two = (("--data.batch_size", str(size // world)) for world in (1, 2))
    assert_good([run(project, "train", "--resume", *one, "--max-steps", "15", cwd=folder)])
    assert_good(run_ranks(project, "train", "--resume", *two, cwd=folder))
    assert_close(folder, "timeseries", place, *words)


def test_a_step_of_another_size_is_refused(place) -> None:
    """And one of the same size goes on, in smaller batches from the middle of an epoch."""
    project, folder = render(workload="tabular", distributed="ddp"), place("tabular")
    assert_good(run_ranks(project, "train", *flags("tabular", 2), "--max-steps", "5", cwd=folder))
    refused = run(project, "train", "--resume", cwd=folder)
    one_error(refused, r"64 samples \(on 2 processes\)", "32 on 1", "must be 64")
    halves = ("--data.batch_size", "32", "--training.gradient_accumulation_steps", "2")
    assert_good([run(project, "train", "--resume", *halves, cwd=folder)])
    assert_close(folder, "tabular", place)


def test_each_rank_draws_numbers_of_its_own(undisturbed: Path) -> None:
    """Dropout would else be the same on all of them."""
    newest = max((newest_run(undisturbed) / "checkpoints").glob("step-*"))
    ranks = torch.load(newest / "state.pt", weights_only=True)["ranks"]["ranks"]
    first, second = (rank["random"] for rank in ranks)
    assert not torch.equal(first["torch"], second["torch"])
    assert first["python"] != second["python"]


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.first(1)
def test_shards_of_two_ranks_are_read_by_any_number(world: int, place) -> None:
    """Weights and the optimizer's state: the run goes on as if it had always had so many processes."""
    project, folder = render(workload="llm", distributed="fsdp"), place("llm")
    sizes = lambda world: ("--data.batch_size", str(12 // world))  # noqa: E731
    words = (*TINY["llm"], *SAME)
    assert_good(run_ranks(project, "train", *words, *sizes(2), "--max-steps", "11", cwd=folder))
    newest = newest_run(folder) / "checkpoints/step-00000011"
    assert len(list(newest.glob("shard-*.safetensors"))) == 2
    assert (newest / "model.safetensors").stat().st_size < 10_000
    assert_good(run_ranks(project, "train", "--resume", *sizes(world), world=world, cwd=folder))
    wanted = [row["loss"] for row in alone("llm", place, *sizes(1))[1]]
    assert [row["loss"] for row in trained(folder)] == pytest.approx(wanted, rel=1e-5)


def test_a_damaged_shard_is_found(place) -> None:
    project, folder = render(workload="llm", distributed="fsdp"), place("llm")
    assert_good(run_ranks(project, "train", *flags("llm", 2), "--max-steps", "11", cwd=folder))
    shard = newest_run(folder) / "checkpoints/step-00000011/shard-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    results = run_ranks(project, "train", "--resume", cwd=folder)
    assert_good(results)
    assert "skipped a damaged checkpoint: step-00000011 (shard-00001.safetensors" in results[0].out
    assert_close(folder, "llm", place)


def overflow_of_rank_one(rank: int) -> None:
    """In the fifth step: under fsdp in its shard, which rank 0 cannot see; under ddp both have the same."""
    from my_training.engine import precision  # type: ignore[import-not-found]

    precision.SCALE = 1024.0  # no other step overflows
    Precision = precision.Precision
    real, calls = Precision.step, iter(range(1, 10**6))

    def step(self: Any, optimizer: Any, clip: float, divisor: Any) -> Any:
        gradient = optimizer.param_groups[0]["params"][0].grad
        sharded = hasattr(gradient, "to_local")
        if next(calls) == 5 and (rank == 1 or not sharded):
            (gradient.to_local() if sharded else gradient).fill_(float("inf"))
        return real(self, optimizer, clip, divisor)

    Precision.step = step


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.first(1)
def test_half_precision_over_ranks(precision: str, place) -> None:
    """A step that overflows for one rank is left out by all, with their shards as with all weights."""
    found, fault = {}, overflow_of_rank_one if precision == "fp16" else None
    for distributed in ("ddp", "fsdp"):
        project, folder = render(workload="llm", distributed=distributed), place("llm")
        words = (*flags("llm", 2), "--training.precision", precision)
        assert_good(run_ranks(project, "train", *words, cwd=folder, before=fault))
        found[distributed] = [row["loss"] for row in trained(folder)]
        skipped = [row["step"] for row in trained(folder) if row.get("skipped_steps")]
        assert skipped == ([5] if precision == "fp16" else [])
    assert found["fsdp"] == pytest.approx(found["ddp"], rel=5e-3)
    wanted = [row["loss"] for row in alone("llm", place)[1]]
    assert found["ddp"] == pytest.approx(wanted, rel=0.1)


MISTAKES = {
    "no address": (
        {"WORLD_SIZE": "2", "RANK": "0"},
        ("do not find each other", "MASTER_ADDR=None"),
    ),
    "rank": ({"WORLD_SIZE": "2", "RANK": "2"}, ("RANK=2, WORLD_SIZE=2",)),
    "no number": ({"WORLD_SIZE": "two"}, ("'two' is not a number", "WORLD_SIZE")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_environment_is_one_line(mistake: str, place) -> None:
    environment, parts = MISTAKES[mistake]
    project, folder = render(workload="tabular", distributed="ddp"), place("tabular")
    result = run(
        project, "train", *TABULAR, cwd=folder, before=lambda: os.environ.update(environment)
    )
    one_error(result, *parts)
    assert not (folder / "runs").exists()


def test_what_runs_in_one_process_says_so(place) -> None:
    before = lambda: os.environ.update(WORLD_SIZE="2", RANK="0")  # noqa: E731
    for answers, verb in (({"distributed": "ddp"}, "predict"), ({"distributed": "none"}, "train")):
        folder = place("tabular")
        result = run(render(workload="tabular", **answers), verb, cwd=folder, before=before)
        one_error(result, "one process", "WORLD_SIZE=2", "without torchrun")
        assert not (folder / "runs").exists()


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1", "-m")
# Accelerate's own: with a number format and an accumulation that are not the project's.
ACCELERATE = (
    *(
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes=2",
        "--num_machines=1",
        "--module",
    ),
    *("--mixed_precision=bf16", "--gradient_accumulation_steps=4", "--dynamo_backend=no"),
)


def launch(launcher: tuple[str, ...], project: Path, *words: str, cwd: Path) -> subprocess.Popen:
    """The launcher itself with two processes, as the guide has it."""
    (cwd / "config.yaml").write_text((project / "config.yaml").read_text())
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", *launcher, "my_training", "train", *words)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.full
def test_accelerate_launch_starts_the_ranks_too(place, undisturbed: Path) -> None:
    """And what it would have each process do otherwise changes no bit of the losses."""
    project = render(workload="tabular", framework="accelerate", distributed="ddp")
    folder, port = place("tabular"), f"--main_process_port={free_port()}"
    running = launch((*ACCELERATE, port), project, *TABULAR, cwd=folder)
    out, error = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, error[-3000:]
    assert out.count(f"{STEPS} steps of 64 samples") == 1, "rank 0 says it, once"
    assert_same(folder, undisturbed)


def children(process: int) -> list[int]:
    return [
        int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def rank_of(process: int) -> str:
    environment = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return next(entry for entry in environment if entry.startswith("RANK="))


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="finds processes in Linux's /proc"
)
@pytest.mark.full
def test_an_elastic_run_survives_the_kill_of_a_rank(place, undisturbed: Path) -> None:
    """SIGKILL of one of two ranks: torchrun starts both anew, and the run ends as if nothing had been."""
    project, folder = render(workload="tabular", distributed="ddp"), place("tabular")
    running = launch(TORCHRUN, project, *TABULAR, cwd=folder)
    metrics = lambda: next(folder.glob("runs/*/metrics.jsonl"), None)  # noqa: E731
    until(lambda: metrics() and metrics().read_text().count("\n") >= 12, "12 rows of metrics")
    (victim,) = (child for child in children(running.pid) if rank_of(child) == "RANK=1")
    os.kill(victim, signal.SIGKILL)
    out, error = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, error[:6000]
    assert out.count("resumed at step") == 1, "rank 0 says it, once"
    (found,) = (folder / "runs").iterdir()
    assert json.loads((found / "status.json").read_text())["resumes"] == [8]
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
def test_the_slurm_job_saves_requeues_and_resumes(place, undisturbed: Path) -> None:
    """The script itself; srun and scontrol are stand-ins for two tasks, and note what is asked."""
    project, folder = (
        render(workload="tabular", distributed="ddp", extras=["slurm"]),
        place("tabular"),
    )
    script = project / "launch/slurm.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    options = dict(
        re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?", script.read_text(), flags=re.MULTILINE)
    )
    assert options["signal"].startswith("TERM@")
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert {"requeue", "time", "output"} <= set(options)
    for tool, content in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / "bin" / tool).parent.mkdir(exist_ok=True)
        (folder / "bin" / tool).write_text(content)
        (folder / "bin" / tool).chmod(0o755)
    (folder / "src").symlink_to(project / "src")
    (folder / "config.yaml").write_text((project / "config.yaml").read_text())
    environment = {
        **os.environ,
        **{
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
        },
        **{
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_ID": str(free_port()),
            "SLURM_JOB_NODELIST": "node[1-2]",
        },
    }
    job = ["bash", str(script), *TABULAR]
    first = subprocess.run(job, env={**environment, "ROWS": "5"}, capture_output=True, text=True)
    assert first.returncode == 143, first.stderr
    assert (folder / "requeued").read_text() == f"requeue {environment['SLURM_JOB_ID']}\n"
    assert json.loads((newest_run(folder) / "status.json").read_text())["state"] == "stopped"
    second = subprocess.run(job, env=environment, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert (folder / "requeued").read_text().count("\n") == 1
    assert newest_run(folder).name == f"slurm-{environment['SLURM_JOB_ID']}"
    assert_same(folder, undisturbed)
