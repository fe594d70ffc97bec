"""`tune`: keeps what is not clearly slower, finds what fits and pays, and runs for every
workload."""

import importlib
import math
import re
from types import SimpleNamespace

import pytest
import rendering
from forking import forked_trials
from importing import imported
from running import PACKAGE, check_run, one_error, painted, run
from sizes import TINY
from variants import choices, name, pairwise


def render(**answers):
    """With the extras that are tested here."""
    return rendering.render(**{"extras": ["tune"]} | answers)


def module(**answers):
    return imported(render(**({"workload": "tabular"} | answers)), "commands.tune")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("tune")


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", pairwise("workload", "framework"), ids=name)
@pytest.mark.cover(1, "framework")
def test_every_workload_gets_a_configuration(answers, place):
    """Within a budget of seconds; what it had no time for stays."""
    project = render(**answers)
    folder = place / answers["workload"]
    words = ("tune", "--minutes", "0.05", "--steps", "2", *TINY[answers["workload"]])
    done = check_run(project, *words, cwd=folder, before=forked_trials(project))
    assert "tuned.yaml: " in done.out.splitlines()[-1]
    assert (folder / "tuned.yaml").read_text().startswith("# Tuned on CPU: ")
    check_run(project, "train", "--config", "tuned.yaml", "--print-config", cwd=folder)


@pytest.mark.first(1)
@pytest.mark.parametrize("workload", choices("workload"))
def test_learning_rate_of_every_workload(workload, place):
    folder = place / workload

    def in_fewer_steps():
        painted()
        importlib.import_module(f"{PACKAGE}.commands.tune").RATES = 50

    words = ("tune", "--learning-rate", *TINY[workload])
    if workload == "graph":  # in batches of 4 days, chance alone moves the loss
        words += ("--data.batch_size", "32")
    done = check_run(render(workload=workload), *words, cwd=folder, before=in_fewer_steps)
    rate = float(re.search(r"--optimizer.learning_rate (\S+)", done.out)[1])
    assert 1e-6 < rate <= 0.1
    assert (folder / "learning_rate.png").read_bytes()[:4] == b"\x89PNG"


def broken(*_):
    """Every batch is nan, so no loss is finite."""
    rows = importlib.import_module(f"{PACKAGE}.engine.loading.loader")
    real = rows.deliver

    def deliver(*arguments):
        batch = real(*arguments)
        batch["target"].fill_(math.nan)
        return batch

    rows.deliver = deliver


def test_a_training_that_cannot_be_measured_is_one_error(tmp_path):
    project = render(workload="tabular")
    for words, before, line in (
        (("--learning-rate",), broken, "the loss of step 1 is not finite: epoch 1"),
        (("--steps", "1"), forked_trials(project, broken), "the loss of step .+: a short training"),
    ):
        done = run(project, "tune", *words, *TINY["tabular"], cwd=tmp_path, before=before)
        one_error(done, line)


# ---- decisions -----------------------------------------------------------------------------------


class Made:
    """Trials with samples/s by a formula of the settings, and a memory of so many samples a
    micro-batch."""

    def __init__(self, tune, rate, fits=10**9):
        self.rate = rate
        self.fits = fits
        self.calls = []
        self.tune = tune

    def __call__(self, overrides, warmup, steps):
        self.calls.append(overrides)
        if overrides.get("data.batch_size", 0) > self.fits:
            raise self.tune.Failed(2, "error: out of GPU memory: card: try")
        return {"samples": 10, "step_ms": [10_000 / self.rate(overrides, len(self.calls))]}


def tuner(rate, fits=10**9, seconds=100):
    tune = module()
    made = SimpleNamespace(
        data=SimpleNamespace(batch_size=32),
        training=SimpleNamespace(gradient_accumulation_steps=1),
        reproducibility=SimpleNamespace(seed=1),
        value={"data.num_workers": 0, "data.batch_size": 32}.__getitem__,
    )
    made_tuner = tune.Tuner(made, Made(tune, rate, fits), 5, seconds)
    made_tuner.bar.disable = True
    return made_tuner


def grows(until):
    """samples/s in proportion to the batch, up to a limit."""
    return lambda overrides, number: min(overrides.get("data.batch_size", 32), until)


def test_the_batch_is_doubled_while_it_fits_and_pays():
    for fits, until, expected in ((10**9, 256, 256), (128, 10**6, 128), (10**9, 32, None)):
        tuning = tuner(grows(until), fits)
        tuning.batch_size(10**6)
        assert tuning.chosen.get("data.batch_size") == expected, (fits, until)
        sizes = [call["data.batch_size"] for call in tuning.trials.calls]
        # Two doublings that pay nothing end the search.
        assert max(sizes) == min(2 * fits, 4 * until)


def test_a_clear_gain_is_taken_and_the_next_knob_is_upon_it():
    tuning = tuner(
        lambda overrides, number: 100 + 20 * overrides.get("data.num_workers", 0) + number % 3
    )
    tuning.knob("workers", [{"data.num_workers": number} for number in (0, 2, 4)])
    assert tuning.chosen == {"data.num_workers": 4}
    tuning.knob("batch_size", [{"data.batch_size": 64}])
    assert tuning.trials.calls[-1]["data.num_workers"] == 4
    tuning.changes *= 2
    tuning.confirm_all()
    assert tuning.lines[-1].startswith("all together: 1.")
    assert tuning.chosen == {"data.num_workers": 4}


def test_an_option_that_fails_is_named_and_left_out():
    tuning = tuner(grows(10**6), fits=50)
    tuning.knob("batch_size", [{"data.batch_size": 64}])
    assert tuning.chosen == {}
    assert tuning.lines[0] == "data.batch_size 64 fails: out of GPU memory: card: try"


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ((100, 101, 102), (110, 111, 112), False),
        ((100, 101, 102), (100, 102, 103), True),  # 1 % against 2-3 %
        ((100, 101, 102), (90, 91, 92), True),
        ((80, 100, 120), (110, 111, 112), True),  # the default itself wavers by 40 %
    ],
)
def test_the_gain_must_exceed_the_spread(before, after, kept):
    change = module().compare(list(before), list(after))
    assert change.kept == kept
    assert change.gain == sorted(after)[1] / sorted(before)[1]


def test_options_are_those_of_loader_and_card(monkeypatch):
    """Never more workers than cores."""
    tune = module()
    monkeypatch.setattr(tune.os, "cpu_count", lambda: 5)
    settings = SimpleNamespace(
        origins={"data.num_workers"},
        compile=SimpleNamespace(enabled="auto"),
        training=SimpleNamespace(gradient_accumulation_steps=2),
    )

    def options(knob, capability=(9, 0)):
        return list(tune.options(knob, settings, SimpleNamespace(capability=capability)))

    assert [option["data.num_workers"] for option in options("workers")] == [0, 1, 2, 4]
    assert options("chunk_size") == []
    assert len(options("compile_mode")) == 2
    assert options("compile_mode", capability=None) == []


def test_a_learning_rate_is_a_tenth_of_the_best():
    tune = module()
    rates = [10.0**power for power in range(-6, 1)]
    losses = [2.0, 1.9, 1.5, 1.0, 0.8, 4.0, math.nan]
    assert tune.suggested(rates, losses) == pytest.approx(1e-3)
    assert tune.suggested(rates, [2.0] * 7) is None
