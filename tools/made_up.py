"""Made-up tables, and `prepare` in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from importing import imported
from rendering import render
from running import Result

ROWS = 200
WORDS = {
    "tabular": "--target price --task regression",
    "timeseries": "--history 24 --horizon 6",
    "forecast": "--history 24 --horizon 6",
}


def project_of(workload: str, **answers: str) -> Path:
    """Render a workload. `timeseries+frames` is one with an extra."""
    name, *extras = workload.split("+")
    return (
        render(workload=name, extras=extras, **answers)
        if extras
        else render(workload=name, **answers)
    )


def prepare(folder: Path, workload: str, path: str, flags: str = "", data: str = "data") -> Result:
    """What `prepare --input path` did; flags with spaces between."""
    main = imported(project_of(workload), "__main__").main
    given = f"{WORDS.get(workload.partition('+')[0], '')} {flags}"
    if "--frames" in flags:
        given = given.replace("--history 24", "", 1)
    words = ["prepare", "--input", path, "--data.path", data, *given.split()]
    out = io.StringIO()
    err = io.StringIO()
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        Path("config.yaml").touch()
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return Result(code, out.getvalue(), err.getvalue())


def prepared(folder: Path, workload: str, content: str | bytes, flags: str = "") -> Result:
    """The same for a CSV of this content, which must succeed."""
    result = prepare(folder, workload, written(folder, content), flags)
    assert result.code == 0, result.err
    return result


def written(folder: Path, content: str | bytes, name: str = "table.csv") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(content)
    return name


def store(folder: Path, workload: str, data: str = "data") -> Any:
    return imported(project_of(workload), "engine.loading.store").Store.open(folder / data)


def contents(folder: Path, workload: str, data: str = "data") -> dict[str, Any]:
    """Facts, borders and the bytes of every array."""
    opened = store(folder, workload, data)
    arrays = {name: array.rows().tobytes() for name, array in opened.arrays.items()}
    return {**arrays, "facts": opened.facts, "splits": opened.splits}


def files_of(folder: Path) -> dict[str, bytes]:
    """Except for the lock, which names a process."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files.pop(".lock", None)
    return files


def values(count: int = 1000) -> np.ndarray:
    """(count, 3): a daily wave, a random walk, noise."""
    random = np.random.default_rng(0)
    wave = 20 + 5 * np.sin(2 * np.pi * np.arange(count) / 24) + random.normal(0, 0.3, count)
    return np.stack([wave, random.normal(0, 1, count).cumsum(), random.normal(0, 1, count)], 1)


def columns(count: int = ROWS, **others: list) -> dict[str, list]:
    """Two numbers, a category, and a price that depends on them."""
    random = np.random.default_rng(0)
    size = random.normal(100, 20, count).round(3)
    age = random.normal(50, 9, count).round(2)
    colour = random.choice(["red", "green", "blue"], count)
    price = 3 * size + age + 50 * (colour == "red")
    table: dict[str, list] = {
        "size": size.tolist(),
        "age": age.tolist(),
        "colour": colour.tolist(),
        "price": price.round(3).tolist(),
    }
    return table | others


def lines(table: dict[str, list], mark: str = ",") -> str:
    rows = zip(*table.values(), strict=True)
    return "".join(mark.join(map(str, row)) + "\n" for row in [table, *rows])


def with_column(**more: list) -> str:
    return lines(columns() | more)


def with_cell(name: str, cell: str, row: int = 7) -> str:
    """The table with another cell; rows count from 1."""
    table = columns()
    table[name][row - 1] = cell
    return lines(table)


QUARTER = 900
START = np.datetime64("2024-01-01T00:00:00")
GRID = START + QUARTER * np.arange(1000)


def jittered(seed: int = 0, most: int = 40) -> np.ndarray:
    return GRID + np.random.default_rng(seed).integers(-most, most + 1, len(GRID))


def series(times: Any) -> str:
    """Rows of these times, whose values are random."""
    return lines({"date": list(times), "a": values(len(times))[:, 0].tolist()})
