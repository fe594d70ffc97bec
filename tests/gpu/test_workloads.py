"""Every workload on a GPU: learns and repeats itself, with each format and switch that it has."""

import json

import pytest
import torch
from gpu import answers_of
from sizes import LARGE_PRODUCTS
from test_training import OPTIONS, check_resume, mean_loss, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
SMALL = {  # learns in 60 steps, with products that tensor cores take
    "timeseries": ("--model.width", "64", "--optimizer.learning_rate", "0.01"),
    "forecast": ("--model.width", "64", "--optimizer.learning_rate", "0.01"),
    "windows": ("--model.width", "64", "--optimizer.learning_rate", "0.01"),
    "llm": (
        *("--data.sample_mb", "1", "--data.block_size", "128", "--data.batch_size", "16"),
        *("--model.layers", "2", "--model.width", "256", "--model.heads", "4"),
        *("--optimizer.learning_rate", "3e-3"),
    ),
    "graph": ("--data.batch_size", "8", "--model.width", "32", "--optimizer.learning_rate", "3e-3"),
    "seq2seq": (
        *("--data.batch_size", "32", "--model.size", "tiny"),
        *("--optimizer.learning_rate", "3e-3"),
    ),
    "vision": ("--model.width", "32", "--data.batch_size", "64"),
    "chat": (
        *("--data.sample_chats", "400", "--data.block_size", "128", "--data.batch_size", "8"),
        *("--model.layers", "2", "--model.width", "128", "--model.hidden", "256"),
        *("--optimizer.learning_rate", "3e-3"),
    ),
}
NO_DROPOUT = ("--model.dropout", "0")
WITHOUT_DROPOUT = ("chat", "vision")
EAGER = ("--compile.enabled", "false")
SWITCHES = {
    "plain": EAGER,
    "compiled": ("--compile.enabled", "true"),
    "graphs": ("--compile.enabled", "true", "--compile.mode", "reduce-overhead"),
    "recomputed": (*EAGER, "--training.gradient_checkpointing", "true"),
    "unfused": (*EAGER, "--optimizer.fused", "false"),
}


GUARD = """
import torch
from my_training.engine.loading import loader
from my_training.engine.monitoring import meter
from my_training.engine.training import run
deliver, next_batch, end_step = loader.deliver, meter.Meter.next_batch, run.Run.end_step
def delivered(*words):
    torch.cuda.set_sync_debug_mode("error")
    batch = deliver(*words)
    torch.cuda.set_sync_debug_mode("default")
    return batch
def guarded(self, batches):  # from a batch's arrival to the end of the optimizer's step
    torch.cuda.set_sync_debug_mode("default")
    batch = next_batch(self, batches)
    torch.cuda.set_sync_debug_mode("error")
    return batch
def counted(self, norm):
    torch.cuda.set_sync_debug_mode("default")
    return end_step(self, norm)
loader.deliver, meter.Meter.next_batch, run.Run.end_step = delivered, guarded, counted
"""


def cell(workload):
    return {"workload": workload, "loader": answers_of(workload)["loader"]}


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("workload", SMALL)
def test_learns_and_resumes(workload, precision, tmp_path):
    words = (*SMALL[workload], "--training.precision", precision, *EAGER)
    check_resume(tmp_path, *words, **cell(workload))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("workload", ["tabular", *SMALL])
def test_batch_and_step_never_wait_for_the_gpu(workload, precision, tmp_path):
    """torch raises at any synchronising call in them."""
    words = (*OPTIONS, *SMALL.get(workload, ()), *EAGER, "--training.precision", precision)
    train(tmp_path, "train", *words, before=GUARD, **cell(workload))


@pytest.mark.parametrize("workload", SMALL)
def test_every_switch_learns_alike(workload, tmp_path):
    """The loss after 60 steps is that of the plain run, to rounding."""
    losses_by_name = {}
    for name, switch in SWITCHES.items():
        words = (*SMALL[workload], "--training.precision", "tf32", *switch)
        if workload not in WITHOUT_DROPOUT:
            words += NO_DROPOUT
        losses_by_name[name] = mean_loss(tmp_path / name, *words, **cell(workload))
    for name, loss in losses_by_name.items():
        assert loss == pytest.approx(losses_by_name["plain"], rel=0.05), name


def test_a_large_batch_of_an_lstm_stays_finite_in_half_precision(tmp_path):
    """cuDNN gets float16 under bf16, without a loss scale, and gradients are sums over a batch."""
    words = (*SMALL["windows"], "--data.batch_size", "16384", *EAGER)
    losses_by_name = {}
    for precision in ("fp32", "bf16"):
        more = ("--training.precision", precision)
        losses_by_name[precision] = mean_loss(
            tmp_path / precision, *words, *more, **cell("windows")
        )
    assert losses_by_name["bf16"] == pytest.approx(losses_by_name["fp32"], rel=0.05)


@pytest.mark.parametrize("workload", LARGE_PRODUCTS)
def test_fp8_learns_like_bf16(workload, tmp_path):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8 before sm 8.9")
    pytest.importorskip("torchao")
    losses_by_name = {}
    for precision in ("bf16", "fp8"):
        words = (*SMALL[workload], "--training.precision", precision)
        losses_by_name[precision] = mean_loss(tmp_path / precision, *words, **cell(workload))
    (environment,) = (tmp_path / "fp8").glob("runs/*/env.json")
    entries = json.loads(environment.read_text())["optimizations"]
    (layers,) = [entry["state"] for entry in entries if entry["name"] == "fp8"]
    assert not layers.startswith("0 ")
    assert losses_by_name["fp8"] == pytest.approx(losses_by_name["bf16"], rel=0.1)
