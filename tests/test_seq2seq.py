"""The workload `seq2seq`: pairs, padding, T5 against the library, decoding, pretrained weights, metrics."""

from __future__ import annotations

import functools
import gzip
import json
import math
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from importing import imported
from rendering import REPOSITORY, render
from running import Result, evaluations, losses, newest_run, one_error, run, weights
from torch.nn import functional

PAIRS = [
    (f"the {color} {animal} number {number} runs", f"{animal} {number % 3}")
    for number, (color, animal) in enumerate(
        [(color, animal) for color in ("red", "blue", "green", "grey") for animal in ("fox", "dog")]
        * 15
    )
]
LONG = [
    (" ".join(["very"] * (1 + number % 9) + [source]), target)
    for number, (source, target) in enumerate(PAIRS)
]
LONG += LONG[:7]
SMALL = (
    *("--model.layers", "1", "--model.width", "32", "--model.heads", "2", "--model.hidden", "64"),
    *("--data.batch_size", "8", "--monitor.every_steps", "1", "--schedule.warmup_steps", "5"),
)
LOADERS = ("memmap", "dataloader", "chunk")


def project(**answers: str) -> Path:
    return render(workload="seq2seq", **answers)


def module(name: str) -> Any:
    return imported(project(), name)


def as_tsv(pairs: Any) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def prepare(
    folder: Path, content: str | bytes = "", *flags: str, name: str = "pairs.tsv"
) -> Result:
    """Writes the content into the folder as a file and prepares it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return run(project(), "prepare", "--input", name, *flags, cwd=folder)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with LONG as bytes in `data`."""
    folder = tmp_path_factory.mktemp("prepared")
    result = prepare(folder, as_tsv(LONG), "--split", "0.7,0.15,0.15")
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").symlink_to(prepared / "data")
    return tmp_path


def store(folder: Path, data: str = "data") -> Any:
    return module("engine.store").Store.open(folder / data)


def settings(*flags: str) -> Any:
    pairs = [
        (key.removeprefix("--"), value) for key, value in zip(flags[::2], flags[1::2], strict=True)
    ]
    return module("config").load(overrides=pairs)


def stored_pairs(folder: Path, split: str) -> list[tuple[str, str]]:
    """The texts of a split, as they were stored."""
    opened = store(folder)
    tokenizer = module("tokenizer").restore(opened.facts["tokenizer"])
    offsets = opened.arrays["offsets"].rows()
    sides = [opened.arrays[name].rows() for name in ("source", "target")]
    found = []
    for pair in range(*opened.splits[split]):
        texts = []
        for side, tokens in enumerate(sides):
            text = tokens[offsets[pair, side] : offsets[pair + 1, side]].tolist()
            assert text[-1] == tokenizer.end
            texts.append(tokenizer.decode(text[:-1]).decode("utf-8", "replace"))
        found.append((texts[0], texts[1]))
    return found


def batches(
    folder: Path, split: str = "train", *flags: str, loader: str = "memmap", train: bool = False
) -> list[dict[str, torch.Tensor]]:
    opened, chosen = store(folder), settings(*SMALL, *flags)
    samples = module("dataset").Samples(opened, chosen, split)
    samples.training = train
    part = project(loader=loader)
    order = imported(part, "engine.order").order_of(samples, chosen, train=train)
    made = imported(part, "engine.loader").Loader(
        samples, opened, chosen, order, torch.device("cpu")
    )
    found = [{name: value.clone() for name, value in batch.items()} for batch in made.epoch(0)]
    made.close()
    return found


def facts(**changed: Any) -> dict[str, Any]:
    return {"vocabulary": 257, "start": 256, "end": 256, "longest": 12, **changed}


def small_model(*flags: str, seed: int = 0, **changed: Any) -> Any:
    torch.manual_seed(seed)
    return module("model").build_model(settings(*SMALL, *flags), facts(**changed))


# ---- pairs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "tsv.gz", "jsonl.gz"])
def test_every_kind_of_file_gives_the_same_pairs(kind: str, prepared: Path, tmp_path: Path) -> None:
    text = as_tsv(LONG)
    if "jsonl" in kind:
        text = "".join(
            json.dumps({"in": source, "out": target, "n": 1}) + "\n" for source, target in LONG
        )
    content = (
        gzip.compress(text.encode()) if kind.endswith("gz") else b"\xef\xbb\xbf" + text.encode()
    )
    flags = ("--source-key", "in", "--target-key", "out") if "jsonl" in kind else ()
    result = prepare(tmp_path, content, "--split", "0.7,0.15,0.15", *flags, name=f"pairs.{kind}")
    assert result.code == 0, result.err
    for split in ("train", "validation", "test"):
        assert stored_pairs(tmp_path, split) == stored_pairs(prepared, split)


def test_pairs_are_split_whole_each_once(prepared: Path) -> None:
    parts = {split: stored_pairs(prepared, split) for split in ("train", "validation", "test")}
    unique = set(LONG)
    assert len(unique) < len(LONG)
    assert [len(part) for part in parts.values()] == [
        len(unique) - 2 * round(0.15 * len(unique))
    ] + [round(0.15 * len(unique))] * 2
    assert set.union(*map(set, parts.values())) == unique
    assert sum(map(len, parts.values())) == len(unique)


