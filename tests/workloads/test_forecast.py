"""The workload `forecast`: every array against plain loops over a table, and no window, scale or
forecast sees what it must not."""

import math
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from made_up import contents, lines, prepared, written
from made_up import store as opened_store
from running import evaluation_of, evaluations, losses, one_error, weights
from workload import Workload

PANEL = Workload("forecast")
HISTORY = 5
HORIZON = 3
SEASON = 4
FLAGS = f"--history {HISTORY} --horizon {HORIZON} --season {SEASON}"
COLUMNS = (
    "--series shop --targets sales,visits --known price,holiday --static size,town "
    "--calendar hour,weekday,day,month,yearday"
)
VALUES = ["price", "holiday", "sales", "visits", "weather"]
CODES = {"holiday": ["", "fair"], "town": ["Bonn", "Ulm"]}
START = datetime(2024, 2, 20, 6, tzinfo=UTC)
DAY = timedelta(days=1)
ZONE = ZoneInfo("Europe/Berlin")


def store(folder, data="data"):
    return opened_store(folder, "forecast", data)


# ---- a panel, and what a slow reading makes of it ------------------------------------------------


def shops() -> dict[str, list[dict]]:
    """Daily rows of series that differ in length and begin at different times.

    Two targets; a known price; a known holiday, a text that is empty at first; the weather, of which
    only the past is known; size and town of a shop. `b` ends with rows to forecast, `c` with more of
    them than the horizon, and `f` with fewer. `d` has one row, and `e` no target.
    """
    numbers = random.Random(0)
    sizes = {"a": 40, "b": 30, "c": 25, "d": 1, "e": 0, "f": 9, "g": 33}
    ahead = {"b": HORIZON, "c": HORIZON + 4, "e": 12, "f": 1}
    panel = {}
    for place, (name, size) in enumerate(sizes.items()):
        panel[name] = []
        for row in range(size + ahead.get(name, 0)):
            past = {
                "sales": round(numbers.uniform(5, 9), 3),
                "visits": numbers.randint(10, 99),
                "weather": round(numbers.gauss(9, 3), 1),
            }
            if row >= size:
                past = dict.fromkeys(past, "")
            always = {
                "date": START + (3 * place + row) * DAY,
                "shop": name,
                "price": round(numbers.uniform(1, 2), 2),
                "holiday": "fair" if row in (11, 27) else "",
                "size": 100 + place,
                "town": "Ulm" if place % 2 else "Bonn",
            }
            panel[name].append(always | past)
    return panel


def ahead_of(last: dict) -> list[dict]:
    """The rows to forecast after the last one of a series."""
    rows = []
    for step in range(HORIZON):
        unknown = {"sales": "", "visits": "", "weather": ""}
        rows.append({**last, **unknown, "date": last["date"] + (step + 1) * DAY})
    return rows


def all_rows(panel) -> list[dict]:
    return [row for rows in panel.values() for row in rows]


def text(rows) -> str:
    """A CSV of rows, in their order."""
    table = {name: [row[name] for row in rows] for name in rows[0]}
    table["date"] = [f"{time:%Y-%m-%d %H:%M:%S}" for time in table["date"]]
    return lines(table)


def numbers_of(row: dict, names) -> list[float]:
    found = []
    for name in names:
        cell = row[name]
        if name in CODES:
            found.append(CODES[name].index(cell) + 1)
        else:
            found.append(math.nan if cell == "" else cell)
    return found


def count_of(rows) -> int:
    """Rows with targets."""
    return sum(row["sales"] != "" for row in rows)


def plain_borders(panel, by: str, split) -> dict[str, list[int]]:
    """The ends of training, validation and test of each series, in its rows."""
    counts = {name: count_of(rows) for name, rows in panel.items()}
    if by == "end":
        ends = {}
        for name, count in counts.items():
            test = max(count - split[2], 0)
            ends[name] = [max(test - split[1], 0), test, count]
        return ends
    if by == "series":
        order = np.random.RandomState(0).permutation(len(panel)).tolist()
        ends = {name: [0, 0, 0] for name in panel}
        for part, size in enumerate(split):
            for _ in range(size):
                name = [*panel][order.pop(0)]
                ends[name] = [counts[name] if place >= part else 0 for place in range(3)]
        return ends
    times = sorted(row["date"] for row in all_rows(panel) if row["sales"] != "")
    times.append(times[-1] + DAY)
    limits = [times[size] for size in np.cumsum(split)]
    ends = {}
    for name, rows in panel.items():
        days = [row["date"] for row in rows[: counts[name]]]
        ends[name] = [sum(day < limit for day in days) for limit in limits]
    return ends


