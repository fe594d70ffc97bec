"""The workload `llm`: tokens, blocks, the model, what it generates, phases, fp8."""

from __future__ import annotations

import functools
import gzip
import json
import math
import resource
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from importing import imported
from rendering import render
from running import Result, evaluations, losses, newest_run, one_error, rows, run, weights
from torch.nn import functional
from variants import choices

LOADERS = ("memmap", "dataloader")
TEXT = "".join(
    f"Line {number}: the quick brown fox jumps over {number % 7} lazy dogs.\n"
    for number in range(900)
)
SMALL = (
    *(
        "--data.block_size",
        "16",
        "--data.batch_size",
        "8",
        "--model.layers",
        "2",
        "--model.heads",
        "2",
    ),
    *("--model.width", "32", "--monitor.every_steps", "1", "--schedule.warmup_steps", "5"),
)


def project(**answers: str) -> Path:
    return render(workload="llm", **answers)


def module(name: str) -> Any:
    return imported(project(), name)


def prepare(folder: Path, content: str | bytes, *flags: str, before: Any = None) -> Result:
    """Writes `text.txt` into the folder and prepares it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    return run(project(), "prepare", "--input", "text.txt", *flags, cwd=folder, before=before)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with TEXT as bytes in `data`."""
    folder = tmp_path_factory.mktemp("prepared")
    result = prepare(folder, TEXT)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").symlink_to(prepared / "data")
    return tmp_path


def store(folder: Path, data: str = "data") -> Any:
    return module("engine.store").Store.open(folder / data)


def tokens(folder: Path, split: str = "", data: str = "data") -> np.ndarray:
    opened = store(folder, data)
    first, last = opened.splits[split] if split else (0, None)
    found = np.asarray(opened.arrays["tokens"].rows()[first:last])
    return np.where(found == 255, 256, found.astype(np.int64)) if found.dtype == np.uint8 else found


def settings(*flags: str) -> Any:
    pairs = [
        (key.removeprefix("--"), value) for key, value in zip(flags[::2], flags[1::2], strict=True)
    ]
    return module("config").load(overrides=pairs)


def facts(vocabulary: int = 257) -> dict[str, Any]:
    return {"vocabulary": vocabulary, "token_bytes": [1] * (vocabulary - 1) + [0]}


def small_model(*flags: str, vocabulary: int = 257) -> Any:
    torch.manual_seed(0)
    return module("model").build_model(settings(*SMALL, *flags), facts(vocabulary))


# ---- tokens ------------------------------------------------------------------------------------


def test_bytes_are_stored_as_they_are(prepared: Path) -> None:
    assert store(prepared).arrays["tokens"].dtype == "uint8"
    stored = tokens(prepared)
    assert bytes(stored[:-1].astype(np.uint8)) == TEXT.encode()
    assert stored[-1] == 256  # the end of the document
    splits = store(prepared).splits
    assert [border for pair in splits.values() for border in pair] == [
        *(0, splits["train"][1], splits["train"][1], splits["validation"][1]),
        *(splits["validation"][1], len(stored)),
    ]
    assert splits["train"][1] == len(stored) - 2 * round(len(stored) * 0.05)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_byte_255_makes_tokens_of_16_bits_and_nothing_else(loader: str, tmp_path: Path) -> None:
    """It stands for the end of a document in those of 8, where no text has it."""
    dataset, content = module("dataset"), TEXT.encode()[:700] * 100  # more than one piece
    found = {}
    for name, last in (("uint8", b"\xfe"), ("uint16", b"\xff")):
        (tmp_path / name).write_bytes(content + last)
        borders = lambda ends: [60_000, 65_000, int(ends[-1])]  # noqa: E731
        dataset.write(
            tmp_path / f"data-{name}", module("bytepairs").Byte(), [tmp_path / name], borders, {}
        )
        opened = store(tmp_path, f"data-{name}")
        assert (opened.arrays["tokens"].dtype, opened.manifest["format"]) == (
            name,
            3 if name == "uint8" else 2,
        )
        samples = dataset.Samples(opened, settings("--data.block_size", "64"), "test")
        flags = ("--data.block_size", "64")
        batch = list(batches(samples, opened, *flags, loader=loader))[-1]
        found[name] = {key: value[batch["index"] >= 0] for key, value in batch.items()}
    short, long = found.values()
    ends = short["targets"][-1][short["targets"][-1] >= 0].tolist()
    assert ends[-2:] == [254, 256]
    assert (long["targets"] == 255).sum() == (long["tokens"] == 255).sum() == 1
    for name, values in long.items():
        assert torch.equal(values.masked_fill(values == 255, 254), short[name])


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
@pytest.mark.parametrize("text", ["naïve 漢字 🙂\r\n\tend", TEXT[:3000]])
def test_every_tokenizer_gives_the_text_back(kind: str, text: str, tmp_path: Path) -> None:
    assert prepare(tmp_path, text + TEXT, "--tokenizer", kind, "--vocabulary", "300").code == 0
    facts, stored = store(tmp_path).facts, tokens(tmp_path)
    tokenizer = module("tokenizer").restore(facts["tokenizer"])
    assert tokenizer.decode(stored.tolist()) == (text + TEXT).encode()
    assert facts["vocabulary"] == tokenizer.end + 1 == len(facts["token_bytes"])
    assert sum(facts["token_bytes"][token] for token in stored) == len((text + TEXT).encode())
    assert kind != "bpe" or len(stored) < 0.8 * len(text + TEXT)


