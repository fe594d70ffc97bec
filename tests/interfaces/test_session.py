"""What only a whole run shows, under each framework: the dry run, an overflow.

A fault replaces `forward` of whatever the workload's `build_model` returns, in the forked child.
"""

import functools
import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from fakes import engine
from rendering import questions, render
from running import check_run, evaluations, losses, newest_run, rows, weights
from test_tier_b import TINY
from torch import Tensor
from variants import choices

BATCHES = 6  # of an epoch, about
EPOCHS = 3
RUN = (
    *("--monitor.every_steps", "1", "--training.epochs", str(EPOCHS)),
    *("--compile.enabled", "false", "--training.precision", "fp32"),
)
every_framework = pytest.mark.parametrize("framework", choices("framework"))
WORKLOAD = questions()["workload"]["default"]


@functools.cache
def data(workload: str, base: Path) -> tuple[Path, tuple[str, ...]]:
    """Synthetic data of a workload, and flags for the share of it that makes `BATCHES` batches."""
    folder = base / workload
    words = ("train", "--max-steps", "1", *TINY[workload], *RUN)
    check_run(render(workload=workload), *words, cwd=folder)
    share = min((BATCHES - 0.5) * EPOCHS / steps(folder), 1.0)
    return folder / "data", ("--data.fraction", f"{share:.6f}")


def steps(folder: Path) -> int:
    """How many steps the run that went last in `folder` has, as it said at its start."""
    return int(re.search(r"([\d,]+) steps of", (folder / ".out").read_text())[1].replace(",", ""))


@pytest.fixture
def train(tmp_path_factory):
    """train(*words, before=…, resume=folder, framework=…) → the folder in which it ran."""
    base = tmp_path_factory.getbasetemp() / "session-data"

    def call(
        *words,
        before=None,
        resume=None,
        workload=WORKLOAD,
        framework="pytorch",
    ):
        folder = resume or tmp_path_factory.mktemp("run")
        options = ["--resume"]
        if resume is None:
            source, share = data(workload, base)
            (folder / "data").symlink_to(source)
            options = [*TINY[workload], *RUN, *share]
        project = render(workload=workload, framework=framework)

        check_run(project, "train", *options, *words, cwd=folder, before=before)
        return folder

    return call


def change_model(change: Callable[[Any], None]) -> None:
    """Calls `change` on every model that the project builds."""
    from my_training import model as module  # type: ignore[import-not-found]

    real = module.build_model

    def build(*arguments: Any) -> Any:
        model = real(*arguments)
        change(model)
        return model

    module.build_model = build


def replace_forward(change: Callable[[Any, Callable[..., Any], dict[str, Tensor]], Any]) -> None:
    """Puts change(model, real forward, batch) in the place of every model's forward."""

    def replace(model: Any) -> None:
        model.forward = functools.partial(change, model, model.forward)

    change_model(replace)


def note(file: str, **values: Any) -> None:
    """Appends to a file of the run's working folder."""
    with open(file, "a") as out:
        out.write(json.dumps(values) + "\n")


def noted(folder: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / file).read_text().splitlines()]


def restless() -> None:
    """A model that draws from every generator and keeps running statistics, as dropout and
    BatchNorm do."""

    def forward(model: Any, real: Any, batch: dict[str, Tensor]) -> Any:
        output = real(batch)
        if not model.training:
            return output._replace(loss=output.loss + 0.1 * model.statistic)
        model.seen += 1
        model.statistic.lerp_(output.loss.detach(), 0.1)
        noise = torch.rand(()) + random.random() + np.random.rand()
        return output._replace(loss=output.loss * (1 + 0.1 * noise) + 0.1 * model.statistic)

    replace_forward(forward)
    change_model(lambda model: model.register_buffer("statistic", torch.zeros(())))
    change_model(lambda model: model.register_buffer("seen", torch.zeros((), dtype=torch.int64)))


