"""Compile, recomputation and the optimizer's groups, on blocks of every kind."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import engine
from importing import imported
from rendering import render
from torch import Tensor, nn


class Own(nn.Module):
    def __init__(self, layer=None):
        super().__init__()
        self.layer = layer or nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return x + (y[0] if isinstance(y, tuple) else y).relu()


def settings(**changed):
    overrides = [(key.replace("__", "."), str(value)) for key, value in changed.items()]
    return imported(render(), "settings").Settings.load(None, None, overrides, {})


def test_own_blocks_compile_others_are_left_alone(monkeypatch):
    def trace(self, mode, **options):
        """Dynamo alone: Inductor takes half a minute, and test_timeseries.py trains with it."""
        self._compiled_call_impl = torch.compile(self._call_impl, backend="eager", **options)

    monkeypatch.setattr(nn.Module, "compile", trace)
    blocks = [Own(), Own(nn.LSTM(4, 4, batch_first=True)), nn.Linear(4, 4)]
    x = torch.randn(3, 5, 4)
    eager = [block(x) for block in blocks]
    chosen = settings(compile__enabled="true")
    engine("compute.optimization").compile_blocks(blocks, chosen, None)
    torch._dynamo.utils.counters.clear()
    for block, wanted in zip(blocks, eager, strict=True):
        torch.testing.assert_close(block(x), wanted)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("enabled", "capability", "wanted"),
    [
        ("auto", None, False),
        ("auto", (7, 5), False),
        ("auto", (8, 0), True),
        ("auto", (12, 0), True),
        ("true", None, True),
        ("false", (9, 0), False),
    ],
)
def test_whether_blocks_compile(enabled, capability, wanted):
    on, why = engine("compute.optimization").compiles(
        settings(compile__enabled=enabled), capability
    )
    assert on is wanted
    assert bool(why) == (enabled == "auto")


@pytest.mark.parametrize("fused", [True, False])
def test_each_weight_is_optimized_once_and_only_matrices_decay(fused):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[2].weight = nn.Parameter(torch.ones(2, 4), requires_grad=False)
    chosen = settings(optimizer__weight_decay=0.25, optimizer__fused=str(fused).lower())
    optimizer = imported(render(), "optimizer").build_optimizer(model, chosen)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert sorted(map(id, weights)) == sorted(map(id, trained))
    for group in optimizer.param_groups:
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] > 0}
        assert group["lr"] == chosen.optimizer.learning_rate
        assert group["foreach"] is None, "PyTorch's default: on a GPU a kernel for many weights"


def test_recomputed_blocks_compile_whole():
    """Dynamo skips the frames of `checkpoint`; with `fullgraph`, that is an error."""
    block = Own()
    x = torch.randn(3, 4)
    eager = block(x)
    engine("compute.optimization").checkpoint_blocks([block])
    compiled = torch.compile(block._call_impl, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), eager, rtol=0, atol=0)


def test_activation_checkpointing_is_off_without_gradients():
    block = Own()
    calls: list[int] = []
    block.layer.register_forward_pre_hook(lambda *_: calls.append(1))
    engine("compute.optimization").checkpoint_blocks([block])
    with torch.no_grad():
        block(torch.ones(2, 4))
    assert len(calls) == 1
    block(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert len(calls) == 3, "once in forward, again in backward"


RNNS = [  # the class, its options, and the inputs: (B, T, C), (T, B, C), (T, C), or packed
    (nn.LSTM, {"batch_first": True}, (3, 37, 4)),
    (nn.LSTM, {"batch_first": True, "dropout": 0.5}, (3, 37, 4)),
    (nn.LSTM, {"proj_size": 2}, (37, 3, 4)),
    (nn.LSTM, {"batch_first": True}, (37, 4)),
    (nn.GRU, {}, (37, 3, 4)),
    (nn.RNN, {"batch_first": True}, (3, 37, 4)),
    (nn.LSTM, {"batch_first": True, "bidirectional": True}, (3, 37, 4)),
    (nn.GRU, {"batch_first": True}, "packed"),
]


def counted(rnn):
    """The steps of each call of an RNN's own forward, from here on."""
    forward = rnn.forward
    lengths: list[int] = []

    def run(x, hx=None):
        if isinstance(x, Tensor):
            lengths.append(x.shape[1 if rnn.batch_first and x.dim() == 3 else 0])
        return forward(x, hx)

    rnn.forward = run
    return lengths


def test_an_rnn_is_checkpointed_in_stretches_of_time():
    """Results and gradients are those of the whole. With 37 steps, no call sees more than 7."""
    for kind, options, shape in RNNS:
        if shape == "packed" and torch.__version__ < (2, 12):  # torch's own `checkpoint` fails
            continue
        x: Any = torch.randn(3, 37, 4) if shape == "packed" else torch.randn(shape)
        if shape == "packed":
            x = nn.utils.rnn.pack_padded_sequence(x, [37, 30, 2], batch_first=True)
        results = []
        for checkpointed in (False, True):
            torch.manual_seed(1)
            rnn = kind(4, 5, 2, **options)
            lengths = counted(rnn)
            if checkpointed:
                engine("compute.optimization").checkpoint_blocks([rnn])
            torch.manual_seed(2)
            output, state = rnn(x)
            output = output.data if shape == "packed" else output
            last = state[0] if isinstance(state, tuple) else state
            (output.square().sum() + last.sum()).backward()
            gradients = [weight.grad for weight in rnn.parameters()]
            results.append([output.detach(), last.detach(), *gradients])
        dropped = "dropout" in options  # masks of stretches are other ones
        compared = [values[:0] if dropped else values for values in results]
        torch.testing.assert_close(*compared, rtol=1e-5, atol=1e-5)
        whole = "bidirectional" in options
        assert max(lengths, default=7) == (37 if whole else 7), (kind, options, shape)


def peak_of_training(checkpointed):
    """Memory that a pass through an LSTM adds at its largest, in a process of its own."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            encoder = imported(render(), "model").Encoder(8, 64, 1)
            if checkpointed:
                engine("compute.optimization").checkpoint_blocks([encoder])
            x = torch.randn(128, 512, 8)
            before = peak()
            encoder(x)[0].sum().backward()
            os.write(writes, str(peak() - before).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return int(os.read(reads, 100))


def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1])


def test_checkpointing_an_lstm_saves_memory():
    """Without stretches of time it would be the same as without."""
    assert peak_of_training(checkpointed=True) < 0.6 * peak_of_training(checkpointed=False)
