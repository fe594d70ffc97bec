"""The workload `windows`: HDF5 as it lies, what is wrong with others' files, checksums,
ChunkDataLoader."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from made_up import files_of, prepare, values
from running import flip_bit, losses, one_error, run
from workload import Workload

PREPARE = ("prepare", "--input", "windows.h5")
SMALL = (
    "train",
    *("--model.width", "8", "--data.batch_size", "32", "--training.max_steps", "20"),
    *("--schedule.warmup_steps", "2", "--monitor.every_steps", "1"),
    *("--evaluation.every_steps", "20"),
)


WINDOWS = Workload("windows")
project = WINDOWS.project
module = WINDOWS.module


def done(folder, *words):
    return WINDOWS.done(*words, cwd=folder).out


def refused(folder, *words):
    """What a command said that must fail."""
    return WINDOWS.run(*words, cwd=folder)


def store(folder):
    return WINDOWS.store(folder / "data")


def batches(folder, split):
    """Every window of a split, one by one, through a loader."""
    flags = ("--data.order", "time", "--data.batch_size", "1")
    return WINDOWS.batches(store(folder), split, *flags, loader="chunk")


# ---- HDF5 as it is -------------------------------------------------------------------------------


def hdf5(folder, count=400, **datasets):
    """A file of windows that overlap by all but 2 steps, with targets 3 steps ahead; `datasets`
    replace."""
    folder.mkdir(parents=True, exist_ok=True)
    series = values(2 * count + 30).astype(np.float32)
    contents = {
        "features": np.stack([series[2 * row : 2 * row + 16] for row in range(count)]),
        "targets": np.stack([series[2 * row + 16 : 2 * row + 19, 0] for row in range(count)]),
    } | datasets
    with h5py.File(folder / "windows.h5", "w") as file:
        for name, content in contents.items():
            if isinstance(content, dict):
                file.create_dataset(name, **content)
            elif content is not None:
                file[name] = content
    return folder / "windows.h5"


def test_hdf5_is_read_as_it_is(tmp_path):
    path = hdf5(tmp_path)
    out = done(tmp_path, *PREPARE, "--split", "280,60,60")
    assert "9 windows before each border" in out  # (16 + 3) ÷ 2, rounded up, less 1
    opened = store(tmp_path)
    assert opened.arrays["features"].path == path
    assert opened.splits == {"train": [0, 271], "validation": [280, 331], "test": [340, 400]}
    assert sum(file.stat().st_size for file in (tmp_path / "data").iterdir()) < 20_000
    with h5py.File(path) as file:
        for number, window in enumerate(batches(tmp_path, "test")):
            assert window["features"][0].equal(torch.from_numpy(file["features"][340 + number]))
            assert window["target"][0].equal(torch.from_numpy(file["targets"][340 + number]))
        train = file["features"][:271].reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(opened.facts["mean"], train.mean(0), rtol=1e-9)
    np.testing.assert_allclose(opened.facts["std"], train.std(0), rtol=1e-9)
    done(tmp_path, *SMALL)
    assert "r2" in done(tmp_path, "evaluate")
    done(tmp_path, "predict", "--input", "windows.h5", "--output", "new.npz")
    assert np.load(tmp_path / "new.npz")["prediction"].shape == (400, 3)
    hdf5(tmp_path, features=np.ones((400, 15, 3)))
    new = refused(tmp_path, "predict", "--input", "windows.h5")
    one_error(new, "windows of \\(15, 3\\), but \\(16, 3\\) in the training data")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder with a run on values that lie one behind the other."""
    folder = tmp_path_factory.mktemp("plain")
    hdf5(folder)
    assert "note: " not in done(folder, *PREPARE)
    done(folder, *SMALL)
    return folder


@pytest.mark.parametrize(
    "layout",
    [
        {"chunks": (7, 16, 3)},
        {"chunks": (4, 8, 3)},
        {"chunks": True, "compression": "gzip"},
        {"dtype": ">f4"},
    ],
    ids=["whole rows", "pieces", "gzip", "big-endian"],
)
def test_packed_hdf5_trains_alike_with_a_note_of_its_cost(layout, plain, tmp_path):
    with h5py.File(plain / "windows.h5") as file:
        packed = {"features": {"data": file["features"][:], **layout}}
        if "compression" in layout:
            packed["targets"] = {"data": file["targets"][:], **layout}
        hdf5(tmp_path, **packed)
    is_slow = layout.get("chunks") != (7, 16, 3)  # whole rows are read as they are
    assert ("note: " in done(tmp_path, *PREPARE)) == is_slow
    done(tmp_path, *SMALL)
    assert "r2" in done(tmp_path, "evaluate")
    assert losses(tmp_path) == losses(plain)
    (tmp_path / "config.yaml").unlink()  # it has a setting of the chunk loader
    mapped = run(project(loader="memmap"), *SMALL, cwd=tmp_path)
    one_error(mapped, "cannot be mapped", "windows.h5", "loader chunk")