def plain_windows(panel, borders, split: str, stride: int = 1) -> list[tuple[str, int]]:
    """Series, and row of the first target, of each window.

    A series that has no row after its last target has ended: its known future is not there.
    """
    windows = []
    for name, rows in panel.items():
        count = count_of(rows)
        stop = count + HORIZON if len(rows) > count else count
        train, validation, test = borders[name]
        low, high = {
            "train": (0, train),
            "validation": (train, validation),
            "test": (validation, test),
            "future": (count or 999, stop),
            "every": (0, stop if count else 0),
        }[split]
        firsts = []
        for first in range(max(low, HISTORY), high - HORIZON + 1):
            firsts.append(first)
        windows += [(name, first) for first in firsts[::-1][::stride][::-1]]
    return windows


def plain_phases(time: datetime) -> list[float]:
    """Months and days of the year begin with March."""
    march = datetime(time.year - (time.month < 3), 3, 1, tzinfo=UTC)
    midnight = time.replace(hour=0, minute=0, second=0)
    parts = [
        (time - midnight) / DAY,
        time.weekday() / 7,
        (time.day - 1) / 31,
        (time.month - 3) % 12 / 12,
        (midnight - march).days / 366,
    ]
    return [turn(2 * math.pi * part) for turn in (math.sin, math.cos) for part in parts]


def check_window(batch, panel, name: str, first: int, trained: list[str]) -> None:
    rows = panel[name]
    last = rows[-1]
    ahead = rows[first : first + HORIZON]
    for step in range(HORIZON - len(ahead)):  # rows that the table does not have
        empty = dict.fromkeys(VALUES, math.nan)
        ahead.append({**empty, "date": last["date"] + (step + 1) * DAY})
    expected = {
        "rows": [numbers_of(row, VALUES) for row in rows[first - HISTORY : first]],
        "static": numbers_of(last, ["size", "town"]),
        "calendar": [plain_phases(row["date"]) for row in ahead],
        "series": [
            [*panel].index(name),
            trained.index(name) if name in trained else len(panel),
        ],
    }
    known = []
    for row in ahead:
        known.append([math.nan] * 2 if len(row) == 6 else numbers_of(row, ["price", "holiday"]))
    expected["known"] = known
    if "target" in batch:
        expected["target"] = [numbers_of(row, ["sales", "visits"]) for row in ahead]
    for key, value in expected.items():
        np.testing.assert_allclose(batch[key], value, rtol=1e-6, atol=1e-6, err_msg=key)


def shares(panel, fractions) -> list[int]:
    count = sum(map(count_of, panel.values()))
    sizes = [round(part * count) for part in fractions[:2]]
    return [*sizes, count - sum(sizes)]


SPLITS = {
    "time": ("0.6,0.25,0.15", [0.6, 0.25, 0.15]),
    "end": ("rest,7,6", [0, 7, 6]),
    "series": ("3,2,1", [3, 2, 1]),
}


@pytest.mark.parametrize("by", SPLITS)
def test_windows_are_those_of_plain_loops(by, tmp_path):
    """Whatever the order of the rows in the table: of series, of time, or none."""
    panel = shops()
    rows = all_rows(panel)
    flags, split = SPLITS[by]
    words = f"{COLUMNS} {FLAGS} --split-by {by} --split {flags} --stride 2"
    orders = {
        "series": rows,
        "time": sorted(rows, key=lambda row: row["date"]),
        "none": random.Random(1).sample(rows, len(rows)),
    }
    for name, ordered in orders.items():
        prepared(tmp_path / name, "forecast", text(ordered), words)
    prepared_here = [contents(tmp_path / name, "forecast") for name in orders]
    assert prepared_here[0] == prepared_here[1] == prepared_here[2]

    borders = plain_borders(panel, by, shares(panel, split) if by == "time" else split)
    trained = [name if borders[name][0] else "" for name in panel]
    folder = store(tmp_path / "none")
    for split_name in ("train", "validation", "test", "future", "every"):
        stride = 2 if split_name in ("validation", "test") else 1
        windows = plain_windows(panel, borders, split_name, stride)
        flags = ("--data.order", "time", "--data.batch_size", "1")
        batches = PANEL.batches(folder, split_name, *flags)
        assert len(batches) == len(windows) > 0, split_name
        for batch, (name, first) in zip(batches, windows, strict=True):
            one = {key: value[0] for key, value in batch.items()}
            check_window(one, panel, name, first, trained)


