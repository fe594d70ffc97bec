"""Costs counted on fake tensors, and time, memory and money on cards that are not here."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rendering
import torch
from importing import imported
from rendering import REPOSITORY
from running import PACKAGE, Result, documented, one_error, run
from test_tier_b import TINY
from torch import nn
from torch.nn import functional
from variants import choices


def render(**answers: Any) -> Path:
    """With the extras that are tested here."""
    return rendering.render(**{"extras": ["estimate"]} | answers)


costs = imported(render(), "measure.costs")
estimate = imported(render(), "measure.estimates")
interfaces = imported(render(), "engine.interfaces")


class Toy(nn.Module):
    """Two linear layers, each its own block."""

    def __init__(self, hidden: int = 64):
        super().__init__()
        self.first = nn.Linear(32, hidden)
        self.second = nn.Linear(hidden, 16)

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


def batch(*shape: int) -> dict:
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
    assert counted.samples == 128


def test_half_precision_halves_what_products_move():
    full, half = (costs.count(lambda: Toy(1024), batch(512, 32), name) for name in ("fp32", "bf16"))
    assert half.flops == full.flops
    products = [operation for operation in half.operations if operation.flops]
    assert products
    assert all(operation.half for operation in products)
    assert not any(operation.half for operation in full.operations)
    assert half.parts["activations"] < full.parts["activations"]


def test_an_lstm_counts_all_its_steps():
    counted = costs.count(Recurrent, batch(8, 50, 32), "fp32")
    forward = 2 * 8 * 50 * 4 * 64 * (32 + 64 + 64 + 64)
    assert counted.flops == 3 * forward


def test_an_lstm_is_in_half_precision_on_a_card_and_not_on_a_cpu():
    """It is counted on a CPU, where it computes in float32."""
    counted = {}
    for precision, on_gpu in (("fp32", True), ("bf16", True), ("bf16", False)):
        lstm = costs.count(Recurrent, batch(8, 50, 32), precision, on_gpu=on_gpu)
        counted[precision, on_gpu] = lstm.flops, any(step.half for step in lstm.operations)
    flops = costs.count(Recurrent, batch(8, 50, 32), "fp32").flops
    assert list(counted.values()) == [(flops, False), (flops, True), (flops, False)]


class LanguageModel:
    """A batch of 8 texts of 128 tokens, and what a model of these sizes makes of it."""

    def __init__(self, vocabulary: int, **sizes: object):
        project = render(workload="llm")
        flags = [(f"model.{name}", str(value)) for name, value in sizes.items()]
        settings = imported(project, "config").load(overrides=flags)
        facts = {"vocabulary": vocabulary, "token_bytes": [1] * vocabulary}
        self.project = project
        self.build = lambda: imported(project, "model").build_model(settings, facts)
        tokens = torch.empty(8, 128, dtype=torch.int64)
        self.samples = {"tokens": tokens, "targets": tokens, "index": tokens[:, 0]}

    def count(self, precision: str, checkpointing: bool = False):
        count = imported(self.project, "measure.costs").count
        return count(self.build, self.samples, precision, checkpointing)


def test_recomputation_costs_flops_and_saves_memory():
    model = LanguageModel(256, width=128, layers=8, heads=4)
    plain = model.count("fp32")
    again = model.count("fp32", checkpointing=True)
    assert 1.2 * plain.flops < again.flops < 1.4 * plain.flops
    assert again.parts["activations"] < 0.6 * plain.parts["activations"]


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
    settings = imported(project, "config").load(overrides=overrides)
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
    assert counted.flops == real.flops > 0
    if workload not in ("timeseries", "windows"):  # an LSTM on a CPU keeps more for backward
        assert counted.bytes == real.bytes
        assert counted.kernels == real.kernels
        assert counted.peak_bytes == real.peak_bytes


@pytest.mark.parametrize("chunked", ["true", "false"])
def test_a_language_model_counts_as_the_library_counts_it(chunked):
    """Attention and the chunked loss are operations without a formula in torch."""
    model = LanguageModel(50257, size="small", layers=2, chunked_loss=chunked)
    count_flops = imported(model.project, "hooks.throughput").count_flops
    expected = 8 * count_flops(model.build, model.samples)
    assert model.count("bf16").flops == pytest.approx(expected, rel=0.02)


# ---- cards ----

OPERATIONS = [(1e12, 1e9, True), (0.0, 1e9, False)]


def made(*operations: tuple, parameters: int = 0) -> object:
    result = costs.Costs(1, parameters, 0, 0)
    result.operations.update(costs.Operation(*operation) for operation in operations)
    return result


def test_each_operation_takes_the_longer_of_its_flops_and_bytes():
    device = costs.Device("x", "bf16", 1e12, 1e13, 1e12, 80e9)
    assert device.step(made(*OPERATIONS)) == (pytest.approx(0.1 + 0.001), "compute")
    assert device.step(made(*OPERATIONS), 4) == (pytest.approx(0.404), "compute")
    assert device.step(made((0.0, 1e9, False))) == (pytest.approx(0.001), "memory")
    update = device.step(made(parameters=10**9))[
        0
    ]  # gradients, moments and weights, read and written
    assert update == pytest.approx(0.04)
    slow_host = device._replace(launch=0.01)
    assert slow_host.step(made((0.0, 1e9, False))) == (pytest.approx(0.21), "launch")
    in_turn = slow_host._replace(is_host=True)
    assert in_turn.step(made((0.0, 1e9, False)))[0] == pytest.approx(0.211)


# ---- the command ----

LARGE = (
    *("--model.size", "small", "--model.layers", "2"),
    *("--data.block_size", "512", "--data.sample_mb", "0.5"),
)


def estimated(
    project: Path, *words: str, cwd: Path, before: Callable[[], Any] | None = None
) -> Result:
    """The command on a made-up host whose launches never decide: measuring one takes seconds."""

    def put() -> None:
        module = importlib.import_module(f"{PACKAGE}.measure.estimates")
        module.this_cpu = lambda precision: module.Device(
            "cpu", precision, 1e11, 1e10, 1e10, 0.0, launch=1e-6, is_host=True
        )
        if before is not None:
            before()

    return run(project, *words, cwd=cwd, before=put)


def rows(result) -> dict[str, dict]:
    assert result.code == 0, result.err
    return {row["card"]: row for row in json.loads(result.out)}


def test_three_cards_are_ordered_by_speed_and_by_price(tmp_path):
    words = ("estimate", "--json", *LARGE, "--gpu", "t4", "h100", "rtx_4090")
    project = render(workload="llm")
    by_card = rows(estimated(project, *words, cwd=tmp_path))
    fastest = [card for card in by_card if card != "cpu"]
    assert fastest == ["h100", "rtx_4090", "t4"]
    assert by_card["t4"]["precision"] == "fp16"
    assert by_card["h100"]["precision"] == "bf16"
    assert by_card["cpu"]["step_ms"] > 10 * by_card["t4"]["step_ms"]
    h100 = by_card["h100"]
    assert h100["run_hours"] == pytest.approx(10 * h100["epoch_hours"])
    assert h100["epoch_price"] is None
    prices = ("--price", "h100=100", "rtx_4090=0.4", "--estimate.price_per_hour", "1")
    priced = rows(estimated(project, *words, *prices, cwd=tmp_path))
    assert [card for card in priced if card != "cpu"][-1] == "h100"
    assert priced["h100"]["epoch_price"] == pytest.approx(100 * priced["h100"]["epoch_hours"])
    assert priced["t4"]["epoch_price"] == pytest.approx(priced["t4"]["epoch_hours"])


def test_the_cpu_is_a_card_of_the_table_and_the_optimizer_is_the_settings(tmp_path):
    def quick():
        importlib.import_module(f"{PACKAGE}.measure.estimates").fastest.__defaults__ = (0.02,)

    memory = {}
    for name in ("adamw", "adafactor"):
        words = ("estimate", "--json", "--gpu", "cpu", "--optimizer.name", name)
        by_card = rows(run(render(workload="tabular"), *words, cwd=tmp_path, before=quick))
        assert list(by_card) == ["cpu"]
        assert by_card["cpu"]["step_ms"] > 0
        memory[name] = by_card["cpu"]["memory_gb"]
    assert memory["adafactor"] < memory["adamw"]


def test_fp8_is_for_cards_that_have_it(tmp_path):
    words = ("--json", "--training.precision", "fp8", "--data.sample_mb", "0.5")
    words += ("--data.block_size", "64", "--gpu", "h100", "a100_80gb")
    project = render(workload="llm", precision="fp8")
    by_card = rows(estimated(project, "estimate", *words, cwd=tmp_path))
    assert by_card["h100"]["precision"] == "fp8"
    assert "no GPU" in by_card["cpu"]["why"]
    assert "no fp8 tensor cores" in by_card["a100_80gb"]["why"]


def test_what_does_not_fit_is_last_and_said(tmp_path):
    words = ("--model.layers", "1", "--model.width", "12288", "--data.sample_mb", "0.5")
    words += ("--data.block_size", "64", "--gpu", "t4", "h200")
    result = estimated(render(workload="llm"), "estimate", *words, cwd=tmp_path)
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith(("t4", "h200"))]
    assert [line.split()[0] for line in lines] == ["h200", "t4"]
    assert " !" in lines[1]
    assert "! does not fit" in result.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpu", "h10"), "choose from h100, h100_nvl, h100_pcie"),
        (("--price", "h100"), "NAME=PRICE"),
        (("--price", "h100=-1"), "NAME=PRICE"),
        (("--price", "mine=1"), "no card 'mine'"),
    ],
)
def test_wrong_flags_are_one_line(tmp_path, words, says):
    one_error(estimated(render(workload="tabular"), "estimate", *words, cwd=tmp_path), says)


def branching_model() -> None:
    from my_training import model

    build = model.build_model

    def built(settings, facts):
        made = build(settings, facts)
        forward = made.forward
        made.forward = lambda batch: forward(batch) if batch["features"].sum().item() else None
        return made

    model.build_model = built


def test_a_model_that_looks_at_values_is_one_line(tmp_path):
    result = estimated(render(workload="tabular"), "estimate", cwd=tmp_path, before=branching_model)
    one_error(result, "the costs need values, not only shapes")


def test_the_commands_of_the_page(tmp_path):
    for words in documented(REPOSITORY / "docs/rented-gpu.md"):
        if words[0] != "estimate":
            continue  # test_pages.py runs the others
        result = estimated(render(workload="tabular"), *words, cwd=tmp_path)
        assert result.code == 0, result.err
        assert "h100" in result.out
