"""The extra `lora`: what is trained, saved and resumed, on ranks too; its base; merged weights."""

import json
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from ranks import run_ranks
from rendering import REPOSITORY, render
from running import (
    check_run,
    documented,
    evaluation_of,
    flip_bit,
    last_checkpoint,
    last_state,
    losses,
    newest_run,
    one_error,
    run,
    start,
    weights,
)
from safetensors.torch import load_file, save_file
from sizes import TINY
from variants import choices

EXTRAS = ["lora", "export", "finetune", "ema", "estimate"]
WORDS = (
    *("--model.pretrained", "t5", "--data.batch_size", "8", "--evaluation.batch_size", "32"),
    *("--data.sample_pairs", "120", "--monitor.every_steps", "1", "--schedule.warmup_steps", "2"),
    *("--lora.rank", "4", "--lora.dropout", "0.1", "--optimizer.learning_rate", "0.01"),
    *("--training.max_steps", "6", "--checkpoint.every_steps", "2"),
)
TRAIN = ("train", *WORDS)
BASE = "t5/model.safetensors"
Q = "encoder.block.0.layer.0.SelfAttention.q.weight"
FP32 = torch.float32


def project(**answers):
    return render(**{"workload": "seq2seq", "extras": EXTRAS, "loader": "memmap", **answers})


def save_t5(folder, seed=0):
    """A T5 that fits the bytes of the synthetic data."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
    tokens = {"vocab_size": 257, "decoder_start_token_id": 256, "eos_token_id": 256}
    library = T5ForConditionalGeneration(T5Config(**sizes, **tokens, pad_token_id=256))
    library.save_pretrained(folder)


lora = imported(project(), "hooks.lora")


def settings(**changed):
    return SimpleNamespace(**{"rank": 4, "alpha": 8.0, "dropout": 0.0, "targets": (), **changed})


SETTINGS = settings()


def library_of(folder):
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration.from_pretrained(folder / "t5")


def t5(folder):
    """The project's model with the weights in the folder, without dropout."""
    facts = {"vocabulary": 257, "start": 256, "end": 256, "longest": 64}
    words = {"model.pretrained": str(folder / "t5"), "model.dropout": "0"}
    chosen = imported(project(), "settings").Settings.load(overrides=words.items())
    return imported(project(), "model").build_model(chosen, facts)


def batches(folder, split="train"):
    chosen = imported(project(), "settings").Settings.load(
        overrides={"data.batch_size": "8"}.items()
    )
    store = imported(project(), "engine.loading.store").Store.open(folder / "data/synthetic")
    samples = imported(project(), "dataset").Samples(store, chosen, split)
    make_order = imported(project(), "engine.training.project").make_order
    loader_class = imported(project(), "engine.loading.loader").Loader
    order = make_order(samples, chosen, 0, 1, False)
    return loader_class(samples, store, chosen, order, torch.device("cpu")).epoch(0)


def tensors(model):
    return model.named_parameters()


def evaluated(folder):
    check_run(project(), "evaluate", cwd=folder)
    return evaluation_of(folder)["metrics"]["loss"]