def test_a_large_text_is_the_same_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = module("texts")
    for content in (TEXT.encode(), "漢字🙂é".encode() * 500, bytes(range(256)) * 20):
        for name, data in (("plain", content), ("packed.gz", gzip.compress(content))):
            (tmp_path / name).write_bytes(data)
            for size in (7, 64, 1 << 20):
                monkeypatch.setattr(texts, "PIECE", size)
                found = list(texts.pieces(tmp_path / name))
                assert b"".join(text for _, text in found) == content
                assert [offset for offset, _ in found] == [
                    sum(len(text) for _, text in found[:number]) for number in range(len(found))
                ]
                if content[0] != 0:
                    assert all(text.decode("utf-8") is not None for _, text in found)


def test_texts_are_known_again() -> None:
    seen, known, random = module("texts").Seen(), set[bytes](), np.random.default_rng(0)
    for count in (3, 0, 500, 1, 1024, 40, 1024, 1, 7, 1024):
        texts = [f"text {number}".encode() for number in random.integers(0, 3000, count)]
        expected = [text not in known and text not in texts[:at] for at, text in enumerate(texts)]
        assert seen.add(texts) == expected
        known |= {*texts}
    assert sum(map(len, seen._known)) == len(known)


def small_gpt2() -> dict[bytes, int]:
    """A vocabulary made here: all bytes and a few pairs, in the order of their ranks."""
    pairs = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"qu", b"ick"]
    return {pair: rank for rank, pair in enumerate(pairs)}


def test_gpt2_by_a_vocabulary_made_here(tmp_path: Path) -> None:
    def made_here() -> None:
        import tiktoken_ext.openai_public as public  # type: ignore[import-not-found]

        public.gpt2 = lambda: {"mergeable_ranks": small_gpt2()}

    result = prepare(tmp_path, TEXT, "--tokenizer", "gpt2", before=made_here)
    assert result.code == 0, result.err
    stored, kept = tokens(tmp_path), store(tmp_path).facts
    assert kept["vocabulary"] == 262
    assert {258, 259, 260} & set(stored.tolist())
    tokenizer = module("tokenizer").restore(kept["tokenizer"])  # needs neither network nor cache
    assert tokenizer.decode(stored.tolist()) == TEXT.encode()


