"""The workload `seq2seq`: pairs, padding, T5 against the library, decoding, pretrained weights,
metrics."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rendering import document
from running import documented, evaluation_of, losses, newest_run, one_error
from torch._dynamo.testing import CompileCounter
from torch.nn import functional
from workload import Workload

SEQ2SEQ = Workload("seq2seq")
module = SEQ2SEQ.module
settings = SEQ2SEQ.settings
ANIMALS = [f"{color} {animal}" for color in ("red", "blue", "grey") for animal in ("fox", "dog")]
PAIRS = [
    (f"the {ANIMALS[number % 6]} number {number} runs", f"{ANIMALS[number % 6][-3:]} {number % 3}")
    for number in range(120)
]
LONG = [
    (" ".join(["very"] * (1 + n % 9) + [source]), target)
    for n, (source, target) in enumerate(PAIRS)
]
LONG += LONG[:7]
SPLITS = ("train", "validation", "test")
SPLIT = ("--split", "0.7,0.15,0.15")
SIZES = ("--model.layers", "1", "--model.width", "32", "--model.heads", "2", "--model.hidden", "64")
TRAINING = ("--data.batch_size", "8", "--monitor.every_steps", "1", "--schedule.warmup_steps", "5")
SMALL = (*SIZES, *TRAINING)


def as_tsv(pairs):
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def prepare(folder, content, *flags, name="pairs.tsv"):
    """Write the content into the folder as a file and prepare it."""
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return SEQ2SEQ.run("prepare", "--input", name, *flags, cwd=folder)


def prepared_folder(folder, pairs, *flags):
    result = prepare(folder, as_tsv(pairs), *flags)
    assert result.code == 0, result.err
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A working folder with LONG as bytes in `data`."""
    return prepared_folder(tmp_path_factory.mktemp("prepared"), LONG, *SPLIT)


def store(folder):
    return SEQ2SEQ.store(folder / "data")


def stored_pairs(folder, split):
    """The texts of a split, as they were stored."""
    opened = store(folder)
    tokenizer = module("tokenizer").restore(opened.facts["tokenizer"])
    offsets = opened.arrays["offsets"].rows()

    def text(side, pair):
        tokens = opened.arrays[("source", "target")[side]].rows()
        *content, end = tokens[offsets[pair, side] : offsets[pair + 1, side]].tolist()
        assert end == tokenizer.end
        return tokenizer.decode(content).decode("utf-8", "replace")

    return [(text(0, pair), text(1, pair)) for pair in range(*opened.splits[split])]


def batches(folder, split, *flags, **options):
    return SEQ2SEQ.batches(store(folder), split, *SMALL, *flags, **options)


def facts(**changed):
    return {"vocabulary": 257, "start": 256, "end": 256, "longest": 12, **changed}


def small_model(*flags, **changed):
    torch.manual_seed(0)
    return module("model").build_model(settings(*SMALL, *flags), facts(**changed))


# ---- pairs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tsv", "JSONL.gz"])
def test_every_kind_of_file_gives_the_same_pairs(kind, prepared, tmp_path):
    content = b"\xef\xbb\xbf" + as_tsv(LONG).encode()
    keys = ()
    if kind == "JSONL.gz":
        rows = [json.dumps({"in": {"en": one}, "out": other, "n": 1}) for one, other in LONG]
        content = gzip.compress("\n".join(rows).encode())
        keys = ("--source-key", "in.en", "--target-key", "out")
    result = prepare(tmp_path, content, *SPLIT, *keys, name=f"pairs \udcff.{kind}")
    assert result.code == 0, result.err
    for split in SPLITS:
        assert stored_pairs(tmp_path, split) == stored_pairs(prepared, split)


def test_pairs_are_split_whole_each_once(prepared):
    splits = [stored_pairs(prepared, split) for split in SPLITS]
    unique = set(LONG)
    held_out = round(0.15 * len(unique))
    assert list(map(len, splits)) == [len(unique) - 2 * held_out, held_out, held_out]
    assert set().union(*splits) == unique


