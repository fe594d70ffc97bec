# --- runs


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(precision: str) -> None:
    flags = ["--max_steps", "3", "--log_every", "1", "--precision", precision]
    assert train.main([*SMALL, *flags]) == 0
    assert np.isfinite([record["loss"] for record in records()]).all()


def test_learns_and_resumes_bit_for_bit_after_a_kill() -> None:
    words = [*SMALL, *STEPS, "--precision", "fp32"]
    assert train.main(words) == 0
    whole = records()
    assert len([record for record in whole if "split" not in record]) == 30
    first, *_, last = [record["loss"] for record in whole if record.get("split") == "validation"]
    assert last < first
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *words], env={**os.environ, "PYTHONPATH": str(HERE)}
    )
    assert done.returncode == -signal.SIGKILL
    assert len(records()) < len(whole)
    assert train.main(["--resume"]) == 0
    assert records() == whole


def test_a_damaged_checkpoint_is_skipped() -> None:
    assert train.main([*SMALL, *STEPS]) == 0
    whole = records()
    folder = newest_run() / "checkpoints"
    last = max(folder.glob("*.pt"))
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    assert train.load_checkpoint(folder)["step"] < 30
    assert train.main(["--resume"]) == 0
    assert records() == whole


def test_a_run_whose_checkpoints_are_all_damaged_keeps_its_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train.main([*SMALL, *STEPS]) == 0
    whole = records()
    for path in (newest_run() / "checkpoints").glob("*.pt"):
        path.write_bytes(b"damaged")
    assert error_of("--resume", capsys).startswith("error: no undamaged checkpoint")
    assert records() == whole


@pytest.mark.parametrize("flags", ["--widht 3", "--width 0", "--precision fp8", "--resume"])
def test_wrong_flags_are_one_line(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(flags, capsys).startswith("error: ")
