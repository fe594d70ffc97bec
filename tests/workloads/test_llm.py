"""The workload `llm`: tokens, blocks, the model, what it generates, phases, fp8."""

import bz2
import functools
import gzip
import json
import math
import re
from types import SimpleNamespace

import made_up
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from running import evaluation_of, one_error, rows
from sizes import GPT2
from torch.nn import functional
from workload import Workload

LLM = Workload("llm")
module = LLM.module
settings = LLM.settings
TEXT = "".join(
    f"Line {number}: the quick brown fox jumps over {number % 7} lazy dogs.\n"
    for number in range(900)
)
MODEL = ("--model.layers", "2", "--model.heads", "2", "--model.width", "32")
BLOCKS = ("--data.block_size", "16", "--data.batch_size", "8")
LOGGED = ("--monitor.every_steps", "1", "--schedule.warmup_steps", "5")
SMALL = (*MODEL, *BLOCKS, *LOGGED)


def prepare(folder, content, *flags, before=None):
    """Write `text.txt` into the folder and prepare it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    return LLM.run("prepare", "--input", "text.txt", *flags, cwd=folder, before=before)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A working folder with TEXT as bytes in `data`."""
    folder = tmp_path_factory.mktemp("prepared")
    result = prepare(folder, TEXT)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def place(prepared, tmp_path):
    (tmp_path / "data").symlink_to(prepared / "data")
    return tmp_path


def tokens(data, split=""):
    store = LLM.store(data)
    first, last = store.splits[split] if split else (0, None)
    stored = np.asarray(store.arrays["tokens"].rows()[first:last])
    if stored.dtype == np.uint8:
        return np.where(stored == 255, 256, stored.astype(np.int64))
    return stored


def facts(vocabulary=257):
    return {"vocabulary": vocabulary, "token_bytes": [1] * (vocabulary - 1) + [0]}


def small_model(*flags, vocabulary=257):
    torch.manual_seed(0)
    return module("model").build_model(settings(*SMALL, *flags), facts(vocabulary))


def random_batch(blocks=4):
    return {name: torch.randint(257, (blocks, 16)) for name in ("tokens", "targets")}


# ---- tokens ------------------------------------------------------------------------------------


def test_bytes_are_stored_as_they_are(prepared):
    store = LLM.store(prepared / "data")
    assert store.arrays["tokens"].dtype == "uint8"
    stored = tokens(prepared / "data")
    assert bytes(stored[:-1].astype(np.uint8)) == TEXT.encode()
    assert stored[-1] == 256, "the end of the document"
    held_out = round(len(stored) * 0.05)
    borders = [0, len(stored) - 2 * held_out, len(stored) - held_out, len(stored)]
    assert list(store.splits.values()) == [borders[:2], borders[1:3], borders[2:]]


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_every_tokenizer_gives_the_text_back(kind, tmp_path):
    text = "naïve 漢字 🙂\r\n\tend" + TEXT
    assert prepare(tmp_path, text, "--tokenizer", kind, "--vocabulary", "300").code == 0
    known = LLM.store(tmp_path / "data").facts
    stored = tokens(tmp_path / "data")
    tokenizer = module("tokenizer").restore(known["tokenizer"])
    assert tokenizer.decode(stored.tolist()) == text.encode()
    assert known["vocabulary"] == tokenizer.end + 1 == len(known["token_bytes"])
    assert sum(known["token_bytes"][token] for token in stored) == len(text.encode())
    assert kind != "bpe" or len(stored) < 0.8 * len(text)


@pytest.mark.parametrize("size", [7, 64, 1 << 20])
def test_a_large_text_is_the_same_in_pieces(size, tmp_path, monkeypatch):
    documents = module("prepare.documents")
    monkeypatch.setattr(documents, "PIECE", size)
    for content in (TEXT, "漢字🙂é" * 500, "\r\n\n" * 20):
        (tmp_path / "packed.gz").write_bytes(gzip.compress(content.encode()))
        pieces = list(documents.pieces(tmp_path / "packed.gz"))
        assert "".join(piece.decode() for piece in pieces) == content  # no character is cut
        assert len(pieces) > 1