def test_files_of_their_own_validate_and_test(tmp_path):
    (tmp_path / "val.tsv").write_text(as_tsv([PAIRS[0], ("new", "one"), ("new", "two")]))
    (tmp_path / "test.tsv").write_text(as_tsv([("new", "one"), ("last", "three")]))
    result = prepare(tmp_path, as_tsv(PAIRS), "--validation", "val.tsv", "--test", "test.tsv")
    assert "copies of other pairs: 2" in result.out, result.err
    assert stored_pairs(tmp_path, "train") == PAIRS, "as they come"
    assert stored_pairs(tmp_path, "validation") == [("new", "one"), ("new", "two")]
    assert stored_pairs(tmp_path, "test") == [("last", "three")]


def test_a_source_with_several_targets_in_several_splits_is_counted(tmp_path):
    """Also for files of their own, and not within a split."""
    note = "in validation and test, with a source of train: "
    (tmp_path / "val.tsv").write_text(as_tsv([("new", "one"), ("new", "two"), ("a", "z")]))
    (tmp_path / "test.tsv").write_text(as_tsv([("b", "z"), ("new", "three")]))
    pairs = as_tsv([("a", "b"), ("a", "c"), ("b", "c")])
    result = prepare(tmp_path, pairs, "--validation", "val.tsv", "--test", "test.tsv")
    assert f"{note}2\n" in result.out, result.err
    result = prepare(tmp_path, as_tsv([("same", str(number)) for number in range(40)]), *SPLIT)
    assert f"{note}12\n" in result.out, result.err
    assert note not in prepare(tmp_path, as_tsv(PAIRS), *SPLIT).out


ODD = [('He said "go"', "« va »"), ("a\tb", "c"), ("two\nlines", "x, y"), ("x; y", '"q"')]


def as_table(pairs, **style):
    file = io.StringIO()
    csv.writer(file, **style).writerows(pairs)
    return file.getvalue()