@pytest.mark.parametrize("by", SPLITS)
def test_scales_are_those_of_plain_loops(by, tmp_path):
    """Mean and deviation of the training rows, or without any, of the first history; for MASE, the
    seasonal difference before a split."""
    panel = shops()
    flags, split = SPLITS[by]
    words = f"{COLUMNS} {FLAGS} --split-by {by} --split {flags}"
    prepared(tmp_path, "forecast", text(all_rows(panel)), words)
    borders = plain_borders(panel, by, shares(panel, split) if by == "time" else split)
    opened = store(tmp_path)
    scale = opened.arrays["scale"].rows()
    season = opened.arrays["season"].rows()
    numbers = ["price", "sales", "visits", "weather"]  # a text has no scale
    places = [VALUES.index(name) for name in numbers]
    trained = {}
    for name, rows in panel.items():
        trained[name] = [numbers_of(row, numbers) for row in rows[: borders[name][0]]]
    together = np.array([row for rows in trained.values() for row in rows])
    for place, (name, rows) in enumerate(panel.items()):
        first = rows[: min(HISTORY, borders[name][2])]
        values = np.array(trained[name] or [numbers_of(row, numbers) for row in first] or together)
        expected = [values.mean(0), values.std(0)]
        if len(values) == 1:
            expected[1] = [1] * len(numbers) if trained[name] else together.std(0)
        np.testing.assert_allclose(scale[place][:, places], expected, rtol=1e-5)

        train, validation, test = borders[name]
        ends = [train, train or validation, validation or test]
        for split_place, end in enumerate(ends):
            values = [numbers_of(row, ["sales", "visits"]) for row in rows[:end]]
            lag = SEASON if len(values) > SEASON else 1
            pairs = zip(values, values[lag:], strict=False)
            changes = [np.abs(np.subtract(*pair)) for pair in pairs]
            expected = np.mean(changes, 0) if changes else [math.nan, math.nan]
            np.testing.assert_allclose(season[place][split_place], expected, rtol=1e-6)
    np.testing.assert_allclose(np.array(opened.facts["mean"])[places], together.mean(0), rtol=1e-6)
    np.testing.assert_allclose(np.array(opened.facts["std"])[places], together.std(0), rtol=1e-6)


# ---- training, metrics and forecasts -------------------------------------------------------------

SMALL = (
    "train",
    *("--model.width", "8", "--data.batch_size", "16", "--training.max_steps", "12"),
    *("--schedule.warmup_steps", "2", "--monitor.every_steps", "1"),
    *("--evaluation.every_steps", "12", "--model.embedding", "3"),
)
ALL = f"{COLUMNS} {FLAGS} --split-by end --split rest,6,6"


def done(folder, *words):
    return PANEL.done(*words, cwd=folder).out


def forecasts(folder, *words, name="p.csv") -> dict[str, list]:
    """The columns that `predict` writes."""
    done(folder, "predict", *words, "--output", name)
    return pyarrow.csv.read_csv(folder / name).to_pydict()


