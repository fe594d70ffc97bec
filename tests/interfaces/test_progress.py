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


def test_a_loss_that_is_not_finite_is_never_the_best():
    progress = engine("training.progress").Progress()
    losses = (float("-inf"), float("nan"), float("inf"), 2.0, float("-inf"), float("nan"), 1.0)
    judged = []
    for progress.step, loss in enumerate(losses):
        judged.append(progress.judge(loss))
    assert judged == [loss in (2.0, 1.0) for loss in losses]
    assert (progress.best_loss, progress.best_step) == (1.0, 6)