def lines(result, start):
    return [line.strip() for line in result.out.splitlines() if line.strip().startswith(start)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a T5 and a finished run called `whole`."""
    folder = tmp_path_factory.mktemp("trained")
    save_t5(folder / "t5")
    result = check_run(project(), *TRAIN, "--name", "whole", cwd=folder)
    (line,) = lines(result, "LoRA")
    says = "16 layers     lora.rank 4: 4,352 of 31,488 parameters are trained, the others are in"
    assert line.endswith(f"{says} fp32"), line
    assert lines(result, "learning rate")[0].endswith("0.01: --optimizer.learning_rate")
    return folder


@pytest.fixture
def place(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def assert_same(place, trained):
    assert losses(place) == losses(trained)
    assert weights(place) == weights(trained)
    state = last_state(place)["optimizer"]["state"]
    for number, values in last_state(trained)["optimizer"]["state"].items():
        for name, value in values.items():
            assert torch.equal(state[number][name], value)


# ---- what is trained and saved ------------------------------------------------------------------


def test_a_checkpoint_has_matrices_their_state_and_averages_alone(trained):
    state = last_state(trained)
    assert {name.rpartition(".")[2] for name in state["model"]} == {"lora_a", "lora_b"}
    assert len(state["optimizer"]["state"]) == len(state["model"]) == 32
    assert state["hooks"]["ema"]["averages"].keys() == state["model"].keys()
    assert all(tensor.any() for tensor in state["model"].values()), "all of them were trained"
    assert last_checkpoint(trained).stat().st_size < 250_000


@pytest.mark.parametrize("base", ["fp32", "bf16", "int8"])
def test_frozen_weights_stay_and_merged_ones_compute_the_same(base, place):
    """Also under compile and activation checkpointing, whose gradients are the same."""
    optimization = imported(project(), "engine.compute.optimization")
    batch = next(iter(batches(place)))
    model = t5(place)
    plain = model(batch).loss
    lora.attach(model, SETTINGS, base, None)
    tolerance = {"fp32": 1e-6, "bf16": 3e-3, "int8": 3e-2}[base]
    torch.testing.assert_close(model(batch).loss, plain, rtol=tolerance, atol=0)

    frozen = {name: tensor.clone() for name, tensor in tensors(model) if not tensor.requires_grad}
    trained = [tensor for _, tensor in tensors(model) if tensor.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).loss.backward()
        optimizer.step()
    for name, tensor in tensors(model):
        if name in frozen:
            assert tensor.grad is None
            assert torch.equal(lora.plain(tensor, FP32), lora.plain(frozen[name], FP32)), name

    expected = model(batch).loss
    merged = t5(place)
    merged.load_state_dict(lora.merged(model))
    torch.testing.assert_close(merged(batch).loss, expected, rtol=1e-5, atol=0)

    optimizer.zero_grad()
    expected.backward()
    gradients = [tensor.grad.clone() for tensor in trained]
    optimization.checkpoint_blocks(model.blocks())
    if base == "int8":
        for block in model.blocks():
            block.compile(backend="eager", fullgraph=True, dynamic=True)
    optimizer.zero_grad()
    model(batch).loss.backward()
    for gradient, tensor in zip(gradients, trained, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, rtol=1e-4, atol=1e-7)


def test_targets_are_chosen_by_pattern(place):
    model = t5(place)
    assert lora.attach(model, settings(targets=("*.q", "*Att*.v")), "fp32", None) == 6
    names = {name.rpartition(".")[0] for name, weight in tensors(model) if weight.requires_grad}
    assert {name.rpartition(".")[2] for name in names} == {"q", "v"}


# ---- resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", choices("framework"))
def test_a_resumed_run_equals_one_that_never_stopped(framework, trained, tmp_path):
    """With dropout; one of them is killed."""
    shutil.copytree(trained / "t5", tmp_path / "t5")
    if framework == "pytorch":
        training = start(project(), *TRAIN, cwd=tmp_path)
        training.wait_for_rows(4)
        training.kill(signal.SIGKILL)
        training.wait()
    else:
        check_run(project(framework=framework), *TRAIN, "--max-steps", "3", cwd=tmp_path)
    check_run(project(framework=framework), "train", "--resume", cwd=tmp_path)
    assert_same(tmp_path, trained)


STILL = ("--lora.dropout", "0", "--model.dropout", "0", "--training.max_steps", "4")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder with a T5 and a run of one process, without dropout."""
    folder = tmp_path_factory.mktemp("alone")
    save_t5(folder / "t5")
    check_run(project(), *TRAIN, *STILL, "--name", "alone", cwd=folder)
    return folder


def matrices(folder):
    """What the last checkpoint has for the model and the optimizer; one of FSDP has shards."""
    saved = last_checkpoint(folder)
    if not saved.is_dir():
        return last_state(folder)["model"]
    shards = [load_file(shard) for shard in sorted(saved.glob("*.safetensors"))]
    return {
        f"{number} {name}": shard[name] for number, shard in enumerate(shards) for name in shard
    }


@pytest.mark.parametrize("distributed", ["ddp", "fsdp"])
def test_ranks_compute_what_one_process_does(distributed, alone, tmp_path):
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    ranks = project(distributed=distributed)

    def train(*words):
        for result in run_ranks(ranks, *words, cwd=tmp_path):
            assert result.code == 0, result.err[-3000:]

    words = (*TRAIN, *STILL, "--data.batch_size", "4")
    train(*words, "--name", "ranks")
    expected = dict(losses(alone))
    for step, loss in losses(tmp_path):
        assert float.fromhex(loss) == pytest.approx(float.fromhex(expected[step]), abs=1e-5)
    whole = (losses(tmp_path), matrices(tmp_path))
    assert all("lora_" in name or "optimizer/" in name for name in whole[1])

    train(*words, "--max-steps", "2", "--name", "stopped")
    train("train", "--resume", "stopped")
    assert losses(tmp_path) == whole[0]
    resumed = matrices(tmp_path)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole[1].items())

    words = (*words, "--lora.base", "int8", "--training.max_steps", "1")
    if distributed == "ddp":
        train(*words)
    else:
        results = run_ranks(ranks, *words, cwd=tmp_path)
        one_error(results[0], "FSDP cannot shard int8 weights", "lora.base", "choose bf16")