def test_metrics_are_those_of_the_forecasts_that_are_written(tmp_path):
    """Of each series, then their mean and median; a flat series has no MASE."""
    panel = shops()
    for row in panel["g"][:-6]:
        row["visits"] = 30
    prepared(tmp_path, "forecast", text(all_rows(panel)), f"{ALL} --stride 2")
    done(tmp_path, *SMALL)
    done(tmp_path, "evaluate")
    found = evaluation_of(tmp_path)["metrics"]
    assert found["flat_series"] == 1

    table = forecasts(tmp_path, "--split", "test")
    rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
    by_row = {(row["shop"], row["date"].replace(tzinfo=None)): row for row in all_rows(panel)}
    errors: dict[tuple, list] = {}
    for place, row in enumerate(rows):
        name, target = row["series"], row["target"]
        days = [day for day in panel[name] if day["sales"] != ""]
        now = days.index(by_row[name, row["time"]])
        first = now - row["step"] + 1
        assert row["step"] == place // 2 % HORIZON + 1
        truth = days[now][target]
        naive = days[first - SEASON + (row["step"] - 1) % SEASON][target]
        before = [day[target] for day in days[: len(days) - 6]]
        lag = SEASON if len(before) > SEASON else 1
        scale = np.mean([abs(a - b) for a, b in zip(before, before[lag:], strict=False)])
        value = (row["prediction"], naive, truth, scale)
        errors.setdefault((name, target), []).append(value)

    def of_series(measure) -> list[float]:
        found = [np.mean([measure(*value) for value in values]) for values in errors.values()]
        return [value for value in found if np.isfinite(value)]

    def per_size(a, b):
        return 200 * abs(a - b) / (abs(a) + abs(b))

    def scaled(a, b, scale):
        return abs(a - b) / scale if scale else math.nan

    mase = of_series(lambda forecast, naive, truth, scale: scaled(forecast, truth, scale))
    smape = of_series(lambda forecast, naive, truth, scale: per_size(forecast, truth))
    values = [value for cells in errors.values() for value in cells]
    expected = {
        "mase": np.mean(mase),
        "mase_median": np.median(mase),
        "mase_naive": np.mean(
            of_series(lambda _, naive, truth, scale: scaled(naive, truth, scale))
        ),
        "smape": np.mean(smape),
        "smape_median": np.median(smape),
        "smape_naive": np.mean(of_series(lambda _, naive, truth, scale: per_size(naive, truth))),
        "wape": sum(abs(f - t) for f, _, t, _ in values) / sum(abs(t) for *_, t, _ in values),
        "mae_original": np.mean([abs(f - t) for f, _, t, _ in values]),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("scaling", ["window", "series"])
def test_metrics_do_not_follow_the_unit_of_the_data(scaling, tmp_path):
    """Not even if all values are far below 1; the last batch has padding."""
    found = []
    for unit in (1, 2.0**-30):
        folder = tmp_path / str(unit)
        folder.mkdir()
        panel = shops()
        for row in all_rows(panel):
            for name in ("sales", "visits"):
                row[name] = row[name] if row[name] == "" else row[name] * unit
        prepared(folder, "forecast", text(all_rows(panel)), ALL)
        done(folder, *SMALL, "--model.scaling", scaling)
        done(folder, "evaluate")
        results = evaluation_of(folder)
        metrics = {**results["metrics"], "baseline": results["baseline_loss"]}
        metrics["mae_original"] /= unit
        found.append(metrics)
    assert found[1] == pytest.approx(found[0], rel=1e-3)


# ---- what nothing may see ------------------------------------------------------------------------


def noisy(panel, begins: dict[str, int], names=VALUES) -> dict[str, list[dict]]:
    """The panel with other values, and texts, from some rows of its series on."""
    numbers = random.Random(9)
    changed = {}
    for name, rows in panel.items():
        changed[name] = []
        for place, row in enumerate(rows):
            other = dict(row)
            if place >= begins.get(name, len(rows)):
                for column in names:
                    if column == "holiday":
                        other[column] = numbers.choice(["", "fair", "strike"])
                    elif row[column] != "":
                        other[column] = round(numbers.uniform(50, 900), 2)
            changed[name].append(other)
    return changed


@pytest.mark.parametrize("by", SPLITS)
def test_noise_behind_the_training_rows_changes_no_fact_and_no_loss(by, tmp_path):
    panel = shops()
    flags, split = SPLITS[by]
    words = f"{COLUMNS} {FLAGS} --split-by {by} --split {flags}"
    borders = plain_borders(panel, by, shares(panel, split) if by == "time" else split)
    begins = {name: ends[0] for name, ends in borders.items()}
    outcomes = []
    for name, table in (("as_it_is", panel), ("noisy", noisy(panel, begins))):
        folder = tmp_path / name
        prepared(folder, "forecast", text(all_rows(table)), words)
        done(folder, *SMALL)
        opened = store(folder)
        is_trained = [begins[name] > 0 for name in panel]
        facts = {**opened.facts, "scales": np.array(opened.facts["scales"])[is_trained].tolist()}
        scale = opened.arrays["scale"].rows()[is_trained].tolist()
        first = opened.arrays["season"].rows()[:, 0][is_trained].tolist()
        outcomes.append((facts, scale, str(first), losses(folder)))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][-1]) == 12