TABLES = {
    "minimal.tsv": as_table([*PAIRS, *ODD], delimiter="\t"),
    "all.tsv": as_table(
        [("Source", "TARGET"), *PAIRS, *ODD], delimiter="\t", quoting=csv.QUOTE_ALL
    ),
    "index.tsv": as_table(
        [("", "target", "source"), *((n, *pair[::-1]) for n, pair in enumerate([*PAIRS, *ODD]))],
        delimiter="\t",
    ),
    "comma.csv": as_table([("source", "target"), *PAIRS, *ODD]),
    "plain.CSV": as_table([*PAIRS, *ODD]),
    "german.csv": as_table([("source", "target"), *PAIRS, *ODD], delimiter=";"),
    "mac.tsv": as_table([*PAIRS, *ODD], delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\r"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_pandas_and_spreadsheets_are_read_as_they_are_meant(name, tmp_path):
    encoding = ["utf-8-sig", "cp1252", "utf-16"][list(TABLES).index(name) % 3]
    (tmp_path / "val.tsv").write_bytes("new\tone\n".encode(encoding))
    flags = ("--validation", "val.tsv", "--encoding", encoding)
    result = prepare(tmp_path, TABLES[name].encode(encoding), *flags, name=name)
    assert result.code == 0, result.err
    assert stored_pairs(tmp_path, "train") == [*PAIRS, *ODD]
    assert stored_pairs(tmp_path, "validation") == [("new", "one")]


def test_commas_of_texts_separate_no_cells(tmp_path):
    pairs = [(f"Hello, {number}", f"Hallo {number}") for number in range(40)]
    (tmp_path / "val.tsv").write_text("new\tone\n")
    content = "".join(f"{source};{target}\n" for source, target in pairs)
    result = prepare(tmp_path, content.encode(), "--validation", "val.tsv", name="pairs.csv")
    assert result.code == 0, result.err
    assert stored_pairs(tmp_path, "train") == pairs


def test_symbols_between_spaces_are_tokens(tmp_path):
    """Those that no training pair has are one token."""
    pairs = [(f"C C ( = O ) {number}", "HH AH0 L OW1") for number in range(40)]
    (tmp_path / "val.tsv").write_text("C Xx O\tOW1 ZZ\n")
    flags = ("--tokenizer", "space", "--validation", "val.tsv")
    opened = store(prepared_folder(tmp_path, pairs, *flags))
    assert stored_pairs(tmp_path, "train") == pairs
    assert stored_pairs(tmp_path, "validation") == [("C \ufffd O", "OW1 \ufffd")]
    symbols = {symbol for pair in pairs for text in pair for symbol in text.split()}
    assert opened.facts["vocabulary"] == opened.facts["end"] + 1 == len(symbols) + 2
    assert opened.facts["longest"] == 5, "four symbols, and the end"


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_every_tokenizer_gives_the_texts_back(kind, tmp_path):
    pairs = [(f"naïve 漢字 🙂 {source}", f"é {target}") for source, target in PAIRS]
    flags = ("--tokenizer", kind, "--vocabulary", "320")
    opened = store(prepared_folder(tmp_path, pairs, *flags))
    train = stored_pairs(tmp_path, "train")
    assert set(train) <= set(pairs)
    assert opened.facts["vocabulary"] == opened.facts["end"] + 1
    sizes = opened.arrays["target_bytes"].rows()[slice(*opened.splits["train"])]
    assert sizes.tolist() == [len(target.encode()) for _, target in train]


def test_what_is_too_long_is_cut_or_left_out_and_counted(tmp_path):
    text = as_tsv([*PAIRS, ("x" * 60, "long source"), ("a source", "é" * 30)])
    (tmp_path / "val.tsv").write_text("a\tb\n")
    flags = ("--max-source", "50", "--max-target", "20", "--validation", "val.tsv")
    cut = prepare(tmp_path, text, *flags)
    assert "too long, cut, sources of train: 1" in cut.out, cut.err
    assert "too long, cut, targets of train: 1" in cut.out
    stored = stored_pairs(tmp_path, "train")
    assert stored[-2] == ("x" * 49, "long source")
    sizes = store(tmp_path).arrays["target_bytes"].rows()
    assert sizes[len(stored) - 1] == 19, "half a character stays"
    assert store(tmp_path).facts["longest"] == 20
    skipped = prepare(tmp_path, text, *flags, "--too-long", "skip")
    assert "too long, left out, with its pair, sources of train: 1" in skipped.out
    assert stored_pairs(tmp_path, "train") == PAIRS


def test_batches_hold_the_pairs_one_place_apart(prepared):
    expected = stored_pairs(prepared, "test")
    seen = []
    for batch in batches(prepared, "test"):
        present = batch["source_present"]
        is_target = batch["targets"] != -100
        for mask in (present, is_target):
            longest = int(mask.sum(1).max())
            assert mask.shape[1] == -(-longest // 8) * 8, "no wider than it must be"
        for row, number in enumerate(batch["index"].tolist()):
            source = batch["source"][row][present[row]].tolist()
            target = batch["targets"][row][is_target[row]].tolist()
            if number < 0:
                assert len(source) == 1, "else attention would be over nothing"
                continue
            seen.append(number)
            assert [source, target] == [[*text.encode(), 256] for text in expected[number]]
            assert batch["decoder_input"][row, : len(target)].tolist() == [256, *target[:-1]]
            assert batch["target_bytes"][row] == len(target) - 1
    assert sorted(seen) == list(range(len(expected)))


# ---- the model against the library ---------------------------------------------------------------


def random_batch(pairs=5, source=24, target=16, seed=1):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, source + 1, (pairs, 1), generator=random)
    kept = torch.randint(1, target + 1, (pairs, 1), generator=random)
    tokens = torch.randint(256, (pairs, source), generator=random)
    targets = torch.randint(256, (pairs, target), generator=random)
    return as_batch(tokens, torch.arange(source) < lengths, targets, kept)


def as_batch(source, present, targets, kept):
    """kept: (B, 1) targets of each pair."""
    behind = torch.arange(targets.shape[1]) >= kept
    return {
        "source": source.masked_fill(~present, 0),
        "source_present": present,
        "decoder_input": functional.pad(targets[:, :-1], (1, 0), value=256),
        "targets": targets.masked_fill(behind, -100),
        "target_bytes": kept[:, 0],
    }


@pytest.mark.parametrize(
    ("fused", "attention", "feed_forward"),
    [(False, "eager", "relu"), (True, "sdpa", "gated-gelu")],
    ids=["as on a CPU", "as on a GPU"],
)
def test_loss_and_gradients_are_those_of_the_library(fused, attention, feed_forward, monkeypatch):
    from transformers import T5ForConditionalGeneration

    monkeypatch.setattr(module("layers"), "UNFUSED", "" if fused else "cpu")
    flags = ("--model.layers", "2", "--model.dropout", "0", "--model.feed_forward", feed_forward)
    model = small_model(*flags).train()
    config = type(model.t5.config)(**model.t5.config.to_dict())
    config._attn_implementation = attention
    library = T5ForConditionalGeneration(config).train()
    library.load_state_dict(model.t5.state_dict())
    batch = random_batch()
    output = model(batch)
    expected = library_loss(library, batch)
    torch.testing.assert_close(output.loss, expected)
    assert output.total_weight == (batch["targets"] != -100).sum()
    output.loss.backward()
    expected.backward()
    theirs = dict(library.named_parameters())
    for name, parameter in model.t5.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6)


def library_loss(library, batch):
    mask = batch["source_present"].long()
    return library(input_ids=batch["source"], attention_mask=mask, labels=batch["targets"]).loss


def test_twenty_places_more_of_padding_change_nothing():
    batch = random_batch()
    padding = {"source": 7, "source_present": 0, "decoder_input": 7, "targets": -100}
    padded = dict(batch)
    for name, value in padding.items():
        padded[name] = functional.pad(batch[name], (0, 20), value=value)
    results = []
    for made in (batch, padded):
        model = small_model("--model.layers", "2", "--model.dropout", "0")
        loss = model.train()(made).loss
        loss.backward()
        values = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
        with torch.no_grad():
            for pair in model.eval()(made).metrics.values():
                values += pair
            values.append(model.generate(made["source"], made["source_present"], 9))
        results.append(values)
    for plain, wide in zip(*results, strict=True):
        torch.testing.assert_close(wide, plain, rtol=1e-6, atol=1e-5)


def test_layers_compile_whole_and_for_any_lengths(monkeypatch):
    """One graph for a layer of the encoder and one for the decoder's, in training and in
    evaluation."""
    models = [small_model(), small_model()]
    torch._dynamo.reset()
    counter = CompileCounter()
    real = torch.nn.Module.compile

    def compiled(block, mode, **options):
        real(block, backend=counter, **options)

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    enabled = settings("--compile.enabled", "true")
    module("engine.compute.optimization").compile_blocks(models[0].blocks(), enabled, None)
    for seed, sizes in enumerate([(4, 24, 16), (4, 32, 24), (9, 8, 8)]):
        batch = random_batch(*sizes, seed=seed)
        results = []
        for model in models:
            torch.manual_seed(3)
            model.zero_grad()
            model.train()(batch).loss.backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            with torch.no_grad():
                results.append([model.eval()(batch).loss, *gradients])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert counter.frame_count == 4
    torch._dynamo.reset()


# ---- decoding ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned():
    """A model that has learnt to copy a source's first bytes, often but not always right."""
    model = small_model("--model.dropout", "0", "--model.width", "64", "--model.hidden", "128")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(300):
        model(copying(32, step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def copying(pairs, seed):
    """Sources of 16 places, whose first 1 to 3 bytes, up to a sign, are the targets."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 17, (pairs, 1), generator=random)
    source = torch.randint(97, 103, (pairs, 16), generator=random)
    count = torch.randint(1, 4, (pairs, 1), generator=random)
    place = torch.arange(16)
    targets = source.masked_fill(place == count, 256)[:, :8]
    source = source.masked_fill(place == count, 104)
    return as_batch(source, place < lengths.clamp(min=count + 1), targets, count + 1)


def generate(model, batch, beams=1):
    return model.generate(batch["source"], batch["source_present"], 8, beams)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_prediction_is_the_same_in_any_batch(learned, beams):
    batch = copying(64, 998)
    whole = generate(learned, batch, beams)
    assert whole.shape == (64, 8)
    for row in range(0, 64, 7):
        length = int(batch["source_present"][row].sum())
        one = {name: batch[name][row : row + 1, :length] for name in ("source", "source_present")}
        assert torch.equal(generate(learned, one, beams)[0], whole[row])
    end = (whole == 256).int()
    assert (end.cummax(1).values == end).all(), "nothing follows an end"
    assert torch.equal(whole, generate(learned, batch)) == (beams == 1)


def test_what_pads_the_vocabulary_is_never_made():
    model = small_model(vocabulary=65, start=64, end=64).eval()
    assert model.t5.config.vocab_size == 128
    with torch.no_grad():
        model.t5.shared.weight[65:] = 50 * torch.randn(63, 32)
    source = torch.randint(64, (4, 8))
    assert model.generate(source, source >= 0, 20).max() < 65


# ---- pretrained ----------------------------------------------------------------------------------


def save_pretrained(folder, **options):
    """A T5 of our own in a folder as the library writes it: tokenizer, configuration, weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import T5Config, T5ForConditionalGeneration

    seen = {word for pair in PAIRS for text in pair for word in text.split()}
    words = ["<pad>", "</s>", "<unk>", *sorted(seen)]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(words[:3])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(5)
    config: Any = T5Config(
        vocab_size=len(words) + 5,
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_heads=2,
        num_layers=2,
        num_decoder_layers=1,
        dropout_rate=0.3,
        feed_forward_proj="gated-gelu",
        **{"decoder_start_token_id": 0},
    )
    model = T5ForConditionalGeneration(config).eval()
    model.save_pretrained(folder, **options)
    return model


FINE = ("--tokenizer", "pretrained", "--pretrained", "t5")
TUNE = ("train", "--model.pretrained", "t5", *TRAINING, "--training.max_steps", "6")


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}], ids=str)
def test_training_starts_from_pretrained_weights(options, tmp_path):
    library = save_pretrained(tmp_path / "t5", **options)
    prepared_folder(tmp_path, PAIRS, *FINE)
    assert set(stored_pairs(tmp_path, "test")) <= set(PAIRS)
    SEQ2SEQ.done(*TUNE, "--model.dropout", "0", cwd=tmp_path)
    first = batches(tmp_path, "train", train=True)[0]
    with torch.no_grad():
        expected = library_loss(library, first).item()
    assert float.fromhex(losses(tmp_path)[0][1]) == pytest.approx(expected, rel=1e-5)
    SEQ2SEQ.done("predict", "--text", PAIRS[0][0], "--beams", "2", cwd=tmp_path)


