"""The extra `muon`: matrices of blocks by Muon, all other weights by AdamW; resumed, on ranks
too."""

from types import SimpleNamespace

import pytest
import torch
from importing import imported
from ranks import run_ranks
from rendering import render
from running import check_run, evaluations, losses, one_error, run, weights
from sizes import TINY
from torch import nn
from variants import choices

MUON = ("--optimizer.name", "muon", "--monitor.every_steps", "1", "--training.precision", "fp32")
SETTINGS = SimpleNamespace(
    name="muon",
    learning_rate=0.01,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.99,
    epsilon=1e-8,
    fused=True,
)


class Block(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.positions = nn.Embedding(3, 4)  # as a block of T5 has one


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def blocks(self):
        return list(self.layers)


def optimizers(model):
    """Muon and AdamW as PyTorch has them."""
    inner = [layer.weight for layer in model.layers]
    tables = [layer.positions.weight for layer in model.layers]
    vectors = [layer.bias for layer in model.layers]
    groups = [
        {"params": [model.embedding.weight, model.head.weight, *tables], "weight_decay": 0.1},
        {"params": [model.head.bias, *vectors], "weight_decay": 0.0},
    ]
    return [
        torch.optim.Muon(inner, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), fused=True),
    ]


def test_each_weight_has_the_step_of_its_own_kind():
    project = imported(render(workload="llm", extras=["muon"]), "muon")
    settings = SimpleNamespace(optimizer=SETTINGS)
    torch.manual_seed(0)
    model = Net()
    other = Net()
    other.load_state_dict(model.state_dict())
    mixed = project.build_muon(model, settings)
    separate = optimizers(other)
    for _ in range(3):
        for weight, same in zip(model.parameters(), other.parameters(), strict=True):
            weight.grad = torch.randn_like(weight)
            same.grad = weight.grad.clone()
        for optimizer in (mixed, *separate):
            optimizer.step()
        for weight, same in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(weight, same)


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_it_learns_and_resumes_bit_for_bit(framework, tmp_path):
    project = render(workload="llm", framework=framework, extras=["muon"])
    words = (*TINY["llm"], *MUON, "--training.max_steps", "8")
    check_run(project, "train", *words, cwd=tmp_path)
    curve = [float.fromhex(loss) for _, loss in losses(tmp_path)]
    expected = (losses(tmp_path), weights(tmp_path))
    assert curve[-1] < curve[0]
    check_run(project, "train", *words, "--max-steps", "3", cwd=tmp_path)
    check_run(project, "train", "--resume", cwd=tmp_path)
    assert (losses(tmp_path), weights(tmp_path)) == expected


@pytest.mark.parametrize("distributed", ["fsdp", "ddp"])
@pytest.mark.first(1)
def test_two_ranks_make_the_steps_of_one(distributed, tmp_path):
    """Up to the rounding of bfloat16; one process resumes with the state of both."""
    project = render(workload="llm", distributed=distributed, extras=["muon"])
    words = (*TINY["llm"], *MUON, "--training.max_steps", "4", "--model.dropout", "0")
    check_run(project, "train", *words, cwd=tmp_path)
    alone = [float.fromhex(loss) for _, loss in losses(tmp_path) + evaluations(tmp_path)]
    words = (*words, "--data.batch_size", "4", "--max-steps", "2")
    results = run_ranks(project, "train", *words, cwd=tmp_path)
    assert [result.code for result in results] == [0, 0], results[0].err[-2000:]
    check_run(project, "train", "--resume", "--data.batch_size", "8", cwd=tmp_path)
    together = [float.fromhex(loss) for _, loss in losses(tmp_path) + evaluations(tmp_path)]
    assert together == pytest.approx(alone, rel=1e-4 if distributed == "ddp" else 5e-3)


def test_a_model_without_matrices_is_one_line(tmp_path):
    words = ("train", "--optimizer.name", "muon", "--model.depth", "1")
    no_matrix = run(render(workload="tabular", extras=["muon"]), *words, cwd=tmp_path)
    one_error(no_matrix, "no block .* matrix", "optimizer.name muon")
