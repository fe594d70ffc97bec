"""Panels as people have them, for the workload `forecast`: calendars, absent rows, names, and files
that are no panels. Nothing is taken for something else in silence."""

import gzip
import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from made_up import contents, files_of, lines, prepare, prepared, store, written
from running import one_error
from workload import Workload

PANEL = Workload("forecast")
DAY = 86_400


# ---- calendars -----------------------------------------------------------------------------------


def every(start: str, step: str, count: int) -> np.ndarray:
    """Times at a distance such as `1h`, or months of these."""
    number, unit = int(step[:-1]), step[-1]
    times = np.datetime64(start, unit) + number * np.arange(count)
    return times.astype("M8[s]")


def month_ends(start: str, count: int, months: int = 1) -> np.ndarray:
    return (every(start, f"{months}M", count).astype("M8[M]") + 1).astype("M8[s]") - DAY


def of_week(times: np.ndarray, days: int, hours: range = range(24)) -> np.ndarray:
    """Those of the first days of a week, at some hours."""
    day = times.astype("M8[D]")
    hour = (times - day).astype(int) // 3600
    return times[((day.astype(int) + 3) % 7 < days) & np.isin(hour, hours)]


HOURS = every("2024-01-01T00", "1h", 24 * 7 * 8)
DAYS = every("2024-01-01", "1D", 400)  # a Monday
WORKDAYS = of_week(DAYS, 5)
JITTERED = every("2024-01-01T00:00:00", "60s", 5000)
JITTERED = JITTERED + np.random.default_rng(0).integers(-9, 10, 5000)
SLOW = every("2024-01-01T00:00:00", "603s", 9000) + np.arange(9000) // 4 % 2  # 603.0 ± 1
SHUT = of_week(HOURS, 6, range(8, 20))

