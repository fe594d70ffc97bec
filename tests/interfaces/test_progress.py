"""What each process finds when a run resumes on as many processes or on others."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import OneOf, engine
from importing import imported
from rendering import render

SLOTS = 8


def ranks_of(world: int, rank: int) -> Any:
    """The part of a checkpoint of process `rank`."""
    group = OneOf(world, rank)
    meter = engine("log.meter").Meter(group, skips=False)
    return engine("run.progress").RankStates(group, meter)


def saved(world: int) -> dict[str, Any]:
    """By `world` processes."""
    random = engine("run.progress").random_state()
    ranks = []
    for number in range(world):
        meter = {"values": {"loss": [[float(number), 1.0]]}, "norms": [1.0]}
        ranks.append({"random": random, "meter": meter})
    return {"ranks": ranks}


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_carried_states_find_their_lanes(before, world):
    """A lane's state is its number."""
    project = render(extras=["lanes"])
    carried = []
    for lanes in torch.arange(SLOTS).chunk(before):
        carried.append({"layers": [(lanes.clone(), lanes[:, None] * 10)]})
    for rank, lanes in enumerate(torch.arange(SLOTS).chunk(world)):
        hook = imported(project, "hooks.lanes").Hook()
        recurrent = engine("run.recurrent", extras=["lanes"]).RecurrentState(stride=1)
        hook.before_first_batch(
            SimpleNamespace(
                project=SimpleNamespace(
                    model=SimpleNamespace(recurrent=recurrent), device=torch.device("cpu")
                ),
                loader=SimpleNamespace(order=SimpleNamespace(rank=rank, batch_size=SLOTS // world)),
            )
        )
        hook.load_state_dict({"ranks": carried})
        ((first, second),) = recurrent.state_dict()["layers"]
        assert first.tolist() == lanes.tolist()
        assert second.tolist() == (lanes[:, None] * 10).tolist()


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("world", [1, 2])
def test_metrics_that_were_not_read_yet_are_in_the_next_record_once(before, world):
    kept = []
    for rank in range(world):
        ranks = ranks_of(world, rank)
        ranks.load_state_dict(saved(before))
        state = ranks.meter.state_dict()
        kept += state["values"].get("loss", [])
        assert state["norms"] in ([1.0], [])
    assert kept == [[float(number), 1.0] for number in range(before)]