def without_a_weight(folder):
    from safetensors.torch import load_file, save_file

    weights_file = folder / "model.safetensors"
    kept = load_file(weights_file)
    del kept["decoder.final_layer_norm.weight"]
    save_file(kept, weights_file, {"format": "pt"})


def configured(key, value):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, key: value}))

    return change


SPOILED: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "a weight": (
        without_a_weight,
        ("missing in the checkpoint: 1,", "decoder.final_layer_norm.weight"),
    ),
    "another model": (configured("model_type", "bart"), ("is a bart, not a T5",)),
    "another vocabulary": (
        configured("vocab_size", 999),
        (r"in the data and \(999, 1, 0\)", "--tokenizer pretrained"),
    ),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_pretrained_weights_that_do_not_fit_are_one_line(fault, tmp_path):
    save_pretrained(tmp_path / "t5")
    prepared_folder(tmp_path, PAIRS, *FINE)
    spoil, says = SPOILED[fault]
    spoil(tmp_path / "t5")
    one_error(SEQ2SEQ.run(*TUNE, cwd=tmp_path), *says)
    assert not list(tmp_path.glob("runs/*"))


def test_a_pretrained_tokenizer_that_is_not_there_is_one_line(tmp_path):
    save_pretrained(tmp_path / "t5")
    (tmp_path / "t5/tokenizer.json").unlink()
    says = ("tokenizer cannot be loaded", "--pretrained t5", "tokenizer.json", "go online")
    one_error(prepare(tmp_path, as_tsv(PAIRS), *FINE), *says)
    assert not (tmp_path / "data").exists()