# name: the times, in which rows are taken out; what comes after the last one; rows of a season
CALENDARS = {
    "days": (DAYS, [9, 30, 31], ["2025-02-04", "2025-02-05", "2025-02-06"], 7),
    "days at noon": (DAYS + DAY // 2, [9], ["2025-02-04T12", "2025-02-05T12"], 7),
    "days before 1970": (DAYS - 36_525 * DAY, [50], ["1925-02-04", "1925-02-05"], 7),
    "workdays": (WORKDAYS[:-1], [9, 30], ["2025-02-03", "2025-02-04", "2025-02-05"], 5),
    "holidays": (WORKDAYS[:-2], [5, 66, 67, 68, 69, 120], ["2025-01-31", "2025-02-03"], 5),
    "six days": (of_week(DAYS, 6), [40], ["2025-02-04", "2025-02-05"], 6),
    "hours": (HOURS, [100, 101], ["2024-02-26T00", "2024-02-26T01"], 24),
    "nights": (SHUT, [40, 41], ["2024-02-26T08", "2024-02-26T09"], 12),
    "nights, from within a day": (SHUT[3:-5], [40], ["2024-02-24T15", "2024-02-24T16"], 12),
    "quarters of an hour": (HOURS[0] + 900 * np.arange(5000), [7], ["2024-02-22T02:00"], 96),
    "minutes with jitter": (JITTERED, [9, 80], [], 1440),
    "a slow clock": (SLOW, [], [], 1),
    "weeks": (DAYS[::7], [3], ["2025-02-10", "2025-02-17"], 52),
    "two weeks": (DAYS[::14], [3], ["2025-02-10"], 1),
    "45 days": (every("2020-01-01", "45D", 40), [5], ["2024-12-05", "2025-01-19"], 1),
    "30 days": (every("2020-01-01", "30D", 40), [], ["2023-04-15", "2023-05-15"], 1),
    "months": (every("2020-01", "1M", 40), [5, 6], ["2023-05-01", "2023-06-01"], 12),
    "months, on the 15th": (every("2020-01", "1M", 40) + 14 * DAY, [5], ["2023-05-15"], 12),
    "months, on the 30th": (
        np.minimum(every("2020-01", "1M", 37) + 29 * DAY, month_ends("2020-01", 37)),
        [5],
        ["2023-02-28", "2023-03-30"],
        12,
    ),
    "month ends": (month_ends("2020-01", 37), [8], ["2023-02-28", "2023-03-31"], 12),
    "ends of days of months": (month_ends("2020-01", 37) + DAY - 1, [8], [], 12),
    "quarters": (every("2020-02", "3M", 30), [8], ["2027-08-01", "2027-11-01"], 4),
    "quarter ends": (month_ends("2020-03", 30, 3), [8], ["2027-09-30", "2027-12-31"], 4),
    "years": (every("1980", "1Y", 40), [8], ["2020-01-01", "2021-01-01"], 1),
    "five years": (every("1900", "5Y", 20), [8], ["2000-01-01", "2005-01-01"], 1),
    "year ends": (month_ends("1980-12", 40, 12), [8], ["2020-12-31"], 1),
    "one row": (DAYS[:1], [], [], DAY),
    "two rows": (DAYS[:2], [], ["2024-01-03"], 7),
    "seconds": (HOURS[0] + np.arange(9000), [4], ["2024-01-01T02:30:00"], DAY),
}


def test_a_calendar_is_that_of_the_rows():
    """Nothing is absent but what was taken out, which comes back at its time."""
    module = PANEL.module("prepare.grid")
    for name, (times, out, after, season) in CALENDARS.items():
        times = times.astype("M8[s]").astype(np.int64)
        some = np.delete(times, out)
        grid = module.find_grid(some, np.array([len(some)]))
        absent = grid.absent(some)
        assert absent.sum() == len(out), name
        for row in np.flatnonzero(absent):
            found = grid.after(np.repeat(some[row], absent[row]), 1 + np.arange(absent[row]))
            expected = times[(times > some[row]) & (times < some[row + 1])]
            assert np.abs(found - expected).max() < 30, name
        found = grid.after(times[-1:], 1 + np.arange(len(after)))
        assert found.tolist() == [np.datetime64(time, "s").astype(int) for time in after], name
        assert PANEL.module("prepare.scales").rows_of_season(grid, True) == season, name


def test_rows_at_no_usual_distance_have_a_step_too():
    """The middle of the distances is between two that are far apart."""
    days = np.cumsum([0, *range(1, 7), *range(100, 106)])
    times = DAYS[0].astype("M8[s]").astype(np.int64) + 86_400 * days
    grid = PANEL.module("prepare.grid").find_grid(times, np.array([len(times)]))
    assert 5 * 86_400 <= grid.step <= 6 * 86_400


def test_a_row_in_a_closed_slot_is_one_of_its_own():
    """A shop that opens on few Sundays: no row is absent around these, and the next one is a
    Monday."""
    grid = PANEL.module("prepare.grid")
    days = of_week(DAYS, 6)
    sundays = DAYS[[6, 90, 90 + 7]]
    times = np.sort(np.concatenate([days, sundays])).astype("M8[s]").astype(np.int64)
    found = grid.find_grid(times, np.array([len(times)]))
    assert len(found.open) == 6
    assert found.absent(times).sum() == 0
    place = int(np.searchsorted(times, sundays[1].astype(int)))
    without_monday = np.delete(times, place + 1)
    assert found.absent(without_monday)[place] == 1
    assert found.after(times[[place]], np.array([1]))[0] == times[place + 1]


# ---- absent rows and empty cells -----------------------------------------------------------------

MESSY = """date,shop,x,y,known,past
2024-01-01,a,,,1,1
2024-01-02,a,1,,2,
2024-01-03,a,,20,3,3
2024-01-06,a,4,,4,
2024-01-07,a,,50,5,5
2024-01-08,a,6,,6,6
2024-01-09,a,,,7,
2024-01-11,a,,,8,
2024-01-12,a,,,9,
2024-01-05,b,7,70,1,1
2024-01-06,b,8,80,2,2
2024-01-07,b,9,90,3,3
2024-01-08,b,9,90,3,3
2024-01-09,b,9,90,3,3
2024-01-10,b,9,90,3,3
2024-01-11,b,9,90,3,3
2024-01-12,b,9,90,3,3
2024-01-13,b,9,90,3,3
"""
NAN = np.nan
GIVEN = "--series shop --targets x,y --known known --history 1 --horizon 2 --split-by end"
# Of `a`: day of January, x, y, known, past
FILLED = {
    "none": [
        (2, 1, NAN, 2, NAN),
        (3, NAN, 20, 3, 3),
        (6, 4, NAN, 4, NAN),
        (7, NAN, 50, 5, 5),
        (8, 6, NAN, 6, 6),
        (9, NAN, NAN, 7, NAN),
        (11, NAN, NAN, 8, NAN),
    ],
    "last": [
        (2, 1, NAN, 2, 1),
        (3, 1, 20, 3, 3),
        (4, 1, 20, 3, 3),
        (5, 1, 20, 3, 3),
        (6, 4, 20, 4, 3),
        (7, 4, 50, 5, 5),
        (8, 6, NAN, 6, 6),
        (9, NAN, NAN, 7, 6),
        (10, NAN, NAN, 7, 6),
    ],
    "zero": [
        (2, 1, 0, 2, 1),
        (3, 0, 20, 3, 3),
        (4, 0, 0, 3, 3),
        (5, 0, 0, 3, 3),
        (6, 4, 0, 4, 3),
        (7, 0, 50, 5, 5),
        (8, 6, NAN, 6, 6),
        (9, NAN, NAN, 7, 6),
        (10, NAN, NAN, 7, 6),
    ],
}


@pytest.mark.parametrize("fill", FILLED)
def test_filling_stops_at_the_last_value_of_a_target(fill, tmp_path):
    """Known and past columns are filled from the rows before; what is known of the future stays."""
    out = prepared(tmp_path, "forecast", MESSY, f"{GIVEN} --split rest,2,2 --fill {fill}").out
    assert "note: rows before the first target of their series, left out: 1" in out
    assert ("absent rows, across which windows run" in out) == (fill == "none")
    opened = store(tmp_path, "forecast")
    first, *_, end, stop, _ = opened.arrays["pieces"].rows()[0]
    days = opened.arrays["time"].rows()[first:stop] // DAY - 19_722
    rows = np.column_stack([days, opened.arrays["rows"].rows()[first:stop]])
    np.testing.assert_array_equal(rows, FILLED[fill])
    assert len(rows) - end == 2


# ---- the same panel in other files ---------------------------------------------------------------

ROLES = "--known promo --static size --history 4 --horizon 2 --season 2 --split-by end"
SHOPS = f"--series shop --targets sales {ROLES} --split rest,6,6"


def shops(count: int = 40) -> dict[str, list]:
    """Three shops by name, each in order of time."""
    table: dict[str, list] = {name: [] for name in ("date", "shop", "sales", "promo", "size")}
    for place, name in enumerate(("x", "y", "z")):
        table["date"] += DAYS[:count].astype("M8[D]").astype(str).tolist()
        table["shop"] += [name] * count
        table["sales"] += [100 * place + row % 7 + row / 8 for row in range(count)]
        table["promo"] += [int(row % 5 == 0) for row in range(count)]
        table["size"] += [50 + place] * count
    return table


def one_shop(place: int, count: int = 40) -> dict[str, list]:
    rows = slice(place * count, (place + 1) * count)
    return {name: cells[rows] for name, cells in shops(count).items() if name != "shop"}


def with_cells(**cells: tuple[int, object]) -> str:
    """The shops with another cell in some columns."""
    table = shops()
    for name, (row, cell) in cells.items():
        table[name][row] = cell
    return lines(table)


def test_files_that_say_the_same_are_the_same_panel(tmp_path):
    """One file, a folder with a file a series, files of years, packed ones, Parquet, read in small
    blocks; the name of a series in two columns."""
    prepared(tmp_path, "forecast", lines(shops()), SHOPS)
    expected = contents(tmp_path, "forecast")
    table = shops()
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "table.parquet")
    assert prepare(tmp_path, "forecast", "table.parquet", SHOPS).code == 0
    assert contents(tmp_path, "forecast") == expected

    parts = lines(table).splitlines(keepends=True)
    (tmp_path / "years").mkdir()
    for number, rows in enumerate((parts[1:50], parts[50:])):
        packed = gzip.compress("".join([parts[0], *rows]).encode())
        written(tmp_path / "years", packed, f"{number}.csv.gz")
    assert prepare(tmp_path, "forecast", "years", SHOPS).code == 0
    assert contents(tmp_path, "forecast") == expected

    for place, name in enumerate(("x", "y", "z")):
        written(tmp_path / "series", lines(one_shop(place)), f"{name}.csv")
    flags = SHOPS.replace("--series shop", "")
    assert prepare(tmp_path, "forecast", "series", flags).code == 0
    found = contents(tmp_path, "forecast")
    found["facts"]["roles"]["series"] = ["shop"]
    assert found == expected

    two = {"date": table["date"], "land": ["de"] * 120, **table}
    prepared(tmp_path, "forecast", lines(two), SHOPS.replace("shop", "land,shop"))
    found = contents(tmp_path, "forecast")
    assert found["facts"]["series"] == ["de/x", "de/y", "de/z"]
    assert found["rows"] == expected["rows"]


