@pytest.fixture(autouse=True)
def _pairs(_own_folder: None) -> None:
    words = np.random.default_rng(0)
    lines = []
    for number in range(300):
        chosen = words.choice(["one", "zwei", "três"], words.integers(1, 9))
        lines.append(f"{' '.join(chosen)} {number}\t{' '.join(chosen[::-1])}\n")
    Path("pairs.tsv").write_text("".join(lines), encoding="utf-8")


def test_padding_changes_no_loss() -> None:
    data = make_data()
    numbers = np.array([3, 9, 14])
    padded = data.batch("train", np.append(numbers, [-1, -1]))
    assert len(padded["source"]) == 5
    expected = loss_of(data.batch("train", numbers))
    assert loss_of(padded) == pytest.approx(expected, rel=1e-5)


def test_a_header_is_no_pair() -> None:
    Path("header.tsv").write_text("Source\tTarget\none\teins\n", encoding="utf-8")
    assert train.read_pairs(Path("header.tsv")) == [("one", "eins")]


def test_a_batch_has_the_bytes_of_its_pairs() -> None:
    data = make_data()
    pairs = train.read_pairs(Path("pairs.tsv"))
    order = np.random.default_rng(0).permutation(len(pairs))
    for numbers, batch in data.split_batches("validation"):
        for row, number in enumerate(numbers):
            source, target = pairs[order[200 + number]]
            inside = batch["source"][row][batch["source_present"][row]].tolist()
            assert inside == [*source.encode(), train.END]
            targets = batch["targets"][row]
            known = targets[targets != train.IGNORE].tolist()
            assert known == [*target.encode(), train.END]
            seen = batch["decoder_input"][row][: len(known)].tolist()
            assert seen == [train.END, *known[:-1]]


def test_no_token_sees_what_comes_after_it() -> None:
    batch = make_data().batch("train", np.arange(4))
    for place in (0, 3, 5):
        one_target = torch.full_like(batch["targets"], train.IGNORE)
        one_target[:, place] = batch["targets"][:, place]
        changed = batch["decoder_input"].clone()
        changed[:, place + 1 :] = 65
        before = loss_of({**batch, "targets": one_target})
        after = loss_of({**batch, "targets": one_target, "decoder_input": changed})
        assert after == before


def test_pairs_of_similar_length_share_a_batch() -> None:
    sizes = []
    for data in (make_data(), make_data("--bucket", "0")):
        sizes.append(sum(batch["source"].numel() for _, batch in data.epoch(0, 0)))
    assert sizes[0] < 0.9 * sizes[1]


def test_wrong_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tabs.tsv").write_text("a\tb\nc\n")
    Path("latin.tsv").write_bytes(b"a\tb\xff\n")
    Path("few.tsv").write_text("a\tb\nc\td\n")
    wrong = {
        "--data tabs.tsv": "tabs.tsv, line 2",
        "--data latin.tsv": "not UTF-8 at byte 3: latin.tsv",
        "--data few.tsv": "--split",
        "--data pairs.tsv --pretrained nowhere": "cannot load",
    }
    for arguments, reason in wrong.items():
        assert reason in error_of(arguments, capsys)