def test_a_damaged_checkpoint_is_passed_over(trained, place):
    flip_bit(last_checkpoint(place), 2000)
    result = check_run(project(), "train", "--resume", cwd=place)
    assert "skipped a damaged checkpoint" in result.err + result.out
    assert_same(place, trained)


def test_another_base_is_one_line(place):
    hashes = (place / ".cache/hashes.json").read_text()
    save_t5(place / "t5", seed=1)
    for command in (("train", "--resume", "whole"), ("evaluate",)):
        result = run(project(), *command, cwd=place)
        one_error(result, "pretrained weights was .* in the checkpoint and is .* now", "step-0000")
    save_t5(place / "t5")
    evaluated(place)
    known = json.loads((place / ".cache/hashes.json").read_text())
    assert len(known) == len(json.loads(hashes)) + 2, "once for each change"
    (place / ".cache/hashes.json").write_text("no JSON")
    evaluated(place)
    (place / BASE).unlink()
    one_error(run(project(), "evaluate", cwd=place), "pretrained model cannot be loaded")


# ---- settings ------------------------------------------------------------------------------------


WRONG = {
    ("lora.base", "nf4"): "4-bit kernels .*choose int8",
    ("lora.base", "fp16"): "Input should be 'auto', 'fp32', 'bf16' or 'int8'",
    ("lora.rank", "-1"): "greater than or equal to 0",
    ("lora.alpha", "0"): "greater than 0",
    ("lora.dropout", "1"): "less than 1",
}


def test_wrong_values_are_one_line_each(place):
    flags = [word for key, value in WRONG for word in (f"--{key}", value)]
    load = imported(project(), "settings").Settings.load
    for words, pattern in WRONG.items():
        with pytest.raises(imported(project(), "engine.errors").UserErrors, match=pattern):
            load(overrides=[words])
    result = run(project(), *TRAIN, *flags[:2], cwd=place)
    one_error(result, "lora.base cannot be 'nf4'", WRONG["lora.base", "nf4"])
    result = run(project(), *TRAIN, "--lora.targets", "*.nothing", cwd=place)
    one_error(result, "no linear layer's name matches", "lora.targets: the names are t5.encoder")
    words = ("train", "--resume", "whole", "--lora.rank", "8")
    one_error(run(project(), *words, cwd=place), "a resumed run cannot change lora.rank")
    phases = ("--finetune.phases", "[{training.max_steps: 1}]", "--model.pretrained", "")
    one_error(run(project(), *TRAIN, *phases, cwd=place), "all phases need the same pretrained")
    assert [path.name for path in (place / "runs").iterdir()] == ["whole"]


def test_the_learning_rate_fits_what_is_trained():
    load = imported(project(), "settings").Settings.load
    expected = {
        (): 1e-3,
        ("model.pretrained", "t5"): 2e-4,
        ("finetune.init_from", "x"): 2e-4,
        ("model.pretrained", "t5", "lora.rank", "0"): 2e-5,
        ("model.pretrained", "t5", "optimizer.learning_rate", "0.5"): 0.5,
    }
    for words, rate in expected.items():
        overrides = zip(words[::2], words[1::2], strict=True)
        assert load(overrides=overrides).optimizer.learning_rate == rate, words


# ---- export --------------------------------------------------------------------------------------