def by_window(table) -> dict[tuple, list[float]]:
    """By series and the time of the first row that is forecast: numbers of all rows and targets."""
    found: dict[tuple, list[float]] = {}
    columns = [table[name] for name in table if name in ("prediction", "q0.1", "q0.5", "q0.9")]
    for place, cells in enumerate(zip(table["series"], table["time"], *columns, strict=True)):
        if place % (2 * HORIZON) == 0:
            key = cells[:2]
            found[key] = []
        found[key] += cells[2:]
    return found


@pytest.mark.parametrize("scaling", ["window", "series"])
def test_noise_where_a_forecast_must_not_look_changes_none(scaling, tmp_path):
    """The targets and the past columns of the rows that are forecast, what was before its history,
    and other series. What is known of these rows does count."""
    panel = shops()
    prepared(tmp_path, "forecast", text(all_rows(panel)), ALL)
    flags = ("--model.scaling", scaling, "--model.quantiles", "0.1,0.5,0.9")
    done(tmp_path, *SMALL, *flags)
    row = 15
    tables = {
        "before": panel,
        "past": noisy(panel, {"a": row}, ["sales", "visits", "weather"]),
        "known": noisy(panel, {"a": row}, ["price"]),
    }
    found = {}
    for name, table in tables.items():
        for rows in table.values():  # what the table says of the rows to forecast
            for late in rows[count_of(rows) :]:
                late["weather"] = {"before": "", "past": 99, "known": ""}[name]
        complete = {key: rows for key, rows in table.items() if key in "abcg"}
        for key in "ag":
            complete[key] = [*complete[key], *ahead_of(complete[key][-1])]
        written(tmp_path, text(all_rows(complete)), "new.csv")
        found[name] = by_window(forecasts(tmp_path, "--input", "new.csv", "--every"))
    times = [day["date"].replace(tzinfo=None) for day in panel["a"]]
    before = found["before"]
    count = sum(len(windows) for windows in map(plain_firsts, [40, 30, 25, 33]))
    assert len(before) == count
    for key, values in before.items():
        name, first = key
        place = times.index(first) if name == "a" and first in times else 40
        assert len(values) == 4 * 2 * HORIZON
        if name != "a" or place <= row:
            assert found["past"][key] == values
        else:
            assert found["past"][key] != values
        if name != "a" or place <= row - HORIZON:
            assert found["known"][key] == values
        else:
            assert found["known"][key] != values


def plain_firsts(count: int) -> range:
    return range(HISTORY, count + 1)


def test_new_data_are_forecast_like_the_prepared_ones(tmp_path):
    """In each kind of output; and series, texts and lengths that training has not seen."""
    panel = shops()
    for rows in panel.values():
        if count_of(rows) == len(rows):
            rows += ahead_of(rows[-1])
    panel["f"] = panel["f"][:8]
    for row in panel["f"][5:]:
        row.update({"sales": "", "visits": "", "weather": ""})
    content = text(all_rows(panel))
    prepared(tmp_path, "forecast", content, f"{ALL} --split rest,6,6")
    done(tmp_path, *SMALL)
    of_store = forecasts(tmp_path)
    of_file = forecasts(tmp_path, "--input", "table.csv")
    assert of_store == of_file
    assert sorted(set(of_store["series"])) == ["a", "b", "c", "f", "g"]
    forecasts(tmp_path, name="p.csv")
    done(tmp_path, "predict", "--output", "p.parquet")
    columns = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert columns.pop("prediction") == pytest.approx(of_store["prediction"], rel=1e-6)
    assert columns.items() < of_store.items()
    arrays = PANEL.predicted(tmp_path)
    assert arrays["prediction"].ravel().tolist() == pytest.approx(of_store["prediction"])
    ahead = arrays["time"].astype("M8[us]")
    assert ahead.tolist() == of_store["time"]

    new = {"h": [dict(row, shop="h", town="Wien") for row in panel["a"]], "a": panel["a"]}
    new["h"][3]["holiday"] = "strike"
    written(tmp_path, text(all_rows(new)), "new.csv")
    table = forecasts(tmp_path, "--input", "new.csv")
    assert table["series"] == ["a"] * 6 + ["h"] * 6
    assert table["prediction"][:6] == pytest.approx(of_store["prediction"][:6], rel=1e-6)
    assert np.isfinite(table["prediction"]).all()


