"""Texts in other encodings, what tokenizers learn from, lines that are no pairs."""

import gzip
import json
from pathlib import Path

import pytest
from made_up import contents, prepare, store, written
from running import Result, one_error
from workload import Workload

TEXT = "".join(f"Line {number}: the quick brown fox.\n" for number in range(900))


# ---- encodings -----------------------------------------------------------------------------------

UTF16 = {
    "with its mark": TEXT.encode("utf-16"),
    "big end first": TEXT.encode("utf-16-be"),
    "without a mark": TEXT.encode("utf-16-le"),
    "packed": gzip.compress(TEXT.encode("utf-16")),
}


@pytest.mark.parametrize("kind", UTF16)
@pytest.mark.parametrize("workload", ["llm", "seq2seq"])
def test_utf16_is_refused_in_a_line(workload, kind, tmp_path):
    path = written(tmp_path, UTF16[kind], "odd.tsv.gz" if kind == "packed" else "odd.tsv")
    one_error(prepare(tmp_path, workload, path), f"UTF-16 text: {path}: convert it to UTF-8")
    assert {path.name for path in tmp_path.glob("data/*")} <= {".lock"}


@pytest.mark.parametrize("content", [bytes(range(256)) * 20, bytes(3), b"\x00\x01" * 9 + bytes(99)])
def test_other_bytes_are_tokens(content, tmp_path):
    path = written(tmp_path, content + TEXT.encode(), "bytes.bin")
    assert prepare(tmp_path, "llm", path).code == 0


def prepare_folder(folder: Path, wrong: int, flags: str) -> Result:
    for number in range(30):
        content = f"größe {number}\n{TEXT}"
        encoding = "latin-1" if number < wrong else "utf-8"
        written(folder / "texts", content.encode(encoding), f"{number:02}.txt")
    return prepare(folder, "llm", "texts", flags)


@pytest.mark.parametrize("tokenizer", ["char", "bpe --vocabulary 300"])
def test_each_file_of_another_encoding_is_named(tokenizer, tmp_path):
    result = prepare_folder(tmp_path, 12, f"--tokenizer {tokenizer}")
    lines = result.err.strip().splitlines()
    assert result.code == 2
    for number in range(12):
        assert f"not UTF-8 text: texts/{number:02}.txt, byte 2: convert" in lines[number]
    one_error(prepare_folder(tmp_path, 1, f"--tokenizer {tokenizer}"), "texts/00.txt, byte 2")
    assert prepare_folder(tmp_path, 12, "").code == 0  # bytes are tokens


# ---- what byte pairs are learned from ------------------------------------------------------------


@pytest.mark.parametrize("split", ["0.8,0.1,0.1", "9000,100,100"])
@pytest.mark.parametrize("name", ["rows.txt", "rows.jsonl"])
def test_byte_pairs_are_learned_from_the_training_text_alone(split, name, tmp_path):
    definitions = {}
    for ending in ("quick", "quack", "fjord"):
        last = f"A {ending} {ending}.\n" * 300
        content = TEXT + last[: len(TEXT) // 7]
        if name.endswith("jsonl"):
            rows = [f'{{"text": "{line} {row}"}}\n' for row, line in enumerate(content.split("\n"))]
            content = "".join(rows)
        path = written(tmp_path, content, name)
        flags = f"--tokenizer bpe --vocabulary 400 --split {split}"
        assert prepare(tmp_path, "llm", path, flags).code == 0
        definitions[ending] = store(tmp_path, "llm").facts["tokenizer"]["definition"]
        assert "quick" in definitions[ending]
    assert len(set(definitions.values())) == 1


# ---- lines that are no pairs ---------------------------------------------------------------------

PAIRS = "".join(f"{row}\t{row} again\n" for row in range(60))
SEQ2SEQ = Workload("seq2seq")


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        ("source\ttarget\n", ""),
        ("\ufeffText\t Summary\r\n", ""),
        ("English\tFrench\n", "--source-key English --target-key French"),
    ],
)
def test_a_header_is_no_pair(header, flags, tmp_path):
    path = written(tmp_path, PAIRS, "plain.tsv")
    assert "header" not in prepare(tmp_path, "seq2seq", path, flags, "plain").out
    out = prepare(tmp_path, "seq2seq", written(tmp_path, header + PAIRS, "odd.tsv"), flags).out
    assert "note: the first line of odd.tsv is a header, not a pair: " in out
    plain = contents(tmp_path, "seq2seq", "plain")
    assert contents(tmp_path, "seq2seq") == plain
    prepare(tmp_path, "seq2seq", written(tmp_path, PAIRS + header, "end.tsv"), flags)
    assert contents(tmp_path, "seq2seq") != plain  # it is a header on the first line only


@pytest.fixture(scope="module")
def copier(tmp_path_factory):
    """A run of some steps."""
    folder = tmp_path_factory.mktemp("copier")
    assert prepare(folder, "seq2seq", written(folder, PAIRS, "pairs.tsv")).code == 0
    words = "--model.size tiny --training.max_steps 2 --schedule.warmup_steps 1"
    SEQ2SEQ.done("train", *words.split(), "--data.batch_size", "8", cwd=folder)
    return folder


# name: content, the sources that are predicted
LINES: dict[str, tuple[str, list[str]]] = {
    "new.txt": ("\n1\n\n \n2\n\n", ["", "1", "", " ", "2", ""]),
    "new.tsv": ("1\tx\n\tx\n2\n\n3\ty\n", ["1", "", "2", "", "3"]),
    "header.tsv": ("source\ttarget\n1\t1\n\n2\t2\n", ["1", "", "2"]),
    "new.jsonl": ('{"source": "1"}\n{"source": ""}\n{"source": "2"}\n', ["1", "", "2"]),
}


@pytest.mark.parametrize("name", LINES)
def test_a_prediction_for_each_line(name, copier):
    content, expected = LINES[name]
    path = written(copier, content, name)
    words = ("--max-tokens", "4", "--output", "p.jsonl")
    out = SEQ2SEQ.done("predict", "--input", path, *words, cwd=copier).out
    rows = [json.loads(line) for line in (copier / "p.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == expected
    num_blank = sum(not source.strip() for source in expected)
    assert f"which have an empty prediction: {num_blank}" in out
    assert all(row["prediction"] == "" for row in rows if not row["source"].strip())
    assert ("a header" in out) == (name == "header.tsv")

    full = "".join(f"{source}\n" for source in expected if source.strip())
    SEQ2SEQ.done("predict", "--input", written(copier, full, "full.txt"), *words, cwd=copier)
    alone = [json.loads(line) for line in (copier / "p.jsonl").read_text().splitlines()]
    assert alone == [row for row in rows if row["source"].strip()]


@pytest.mark.parametrize(("flag", "value"), [("--text", " "), ("--input", "blank.txt")])
def test_no_source_at_all_is_one_line(flag, value, copier):
    written(copier, "\n \n", "blank.txt")
    one_error(SEQ2SEQ.run("predict", flag, value, cwd=copier), "no (source|text)")
