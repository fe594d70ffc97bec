"""The extra ema: averages, resumed bit for bit, measured next to the weights, taken by the
commands."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from ranks import run_ranks
from rendering import REPOSITORY, render
from running import (
    check_run,
    documented,
    evaluation_of,
    last_state,
    losses,
    newest_run,
    one_error,
    rows,
    run,
    weights,
)
from safetensors.torch import load_file
from test_tier_b import TINY
from variants import choices

EMA = {"extras": ["ema", "export"]}
WORDS = (
    *("--data.batch_size", "128", "--model.width", "16", "--schedule.warmup_steps", "2"),
    *("--data.fraction", "0.1", "--training.epochs", "3", "--monitor.every_steps", "1"),
)
AVERAGED = ("--ema.decay", "0.8", "--ema.start_step", "4", "--ema.every_steps", "2")
every_framework = pytest.mark.parametrize("framework", choices("framework"))


def averaged(folder: Path) -> list[tuple[float, ...]]:
    return [
        (row["step"], row["loss"], row["loss_averaged"]) for row in rows(folder) if "split" in row
    ]


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """The averages in the last checkpoint."""
    return last_state(folder)["hooks"]["ema"]["averages"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    check_run(render(workload="tabular", **EMA), "train", *WORDS, *AVERAGED, cwd=folder)
    return folder


@pytest.fixture
def place(whole, tmp_path):
    (tmp_path / "data").symlink_to(whole / "data")
    return tmp_path


@pytest.mark.parametrize(
    ("decay", "start", "every"), [(0.9, 0, 1), (0.5, 3, 1), (0.95, 4, 3), (0.0, 0, 1)]
)
def test_averages_are_those_by_hand(decay, start, every):
    torch.manual_seed(0)
    hook = imported(render(**EMA), "hooks.ema").Hook()
    model = torch.nn.Linear(3, 2).double()
    ema = SimpleNamespace(decay=decay, start_step=start, every_steps=every)
    project = SimpleNamespace(model=model, settings=SimpleNamespace(ema=ema))
    run = SimpleNamespace(project=project, step=0)
    hook.start(run)
    wanted = model.weight.detach().clone()
    updates = 0
    for step in range(1, 30):
        run.step = step
        torch.nn.init.normal_(model.weight)
        hook.after_step(run)
        if step % every == 0:
            updates += step > start
            keep = min(decay, 1 - 9 / (10 + updates)) if step > start else 0.0
            wanted = keep * wanted + (1 - keep) * model.weight.detach()
        torch.testing.assert_close(hook.averages["weight"], wanted)


@every_framework
@pytest.mark.first(1)
def test_it_changes_no_step_and_resumes_bit_for_bit(framework, place, whole):
    project = render(workload="tabular", framework=framework, **EMA)
    check_run(render(workload="tabular"), "train", *WORDS, cwd=place)
    assert (losses(place), weights(place)) == (losses(whole), weights(whole)), "as without it"
    for words in (
        (*WORDS, *AVERAGED, "--max-steps", "7"),
        ("--resume", "--max-steps", "14"),
        ("--resume",),
    ):
        check_run(project, "train", *words, cwd=place)
    assert (losses(place), weights(place)) == (losses(whole), weights(whole))
    assert averaged(place) == averaged(whole)
    assert len(averaged(whole)) == 3
    wanted = saved(whole)
    assert all(torch.equal(average, wanted[name]) for name, average in saved(place).items())


def test_commands_use_the_averages(place, whole):
    project = render(workload="tabular", **EMA)
    last = ("--checkpoint", "last")
    measured = {}
    for kind in ("trained", "averaged"):
        run_name = ("--run", str(newest_run(whole)), *last, "--weights", kind)
        check_run(project, "evaluate", *run_name, "--split", "validation", cwd=place)
        measured[kind] = evaluation_of(whole)["metrics"]["loss"]
        output = ("--output", str(place / f"{kind}.csv"))
        check_run(project, "predict", *run_name, *output, cwd=place)
        check_run(project, "export", *run_name, "--output", str(place / kind), cwd=place)
    row = [row for row in rows(whole) if "split" in row][-1]
    assert measured == {"trained": row["loss"], "averaged": row["loss_averaged"]}
    assert measured["trained"] != measured["averaged"]
    assert (place / "trained.csv").read_text() != (place / "averaged.csv").read_text()
    exported = load_file(place / "averaged/model.safetensors")
    assert all(torch.equal(exported[name], average) for name, average in saved(whole).items())


def test_a_checkpoint_without_averages_is_refused_and_can_be_resumed(place):
    project = render(workload="tabular", **EMA)
    check_run(render(workload="tabular"), "train", *WORDS, "--max-steps", "12", cwd=place)
    refused = run(project, "evaluate", "--weights", "averaged", cwd=place)
    one_error(refused, "no averaged weights", "--weights averaged", "continue training")
    check_run(project, "train", "--resume", cwd=place)
    check_run(project, "evaluate", "--weights", "averaged", "--checkpoint", "last", cwd=place)
    refused = run(render(workload="tabular"), "evaluate", "--weights", "averaged", cwd=place)
    one_error(refused, "unknown option '--weights'")


@pytest.mark.parametrize("distributed", ["fsdp", "ddp"])
@pytest.mark.first(1)
def test_two_ranks_average_as_one(distributed, tmp_path):
    """Under fsdp each has its shard. One process begins and ends the run, and evaluates it."""
    project = render(workload="llm", distributed=distributed, **EMA)
    words = (*TINY["llm"], "--training.precision", "fp32", "--model.dropout", "0", *AVERAGED)
    words += ("--training.max_steps", "14", "--evaluation.every_steps", "7")
    words += ("--monitor.every_steps", "1", "--data.batch_size", "8")
    check_run(project, "train", *words, cwd=tmp_path)
    alone = [pytest.approx(row, rel=1e-4) for row in averaged(tmp_path)]
    check_run(project, "train", *words, "--max-steps", "3", cwd=tmp_path)
    for steps in ("9", "12"):
        more = ("--resume", "--data.batch_size", "4", "--max-steps", steps)
        results = run_ranks(project, "train", *more, cwd=tmp_path)
        assert all(result.code == 0 for result in results), results[0].err[-2000:]
    averages = last_state(tmp_path)["hooks"]["ema"]["averages"].values()
    assert all(isinstance(value, torch.Tensor) for value in averages) == (distributed == "ddp")
    check_run(project, "train", "--resume", "--data.batch_size", "8", cwd=tmp_path)
    assert averaged(tmp_path) == alone
    check_run(project, "evaluate", "--weights", "averaged", "--checkpoint", "last", cwd=tmp_path)


def test_the_pages_commands_work(tmp_path):
    for words in documented(REPOSITORY / "docs/ema.md"):
        fewer = ("--max-steps", "100") if words[0] == "train" else ()
        check_run(render(workload="tabular", **EMA), *words, *fewer, cwd=tmp_path)
