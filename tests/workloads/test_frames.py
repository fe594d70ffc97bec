"""The extra `frames`: bars of several time frames, and no windows across gaps. No window sees a bar
before its end."""

import numpy as np
import pytest
import torch
from made_up import (
    GRID,
    contents,
    files_of,
    jittered,
    lines,
    prepare,
    prepared,
    series,
    store,
    values,
    written,
)
from rendering import render
from running import losses, one_error, run
from test_lanes import model
from test_timeseries import GOOD, SMALL, text, windows
from workload import Workload

FRAMES = Workload("timeseries+frames")
THREE = "--frames H1=24,H4=12,D1=5"


def of_split(folder, split):
    return windows(folder, split, FRAMES)


# ---- bars ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [407, 408])
def test_a_window_sees_no_open_bar(row, tmp_path):
    """Whatever changes from a row on, windows whose targets begin there or earlier have the same
    history.

    Row 407 is the last hour of both a bar of four hours and one of a day. Row 408 comes half an
    hour later, in the same bars: they close with it, not before.
    """
    before = values(600)
    after = before.copy()
    after[row:] += 1e3
    histories = []
    for name, table in (("before", before), ("after", after)):
        content = text(table).replace("18 00:00", "17 23:30")
        prepared(tmp_path / name, "timeseries+frames", content, f"{THREE} --split 0.5,0.5,0")
        first = store(tmp_path / name, "timeseries+frames").splits["validation"][0]
        histories.append(of_split(tmp_path / name, "validation")[: row - first + 1])
    assert len(histories[0]) == row - 299
    for one, other in zip(*histories, strict=True):
        for frame in ("H1", "H4", "D1"):
            assert one[frame].equal(other[frame])
    assert not histories[0][-1]["target"].equal(histories[1][-1]["target"])


def test_bars_are_as_a_slow_reading_makes_them(tmp_path):
    """Open, high, low, close and volume by their names; a bar at its hour, the newest one that has
    closed."""
    table = np.random.default_rng(3).normal(size=(500, 6))
    content = text(table, names="Open,High,Low,Close,Volume,Other")
    prepared(tmp_path, "timeseries+frames", content, "--frames H1=24,H4=24 --aggregate Other=max")
    table = table.astype(np.float32)
    reach = store(tmp_path, "timeseries+frames").arrays["windows"].rows()[0]
    for number, window in enumerate(of_split(tmp_path, "train")):
        known = reach + number  # rows 0 to known − 1 have closed
        first = known // 4 * 4 - 24 * 4
        bars = table[first : first + 24 * 4].reshape(24, 4, 6)
        expected = [
            bars[:, 0, 0],
            bars[:, :, 1].max(1),
            bars[:, :, 2].min(1),
            bars[:, -1, 3],
            bars[:, :, 4].sum(1),
            bars[:, :, 5].max(1),
        ]
        np.testing.assert_allclose(window["H4"][0], np.stack(expected, 1), rtol=1e-5, atol=1e-6)


def test_a_grid_with_jitter_is_that_grid(tmp_path):
    flags = "--frames M15=24,H1=24"
    out = prepared(tmp_path / "odd", "timeseries+frames", series(jittered()), flags).out
    assert "times jitter around a grid of 900 s" in out
    assert "gaps" not in out
    exact = prepared(tmp_path / "exact", "timeseries+frames", series(GRID), flags).out
    assert "grid" not in exact
    bars = [contents(tmp_path / name, "timeseries+frames")["H1"] for name in ("odd", "exact")]
    rows = min(map(len, bars))
    assert abs(len(bars[1]) - len(bars[0])) <= 4  # bytes: the last bar may close later
    assert bars[0][:rows] == bars[1][:rows]