def test_the_first_pair_is_shown_and_those_in_no_split_are_counted(tmp_path):
    out = prepare(tmp_path, as_tsv(PAIRS[:40]), "--split", "30,5").out
    assert "note: 5 pairs are in no split, see --split" in out
    source, target = PAIRS[0]
    assert f"{source[:40]!r} → {target[:40]!r}" in out


# ---- bad input -----------------------------------------------------------------------------------

VALID = as_tsv(PAIRS[:40])


@pytest.mark.parametrize(
    ("added", "flags", "says"),
    [
        ("no tab here\n", "", ("1 instead of 2 cells", r"pairs.tsv, line 41", "one tab")),
        ("a source\t \n", "", ("the target is empty", "line 41")),
        ("", "--split 1,0,0", ("40 cannot be split into 40, 0, 0", "--split 1,0,0")),
        (
            "",
            "--validation pairs.tsv",
            ("no new pair in the file", "pairs.tsv", "no other file has"),
        ),
        ("", "--test pairs.tsv", ("no validation file", "--validation")),
        (
            "",
            "--max-target 2 --too-long skip",
            ("every pair of train is too long", "use --too-long cut"),
        ),
        ("", "--tokenizer pretrained", ("belong together", "--pretrained")),
        ("", "--source-key en", ("no columns 'en' and 'target', but ", "line 1", "--source-key")),
        ("", "--validation .", ("a folder, not a file: .:",)),
    ],
)
def test_bad_input_is_one_line(added, flags, says, tmp_path):
    one_error(prepare(tmp_path, VALID + added, *flags.split()), *says)
    assert not (tmp_path / "data/manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("pairs.jsonl", "{\n", ("no JSON object", "line 1", "--source-key")),
        ("pairs.jsonl", '{"source": "a", "target": 3}\n', ("but source: 'a', target: 3", "line 1")),
        ("pairs.csv", "source,source,target\na,b,c\n", ("two columns have one name", "line 1")),
        ("pairs.tsv", "one side\n", ("1 instead of 2", "`paste OLD OTHER > NEW`")),
        ("pairs.tsv", VALID.encode() + b"\xff\tx\n", ("not UTF-8", "pairs.tsv")),
        ("pairs.tsv", "猫である\tのは\n".encode("cp932"), ("not UTF-8", "pairs.tsv .shift_jis.")),
        ("pairs.csv", 'source,target\na,b\n"x" y,z\n', ("no CSV file", "pairs.csv", "quotes")),
        ("pairs.csv", "source,target\na,b,c\n", ("3 instead of 2 cells", "line 2")),
        ("pairs.parquet", b"PAR1\x15\4\x15" + bytes(50), ("cut off", "pairs.parquet", "again")),
        ("pairs.jsonl", '{"source": "a", "target": "\\ud83d"}\n', ("not UTF-8", "line 1")),
        ("pairs.tsv.gz", gzip.compress(VALID.encode())[:-20], ("cannot read the file", "tsv.gz")),
    ],
)
def test_bad_files_are_one_line(name, content, says, tmp_path):
    one_error(prepare(tmp_path, content, name=name), *says)


