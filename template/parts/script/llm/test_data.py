def first_blocks(count: int) -> Any:
    _, batch = next(make_data().batches("train", np.arange(count)))
    return batch


def test_padding_changes_no_loss() -> None:
    tokens, targets = first_blocks(3)
    assert len(tokens) == 8
    real = (tokens[:3], targets[:3])
    assert loss_of((tokens, targets)) == pytest.approx(loss_of(real), rel=1e-5)


def test_a_target_is_the_next_token() -> None:
    content = (HERE / "train.py").read_bytes()
    tokens, targets = first_blocks(4)
    for block, start in enumerate((0, 16, 32, 48)):
        assert bytes(tokens[block].tolist()) == content[start : start + 16]
        assert bytes(targets[block].tolist()) == content[start + 1 : start + 17]


def test_no_token_sees_what_comes_after_it() -> None:
    tokens, targets = first_blocks(4)
    for place in (0, 7, 14):
        one_target = torch.full_like(targets, train.IGNORE)
        one_target[:, place] = targets[:, place]
        changed = tokens.clone()
        changed[:, place + 1 :] = 65
        assert loss_of((changed, one_target)) == loss_of((tokens, one_target))


def test_splits_have_all_of_the_text_and_share_none() -> None:
    data = make_data()
    seen = []
    for split, blocks in data.splits.items():
        seen.append(data.text[data.spans[split][0]].item())
        for _, (_, targets) in data.batches(split, np.array(blocks)):
            seen += targets[targets != train.IGNORE].tolist()
    assert seen == train.tokenize(HERE / "train.py").tolist()


def test_wrong_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("short.txt").write_text("a")
    wrong = {
        "--width 6": "use a multiple of 8",
        "--data short.txt": "--block_size: use a smaller one",
    }
    for arguments, reason in wrong.items():
        assert reason in error_of(arguments, capsys)
