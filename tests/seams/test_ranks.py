"""Every choice of `distributed` against its seam: alone, and as one of two processes."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Loop, Ragged, cut, engine, ragged_batch
from ranks import PATIENCE, free_port
from running import until
from torch import Tensor, nn
from variants import choices

SEVERAL = [choice for choice in choices("distributed") if choice != "none"]


def on_two_ranks(work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` gives in each of two processes that find each other; it may be an exception."""
    port, folder = free_port(), Path(tempfile.mkdtemp())
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
            os.environ.update(
                {name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1"
            )
            try:
                found = work(rank)
            except Exception as error:
                traceback.print_exc()
                found = error
            (folder / f"{rank}").write_bytes(pickle.dumps(found))
            os._exit(0)
        children.append(child)
    try:
        for rank, child in enumerate(children):
            until(
                lambda child=child: os.waitpid(child, os.WNOHANG)[0],
                f"end of rank {rank}",
                PATIENCE,
            )
    except TimeoutError:
        for child in children:
            os.kill(child, signal.SIGKILL)
        raise
    return [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(2)]


def part(choice: str) -> Any:
    workload = "llm" if choice == "fsdp" else "tabular"
    return engine("distributed", distributed=choice, workload=workload)


class Blocks(Ragged):
    """Ragged as a model with a block, in float32."""

    def __init__(self) -> None:
        super().__init__(features=3, dtype=torch.float32)

    def blocks(self) -> list[nn.Module]:
        return [self.layer]


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def steps(
    distributed: Any, groups: list[list[dict[str, Tensor]]], clip: float
) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and losses after a step for each group of micro-batches."""
    model = Blocks()
    wrapped = distributed.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop = Loop(wrapped, clip=clip, distributed=distributed, optimizer=optimizer)(*groups)
    return {name: whole(value) for name, value in model.named_parameters()}, loop.means


def batches(rank: int, world: int) -> list[list[dict[str, Tensor]]]:
    """Three groups; a rank has its slots of each micro-batch, with another number of targets."""
    found = []
    for seed in range(3):
        parts = cut(ragged_batch(24, torch.float32, seed), [8, 16])
        share = 8 // world
        mine = slice(rank * share, (rank + 1) * share)
        found.append([{name: value[mine] for name, value in batch.items()} for batch in parts])
    return found


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("choice", SEVERAL)
def test_two_ranks_take_the_steps_of_one(choice: str, clip: float) -> None:
    """Ragged targets, groups of three micro-batches, with clipping and without."""
    wanted, losses = steps(part("none").Distributed(), batches(0, 1), clip)
    for weights, found in on_two_ranks(
        lambda rank: steps(part(choice).Distributed(), batches(rank, 2), clip)
    ):
        assert found == pytest.approx(losses, rel=1e-6)
        for name, value in wanted.items():
            assert torch.allclose(weights[name], value, rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("choice", choices("distributed"))
def test_one_process_is_one_process(choice: str) -> None:
    distributed, model = part(choice).Distributed(), Blocks()
    assert (distributed.rank, distributed.world, distributed.is_main) == (0, 1, True)
    assert distributed.wrap(model) is model
    assert distributed.sum(torch.tensor(3.0)) == 3
    assert distributed.gather("x") == ["x"]
    assert distributed.together(lambda: 5) == 5
    assert [distributed.agree(number) for number in (0, 15, 0)] == [0, 15, 0]
    assert distributed.take_shards({"a": {"b": 1}}) == ({"a": {"b": 1}}, {})
    assert distributed.restarted() is None
    assert distributed.begin(lambda: Path("new")) == Path("new")
    with distributed.no_sync():
        pass
    distributed.close()
    assert set(part(choice).LIGHTNING) == {"devices"}
    assert isinstance(part(choice).ACCELERATE, dict)


def agreements(choice: str, rank: int) -> dict[str, Any]:
    """What two ranks that differ make of it."""
    distributed = part(choice).Distributed()
    error = sys.modules[type(distributed).__mro__[1].__module__].UserError
    number = torch.tensor([1.0, 10.0]) * (rank + 1)
    found: dict[str, Any] = {"sum": distributed.sum(number).tolist(), "own": number.tolist()}
    found["gather"] = distributed.gather(f"rank {rank}")
    found["agree"] = [distributed.agree(vote) for vote in votes(rank)]
    found["begin"] = str(distributed.begin(lambda: Path(f"of {rank}")))
    order: list[float] = []
    distributed.together(
        lambda: (time.sleep(0.1 * (rank == 0)), order.append(time.monotonic())), main_first=True
    )
    found["time"] = order[0]

    def fail() -> None:
        if rank == 1:
            raise error("a disk is full", "host b", "make room")

    try:
        distributed.together(fail)
    except Exception as caught:
        found["error"] = (str(caught), caught.reported)
    distributed.close()
    return found


def votes(rank: int) -> list[int]:
    """Rank 1 is told to stop at the second step, rank 0 at the third."""
    return [[0, 0, 2, 0, 0], [0, 15, 0, 0, 0]][rank]


@pytest.mark.parametrize("choice", SEVERAL)
def test_ranks_come_to_agree(choice: str) -> None:
    first, second = on_two_ranks(lambda rank: agreements(choice, rank))
    assert first["sum"] == second["sum"] == [3.0, 30.0]
    assert second["own"] == [2.0, 20.0], "a sum leaves its input alone"
    assert first["gather"] == second["gather"] == ["rank 0", "rank 1"]
    assert first["agree"] == second["agree"] == [0, 0, 15, 2, 0], (
        "one step later, on all ranks the same"
    )
    assert first["begin"] == second["begin"] == "of 0"
    assert first["time"] < second["time"]
    assert first["error"] == ("a disk is full: host b: make room", False)
    assert second["error"] == ("a disk is full: host b: make room", True)


def test_processes_started_anew_do_not_meet_the_dead_ones() -> None:
    """torchrun keeps its store, with the words of processes that it has killed."""
    group = engine("group", distributed="ddp", workload="tabular")
    port = free_port()
    server = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for name, value in (("ask/1", "dead"), ("answer/dead", "old name"), ("heard/old name/1", "")):
        server.set(name, value)

    def meet(rank: int) -> str:
        return group.meet(torch.distributed.TCPStore("127.0.0.1", port, is_master=False), rank, 2)

    first, second = on_two_ranks(meet)
    assert first == second != "old name"


@pytest.mark.parametrize(("count", "world"), [(8, 2), (7, 2), (5, 4), (2, 4), (1, 3)])
def test_rows_are_cut_as_fully_shard_cuts_them(count: int, world: int) -> None:
    """Every row once, in order; the last ranks may have none."""
    rows = part("fsdp").rows
    cuts = [rows(count, rank, world) for rank in range(world)]
    chunks = torch.arange(count).chunk(world)
    expected = [(int(chunk[0]), int(chunk[-1]) + 1) for chunk in chunks]
    assert cuts == expected + [(count, count)] * (world - len(chunks))


def test_a_batch_reaches_a_sharded_model_as_it_is() -> None:
    """Blocks compute in bf16. Targets, and values before they are scaled, keep their digits."""

    class Seeing(Blocks):
        def forward(self, batch: dict[str, Tensor]) -> Any:
            self.seen = batch["y"]
            return super().forward(batch)

    def work(rank: int) -> tuple[Tensor, Tensor]:
        model = part("fsdp").Distributed().wrap(Seeing(), torch.bfloat16)
        batch = ragged_batch(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            model(batch)
        return model.seen, batch["y"]

    for seen, given in on_two_ranks(work):
        assert seen.equal(given)