@pytest.mark.parametrize("frames", ["M15=24,H1=24", "M30=24,H1=24,H4=24"])
@pytest.mark.parametrize("seed", range(3))
def test_no_window_sees_an_open_bar_of_jittered_times(frames, seed, tmp_path):
    """A value is the number of the last row in it: no frame knows a later one than the first."""
    times = jittered(seed, most=90)
    times[12:500:20] -= 700  # beyond the tolerance, into the bar before
    times[500::50] += 700
    content = lines({"date": list(times), "row": list(range(len(times)))})
    prepared(tmp_path, "timeseries+frames", content, f"--frames {frames} --horizon 1")
    names = [name.partition("=")[0] for name in frames.split(",")]
    for window in of_split(tmp_path, "train") + of_split(tmp_path, "validation"):
        known = window[names[0]].max()
        assert known < window["target"].min()
        for name in names[1:]:
            assert window[name].max() <= known
        assert window[names[1]].max() >= known - 8  # and no bar is forgotten


# ---- runs ----------------------------------------------------------------------------------------


def test_a_run_of_three_frames_trains_forecasts_and_is_refused_without_the_extra(tmp_path):
    prepared(tmp_path, "timeseries+frames", text(values()), THREE)
    FRAMES.done(*SMALL, cwd=tmp_path)
    assert FRAMES.evaluated(tmp_path)["metrics"]["mse"] > 0
    split = FRAMES.predicted(tmp_path)
    written(tmp_path, text(values()[:900]), "new.csv")
    new = FRAMES.predicted(tmp_path, "--input", "new.csv")
    is_first = (new["time"] == split["time"][0]) & (new["step"] == 1)
    same_windows = new["prediction"][is_first.argmax() :][:700]
    np.testing.assert_allclose(same_windows, split["prediction"][:700], rtol=1e-5, atol=1e-5)
    refused = run(render(workload="timeseries"), *SMALL, cwd=tmp_path)
    one_error(refused, "time frames: .*: add the extra `frames`")


def test_scales_come_from_bars_that_have_closed_before_the_training_border(tmp_path):
    noisy = values()
    noisy[700:] = 1e3
    facts = []
    for name, table in (("as_it_is", values()), ("noisy", noisy)):
        folder = tmp_path / name
        prepared(folder, "timeseries+frames", text(table), f"{THREE} --split 700,150,150")
        facts.append(store(folder, "timeseries+frames").facts)
    assert facts[0] == facts[1]


def test_data_of_one_frame_train_alike_with_and_without_the_extra(tmp_path):
    """The same file, the same initial weights: only names of layers differ."""
    for name, project in (("with", FRAMES.project()), ("without", render(workload="timeseries"))):
        prepared(tmp_path / name, FRAMES.name if name == "with" else "timeseries", text(values()))
        assert run(project, *SMALL, cwd=tmp_path / name).code == 0
    assert losses(tmp_path / "with") == losses(tmp_path / "without")


# ---- lanes through several frames ----------------------------------------------------------------


def test_only_frames_that_a_lane_passes_once_are_carried():
    generator = torch.Generator().manual_seed(1)
    batch = {name: torch.randn(4, 24, 3, generator=generator) for name in ("H1", "H4")}
    batch["target"] = torch.randn(4, 6, 2, generator=generator)
    batch |= {"present": torch.ones(4, dtype=torch.bool), "index": torch.arange(4)}
    project = render(workload="timeseries", extras=["frames", "lanes"])
    steps = {"H1": 3600, "H4": 14400}
    carrying = model("lanes", project, steps)
    loss = carrying(batch).loss
    assert carrying.recurrent.states[True][1].keys() == {"H1"}
    plain = model("full", project, steps)
    assert not hasattr(plain, "recurrent")
    assert torch.equal(loss, plain(batch).loss), "each lane starts here"


# ---- windows across gaps -------------------------------------------------------------------------

GAPS = np.delete(GRID, [*range(300, 310), *range(600, 602), *range(800, 840), *range(950, 960)])


def crosses(times, first, last, longest):
    return bool((np.diff(times[first:last]).astype(int) > longest).any())


