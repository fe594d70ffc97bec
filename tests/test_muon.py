"""optimizer.name muon: matrices of blocks by Muon, the rest by AdamW; resumed bit for bit, on ranks too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from ranks import run_ranks
from rendering import render
from running import evaluations, losses, one_error, run, weights
from test_tier_b import TINY
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


class Block(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.places = torch.nn.Embedding(3, 4)  # as a block of T5 has one


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5)
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))

    def blocks(self) -> list[torch.nn.Module]:
        return list(self.layers)


def test_each_weight_has_the_step_of_its_own_kind() -> None:
    """Also after a state was saved and loaded."""
    optimization = imported(render(workload="llm"), "engine.optimization")
    torch.manual_seed(0)
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())
    mixed = optimization.make_optimizer(model, SETTINGS)
    inner = [layer.weight for layer in other.layers]
    outer = [weight for weight in other.parameters() if all(weight is not w for w in inner)]
    groups = [
        {"params": [w for w in outer if w.dim() == 2], "weight_decay": 0.1},
        {"params": [w for w in outer if w.dim() == 1], "weight_decay": 0.0},
    ]
    by_hand = [
        torch.optim.Muon(inner, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), fused=True),
    ]
    for step in range(4):
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        if step == 2:
            state, mixed = mixed.state_dict(), optimization.make_optimizer(model, SETTINGS)
            mixed.load_state_dict(state)
            for optimizer in (mixed, *by_hand):
                for group in optimizer.param_groups:
                    group["lr"] /= 2
        mixed.step()
        for optimizer in by_hand:
            optimizer.step()
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, its)


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_it_learns_and_resumes_bit_for_bit(framework: str, tmp_path: Path) -> None:
    project = render(workload="llm", framework=framework)
    words = (*TINY["llm"], *MUON, "--training.max_steps", "20")
    assert run(project, "train", *words, cwd=tmp_path).code == 0
    whole = losses(tmp_path), weights(tmp_path)
    assert float.fromhex(whole[0][-1][1]) < 0.9 * float.fromhex(whole[0][0][1])
    for more in ((*words, "--max-steps", "7"), ("--resume",)):
        assert run(project, "train", *more, cwd=tmp_path).code == 0
    assert (losses(tmp_path), weights(tmp_path)) == whole


@pytest.mark.parametrize("distributed", ["fsdp", "ddp"])
@pytest.mark.first(1)
def test_two_ranks_make_the_steps_of_one(distributed: str, tmp_path: Path) -> None:
    """Up to the rounding of bfloat16, of sums over shards too; one process goes on with the state of both."""
    project = render(workload="llm", distributed=distributed)
    words = (*TINY["llm"], *MUON, "--training.max_steps", "12", "--model.dropout", "0")
    assert run(project, "train", *words, cwd=tmp_path).code == 0
    alone = [float.fromhex(loss) for _, loss in losses(tmp_path) + evaluations(tmp_path)]
    for more in (
        (*words, "--data.batch_size", "4", "--max-steps", "5"),
        ("--resume", "--max-steps", "9"),
    ):
        results = run_ranks(project, "train", *more, cwd=tmp_path)
        assert [result.code for result in results] == [0, 0], results[0].err[-2000:]
    assert run(project, "train", "--resume", "--data.batch_size", "8", cwd=tmp_path).code == 0
    found = [float.fromhex(loss) for _, loss in losses(tmp_path) + evaluations(tmp_path)]
    assert found == pytest.approx(alone, rel=1e-4 if distributed == "ddp" else 5e-3)


def test_a_model_without_matrices_in_blocks_is_one_line(tmp_path: Path) -> None:
    words = ("train", "--optimizer.name", "muon", "--model.depth", "1")
    one_error(
        run(render(workload="tabular"), *words, cwd=tmp_path),
        "no block .* matrix",
        "optimizer.name muon",
    )
