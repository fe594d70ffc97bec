"""What each process finds when a run resumes on as many processes or on others."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import OneOf, engine

SLOTS = 8


def ranks_of(world: int, rank: int, batch: int, kind: str = "lanes") -> Any:
    """The part of a checkpoint of process `rank`, with a batch of `batch` samples."""
    module = engine("run.progress")
    by_width = kind in ("lanes", "bucket")
    sizes = {"rank": rank, "batch_size": batch, "batch_size_all_ranks": batch * world}
    order = SimpleNamespace(kind=kind, by_width=by_width, **sizes)
    recurrent = engine("run.recurrent", extras=["lanes"]).RecurrentState(stride=1)
    progress = module.Progress(step=6)
    group = OneOf(world, rank)
    meter = engine("log.meter").Meter(group, skips=False)
    return module.RankStates(group, progress, meter, recurrent, order, steps_per_epoch=9)


def saved(world: int) -> dict[str, Any]:
    """By `world` processes; a lane's state is its number."""
    random = engine("run.progress").random_state()
    lanes = torch.arange(SLOTS).chunk(world)
    carries = [{"layers": [(lane.clone(), lane[:, None] * 10)]} for lane in lanes]
    ranks = []
    for number, carry in enumerate(carries):
        meter = {"values": {"loss": [[float(number), 1.0]]}, "norms": [1.0]}
        ranks.append({"random": random, "meter": meter, "carry": carry})
    return {"ranks": ranks, "batch_size_all_ranks": SLOTS}


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_carried_states_find_their_lanes(before, world):
    for rank, lanes in enumerate(torch.arange(SLOTS).chunk(world)):
        ranks = ranks_of(world, rank, SLOTS // world)
        ranks.load_state_dict(saved(before))
        ((first, second),) = ranks.recurrent.state_dict()["layers"]
        assert first.tolist() == lanes.tolist()
        assert second.tolist() == (lanes[:, None] * 10).tolist()


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("world", [1, 2])
def test_metrics_that_were_not_read_yet_are_in_the_next_record_once(before, world):
    kept = []
    for rank in range(world):
        ranks = ranks_of(world, rank, SLOTS // world)
        ranks.load_state_dict(saved(before))
        state = ranks.meter.state_dict()
        kept += state["values"].get("loss", [])
        assert state["norms"] in ([1.0], [])
    assert kept == [[float(number), 1.0] for number in range(before)]


@pytest.mark.parametrize("kind", ["lanes", "bucket"])
def test_orders_that_depend_on_the_width_keep_it_inside_an_epoch(kind):
    ranks = ranks_of(2, 1, 2, kind)
    with pytest.raises(engine("errors").UserError, match=rf"order {kind}, .* 8 samples"):
        ranks.load_state_dict(saved(2))
    ranks.progress.step = 18
    ranks.load_state_dict(saved(2))