# ---- the loop ------------------------------------------------------------------------------------


def test_a_run_that_was_ended_goes_on_bit_for_bit(tmp_path):
    """With forgotten series and texts, and with quantiles that evaluations widen."""
    flags = (*SMALL, "--model.quantiles", "0.2,0.5,0.9", "--evaluation.every_steps", "5")
    for folder in (tmp_path / "whole", tmp_path / "parts"):
        prepared(folder, "forecast", text(all_rows(shops())), ALL)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done(whole, *flags)
    done(parts, *flags, "--max-steps", "7")
    done(parts, "train", "--resume")
    assert losses(parts) == losses(whole)
    assert evaluations(parts) == evaluations(whole)
    assert weights(parts) == weights(whole)
    assert "quantiles.widths" in weights(whole)


@pytest.mark.parametrize("order", ["full", "block", "time"])
def test_loaders_give_equal_batches(order, tmp_path):
    prepared(tmp_path, "forecast", text(all_rows(shops())), ALL)
    folder = store(tmp_path)
    flags = ("--data.order", order, "--data.batch_size", "16", "--data.shuffle_block", "64")
    for split in ("train", "test", "future"):
        outcomes = []
        for loader in ("memmap", "dataloader", "chunk"):
            batches = PANEL.batches(folder, split, *flags, train=split == "train", loader=loader)
            for batch in batches:
                for name, values in batch.items():
                    batch[name] = (values.shape, values.numpy().tobytes())
            outcomes.append(batches)
        assert outcomes[0] == outcomes[1] == outcomes[2]
        assert len(outcomes[0]) >= 1