@pytest.mark.parametrize("name", ["timeseries", "timeseries+frames"])
@pytest.mark.parametrize("jitter", [0, 40])
def test_windows_across_a_longer_gap_are_left_out_of_each_split(jitter, name, tmp_path):
    """Their values are the numbers of their rows."""
    times = GAPS + np.random.default_rng(0).integers(-jitter, jitter + 1, len(GAPS))
    content = lines({"date": list(times), "row": list(range(len(times)))})
    flags = "--max-gap H1 --split 700,100,138"
    out = prepared(tmp_path, name, content, flags).out
    borders = store(tmp_path, name).splits
    counts = []
    for split, (first, last) in borders.items():
        expected = []
        for row in range(max(first, 24), last - 6 + 1):
            if not crosses(times, row - 24, row + 6, 3600 + 180):
                expected.append(row)
        read = windows(tmp_path, split, Workload(name))
        assert [int(window["target"][0, 0, 0]) for window in read] == expected
        for window in read:
            rows = [*window["rows"][0, :, 0].tolist(), *window["target"][0, :, 0].tolist()]
            assert np.diff(rows).tolist() == [1] * 29
        counts.append(f"{len(expected)} {split}")
    assert f"windows:    {', '.join(counts)}" in out
    assert "windows left out, across gaps longer than H1: 87" in out


@pytest.mark.parametrize("name", ["timeseries", "timeseries+frames"])
def test_a_run_without_windows_across_gaps_trains_evaluates_and_forecasts(name, tmp_path):
    workload = Workload(name)
    prepared(tmp_path, name, series(GAPS), "--max-gap H1 --split 700,100,138")
    workload.done(*SMALL, cwd=tmp_path)
    baseline = workload.evaluated(tmp_path)["baseline_loss"]
    table = values(len(GAPS))[:, 0].astype(np.float32)
    seconds = GAPS.astype(np.int64)
    first_times = workload.predicted(tmp_path)["time"][::6].astype(np.int64)
    rows = np.searchsorted(seconds, first_times) - 1
    errors = [table[rows + ahead] - table[rows] for ahead in range(1, 7)]
    std = store(tmp_path, name).facts["target_std"][0][0]
    assert baseline == pytest.approx(np.abs(errors).mean() / std, rel=1e-4)

    written(tmp_path, series(GAPS[200:400]), "new.csv")
    new = workload.predicted(tmp_path, "--input", "new.csv")["time"][::6].astype(np.int64)
    next_row = seconds[399] + seconds[1] - seconds[0]
    assert new.tolist() == [*seconds[200 + 24 : 301], *seconds[300 + 24 : 400], next_row]
    written(tmp_path, series(GAPS[285:315]), "new.csv")
    says = "no window fits into the 30 rows of the split input"
    one_error(workload.run("predict", "--input", "new.csv", cwd=tmp_path), says)
    with_lanes = render(workload="timeseries", extras=["lanes", *name.split("+")[1:]])
    words = (*SMALL, "--data.order", "lanes")
    one_error(run(with_lanes, *words, cwd=tmp_path), "lanes .*--max-gap.*data.order")


# ---- bad input -----------------------------------------------------------------------------------

# name: flags, the error
BAD: dict[str, tuple[str, str]] = {
    "frames in another order": ("--frames H4=9,H1=9", "H1: .*finest first"),
    "too fine a frame": ("--frames M30=9", "M30: .*multiples of 3600 s"),
    "no frame": ("--frames X1=9", "no time frame 'X1'"),
    "no gap": ("--max-gap 2h", "no time frame '2h': --frames, --max-gap"),
    "each row is behind a gap": ("--max-gap M5", "no window fits into the 700 rows of the split"),
    "no number": ("--frames H1=24,H4", "--frames: invalid numbers value: 'H1=24,H4'"),
    "a history of no frame": ("--history 9 --frames=H1=24", "not allowed with argument --"),
    "no history": ("--frames H1=0,H4=1", "no window without rows: --history"),
    "too long a history": (
        "--frames H1=24,D1=900",
        "no window fits into the 700 rows of the split train",
    ),
    "no rule": ("--frames H1=24,D1=5 --aggregate wave=mean", "no rule 'mean'"),
    "another column": ("--frames H1=24,D1=5 --aggregate wav=max", "no column 'wav'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_frames_are_one_line_and_leave_the_data_that_were_there(name, tmp_path):
    flags, says = BAD[name]
    written(tmp_path / "data", "{}", "manifest.json")
    path = written(tmp_path, GOOD)
    one_error(prepare(tmp_path, "timeseries+frames", path, flags), says)
    assert files_of(tmp_path / "data") == {"manifest.json": b"{}"}
