"""The workload `timeseries`: what becomes of a table, and that no window sees the future."""

import json
import re
from datetime import datetime, timedelta

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from importing import imported
from made_up import files_of, lines, prepare, prepared, project_of, values, written
from made_up import store as opened_store
from pyarrow import csv
from running import losses, one_error
from workload import Workload

SMALL = (
    "train",
    *("--model.width", "8", "--data.batch_size", "32", "--training.max_steps", "20"),
    *("--schedule.warmup_steps", "2", "--monitor.every_steps", "1"),
    *("--evaluation.every_steps", "20"),
)

SERIES = Workload("timeseries")


def store(folder):
    return opened_store(folder, "timeseries")


def done(folder, *words):
    return SERIES.done(*words, cwd=folder).out


def text(table, names="wave,walk,noise"):
    """A CSV with a time for each hour."""
    hours = np.datetime64("2020-01-01T00:00:00") + np.arange(len(table)) * np.timedelta64(1, "h")
    times = [str(hour).replace("T", " ") for hour in hours]
    columns = dict(zip(names.split(","), table.T.tolist(), strict=True))
    return lines({"date": times, **columns})


def windows(folder, split, workload=SERIES):
    """Every window of a split, one by one, through a loader."""
    flags = ("--data.order", "time", "--data.batch_size", "1")
    return workload.batches(opened_store(folder, workload.name), split, *flags)


# ---- splits and windows --------------------------------------------------------------------------


def test_a_window_belongs_to_the_split_that_holds_all_its_targets(tmp_path):
    """The published protocol of ETTh2: 2,857 windows of 2,880 test rows; histories reach over the
    border."""
    table = values(14_500)
    flags = "--history 96 --horizon 24 --split 8640,2880,2880"
    out = prepared(tmp_path, "timeseries", text(table), flags).out
    assert "8,521 train, 2,857 validation, 2,857 test" in out
    of_test = windows(tmp_path, "test")
    assert len(of_test) == 2857
    table = table.astype(np.float32)
    for number in (0, 1, 2856):
        first = 8640 + 2880 + number
        np.testing.assert_array_equal(of_test[number]["rows"][0], table[first - 96 : first])
        np.testing.assert_array_equal(of_test[number]["target"][0], table[first : first + 24])


# ---- the future ----------------------------------------------------------------------------------


def test_noise_behind_the_training_border_changes_neither_scaler_nor_losses(tmp_path):
    noisy = values()
    noisy[700:] = 1e3 * np.random.default_rng(1).normal(size=(300, 3))
    outcomes = []
    for name, table in (("as_it_is", values()), ("noisy", noisy)):
        folder = tmp_path / name
        prepared(folder, "timeseries", text(table), "--split 700,150,150")
        done(folder, *SMALL)
        outcomes.append((store(folder).facts, losses(folder)))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][1]) == 20


# ---- the model -----------------------------------------------------------------------------------


def test_the_lstm_is_not_compiled(tmp_path):
    prepared(tmp_path, "timeseries", text(values()))
    words = ("--training.max_steps", "2", "--compile.enabled", "true")
    assert "RNNs and modules of torch.nn are not compiled" in done(tmp_path, *SMALL, *words)


# ---- evaluate and predict ------------------------------------------------------------------------


def test_loss_and_baseline_are_as_a_slow_reading_makes_them(tmp_path):
    prepared(tmp_path, "timeseries", text(values()), "--targets wave,noise --split 700,150,150")
    table = values().astype(np.float32).astype(np.float64)[:, [0, 2]]
    std = table[:700].std(0)
    table = (table - table[:700].mean(0)) / std
    starts = range(850, 1000 - 6 + 1)
    ahead = np.stack([table[start : start + 6] for start in starts])
    repeated = np.stack([table[start - 1 : start] for start in starts])
    for loss, power in (("mae", 1), ("mse", 2)):
        done(tmp_path, *SMALL, *(() if loss == "mae" else ("--model.loss", loss)))
        evaluation = SERIES.evaluated(tmp_path)
        metrics = evaluation["metrics"]
        assert metrics["loss"] == pytest.approx(metrics[loss], rel=1e-6)
        losses = [(np.abs(error) ** power).mean() for error in (ahead, ahead - repeated)]
        assert evaluation["baseline_loss"] == pytest.approx(min(losses), rel=1e-4)
        assert "baseline_loss" not in metrics
        forecast = SERIES.predicted(tmp_path)["prediction"].reshape(-1, 6, 2)
        mean = values().astype(np.float32)[:700, [0, 2]].mean(0)
        error = (forecast - mean) / std - ahead
        assert metrics[loss] == pytest.approx((np.abs(error) ** power).mean(), rel=1e-4)