def restless_and_tried_thrice() -> None:
    restless()
    from my_training.engine.run import run as module  # type: ignore[import-not-found]

    once = module.dry_run

    def thrice(*arguments: Any) -> Any:
        for _ in range(2):
            once(*arguments)
        return once(*arguments)

    module.dry_run = thrice


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(2)
def test_the_dry_run_leaves_no_trace(workload, train):
    """Random numbers, buffers, gradients, optimizer: however often it is done, the run is the
    same."""
    once = train(before=restless, workload=workload)
    thrice = train(before=restless_and_tried_thrice, workload=workload)
    assert losses(once) == losses(thrice)
    assert len(losses(once)) == steps(once)
    assert evaluations(once) == evaluations(thrice)
    assert weights(once) == weights(thrice)


OVERFLOW = 8  # the step, from 1, whose gradient becomes infinite


def overflowing() -> None:
    """One infinite gradient, and a note of each optimizer step's effect."""
    scaler = torch.amp.GradScaler
    unscale = scaler.unscale_
    update = scaler.update
    backwards = itertools.count()  # 0 is the dry run's
    step: dict[str, Any] = {}

    def spoil(gradient: Tensor) -> Tensor:
        return gradient * float("inf") if next(backwards) == OVERFLOW else gradient

    def before(self: Any, optimizer: Any) -> None:
        step["optimizer"] = optimizer
        step["scale"] = self.get_scale()
        step["weights"] = [weight.detach().clone() for weight in weights_of(optimizer)]
        unscale(self, optimizer)

    def after(self: Any) -> None:
        update(self)
        optimizer = step["optimizer"]
        pairs = zip(step["weights"], weights_of(optimizer), strict=True)
        same = all(torch.equal(old, new) for old, new in pairs)
        finite = all(bool(weight.isfinite().all()) for weight in weights_of(optimizer))
        counts = {int(state["step"]) for state in optimizer.state.values()}
        halved = self.get_scale() < step["scale"]
        note("steps", same=same, finite=finite, halved=halved, counts=sorted(counts))

    scaler.unscale_ = before  # type: ignore[method-assign]
    scaler.update = after  # type: ignore[assignment,method-assign]
    change_model(lambda model: list(model.parameters())[-1].register_hook(spoil))


def weights_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


@every_framework
@pytest.mark.parametrize("fused", ["true", "false"])
@pytest.mark.cover(1)
def test_an_overflow_under_fp16_skips_one_update_and_no_step(framework, fused, train):
    words = ("--training.precision", "fp16", "--optimizer.fused", fused)
    folder = train(*words, before=overflowing, framework=framework)
    done = noted(folder, "steps")
    total = steps(folder)
    assert len(done) == total > OVERFLOW
    assert all(step["finite"] for step in done)
    for sign in ("same", "halved"):
        assert [number for number, step in enumerate(done, start=1) if step[sign]] == [OVERFLOW]
    updates = [number - (number >= OVERFLOW) for number in range(1, total + 1)]
    assert [step["counts"] for step in done] == [[update] for update in updates], "Adam's own count"

    logged = [row for row in rows(folder) if "split" not in row]
    assert [row["step"] for row in logged] == list(range(1, total + 1))
    assert json.loads((newest_run(folder) / "status.json").read_text())["step"] == total
    calm = train(*words)
    assert losses(folder)[:OVERFLOW] == losses(calm)[:OVERFLOW]


def test_peak_memory_is_that_of_the_epoch(monkeypatch):
    """It is reset at the first batch of each epoch, after the loader has read the peak."""
    seen: list[str] = []

    def batches():
        while True:
            seen.append("loader")
            yield from "abc"

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: seen.append("reset"))
    run = MagicMock(batches=batches())
    run.meter.next_batch = next
    run.project.device = SimpleNamespace(type="cuda")
    for run.batches_of.return_value in [(0, 0, 2), (0, 2, 3), (1, 0, 2), (1, 2, 3)]:
        seen += engine("run.run").Run.next_batches(run)
    assert "".join(word[0] for word in seen) == "lrabclrabc"