def test_files_of_their_own_validate_and_test(tmp_path: Path) -> None:
    (tmp_path / "val.tsv").write_text(as_tsv([PAIRS[0], ("new", "one"), ("new", "two")]))
    (tmp_path / "test.tsv").write_text(as_tsv([("new", "one"), ("last", "three")]))
    result = prepare(tmp_path, as_tsv(PAIRS), "--validation", "val.tsv", "--test", "test.tsv")
    assert result.code == 0, result.err
    assert "2 copies" in result.out
    assert stored_pairs(tmp_path, "train") == PAIRS, "as they come"
    assert stored_pairs(tmp_path, "validation") == [("new", "one"), ("new", "two")]
    assert stored_pairs(tmp_path, "test") == [("last", "three")]


@pytest.mark.parametrize("kind", ["byte", "char", "space", "bpe"])
def test_every_tokenizer_gives_the_texts_back(kind: str, tmp_path: Path) -> None:
    pairs = [(f"naïve 漢字 🙂 {source}", f"é {target}") for source, target in PAIRS]
    result = prepare(
        tmp_path, as_tsv(pairs), "--tokenizer", kind, "--vocabulary", "320", "--unknown"
    )
    assert result.code == 0, result.err
    assert set(stored_pairs(tmp_path, "train")) <= set(pairs)
    opened = store(tmp_path)
    assert opened.facts["vocabulary"] == opened.facts["end"] + 1
    train = slice(*opened.splits["train"])
    sizes = [len(target.encode()) for _, target in stored_pairs(tmp_path, "train")]
    assert opened.arrays["target_bytes"].rows()[train].tolist() == sizes


def test_what_is_too_long_is_cut_left_out_or_refused_and_counted(tmp_path: Path) -> None:
    pairs = [*PAIRS, ("x" * 60, "long source"), ("a source", "y" * 60), ("é" * 30, "é" * 30)]
    limits = ("--max-source", "50", "--max-target", "20", "--split", "1,0,0")
    (tmp_path / "val.tsv").write_text("a\tb\n")
    flags = (*limits[:4], "--validation", "val.tsv")
    cut = prepare(tmp_path, as_tsv(pairs), *flags)
    assert cut.code == 0, cut.err
    assert "2 sources of train: cut" in cut.out
    assert "2 targets of train: cut" in cut.out
    stored = stored_pairs(tmp_path, "train")
    assert stored[-3:-1] == [("x" * 49, "long source"), ("a source", "y" * 19)]
    opened = store(tmp_path)
    assert opened.arrays["target_bytes"].rows()[opened.splits["train"][1] - 1] == 19, (
        "half a character stays"
    )
    assert opened.facts["longest"] == 20
    skipped = prepare(tmp_path, as_tsv(pairs), *flags, "--too-long", "skip")
    assert "2 sources of train: left out" in skipped.out
    assert stored_pairs(tmp_path, "train") == PAIRS
    refused = prepare(tmp_path, as_tsv(pairs), *flags, "--too-long", "refuse")
    one_error(refused, "source of more than 50 tokens", r"pairs.tsv, line 121", "--max-source")


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path: Path) -> None:
    dataset = module("dataset")
    for vocabulary, dtype in ((2**16, "uint16"), (2**16 + 1, "uint32")):
        last = vocabulary - 1
        tokenizer = SimpleNamespace(end=1, facts=dict)
        pair = dataset.Pair(np.array([last, 1]), np.array([last, last, 1]), 2)
        splits = {"train": [pair] * 3, "validation": [pair], "test": []}
        dataset.write(tmp_path / dtype, tokenizer, splits, {"vocabulary": vocabulary, "start": 0})
        opened = store(tmp_path, dtype)
        assert opened.arrays["source"].dtype == dtype
        assert opened.splits == {"train": [0, 3], "validation": [3, 4], "test": [4, 4]}
        assert not len(dataset.Samples(opened, settings(), "test"))
        rows = dataset.Samples(opened, settings(), "train").spans(np.array([0]), 0)["target"]
        assert (rows.starts, rows.lengths, rows.width) == (0, 3, 8)
        tensor = imported(project(), "engine.rows").mapped(opened.arrays["target"])
        assert tensor.numpy().view(dtype)[:3].tolist() == [last, last, 1]


