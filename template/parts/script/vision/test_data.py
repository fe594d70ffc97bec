def test_padding_changes_no_loss() -> None:
    _, padded = next(make_data().batches(np.arange(3)))
    assert len(padded["target"]) == 64
    real = {name: values[:3] for name, values in padded.items()}
    assert loss_of(padded) == pytest.approx(loss_of(real), rel=1e-5)


def test_an_image_is_changed_in_the_same_way_in_every_batch() -> None:
    data = make_data("--crop", "0.5", "--cutout", "0.3", "--shift", "2")
    _, batch = next(data.batches(np.arange(64)))
    _, others = next(data.batches(np.arange(32, 96)))
    whole = train.augment(batch, data.settings, epoch=1)["image"]
    assert torch.equal(whole[32:], train.augment(others, data.settings, epoch=1)["image"][:32])
    assert not torch.equal(whole, train.augment(batch, data.settings, epoch=2)["image"])


def test_training_knows_nothing_of_the_other_images() -> None:
    data = make_data()
    images = data.images[: len(data.splits["train"])].numpy()
    for name, values in train.measure(images).items():
        assert np.array_equal(values, data.scales[name])


def write_images(folder: Path) -> None:
    for number in range(200):
        kind = ("dark", "bright")[number % 2]
        file = folder / kind / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        grey = 60 + 100 * (number % 2) + number % 50
        train.Image.new("RGB", (20, 16), (grey,) * 3).save(file)


def test_a_folder_of_images_is_learned() -> None:
    write_images(Path("images"))
    flags = ["--data", "images", "--max_steps", "20", "--batch_size", "32"]
    assert train.main([*flags, "--split", "0.5,0.25,0.25"]) == 0
    assert records()[-1]["accuracy"] > 0.95


def test_folders_of_splits_are_kept_and_others_left_out() -> None:
    for name in ("train", "test", "scans"):
        write_images(Path("images", name))
    data = train.Data(train.Settings(data="images", split="0.8,0.2,0"))
    assert [len(numbers) for numbers in data.splits.values()] == [160, 40, 200]


def test_arrays_of_images_and_labels_may_be_in_any_order() -> None:
    arrays = {}
    for name, count in (("x_test", 2), ("x_train", 3), ("y_train", 3), ("y_test", 2)):
        shape = (count, 4, 4) if name[0] == "x" else (count,)
        arrays[name] = np.full(shape, count, np.uint8)
    source = train.read_arrays(arrays)
    assert source.labels == [2, 2, 3, 3, 3] == [image.min() for image in source.items]
    assert source.splits == ["test"] * 2 + ["train"] * 3


@pytest.mark.parametrize("content", ["", "damaged"])
def test_a_folder_without_classes_or_with_a_damaged_image_is_one_line(
    content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content:
        write_images(Path("images"))
    Path("images").mkdir(exist_ok=True)
    Path("images/dark" if content else "images", "x.png").write_text(content)
    error = error_of("--data images", capsys)
    assert ("x.png" if content else "0 images and 0 classes") in error