# ---- reversed axes -------------------------------------------------------------------------------


def as_matlab(path, features, targets, header=True, **layout):
    """A file as MATLAB 7.3 writes these arrays, with its header or without."""
    with h5py.File(path, "w", userblock_size=512 if header else 0) as file:
        file.create_dataset("features", data=features.T, **layout)
        file.create_dataset("targets", data=targets.T, **layout)
    if header:
        with open(path, "r+b") as raw:
            raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")


def test_reversed_axes_are_refused_or_transposed(plain, tmp_path, monkeypatch):
    """MATLAB's header or the shapes tell them. A transposed copy trains as the plain file."""
    with h5py.File(plain / "windows.h5") as file:
        features = file["features"][:].astype(np.float64)
        targets = file["targets"][:].astype(np.float64)
    path = tmp_path / "windows.h5"
    for header in (True, False):
        # As many targets as columns, or other numbers of both; fewer rows than columns.
        short = features[:, :2]
        as_matlab(path, short if header else features, targets, header)
        one_error(prepare(tmp_path, "windows", "windows.h5"), "last axis of .*with --transpose")
        with pytest.raises(module("engine.errors").UserError, match="last axis"):
            chunk_loader(path)
        as_matlab(path, features, targets[:, :1], header)
        one_error(prepare(tmp_path, "windows", "windows.h5"), "last axis of .*with --transpose")
    as_matlab(path, features.T, targets.T)  # samples were MATLAB's last axis
    assert prepare(tmp_path, "windows", "windows.h5").code == 0
    # Few samples of many columns, which look reversed but are not.
    with h5py.File(path, "w") as file:
        file["features"] = np.random.default_rng(0).normal(size=(20, 24, 21))
        file["targets"] = np.ones((20, 21))
    one_error(prepare(tmp_path, "windows", "windows.h5"), "last axis .*with --no-transpose")
    few = prepare(tmp_path, "windows", "windows.h5", "--no-transpose --purge 0")
    assert "features:   20 windows × 24 rows × 21 features" in few.out

    as_matlab(path, features, targets, chunks=True, compression="gzip")
    monkeypatch.setattr(module("dataset"), "BLOCK_BYTES", 16 * 3 * 8 * 33)  # blocks of 33 windows
    result = prepare(tmp_path, "windows", "windows.h5", "--transpose")
    assert result.code == 0, result.err
    assert "note: " not in result.out
    done(tmp_path, *SMALL)
    assert losses(tmp_path) == losses(plain)
    # `predict` reads new files in the same way, unless a flag says otherwise.
    done(tmp_path, "predict", "--input", "windows.h5", "--output", "new.npz")
    (tmp_path / "plain.h5").write_bytes((plain / "windows.h5").read_bytes())
    words = ("predict", "--input", "plain.h5")
    one_error(refused(tmp_path, *words), r"windows of \(16, 400\), but \(16, 3\) .*--no-transpose")
    done(tmp_path, *words, "--no-transpose", "--output", "same.npz")
    forecasts = [np.load(tmp_path / name)["prediction"] for name in ("new.npz", "same.npz")]
    np.testing.assert_array_equal(*forecasts)


def test_the_summary_shows_axes_samples_and_what_is_left_out(tmp_path):
    path = hdf5(tmp_path)
    result = prepare(tmp_path, "windows", "windows.h5", "--split 200,60,60")
    with h5py.File(path) as file:
        last = f"{file['targets'][399, 2]:.4f}".rstrip("0")
    for line in (
        "features:   400 windows × 16 rows × 3 features, float32",
        "targets:    400 windows × 3 targets, float32",
        "window 0: 16 rows of 3 features → 3 targets: [",
        "window 200: 16 rows of 3 features → 3 targets: [",
        "window 399: 16 rows of 3 features → 3 targets: [",
        "9 windows before each border, which overlap with those after it; 80 after the last split",
    ):
        assert line in result.out
    (line,) = [line for line in result.out.splitlines() if line.startswith("window 399")]
    assert line.endswith(f"{last}]")