def test_a_block_has_windows_of_many_series(tmp_path):
    """So has each batch, and an epoch has each window once."""
    rows = []
    for name in range(40):
        for row in range(120):
            rows.append(
                {"date": START + row * DAY, "shop": f"{name:02}", "sales": row + 1000 * name}
            )
    words = f"--series shop {FLAGS} --split-by end --split rest,10,10"
    prepared(tmp_path, "forecast", text(rows), words)
    flags = ("--data.order", "block", "--data.batch_size", "64", "--data.shuffle_block", "512")
    batches = PANEL.batches(store(tmp_path), "train", *flags, train=True)
    seen = []
    for batch in batches:
        sales = batch["rows"][batch["present"], 0, 0]
        seen += sales.tolist()
        assert len(set((sales // 1000).tolist())) >= 8 or len(sales) < 64
    assert len(seen) == len(set(seen)) == 40 * (100 - HISTORY - HORIZON + 1)


def test_the_calendar_is_that_of_local_clocks(tmp_path):
    """Before and after clocks change, in training and in the future."""
    start = datetime(2024, 3, 25, tzinfo=ZONE).timestamp()
    utc = [datetime.fromtimestamp(start + 3600 * row, UTC) for row in range(240)]
    rows = [{"date": time, "sales": row} for row, time in enumerate(utc)]
    flags = f"{FLAGS} --calendar hour --split 120,60,60 --timezone Europe/Berlin"
    table = text([{**row, "date": row["date"].astimezone(ZONE)} for row in rows])
    prepared(tmp_path, "forecast+timezones", table, flags)
    (batch,) = PANEL.batches(store(tmp_path), "test", "--data.batch_size", "256")
    clocks = [time.astimezone(ZONE).hour for time in utc]
    first = 180
    for place in range(len(batch["index"])):
        if not batch["present"][place]:
            continue
        hours = np.array(clocks[first + place :][:HORIZON]) / 24 * 2 * np.pi
        expected = np.stack([np.sin(hours), np.cos(hours)], 1)
        np.testing.assert_allclose(batch["calendar"][place], expected, atol=1e-6)


# name: settings, the error
BAD = {
    "unordered": ("0.9,0.5,0.1", "'0.9,0.5,0.1' has no quantiles: model.quantiles: give ascending"),
    "twice": ("0.1,0.5,0.5", "has no quantiles"),
    "outside": ("0,0.5,1", "has no quantiles"),
    "percent": ("10,50,90", "between 0 and 1"),
    "without a median": ("0.1,0.9", "with 0.5"),
    "a word": ("median", "'median' has no quantiles"),
    "semicolons": ("0.1;0.5;0.9", "such as 0.1,0.5,0.9"),
}


def test_wrong_quantiles_are_one_line(tmp_path):
    layers = PANEL.module("layers")
    for quantiles, says in BAD.values():
        with pytest.raises(PANEL.module("engine.errors").UserError, match=says):
            layers.read_levels(quantiles)
    prepared(tmp_path, "forecast", text(all_rows(shops())), ALL)
    one_error(PANEL.run(*SMALL, "--model.quantiles", "0.1,0.9", cwd=tmp_path), "with 0.5")
    assert not [*(tmp_path / "runs").glob("*/metrics.jsonl")]


def test_wrong_series_to_forecast_are_one_line(tmp_path):
    panel = shops()
    prepared(tmp_path, "forecast", text(all_rows(panel)), ALL)
    done(tmp_path, *SMALL)
    lacking = "no value of 'price' in a row to forecast: series 'f', 2024-03-16 06:00:00: add rows"
    one_error(PANEL.run("predict", cwd=tmp_path), lacking)

    some = [dict(row) for row in panel["b"]]
    last = some.pop()
    cases = {
        "no series": ([*some, {**last, "shop": ""}], "an empty cell: .*column 'shop'"),
        "a lack of rows": (some, "'price' .*: series 'b', 2024-03-26 06:00:00: add rows"),
        "a lack of a value": (
            [*some, {**last, "price": ""}],
            "an empty cell: .*2024-03-26T06:00:00, column 'price'",
        ),
        "another spelling": ([*some, {**last, "shop": "B"}], "'B' and 'b' seem"),
        "another size": ([*some, {**last, "size": 3}], "a static column changes"),
        "a row twice": ([*some, last, last], "two rows have one time"),
        "a text": ([*some, {**last, "price": "low"}], "'low' is not a finite number: .*'price'"),
        "no targets": (panel["e"], "no row has a target"),
        "no row to forecast": (panel["a"], "no series can be forecast: new.csv: give a series 5"),
    }
    for name in ("shop", "price", "sales", "size"):
        less = [{key: cell for key, cell in row.items() if key != name} for row in panel["b"]]
        cases[f"no column {name}"] = (less, f"no column '{name}'")

    def forecast(path, folder):
        PANEL.module("dataset").write_new(path, {}, store(tmp_path), folder)
        samples = PANEL.module("dataset").Samples(PANEL.store(folder), None, "future")
        PANEL.module("commands.predict").check_future(samples)

    for name, (table, says) in cases.items():
        path = tmp_path / written(tmp_path, text(table), "new.csv")
        with pytest.raises(PANEL.module("engine.errors").UserError, match=says):
            forecast(path, tmp_path / name)


def test_short_and_ended_series_are_named_and_the_others_are_forecast(tmp_path):
    panel = shops()
    prepared(tmp_path, "forecast", text(all_rows(panel)), ALL)
    done(tmp_path, *SMALL)
    out = prepared(tmp_path / "again", "forecast", text(all_rows(panel)), ALL).out
    assert "note: series too short for any window: 2 (d, e)" in out
    rows = [
        *panel["b"],
        *panel["e"],
        *panel["a"],
        *panel["d"],
        *ahead_of(panel["d"][-1]),
        *panel["c"],
    ]
    written(tmp_path, text(rows), "new.csv")
    out = done(tmp_path, "predict", "--input", "new.csv", "--output", "n.csv")
    assert "note: series with fewer than 5 rows, without a forecast: 2 (d, e)" in out
    assert "note: series that end without rows to forecast, without a forecast: 1 (a)" in out
    table = pyarrow.csv.read_csv(tmp_path / "n.csv").to_pydict()
    assert table["series"] == ["b"] * 6 + ["c"] * 6


def test_a_file_of_a_folder_keeps_its_name(tmp_path):
    """Each file of the folder is a series; one of them alone is forecast as that series."""
    folder = tmp_path / "shops"
    folder.mkdir()
    for name, rows in shops().items():
        columns = [{key: row[key] for key in ("date", "sales")} for row in rows]
        (folder / f"{name}.csv").write_text(text(columns), encoding="utf-8")
    flags = "--input shops --history 6 --horizon 3 --split rest,6,6 --split-by end"
    done(tmp_path, "prepare", *flags.split())
    done(tmp_path, *SMALL)
    forecasts(tmp_path)
    of_file = forecasts(tmp_path, "--input", "shops/b.csv")
    assert set(of_file["series"]) == {"b"}
