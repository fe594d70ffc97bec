"""Every choice of `distributed` against its interface: alone, and as one of two processes."""

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import Loop, Ragged, cut, engine, ragged_batch
from ranks import PATIENCE, free_port
from running import until
from variants import choices

SEVERAL = [choice for choice in choices("distributed") if choice != "none"]


def on_two_ranks(work):
    """What `work(rank)` gives in each of two processes that find each other; it may be an
    exception."""
    port = free_port()
    folder = Path(tempfile.mkdtemp())
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            try:
                result = work(rank)
            except Exception as error:
                traceback.print_exc()
                result = error
            (folder / f"{rank}").write_bytes(pickle.dumps(result))
            os._exit(0)
        children.append(child)

    def all_ended():
        children[:] = [child for child in children if not os.waitpid(child, os.WNOHANG)[0]]
        return not children

    try:
        until(all_ended, "end of both ranks", PATIENCE)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    return [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(2)]


def part(choice):
    workload = "llm" if choice == "fsdp" else "tabular"
    return engine("compute.distributed", distributed=choice, workload=workload)


class Blocks(Ragged):
    """Ragged as a model with a block, in float32."""

    def __init__(self):
        super().__init__(torch.float32)

    def blocks(self):
        return [self.layer]


def steps(choice, rank, world, clip, framework):
    """Weights and losses after three groups of ragged micro-batches, of which a rank has its
    rows."""
    rows = slice(rank * 8 // world, (rank + 1) * 8 // world)
    groups = []
    for seed in range(3):
        micro_batches = cut(ragged_batch(24, torch.float32, seed), [8, 16])
        groups.append([{name: x[rows] for name, x in batch.items()} for batch in micro_batches])
    distributed = part(choice).Distributed()
    model = Blocks()
    wrapped = distributed.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    answers = {"workload": "llm", "distributed": choice, "framework": framework}
    loop = Loop(wrapped, answers, clip=clip, distributed=distributed, optimizer=optimizer)(*groups)
    weights = {}
    for name, value in model.named_parameters():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        weights[name] = whole.detach().clone()
    return weights, loop.means


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("choice", SEVERAL)
def test_two_ranks_take_the_steps_of_one(choice, clip, framework):
    """Ranks have unequally many targets."""
    expected_weights, expected_losses = steps("none", 0, 1, clip, framework)

    def work(rank):
        return steps(choice, rank, 2, clip, framework)

    for weights, losses in on_two_ranks(work):
        assert losses == pytest.approx(expected_losses, rel=1e-6)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-6)


class Grouped(Blocks):
    """Adds up the errors of sequences by their number modulo 3, which ranks share unequally."""

    sums = None

    def forward(self, batch):
        output = super().forward(batch)
        numbers = torch.stack([batch["y"].sum(1), batch["lengths"].float()], 1)
        groups = engine("interfaces").Groups(4, batch["index"] % 3, numbers)
        return output._replace(by_group={"lengths": groups})

    def calibrate(self, sums):
        self.sums = sums


class Batches(list):
    """A loader of these batches."""

    def epoch(self, number):
        return iter(self)


def evaluated(choice, rank, world):
    """What `finish` and `calibrate` get of an evaluation, of which a rank has its rows."""
    rows = slice(rank * 24 // world, (rank + 1) * 24 // world)
    batches = []
    for seed in range(3):
        batch = ragged_batch(24, torch.float32, seed)
        batches.append({name: x[rows] for name, x in batch.items()})
    distributed = part(choice).Distributed()
    model = Grouped()
    project = SimpleNamespace(
        model=model,
        wrapped=distributed.wrap(model),
        device=torch.device("cpu"),
        precision=engine("compute.precision").Precision("fp32", torch.device("cpu")),
        store=None,
        distributed=distributed,
        ask_dataset=lambda name, default, metrics, store, split, sums: {**metrics, "sums": sums},
    )
    evaluate = engine("training.evaluation").evaluate
    metrics = evaluate(project, Batches(batches), "validation", calibrate=True)
    assert model.sums is metrics["sums"]
    return metrics["loss"], metrics["sums"]["lengths"]


@pytest.mark.parametrize("choice", SEVERAL)
def test_two_ranks_measure_as_one(choice):
    expected_loss, expected = evaluated("none", 0, 1)
    for loss, sums in on_two_ranks(lambda rank: evaluated(choice, rank, 2)):
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-9)
    assert expected[3].tolist() == [0, 0], "a group without members"


def agreements(choice, rank):
    """What two ranks that differ make of it."""
    distributed = part(choice).Distributed()
    error = sys.modules[type(distributed).__mro__[1].__module__].UserError
    number = torch.tensor([1.0, 10.0]) * (rank + 1)
    # Rank 1 is told to stop at the second step, rank 0 at the third.
    votes = [[0, 0, 2, 0, 0], [0, 15, 0, 0, 0]][rank]
    result: dict[str, Any] = {
        "sum": distributed.sum_over_ranks(number).tolist(),
        "own": number.tolist(),
        "gather": distributed.gather_objects(f"rank {rank}"),
        "agree": [distributed.agree(vote) for vote in votes],
        "begin": str(distributed.begin(lambda: Path(f"of {rank}"))),
    }

    def wait():
        time.sleep(0.1 * (rank == 0))
        result["time"] = time.monotonic()

    def fail():
        if rank == 1:
            raise error("a disk is full", "host b", "make room")

    distributed.on_all_ranks(wait, main_first=True)
    try:
        distributed.on_all_ranks(fail)
    except Exception as caught:
        result["error"] = (str(caught), caught.reported)
    distributed.close()
    return result


@pytest.mark.parametrize("choice", SEVERAL)
def test_ranks_come_to_agree(choice):
    first, second = on_two_ranks(lambda rank: agreements(choice, rank))
    assert first.pop("time") < second.pop("time")
    assert first.pop("own") == [1.0, 10.0], "a sum leaves its input alone"
    assert second.pop("own") == [2.0, 20.0]
    assert first.pop("error") == ("a disk is full: host b: make room", False)
    assert second.pop("error") == ("a disk is full: host b: make room", True)
    assert first == second
    assert first == {
        "sum": [3.0, 30.0],
        "gather": ["rank 0", "rank 1"],
        "agree": [0, 0, 15, 2, 0],  # one step later
        "begin": "of 0",
    }


def test_restarted_processes_do_not_meet_the_dead_ones():
    """torchrun keeps its store, with the words of processes that it has killed."""
    group = engine("compute.group", distributed="ddp", workload="tabular")
    port = free_port()
    server = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    server.set("ask/1", "dead")
    server.set("answer/dead", "old name")
    server.set("heard/old name/1", "")

    def meet(rank):
        return group.meet(torch.distributed.TCPStore("127.0.0.1", port, is_master=False), rank, 2)

    first, second = on_two_ranks(meet)
    assert first == second != "old name"


def test_a_batch_reaches_a_sharded_model_as_it_is():
    """Blocks compute in bf16. Targets, and values before they are scaled, keep their digits."""

    class Seeing(Blocks):
        def forward(self, batch):
            self.seen = batch["y"]
            return super().forward(batch)

    def work(rank):
        model = part("fsdp").Distributed().wrap(Seeing(), torch.bfloat16)
        batch = ragged_batch(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            model(batch)
        return model.seen, batch["y"]

    for seen, given in on_two_ranks(work):
        assert seen.equal(given)