def test_predicts_a_split_and_what_comes_after_new_data(tmp_path, monkeypatch):
    prepared(tmp_path, "timeseries", text(values()))
    done(tmp_path, *SMALL)
    split = SERIES.predicted(tmp_path)
    assert split.keys() == {"time", "step", "target", "prediction"}
    assert len(split["prediction"]) == 145 * 6 * 3
    time_behind = re.sub("(.*?),(.*)", r"\2,\1", text(values()[:900]))
    written(tmp_path, time_behind, "new.csv")
    new = SERIES.predicted(tmp_path, "--input", "new.csv")
    hours = np.datetime64("2020-01-01T00", "s") + 3600 * np.arange(900, 906)
    assert new["target"][:4].tolist() == ["wave", "walk", "noise", "wave"]
    # The last window begins behind the file's last row.
    assert new["time"][-18::3].tolist() == hours.tolist()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINING_ROOT", str(tmp_path))
    trained = SERIES.module("trained")
    table = csv.read_csv(tmp_path / "new.csv").to_pydict()
    in_python = SERIES.predicted_in_python(trained.load_run(), table)
    assert in_python.keys() == new.keys()
    for name, array in in_python.items():
        np.testing.assert_array_equal(array, new[name])
    is_first = (new["time"] == split["time"][0]) & (new["step"] == 1)
    place = int(is_first.argmax())
    same_windows = new["prediction"][place:][:720]
    np.testing.assert_allclose(same_windows, split["prediction"][:720], rtol=1e-5, atol=1e-5)

    too_short = (text(values()[:23]), "no window fits into the 23 rows of the split input")
    for content, says in (too_short, (with_line(5, f"{FOUR},1,,3"), "an empty cell: .*row 5")):
        written(tmp_path, content, "new.csv")
        one_error(SERIES.run("predict", "--input", "new.csv", cwd=tmp_path), says)


def table_of(folder, name, *words):
    done(folder, "predict", "--output", name, *words)
    if name.endswith(".csv"):
        return pyarrow.csv.read_csv(folder / name).to_pydict()
    return pyarrow.parquet.read_table(folder / name).to_pydict()


ZONE = {"timezone": "Europe/Berlin"}
# name: the last row, the distance of rows, the source of the data, the next three times in a CSV
DATED: dict[str, tuple[str, int, dict, list[str]]] = {
    "dates": (
        "2020-02-28",
        86400,
        {},
        [f"2020-0{day} 00:00:00" for day in ("2-29", "3-01", "3-02")],
    ),
    "hours of a zone": (
        "2020-10-24T23:00",
        3600,
        ZONE,
        ["2020-10-25 02:00:00+0200", "2020-10-25 02:00:00+0100", "2020-10-25 03:00:00+0100"],
    ),
    "days of a zone": (
        "2020-10-24T22:00",
        86400,
        ZONE,
        ["2020-10-26 00:00:00+0100", "2020-10-27 00:00:00+0100", "2020-10-28 00:00:00+0100"],
    ),
    "row numbers": ("1970-01-01T00:01", 1, {"time_column": "none"}, ["61", "62", "63"]),
}


def test_forecasts_after_the_data_have_the_times_of_their_kind(tmp_path):
    as_dates = SERIES.module("prepare.clocks").as_dates
    times_after = imported(project_of("timeseries+timezones"), "prepare.clocks").times_after
    for last, step, source, expected in DATED.values():
        end = np.datetime64(last, "s").astype(int)
        later = times_after(np.array([end]), step * np.arange(1, 4), source)
        table = pyarrow.table({"time": as_dates(later, source)})
        pyarrow.csv.write_csv(table, tmp_path / "p.csv")
        cells = (tmp_path / "p.csv").read_text().splitlines()[1:]
        assert cells == expected
        if "time_column" not in source:  # `prepare` reads it again
            written(tmp_path, lines({"time": expected, "a": [1, 2, 3]}))
            assert " is not a time " not in prepare(tmp_path, "timeseries", "table.csv").err


def test_a_table_of_forecasts_has_dates_steps_and_names(tmp_path):
    """Those of the prepared data, and those that follow them."""
    prepared(tmp_path, "timeseries", text(values()), "--targets walk,noise")
    done(tmp_path, *SMALL)
    arrays = SERIES.predicted(tmp_path)
    expected = []
    for row in range(850, 995):
        for step in range(6):
            time = datetime(2020, 1, 1) + timedelta(hours=row + step)
            expected += [(time, step + 1, name) for name in ("walk", "noise")]
    for name in ("p.csv", "p.parquet"):
        table = table_of(tmp_path, name)
        assert list(table) == ["time", "step", "target", "prediction"]
        rows = list(zip(table["time"], table["step"], table["target"], strict=True))
        assert rows == expected
        np.testing.assert_allclose(table["prediction"], arrays["prediction"], rtol=1e-6)


