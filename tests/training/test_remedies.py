"""What goes wrong for a new user while training: too large, not finite, too long. Each has a
line."""

import math
import re
from pathlib import Path
from shlex import split
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from rendering import render
from running import check_run, losses, one_error, run
from variants import choices

TABULAR = render(workload="tabular", extras=["diagnose"])
memory = imported(TABULAR, "measure.memory_estimate")
host_memory = imported(TABULAR, "measure.host_memory")
nonfinite = imported(TABULAR, "measure.nonfinite")
Settings = imported(TABULAR, "settings").Settings
errors = imported(TABULAR, "engine.errors")


def test_the_cost_of_half_precision_is_measured_without_a_trace():
    module = imported(render(extras=["diagnose"]), "hooks.diagnose")
    random = torch.get_rng_state()
    pattern = r"bf16 on this CPU: a matrix product takes [\d.]+× as long as in fp32 \(measured\)"
    assert re.fullmatch(pattern, module.cost_on_cpu("bf16"))
    assert torch.get_rng_state().equal(random)
    assert not torch.is_autocast_enabled("cpu")


# ---- a batch that is larger than the split, or than the memory -----------------------------------


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_batch_larger_than_the_split_is_reduced_and_resumes(framework, tmp_path):
    project = render(workload="tabular", framework=framework)
    words = split(
        "--data.batch_size 100000000 --training.max_steps 3 --model.width 16"
        " --monitor.every_steps 1 --data.fraction 0.1"
    )
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    done = check_run(project, "train", *words, cwd=whole)
    assert "3 steps of 2,048 samples" in done.out

    check_run(project, "train", *words, "--max-steps", "1", cwd=parts)
    check_run(project, "train", "--resume", cwd=parts)
    assert losses(parts) == losses(whole)


def little_memory(size):
    """For `run(..., before=…)`: so many bytes are free."""

    def place():
        from my_training.measure import memory_estimate  # type: ignore[import-not-found]

        memory_estimate.free_memory = lambda device: size

    return place


def test_a_batch_that_does_not_fit_is_an_error_before_the_first_step(tmp_path):
    """Its rows fit, but not what forward keeps."""
    free = 5_000_000
    flags = ("--data.batch_size", "14000", "--model.width", "64")
    refused = run(TABULAR, "train", *flags, cwd=tmp_path, before=little_memory(free))
    line = one_error(
        refused, "out of memory: a batch of 14,000 samples needs about .+ MB", "MB are free"
    )
    needed, left = (float(size) for size in re.findall(r"([\d.]+) MB", line))
    assert needed > left == free / 1e6
    suggested = int(re.search(r"--data.batch_size (\d+)", line)[1])
    groups = int(re.search(r"gradient_accumulation_steps (\d+)", line)[1])
    assert suggested * groups >= 14_000 > suggested * (groups - 1)
    assert list((tmp_path / "runs").iterdir()) == []
    words = f"--data.batch_size {suggested} --model.width 64 --training.max_steps 1"
    words = split(f"{words} --evaluation.batch_size 64")
    check_run(TABULAR, "train", *words, cwd=tmp_path, before=little_memory(free))


def test_a_batch_of_the_validation_that_does_not_fit_names_its_setting(tmp_path):
    flags = ("--data.batch_size", "8", "--evaluation.batch_size", "3000")
    refused = run(TABULAR, "train", *flags, cwd=tmp_path, before=little_memory(100_000))
    remedy = r": evaluation.batch_size: use --evaluation.batch_size \d"
    line = one_error(refused, "a batch of 3,000 samples", remedy)
    assert "accumulation" not in line


def test_free_memory_is_what_a_container_leaves_and_shared_by_processes(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(host_memory, "CGROUPS", tmp_path)
    cpu = torch.device("cpu")
    outside = memory.free_memory(cpu)
    assert outside > 1 << 20
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 200000\n")
    own = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2].lstrip("/")
    (tmp_path / own).mkdir(parents=True, exist_ok=True)
    assert memory.free_memory(cpu) == 500_000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memory.free_memory(cpu) == 250_000


# ---- a loss that is not finite -------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    given = Settings.load(overrides=[("data.path", str(folder)), ("model.width", "16")])
    imported(TABULAR, "dataset").synthesize(folder, given)
    return given


@pytest.fixture
def failed(settings):
    """A run of the tabular project as an explanation sees it."""
    assemble = imported(TABULAR, "assemble")
    group = imported(TABULAR, "engine.compute.distributed").Distributed()
    project = assemble.assemble(settings, group, assemble.open_store(settings))
    return SimpleNamespace(
        project=project,
        settings=settings,
        loader=project.loader("train", train=True),
        batches_of=lambda step: (0, step, step + 1),
    )


@pytest.mark.parametrize("weights", ["fine", "broken"])
@pytest.mark.parametrize(
    ("name", "column", "value", "says"),
    [
        ("target", slice(None), math.nan, "'target' has nan: epoch 2"),
        ("features", 2, math.inf, r"'features' has inf in column 2 \(wind\): epoch 2"),
        ("target", slice(None), 1e30, "its values are finite, but its loss is not: epoch 2"),
    ],
)
def test_a_bad_sample_is_named_whatever_the_weights_have_become(
    name, column, value, says, weights, failed, monkeypatch
):
    """The synthetic table has empty cells, which are nan in a batch and no fault."""
    number = int(failed.loader.order.indices(1, 8, 9)[0, 5])
    loader = imported(TABULAR, "engine.loading.loader")
    real = loader.deliver

    def deliver(*arguments):
        batch = real(*arguments)
        values = batch[name].view(len(batch["index"]), -1)
        values[batch["index"] == number, column] = value
        return batch

    monkeypatch.setattr(loader, "deliver", deliver)
    if weights == "broken":
        with torch.no_grad():
            for weight in failed.project.model.parameters():
                weight.fill_(math.nan)
    failed.batches_of = lambda step: (1, 7, 9)
    line = str(nonfinite.explain_non_finite(errors.NonFinite("loss", 9), failed))
    assert re.search(says, line), line
    assert f"training sample {number}: fix that sample" in line
    assert "learning_rate" not in line


def test_weights_that_broke_are_named_with_few_samples_and_advice(failed):
    with torch.no_grad():
        failed.project.model.head.weight[0, 0] = math.inf
    line = str(nonfinite.explain_non_finite(errors.NonFinite("loss", 9), failed))
    assert "the loss of step 9 is not finite: the samples are fine, 1 of " in line
    assert "such as head.weight: epoch 1, training samples " in line
    advice = "lower optimizer.learning_rate (0.001); or raise schedule.warmup_steps (auto); or "
    assert line.endswith(f"{advice}lower training.gradient_clip (1)"), line
