"""What only a whole run shows: the dry run leaves no trace.

A fault replaces `forward` of whatever the workload's `build_model` returns, in the forked child.
"""

# ruff: noqa: F811 - the fixture `place` is imported

import functools
import random

import numpy as np
import pytest
import torch
from rendering import render
from running import check_run, evaluations, losses, weights
from sizes import TINY
from synthetic import SHORT, place  # noqa: F401
from variants import choices


def change_model(change):
    """Calls `change` on every model that the project builds."""
    from my_training import model as module  # type: ignore[import-not-results]

    real = module.build_model

    def build(*arguments):
        model = real(*arguments)
        change(model)
        return model

    module.build_model = build


def replace_forward(change):
    """Puts change(model, real forward, batch) in the place of every model's forward."""

    def replace(model):
        model.forward = functools.partial(change, model, model.forward)

    change_model(replace)


def restless():
    """A model that draws from every generator and keeps running statistics, as dropout and
    BatchNorm do."""

    def forward(model, real, batch):
        output = real(batch)
        if not model.training:
            return output._replace(loss=output.loss + 0.1 * model.statistic)
        model.statistic.lerp_(output.loss.detach(), 0.1)
        noise = torch.rand(()) + random.random() + np.random.rand()
        return output._replace(loss=output.loss * (1 + 0.1 * noise) + 0.1 * model.statistic)

    replace_forward(forward)
    change_model(lambda model: model.register_buffer("statistic", torch.zeros(())))


def restless_and_tried_thrice():
    restless()
    from my_training.engine.training import run as module  # type: ignore[import-not-results]

    once = module.dry_run

    def thrice(*arguments):
        for _ in range(2):
            once(*arguments)
        return once(*arguments)

    module.dry_run = thrice


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(2)
def test_the_dry_run_leaves_no_trace(workload, place):
    """Random numbers, buffers, gradients, optimizer: however often it is done, the run is the
    same."""
    words = ("train", *TINY[workload], *SHORT)
    results = []
    for before in (restless, restless_and_tried_thrice):
        cwd = place(workload)
        check_run(render(workload=workload), *words, cwd=cwd, before=before)
        results.append((losses(cwd), evaluations(cwd), weights(cwd)))
    assert results[0] == results[1]