# ---- training ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
    """A folder with a run that has learnt, and what it printed."""
    place = tmp_path_factory.mktemp("trained")
    (place / "data").symlink_to(prepared / "data")
    words = ("train", *SMALL, "--model.dropout", "0", "--optimizer.learning_rate", "0.01")
    return place, SEQ2SEQ.done(*words, "--training.max_steps", "250", cwd=place).out


def read_rows(path):
    return list(map(json.loads, path.read_text().splitlines()))


def predictions(place):
    return read_rows(newest_run(place) / "predictions.jsonl")


def test_it_learns_and_says_how_well(trained):
    place, printed = trained
    SEQ2SEQ.done("evaluate", cwd=place)
    assert "tokens/s" in printed
    evaluation = evaluation_of(place)
    metrics = evaluation["metrics"]
    assert list(metrics) == ["loss", "loss_per_byte", "token_accuracy", "exact_match"]
    assert metrics["loss_per_byte"] < 2
    assert metrics["exact_match"] > 0.2
    SEQ2SEQ.done("predict", cwd=place)
    rows = predictions(place)
    assert [(row["source"], row["target"]) for row in rows] == stored_pairs(place, "test")
    exact = sum(row["prediction"] == row["target"] for row in rows) / len(rows)
    assert exact == pytest.approx(metrics["exact_match"])


