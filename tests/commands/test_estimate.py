"""Costs counted on fake tensors, and time, memory and money on cards that are not here."""

import importlib
import json
import shutil
from shlex import split

import pytest
import rendering
import torch
from importing import imported
from rendering import replace
from running import PACKAGE, check_run, one_error, run
from sizes import TINY
from torch import nn
from torch.nn import functional
from variants import choices


def render(**answers):
    """With the extras that are tested here."""
    return rendering.render(**{"extras": ["estimate"]} | answers)


costs = imported(render(), "measure.costs")
estimate = imported(render(), "measure.estimates")
interfaces = imported(render(), "engine.interfaces")


class Toy(nn.Module):
    """Two linear layers, each its own block."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 16)

    def blocks(self):
        return [self.first, self.second]

    def forward(self, batch):
        hidden = functional.relu(self.first(batch["x"]))
        return interfaces.Output(self.second(hidden).float().square().mean(), torch.tensor(1.0))


class Recurrent(Toy):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True)

    def forward(self, batch):
        with torch.autocast("cpu", enabled=False):
            outputs, _ = self.lstm(batch["x"].float())
        return interfaces.Output(outputs.square().mean(), torch.tensor(1.0))


def batch(*shape):
    return {"x": torch.empty(*shape), "index": torch.empty(shape[0], dtype=torch.int64)}


# ---- counting ----


def test_products_and_memory_of_two_layers_are_exact():
    counted = costs.count(Toy, batch(128, 32), "fp32")
    forward = 2 * 128 * (32 * 64 + 64 * 16)
    weights = 32 * 64 + 64 + 64 * 16 + 16
    assert counted.flops == 3 * forward - 2 * 128 * 32 * 64  # the input needs no gradient
    assert counted.parameters == weights
    assert counted.parts["weights"] == counted.parts["gradients"] == 4 * weights
    assert counted.parts["optimizer"] == 8 * weights
    kept = 4 * 128 * (64 + 64 + 16)  # before and after relu, and the output: what lives at once
    assert kept * 0.6 <= counted.parts["activations"] <= kept * 2
    half = costs.count(Toy, batch(128, 32), "bf16")
    assert half.flops == counted.flops
    assert half.parts["activations"] < counted.parts["activations"]


def test_an_lstm_counts_all_its_steps():
    """In half precision on a card; on a CPU it computes in float32."""
    forward = 2 * 8 * 50 * 4 * 64 * (32 + 64 + 64 + 64)
    for precision, on_gpu in (("fp32", True), ("bf16", True), ("bf16", False)):
        counted = costs.count(Recurrent, batch(8, 50, 32), precision, on_gpu=on_gpu)
        assert counted.flops == 3 * forward
        is_half = any(operation.half for operation in counted.operations)
        assert is_half == (on_gpu and precision == "bf16")


@pytest.mark.first(3)
@pytest.mark.parametrize("workload", choices("workload"))
def test_fake_tensors_count_what_a_real_step_does(workload, tmp_path, monkeypatch):
    """How near the estimated time is: benchmarks/estimate.py."""
    monkeypatch.chdir(tmp_path)
    project = render(workload=workload)
    assembled = imported(project, "assemble")
    counting = imported(project, "measure.costs")
    flags = zip(TINY[workload][::2], TINY[workload][1::2], strict=True)
    overrides = [(name[2:], value) for name, value in flags]
    settings = imported(project, "settings").Settings.load(overrides=overrides)
    store = assembled.open_store(settings)
    distributed = imported(project, "engine.compute.distributed").Distributed()
    whole = assembled.assemble(settings, distributed, store)
    samples = next(whole.loader("train", True).epoch(0))
    build = imported(project, "model").build_model
    counted = counting.count(lambda: build(settings, store.facts), samples, "fp32")
    real = made()
    with counting.Recorder(real):
        output = whole.model(samples)
        output.loss.backward(gradient=output.total_weight)
    if workload == "chat":  # a real CPU makes logits of answers alone, and fewer pairs of tokens
        assert counted.flops > real.flops > 0
        return
    assert counted.flops == real.flops > 0
    if workload not in ("timeseries", "windows"):  # an LSTM on a CPU keeps more for backward
        # The stem trains its bias alone. A real CPU also returns a gradient of its weights.
        stem = 4 * 24 * 12 if workload == "vision" else 0
        assert counted.bytes == real.bytes - stem
        assert counted.kernels == real.kernels
        assert counted.peak_bytes == real.peak_bytes


@pytest.mark.parametrize("chunked", ["true", "false"])
def test_a_language_model_counts_as_the_library_counts_it(chunked):
    """Attention and the chunked loss are operations without a formula in torch."""
    project = render(workload="llm")
    flags = {"model.size": "small", "model.layers": "2", "model.chunked_loss": chunked}
    settings = imported(project, "settings").Settings.load(overrides=flags.items())
    facts = {"vocabulary": 50257, "token_bytes": [1] * 50257}
    tokens = torch.empty(8, 128, dtype=torch.int64)
    samples = {"tokens": tokens, "targets": tokens, "index": tokens[:, 0]}

    def build():
        return imported(project, "model").build_model(settings, facts)

    expected = 8 * imported(project, "hooks.throughput").count_flops(build, samples)
    count = imported(project, "measure.costs").count
    plain = count(build, samples, "bf16")
    assert plain.flops == pytest.approx(expected, rel=0.02)
    again = count(build, samples, "bf16", checkpointing=True)
    assert again.flops > plain.flops
    assert again.parts["activations"] < plain.parts["activations"]


# ---- cards ----

OPERATIONS = [(1e12, 1e9, True), (0.0, 1e9, False)]


def made(*operations, parameters=0):
    result = costs.Costs(1, parameters, 0, 0)
    result.operations.update(costs.Operation(*operation) for operation in operations)
    return result


def test_each_operation_takes_the_longer_of_its_flops_and_bytes():
    device = costs.Device("x", "bf16", 1e12, 1e13, 1e12, 80e9)
    assert device.step(made(*OPERATIONS), 4) == (pytest.approx(0.404), "compute")
    assert device.step(made((0.0, 1e9, False))) == (pytest.approx(0.001), "memory")
    # Gradients, moments and weights, read and written.
    assert device.step(made(parameters=10**9))[0] == pytest.approx(0.04)
    slow_host = device._replace(launch=0.01)
    assert slow_host.step(made((0.0, 1e9, False))) == (pytest.approx(0.21), "launch")
    in_turn = slow_host._replace(is_host=True)
    assert in_turn.step(made((0.0, 1e9, False)))[0] == pytest.approx(0.211)


# ---- the command ----


def made_up_host():
    """For `before=`: a host whose launches never decide; measuring one takes seconds."""
    module = importlib.import_module(f"{PACKAGE}.measure.estimates")
    module.this_cpu = lambda precision: module.Device(
        "cpu", precision, 1e11, 1e10, 1e10, 0.0, launch=1e-6, is_host=True
    )


def estimated(project, *words, cwd, before=made_up_host):
    """Rows of the command by the name of the card."""
    result = check_run(project, "estimate", "--json", *words, cwd=cwd, before=before)
    return {row["card"]: row for row in json.loads(result.out)}


def test_three_cards_are_ordered_by_speed_and_by_price(tmp_path):
    words = "--model.size small --model.layers 2 --data.block_size 512 --data.sample_mb 0.5"
    words = split(f"{words} --gpu t4 h100 rtx_4090")
    project = render(workload="llm")
    by_card = estimated(project, *words, cwd=tmp_path)
    assert list(by_card) == ["h100", "rtx_4090", "t4", "cpu"]
    assert by_card["t4"]["precision"] == "fp16"
    assert by_card["h100"]["precision"] == "bf16"
    h100 = by_card["h100"]
    assert h100["run_hours"] == pytest.approx(10 * h100["epoch_hours"])
    assert h100["epoch_price"] is None
    prices = split("--price h100=100 rtx_4090=0.4 --estimate.price_per_hour 1")
    priced = estimated(project, *words, *prices, cwd=tmp_path)
    assert [card for card in priced if card != "cpu"][-1] == "h100"
    assert priced["h100"]["epoch_price"] == pytest.approx(100 * priced["h100"]["epoch_hours"])
    assert priced["t4"]["epoch_price"] == pytest.approx(priced["t4"]["epoch_hours"])


def test_the_cpu_is_a_card_of_the_table_and_the_optimizer_is_the_settings(tmp_path):
    def quick():
        importlib.import_module(f"{PACKAGE}.measure.estimates").fastest.__defaults__ = (0.02,)

    memory = {}
    for name in ("adamw", "adafactor"):
        words = ("--gpu", "cpu", "--optimizer.name", name)
        by_card = estimated(render(workload="tabular"), *words, cwd=tmp_path, before=quick)
        assert by_card["cpu"]["step_ms"] > 0
        memory[name] = by_card["cpu"]["memory_gb"]
    assert memory["adafactor"] < memory["adamw"]


def test_fp8_is_for_cards_that_have_it(tmp_path):
    words = "--training.precision fp8 --data.sample_mb 0.5 --data.block_size 64"
    words = split(f"{words} --gpu h100 a100_80gb")
    by_card = estimated(render(workload="llm", precision="fp8"), *words, cwd=tmp_path)
    assert by_card["h100"]["precision"] == "fp8"
    assert "no GPU" in by_card["cpu"]["why"]
    assert "no fp8 tensor cores" in by_card["a100_80gb"]["why"]


def test_what_does_not_fit_is_last_and_said(tmp_path):
    words = "--model.layers 1 --model.width 12288 --data.sample_mb 0.5 --data.block_size 64"
    words = split(f"estimate {words} --gpu t4 h200")
    result = check_run(render(workload="llm"), *words, cwd=tmp_path, before=made_up_host)
    lines = [line for line in result.out.splitlines() if line.startswith(("t4", "h200"))]
    assert [line.split()[0] for line in lines] == ["h200", "t4"]
    assert " !" in lines[1]
    assert "! does not fit" in result.out


def test_a_model_that_looks_at_values_is_one_line(tmp_path):
    project = shutil.copytree(render(workload="tabular"), tmp_path / "project")
    divisor = "squares.mean() / total_weight.clamp(min=1)"
    model = project / "src/my_training/model.py"
    replace(model, divisor, "squares.mean() / max(total_weight.item(), 1)")
    refused = run(project, "estimate", cwd=tmp_path, before=made_up_host)
    one_error(refused, "the costs need values, not only shapes")
