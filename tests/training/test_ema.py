"""The extra ema: averages, resumed bit for bit, measured next to the weights, taken by the
commands."""

from shlex import split
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
from sizes import TINY
from variants import choices

EMA = {"extras": ["ema"]}
WORDS = split(
    "--data.batch_size 128 --model.width 16 --schedule.warmup_steps 2"
    " --data.fraction 0.1 --training.epochs 3 --monitor.every_steps 1"
)
AVERAGED = split("--ema.decay 0.8 --ema.start_step 4 --ema.every_steps 2")
every_framework = pytest.mark.parametrize("framework", choices("framework"))


def averaged(folder):
    return [
        (row["step"], row["loss"], row["loss_averaged"]) for row in rows(folder) if "split" in row
    ]


def saved(folder):
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


class Once:
    """A loader of one batch."""

    def __len__(self):
        return 1

    def epoch(self, number):
        return iter([{}])


class Leveled(torch.nn.Linear):
    """Calibrates a buffer to the weight that is evaluated; another one is a running statistic."""

    calibrated = ("level", "quantiles.absent")

    def __init__(self):
        super().__init__(1, 1, bias=False)
        self.register_buffer("level", torch.zeros(()))
        self.register_buffer("statistic", torch.tensor(7))

    def forward(self, batch):
        interfaces = imported(render(**EMA), "engine.interfaces")
        one = torch.ones(())
        levels = {"level": interfaces.Groups(1, torch.tensor([0]), self.weight[0])}
        return interfaces.Output(self.level + one, one, by_group=levels)

    def calibrate(self, sums):
        self.level.copy_(sums["level"][0])


def test_what_is_calibrated_belongs_to_the_weights_that_were_evaluated():
    """Averages have their own value, which is restored, measured and loaded with them."""
    project = render(**EMA)
    ema = imported(project, "hooks.ema")
    evaluate = imported(project, "engine.training.evaluation").evaluate
    model = Leveled()
    cpu = torch.device("cpu")
    precision = imported(project, "engine.compute.precision").Precision("fp32", cpu)
    whole = SimpleNamespace(
        model=model,
        wrapped=model,
        device=cpu,
        precision=precision,
        store=None,
        ask_dataset=lambda name, default, *others: default,
        distributed=SimpleNamespace(sum_over_ranks=lambda tensor: tensor),
        settings=SimpleNamespace(ema=SimpleNamespace(decay=0.5, start_step=0, every_steps=1)),
    )
    run = SimpleNamespace(project=whole, step=1, validation=Once(), agree=lambda: False)
    hook = ema.Hook()
    model.weight.data.fill_(1.0)
    hook.start(run)
    averages = [0.0]
    for level, weight in ((0.0, 3.0), (3.0, 4.0)):  # level: of the weights before
        model.weight.data.fill_(weight)
        hook.after_step(run)
        with hook.evaluating(run):
            assert model.level == level
            evaluate(whole, Once(), "validation", calibrate=True)
        averages.append(hook.averages["weight"].item())
        assert model.level == weight != averages[-1]
        assert hook.averages["level"] == averages[-1]
        assert hook.metrics["loss"] == pytest.approx(averages[-2] + 1), "measured with its own"

    again = ema.Hook()
    again.load_state_dict(hook.state_dict())
    again.start(run)
    assert again.averages["level"] == averages[-1]
    assert again.averages.keys() == {"weight", "level"}


@every_framework
@pytest.mark.first(1)
def test_it_changes_no_step_and_resumes_bit_for_bit(framework, place, whole):
    project = render(workload="tabular", framework=framework, **EMA)
    check_run(render(workload="tabular"), "train", *WORDS, cwd=place)
    assert weights(place) == weights(whole), "as without it"
    check_run(project, "train", *WORDS, *AVERAGED, "--max-steps", "7", cwd=place)
    for words in ("train --resume --max-steps 14", "train --resume"):
        check_run(project, *split(words), cwd=place)
    assert (losses(place), weights(place)) == (losses(whole), weights(whole))
    assert averaged(place) == averaged(whole)
    torch.testing.assert_close(saved(place), saved(whole), rtol=0, atol=0)


def test_commands_use_the_averages(place, whole):
    project = render(workload="tabular", **EMA)
    measured = []
    for kind in ("trained", "averaged"):
        run_name = split(f"--run {newest_run(whole)} --checkpoint last --weights {kind}")
        check_run(project, "evaluate", *run_name, "--split", "validation", cwd=place)
        evaluation = evaluation_of(whole)
        assert evaluation["weights"] == kind
        measured.append(evaluation["metrics"]["loss"])
        check_run(project, "predict", *run_name, "--output", f"{kind}.csv", cwd=place)
    assert tuple(measured) == averaged(whole)[-1][1:]
    assert (place / "trained.csv").read_text() != (place / "averaged.csv").read_text()


def test_a_checkpoint_without_averages_is_refused_and_can_be_resumed(place):
    project = render(workload="tabular", **EMA)
    check_run(render(workload="tabular"), "train", *WORDS, "--max-steps", "12", cwd=place)
    evaluate = split("evaluate --weights averaged --checkpoint last")
    refused = run(project, *evaluate, cwd=place)
    one_error(refused, "no averaged weights", "--weights averaged", "continue training")
    check_run(project, "train", "--resume", cwd=place)
    check_run(project, *evaluate, cwd=place)
    refused = run(render(workload="tabular"), *evaluate, cwd=place)
    one_error(refused, "unknown option '--weights'")


@pytest.mark.parametrize("distributed", ["fsdp", "ddp"])
@pytest.mark.first(1)
def test_two_ranks_average_as_one(distributed, tmp_path):
    """Under fsdp each has its shard. One process begins and ends the run, and evaluates it."""
    project = render(workload="llm", distributed=distributed, **EMA)
    words = split("--training.precision fp32 --model.dropout 0 --monitor.every_steps 1")
    words += split("--training.max_steps 14 --evaluation.every_steps 7 --data.batch_size 8")
    words = (*TINY["llm"], *words, *AVERAGED)
    check_run(project, "train", *words, cwd=tmp_path)
    alone = [pytest.approx(row, rel=1e-4) for row in averaged(tmp_path)]
    check_run(project, "train", *words, "--max-steps", "3", cwd=tmp_path)
    for steps in ("9", "12"):
        words = split(f"train --resume --data.batch_size 4 --max-steps {steps}")
        results = run_ranks(project, *words, cwd=tmp_path)
        assert [result.code for result in results] == [0, 0], results[0].err[-2000:]
    check_run(project, *split("train --resume --data.batch_size 8"), cwd=tmp_path)
    assert averaged(tmp_path) == alone
    check_run(project, *split("evaluate --weights averaged --checkpoint last"), cwd=tmp_path)


def test_the_pages_commands_work(tmp_path):
    for words in documented(REPOSITORY / "docs/how-to/ema.md"):
        fewer = ("--max-steps", "100") if words[0] == "train" else ()
        check_run(render(workload="tabular", **EMA), *words, *fewer, cwd=tmp_path)