def test_times_after_rows_that_are_not_evenly_spaced_have_a_note(tmp_path):
    days = np.datetime64("2020-01-01") + np.arange(400)
    numbers = np.sin(days.astype(int)).tolist()
    prepared(tmp_path, "timeseries", lines({"date": days, "a": numbers}))
    done(tmp_path, *SMALL)
    note = "note: rows are not evenly spaced: times after the last row are 86,400 s apart"
    for rows, is_noted in ((np.is_busday(days), True), (days != days[9], False)):
        written(tmp_path, lines({"date": days[rows], "a": numbers[: rows.sum()]}), "new.csv")
        result = SERIES.done("predict", "--input", "new.csv", cwd=tmp_path)
        assert (note in result.err) == is_noted


# ---- bad input -----------------------------------------------------------------------------------

GOOD = text(values())
LINES = GOOD.splitlines()
FOUR = "2020-01-01 04:00:00"  # the time of line 5


def with_line(number, line):
    return "\n".join([*LINES[:number], line, *LINES[number + 1 :]]) + "\n"


# name: content, flags, the error
BAD: dict[str, tuple[str, str, str]] = {
    "a time twice": (
        with_line(20, LINES[19]),
        "",
        "'2020-01-01 18:00:00' is not later .*row 20.*clocks go back.*--time-column none",
    ),
    "an empty cell": (
        with_line(5, f"{FOUR},1,,3"),
        "",
        "an empty cell: .*row 5, column 'walk': .*--fill last",
    ),
    "nothing to fill with": (with_line(1, "2019,1,,3"), "--fill last", "row 1, column"),
    "no time": (with_line(5, "soon,1,2,3"), "", "'soon' is not a time .*row 5, column 'date'"),
    "an empty time": (with_line(5, ",1,2,3"), "", "'' is not a time .*row 5, column 'date'"),
    "another column to drop": (GOOD, "--drop wav", "no column 'wav': .*did you mean one of wave"),
    "times alone": ("date\n2020\n2021\n", "", "no column of numbers"),
    "no history": (GOOD, "--history 0", "no window without rows: --history"),
    "a split without windows": (
        GOOD,
        "--split 20,280,300",
        "no window fits into the 20 rows of the split train: --history",
    ),
    "a horizon of a split": (
        GOOD,
        "--horizon 680",
        "no window fits into the 700 rows of the split train: --horizon: .*smaller --horizon",
    ),
    "a horizon beyond a split": (
        GOOD,
        "--horizon 151",
        "the 150 rows of the split validation: --horizon: .*rows, or .*smaller --horizon",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_the_data_that_were_there(name, tmp_path):
    content, flags, says = BAD[name]
    written(tmp_path / "data", "{}", "manifest.json")
    path = written(tmp_path, content)
    one_error(prepare(tmp_path, "timeseries", path, flags), says)
    assert files_of(tmp_path / "data") == {"manifest.json": b"{}"}


def test_gaps_empty_cells_and_constant_columns_are_said_and_trained(tmp_path):
    table = values()
    table[:, 1] += 1e8
    table[:, 2] = 7
    rows = text(table).splitlines()
    for number in range(2, 900, 90):
        rows[number] = rows[number].rpartition(",")[0] + ","
    del rows[300:340]
    out = prepared(tmp_path, "timeseries", "\n".join(rows), "--fill last").out
    assert "gaps in time, which windows run across without --max-gap: 1" in out
    assert "note: column 'noise' is constant in the training rows" in out
    assert re.search(r"columns: +min +max +distinct +missing\n  wave ", out)
    assert re.search(r"  noise +7 +7 +1 +10\n", out)
    frame = json.loads((tmp_path / "data/manifest.json").read_text())["facts"]["frames"][0]
    assert (frame["mean"][2], frame["std"][2]) == (7, 1)
    done(tmp_path, *SMALL)
    assert all(np.isfinite(float.fromhex(loss)) for _, loss in losses(tmp_path))


# ---- the guide -----------------------------------------------------------------------------------


@pytest.mark.full
def test_documented_commands_run_and_beat_repeating_the_last_value(tmp_path):
    evaluation = SERIES.follow("timeseries", tmp_path)
    assert evaluation["metrics"]["mse"] < 0.5 * evaluation["baseline_loss"]
    assert np.load(tmp_path / "forecast.npz")["step"].max() == 24