@pytest.mark.parametrize("loader", LOADERS)
def test_batches_hold_the_pairs_one_place_apart(loader: str, prepared: Path) -> None:
    for split in ("train", "test"):
        expected = stored_pairs(prepared, split)
        seen = {}
        for batch in batches(prepared, split, loader=loader):
            longest = [
                batch["source_present"].sum(1).max(),
                (batch["targets"] != -100).sum(1).max(),
            ]
            for name, length in zip(("source", "targets"), longest, strict=True):
                assert batch[name].shape[1] == -(-int(length) // 8) * 8, "no wider than it must be"
            for row in range(len(batch["index"])):
                number = int(batch["index"][row])
                target = batch["targets"][row]
                if number < 0:
                    assert (target == -100).all()
                    assert batch["source_present"][row].sum() == 1, (
                        "else attention would be over nothing"
                    )
                    continue
                source = batch["source"][row][batch["source_present"][row]].tolist()
                kept = target[target != -100].tolist()
                assert source[-1] == kept[-1] == 256
                assert batch["decoder_input"][row, : len(kept)].tolist() == [256, *kept[:-1]]
                seen[number] = (bytes(source[:-1]).decode(), bytes(kept[:-1]).decode())
                assert batch["target_bytes"][row] == len(kept) - 1
        assert [seen[number] for number in range(len(expected))] == expected


def test_bucketing_pads_less_and_the_numbers_are_printed(prepared: Path) -> None:
    shares = {}
    for order in ("bucket", "full"):
        found = batches(prepared, "train", "--data.order", order, train=True)
        real = sum(int(batch["source_present"][batch["index"] >= 0].sum()) for batch in found)
        places = sum(batch["source"].shape[1] * int((batch["index"] >= 0).sum()) for batch in found)
        shares[order] = 1 - real / places
        assert not any("target_bytes" in batch for batch in found)
        assert (
            sorted(torch.cat([batch["index"] for batch in found]).tolist())[-1]
            == len(stored_pairs(prepared, "train")) - 1
        )
    assert shares["bucket"] < 0.6 * shares["full"]
    again = run(
        project(), "prepare", "--input", "pairs.tsv", "--split", "0.7,0.15,0.15", "--data.path", "again",
        "--data.batch_size", "8", cwd=prepared,
    )  # fmt: skip
    for order, share in shares.items():
        (printed,) = re.findall(rf"(\d+)% of source, \d+% of target, order {order}", again.out)
        assert int(printed) == pytest.approx(100 * share, abs=0.5001)
    assert (prepared / "again/manifest.json").exists()


def test_a_fraction_is_the_same_pairs_every_time(prepared: Path) -> None:
    seen = []
    for epoch_seed in ("1", "2"):
        flags = ("--data.fraction", "0.2", "--reproducibility.seed", epoch_seed)
        found = batches(prepared, "train", *flags, train=True)
        seen.append({int(number) for batch in found for number in batch["index"] if number >= 0})
    count = len(stored_pairs(prepared, "train"))
    assert seen[0] == seen[1]
    assert len(seen[0]) == round(0.2 * count)
    whole = batches(prepared, "validation", "--data.fraction", "0.2")
    validated = sum(int((batch["index"] >= 0).sum()) for batch in whole)
    assert validated == len(stored_pairs(prepared, "validation"))


# ---- the model against the library ---------------------------------------------------------------


Batch = dict[str, torch.Tensor]


def random_batch(pairs: int = 5, source: int = 24, target: int = 16, seed: int = 1) -> Batch:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, source + 1, (pairs,), generator=random)
    kept = torch.randint(1, target + 1, (pairs,), generator=random)
    tokens = torch.randint(256, (pairs, source), generator=random)
    targets = torch.randint(256, (pairs, target), generator=random)
    present = torch.arange(source) < lengths[:, None]
    behind = torch.arange(target) >= kept[:, None]
    return {
        "source": tokens.masked_fill(~present, 0),
        "source_present": present,
        "decoder_input": functional.pad(targets[:, :-1], (1, 0), value=256),
        "targets": targets.masked_fill(behind, -100),
        "target_bytes": kept,
    }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
@pytest.mark.parametrize("fused", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_loss_and_gradients_are_those_of_the_library(
    attention: str, feed_forward: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import T5ForConditionalGeneration

    monkeypatch.setattr(module("model"), "UNFUSED", set() if fused else {"cpu"})
    model = small_model(
        "--model.layers", "2", "--model.dropout", "0", "--model.feed_forward", feed_forward
    )
    config = type(model.t5.config)(**model.t5.config.to_dict())
    config._attn_implementation = attention
    library = T5ForConditionalGeneration(config)
    library.load_state_dict(model.t5.state_dict())
    batch = random_batch()
    found = model.train()(batch)
    expected = library.train()(
        input_ids=batch["source"],
        attention_mask=batch["source_present"].long(),
        labels=batch["targets"],
    )
    torch.testing.assert_close(found.loss, expected.loss)
    assert found.weight == (batch["targets"] != -100).sum()
    for made in (found, expected):
        made.loss.backward()
    theirs = dict(library.named_parameters())
    for name, parameter in model.t5.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6)


def test_twenty_places_more_of_padding_change_nothing() -> None:
    model = small_model("--model.layers", "2", "--model.dropout", "0")
    batch = random_batch()
    padded = {
        "source": functional.pad(batch["source"], (0, 20), value=7),
        "source_present": functional.pad(batch["source_present"], (0, 20)),
        "decoder_input": functional.pad(batch["decoder_input"], (0, 20), value=7),
        "targets": functional.pad(batch["targets"], (0, 20), value=-100),
        "target_bytes": batch["target_bytes"],
    }
    gradients = []
    for made in (batch, padded):
        output = model.train()(made)
        output.loss.backward()
        gradients.append([output.loss.detach(), *(p.grad.clone() for p in model.parameters())])
        model.zero_grad()
        with torch.no_grad():
            output = model.eval()(made)
            gradients[-1] += [part for pair in output.metrics.values() for part in pair]
            gradients[-1].append(model.generate(made["source"], made["source_present"], 9))
    for plain, wide in zip(*gradients, strict=True):
        torch.testing.assert_close(wide, plain, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "count"), [("small", 60_506_624), ("base", 222_903_552), ("large", 737_668_096)]
)
def test_the_sizes_are_those_of_t5(size: str, count: int) -> None:
    """The counts of T5's published weights, whose vocabulary has 32,128 rows."""
    with torch.device("meta"):
        made = module("model").build_model(settings("--model.size", size), facts(vocabulary=32_128))
    assert sum(parameter.numel() for parameter in made.parameters()) == count
    assert len(made.blocks()) == 2 * settings("--model.size", size).model.shape.layers