def test_an_adapter_has_the_matrices_by_the_names_of_the_library(place):
    check_run(project(), "export", "--adapter", cwd=place)
    folder = newest_run(place) / "adapter"
    config = json.loads((folder / "adapter_config.json").read_text())
    kinds = (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"])
    assert kinds == ("LORA", "SEQ_2_SEQ_LM", 4, 32.0)
    library = dict(library_of(place).named_modules())
    assert all(isinstance(library[name], torch.nn.Linear) for name in config["target_modules"])

    adapter = load_file(folder / "adapter_model.safetensors")
    state = last_state(place)["model"]
    assert len(adapter) == len(state) == 2 * len(config["target_modules"])
    for name, tensor in state.items():
        layer, _, matrix = name.removeprefix("t5.").rpartition(".lora_")
        theirs = f"base_model.model.{layer}.lora_{matrix.upper()}.weight"
        assert torch.equal(adapter[theirs], tensor)


def test_an_exported_model_is_the_merged_one(place):
    """The library computes the same with it."""
    loss = evaluated(place)
    check_run(project(), "export", cwd=place)
    exported = load_file(newest_run(place) / "export/model.safetensors")
    library = library_of(place)
    base = {name: tensor.clone() for name, tensor in library.state_dict().items()}
    names = {name.removeprefix("t5."): tensor for name, tensor in exported.items()}
    library.load_state_dict(names, strict=False)
    assert not torch.equal(library.state_dict()[Q], base[Q])
    assert torch.equal(library.shared.weight, base["shared.weight"])
    whole = t5(place)
    whole.t5.load_state_dict(library.state_dict())
    total = count = 0.0
    with torch.no_grad():
        for batch in batches(place, "test"):
            output = whole.eval()(batch)
            total += float(output.loss * output.total_weight)
            count += float(output.total_weight)
    assert total / count == pytest.approx(loss, rel=1e-5)


# ---- costs ---------------------------------------------------------------------------------------


def test_an_estimate_counts_what_is_stored(place):
    """Also for a T5 from a folder, whose weights are not read."""
    costs = imported(project(), "measure.costs")
    batch = next(iter(batches(place)))
    sizes = {}
    for base in ("fp32", "bf16", "int8"):

        def build(base=base):
            model = t5(place)
            lora.attach(model, SETTINGS, base, torch.bfloat16)
            return model

        counted = costs.count(build, batch, "bf16")
        assert (counted.parameters, counted.frozen) == (4352, 27136)
        sizes[base] = counted.weight_bytes - 4 * counted.parameters
    assert sizes["fp32"] == 4 * 27136
    assert 2 * 27136 < sizes["bf16"] < 2.02 * 27136, "norms stay in fp32"
    assert sizes["int8"] < 0.75 * sizes["bf16"]


# ---- llm -----------------------------------------------------------------------------------------


def test_llm_trains_on_the_weights_of_a_run(tmp_path):
    llm = project(workload="llm")
    words = ("train", *TINY["llm"], "--training.max_steps", "4", "--monitor.every_steps", "1")
    check_run(llm, *words, "--name", "source", cwd=tmp_path)
    source = last_state(tmp_path)["model"]
    words += ("--finetune.init_from", "source", "--lora.rank", "4", "--lora.dropout", "0.1")
    check_run(llm, *words, "--name", "whole", cwd=tmp_path)
    assert all("lora_" in name for name in last_state(tmp_path)["model"])
    expected = (losses(tmp_path), weights(tmp_path))
    check_run(llm, *words, "--name", "stopped", "--max-steps", "2", cwd=tmp_path)
    check_run(llm, "train", "--resume", cwd=tmp_path)
    assert (losses(tmp_path), weights(tmp_path)) == expected
    check_run(llm, "generate", "--tokens", "3", cwd=tmp_path)
    check_run(llm, "export", "--adapter", cwd=tmp_path)

    del source["head.norm.weight"]
    save_file(source, tmp_path / "part.safetensors")
    result = run(llm, *words, "--finetune.init_from", "part.safetensors", cwd=tmp_path)
    one_error(result, "LoRA would freeze weights that are new and stay random: head.norm.weight")
    result = run(llm, *words, "--finetune.init_from", "stopped", cwd=tmp_path)
    one_error(result, "no weight fits this model")


# ---- the page ------------------------------------------------------------------------------------


def test_the_pages_commands_work(trained, tmp_path):
    """What it prints at the start is what a run prints."""
    shutil.copytree(trained / "t5", tmp_path / "t5")
    page = REPOSITORY / "docs/how-to/lora.md"
    train, *others = documented(page)
    shown = [line.strip() for line in page.read_text().splitlines() if line.startswith("    L")]
    result = check_run(project(), *train, *WORDS[2:6], "--max-steps", "2", cwd=tmp_path)
    assert lines(result, "LoRA") == shown
    for words in others:
        check_run(project(), *words, cwd=tmp_path)
