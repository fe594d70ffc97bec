def test_padding_changes_no_loss() -> None:
    _, padded = next(make_data().batches("train", np.arange(3)))
    assert len(padded["target"]) == 64
    real = {name: values[:3] for name, values in padded.items()}
    assert loss_of(padded) == pytest.approx(loss_of(real), rel=1e-5)


def test_training_knows_nothing_of_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    true = make_data()
    table = train.synthesize()
    others = np.random.default_rng(0).permutation(20_000)[400:]  # those after the training rows
    for name, values in table.items():
        values[others] = "9" if name == "soil" else 1e6
    monkeypatch.setattr(train, "synthesize", lambda: table)
    changed = make_data()
    for name in table:
        assert true.facts[name] == changed.facts[name]
    for (_, before), (_, after) in zip(
        true.split_batches("train"), changed.split_batches("train"), strict=True
    ):
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_workers_change_nothing() -> None:
    losses = []
    for workers in ("0", "2"):
        flags = ["--max_steps", "3", "--log_every", "1", "--num_workers", workers]
        assert train.main([*SMALL, *flags]) == 0
        losses.append([record["loss"] for record in records()])
    assert losses[0] == losses[1]


def test_classes_are_learned_and_new_categories_are_unknown() -> None:
    lines = ["number,letter,class\n"]
    for row in range(300):
        letter = "abcd"[row % 4] if row < 299 else "z"
        lines.append(f"{row % 3},{letter},{row % 3 > 0}\n")
    Path("table.csv").write_text("".join(lines))
    flags = ["--data", "table.csv", "--task", "classification", "--max_steps", "150"]
    assert train.main([*flags, "--dropout", "0", "--learning_rate", "0.01"]) == 0
    assert records()[-1]["accuracy"] > 0.95


def test_columns_are_left_out() -> None:
    lines = ["id,size,name,price", *(f"{row},{row / 7},name {row},{row}" for row in range(200))]
    Path("table.csv").write_text("\n".join(lines) + "\n")
    settings = train.Settings(data="table.csv", drop="id, name")
    assert [*train.read_table(settings)] == ["size", "price"]
    Path("table.csv").write_text("id,size,note\n1,2,\n3,4,\n")  # nothing reads their cells
    assert [*train.read_table(train.replace(settings, drop="note"))] == ["id", "size"]
    for drop in ("nmae", "size,note", "id,size,note"):
        with pytest.raises(train.UserError, match=r"no column|no feature"):
            train.Data(train.replace(settings, drop=drop))


@pytest.mark.parametrize("group", ["", "customer"])
def test_splits_are_stratified_and_groups_stay_together(group: str) -> None:
    number = np.arange(2000)
    customer = number * 7 % 190
    cells = zip(number, customer, np.where(customer % 19, "stays", "leaves"), strict=True)
    lines = ["number,customer,kind", *(",".join(map(str, row)) for row in cells)]
    Path("table.csv").write_text("\n".join(lines))
    settings = train.Settings(data="table.csv", task="classification", group=group)
    table = train.read_table(settings)
    rows, ends = train.arrange(table, "kind", settings)
    assert sorted(rows) == list(number)
    assert ("customer" in table) == (group == "")
    parts = np.split(rows, ends[:2])
    assert [len(part) / 2000 for part in parts] == pytest.approx([0.7, 0.15, 0.15], abs=0.02)
    shares = [(table["kind"][part] == "leaves").mean() for part in parts]
    assert shares == pytest.approx([1 / 19] * 3, abs=0.02)
    if group:
        assert sum(len(set(customer[part])) for part in parts) == 190
