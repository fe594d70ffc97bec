"""The model of the workload `graph`: attention over edges, days that do not see each other, no
later days."""

import pytest
import stocks
import torch
from running import one_error
from stocks import GRAPH, batches, module
from torch.nn.functional import leaky_relu


@pytest.fixture
def opened(tmp_path_factory):
    return stocks.example(tmp_path_factory.getbasetemp())


# ---- graph attention ---------------------------------------------------------------------------


def random_graph(nodes=40, edges=150):
    """Features (N, 6) and edges (2, E), some twice; the last five nodes have no edge into them."""
    torch.manual_seed(0)
    source = torch.randint(nodes, (edges,))
    target = torch.randint(nodes - 5, (edges,))
    return torch.randn(nodes, 6), torch.stack([source, target])


def attention():
    """(N, 6) to four heads of 3."""
    torch.manual_seed(0)
    layer = module("layers").GraphAttention(6, 3, 4)
    torch.nn.init.normal_(layer.bias)
    return layer


def dense(layer, x, edges):
    """The layer by the book: one softmax per node and head, over its list of neighbours."""
    values = (x @ layer.linear.weight.T).view(len(x), layer.heads, -1)
    rows = []
    for node in range(len(x)):
        into = edges[1] == node
        near = values[edges[0, into]]  # (n, H, C)
        score = (near * layer.source).sum(2) + (values[node] * layer.target).sum(1)
        share = leaky_relu(score, 0.2).softmax(0)
        rows.append((share.unsqueeze(2) * near).sum(0).flatten())
    return torch.stack(rows) + layer.bias


def gradients(function, layer, x):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = function(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


def assert_near(ours, theirs, tolerance=1e-5):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def test_attention_is_what_the_book_says():
    x, edges = random_graph()
    layer = attention()
    exact = attention().double()
    by_the_book = gradients(lambda x: dense(exact, x, edges), exact, x.double())
    assert_near(gradients(lambda x: layer(x, edges), layer, x), by_the_book)


def test_absent_edges_are_as_if_they_were_not_there():
    layer = attention()
    x, edges = random_graph()
    present = torch.rand(edges.shape[1]) < 0.5
    masked = gradients(lambda x: layer(x, edges, present), layer, x)
    assert_near(masked, gradients(lambda x: layer(x, edges[:, present]), layer, x), 1e-6)
    nothing = gradients(lambda x: layer(x, edges, torch.zeros_like(present)), layer, x)
    assert all(tensor.isfinite().all() for tensor in nothing)


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_large_scores_overflow_nothing(scale):
    layer = attention()
    x, edges = random_graph()
    tensors = gradients(lambda x: layer(scale * x, edges), layer, x)
    assert all(tensor.isfinite().all() for tensor in tensors)


# ---- the model ---------------------------------------------------------------------------------


@pytest.fixture
def model(opened):
    torch.manual_seed(0)
    settings = GRAPH.settings("--model.width", "16")
    return module("model").build_model(settings, opened.facts).eval()


def predicted(model, batch):
    return model.predict(batch)["prediction"]


def test_a_stock_hears_of_its_neighbours_only(model, opened):
    batch = batches(opened, size=1)[0]
    before = predicted(model, batch)
    for seat in range(batch["listed"].shape[1]):
        features = batch["features"].clone()
        features[:, seat] += 0.1
        after = predicted(model, {**batch, "features": features})
        hears = (batch["neighbors"][0] == seat).any(1)
        hears[seat] = True
        assert torch.equal((after != before)[0].any(1), hears)


def test_isolated_stocks_and_empty_batches_are_finite(model, opened):
    batch = batches(opened)[0]
    alone = {**batch, "neighbors": torch.full_like(batch["neighbors"], -1)}
    nobody = {
        **alone,
        "listed": torch.zeros_like(batch["listed"]),
        "target": torch.full_like(batch["target"], torch.nan),
    }
    for odd in (alone, nobody):
        model.zero_grad()
        output = model.train()(odd)
        output.loss.backward()
        assert output.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert (output.total_weight, output.loss) == (0, 0)


def test_unknown_targets_weigh_nothing(model, opened):
    batch = batches(opened)[0]
    target = batch["target"].clone()
    target[0, :3] = torch.nan
    output = model({**batch, "target": target})
    assert output.total_weight == model(batch).total_weight - 3
    assert output.metrics["mse"][1] == output.total_weight
    assert set(output.metrics) == {"mse", "mae", "mse_original", "mae_original"}
    assert not model.train()(batch).metrics


def test_frequencies_part_a_window_without_loss():
    x = torch.randn(5, 16, 3)
    main, residual = module("layers").split_frequencies(x, 2).chunk(2, 2)
    torch.testing.assert_close(main + residual, x)
    size = torch.fft.rfft(x, dim=1).abs()
    kept = torch.fft.rfft(main, dim=1).abs() > 1e-4
    assert (kept.sum(1) == 2).all()
    assert (size.where(kept, torch.inf).amin(1) >= size.where(~kept, 0).amax(1)).all()


def test_windows_look_back_only():
    """Attention over days is causal: what a block says of a day does not depend on later ones."""
    block = module("layers").TemporalBlock(16, 4, 0.0).eval()
    x = torch.randn(3, 10, 16)
    y = x.clone()
    y[:, 6:] = torch.randn(3, 4, 16)
    torch.testing.assert_close(block(x)[:, :6], block(y)[:, :6])
    assert not torch.allclose(block(x)[:, 6:], block(y)[:, 6:])


def test_a_width_that_heads_cannot_share_is_refused(tmp_path):
    result = GRAPH.run("train", "--model.width", "18", cwd=tmp_path)
    one_error(result, "width of 18", "model.width", "multiple of model.heads")