BAD_HDF5 = {
    "missing dataset": (
        {"features": None, "series": np.ones(3)},
        ["no dataset 'features'", "it has series, targets"],
    ),
    "unequal": (
        {"targets": np.ones((7, 3))},
        ["unequal numbers of rows: 'features' 400, 'targets' 7"],
    ),
    "dtype": ({"features": np.array([b"x"] * 400)}, ["cannot train on dtype"]),
    "shape": ({"features": np.ones((400, 3))}, ["shape \\(400, 3\\) where \\(N, T, F\\)"]),
    "not finite": (
        {"targets": np.where(np.arange(1200).reshape(400, 3) == 30, np.nan, 1)},
        ["not finite", "rows 10 to 10"],
    ),
    "in a group": (
        {"features": None, "targets": None, "train/x": np.ones(3)},
        ["it has train, train/x: name two with --datasets"],
    ),
    "other names": (
        {"features": None, "targets": None, "X": np.ones(3), "y": np.ones(3)},
        ["it has X, y: name two with --datasets"],
    ),
    "one target": (
        {"targets": np.ones(400)},
        [r"shape \(400,\) where \(N, H\) .*'targets': write the targets as \(N, H\)"],
    ),
    "beyond float32": (
        {"targets": 1e9 + np.arange(1200.0).reshape(400, 3) % 7},
        ["float32 rounds .*targets, column 0: subtract a constant"],
    ),
}


@pytest.mark.parametrize("name", BAD_HDF5)
def test_bad_hdf5_is_one_line(name, tmp_path):
    datasets, parts = BAD_HDF5[name]
    hdf5(tmp_path, **datasets)
    one_error(refused(tmp_path, *PREPARE), *parts)


def made_up_rows(file, name):
    """Put features into the file that HDF5 or netCDF would complete, scale or take elsewhere."""
    data = np.random.default_rng(0).normal(5, 1, (400, 16, 3)).astype(np.float32)
    shape = data.shape
    if name == "never":
        file.create_dataset("features", (10**12, 16, 3), "f4", chunks=(7, 16, 3))
    elif name == "never, at the end":
        file.create_dataset("features", shape, "f4", chunks=(10, 8, 3), compression="gzip")
        file["features"][:390] = data[:390]
    elif name == "in a circle":
        file["features"] = h5py.SoftLink("/other")
        file["other"] = h5py.SoftLink("/features")
    elif name == "virtual":
        file["parts"] = data
        layout = h5py.VirtualLayout(shape, "f4")
        layout[:] = h5py.VirtualSource(".", "parts", shape)
        file.create_virtual_dataset("features", layout)
    elif name == "fill value":
        file.create_dataset("features", shape, "f4", fillvalue=9.96921e36)
        file["features"][:300] = data[:300]
    else:
        file["features"] = data
        marked = {"_FillValue": -9.99, "missing_value": np.array([-1.0, -9.99], "f4")}
        if name in marked:
            file["features"][77, 3, 1] = -9.99
        attributes = {"scale_factor": 0.1, "add_offset": np.array([273.15]), "_Unsigned": "true"}
        file["features"].attrs[name] = (marked | attributes)[name]


MADE_UP_ROWS = {
    "never": "never written",
    "never, at the end": "never written",
    "in a circle": "too many links",
    "virtual": "in another file or dataset",
    "fill value": "the value 9.96.* in column 0 is missing .*features rows 300",
    "_FillValue": "the value -9.99.* in column 1 is missing .*features rows 77",
    "missing_value": "the value -9.99.* in column 1 is missing .*features rows 77",
    "scale_factor": "packed, by the attribute scale_factor",
    "add_offset": "packed, by the attribute add_offset",
    "_Unsigned": "packed, by the attribute _Unsigned",
}


def test_values_that_hdf5_would_make_up_are_refused(tmp_path):
    for name, says in MADE_UP_ROWS.items():
        with h5py.File(hdf5(tmp_path, features=None), "a") as file:
            made_up_rows(file, name)
        one_error(prepare(tmp_path, "windows", "windows.h5"), says, "windows.h5")
    assert not list(tmp_path.glob("data/*.json"))

    # Attributes that change nothing, and rows of zeros, which may be values.
    with h5py.File(hdf5(tmp_path), "a") as file:
        file["features"].attrs.update({"scale_factor": 1.0, "_FillValue": np.float32(1e20)})
        file["features"][300:] = 0
    result = prepare(tmp_path, "windows", "windows.h5")
    assert result.code == 0, result.err
    assert "note: 100 rows of features have no value but 0" in result.out


def test_a_file_that_is_no_hdf5_cut_missing_or_locked_is_one_line(tmp_path):
    one_error(refused(tmp_path, *PREPARE), "no such file")
    one_error(refused(tmp_path, "prepare", "--input", "."), "a folder, not a file: .: name one")
    path = hdf5(tmp_path)
    writer = "import h5py, sys; file = h5py.File(sys.argv[1], 'a')"
    writer += "; print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", writer, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        one_error(refused(tmp_path, *PREPARE), "unable to lock file", "no other process")
    path.write_bytes(path.read_bytes()[:20_000])
    one_error(refused(tmp_path, *PREPARE), "truncated")
    path.write_text("date,a\n1,2\n")
    one_error(refused(tmp_path, *PREPARE), "signature not found", "HDF5 file")


