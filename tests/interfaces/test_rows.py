"""What a row of training says: means over the steps since the row before, and each group's own
rate."""

from shlex import split

import pytest
import torch
from ranks import run_ranks
from rendering import render
from running import check_run, losses, rows
from test_session import replace_forward
from variants import choices

WORDS = split(
    "--data.batch_size 64 --model.width 16 --model.dropout 0 --schedule.warmup_steps 2"
    " --data.fraction 0.1 --training.max_steps 23 --training.gradient_accumulation_steps 2"
)


def measuring():
    """A model that measures half of its loss while it trains, with a graph behind it, and adds up
    targets."""

    def forward(model, real, batch):
        output = real(batch)
        half = output.loss * output.total_weight / 2
        seen = output.total_weight.long()
        return output._replace(
            metrics={"half": (half, output.total_weight), "targets": (seen, torch.tensor(0))}
        )

    replace_forward(forward)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A row for each step."""
    folder = tmp_path_factory.mktemp("single")
    words = (*WORDS, "--monitor.every_steps", "1")
    check_run(render(workload="tabular"), "train", *words, cwd=folder, before=measuring)
    return folder


@pytest.fixture
def place(single, tmp_path):
    (tmp_path / "data").symlink_to(single / "data")
    return tmp_path


def training(folder):
    return [row for row in rows(folder) if "split" not in row]


def mean(rows, name):
    """Computed here: groups have unequally many targets."""
    return sum(row[name] * row["targets"] for row in rows) / sum(row["targets"] for row in rows)


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_row_is_the_mean_over_its_steps_wherever_a_run_stops(framework, place, single):
    project = render(workload="tabular", framework=framework)
    every = ("--monitor.every_steps", "5")
    check_run(project, "train", *WORDS, *every, cwd=place, before=measuring)
    whole = training(place)
    steps = training(single)
    assert len({row["targets"] for row in steps}) > 1, "an epoch's last group is smaller"
    ends = [1, 2, 5, 10, 15, 20, 23]
    assert [row["step"] for row in whole] == ends
    for row, first, end in zip(whole, [0, *ends], ends, strict=False):
        for name in ("loss", "half"):
            assert row[name] == pytest.approx(mean(steps[first:end], name), rel=1e-6)
        assert row["half"] == pytest.approx(row["loss"] / 2, rel=1e-6)

    begun = (*WORDS, *every, "--max-steps", "7")
    for words in (begun, ("--resume", "--max-steps", "13"), ("--resume",)):
        check_run(project, "train", *words, cwd=place, before=measuring)
    for row, again in zip(whole, training(place), strict=True):
        for name in ("loss", "half", "targets"):
            assert row[name] == again[name]


def test_a_row_of_two_ranks_is_resumed_by_two_and_by_one(place):
    project = render(workload="tabular", distributed="ddp")
    words = (*WORDS, "--data.batch_size", "32", "--monitor.every_steps", "5")
    assert all(result.code == 0 for result in run_ranks(project, "train", *words, cwd=place))
    whole = losses(place)
    for parts in ((*words, "--max-steps", "7"), ("--resume", "--max-steps", "14")):
        results = run_ranks(project, "train", *parts, cwd=place)
        assert all(result.code == 0 for result in results), results[0].err[-2000:]
    batch = ("--data.batch_size", "64")
    check_run(project, "train", "--resume", *batch, cwd=place)
    pairs = list(zip(losses(place), whole, strict=True))
    for mine, wanted in pairs[:4]:
        assert mine == wanted, "rows up to that of 6 to 10, stopped behind 7"
    for (step, mine), (other, wanted) in pairs[4:]:
        assert step == other
        assert float.fromhex(mine) == pytest.approx(float.fromhex(wanted), rel=1e-4)