def test_small_blocks_are_read_as_one(tmp_path, monkeypatch):
    """A text that comes late, a column that is empty at first, and a series that begins late."""
    table = shops()
    table["promo"] = [""] * 70 + ["0"] * 40 + ["sale"] * 10
    table["sales"][:3] = ["", "", ""]
    late = {name: cells[::-1] for name, cells in table.items()}
    flags = f"{SHOPS} --fill none"
    outcomes = []
    for block_bytes in (2 << 20, 300):
        monkeypatch.setattr(PANEL.module("prepare.tables"), "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(PANEL.module("prepare.panel"), "CHUNK", block_bytes // 10)
        for rows in (table, late):
            out = prepared(tmp_path, "forecast", lines(rows), flags).out
            assert out.count("note: column 'promo' is read as categories, such as 'sale'") == 1
            outcomes.append(contents(tmp_path, "forecast"))
    assert outcomes[0] == outcomes[1] == outcomes[2] == outcomes[3]
    assert outcomes[0]["facts"]["roles"]["texts"] == {"promo": {"": 1, "0": 2}}


# ---- files that are no panels --------------------------------------------------------------------

AHEAD = {"date": (119, "2024-02-10"), "sales": (119, "")}  # a row to forecast
SINGLE = SHOPS.replace("--series shop", "--drop shop")
TEXTS = [f"text {row}" for row in range(1500)]

# name: content, flags, the error
BAD: dict[str, tuple[str, str, str]] = {
    "a name in capitals": (
        with_cells(shop=(119, "Z")),
        SHOPS,
        "'Z' and 'z' seem to be one series: --series: write its name in one way",
    ),
    "a name with a space within": (
        lines({**shops(), "shop": ["my shop"] * 40 + ["my  shop"] * 40 + ["z"] * 40}),
        SHOPS,
        "'my  shop' and 'my shop' seem",
    ),
    "a name with another accent": (
        lines({**shops(), "shop": ["caf\u00e9"] * 40 + ["cafe\u0301"] * 40 + ["z"] * 40}),
        SHOPS,
        "seem to be one series",
    ),
    "a number with a fraction": (
        lines({**shops(), "shop": ["7"] * 40 + ["7.0"] * 40 + ["8"] * 40}),
        SHOPS,
        "'7' and '7.0' seem to be one series",
    ),
    "a number in the first of two names": (
        lines({**shops(), "shop": ["7"] * 40 + ["7.0"] * 40 + ["8"] * 40, "b": ["b"] * 120}),
        SHOPS.replace("--series shop", "--series shop,b"),
        "'7.0/b' and '7/b' seem to be one series",
    ),
    "no name": (
        with_cells(shop=(5, "")),
        SHOPS,
        "an empty cell: .*row 6, column 'shop': give each row the name of its series",
    ),
    "a name that is NA": (with_cells(shop=(5, "NA")), SHOPS, "row 6, column 'shop'.*--keep-na"),
    "a known value is missing": (
        with_cells(promo=(50, "")),
        SHOPS,
        "an empty cell: .*series 'y', 2024-01-11T00:00:00, column 'promo': .*--fill last",
    ),
    "a known value is missing ahead": (
        with_cells(**AHEAD, promo=(119, "")),
        SHOPS,
        "an empty cell: .*series 'z', 2024-02-10T00:00:00, column 'promo'",
    ),
    "a known value is missing at first": (
        with_cells(promo=(40, "")),
        f"{SHOPS} --fill last",
        "an empty cell: .*series 'y', 2024-01-01T00:00:00, column 'promo': fill it in",
    ),
    "a target is missing": (
        with_cells(sales=(50, "")),
        SHOPS,
        "an empty cell: .*series 'y', 2024-01-11T00:00:00, column 'sales': .*--fill",
    ),
    "a static column changes": (
        with_cells(size=(50, 9)),
        SHOPS,
        "a static column changes: .*series 'y', 2024-01-11T00:00:00, column 'size': .*--known size",
    ),
    "a static column is empty": (
        with_cells(size=(119, "")),
        SHOPS,
        "an empty cell in a static column: .*series 'z', 2024-02-09T00:00:00, column 'size'",
    ),
    "a known target": (lines(shops()), f"{SHOPS} --known sales", "--targets sales: give it one"),
    "a static series": (
        lines(shops()),
        f"{SHOPS} --static shop",
        "also in --series: --static shop",
    ),
    "the time is a series": (
        lines(shops()),
        f"{SHOPS} --time-column shop",
        "the column is also in --time-column: --series shop: give it one role",
    ),
    "the series is the time": (
        lines(shops()),
        SHOPS.replace("--series shop", "--series date"),
        "'x' is not a time .*column 'shop': .*--time-column",
    ),
    "no such target": (lines(shops()), f"{SHOPS} --targets sale", "no column 'sale'.*sales"),
    "no such series": (lines(shops()), f"{SHOPS} --series shops", "no column 'shops'.*shop"),
    "no such static": (lines(shops()), f"{SHOPS} --static seize", "no column 'seize'.*size"),
    "no such column to drop": (lines(shops()), f"{SHOPS} --drop a", "no column 'a'"),
    "no such time": (lines(shops()), f"{SHOPS} --time-column day", "no column 'day'"),
    "nothing to forecast": (
        lines(shops()),
        "--series shop --known sales,promo,size",
        "no column to forecast: --targets",
    ),
    "no target has a value": (
        lines({**shops(), "sales": [""] * 120}),
        SHOPS,
        "no row has a target: .*sales: see --targets",
    ),
    "series without a name": (
        lines(shops()),
        SINGLE,
        "two rows have one time: .*2024-01-01T00:00:00: .*--series",
    ),
    "a time twice": (
        with_cells(date=(50, "2024-01-10")),
        SHOPS,
        "two rows have one time: .*series 'y', 2024-01-10T00:00:00: keep one row.*--timezone",
    ),
    "no order": (
        lines({name: cells[::-1] for name, cells in one_shop(0).items()}),
        SINGLE.replace("--drop shop", ""),
        "the rows are not in order of time: .*--series",
    ),
    "a text in a target": (
        with_cells(sales=(7, "many")),
        SHOPS,
        "'many' is not a finite number: .*row 8, column 'sales'",
    ),
    "texts without a role": (
        lines({**shops(), "town": ["Ulm"] * 120}),
        SHOPS.replace("--targets sales", ""),
        "'Ulm' is not a finite number: .*column 'town': .*--known and --static for texts, --drop",
    ),
    "thousands of texts": (
        lines({"date": DAYS[0] + DAY * np.arange(1500), "a": list(range(1500)), "b": TEXTS}),
        "--known b",
        "more than 1,000 different texts: .*column 'b': .*--drop b",
    ),
    "no time": (with_cells(date=(7, "soon")), SHOPS, "'soon' is not a time .*row 8"),
    "a time that is left": (
        lines(shops()),
        "--series shop --time-column none --static size",
        "'2024-01-01' is not a finite number: .*column 'date': .*--drop",
    ),
    "a part of time without times": (
        lines(shops()),
        f"{SHOPS} --time-column none --drop date --calendar hour",
        "no 'hour' here: --calendar: choose from hour, .*for rows with times",
    ),
    "no such part of time": (lines(shops()), f"{SHOPS} --calendar year", "no 'year' here"),
    "a long season": (lines(shops()), f"{SHOPS} --season 5", "--season 5: give at most 4"),
    "a season longer than the series": (
        lines(shops(15)),
        f"{SHOPS} --history 9 --season 4 --split rest,6,6",
        "a series up to 3 in training: --season 4: give at most 2",
    ),
    "no season": (lines(shops()), f"{SHOPS} --season 0", "--season 0: give"),
    "no history": (lines(shops()), f"{SHOPS} --history 0", "at least 1 row for each"),
    "no horizon": (lines(shops()), f"{SHOPS} --horizon -3", "at least 1 row for each"),
    "a long horizon": (
        lines(shops()),
        f"{SHOPS} --horizon 7",
        "no window fits into the split validation, which has at most .*: --horizon: .*smaller --horizon",
    ),
    "a long horizon for the test": (
        lines(shops()),
        f"{SHOPS} --split rest,6,1",
        "no window fits into the split test, which has at most .*: --horizon",
    ),
    "a long history": (
        lines(shops()),
        f"{SHOPS} --history 30",
        "no window fits into the split train, which has at most .*: --history: .*smaller --history",
    ),
    "nothing is left": (lines(shops()), f"{SHOPS} --split rest,20,20", "the split train"),
    "fractions of the ends": (
        lines(shops()),
        f"{SHOPS} --split 0.7,0.2,0.1",
        "'0.7,0.2,0.1' is not a split by end: .*rest,48,48",
    ),
    "rows of which series": (
        lines(shops()),
        f"{SHOPS} --split-by time --split 80,20,20",
        "rows of which series.*--split-by end",
    ),
    "more series than there are": (
        lines(shops()),
        f"{SHOPS} --split-by series --split 2,1,1",
        "3 cannot be split into 2, 1, 1",
    ),
    "no series to train": (
        lines(shops()),
        f"{SHOPS} --split-by series --split 0,2,1",
        "3 cannot be split into 0, 2, 1",
    ),
    "the rest of what": (
        lines(shops()),
        f"{SHOPS} --split-by time --split rest,20,20",
        "'rest,20,20' is not a valid split",
    ),
    "a gap without a unit": (
        lines(shops()),
        f"{SHOPS} --max-gap 2",
        "no distance in time '2': --max-gap: use names like M30, H4, D2",
    ),
    "a gap that is too short": (
        lines({name: cells[::2] for name, cells in shops().items()}),
        f"{SHOPS} --max-gap H12 --horizon 9",
        "no window fits into the .* --horizon",
    ),
    "no rows": ("date,shop,sales\n", "--series shop", "a table without rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_is_one_line(name, tmp_path):
    content, flags, says = BAD[name]
    one_error(prepare(tmp_path, "forecast", written(tmp_path, content), flags), says)
    (tmp_path / "data").mkdir(exist_ok=True)
    assert files_of(tmp_path / "data") == {}


# ---- long gaps -----------------------------------------------------------------------------------


def test_a_flag_says_how_long_a_gap_may_be(tmp_path):
    table = shops()
    apart = {name: cells[:20] + cells[24:] for name, cells in table.items()}
    counts = []
    for flag in ("", "--max-gap D5", "--max-gap d4"):
        out = prepared(tmp_path, "forecast", lines(apart), f"{SHOPS} {flag}").out
        assert ("absent rows, across which windows run" in out) == (flag == "")
        counts.append(int(re.search(r"(\d+) train", out)[1]))
    # Of 24 training rows, the gap is before row 20: first targets 19 to 22 are left out.
    assert counts == [counts[0], counts[0], counts[0] - 4]


def test_no_window_crosses_a_long_gap(tmp_path):
    """Nights and weekends are none. The rows to forecast are never apart from their history."""
    module = PANEL.module("prepare.complete")
    panels = PANEL.module("prepare.reading")
    pieces = PANEL.module("prepare.pieces")
    grids = PANEL.module("prepare.grid")
    days = WORKDAYS.astype("M8[s]").astype(np.int64)
    days = np.delete(days, [20, 50, 51, 52, 53, 54, 101, 102])
    roles = panels.Roles("date", ["shop"], ["x"], [], [], ["x"], [])
    with PANEL.module("engine.loading.store").StoreWriter(tmp_path, "forecast") as writer:
        grid = grids.find_grid(days, np.array([len(days)]))
        completing = module.Completing(writer, tmp_path, roles, grid, horizon=3)
        completing.max_gap = 3 * DAY
        for name, first in (("a", 0), ("b", 40)):
            values = np.arange(len(days) - first, dtype=np.float32)[:, None]
            if name == "b":
                values[-2:] = np.nan  # to forecast, the last one after a gap
            times = days[first:].copy()
            times[-1] += 30 * DAY * (name == "b")
            completing.add(name, times, values)
        panel = completing.finish(["a", "b"])
        borders = pieces.borders_by_end(panel, [20, 0])
        cut = pieces.find_pieces(panel, borders)
        assert len(cut) == 4
        for split in ("train", "validation", "future", "every"):
            firsts, counts = pieces.first_targets(cut, split, 4, 3)
            found = []
            for first, count in zip(firsts, counts, strict=True):
                found += range(first, first + count)
            expected = []
            stops = np.append(panel.firsts[1:], len(panel.times))
            rows = [panel.firsts, borders[:, 1], panel.ends, stops]
            for begin, train, end, stop in zip(*rows, strict=True):
                for first in range(begin + 4, stop - 3 + 1):
                    is_in = {
                        "train": first + 3 <= train,
                        "validation": train <= first and first + 3 <= end,
                        "future": first == end,
                        "every": first <= end,
                    }[split]
                    window = panel.times[first - 4 : min(first + 3, end)].astype("M8[s]")
                    dates = window.astype("M8[D]")
                    if is_in and np.busday_count(dates[:-1], dates[1:]).max() <= 3:
                        expected.append(first)
            assert found == expected, split


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", ["date", "none"])
def test_memory_does_not_grow_with_the_rows(time, tmp_path, monkeypatch):
    """A view of a series would keep it, and an array of all rows is not made."""
    count = 400
    table = {
        "date": np.tile(DAYS[:1], count * 500).astype(np.int64)
        + np.repeat(DAY * np.arange(500), count),
        "shop": np.tile([f"s{number}" for number in range(count)], 500),
        "sales": np.arange(500.0 * count),
    }
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "t.parquet", row_group_size=4096)
    for name in ("tables.BLOCK_CELLS", "panel.CHUNK"):
        module, constant = name.split(".")
        monkeypatch.setattr(PANEL.module(f"prepare.{module}"), constant, 4096)
    monkeypatch.setattr(PANEL.module("prepare.grid"), "SAMPLE", 4096)
    drop = " --drop date" if time == "none" else ""
    flags = f"--series shop --time-column {time} --time-format s --history 9 --horizon 3{drop}"
    prepared(tmp_path / "imports", "forecast", lines(shops()), SHOPS)
    tracemalloc.start()
    result = prepare(tmp_path, "forecast", "t.parquet", flags)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.code == 0, result.err
    assert peak < 200_000 * 4  # bytes: of one column