def test_flops_of_a_mean_pair_are_those_of_the_formula(prepared: Path) -> None:
    """6 for each weight and token that it meets, and the products of attention; padding is no work."""
    chosen = settings(*SMALL, "--model.dropout", "0")
    samples = module("dataset").Samples(store(prepared), chosen, "train")
    lengths = [len(source) + 1 for source, _ in stored_pairs(prepared, "train")]
    S, T = round(sum(lengths) / len(lengths)), samples.tokens
    assert {name: value.shape[1] for name, value in samples.typical().items()} == {
        "source": S, "source_present": S, "decoder_input": T, "targets": T
    }  # fmt: skip
    build = functools.partial(module("model").build_model, chosen, store(prepared).facts)
    found = module("hooks.throughput").count_flops(build, samples.typical())
    inner, width, hidden = 2 * 32, 32, 64
    projections = 4 * width * inner
    weights_met = S * (projections + 2 * width * hidden)  # the encoder
    weights_met += (
        T * (projections * 3 // 2 + 2 * width * hidden) + S * projections // 2 + T * 320 * width
    )
    products = 2 * inner * (S * S + T * T + S * T)
    assert found == pytest.approx(6 * (weights_met + products), rel=0.02)


def test_layers_compile_whole_and_for_any_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `compile_blocks`: a graph for the encoder and one for the decoder, in training and in evaluation."""
    model, plain = small_model("--model.layers", "2"), small_model("--model.layers", "2")
    torch._dynamo.reset()
    graphs = []

    def counting(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    real = torch.nn.Module.compile

    def compiled(block: Any, mode: str, **options: Any) -> None:
        real(block, backend=counting, **options)

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    optimization = module("engine.optimization")
    done, _ = optimization.compile_blocks(
        model.blocks(), settings("--compile.enabled", "true"), None
    )
    assert done == "4 blocks, mode default"
    for number, (pairs, source, target) in enumerate(
        [
            (4, 24, 16),
            (4, 32, 16),
            (4, 32, 24),
            (4, 64, 64),
            (4, 8, 16),
            (4, 16, 8),
            (4, 8, 8),
            (9, 40, 8),
        ]
    ):
        batch = random_batch(pairs, source, target, seed=number)
        for made in (model, plain):
            torch.manual_seed(3)
            made.zero_grad()
            made.train()(batch).loss.backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(batch).loss, plain.eval()(batch).loss)
    assert len(graphs) == 4
    one, other = (
        made.generate(batch["source"], batch["source_present"], 6) for made in (model, plain)
    )
    assert torch.equal(one, other)
    assert len(graphs) == 4, "decoding compiles nothing"
    torch._dynamo.reset()


# ---- decoding ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned() -> Any:
    """A model that has learnt to copy a source's first bytes, often but not always right."""
    model = small_model("--model.dropout", "0", "--model.width", "64", "--model.hidden", "128")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(300):
        model(copying(32, step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def copying(pairs: int, seed: int) -> Batch:
    random = torch.Generator().manual_seed(seed)
    batch = random_batch(pairs, 16, 8, seed)
    source = torch.randint(97, 103, batch["source"].shape, generator=random)
    length = torch.randint(1, 4, (pairs,), generator=random)
    place = torch.arange(8)
    targets = source[:, :8].masked_fill(place == length[:, None], 256)
    source = source.masked_fill(torch.arange(16) == length[:, None], 104).masked_fill(
        ~batch["source_present"], 0
    )
    present = batch["source_present"] | (torch.arange(16) <= length[:, None])
    return {
        "source": source,
        "source_present": present,
        "decoder_input": functional.pad(targets[:, :-1], (1, 0), value=256),
        "targets": targets.masked_fill(place > length[:, None], -100),
        "target_bytes": length,
    }


def test_exact_match_is_that_of_decoding_greedily(learned: Any) -> None:
    batch = copying(64, 999)
    with torch.no_grad():
        total, count = learned(batch).metrics["exact_match"]
    found = learned.generate(batch["source"], batch["source_present"], 8)
    same = [
        row.tolist()[: len(kept)] == kept
        for row, target in zip(found, batch["targets"], strict=True)
        if (kept := target[target != -100].tolist())
    ]
    assert count == 64
    assert 5 < sum(same) < 60
    assert total == sum(same)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_prediction_is_the_same_in_any_batch(learned: Any, beams: int) -> None:
    batch = copying(64, 998)
    whole = learned.generate(batch["source"], batch["source_present"], 8, beams)
    assert whole.shape == (64, 8)
    for row in range(0, 64, 7):
        real = int(batch["source_present"][row].nonzero().max()) + 1
        alone = learned.generate(
            batch["source"][row : row + 1, :real],
            batch["source_present"][row : row + 1, :real],
            8,
            beams,
        )
        assert torch.equal(alone[0], whole[row])
    end = (whole == 256).int()
    assert (end.cummax(1).values == end).all(), "nothing stands behind an end"


def likelihood(model: Any, batch: dict[str, torch.Tensor], found: torch.Tensor) -> torch.Tensor:
    """(B,) mean log-likelihood of a token, the end included."""
    behind = (found == 256).int().cumsum(1) > (found == 256).int()
    targets = found.masked_fill(behind, -100)
    memory, bias = model._encode(batch["source"], batch["source_present"])
    logits = model._decode(functional.pad(found[:, :-1], (1, 0), value=256), memory, bias)
    logits[..., 257:] = -math.inf
    loss = functional.cross_entropy(logits.mT, targets, reduction="none", ignore_index=-100)
    return -loss.sum(1) / (targets != -100).sum(1)


def test_beams_find_likelier_targets_and_a_cache_changes_none(learned: Any) -> None:
    batch = copying(48, 997)
    greedy, beam = (
        learned.generate(batch["source"], batch["source_present"], 8, beams) for beams in (1, 5)
    )
    assert not torch.equal(greedy, beam)
    with torch.no_grad():
        gain = likelihood(learned, batch, beam) - likelihood(learned, batch, greedy)
    assert gain.mean() > 0
    assert (gain > -1e-4).float().mean() > 0.9
    for beams, expected in ((1, greedy), (5, beam)):
        learned.t5.generation_config.use_cache = False
        without = learned.generate(batch["source"], batch["source_present"], 8, beams)
        learned.t5.generation_config.use_cache = True
        assert torch.equal(without, expected)


def test_what_pads_the_vocabulary_is_never_made() -> None:
    model = small_model(vocabulary=65, start=64, end=64).eval()
    assert model.t5.config.vocab_size == 128
    with torch.no_grad():
        model.t5.shared.weight[65:] = 50 * torch.randn(63, 32)
    source = torch.randint(64, (4, 8))
    assert model.generate(source, source >= 0, 20).max() < 65


# ---- metrics -------------------------------------------------------------------------------------


class Rank:
    """One of two ranks in turn: the second adds its sums to those that the first left."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        self.kept.append(value)
        return torch.stack(self.kept).sum(0)


def test_each_metric_has_its_own_denominator(prepared: Path) -> None:
    """Any order, batch and number of ranks gives what counting pair by pair gives."""
    model = small_model(longest=12).eval()
    for _ in range(80):  # so that some tokens are right
        if not hasattr(model, "optimizer"):
            optimizer = model.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for batch in batches(prepared, "train")[:1]:
            model(batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    nats, right, exact = 0.0, 0, 0
    pairs = stored_pairs(prepared, "test")
    for source, target in pairs:
        tokens, targets = (torch.tensor([[*text.encode(), 256]]) for text in (source, target))
        with torch.no_grad():
            memory, bias = model._encode(tokens, tokens >= 0)
            logits = model._decode(functional.pad(targets[:, :-1], (1, 0), value=256), memory, bias)
        nats += functional.cross_entropy(logits[0].double(), targets[0], reduction="sum").item()
        hits = (logits[0, :, :257].argmax(-1) == targets[0]).tolist()
        right, exact = right + sum(hits), exact + all(hits)
    count = sum(len(target.encode()) for _, target in pairs)
    expected = {
        "loss": nats / (count + len(pairs)),
        "loss_per_byte": nats / count,
        "token_accuracy": right / (count + len(pairs)),
        "exact_match": exact / len(pairs),
    }
    assert 0 < expected["token_accuracy"] < 1
    evaluation, precision = module("engine.evaluation"), SimpleNamespace(autocast=torch.no_grad)
    for flags in ((), ("--data.order", "time"), ("--evaluation.batch_size", "5")):
        for world in (1, 2):
            both = Rank()
            for rank in range(world):
                chosen = settings(*SMALL, *flags)
                samples = module("dataset").Samples(store(prepared), chosen, "test")
                part = project(loader="memmap")
                order = imported(part, "engine.order").order_of(
                    samples, chosen, rank, world, train=False
                )
                make = imported(part, "engine.loader").Loader
                loader = make(samples, store(prepared), chosen, order, torch.device("cpu"))
                found = evaluation.evaluate(model, loader, precision, both)
            assert found == pytest.approx(expected, rel=1e-5), flags


# ---- pretrained ----------------------------------------------------------------------------------


def save_pretrained(folder: Path, pickle: bool = False, **options: Any) -> Any:
    """A T5 of our own in a folder as the library writes it: tokenizer, configuration, weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import T5Config, T5ForConditionalGeneration

    seen = sorted({word for pair in PAIRS for text in pair for word in text.split()})
    words = ["<pad>", "</s>", "<unk>", *seen]
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(words[:3])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(5)
    config = T5Config(
        **{"vocab_size": len(words) + 5, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_heads": 2},
        **{
            "num_layers": 2,
            "num_decoder_layers": 1,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.3,
        },
        feed_forward_proj="gated-gelu",
    )
    model = T5ForConditionalGeneration(config).eval()
    model.save_pretrained(folder, **options)
    if pickle:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model


FINE = ("--tokenizer", "pretrained", "--pretrained", "t5")
TUNE = ("--model.pretrained", "t5", *SMALL[8:], "--training.max_steps", "6")


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}, {"pickle": True}], ids=str)
def test_training_starts_from_pretrained_weights(options: dict[str, Any], tmp_path: Path) -> None:
    library = save_pretrained(tmp_path / "t5", **options)
    assert prepare(tmp_path, as_tsv(PAIRS), *FINE).code == 0
    assert set(stored_pairs(tmp_path, "test")) <= set(PAIRS)
    flags = ("--model.allow_pickle", "true") if "pickle" in options else ()
    result = run(project(), "train", *TUNE, *flags, "--model.dropout", "0", cwd=tmp_path)
    assert result.code == 0, result.err
    first = batches(tmp_path, "train", "--data.batch_size", "8", train=True)[0]
    with torch.no_grad():
        expected = library(
            input_ids=first["source"],
            attention_mask=first["source_present"].long(),
            labels=first["targets"],
        ).loss
    assert float.fromhex(losses(tmp_path)[0][1]) == pytest.approx(expected.item(), rel=1e-5)
    evaluated = run(project(), "evaluate", cwd=tmp_path)
    assert evaluated.code == 0, evaluated.err
    predicted = run(project(), "predict", "--text", PAIRS[0][0], "--beams", "2", cwd=tmp_path)
    assert predicted.code == 0, predicted.err


def spoil(folder: Path, fault: str) -> None:
    config, weights_file = folder / "config.json", folder / "model.safetensors"
    if fault == "config":
        config.unlink()
    elif fault == "weights":
        weights_file.unlink()
    elif fault == "cut":
        weights_file.write_bytes(weights_file.read_bytes()[:2000])
    elif fault == "a weight":
        from safetensors.torch import load_file, save_file

        kept = load_file(weights_file)
        del kept["decoder.final_layer_norm.weight"]
        save_file(kept, weights_file, {"format": "pt"})
    elif fault in ("another model", "another vocabulary"):
        key, value = ("model_type", "bart") if fault == "another model" else ("vocab_size", 999)
        config.write_text(json.dumps({**json.loads(config.read_text()), key: value}))
    else:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("config", ("incomplete: no config.json", "model.pretrained t5")),
        ("weights", ("incomplete: no model.safetensors",)),
        ("cut", ("cannot be loaded",)),
        ("a weight", ("lack 1 of the model's", "decoder.final_layer_norm.weight")),
        ("another model", ("is a bart, not a T5",)),
        ("another vocabulary", (r"in the data and \(999, 1, 0\)", "--tokenizer pretrained")),
        ("gone", ("cannot be loaded", "model.pretrained t5")),
    ],
)
def test_pretrained_weights_that_do_not_fit_are_one_line(
    fault: str, parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save_pretrained(tmp_path / "t5")
    assert prepare(tmp_path, as_tsv(PAIRS), *FINE).code == 0
    spoil(tmp_path / "t5", fault)
    one_error(run(project(), "train", *TUNE, cwd=tmp_path), *parts)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_pickle_is_refused_with_the_name_of_the_flag(tmp_path: Path) -> None:
    save_pretrained(tmp_path / "t5", pickle=True)
    assert prepare(tmp_path, as_tsv(PAIRS), *FINE).code == 0
    one_error(
        run(project(), "train", *TUNE, cwd=tmp_path),
        "pickle",
        "run code",
        "model.allow_pickle true",
    )


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", ""])
def test_a_pretrained_tokenizer_that_is_not_there_is_one_line(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save_pretrained(tmp_path / "t5")
    (tmp_path / "t5" / file).unlink() if file else shutil.rmtree(tmp_path / "t5")
    result = prepare(tmp_path, as_tsv(PAIRS), *FINE)
    reason = f"no {file}" if file else ""
    one_error(result, "tokenizer cannot be loaded", reason, "--pretrained t5", "go online")
    assert not (tmp_path / "data").exists()


# ---- mistakes ------------------------------------------------------------------------------------

VALID = as_tsv(PAIRS[:40])


@pytest.mark.parametrize(
    ("content", "flags", "parts"),
    [
        (VALID + "no tab here\n", (), ("no tab between", r"pairs.tsv, line 41", "one tab")),
        (VALID + "a\tb\tc\n", (), ("2 tabs", "line 41")),
        (VALID + "a source\t \n", (), ("the target is empty", "line 41", "--drop-missing-targets")),
        (VALID + "\ta target\n", (), ("the source is empty", "line 41")),
        (VALID.encode() + b"\xff\tx\n", (), ("not UTF-8", "line 41, byte 0")),
        ("", (), ("no pair in it", "pairs.tsv")),
        (VALID, ("--split", "1,0,0"), ("no pair is left for validation", "--split 1,0,0")),
        (VALID, ("--split", "half"), ("'half' splits nothing",)),
        (
            VALID,
            ("--validation", "pairs.tsv"),
            ("no pair in it", "pairs.tsv", "the others have not"),
        ),
        (VALID, ("--test", "pairs.tsv"), ("none to validate", "--validation")),
        (
            VALID,
            ("--max-target", "2", "--too-long", "skip"),
            ("every pair of train is too long", "use cut"),
        ),
        (VALID, ("--max-target", "1"), ("a token and its end",)),
        (VALID, ("--tokenizer", "bpe", "--vocabulary", "9"), ("above 257",)),
        (VALID, ("--tokenizer", "pretrained"), ("belong together", "--pretrained")),
        (VALID, ("--seed", "-1"), ("a seed cannot be -1",)),
    ],
)
def test_bad_input_is_one_line(
    content: str | bytes, flags: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path
) -> None:
    one_error(prepare(tmp_path, content, *flags), *parts)
    assert not (tmp_path / "data/manifest.json").exists()


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("{", ("no JSON object", "line 1", "--source-key")),
        ('{"source": "a"}', ("'source' and 'target'", "line 1")),
        ('{"source": "a", "target": 3}', ("no JSON object with texts", "line 1")),
        ("[1]", ("no JSON object", "line 1")),
    ],
)
def test_bad_json_is_one_line(line: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    one_error(prepare(tmp_path, line + "\n", name="pairs.jsonl"), *parts)


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    one_error(prepare(tmp_path, VALID, name="pairs.csv"), ".tsv or .jsonl", "pairs.csv")
    half = gzip.compress(VALID.encode())[:-20]
    one_error(prepare(tmp_path, half, name="pairs.tsv.gz"), "cannot read the file", "pairs.tsv.gz")


@pytest.mark.parametrize("kind", ["char", "space"])
def test_symbols_that_training_never_had(kind: str, tmp_path: Path) -> None:
    (tmp_path / "val.tsv").write_text("the red fox\tq new\n")
    flags = ("--validation", "val.tsv", "--tokenizer", kind)
    refused = prepare(tmp_path, as_tsv(PAIRS), *flags)
    one_error(
        refused, "validation has '[qw]', which no training pair has", "val.tsv, line 1", "--unknown"
    )
    assert prepare(tmp_path, as_tsv(PAIRS), *flags, "--unknown").code == 0
    assert "\ufffd" in stored_pairs(tmp_path, "validation")[0][1]
    assert "\ufffd" not in "".join(target for _, target in stored_pairs(tmp_path, "train"))


# ---- training ------------------------------------------------------------------------------------

EVERY = ("--evaluation.every_steps", "9", "--checkpoint.every_steps", "5")
TRAIN = ("train", *SMALL, "--training.max_steps", "24", *EVERY)


@pytest.mark.parametrize(
    "more", [(), ("--optimizer.name", "adafactor", "--data.fraction", "0.5")], ids=str
)
@pytest.mark.first(1)
def test_resuming_equals_no_stop_with_dropout(more: tuple[str, ...], place: Path) -> None:
    words = (*TRAIN, *more)
    assert run(project(), *words, "--name", "whole", cwd=place).code == 0
    expected = losses(place), evaluations(place), weights(place)
    for stop in ("7", "18"):
        again = ("--name", "parts") if stop == "7" else ("--resume", "parts")
        first = words if stop == "7" else ("train",)
        assert run(project(), *first, *again, "--max-steps", stop, cwd=place).code == 0
    assert run(project(), "train", "--resume", "parts", cwd=place).code == 0
    assert (losses(place), evaluations(place), weights(place)) == expected


def test_stages_of_fine_tuning(place: Path) -> None:
    (place / "config.yaml").write_text(
        "phases:\n  - {name: wide, steps: 8, overrides: {data.order: full}}\n"
        "  - {name: near, steps: 6, overrides: {data.fraction: 0.3, optimizer.learning_rate: 0.0001}}\n"
    )
    words = tuple(word for word in TRAIN if word not in ("--training.max_steps", "24"))
    whole = run(project(), *words, "--name", "whole", cwd=place)
    assert whole.code == 0, whole.err
    expected = losses(place), weights(place)
    assert [step for step, _ in expected[0]] == list(range(1, 15))
    assert run(project(), *words, "--phase", "1", "--name", "parts", cwd=place).code == 0
    assert run(project(), "train", "--phase", "2", cwd=place).code == 0
    assert (losses(place), weights(place)) == expected


def test_it_learns_and_says_how_well(place: Path) -> None:
    """The precision report stands at the start of training and of evaluation."""
    words = ("train", *SMALL, "--training.max_steps", "250", "--optimizer.learning_rate", "0.01")
    words += ("--model.dropout", "0")
    trained = run(project(), *words, cwd=place)
    assert trained.code == 0, trained.err
    evaluated = run(project(), "evaluate", cwd=place)
    assert evaluated.code == 0, evaluated.err
    for name in (
        "precision",
        "TF32 in matmuls",
        "TF32 in cuDNN",
        "cuDNN benchmark",
        "deterministic",
    ):
        (state,) = re.findall(rf"^  {name} +(\S+) ", trained.out, flags=re.MULTILINE)
        assert f", {name} {state}" in evaluated.out
    assert "tokens/s" in trained.out
    found = json.loads((newest_run(place) / "evaluation.json").read_text())
    assert list(found["metrics"]) == ["loss", "loss_per_byte", "token_accuracy", "exact_match"]
    assert found["metrics"]["loss_per_byte"] < found["baselines"]["order-2 counts"]["loss_per_byte"]
    assert found["metrics"]["exact_match"] > 0.2
    predicted = run(project(), "predict", cwd=place)
    assert predicted.code == 0, predicted.err
    rows = [
        line.split("\t")
        for line in (newest_run(place) / "predictions.tsv").read_text().splitlines()
    ]
    assert [(source, target) for source, _, target in rows] == stored_pairs(place, "test")
    exact = sum(prediction == target for _, prediction, target in rows) / len(rows)
    assert exact == pytest.approx(found["metrics"]["exact_match"])
    new = [source for source, _, _ in rows]
    (place / "new.tsv").write_text("".join(f"{source}\tignored\n" for source in new))
    (place / "new.jsonl").write_text("".join(json.dumps({"q": source}) + "\n" for source in new))
    (place / "new.txt").write_text("".join(source + "\n" for source in new))
    for name, flags in (("new.tsv", ()), ("new.jsonl", ("--source-key", "q")), ("new.txt", ())):
        again = run(
            project(), "predict", "--input", name, *flags, "--output", "out.jsonl", cwd=place
        )
        assert again.code == 0, again.err
        made = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
        assert made == [
            {"source": source, "prediction": prediction} for source, prediction, _ in rows
        ]
    one = run(project(), "predict", "--text", new[0], "--beams", "3", cwd=place)
    assert one.code == 0, one.err
    assert "no training pair" not in one.out
    (place / "data").unlink()  # the run folder is enough for new sources
    away = run(project(), "predict", "--text", new[0], "--beams", "3", cwd=place)
    assert (away.code, away.out) == (0, one.out)
    one_error(run(project(), "predict", cwd=place), "no prepared data")
    for flags, parts in (
        (("--output", "out.csv"), ("cannot write a '.csv'",)),
        (("--output", "no/out.tsv"), ("no such folder",)),
        (("--beams", "0"), ("number of beams",)),
        (("--input", "none.tsv"), ("cannot read the file", "none.tsv")),
    ):
        one_error(run(project(), "predict", *flags, cwd=place), *parts)


def test_shuffled_targets_are_not_learnt(place: Path) -> None:
    """What the model gains, it gains from the order of the tokens."""

    def shuffle() -> None:
        from my_training import dataset  # type: ignore[import-not-found]

        real = dataset.Samples.batch

        def batch(self: Any, given: Any) -> Any:
            found = real(self, given)
            present = found["targets"] != -100
            kept = found["targets"][present]
            found["targets"][present] = kept[torch.randperm(len(kept))]
            return found

        dataset.Samples.batch = batch

    words = ("train", *SMALL, "--training.max_steps", "80", "--optimizer.learning_rate", "0.01")
    final = []
    for before in (None, shuffle):
        assert (
            run(project(), *words, "--name", str(bool(before)), cwd=place, before=before).code == 0
        )
        final.append(float.fromhex(losses(place)[-1][1]))
    assert final[0] < 0.7 * final[1]


# ---- the guide -----------------------------------------------------------------------------------


@pytest.mark.full
def test_the_commands_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, on small files of the same names; what the hub has is a folder of that name here."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    guide = (REPOSITORY / "docs/seq2seq.md").read_text(encoding="utf-8")
    commands = [
        shlex.split(line.removeprefix("python -m my_training "))
        for block in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("python -m my_training ")
    ]
    assert [words[0] for words in commands[:4]] == ["prepare", "train", "evaluate", "predict"]
    assert len(commands) >= 10
    for name, pairs in (
        ("pairs", PAIRS),
        ("train", PAIRS),
        ("val", [("a", "b")]),
        ("test", [("c", "d")]),
    ):
        (tmp_path / f"{name}.tsv").write_text(as_tsv(pairs))
        (tmp_path / f"{name}.tsv.gz").write_bytes(gzip.compress(as_tsv(pairs).encode()))
    (tmp_path / "new.tsv").write_text(as_tsv(PAIRS[:5]))
    save_pretrained(tmp_path / "google-t5/t5-base")
    for words in commands:
        quick = (
            ("--training.max_steps", "3", "--training.epochs", "1") if words[0] == "train" else ()
        )
        result = run(project(), *words, *quick, cwd=tmp_path)
        assert result.code == 0, (words, result.err)