def test_gpt2_by_a_vocabulary_made_here(tmp_path):
    """All bytes and a few pairs, in the order of their ranks."""
    pairs = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"qu", b"ick"]

    def made_here():
        import tiktoken_ext.openai_public as public  # type: ignore[import-not-found]

        ranks = {pair: rank for rank, pair in enumerate(pairs)}
        public.gpt2 = lambda: {"mergeable_ranks": ranks}

    result = prepare(tmp_path, TEXT, "--tokenizer", "gpt2", before=made_here)
    assert result.code == 0, result.err
    known = LLM.store(tmp_path / "data").facts
    assert known["vocabulary"] == 262
    tokenizer = module("tokenizer").restore(known["tokenizer"])  # needs neither network nor cache
    assert tokenizer.decode(tokens(tmp_path / "data").tolist()) == TEXT.encode()


def test_gpt2_without_its_vocabulary_is_one_line(tmp_path, monkeypatch):
    def offline():
        import tiktoken.load  # type: ignore[import-not-found]

        def read_file(path):
            raise ConnectionError("no route to host\nand more of it")

        tiktoken.load.read_file = read_file

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    result = prepare(tmp_path, TEXT, "--tokenizer", "gpt2", before=offline)
    one_error(result, "GPT-2's vocabulary", "no route", "go online", "cache")
    assert not (tmp_path / "data/manifest.json").exists()


@pytest.mark.parametrize(("end", "dtype"), [(65_535, "uint16"), (65_536, "uint32")])
def test_the_width_of_a_stored_token_follows_the_vocabulary(end, dtype, tmp_path):
    tokenizer = SimpleNamespace(
        kind="fake",
        end=end,
        encode=lambda text: np.full(len(text), end - 1),
        decode=lambda tokens: b"x" * len(tokens),
        facts=dict,
    )
    (tmp_path / "text").write_bytes(b"ab" * 50)
    borders = lambda ends: [80, 90, 101]  # noqa: E731
    module("dataset").write(tmp_path / "data", tokenizer, [tmp_path / "text"], borders, {})
    stored = tokens(tmp_path / "data")
    assert stored.dtype == np.dtype(dtype)
    assert stored[0] == end - 1


@pytest.mark.parametrize(("kind", "end"), [("txt", ""), ("jsonl", ""), ("jsonl", "\n")])
def test_files_are_split_whole_and_copies_left_out(kind, end, tmp_path):
    """Copies are whole files, or rows in files with other bytes."""
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    texts = [f"document {number} " * 30 for number in range(30)]
    for number, text in enumerate(texts):
        row = text if kind == "txt" else f'{{"text": "{text}"}}'
        (folder / ("deep" if number % 2 else "") / f"{number:02}.{kind}").write_text(row)
        (folder / f"copy{number:02}.{kind}").write_text(row + end)
    (folder / ".hidden.txt").write_text("hidden")
    words = ("prepare", "--input", "texts", "--split", "0.8,0.1,0.1")
    assert "left out: 30" in LLM.done(*words, cwd=tmp_path).out
    seen = []
    for split in ("train", "validation", "test"):
        stored = bytes(np.minimum(tokens(tmp_path / "data", split), 255).astype(np.uint8))
        *documents, nothing = stored.split(b"\xff")
        assert nothing == b"", "a split ends with a document"
        seen += [document.decode() for document in documents]
    assert sorted(seen) == sorted(texts)


def test_tokens_in_no_split_are_counted(tmp_path):
    for split, count in (("100,60,40", len(TEXT.encode()) + 1 - 200), ("0.8,0.1,0.1", 0)):
        out = prepare(tmp_path, TEXT, "--split", split).out
        found = re.findall(r"tokens in no split, see --split: ([\d,]+)", out)
        assert found == [f"{count:,}"] * bool(count)


