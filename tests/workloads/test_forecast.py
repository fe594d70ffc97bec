"""The workload `forecast`: every array against plain loops over a table, and no window, scale or
forecast sees what it must not."""

import math
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from made_up import contents, lines, prepared
from made_up import store as opened_store
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
    """Series, and row of the first target, of each window."""
    windows = []
    for name, rows in panel.items():
        count = count_of(rows)
        train, validation, test = borders[name]
        low, high = {
            "train": (0, train),
            "validation": (train, validation),
            "test": (validation, test),
            "future": (count or 999, count + HORIZON),
            "every": (0, count + HORIZON if count else 0),
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

    if by == "time":
        count = sum(map(count_of, panel.values()))
        split = [round(part * count) for part in split[:2]]
        split.append(count - sum(split))
    borders = plain_borders(panel, by, split)
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
