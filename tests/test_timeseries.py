"""The workload `timeseries`: what becomes of a CSV file, that no window sees the future, states."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from importing import imported
from rendering import REPOSITORY, render
from running import Result, losses, newest_run, one_error, run

PREPARE = ("prepare", "--input", "series.csv", "--history", "24", "--horizon", "6")
SMALL = (
    *("--model.width", "8", "--data.batch_size", "32", "--training.max_steps", "20"),
    *(
        "--schedule.warmup_steps",
        "2",
        "--monitor.every_steps",
        "1",
        "--evaluation.every_steps",
        "20",
    ),
)


def project(**answers: str) -> Path:
    return render(**{"workload": "timeseries"} | answers)


def module(name: str) -> Any:
    return imported(project(), name)


def values(count: int = 1000, seed: int = 0) -> np.ndarray:
    """(count, 3): a daily wave, a random walk, noise."""
    random, hours = np.random.default_rng(seed), np.arange(count)
    wave = 20 + 5 * np.sin(2 * np.pi * hours / 24) + random.normal(0, 0.3, count)
    return np.stack([wave, random.normal(0, 1, count).cumsum(), random.normal(0, 1, count)], 1)


def times(count: int = 1000) -> list[str]:
    start = np.datetime64("2020-01-01T00:00:00")
    return [str(start + np.timedelta64(hour, "h")).replace("T", " ") for hour in range(count)]


def text(
    table: np.ndarray | None = None, stamps: list[str] | None = None, names: str = "wave,walk,noise"
) -> str:
    table = values() if table is None else table
    rows = zip(stamps or times(len(table)), table.tolist(), strict=True)
    return (
        "\n".join(
            [f"date,{names}", *(f"{stamp}," + ",".join(map(repr, row)) for stamp, row in rows)]
        )
        + "\n"
    )


def prepare(
    folder: Path, content: str | bytes, *flags: str, words: tuple[str, ...] = PREPARE
) -> Result:
    folder.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    (folder / "series.csv").write_bytes(content)
    return run(project(), *words, *flags, cwd=folder)


def store(folder: Path) -> Any:
    return module("engine.store").Store.open(folder / "data")


def windows(folder: Path, split: str) -> list[dict[str, torch.Tensor]]:
    """Every window of a split, one by one, through a loader."""
    data = {
        "order": "time",
        "batch_size": 1,
        "fraction": 1.0,
        "shuffle_block": 1,
        "stride": 0,
        "pin_memory": False,
    }
    given = SimpleNamespace(
        data=SimpleNamespace(**data, chunk_size_gb="auto", resident="auto"),
        evaluation=SimpleNamespace(batch_size=0),
        reproducibility=SimpleNamespace(seed=0),
    )
    opened = store(folder)
    samples = module("dataset").Samples(opened, given, split)
    order = module("engine.order").order_of(samples, given, train=False)
    loader = module("engine.loader").Loader(samples, opened, given, order, torch.device("cpu"))
    found = [{name: value.clone() for name, value in batch.items()} for batch in loader.epoch(0)]
    loader.close()
    return found


# ---- splits and windows --------------------------------------------------------------------------


def test_a_window_belongs_to_the_split_that_holds_all_its_targets(tmp_path: Path) -> None:
    """The published protocol of ETTh2: 2,857 windows of 2,880 test rows; histories reach over the border."""
    table = values(14_500)
    words = (
        "prepare",
        "--input",
        "series.csv",
        "--history",
        "96",
        "--horizon",
        "24",
        "--split",
        "8640,2880,2880",
    )
    result = prepare(tmp_path, text(table), words=words)
    assert result.code == 0, result.err
    assert "8,521 train, 2,857 validation, 2,857 test" in result.out
    found = windows(tmp_path, "test")
    assert len(found) == 2857
    table = table.astype(np.float32)
    for number in (0, 1, 2856):
        first = 8640 + 2880 + number
        np.testing.assert_array_equal(found[number]["rows"][0].numpy(), table[first - 96 : first])
        np.testing.assert_array_equal(found[number]["target"][0].numpy(), table[first : first + 24])


def test_facts_come_from_the_training_rows_and_targets_may_be_chosen(tmp_path: Path) -> None:
    packed = gzip.compress(text().encode())
    assert prepare(tmp_path, packed, "--targets", "walk,wave", "--split", "600,200,200").code == 0
    facts, train = store(tmp_path).facts, values()[:600].astype(np.float32)
    np.testing.assert_allclose(facts["frames"][0]["mean"], train.mean(0, np.float64))
    np.testing.assert_allclose(facts["frames"][0]["std"], train.std(0, dtype=np.float64))
    np.testing.assert_allclose(facts["target_std"], [train[:, [1, 0]].std(0, dtype=np.float64)])
    assert windows(tmp_path, "validation")[0]["target"].shape == (1, 6, 2)


# ---- the future ----------------------------------------------------------------------------------

FRAMES = ("--frames", "H1,H4,D1", "--history", "24,12,5")


def test_noise_behind_the_training_border_changes_neither_scaler_nor_losses(tmp_path: Path) -> None:
    noisy = values()
    noisy[700:] = 1e3 * np.random.default_rng(1).normal(size=(300, 3))
    found = []
    for name, table in (("as_it_is", values()), ("noisy", noisy)):
        folder = tmp_path / name
        assert prepare(folder, text(table), *FRAMES, "--split", "700,150,150").code == 0
        result = run(project(), "train", *SMALL, cwd=folder)
        assert result.code == 0, result.err
        found.append((store(folder).facts, losses(folder)))
    assert found[0] == found[1]
    assert len(found[0][1]) == 20


def test_a_window_sees_no_open_bar(tmp_path: Path) -> None:
    """Whatever changes from a row on, windows whose targets begin there or earlier have the same history.

    The row is the last hour of both a bar of four hours and one of a day: they close with it, not before.
    """
    table, row = values(600), 407
    changed = table.copy()
    changed[row:] += 1e6
    histories = []
    for name, content in (("before", table), ("after", changed)):
        assert prepare(tmp_path / name, text(content), *FRAMES, "--split", "0.5,0.5,0").code == 0
        first = store(tmp_path / name).splits["validation"][0]
        histories.append(windows(tmp_path / name, "validation")[: row - first + 1])
    assert len(histories[0]) == 108
    for one, other in zip(*histories, strict=True):
        for frame in ("H1", "H4", "D1"):
            assert one[frame].equal(other[frame])
    assert not histories[0][-1]["target"].equal(histories[1][-1]["target"])


def test_bars_are_as_a_slow_reading_makes_them(tmp_path: Path) -> None:
    """Open, high, low, close and volume by their names; a bar at its hour, the newest one that has closed."""
    random = np.random.default_rng(3)
    names, table = "Open,High,Low,Close,Volume,Other", random.normal(size=(500, 6))
    assert (
        prepare(
            tmp_path, text(table, names=names), "--frames", "H1,H4", "--aggregate", "Other=max"
        ).code
        == 0
    )
    table = table.astype(np.float32)
    for number, window in enumerate(windows(tmp_path, "train")):
        known = store(tmp_path).facts["reach"] + number  # rows 0 to known − 1 have closed
        first = known // 4 * 4 - 24 * 4
        for place, bar in enumerate(window["H4"][0].numpy()):
            rows = table[first + 4 * place : first + 4 * place + 4]
            expected = [
                rows[0, 0],
                rows[:, 1].max(),
                rows[:, 2].min(),
                rows[-1, 3],
                rows[:, 4].sum(),
                rows[:, 5].max(),
            ]
            np.testing.assert_allclose(bar, expected, rtol=1e-5, atol=1e-6)


# ---- the model -----------------------------------------------------------------------------------


def model(order: str = "time", frames: int = 1, **sizes: Any) -> Any:
    given = {
        "width": 8,
        "depth": 2,
        "dropout": 0.0,
        "subtract_last": True,
        "linear_path": True,
    } | sizes
    settings = SimpleNamespace(model=SimpleNamespace(**given), data=SimpleNamespace(order=order))
    names, facts = ("H1", "H4")[:frames], {"horizon": 6, "targets": [0, 2]}
    facts["frames"] = [
        {"name": name, "history": 24, "step": step, "mean": [0.0] * 3, "std": [1.0] * 3}
        for name, step in zip(names, (3600, 14400), strict=False)
    ]
    facts |= {"target_mean": [[0.0, 0.0]], "target_std": [[1.0, 1.0]]}
    torch.manual_seed(0)
    return module("model").build_model(settings, facts)


def batch(rows: int = 4, length: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {
        "H1": torch.randn(rows, length, 3, generator=generator),
        "H4": torch.randn(rows, 24, 3, generator=generator),
    }
    found |= {"target": torch.randn(rows, 6, 2, generator=generator), "index": torch.arange(rows)}
    return found | dict.fromkeys(("present", "fresh"), torch.ones(rows, dtype=torch.bool))


def test_a_level_added_to_the_series_is_added_to_the_forecast() -> None:
    first = batch()
    raised = first | {"H1": first["H1"] + 100}
    forecaster = model().eval()
    difference = forecaster.predict(raised)["prediction"] - forecaster.predict(first)["prediction"]
    torch.testing.assert_close(difference, torch.full_like(difference, 100), rtol=1e-4, atol=1e-3)


def test_filled_up_rows_weigh_nothing() -> None:
    forecaster, whole = model().eval(), batch()
    part = {name: value[:3] for name, value in whole.items()}
    filled = whole | {"present": torch.tensor([True, True, True, False])}
    expected, found = forecaster(part), forecaster(filled)
    torch.testing.assert_close(found.loss, expected.loss)
    assert found.weight == expected.weight == 3 * 6 * 2


def test_a_carried_state_is_that_of_one_long_window() -> None:
    """Two windows, one behind the other in a lane, end in the state of a window of both."""
    forecaster, long = (
        model("lanes", subtract_last=False, linear_path=False).eval(),
        batch(length=48),
    )
    continued = {"fresh": torch.zeros(4, dtype=torch.bool)}
    forecaster(long | {"H1": long["H1"][:, :24]})
    second = forecaster(long | {"H1": long["H1"][:, 24:]} | continued)
    assert forecaster.recurrent.states[False]["H1"][0].shape == (4, 2, 8)  # lanes first
    whole = forecaster(long)
    torch.testing.assert_close(second.loss, whole.loss)


def test_only_frames_that_a_lane_passes_once_are_carried() -> None:
    forecaster = model("lanes", frames=2)
    forecaster(batch())
    assert forecaster.recurrent.states[True].keys() == {"H1"}
    assert model("full", frames=2).recurrent is None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.first(1)
def test_lanes_train_and_resume(precision: str, tmp_path: Path) -> None:
    for folder in (tmp_path / "whole", tmp_path / "parts"):
        assert prepare(folder, text()).code == 0
    words = (
        "train",
        *SMALL,
        "--data.order",
        "lanes",
        "--data.batch_size",
        "4",
        "--training.precision",
        precision,
    )
    assert run(project(), *words, cwd=tmp_path / "whole").code == 0
    assert run(project(), *words, "--max-steps", "9", cwd=tmp_path / "parts").code == 0
    assert run(project(), "train", "--resume", cwd=tmp_path / "parts").code == 0
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_recomputation_changes_nothing_and_the_lstm_is_not_compiled(tmp_path: Path) -> None:
    found = []
    for name, flags in (
        ("plain", ()),
        ("recomputed", ("--training.gradient_checkpointing", "true")),
    ):
        assert prepare(tmp_path / name, text(), *FRAMES).code == 0
        result = run(
            project(), "train", *SMALL, *flags, "--compile.enabled", "true", cwd=tmp_path / name
        )
        assert result.code == 0, result.err
        assert "Encoder (an RNN)" in result.out
        found.append(losses(tmp_path / name))
    assert found[0] == found[1]


def test_learns_what_shuffled_targets_do_not_have(tmp_path: Path) -> None:
    shuffled = values()
    np.random.default_rng(0).shuffle(shuffled)
    last = {}
    for name, table in (("wave", values()), ("shuffled", shuffled)):
        assert prepare(tmp_path / name, text(table), "--targets", "wave").code == 0
        words = ("train", *SMALL, "--training.max_steps", "60", "--optimizer.learning_rate", "0.01")
        assert run(project(), *words, cwd=tmp_path / name).code == 0
        found = [float.fromhex(loss) for _, loss in losses(tmp_path / name)]
        last[name] = np.mean(found[-5:]) / found[0]
    assert last["wave"] < 0.25
    assert last["shuffled"] > 0.35  # of repeating the last value, which the model begins with


# ---- evaluate and predict ------------------------------------------------------------------------


def test_baselines_are_as_a_slow_reading_makes_them(tmp_path: Path) -> None:
    assert prepare(tmp_path, text(), "--targets", "wave,noise", "--split", "700,150,150").code == 0
    assert run(project(), "train", *SMALL, cwd=tmp_path).code == 0
    result = run(project(), "evaluate", cwd=tmp_path)
    assert result.code == 0, result.err
    evaluation = json.loads((newest_run(tmp_path) / "evaluation.json").read_text())
    table = values().astype(np.float32).astype(np.float64)[:, [0, 2]]
    table = (table - table[:700].mean(0)) / table[:700].std(0)
    starts = range(850, 1000 - 6 + 1)
    ahead = np.stack([table[start : start + 6] for start in starts])
    repeated = np.stack([table[start - 1 : start] for start in starts])
    assert evaluation["baselines"]["repeat_last"]["mse"] == pytest.approx(
        ((ahead - repeated) ** 2).mean(), rel=1e-4
    )
    assert evaluation["baselines"]["linear"]["mse"] < evaluation["baselines"]["repeat_last"]["mse"]
    assert set(evaluation["metrics"]) == {
        "loss",
        "mse",
        "mae",
        "mse_original",
        "mae_original",
        "r2",
    }


def test_predicts_a_split_and_what_comes_after_new_data(tmp_path: Path) -> None:
    assert prepare(tmp_path, text(), *FRAMES).code == 0
    assert run(project(), "train", *SMALL, cwd=tmp_path).code == 0
    result = run(project(), "predict", "--output", "split.npz", cwd=tmp_path)
    assert result.code == 0, result.err
    split = np.load(tmp_path / "split.npz")
    assert split["prediction"].shape == split["target"].shape == (145, 6, 3)
    (tmp_path / "new.csv").write_text(text(values()[:900]))
    result = run(project(), "predict", "--input", "new.csv", "--output", "new.npz", cwd=tmp_path)
    assert result.code == 0, result.err
    new = np.load(tmp_path / "new.npz")
    hour = np.datetime64("2020-01-01T00", "s").astype(np.int64) + 3600 * 899
    assert new["time"][-1] == hour  # the last window begins behind the file's last row
    place = int(np.flatnonzero(new["time"] == split["time"][0])[0])
    np.testing.assert_allclose(
        new["prediction"][place:][:40], split["prediction"][:40], rtol=1e-5, atol=1e-5
    )
    for content, parts in (
        (text(values()[:1]), ["1 rows are shorter than a window of 24: .*new.csv"]),
        (text(values()[:23]), ["23 rows are shorter than a window of 24: .*new.csv"]),
        (text(values()[:50]).replace("00:00,", "00:00,x"), ["is not a number", "mend it$"]),
    ):
        (tmp_path / "new.csv").write_text(content)
        one_error(run(project(), "predict", "--input", "new.csv", cwd=tmp_path), *parts)
    for name in ("split.png", "new.png"):
        assert (tmp_path / name).read_bytes()[1:4] == b"PNG"


def test_forecasts_of_lanes_are_those_that_are_scored(tmp_path: Path) -> None:
    assert prepare(tmp_path, text(), "--history", "3").code == 0
    words = ("train", *SMALL, "--data.order", "lanes", "--data.batch_size", "4")
    assert run(project(), *words, cwd=tmp_path).code == 0
    assert run(project(), "evaluate", cwd=tmp_path).code == 0
    assert run(project(), "predict", cwd=tmp_path).code == 0
    evaluation = json.loads((newest_run(tmp_path) / "evaluation.json").read_text())
    found = np.load(newest_run(tmp_path) / "predictions.npz")
    error = np.square(found["prediction"].astype(np.float64) - found["target"]).mean()
    assert error == pytest.approx(evaluation["metrics"]["mse_original"], rel=1e-5)


# ---- storing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_take_half_the_space_and_say_what_they_cost(dtype: str, tmp_path: Path) -> None:
    table = values() + np.array([0, 5000, 0])
    assert prepare(tmp_path / "whole", text(table)).code == 0
    result = prepare(tmp_path / "half", text(table), "--dtype", dtype)
    assert result.code == 0, result.err
    error = float(result.out.split("rounding:")[1].split()[0])
    assert error < {"float16": 4e-4, "bfloat16": 3e-3}[dtype]
    whole, half = store(tmp_path / "whole").arrays["rows"], store(tmp_path / "half").arrays["rows"]
    assert half.row_bytes * 2 == whole.row_bytes
    expected, found = (
        windows(tmp_path / name, "test")[5]["rows"][0].numpy() for name in ("whole", "half")
    )
    np.testing.assert_allclose(found, expected, atol=10 * error * table.std(0).max())
    assert run(project(), "train", *SMALL, cwd=tmp_path / "half").code == 0


# ---- bad input: CSV ------------------------------------------------------------------------------

LINES = text().splitlines()


def with_line(number: int, line: str) -> str:
    return "\n".join([*LINES[:number], line, *LINES[number + 1 :]]) + "\n"


def swapped(first: int, second: int) -> str:
    lines = list(LINES)
    lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines) + "\n"


BAD = {
    "swapped rows": (swapped(10, 11), ["time goes back", "row 11"]),
    "repeated time": (
        with_line(20, LINES[19]),
        ["same time twice", "row 20", "2020-01-01 18:00:00"],
    ),
    "empty cell": (
        with_line(5, "2020-01-01 04:00:00,1,,3"),
        ["empty cell", "row 5, column 'walk'", "--fill last"],
    ),
    "text": (
        with_line(5, "2020-01-01 04:00:00,1,x,3"),
        ["'x' is not a number", "row 5, column 'walk'"],
    ),
    "infinite": (with_line(5, "2020-01-01 04:00:00,1,inf,3"), ["finite", "row 5"]),
    "no time": (with_line(5, "soon,1,2,3"), ["not a time", "column 'date'"]),
    "long time": (
        text(stamps=[str(10**18 + row) for row in range(999)] + ["9" * 30]),
        ["not a time", "'date'"],
    ),
    "ragged": (
        with_line(5, "2020-01-01 04:00:00,1,2"),
        ["3 cells where the header has 4", "row 5"],
    ),
    "too short": (text(values(29)), ["29 rows are shorter than one window of 24 \\+ 6"]),
    "no rows": (LINES[0] + "\n", ["no rows"]),
    "empty": ("", ["the file is empty"]),
    "twice": ("date,a,a\n1,2,3\n", ["two columns are named 'a'"]),
    "binary": (b"\xff\xfe\x00", ["UTF-16", "--encoding"]),
    "torn gzip": (gzip.compress(text().encode())[:2000], ["cannot read the file", "Truncated"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_csv_is_one_line(name: str, tmp_path: Path) -> None:
    content, parts = BAD[name]
    one_error(prepare(tmp_path, content), *parts)
    assert not (tmp_path / "data/manifest.json").exists()


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--targets", "wav"), ["no column 'wav'", "did you mean 'wave'"]),
        (("--split", "980,10,10"), ["0 validation windows|5 validation windows|validation"]),
        (("--split", "900,90,90"), ["the split needs 1080 rows", "there are 1000"]),
        (("--frames", "H4,H1"), ["H1", "finest first"]),
        (("--frames", "M30"), ["M30", "3600 s apart"]),
        (("--frames", "X1"), ["no time frame 'X1'"]),
        (("--frames", "H1,H4", "--history", "1,2,3"), ["--history", "2 for H1, H4"]),
        (("--frames", "H1,D1", "--history", "24,900"), ["41 bars of D1"]),
        (("--frames", "H1,D1", "--aggregate", "wave=mean"), ["no rule 'mean'"]),
        (("--split", "0,0.5,0.5"), ["0 training and 471 validation windows"]),
        (
            ("--frames", "H1,D1", "--history", "12,1", "--split", "20,280,300"),
            ["0 training and 271 valid"],
        ),
    ],
)
def test_flags_that_do_not_fit_the_file_are_one_line(
    flags: tuple[str, ...], parts: list[str], tmp_path: Path
) -> None:
    result = prepare(tmp_path, text(), *flags)
    if flags == ("--split", "980,10,10"):
        assert result.code == 0  # 5 windows each: short, not wrong
        return
    one_error(result, *parts)


def test_a_refused_prepare_leaves_the_data_that_were_there(tmp_path: Path) -> None:
    assert prepare(tmp_path, text()).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    refused = prepare(tmp_path, text(), "--split", "0.99,0.005,0.005", "--history", "24")
    one_error(refused, "0 validation windows", "--split 0.99,0.005,0.005")
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


def test_gaps_empty_cells_and_constant_columns_are_said_and_trained(tmp_path: Path) -> None:
    table = values()
    table[:, 2] = 7
    lines = text(table).splitlines()
    random = np.random.default_rng(0)
    for number in random.choice(np.arange(2, 900), 10, replace=False):  # 1 %
        lines[number] = lines[number].rpartition(",")[0] + ","
    del lines[300:340]
    result = prepare(tmp_path, "\n".join(lines), "--fill", "last")
    assert result.code == 0, result.err
    assert "1 gaps in time, the longest of 41 steps after row 299" in result.out
    assert "empty cells" in result.out
    assert "noise" in result.out.split("note: one value in all training rows")[1].splitlines()[0]
    assert run(project(), "train", *SMALL, cwd=tmp_path).code == 0
    assert all(np.isfinite(float.fromhex(loss)) for _, loss in losses(tmp_path))


# ---- the guide -----------------------------------------------------------------------------------

DOCUMENT = (REPOSITORY / "docs/timeseries.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_documented_commands_run_and_beat_repeating_the_last_value(tmp_path: Path) -> None:
    python, shell = (
        re.search(rf"```{kind}\n(.*?)```", DOCUMENT, re.DOTALL)[1] for kind in ("python", "sh")
    )
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    for line in shell.splitlines():
        result = run(project(), *line.split()[3:], cwd=tmp_path)
        assert result.code == 0, result.err
    evaluation = json.loads((newest_run(tmp_path) / "evaluation.json").read_text())
    assert evaluation["metrics"]["mse"] < 0.5 * evaluation["baselines"]["repeat_last"]["mse"]
    assert np.load(tmp_path / "forecast.npz")["prediction"].shape[1:] == (24, 2)