def test_rows_are_found_whatever_the_file_is_called(tmp_path):
    """JSON lines and Parquet; a table of commas and a JSON document are no text by mistake."""
    rows = [{"text": f"document {number} " * 30, "n": number} for number in range(30)]
    json_lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.pqt")
    files = {
        "rows.jsonl": json_lines,
        "rows.ndjson": b"\n\n" + json_lines,
        "rows.txt": b"\xef\xbb\xbf" + json_lines,
        "rows.json.gz": gzip.compress(json_lines),
        "rows.jsonl.zst": pa.compress(json_lines, "zstd", asbytes=True),
        "rows.bz2": bz2.compress(json_lines[:999]) + bz2.compress(json_lines[999:]),
        "rows.pqt": (tmp_path / "rows.pqt").read_bytes(),
        "rows.parquet.gzip": (tmp_path / "rows.pqt").read_bytes(),
    }
    expected = b"".join(row["text"].encode() + b"\xff" for row in rows)
    for name, content in files.items():
        made_up.written(tmp_path, content, name)
        for flags in ("", "--column text"):
            result = made_up.prepare(tmp_path, "llm", name, flags)
            assert result.code == 0, (name, result.err)
            assert LLM.store(tmp_path / "data").arrays["tokens"].rows().tobytes() == expected

    refused = {
        "array.json": (json.dumps(rows).encode(), "JSON document: array.json: .*jq -c"),
        "one.json": (b'{\n"rows": ' + json_lines, "JSON document: one.json: .*jq -c"),
        "wide.txt": (
            TEXT.encode("utf-16-le"),
            r"not UTF-8 text: wide.txt .utf-16-le.: give the --encoding",
        ),
    }
    for name, (content, says) in refused.items():
        made_up.written(tmp_path, content, name)
        one_error(made_up.prepare(tmp_path, "llm", name), says)
    for name, content in (("table.csv", "text,n\na,1\n"), ("plain.txt", TEXT)):
        made_up.written(tmp_path, content, name)
        result = made_up.prepare(tmp_path, "llm", name, "--column text")
        one_error(result, f"a text without fields: {name}: leave out --column, .*to_json")

    # As one text, if that is meant.
    assert made_up.prepare(tmp_path, "llm", "rows.jsonl", "--column none").code == 0
    assert LLM.store(tmp_path / "data").arrays["tokens"].rows().tobytes() == json_lines + b"\xff"


# Each with the encoding that is named for it.
WRITTEN = {
    "shift_jis": ("shift_jis", "吾輩は猫である。名前はまだ無い。\n"),
    "cp932": ("cp932", "①番の猫である。名前はまだ無い。\n"),
    "euc_jp": ("euc_jp", "吾輩は猫である。名前はまだ無い。\n"),
    "euc_kr": ("euc_kr", "나는 고양이로소이다. 이름은 아직 없다.\n"),
    "gb2312": ("gb18030", "我是一只猫，还没有名字。\n"),
    "big5": ("big5", "我是一隻貓，還沒有名字。\n"),
    "cp1252": ("unknown", "Größe für Übermäßigkeit, été à l’île\n"),
    "cp1251": ("unknown", "Я кот, имени у меня пока нет.\n"),
    "utf-16": ("utf-16", "A cat, and no name: 猫\n"),
    "utf-16-le": ("utf-16-le", "A cat, and no name yet.\n"),
}


