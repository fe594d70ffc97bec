"""What each process finds of carried states when a run resumes on as many processes or on others;
which evaluation is the best."""

from types import SimpleNamespace

import pytest
import torch
from fakes import engine
from importing import imported
from rendering import render

SLOTS = 8


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
        recurrent = engine("training.recurrent", extras=["lanes"]).RecurrentState(stride=1)
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


def test_a_metric_that_is_not_finite_is_never_the_best():
    progress = engine("training.progress").Progress()
    costs = (float("-inf"), float("nan"), float("inf"), 2.0, float("-inf"), float("nan"), 1.0)
    judged = []
    for progress.step, cost in enumerate(costs):
        expected = progress.is_better(cost)
        judged.append(progress.judge(5.0 - progress.step, cost))
        assert judged[-1] == expected
    assert judged == [cost in (2.0, 1.0) for cost in costs]
    assert (progress.best_cost, progress.best_loss, progress.best_step) == (1.0, -1.0, 6)


def test_a_resumed_run_knows_what_decided():
    progress = engine("training.progress").Progress(metric="r2", best_cost=-0.5, step=9)
    again = engine("training.progress").Progress()
    again.load_state_dict(progress.state_dict())
    assert again == progress
