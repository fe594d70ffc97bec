@pytest.fixture(autouse=True)
def _small_file(_own_folder: None) -> None:
    with h5py.File(train.synthesize()) as file, h5py.File("small.h5", "w") as small:
        for name in ("features", "targets"):
            small[name] = file[name][:1800]


def test_padding_changes_no_loss() -> None:
    data = make_data()
    numbers, (features, targets, _) = next(data.split_batches("train"))
    _, padded = next(data.padded([(numbers[:3], (features[:3], targets[:3]))]))
    assert len(padded[0]) == 16
    assert loss_of(padded) == pytest.approx(loss_of([part[:3] for part in padded]), rel=1e-5)


def rows_of(batches: Any) -> tuple[list[int], torch.Tensor]:
    """Return the numbers of samples, and their features."""
    numbers = []
    features = []
    for chosen, (part, *_) in batches:
        numbers += chosen.tolist()
        features.append(part[: len(chosen)])
    return numbers, torch.cat(features)


@pytest.mark.parametrize("options", [{}, {"resident": False}, {"chunk_size_gb": 1e-9}])
def test_each_batch_has_the_rows_of_the_file(options: dict[str, Any]) -> None:
    """Whatever the chunks are, the order is the same, also from a later batch on."""
    path = make_data().path
    with h5py.File(path) as file:
        stored = torch.from_numpy(file["features"][100:800])
    choices = {"shuffle": True, "rows": range(100, 800), "shuffle_block": 64, **options}
    loader = train.ChunkDataLoader(path, 50, **choices)
    numbers, features = rows_of(loader.batches(epoch=3))
    assert torch.equal(features, stored[numbers])
    assert sorted(numbers) == list(range(700))
    remaining, features = rows_of(loader.batches(epoch=3, start=5))
    assert remaining == numbers[250:]
    assert torch.equal(features, stored[remaining])


def test_batches_may_be_kept() -> None:
    loader = train.ChunkDataLoader(make_data().path, 100, chunk_size_gb=1e-9)
    kept = [part for _, (part, _) in loader.batches()]
    for before, (_, (part, _)) in zip(kept, loader.batches(), strict=True):
        assert torch.equal(before, part)
    assert len({part.data_ptr() for part in kept}) == len(kept)


def test_the_loader_is_iterable() -> None:
    """Each loop is an epoch with an order of its own, in chunks whose size it chooses."""
    path = make_data().path
    loader = train.ChunkDataLoader(path, 50, chunk_size_gb="auto", shuffle=True)
    epochs = [[features for features, _ in loader] for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [len(loader)] * 2 == [36, 36]
    for number, epoch in enumerate(epochs):
        _, features = rows_of(loader.batches(epoch=number))
        assert torch.equal(torch.cat(epoch), features)
    assert len(train.ChunkDataLoader(path, 70, shuffle=True, drop_last=True)) == 25
    assert (loader.num_samples, loader.sequence_length, loader.feature_count) == (1800, 24, 3)
    assert loader.chunk_ranges == [(0, 1800)]
    small = train.ChunkDataLoader(path, 50, chunk_size_gb=1e-9, shuffle_block=100)
    assert small.chunk_ranges == [(first, first + 100) for first in range(0, 1800, 100)]


def test_a_dataloader_gives_the_same_batches() -> None:
    slow = make_data("--chunk_loader", "0")
    for (numbers, batch), (others, other) in zip(
        make_data().epoch(1, 2), slow.epoch(1, 2), strict=True
    ):
        assert numbers.tolist() == others.tolist()
        assert all(map(torch.equal, batch, other))


def test_nothing_of_the_future_is_in_training() -> None:
    """Neither in the scale nor in a window."""
    data = make_data()
    last = data.splits["train"].stop
    Path("changed.h5").write_bytes(Path("small.h5").read_bytes())
    with h5py.File("changed.h5", "r+") as file:
        file["features"][last + 27 :] += 1000
        file["targets"][last + 27 :] += 1000
    changed = make_data("--data", "changed.h5")
    assert changed.scale == data.scale


def test_wrong_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.h5").write_text("no HDF5")
    for name, values in {"rows": np.zeros((9, 4, 2)), "nan": np.full((100, 4, 2), np.nan)}.items():
        with h5py.File(name, "w") as file:
            file["features"] = values
            file["targets"] = np.zeros((100, 1))
    with h5py.File("reversed", "w") as file:
        file["features"] = np.zeros((2, 4, 100))
        file["targets"] = np.zeros((2, 100))
    wrong = {
        "--data text.h5": "cannot read the file",
        "--data reversed": "reversed axes (2, 4, 100), as of MATLAB",
        "--data rows": "wrong features (9, 4, 2) or targets (100, 1): rows",
        "--data nan": "a training value is not a finite number: nan",
        "--data small.h5 --purge 1700": "use a smaller --purge",
    }
    for arguments, reason in wrong.items():
        assert reason in error_of(arguments, capsys)
