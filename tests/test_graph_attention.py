"""The model of the workload `graph`: attention over edges, days that do not see each other, no later days."""

from __future__ import annotations

from pathlib import Path

import pytest
import stocks
import torch
from rendering import render
from running import one_error, run
from stocks import NAMES, batches, module, prepared, prices, settings, store
from torch import Tensor


@pytest.fixture
def opened(tmp_path_factory: pytest.TempPathFactory):
    return stocks.example(tmp_path_factory.getbasetemp())


def network(opened, seed: int = 0, **changes: object):
    torch.manual_seed(seed)
    model = module("model").build_model(settings(model__width=16, **changes), opened.facts)
    return model.eval()


# ---- graph attention ---------------------------------------------------------------------------


def random_graph(nodes: int = 40, edges: int = 150, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features (N, 6) and edges (2, E), some twice; the last five nodes have no edge into them."""
    torch.manual_seed(seed)
    source, target = torch.randint(nodes, (edges,)), torch.randint(nodes - 5, (edges,))
    return torch.randn(nodes, 6), torch.stack([source, target])


def attention(seed: int = 0, inputs: int = 6, width: int = 3, heads: int = 4):
    torch.manual_seed(seed)
    layer = module("model").GraphAttention(inputs, width, heads)
    torch.nn.init.normal_(layer.bias)
    return layer


def dense(layer, x: Tensor, edges: Tensor) -> Tensor:
    """The layer by the book: one softmax per node and head, over its list of neighbours."""
    heads = layer.heads
    values = (x @ layer.linear.weight.T).view(len(x), heads, -1)
    rows = []
    for node in range(len(x)):
        near = values[edges[0, edges[1] == node]]  # (n, H, C)
        score = (near * layer.source).sum(2) + (values[node] * layer.target).sum(1)
        share = torch.nn.functional.leaky_relu(score, layer.slope).softmax(0)
        rows.append((share.unsqueeze(2) * near).sum(0).flatten())
    return torch.stack(rows) + layer.bias


def gradients(function, layer, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = function(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


def test_sparse_features_are_as_good_as_dense_ones() -> None:
    layer, (x, edges) = attention(), random_graph()
    x = x.relu()
    found = []
    for features in (x, x.to_sparse()):
        layer.zero_grad()
        out = layer(features, edges)
        out.square().sum().backward()
        found.append([out, *(parameter.grad.clone() for parameter in layer.parameters())])
    torch.testing.assert_close(*found)


def assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("block", [7, 8192])
def test_attention_is_what_the_book_says(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("model"), "CPU_EDGES", block)
    layer, (x, edges) = attention(), random_graph()
    found = gradients(lambda x: layer(x, edges), layer, x)
    exact = attention().double()
    assert_near(found, gradients(lambda x: dense(exact, x, edges), exact, x.double()))


def test_attention_is_that_of_pyg() -> None:
    geometric = pytest.importorskip(
        "torch_geometric.nn", reason="`pip install torch_geometric`, an oracle only"
    )
    layer, (x, edges) = attention(), random_graph()
    theirs = geometric.GATConv(6, 3, heads=4, add_self_loops=False)
    theirs.lin.weight.data = layer.linear.weight.data.clone()
    theirs.att_src.data, theirs.att_dst.data = (
        layer.source.data[None].clone(),
        layer.target.data[None].clone(),
    )
    theirs.bias.data = layer.bias.data.clone()
    found = gradients(lambda x: layer(x, edges), layer, x)
    expected = gradients(lambda x: theirs(x, edges), theirs, x)
    assert_near(found[:2], expected[:2])
    named = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    order = ("att_src", "att_dst", "bias", "lin.weight")
    grads = [layer.source.grad, layer.target.grad, layer.bias.grad, layer.linear.weight.grad]
    assert_near(grads, [named[name].view_as(grad) for name, grad in zip(order, grads, strict=True)])


def test_derivatives_are_those_of_the_function() -> None:
    function = module("model").SegmentAttention.apply
    _, edges = random_graph(8, 20)
    values = torch.randn(8, 2, 3, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(20, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, s: function(v, s, *edges), (values, scores))


def test_the_order_of_edges_is_of_no_account() -> None:
    layer, (x, edges) = attention(), random_graph()
    shuffled = edges[:, torch.randperm(edges.shape[1])]
    expected = gradients(lambda x: layer(x, edges), layer, x)
    assert_near(gradients(lambda x: layer(x, shuffled), layer, x), expected, 1e-6)


def test_renumbered_nodes_have_the_same_outputs() -> None:
    layer, (x, edges) = attention(), random_graph()
    order = torch.randperm(len(x))
    place = order.argsort()
    torch.testing.assert_close(layer(x[order], place[edges]), layer(x, edges)[order])


def test_a_node_without_neighbours_gets_the_bias() -> None:
    layer, (x, edges) = attention(), random_graph()
    found = layer(x, edges)
    assert torch.equal(found[-5:], layer.bias.expand(5, -1))
    none = layer(x, edges[:, :0])
    assert torch.equal(none, layer.bias.expand(len(x), -1))
    none.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_absent_edges_are_as_if_they_were_not_there() -> None:
    layer, (x, edges) = attention(), random_graph()
    present = torch.rand(edges.shape[1]) < 0.5
    found = gradients(lambda x: layer(x, edges, present), layer, x)
    assert_near(found, gradients(lambda x: layer(x, edges[:, present]), layer, x), 1e-6)
    nothing = gradients(lambda x: layer(x, edges, torch.zeros_like(present)), layer, x)
    assert all(tensor.isfinite().all() for tensor in nothing)


def test_large_scores_overflow_nothing() -> None:
    layer, (x, edges) = attention(), random_graph()
    for scale in (1e3, 1e6):
        found = gradients(lambda x, scale=scale: layer(scale * x, edges), layer, x)
        assert all(tensor.isfinite().all() for tensor in found)


# ---- the model ---------------------------------------------------------------------------------


def test_permuted_stocks_have_permuted_predictions(opened) -> None:
    model = network(opened)
    for batch in batches(opened):
        seats = batch["listed"].shape[1]
        order = torch.randperm(seats)
        place = torch.cat([order.argsort(), torch.tensor([-1])])  # −1, no neighbour, stays −1
        moved = {name: batch[name][:, order] for name in ("features", "target", "listed")}
        moved |= {"neighbors": place[batch["neighbors"][:, order]], "index": batch["index"]}
        assert (batch["neighbors"] >= 0).any()
        ours, theirs = model.predict(batch)["prediction"], model.predict(moved)["prediction"]
        torch.testing.assert_close(theirs, ours[:, order], equal_nan=True, rtol=1e-5, atol=1e-7)


def test_renamed_stocks_have_the_same_predictions(tmp_path: Path, opened) -> None:
    """Through the files: other names, so another order of rows, seats and edges."""
    names = dict(zip(NAMES, reversed(NAMES), strict=True))
    place = prepared(tmp_path, table={names[name]: values for name, values in prices().items()})
    renamed = store(place)
    ours, theirs = (
        [network(s).predict(batch)["prediction"] for batch in batches(s)] for s in (opened, renamed)
    )
    assert len(ours) > 3
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(other.flip(1), mine, equal_nan=True, rtol=1e-4, atol=1e-6)


def test_days_of_a_batch_do_not_see_each_other(opened) -> None:
    model, together, alone = network(opened), batches(opened, size=8), batches(opened, size=1)
    for first, batch in enumerate(together):
        parts = alone[8 * first : 8 * first + 8]
        ours = model.predict(batch)["prediction"][: len(parts)]
        theirs = torch.cat([model.predict(part)["prediction"] for part in parts])
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-7)


def test_edges_stay_within_their_day() -> None:
    neighbors = torch.tensor([[[1, -1], [0, 2], [-1, -1]], [[2, 1], [-1, 0], [0, 1]]])
    edges, present = module("model").disjoint_graph(neighbors)
    assert edges.shape == (2, 12)
    found = edges[:, present].T.tolist()
    assert found == [[1, 0], [0, 1], [2, 1], [5, 3], [4, 3], [3, 4], [3, 5], [4, 5]]


def test_a_stock_hears_of_its_neighbours_only(opened) -> None:
    model, batch = network(opened), batches(opened, size=1)[0]
    before = model.predict(batch)["prediction"]
    for seat in range(batch["listed"].shape[1]):
        features = batch["features"].clone()
        features[:, seat] += 0.1
        after = model.predict({**batch, "features": features})["prediction"]
        hears = (batch["neighbors"][0] == seat).any(1)
        hears[seat] = True
        changed = (after != before)[0].any(1)
        assert torch.equal(changed, hears)


def test_isolated_stocks_and_empty_batches_are_finite(opened) -> None:
    model, batch = network(opened).train(), batches(opened)[0]
    alone = {**batch, "neighbors": torch.full_like(batch["neighbors"], -1)}
    nobody = {
        **alone,
        "listed": torch.zeros_like(batch["listed"]),
        "target": torch.full_like(batch["target"], torch.nan),
    }
    for each in (alone, nobody):
        model.zero_grad()
        output = model(each)
        output.loss.backward()
        assert output.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert output.weight == 0
    assert output.loss == 0


def test_unknown_targets_weigh_nothing(opened) -> None:
    model, batch = network(opened), batches(opened)[0]
    target = batch["target"].clone()
    target[0, :3] = torch.nan
    some, all_of_them = model({**batch, "target": target}), model(batch)
    assert some.weight == all_of_them.weight - 3
    assert some.metrics["mse"][1] == some.weight
    assert set(some.metrics) == {"mse", "mae", "mse_original", "mae_original"}
    assert not model.train()(batch).metrics


def test_frequencies_part_a_window_without_loss() -> None:
    x = torch.randn(5, 16, 3)
    main, rest = module("model").FrequencyNormalization(2)(x)
    torch.testing.assert_close(main + rest, x)
    size = torch.fft.rfft(x, dim=1).abs()
    kept = torch.fft.rfft(main, dim=1).abs() > 1e-4
    assert (kept.sum(1) == 2).all()
    assert (size.where(kept, torch.inf).amin(1) >= size.where(~kept, 0).amax(1)).all()
    everything, nothing = module("model").FrequencyNormalization(99)(x)
    torch.testing.assert_close(everything, x)
    assert nothing.abs().max() < 1e-5


def test_windows_look_back_only(opened) -> None:
    """Attention over days is causal: what a block says of a day does not depend on later ones."""
    torch.manual_seed(0)
    block = module("model").TemporalBlock(16, 4, 0.0).eval()
    x = torch.randn(3, 10, 16)
    y = x.clone()
    y[:, 6:] = torch.randn(3, 4, 16)
    torch.testing.assert_close(block(x)[:, :6], block(y)[:, :6])
    assert not torch.allclose(block(x)[:, 6:], block(y)[:, 6:])


def test_a_width_that_heads_cannot_share_is_refused(tmp_path: Path) -> None:
    result = run(render(workload="graph"), "train", "--model.width", "18", cwd=tmp_path)
    one_error(result, "width of 18", "--model.width", "multiple of model.heads")
