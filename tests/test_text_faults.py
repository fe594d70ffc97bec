"""Texts in other encodings, what tokenizers learn from, lines that are no pairs."""

import pytest
from made_up import contents, prepare, written
from workload import Workload

TEXT = "".join(f"Line {number}: the quick brown fox.\n" for number in range(900))


# ---- lines that are no pairs ---------------------------------------------------------------------

PAIRS = "".join(f"{row}\t{row} again\n" for row in range(60))
SEQ2SEQ = Workload("seq2seq")


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        ("\ufeffSource\t target\r\n", ""),
        ("English\tFrench\n", "--source-key English --target-key French"),
    ],
)
def test_a_header_is_no_pair(header, flags, tmp_path):
    path = written(tmp_path, PAIRS, "plain.tsv")
    assert "header" not in prepare(tmp_path, "seq2seq", path, flags, "plain").out
    out = prepare(tmp_path, "seq2seq", written(tmp_path, header + PAIRS, "odd.tsv"), flags).out
    assert "note: the first line of odd.tsv is a header: " in out
    plain = contents(tmp_path, "seq2seq", "plain")
    assert contents(tmp_path, "seq2seq") == plain
    prepare(tmp_path, "seq2seq", written(tmp_path, PAIRS + header, "end.tsv"), flags)
    assert contents(tmp_path, "seq2seq") != plain  # it is a header on the first line only