def test_new_sources_are_predicted_as_those_of_a_split(trained):
    place, _ = trained
    SEQ2SEQ.done("predict", cwd=place)
    rows = [{name: row[name] for name in ("source", "prediction")} for row in predictions(place)]
    (place / "new.tsv").write_text("".join(f"{row['source']}\tignored\n" for row in rows))
    (place / "data").rename(place / "away")  # the run folder is enough for new sources
    SEQ2SEQ.done("predict", "--input", "new.tsv", "--output", "out.jsonl", cwd=place)
    assert read_rows(place / "out.jsonl") == rows
    text = ("predict", "--text", rows[0]["source"])
    assert SEQ2SEQ.done(*text, cwd=place).out.splitlines()[-1] == rows[0]["prediction"]
    # A header, in any order of columns, is treated as by `prepare`.
    for header in ("source\ttarget", "ID\tSource"):
        column = header.lower().split("\t").index("source")
        lines = ["\t".join((["", row["source"]], [row["source"], ""])[column == 0]) for row in rows]
        (place / "new.tsv").write_text("\n".join([header, *lines]), "utf-16")
        words = ("predict", "--input", "new.tsv", "--output", "out.jsonl", "--encoding", "utf-16")
        SEQ2SEQ.done(*words, cwd=place)
        assert read_rows(place / "out.jsonl") == rows
    (place / "away").rename(place / "data")
    for flag, value, says in (
        ("--output", "out.csv", "need a .jsonl file"),
        ("--beams", "0", "number of beams"),
        ("--text", "\udcff", "not UTF-8 .*--text"),
        ("--input", "none.tsv", "no such file"),
    ):
        one_error(SEQ2SEQ.run("predict", flag, value, cwd=place), says)


# ---- the guide -----------------------------------------------------------------------------------


@pytest.mark.full
def test_the_commands_of_the_guide(tmp_path):
    """As they stand, on small files of the same names; what the hub has is a folder of that name
    here."""
    for number, name in enumerate(("pairs", "train", "val", "test", "new")):
        text = as_tsv(PAIRS[20 * number :][:20])
        (tmp_path / f"{name}.tsv").write_text(text)
        (tmp_path / f"{name}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    save_pretrained(tmp_path / "google-t5/t5-base")
    commands = documented(document("seq2seq"))
    assert len(commands) >= 10
    quick = ("--training.max_steps", "3", "--training.epochs", "1")
    for words in commands:
        SEQ2SEQ.done(*words, *(quick if words[0] == "train" else ()), cwd=tmp_path)