@pytest.mark.parametrize("fault", ["offline", "another hash"])
def test_gpt2_without_its_vocabulary_is_one_line(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        import tiktoken.load  # type: ignore[import-not-found]

        def read_file(path: str) -> bytes:
            if fault == "offline":
                raise ConnectionError("no route to host\nand more of it")
            return b"something else"

        tiktoken.load.read_file = read_file

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    result = prepare(tmp_path, TEXT, "--tokenizer", "gpt2", before=broken)
    one_error(
        result,
        "GPT-2's vocabulary",
        "route" if fault == "offline" else "[Hh]ash",
        "go online",
        "cache",
    )
    assert not (tmp_path / "data/manifest.json").exists()


def test_the_width_of_a_stored_token_follows_the_vocabulary(tmp_path: Path) -> None:
    dataset = module("dataset")
    (tmp_path / "text").write_bytes(b"ab" * 50)
    for end, dtype in ((65_535, "uint16"), (65_536, "uint32")):
        tokenizer = SimpleNamespace(
            kind="fake",
            end=end,
            encode=lambda text, end=end: np.full(len(text), end - 1),
            decode=lambda tokens: b"x" * len(tokens),
            facts=lambda: {},
        )
        dataset.write(
            tmp_path / dtype, tokenizer, [tmp_path / "text"], lambda ends: [80, 90, 101], {}
        )
        assert tokens(tmp_path, data=dtype).dtype == np.dtype(dtype)
        assert tokens(tmp_path, data=dtype)[:2].tolist() == [end - 1] * 2
        samples = dataset.Samples(
            store(tmp_path, dtype), settings("--data.block_size", "8"), "train"
        )
        batch = next(batches(samples, store(tmp_path, dtype), "--data.block_size", "8"))
        assert batch["tokens"].max() == end - 1


def test_files_are_split_whole_and_copies_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    texts = [f"document {number} " * 30 for number in range(30)]
    for number, text in enumerate(texts):
        (folder / ("deep" if number % 2 else "") / f"{number:02}.txt").write_text(text)
        (folder / f"copy{number:02}.txt").write_text(text)
    (folder / "empty.txt").touch()
    (folder / ".hidden.txt").write_text("hidden")
    words = ("prepare", "--input", "texts", "--split", "0.8,0.1,0.1")
    result = run(project(), *words, cwd=tmp_path)
    assert result.code == 0, result.err
    assert "30 copies left out, split by file" in result.out
    found = {}
    for split in ("train", "validation", "test"):
        parts = bytes(np.minimum(tokens(tmp_path, split), 255).astype(np.uint8)).split(b"\xff")
        assert parts.pop() == b"", "a split ends with a document"
        found[split] = {part.decode() for part in parts}
    assert [len(found[split]) for split in found] == [24, 3, 3]
    assert set.union(*found.values()) == set(texts)
    assert run(project(), *words, "--data.path", "again", cwd=tmp_path).code == 0
    assert (tokens(tmp_path) == tokens(tmp_path, data="again")).all()
    assert run(project(), *words, "--data.path", "other", "--seed", "1", cwd=tmp_path).code == 0
    assert (tokens(tmp_path) != tokens(tmp_path, data="other")).any()


# ---- blocks ------------------------------------------------------------------------------------


def batches(
    samples: Any,
    opened: Any,
    *flags: str,
    loader: str = "memmap",
    train: bool = False,
    epoch: int = 0,
) -> Any:
    samples.training = train
    chosen, part = settings("--data.batch_size", "8", *flags), project(loader=loader)
    order = imported(part, "engine.order").order_of(samples, chosen, train=train)
    made = imported(part, "engine.loader").Loader(
        samples, opened, chosen, order, torch.device("cpu")
    )
    for batch in made.epoch(epoch):
        yield {name: value.clone() for name, value in batch.items()}
    made.close()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("block", [1, 7, 64, 500])
def test_each_token_but_the_first_is_the_target_of_the_one_before_it_once(
    loader: str, block: int, prepared: Path
) -> None:
    flags = ("--data.block_size", str(block))
    for split in ("train", "validation"):
        text = torch.from_numpy(tokens(prepared, split).astype(np.int64))
        samples = module("dataset").Samples(store(prepared), settings(*flags), split)
        seen = list(batches(samples, store(prepared), *flags, loader=loader))
        inputs = torch.cat([batch["tokens"][batch["index"] >= 0] for batch in seen])
        targets = torch.cat([batch["targets"][batch["index"] >= 0] for batch in seen])
        present = targets != -100
        assert (targets[:, :-1] == inputs[:, 1:])[present[:, :-1]].all(), (
            "a target is the next token"
        )
        assert torch.equal(targets[present], text[1:])
        assert torch.equal(inputs[present], text[:-1])
        filled = torch.cat([batch["targets"][batch["index"] < 0] for batch in seen])
        assert (filled == -100).all()


def test_random_start_shifts_in_training_only(prepared: Path) -> None:
    flags = ("--data.block_size", "32", "--data.order", "random_start")
    opened = store(prepared)
    samples = module("dataset").Samples(opened, settings(*flags), "train")
    numbers = np.arange(-1, len(samples))
    assert not samples.training
    still = samples.spans(numbers, 3)["tokens"]
    assert (still.starts[1:] == samples.first + 32 * numbers[1:]).all()
    samples.training = True
    spans = [samples.spans(numbers, epoch)["tokens"] for epoch in (0, 0, 1)]
    for span in spans:
        assert span.lengths[0] == 0
        assert (span.lengths[1:] == 33).all(), "no short block where it can be moved"
        assert (span.starts[1:] + span.lengths[1:] <= samples.last).all()
        shifts = (span.starts - still.starts)[1:-2]
        assert set(shifts.tolist()) == set(range(32))
        assert abs(shifts.mean() - 15.5) < 1
    assert (spans[0].starts == spans[1].starts).all()
    assert (spans[0].starts != spans[2].starts).mean() > 0.9
    of_epoch = [
        list(batches(samples, opened, *flags, loader=loader, train=True)) for loader in LOADERS
    ]
    for one, other in zip(*of_epoch, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assembled = imported(project(), "assemble").Project
    for train in (True, False):  # the one place that says so
        holder = SimpleNamespace(
            store=opened, settings=settings(*flags), device=torch.device("cpu")
        )
        holder.distributed = SimpleNamespace(rank=0, world=1)
        holder.loader_class = imported(project(), "engine.loader").Loader
        assert assembled.loader(holder, "train", train).samples.training is train


def test_another_block_size_needs_no_new_prepare(place: Path) -> None:
    before = (place / "data/manifest.json").read_bytes()
    for block in ("8", "31"):
        words = (
            "train",
            *SMALL,
            "--data.block_size",
            block,
            "--training.max_steps",
            "3",
            "--name",
            block,
        )
        assert run(project(), *words, cwd=place).code == 0
    assert (place / "data/manifest.json").read_bytes() == before


def test_memory_is_constant_for_a_sparse_token_file(tmp_path: Path) -> None:
    """4 GB of tokens, of which the disk holds nothing: an epoch's order is all that grows with them."""
    opened = module("engine.store")
    count = 1 << 31
    with open(tmp_path / "store-sparse.bin", "wb") as file:
        file.truncate(2 * count)
    manifest = {
        **{
            "format": opened.FORMAT,
            "rule": opened.RULE,
            "workload": "llm",
            "facts": facts(),
            "source": {},
        },
        "splits": {"train": [0, count], "validation": [0, 0], "test": [0, 0]},
        "arrays": {
            "tokens": {"file": "store-sparse.bin", "offset": 0, "shape": [count], "dtype": "uint16"}
        },
        "files": {"store-sparse.bin": {"bytes": 2 * count, "sha256": "", "crc32": []}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    flags = ("--data.block_size", "1024", "--data.order", "random_start")
    held = opened.Store.open(tmp_path)
    samples = module("dataset").Samples(held, settings(*flags), "train")
    before = anonymous_mb()
    for number, batch in enumerate(batches(samples, held, *flags, train=True)):
        assert batch["tokens"].shape == (8, 1024)
        if number == 200:
            break
    assert len(samples) == -(-(count - 1) // 1024)
    assert anonymous_mb() - before < 100  # 2 million block numbers are 16 MB


def anonymous_mb() -> float:
    """Memory of this process that is no file's, as the mapped pages of the tokens are."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(
        int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if "RssAnon" in line
    )


# ---- the model ---------------------------------------------------------------------------------

GPT2 = ("--model.positions", "learned", "--model.bias", "true", "--data.block_size", "1024")


@pytest.mark.parametrize(
    ("size", "count"), [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080)]
)
def test_the_sizes_are_those_of_gpt2(size: str, count: int) -> None:
    """The counts of GPT-2's published weights, and 47 rows that pad the vocabulary."""
    model_of = module("model").build_model
    with torch.device("meta"):
        made = model_of(settings("--model.size", size, *GPT2), facts(50_257))
        plain = model_of(settings("--model.size", size, "--data.block_size", "1024"), facts(50_257))
    padding = 47 * made.embedding.embedding_dim
    assert sum(parameter.numel() for parameter in made.parameters()) == count + padding
    promised = {"small": 117e6, "medium": 345e6, "large": 774e6}[size]
    assert sum(parameter.numel() for parameter in plain.parameters()) == pytest.approx(
        promised, rel=0.06
    )


def test_flops_are_those_of_the_formula() -> None:
    """6 for each parameter and 12 · layers · width · context for attention (PaLM, appendix B)."""
    throughput, chosen = module("hooks.throughput"), settings("--model.size", "small", *GPT2)
    build = functools.partial(module("model").build_model, chosen, facts(50_257))
    batch = {name: torch.zeros(8, 1024, dtype=torch.int64) for name in ("tokens", "targets")}
    expected = 1024 * (6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024)
    assert throughput.count_flops(build, batch) == pytest.approx(expected, rel=0.002)
    longer = {name: value.repeat(1, 4) for name, value in batch.items()}
    chosen = settings("--model.size", "small", "--data.block_size", "4096")
    build = functools.partial(module("model").build_model, chosen, facts(50_257))
    assert throughput.count_flops(build, longer) > 4 * 1.1 * expected, (
        "a chunked loss counts as well"
    )


def test_mfu_has_a_denominator_or_none() -> None:
    throughput = module("hooks.throughput")
    assert throughput.peak_of(torch.device("cpu"), "bf16") == (0.0, "n/a: there is no GPU")
    rates = functools.partial(throughput.rates, tokens=1024, peak=1e15, flops=lambda: 1e12)
    assert rates(500.0, 1) == {"tokens_per_second": 512_000.0, "mfu": 0.5}
    assert rates(500.0, 2)["mfu"] == 0.25
    assert throughput.rates(2.0, 1, tokens=8, peak=0.0, flops=float) == {"tokens_per_second": 16.0}


@pytest.mark.parametrize(
    ("name", "count", "precision", "says"),
    [
        ("NVIDIA H200", 132, "bf16", "989 TFLOPS, .*H200.* dense bf16"),
        ("NVIDIA H200", 132, "fp8", "^n/a: fp8"),
        ("NVIDIA Unheard Of", 132, "bf16", "^n/a: Unheard Of .*is not in the table"),
    ],
)
def test_peak_of_a_gpu(
    name: str, count: int, precision: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    memory = int(139.8 * 2**30)
    properties = SimpleNamespace(
        name=name, major=9, minor=0, multi_processor_count=count, total_memory=memory
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    peak, why = module("hooks.throughput").peak_of(torch.device("cuda"), precision)
    assert re.search(says, why), why
    assert (peak > 0) == ("TFLOPS" in why)


def test_the_loss_is_that_of_the_logits() -> None:
    model = small_model().eval()
    batch = {"tokens": torch.randint(257, (3, 16)), "targets": torch.randint(257, (3, 16))}
    batch["targets"][1, 9:] = -100
    found = model(batch)
    padded = functional.linear(
        model.head.norm(model.hidden(batch["tokens"])), model.embedding.weight
    )
    assert padded.shape[-1] == 320, "a multiple of 64"
    expected = functional.cross_entropy(padded.flatten(0, 1), batch["targets"].flatten())
    torch.testing.assert_close(found.loss, expected)
    assert found.weight == 3 * 16 - 7
    total, count = found.metrics["bits_per_byte"]
    ends = (batch["targets"] == 256).sum()
    assert count == 3 * 16 - 7 - ends
    torch.testing.assert_close(total, expected * found.weight / math.log(2))
    batch["targets"][:] = -100
    nothing = model.train()(batch)
    assert (nothing.loss, nothing.weight) == (0, 0)
    assert model.embedding.weight.requires_grad
    assert not [
        name for name, _ in model.named_parameters() if "head" in name and "norm" not in name
    ], "tied"


@pytest.mark.parametrize("fused", [True, False], ids=["torch's", "ours"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_chunked_loss_is_the_whole_one(
    fused: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fused and not hasattr(functional, "linear_cross_entropy"):
        pytest.skip("this torch has none")
    if not fused:
        monkeypatch.delattr(functional, "linear_cross_entropy", raising=False)
    model_module = module("model")
    batch = {"tokens": torch.randint(257, (4, 16)), "targets": torch.randint(257, (4, 16))}
    batch["targets"][2, 3:] = -100
    found = []
    for bytes_held in (1 << 30, 4 * 320 * 10):  # ten rows at a time
        monkeypatch.setattr(model_module, "LOGITS_BYTES", bytes_held)
        model = small_model()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            output = model(batch)
        output.loss.backward()
        found.append([output.loss.detach(), *(parameter.grad for parameter in model.parameters())])
    tolerance = {"rtol": 1e-4, "atol": 1e-7} if dtype is None else {"rtol": 0.05, "atol": 2e-3}
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole, **tolerance)
    with torch.no_grad():
        torch.testing.assert_close(small_model()(batch).loss, found[0][0], rtol=1e-4, atol=0)


def test_no_token_sees_a_later_one() -> None:
    for positions in ("rotary", "learned"):
        model = small_model("--model.positions", positions).eval()
        text = torch.randint(257, (2, 16))
        changed = text.clone()
        changed[:, 9:] = torch.randint(257, (2, 7))
        torch.testing.assert_close(model.logits(text)[:, :9], model.logits(changed)[:, :9])
        assert not torch.allclose(model.logits(text)[:, 9:], model.logits(changed)[:, 9:])
        swapped = text.flip(1)[:, :8]
        assert not torch.allclose(
            model.logits(swapped)[:, -1], model.logits(swapped.flip(1))[:, -1]
        )


def test_what_is_added_to_the_stream_starts_smaller_in_a_deep_model() -> None:
    model = small_model("--model.layers", "8", "--model.width", "128")
    for block in model.layers:
        assert block.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
        assert block.attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
        assert block.hidden.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    "flags", [(), ("--model.positions", "learned", "--model.norm", "rms", "--model.bias", "true")]
)
@pytest.mark.parametrize("length", [1, 5, 16, 40])
def test_generating_with_a_cache_equals_without(
    flags: tuple[str, ...], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past block_size 16, and from a prompt that is longer than a block."""
    forgetful = SimpleNamespace(length=0, extend=lambda key, value: (key, value))
    model = small_model(*flags).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from the start, where all logits are alike
            parameter.mul_(3)
    prompt = torch.randint(257, (2, length))
    for temperature, top_k in ((0.0, 0), (1.0, 0), (0.7, 5)):
        with_cache = model.generate(prompt, 45, temperature, top_k, seed=3)
        with monkeypatch.context() as patched:
            patched.setattr(module("model"), "Cache", lambda: forgetful)
            without = model.generate(prompt, 45, temperature, top_k, seed=3)
        assert torch.equal(with_cache, without)
        assert with_cache.shape == (2, length + 45)
        assert torch.equal(with_cache[:, :length], prompt)
    greedy = model.generate(prompt, 20, temperature=0.0)
    assert torch.equal(greedy, model.generate(prompt, 20, temperature=5.0, top_k=1))
    assert not torch.equal(model.generate(prompt, 20, seed=1), model.generate(prompt, 20, seed=2))


def test_compiled_blocks_generate_too() -> None:
    """Layer by layer and token by token other shapes: compiled, torch would give up at the ninth."""
    model = small_model().eval()
    wanted = model.generate(torch.zeros(1, 3, dtype=torch.int64), 20, temperature=0.0)
    for block in model.blocks():
        block.compile(backend="eager", fullgraph=True)
    assert torch.equal(
        model.generate(torch.zeros(1, 3, dtype=torch.int64), 20, temperature=0.0), wanted
    )


def test_what_pads_the_vocabulary_is_never_generated() -> None:
    model = small_model(vocabulary=65).eval()
    assert model.embedding.num_embeddings == 128
    with torch.no_grad():
        model.embedding.weight[65:] = 50 * torch.randn(63, 32)
    assert model.generate(torch.zeros(4, 1, dtype=torch.int64), 100, temperature=3.0).max() < 65


def test_compiled_blocks_compute_the_same() -> None:
    """Each block and the head, whose chunked loss the compiler can look into."""
    model, plain = small_model(), small_model()
    module("model").LOGITS_BYTES, held = 4 * 320 * 20, module("model").LOGITS_BYTES
    try:
        for block in model.blocks():
            block.compile(backend="aot_eager", fullgraph=True)
        batch = {"tokens": torch.randint(257, (4, 16)), "targets": torch.randint(257, (4, 16))}
        for made in (model, plain):
            made(batch).loss.backward()
    finally:
        module("model").LOGITS_BYTES = held
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_only_matrices_decay() -> None:
    model = small_model("--model.bias", "true", "--model.positions", "learned")
    optimizer = module("engine.optimization").make_optimizer(model, settings().optimizer)
    decayed, others = (group["params"] for group in optimizer.param_groups)
    assert all(parameter.dim() == 2 for parameter in decayed)
    assert all(parameter.dim() == 1 for parameter in others)
    assert optimizer.param_groups[1]["weight_decay"] == 0
    assert len(decayed) + len(others) == len(list(model.parameters()))


# ---- training ----------------------------------------------------------------------------------

PHASES = """
phases:
  - name: short
    steps: 12
    overrides: {data.block_size: 8, data.batch_size: 16, optimizer.learning_rate: 0.003}
  - name: long
    steps: 10
    overrides: {data.block_size: 32, data.order: random_start, training.gradient_accumulation_steps: 2}
  - name: other text
    steps: 9
    overrides: {data.path: other, optimizer.learning_rate: 0.0005, schedule.name: linear}
"""
TRAIN = ("train", *SMALL, "--evaluation.every_steps", "5", "--checkpoint.every_steps", "4")


@pytest.fixture(scope="module")
def in_phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in three phases that nothing disturbed."""
    folder = tmp_path_factory.mktemp("phases")
    assert prepare(folder, TEXT).code == 0
    assert prepare(folder, TEXT[::-1], "--data.path", "other").code == 0
    (folder / "config.yaml").write_text(PHASES)
    result = run(project(), *phased(TRAIN), cwd=folder)
    assert result.code == 0, result.err
    return folder


def phased(words: tuple[str, ...]) -> tuple[str, ...]:
    """A flag outranks a phase: without the two that the phases set."""
    return tuple(
        word for word in words if word not in ("--data.block_size", "--data.batch_size", "16", "8")
    )


def beside(in_phases: Path, tmp_path: Path) -> Path:
    for name in ("data", "other", "config.yaml"):
        (tmp_path / name).symlink_to(in_phases / name)
    return tmp_path


def test_a_run_goes_through_its_phases(in_phases: Path) -> None:
    assert [step for step, _ in losses(in_phases)] == list(range(1, 32))
    rates = {row["step"]: row["learning_rate"] for row in rows(in_phases) if "split" not in row}
    assert max(rates[step] for step in range(1, 13)) == pytest.approx(0.003)
    assert max(rates[step] for step in range(13, 23)) == pytest.approx(0.001)
    assert max(rates[step] for step in range(23, 32)) == pytest.approx(0.0005)
    result = run(project(), "evaluate", cwd=in_phases)
    assert result.code == 0, result.err
    assert run(project(), "generate", "--prompt", "Line", "--tokens", "5", cwd=in_phases).code == 0


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.parametrize(
    "stops", [(5,), (12,), (13,), (17,), (22,), (26,), (4, 12, 15, 22, 23, 30)], ids=str
)
@pytest.mark.first(1)
def test_resuming_in_any_phase_equals_no_stop(
    stops: tuple[int, ...], framework: str, in_phases: Path, tmp_path: Path
) -> None:
    folder = beside(in_phases, tmp_path)
    words = phased(TRAIN)
    for stop in stops:
        result = run(project(framework=framework), *words, "--max-steps", str(stop), cwd=folder)
        assert result.code == 0, result.err
        assert losses(folder) == losses(in_phases)[:stop]
        words = ("train", "--resume")
    result = run(project(framework=framework), "train", "--resume", cwd=folder)
    assert result.code == 0, result.err
    assert losses(folder) == losses(in_phases)
    assert evaluations(folder) == evaluations(in_phases)
    assert weights(folder) == weights(in_phases)


def test_phases_one_by_one_equal_all_at_once(in_phases: Path, tmp_path: Path) -> None:
    folder = beside(in_phases, tmp_path)
    assert run(project(), *phased(TRAIN), "--phase", "1", cwd=folder).code == 0
    assert len(losses(folder)) == 12
    early = run(project(), "train", "--phase", "3", cwd=folder)
    one_error(early, "phase 2 is not finished", "resume it first")
    for number in ("2", "3"):
        assert run(project(), "train", "--phase", number, cwd=folder).code == 0
    assert losses(folder) == losses(in_phases)
    assert weights(folder) == weights(in_phases)
    one_error(run(project(), "train", "--phase", "2", cwd=folder), "phase 2 is finished")


def test_a_phase_that_is_none_is_one_line(in_phases: Path, tmp_path: Path) -> None:
    one_error(
        run(project(), "train", "--phase", "9", cwd=in_phases),
        "there is no phase 9",
        "--phase",
        "has 3",
    )
    assert len(losses(in_phases)) == 31
    one_error(
        run(project(), "train", "--phase", "2", cwd=beside(in_phases, tmp_path)), "no run yet"
    )
    assert not (tmp_path / "runs").exists()


def test_without_optimizations_the_losses_are_the_same(place: Path) -> None:
    words = ("train", *SMALL, "--training.max_steps", "50", "--training.precision", "fp32")
    assert run(project(), *words, cwd=place).code == 0
    optimized = losses(place)
    assert run(project(), *words, "--no-optimize", "--name", "baseline", cwd=place).code == 0
    found = json.loads((place / "runs/baseline/env.json").read_text())["optimizations"]
    assert next(entry["state"] for entry in found if entry["name"] == "fused optimizer") == "off"
    for (step, ours), (_, plain) in zip(optimized, losses(place), strict=True):
        assert float.fromhex(ours) == pytest.approx(float.fromhex(plain), rel=1e-4), step


def test_recomputation_changes_no_loss(place: Path) -> None:
    words = ("train", *SMALL, "--training.max_steps", "8", "--model.dropout", "0.1")
    found = []
    for value in ("false", "true"):
        assert (
            run(
                project(),
                *words,
                "--training.gradient_checkpointing",
                value,
                "--name",
                value,
                cwd=place,
            ).code
            == 0
        )
        found.append(losses(place))
    assert found[0] == found[1]


def test_it_learns_and_says_how_well(place: Path) -> None:
    words = ("train", *SMALL, "--training.max_steps", "200", "--optimizer.learning_rate", "0.01")
    result = run(project(), *words, cwd=place)
    assert result.code == 0, result.err
    assert "tokens/s" in result.out
    assert "MFU n/a: there is no GPU" in result.out
    row = next(row for row in rows(place) if "split" not in row)
    assert row["tokens_per_second"] == pytest.approx(16 * row["samples_per_second"])
    assert "mfu" not in row
    evaluated = run(project(), "evaluate", cwd=place)
    assert evaluated.code == 0, evaluated.err
    found = json.loads((newest_run(place) / "evaluation.json").read_text())
    metrics = found["metrics"]
    text = tokens(place, "test")
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    bits = metrics["loss"] / math.log(2) * (len(text) - 1) / (text[1:] < 256).sum()
    assert metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert metrics["bits_per_byte"] < 1.5
    assert found["baselines"]["order-2 counts"]["bits_per_byte"] < 2
    generated = run(
        project(),
        "generate",
        "--prompt",
        "Line 12",
        "--tokens",
        "40",
        "--output",
        "out.txt",
        cwd=place,
    )
    assert generated.code == 0, generated.err
    assert (place / "out.txt").read_text().startswith("Line 12")
    assert (place / "out.txt").read_text() in generated.out
    again = run(
        project(), "generate", "--prompt", "Line 12", "--tokens", "40", "--seed", "0", cwd=place
    )
    assert again.out == generated.out
    (place / "data").unlink()  # the run folder is enough
    away = run(project(), "generate", "--prompt", "Line 12", "--tokens", "40", cwd=place)
    assert (away.code, away.out) == (0, generated.out)


def test_shuffled_targets_are_not_learnt(place: Path) -> None:
    """What the model gains, it gains from the order of the tokens."""

    def shuffle() -> None:
        from my_training import dataset  # type: ignore[import-not-found]

        real = dataset.Samples.batch

        def batch(self: Any, given: Any) -> Any:
            found = real(self, given)
            flat = found["targets"].flatten()
            found["targets"] = flat[torch.randperm(len(flat))].view_as(found["targets"])
            return found

        dataset.Samples.batch = batch

    words = ("train", *SMALL, "--training.max_steps", "100", "--optimizer.learning_rate", "0.01")
    final = []
    for before in (None, shuffle):
        assert (
            run(project(), *words, "--name", str(bool(before)), cwd=place, before=before).code == 0
        )
        final.append(float.fromhex(losses(place)[-1][1]))
    assert final[0] < 0.7 * final[1]


def test_the_count_model_is_the_one_of_witten_and_bell() -> None:
    """Against a plain implementation, symbol by symbol."""
    random = np.random.default_rng(0)
    train, text = (np.cumsum(random.integers(0, 3, size)) % 7 for size in (400, 90))
    train[::50] = text[::31] = 256
    counts: list[dict] = [{}, {}, {}]
    for order in range(3):
        for place in range(order, len(train)):
            context = tuple(train[place - order : place])
            counts[order].setdefault(context, Counter())[train[place]] += 1

    def share(context: tuple, symbol: int) -> float:
        shorter = share(context[1:], symbol) if context else 1 / 257
        seen = counts[len(context)].get(context)
        if not seen:
            return shorter
        return (seen[symbol] + len(seen) * shorter) / (seen.total() + len(seen))

    bits = -sum(
        math.log2(share(tuple(text[place - 2 : place]), text[place]))
        for place in range(2, len(text))
    )
    found = module("dataset").order_2(train, text)
    assert found == pytest.approx(bits / (text[2:] < 256).sum())


def test_the_sample_text_is_the_standard_library(tmp_path: Path) -> None:
    words = ("train", *SMALL, "--data.sample_mb", "0.1", "--training.max_steps", "2")
    result = run(project(), *words, cwd=tmp_path)
    assert result.code == 0, result.err
    assert "Python's standard library" in result.out
    text = bytes(np.minimum(tokens(tmp_path, data="data/synthetic"), 255).astype(np.uint8))
    assert text.count(b"import ") > 5
    assert store(tmp_path, "data/synthetic").facts["documents"] >= 20


# ---- fp8 ---------------------------------------------------------------------------------------

WIDE = ("--model.width", "128", "--training.max_steps", "30", "--optimizer.learning_rate", "0.003")


def test_fp8_emulated_learns_as_bf16_does(place: Path) -> None:
    made = project(precision="fp8")
    result = run(made, "train", *SMALL, *WIDE, "--training.fp8_emulation", "true", cwd=place)
    assert "torchao" not in result.err, "what its import has to say is not the user's business"
    assert "_pytree" not in result.err
    assert result.code == 0, result.err
    assert "8 layers" in result.out
    assert "emulated" in result.out
    found = [float.fromhex(loss) for _, loss in losses(place)]
    words = ("train", *SMALL, *WIDE, "--training.precision", "bf16", "--name", "bf16")
    assert run(made, *words, cwd=place).code == 0
    expected = [float.fromhex(loss) for _, loss in losses(place)]
    assert found != expected
    assert found[-1] == pytest.approx(expected[-1], rel=0.05)
    assert run(made, "evaluate", cwd=place).code == 0


def test_fp8_layers_evaluate_in_bf16_and_leave_small_ones_alone() -> None:
    fp8 = imported(project(precision="fp8"), "engine.fp8")
    model = small_model("--model.width", "128")
    plain = small_model("--model.width", "128").eval()
    assert fp8.convert(model, emulate=True) == 8
    layers = [layer for layer in model.modules() if type(layer).__name__ == "Layer"]
    assert all(layer.config.pad_inner_dim for layer in layers), (
        "else only multiples of 16 tokens, on a GPU"
    )
    assert model.state_dict().keys() == plain.state_dict().keys()
    batch = {name: torch.randint(257, (2, 16)) for name in ("tokens", "targets")}
    torch.testing.assert_close(model.eval()(batch).loss, plain(batch).loss)
    assert model.train()(batch).loss != plain.train()(batch).loss
    assert fp8.convert(small_model(), emulate=True) == 0
    assert not fp8.fits(torch.nn.Linear(128, 136))
    assert not fp8.fits(torch.nn.Linear(1024, 64))


def test_fp8_needs_a_gpu_or_emulation_and_a_project_made_for_it(place: Path) -> None:
    words = ("train", *SMALL, "--training.precision", "fp8")
    one_error(run(project(precision="fp8"), *words, cwd=place), "fp8: there is no GPU", "choose fp32, or auto")
    emulated = run(project(), *words, "--training.fp8_emulation", "true", cwd=place)
    one_error(emulated, "without fp8", "copier update -d precision=fp8")
    assert not list(place.glob("runs/*/checkpoints/step*"))


# ---- bad input ---------------------------------------------------------------------------------

NOT_UTF8 = TEXT.encode()[:1000] + b"\xff\xfe" + TEXT.encode()


@pytest.mark.parametrize(
    ("content", "flags", "says"),
    [
        (b"", (), ("no text", "text.txt")),
        (b"\n", ("--split", "0.5,0.5,0"), None),
        (b"a", ("--split", "0.3,0.4,0.3"), ("no token is left", "--split")),
        (
            NOT_UTF8,
            ("--tokenizer", "char"),
            ("not UTF-8", r"text.txt, byte 1000", "--tokenizer byte"),
        ),
        (
            NOT_UTF8,
            ("--tokenizer", "bpe"),
            ("not UTF-8", r"text.txt, byte 1000", "--tokenizer byte"),
        ),
        (NOT_UTF8, ("--tokenizer", "byte"), None),
        (TEXT.encode(), ("--split", "0.5,0.6,0"), ("splits nothing", "--split")),
        (TEXT.encode(), ("--split", "10,x,3"), ("splits nothing", "--split")),
        (TEXT.encode(), ("--split=-1,1,1",), ("splits nothing", "--split")),
        (TEXT.encode(), ("--split", "1000000,10,0"), ("needs 1000010 tokens", "there are")),
        (
            TEXT.encode(),
            ("--tokenizer", "bpe", "--vocabulary", "100"),
            ("above 257", "--vocabulary 100"),
        ),
        (gzip.compress(TEXT.encode())[:-20], (), ("cannot read", "text.txt")),
    ],
)
def test_text_that_cannot_be_prepared(
    content: bytes, flags: tuple[str, ...], says: tuple[str, ...] | None, tmp_path: Path
) -> None:
    result = prepare(tmp_path, content, *flags)
    if says is None:
        assert result.code == 0, result.err
        return
    one_error(result, *says)
    assert not list((tmp_path / "data").glob("*")), "nothing half-written stays"


def test_no_files_to_prepare(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    one_error(run(project(), "prepare", "--input", "texts", cwd=tmp_path), "no file", "--glob")
    one_error(
        run(project(), "prepare", "--input", "nowhere", cwd=tmp_path), "no such file", "nowhere"
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--data.block_size", "100000"), ("train split has", "100001", "lower data.block_size")),
        (("--data.block_size", "4000"), ("validation split has", "4001")),
        (("--model.vocabulary", "200"), ("200 is smaller than the data's 257", "model.vocabulary")),
        (
            ("--model.heads", "5"),
            ("width 32 cannot be shared by 5 heads", "--model.heads", "multiple of 5"),
        ),
        (("--model.heads", "32"), ("pairs", "even width")),
        (
            ("--model.positions", "learned", "--model.context", "8"),
            ("16", "table of 8 positions", "context"),
        ),
        (
            ("--compile.mode", "max-autotune", "--training.gradient_accumulation_steps", "2"),
            ("pytorch#169545",),
        ),
    ],
)
def test_settings_that_do_not_fit(
    flags: tuple[str, ...], says: tuple[str, ...], place: Path
) -> None:
    result = run(project(), "train", *SMALL, *flags, cwd=place)
    one_error(result, *says)
    assert not list(place.glob("runs/*/metrics.jsonl")) or not list(rows(place))


def test_a_token_file_cut_by_a_byte(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for path in (prepared / "data").iterdir():
        content = path.read_bytes()
        (tmp_path / "data" / path.name).write_bytes(
            content[:-1] if path.suffix == ".npy" else content
        )
    result = run(project(), "train", *SMALL, cwd=tmp_path)
    one_error(result, "bytes where the manifest says", "store-", "prepare")
    assert not (tmp_path / "runs").exists()


def test_a_prompt_that_the_tokenizer_does_not_know(tmp_path: Path) -> None:
    assert prepare(tmp_path, TEXT, "--tokenizer", "char").code == 0
    assert run(project(), "train", *SMALL, "--training.max_steps", "2", cwd=tmp_path).code == 0
    one_error(
        run(project(), "generate", "--prompt", "€", cwd=tmp_path), "'€' is not in the vocabulary"
    )
    one_error(run(project(), "generate", "--tokens", "-1", cwd=tmp_path), "--tokens")
    one_error(run(project(), "generate", "--temperature", "-1", cwd=tmp_path), "--temperature")
