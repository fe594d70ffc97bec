"""Texts in other encodings, what tokenizers learn from, lines that are no pairs."""

import gzip
from pathlib import Path

import pytest
from made_up import prepare, store, written
from running import Result, one_error

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
def test_all_files_of_another_encoding_are_in_one_line(tokenizer, tmp_path):
    line = one_error(prepare_folder(tmp_path, 12, f"--tokenizer {tokenizer}"))
    assert "12 files are not UTF-8 text: texts/00.txt, texts/01.txt" in line
    assert "texts/04.txt and 7 more: convert them" in line
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