@pytest.mark.parametrize("encoding", WRITTEN)
def test_the_encoding_of_a_text_is_named_and_reads_it(encoding, tmp_path):
    """Also if it is far from the beginning. A mark of the byte order is no text."""
    named, line = WRITTEN[encoding]
    text = "plain\n" * 200_000 + line * 40 if encoding == "euc_jp" else line * 40
    refused = prepare(tmp_path, text.encode(encoding))
    one_error(refused, f"not UTF-8 text: text.txt .{named}.: give the --encoding")
    flags = () if named == "unknown" else ("--encoding", named)
    assert prepare(tmp_path, text.encode(encoding), *(flags or ("--encoding", encoding))).code == 0
    stored = LLM.store(tmp_path / "data").arrays["tokens"].rows().tobytes()
    assert stored == text.encode() + b"\xff"
    assert prepare(tmp_path, text.encode("utf-8-sig")).code == 0
    assert LLM.store(tmp_path / "data").arrays["tokens"].rows().tobytes() == stored


def test_a_mixed_folder_says_which_file_has_which_encoding(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for encoding in ("shift_jis", "euc_kr", "cp1252", "utf-16"):
        (folder / encoding).write_bytes((WRITTEN[encoding][1] * 20).encode(encoding))
    (folder / "a").write_text(WRITTEN["euc_kr"][1] * 20)
    (folder / "b").write_text("plain\n")
    seems = {"shift_jis": "shift_jis", "euc_kr": "euc_kr", "cp1252": "unknown", "utf-16": "utf-16"}
    for given in ("utf-8", "latin-1"):
        refused = LLM.run("prepare", "--input", "texts", "--encoding", given, cwd=tmp_path)
        line = one_error(refused, f"not {given} text: ", "iconv -f")
        for name, encoding in {**seems, "a": "utf-8", "b": "ascii"}.items():
            assert f"texts/{name} ({encoding})" in line
    assert not (tmp_path / "data/manifest.json").exists()


def test_a_file_that_is_no_text_is_named_with_a_command(tmp_path):
    rows = pa.table({"title": ["a", "b"], "body": ["c", "d"]})
    pyarrow.parquet.write_table(rows, tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    refused = {
        "cut.parquet": (whole[:-20], "a Parquet file that is cut off .*: copy or download it"),
        "whole.parquet": (whole, "no texts under 'text', but title, body: .*--column"),
        "table.jsonl": (b"id,text\n1,a\n", "no JSON object, but 'id,text' .*line 1: .*to_json"),
        "rows.jsonl": (
            b'{"title": "a", "body": "b"}\n',
            "under 'text', but title, body: .*--column",
        ),
        "list.json": (b'[\n{"text": "a"}]\n', "a JSON document: list.json: run `jq -c"),
        "x.zip": (b"PK\3\4" + bytes(30), "a ZIP archive: x.zip: unpack it, as `unzip"),
        "x.tar.gz": (gzip.compress(bytes(257) + b"ustar"), "an archive: .*`tar xf"),
        "x.pdf": (b"%PDF-1.7\n", "a PDF document: x.pdf: .*`pdftotext"),
    }
    for name, (content, says) in refused.items():
        made_up.written(tmp_path, content, name)
        one_error(made_up.prepare(tmp_path, "llm", name), says)
    made_up.written(tmp_path, "id,text\n" + "1,a\n" * 99, "shelf.csv")
    assert "shelf.csv is one text: if its rows" in made_up.prepare(tmp_path, "llm", "shelf.csv").err


# ---- blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 500])
def test_each_token_but_the_first_is_the_target_of_the_one_before_it_once(block, prepared):
    for split in ("train", "validation"):
        text = torch.from_numpy(tokens(prepared / "data", split))
        flags = ("--data.block_size", str(block), "--data.batch_size", "100")
        seen = LLM.batches(LLM.store(prepared / "data"), split, *flags)
        is_sample = torch.cat([batch["index"] >= 0 for batch in seen])
        inputs = torch.cat([batch["tokens"] for batch in seen])
        targets = torch.cat([batch["targets"] for batch in seen])
        assert (targets[~is_sample] == -100).all()
        present = targets != -100
        assert torch.equal(targets[present], text[1:])
        assert torch.equal(inputs[present], text[:-1])


def test_random_start_shifts_in_training_only(prepared):
    flags = ("--data.block_size", "32", "--data.order", "random_start")
    samples = LLM.samples(LLM.store(prepared / "data"), "train", *flags)
    numbers = np.arange(len(samples))
    still = samples.spans(numbers, 3)["tokens"]
    assert (still.starts == samples.first + 32 * numbers).all()
    samples.training = True
    first, again, other = (samples.spans(numbers, epoch)["tokens"] for epoch in (0, 0, 1))
    assert (first.lengths == 33).all(), "no short block where it can be moved"
    assert (first.starts + 33 <= samples.last).all()
    assert set((first.starts - still.starts)[:-1].tolist()) == set(range(32))
    assert (first.starts == again.starts).all()
    assert (first.starts != other.starts).mean() > 0.9


# ---- the model ---------------------------------------------------------------------------------


def test_flops_are_those_of_the_formula():
    """6 for each parameter and 12 · layers · width · context for attention (PaLM, appendix B)."""

    def count(time, *flags):
        chosen = settings("--model.size", "small", *flags)
        build = functools.partial(module("model").build_model, chosen, facts(50_257))
        batch = {name: torch.zeros(1, time, dtype=torch.int64) for name in ("tokens", "targets")}
        return module("hooks.throughput").count_flops(build, batch)

    expected = 1024 * (6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024)
    assert count(1024, *GPT2) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(
    ("name", "precision", "says"),
    [
        ("NVIDIA H200", "bf16", "989 TFLOPS, .*H200.* dense bf16"),
        ("NVIDIA H200", "fp8", "^n/a: fp8"),
    ],
)
def test_mfu_has_the_peak_of_the_gpu_or_none(name, precision, says, monkeypatch):
    throughput = module("hooks.throughput")
    memory = int(139.8 * 2**30)
    properties = SimpleNamespace(
        name=name, major=9, minor=0, multi_processor_count=132, total_memory=memory
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    peak, why = throughput.peak_of(torch.device("cuda"), precision)
    assert re.search(says, why), why
    assert (peak > 0) == ("TFLOPS" in why)


def test_the_loss_is_that_of_the_logits():
    model = small_model().eval()
    batch = random_batch(3)
    batch["targets"][1, 9:] = -100
    output = model(batch)
    hidden = model.head.norm(model.hidden(batch["tokens"]))
    logits = functional.linear(hidden, model.embedding.weight)
    assert logits.shape[-1] == 320, "a multiple of 64"
    expected = functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
    torch.testing.assert_close(output.loss, expected)
    assert output.total_weight == 3 * 16 - 7
    total, count = output.metrics["bits_per_byte"]
    assert count == output.total_weight - (batch["targets"] == 256).sum()
    torch.testing.assert_close(total, expected * output.total_weight / math.log(2))
    batch["targets"][:] = -100
    nothing = model.train()(batch)
    assert (nothing.loss, nothing.total_weight) == (0, 0)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_chunked_loss_is_the_whole_one(dtype, monkeypatch):
    batch = random_batch()
    batch["targets"][2, 3:] = -100
    results = []
    for bytes_held in (1 << 30, 4 * 320 * 10):  # ten rows at a time
        monkeypatch.setattr(module("model"), "LOGITS_BYTES", bytes_held)
        model = small_model()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = model(batch).loss
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    tolerance = {"rtol": 1e-4, "atol": 1e-7} if dtype is None else {"rtol": 0.05, "atol": 2e-3}
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, **tolerance)
    with torch.no_grad():
        torch.testing.assert_close(small_model()(batch).loss, results[0][0], rtol=1e-4, atol=0)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_no_token_sees_a_later_one(positions):
    model = small_model("--model.positions", positions).eval()
    text = torch.randint(257, (2, 16))
    changed = text.clone()
    changed[:, 9:] = torch.randint(257, (2, 7))
    torch.testing.assert_close(model.logits(text)[:, :9], model.logits(changed)[:, :9])
    assert not torch.allclose(model.logits(text)[:, 9:], model.logits(changed)[:, 9:])
    swapped = text[:, [1, 0, *range(2, 16)]]
    assert not torch.allclose(model.logits(text)[:, -1], model.logits(swapped)[:, -1])


@pytest.mark.parametrize(
    "flags", [(), ("--model.positions", "learned", "--model.norm", "rms", "--model.bias", "true")]
)
@pytest.mark.parametrize("length", [5, 40])
def test_generated_tokens_are_the_likeliest_after_the_last_block(flags, length):
    """Also past block_size 16, and from a prompt that is longer than a block."""
    model = small_model(*flags).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from the start, where all logits are alike
            parameter.mul_(3)
    prompt = torch.randint(257, (2, length))
    greedy = model.generate(prompt, 20, temperature=0.0)
    assert torch.equal(greedy[:, :length], prompt)
    for place in range(length, length + 20):
        seen = greedy[:, max(place - 16, 0) : place]
        assert torch.equal(model.logits(seen)[:, -1].argmax(-1), greedy[:, place])
    assert torch.equal(greedy, model.generate(prompt, 20, temperature=5.0, top_k=1))
    assert not torch.equal(model.generate(prompt, 20, seed=1), model.generate(prompt, 20, seed=2))


def test_what_pads_the_vocabulary_is_never_generated():
    model = small_model(vocabulary=65).eval()
    assert model.embedding.num_embeddings == 128
    with torch.no_grad():
        model.embedding.weight[65:] = 50 * torch.randn(63, 32)
    assert model.generate(torch.zeros(4, 1, dtype=torch.int64), 100, temperature=3.0).max() < 65


def test_compiled_blocks_compute_the_same(monkeypatch):
    """Each block and the head, whose chunked loss the compiler can look into."""
    monkeypatch.setattr(module("model"), "LOGITS_BYTES", 4 * 320 * 20)
    models = [small_model(), small_model()]
    for block in models[0].blocks():
        block.compile(backend="aot_eager", fullgraph=True)
    batch = random_batch()
    for model in models:
        model(batch).loss.backward()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)
    # Each token has another shape: compiled for each, torch would give up at the ninth.
    start = torch.zeros(1, 3, dtype=torch.int64)
    texts = [model.eval().generate(start, 20, temperature=0.0) for model in models]
    assert torch.equal(*texts)


# ---- training ----------------------------------------------------------------------------------


def test_it_learns_the_order_of_tokens_and_says_how_well(place):
    words = ("train", *SMALL, "--optimizer.learning_rate", "0.01", "--training.max_steps", "200")
    trained = LLM.done(*words, cwd=place)
    assert "MFU n/a: there is no GPU" in trained.out
    row = next(row for row in rows(place) if "split" not in row)
    assert row["tokens_per_second"] == pytest.approx(16 * row["samples_per_second"])

    LLM.done("evaluate", cwd=place)
    evaluation = evaluation_of(place)
    metrics = evaluation["metrics"]
    text = tokens(place / "data", "test")
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    bits = metrics["loss"] / math.log(2) * (len(text) - 1) / (text[1:] < 256).sum()
    assert metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert metrics["bits_per_byte"] < 1.5

    generate = ("generate", "--prompt", "Line 12", "--tokens", "40")
    generated = LLM.done(*generate, "--output", "out.txt", cwd=place).out
    written = (place / "out.txt").read_text()
    assert written.startswith("Line 12")
    assert written in generated
    (place / "data").unlink()  # the run folder is enough
    assert LLM.done(*generate, "--seed", "0", cwd=place).out == generated


# ---- fp8 ---------------------------------------------------------------------------------------


def test_fp8_layers_evaluate_in_bf16_and_leave_small_ones_alone():
    fp8 = module("engine.compute.fp8", precision="fp8")
    model = small_model("--model.width", "128")
    plain = small_model("--model.width", "128").eval()
    assert fp8.convert(model, emulate=True) == 8
    layers = [layer for layer in model.modules() if type(layer).__name__ == "Layer"]
    assert all(layer.config.pad_inner_dim for layer in layers), "else multiples of 16 tokens only"
    assert model.state_dict().keys() == plain.state_dict().keys()
    batch = random_batch()
    torch.testing.assert_close(model.eval()(batch).loss, plain(batch).loss)
    assert model.train()(batch).loss != plain.train()(batch).loss
    assert fp8.convert(small_model(), emulate=True) == 0


# ---- bad input ---------------------------------------------------------------------------------

NOT_UTF8 = TEXT.encode()[:1000] + b"\xff\xfe" + TEXT.encode()


@pytest.mark.parametrize(
    ("content", "flags", "says"),
    [
        (b"", "", ("no text", "text.txt")),
        (NOT_UTF8, "", (r"not UTF-8 text: text.txt .unknown.: .*convert them",)),
        (b"\x7fELF\0\1", "", (r"not UTF-8 text: text.txt .unknown.: .*binary files",)),
        (
            TEXT,
            "--encoding klingon",
            ("unknown encoding: klingon", "text.txt", "check .*--encoding"),
        ),
        (TEXT, "--encoding hex", ("'hex' is not a text encoding", "text.txt")),
        ("größer\n" * 99, "--encoding latin-1", (r"not latin-1 text: text.txt .utf-8.",)),
        ("größer\n" * 99, "--encoding utf-16", (r"not utf-16 text: text.txt .utf-8.",)),
        (TEXT, "--split 1000000,10,0", ("cannot be split into 1000000, 10, 0", "--split")),
        (TEXT, "--tokenizer bpe --vocabulary 100", ("above 257", "--vocabulary 100")),
        (TEXT, "--input texts", ("no text in a file", "--glob")),
        (TEXT, "--input texts --glob /*", ("matches '/\\*'", "--glob")),
        (gzip.compress(TEXT.encode())[:-20], "", ("cannot read", "text.txt")),
    ],
)
def test_text_that_cannot_be_prepared(content, flags, says, tmp_path):
    (tmp_path / "texts").mkdir()
    one_error(prepare(tmp_path, content, *flags.split()), *says)
    # Nothing half-written stays.
    assert {path.name for path in tmp_path.glob("data/*")} <= {".lock"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--data.block_size 100000", ("train split has", "100001", "lower data.block_size")),
        ("--model.vocabulary 200", ("200 is smaller than the data's 257", "model.vocabulary")),
        ("--model.heads 5", ("width of 32 is not divisible by 5 heads", "multiple of 5")),
        (
            "--model.positions learned --model.context 8",
            ("16", "table of 8 positions", "context"),
        ),
        (
            "--compile.enabled true --compile.mode max-autotune --training.gradient_accumulation_steps 2",
            ("pytorch#169545",),
        ),
    ],
)
def test_settings_that_do_not_fit(flags, says, place):
    one_error(LLM.run("train", *SMALL, *flags.split(), cwd=place), *says)
    assert not list(place.glob("runs/*/metrics.jsonl"))


def test_what_generate_refuses(tmp_path):
    assert prepare(tmp_path, TEXT, "--tokenizer", "char").code == 0
    LLM.done("train", *SMALL, "--training.max_steps", "2", cwd=tmp_path)
    for flag, value, says in (
        ("--prompt", "€", "'€' is not in the vocabulary"),
        ("--tokens", "-1", "--tokens"),
        ("--prompt", "\udcff", "not UTF-8 text"),
        ("--top-k", "0", "out of its range: --top-k"),
    ):
        one_error(LLM.run("generate", flag, value, cwd=tmp_path), says)