def test_values_in_another_file_are_one_line(tmp_path):
    path = hdf5(tmp_path)
    path.rename(tmp_path / "real.h5")
    with h5py.File(path, "w") as file:
        file["features"] = h5py.ExternalLink("real.h5", "features")
    one_error(refused(tmp_path, *PREPARE), "its values are in another file .*'features'")


def test_halves_take_half_the_space(tmp_path):
    for name, flags in (("whole", ()), ("half", ("--dtype", "float16"))):
        hdf5(tmp_path / name)
        done(tmp_path / name, *PREPARE, *flags)
    whole = store(tmp_path / "whole")
    half = store(tmp_path / "half")
    assert half.arrays["features"].row_bytes * 2 == whole.arrays["features"].row_bytes
    one, other = (batches(tmp_path / name, "test")[5] for name in ("whole", "half"))
    margin = 4e-3 * max(whole.facts["std"])
    np.testing.assert_allclose(other["features"], one["features"], atol=margin)
    assert other["target"].equal(one["target"])
    done(tmp_path / "half", *SMALL)


def test_a_refused_purge_leaves_the_data_that_were_there(tmp_path):
    hdf5(tmp_path)
    done(tmp_path, *PREPARE)
    before = files_of(tmp_path / "data")
    for purge, says in (("999", "no train window is left"), ("-1", "-1 windows cannot be left")):
        one_error(refused(tmp_path, *PREPARE, "--purge", purge), says, "--purge")
    assert files_of(tmp_path / "data") == before


# ---- checksums -----------------------------------------------------------------------------------


def test_a_flipped_bit_is_found_and_named(tmp_path):
    path = hdf5(tmp_path)
    done(tmp_path, *PREPARE)
    flip_bit(path, store(tmp_path).arrays["features"].offset + 100)
    says = r"damaged: .*windows\.h5: copy"
    one_error(refused(tmp_path, *SMALL), says)


# ---- ChunkDataLoader -----------------------------------------------------------------------------


def chunk_loader(path, **given):
    return module("engine.loading.loader").ChunkDataLoader(path, 32, device="cpu", **given)


@pytest.mark.parametrize("size", ["auto", 40e-6])
def test_chunk_data_loader_by_itself(size, tmp_path):
    path = hdf5(tmp_path)
    with chunk_loader(path, chunk_size_gb=size) as loader:
        batches_of_epoch = list(loader)
        assert len(loader) == len(batches_of_epoch) == 13
    with h5py.File(path) as file:
        for place, name in enumerate(("features", "targets")):
            whole = torch.cat([batch[place] for batch in batches_of_epoch])
            assert whole.equal(torch.from_numpy(file[name][:]))


def test_chunk_data_loader_tells_its_sizes_and_a_missing_gpu(tmp_path):
    path = hdf5(tmp_path)
    for size, batches_of_chunk in (("auto", 13), (1e-6, 1), (80e-6, 3)):
        with chunk_loader(path, chunk_size_gb=size) as loader:
            assert (loader.num_samples, loader.sequence_length, loader.feature_count) == (
                400,
                16,
                3,
            )
            ranges = loader.chunk_ranges
            assert ranges[0] == (0, min(32 * batches_of_chunk, 400))
            assert [last for _, last in ranges[:-1]] == [first for first, _ in ranges[1:]]
            assert ranges[-1][1] == 400
            assert sum(len(targets) for _, targets in loader) == 400
    with chunk_loader(path, datasets=("targets",)) as loader:
        assert (loader.sequence_length, loader.feature_count) == (1, 3)
    count = torch.cuda.device_count()
    with pytest.raises(module("engine.errors").UserError, match=f"GPU here: device cuda:{count}: "):
        module("engine.loading.loader").ChunkDataLoader(path, device=f"cuda:{count}")


def test_chunk_data_loader_resumes_with_the_next_batch(tmp_path):
    path = hdf5(tmp_path)
    options = {"shuffle": True, "drop_last": True}
    with chunk_loader(path, **options) as loader:
        whole = [targets for _ in range(2) for _, targets in loader]
    assert not whole[0].equal(whole[12])
    with chunk_loader(path, **options) as loader:
        stream = iter(loader)
        parts = [next(stream)[1] for _ in range(5)]
        state = loader.state_dict()
    with chunk_loader(path, **options) as loader:
        loader.load_state_dict(state)
        parts += [targets for _ in range(2) for _, targets in loader]
    assert len(parts) == len(whole) == 24
    assert torch.cat(parts).equal(torch.cat(whole))


# ---- the guide -----------------------------------------------------------------------------------


@pytest.mark.full
def test_documented_commands_run_and_learn(tmp_path):
    evaluation = WINDOWS.follow("windows", tmp_path)
    assert evaluation["metrics"]["r2"] > 0.5
    assert np.load(tmp_path / "forecast.npz")["prediction"].shape == (8000, 6)
