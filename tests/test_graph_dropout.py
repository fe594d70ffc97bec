"""Dropout of graph attention: on the normalised weights, each head by itself, only while it trains."""

from __future__ import annotations

import pytest
import torch
from stocks import module
from torch import Tensor
from torch.nn.functional import leaky_relu


def graph(nodes: int = 30, edges: int = 120) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, ends = torch.randn(nodes, 6, dtype=torch.float64), torch.randint(nodes, (2, edges))
    return x, torch.cat([ends, torch.arange(nodes).expand(2, -1)], 1)


def layer(dropout: float, heads: int = 4):
    torch.manual_seed(1)
    return module("model").GraphAttention(6, 3, heads, dropout=dropout).double()


def by_the_book(made, x: Tensor, edges: Tensor, kept: Tensor, dropout: float) -> Tensor:
    """Autograd through a dense softmax over all edges of a node, then dropout by `kept` (E, H)."""
    source, target = edges
    values = made.linear(x).unflatten(1, (made.heads, -1))
    scores = (values * made.source).sum(2)[source] + (values * made.target).sum(2)[target]
    raised = leaky_relu(scores, made.slope).exp()
    totals = torch.zeros(len(x), made.heads, dtype=x.dtype).index_add(0, target, raised)
    shares = raised / totals[target] * kept / (1 - dropout)
    messages = values[source] * shares.unsqueeze(2)
    return torch.zeros_like(values).index_add(0, target, messages).flatten(1) + made.bias


@pytest.mark.parametrize("block", [7, 8192])
def test_values_and_gradients_are_those_of_dropout_by_the_book(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The layer itself computes in float32, SegmentAttention in what it is given.
    monkeypatch.setattr(module("model"), "CPU_EDGES", block)
    (x, edges), dropout = graph(), 0.4
    made = layer(dropout)
    values = torch.randn(len(x), 4, 3, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(edges.shape[1], 4, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(7)
    out = module("model").SegmentAttention.apply(values, scores, *edges, dropout)
    torch.manual_seed(7)
    kept = torch.rand(edges.shape[1], 4, dtype=torch.float64) >= dropout
    raised = scores.exp()
    totals = torch.zeros(len(x), 4, dtype=torch.float64).index_add(0, edges[1], raised)
    shares = raised / totals[edges[1]] * kept / (1 - dropout)
    wanted = torch.zeros_like(values).index_add(0, edges[1], values[edges[0]] * shares.unsqueeze(2))
    torch.testing.assert_close(out, wanted)
    direction = torch.randn_like(out)
    found = torch.autograd.grad((out * direction).sum(), (values, scores))
    torch.testing.assert_close(
        found, torch.autograd.grad((wanted * direction).sum(), (values, scores))
    )

    torch.manual_seed(9)
    whole = made.train()(x, edges)
    torch.manual_seed(9)
    kept = torch.rand(edges.shape[1], 4) >= dropout
    torch.testing.assert_close(
        whole.float(), by_the_book(made, x, edges, kept, dropout).float(), atol=1e-5, rtol=1e-5
    )


def test_heads_drop_edges_of_their_own_and_the_mean_stays() -> None:
    x, edges = graph()
    with_dropout, without = layer(0.5), layer(0.0)
    still = without(x, edges)
    assert torch.equal(with_dropout.eval()(x, edges), still), "none when it does not train"
    with_dropout.train()
    drawn = torch.stack([with_dropout(x, edges) for _ in range(4000)])
    assert drawn.std(0).min() > 0
    error = (drawn.mean(0) - still).abs() / (drawn.std(0) / len(drawn) ** 0.5)
    assert error.max() < 6, "standard errors of the mean"


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0])
def test_a_share_outside_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match="from 0 to below 1"):
        layer(dropout)
