"""Runs of a script, and the same of a package: their data, flags and results."""

import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import stocks
import torch
from made_up import columns, lines, values
from PIL import Image
from rendering import render
from running import Result, Running, check_run, evaluations, last_checkpoint, losses

Before = Callable[[Any], None]


def script(workload: str = "timeseries") -> Path:
    return render(workload=workload, layout="script")


def nothing(train: Any) -> None:
    pass


def start_script(
    project: Path, *words: str, cwd: Path, before: Before = nothing, name: str = ""
) -> Running:
    """Start `python train.py WORDS` in a fork of this process, where torch is loaded.

    before: gets the module, to change it.
    """

    def child() -> None:
        sys.path.insert(0, str(project))
        sys.modules.pop("train", None)
        import train

        before(train)
        try:
            code = train.main(list(words))
        except SystemExit as end:  # of --help
            code = int(end.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return Running(project, words, cwd, child, name)


def run_script(project: Path, *words: str, cwd: Path, before: Before = nothing) -> Result:
    return start_script(project, *words, cwd=cwd, before=before).wait()


def at_step(number: int, act: Callable[[], None]) -> Before:
    """Do something inside a step (from 1) of this process."""

    def change(train: Any) -> None:
        update = train.Trainer.update
        count = 0

        def counted(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                act()
            return update(*arguments)

        train.Trainer.update = counted

    return change


def send(*numbers: int) -> Callable[[], None]:
    """Send signals to this process."""

    def act() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    return act


class Case(NamedTuple):
    """Data, flags of `prepare`, of the script and of the package."""

    write: Callable[[Path], None]
    prepare: str
    script: str
    package: str


def series(path: Path) -> None:
    """Some weeks of hours. A split of 15 % of them ends in a half, as in `table`."""
    load, price, _ = values(710).T.round(3)
    times = np.datetime64("2024-01-01T00") + np.arange(710)
    table: dict[str, Any] = {"date": times, "load": load, "price": price, "constant": [7] * 710}
    path.write_text(lines(table))


def shops(path: Path, days: int = 230, ahead: int = 0) -> None:
    """Days of some shops, sorted by date, and days to forecast. Some begin later, one is constant."""
    random = np.random.default_rng(0)
    rows = ["shop,date,visits,sales,promotion"]
    for day in np.arange(days):
        for shop in range(7):
            promotion = random.integers(5) // 4
            visits = 10 + 5 * (day % 7) + random.normal()
            sales = visits * 2**shop * (1 + promotion) if shop != 2 else 7
            if day >= 40 * shop:  # the last ones begin in the test split and after it
                date = np.datetime64("2024-01-01") + day
                cells = f"{visits:.2f},{sales:.3f}" if day < days - ahead else ","
                rows.append(f"{shop * 7 % 5}{shop},{date},{cells},{promotion}")
    path.write_text("\n".join(rows))


def prose(path: Path) -> None:
    """Some thousand words; the last block is shorter."""
    words = np.random.default_rng(0).choice(["the", "order", "of", "bytes", "is", "ä", "\n"], 3001)
    path.write_text(" ".join(words), encoding="utf-8")


def table(path: Path) -> None:
    """Numbers and one category, nothing missing."""
    path.write_text(lines({"constant": [5] * 910} | columns(910)))


def windows(path: Path) -> None:
    """Overlapping windows, each one row later than the one before."""
    table = np.random.default_rng(0).normal(3, 2, (600, 3)).cumsum(0).astype(np.float32)
    parts = np.lib.stride_tricks.sliding_window_view(table, 20, 0).transpose(0, 2, 1)
    with h5py.File(path, "w") as file:
        file["features"] = parts[:, :16]
        file["targets"] = parts[:, 16:, 0]


def panel(folder: Path) -> None:
    """Some stocks; one begins later, and one day of another one has no price."""
    table = stocks.prices(6, 230)
    later = stocks.csv_lines(table["bee"][60:], first=60)
    incomplete = re.sub(r"(?m)^(2020-02-17,[^,]+),[^,]+", r"\1,", stocks.csv_lines(table["cat"]))
    stocks.write_folder(folder, table, bee=later, cat=incomplete)


def pairs(path: Path) -> None:
    """Words and the same words backwards, of many lengths."""
    random_words = random.Random(0)
    lines = []
    for _ in range(300):
        words = random_words.choices(["one", "zwei", "três", "4"], k=random_words.randint(1, 12))
        lines.append(f"{' '.join(words)}\t{' '.join(words[::-1])}\n")
    text = "".join(dict.fromkeys(lines))
    path.write_text(text, encoding="utf-8")
    path.with_suffix(".tsv").write_text(text, encoding="utf-8")  # for `prepare`


def photos(folder: Path) -> None:
    """Images of three classes and several sizes; one is grey, and one half transparent."""
    random = np.random.default_rng(0)
    for number in range(320):
        kind = number % 3
        pixels = random.normal(60 + 60 * kind, 40, (14 + number % 5, 18, 3))
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        if number == 7:
            image = image.convert("L")
        if number == 8:
            image.putalpha(128)
        path = folder / f"class {kind}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)


CASES = {
    "vision": Case(
        photos,
        prepare="--input data.file --size 16",
        script="--size 16 --width 8 --batch_size 32 --shift 2 --crop 0.6 --cutout 0.2",
        package="--model.width 8 --data.batch_size 32 --augment.shift 2 --augment.crop 0.6"
        " --augment.cutout 0.2",
    ),
    "seq2seq": Case(
        pairs,
        prepare="--input data.tsv --split 0.7,0.15,0.15",  # whose ends are rounded as nowhere else
        script="--split 0.7,0.15,0.15 --batch_size 8 --layers 1 --heads 2 --width 16"
        " --head_width 32 --hidden 24",
        package="--data.batch_size 8 --model.layers 1 --model.heads 2 --model.width 16"
        " --model.hidden 24",
    ),
    "graph": Case(
        panel,
        prepare="--input data.file --window 10 --neighbors 3 --correlation-days 40"
        " --split 150,35,20",
        script="--window 10 --neighbors 3 --correlation_days 40 --split 150,35,20 --width 16",
        package="--model.width 16",
    ),
    "windows": Case(
        windows,
        prepare="--input data.file",
        script="--width 16 --batch_size 16 --shuffle_block 100 --chunk_size_gb 4e-5",
        package="--model.width 16 --data.batch_size 16 --data.order block --data.shuffle_block 100",
    ),
    "tabular": Case(
        table,
        prepare="--input data.file --target price --task regression",
        script="--width 32 --num_workers 1",
        package="--model.width 32",
    ),
    "timeseries": Case(
        series,
        prepare="--input data.file --history 24 --horizon 6",
        script="--history 24 --horizon 6 --width 16 --batch_size 16",
        package="--model.width 16 --data.batch_size 16",
    ),
    "forecast": Case(
        shops,
        prepare="--input data.file --series shop --targets sales --known promotion"
        " --history 14 --horizon 5",
        script="--series shop --targets sales --known promotion --history 14 --horizon 5"
        " --width 16 --batch_size 16",
        package="--model.width 16 --data.batch_size 16",
    ),
    "llm": Case(
        prose,
        prepare="--input data.file",
        script="--block_size 32 --batch_size 8 --layers 2 --heads 2 --width 32 --dropout 0.1",
        package="--data.block_size 32 --data.batch_size 8 --model.layers 2 --model.heads 2"
        " --model.width 32 --model.dropout 0.1",
    ),
}


def words_of(
    workload: str, steps: int, accumulation: int, precision: str = "fp32", every: int = 1
) -> list[str]:
    words = f"{CASES[workload].script} --data data.file --precision {precision} --max_steps {steps}"
    words += f" --gradient_accumulation_steps {accumulation} --log_every {every}"
    return f"{words} --evaluate_every 40 --save_every 15".split()


def of_script(
    workload: str, steps: int, accumulation: int, cwd: Path, before: Before = nothing, **more: Any
) -> Result:
    """Train the script in a new folder."""
    cwd.mkdir(exist_ok=True)
    CASES[workload].write(cwd / "data.file")
    words = words_of(workload, steps, accumulation, **more)
    return run_script(script(workload), *words, cwd=cwd, before=before)


def of_package(
    workload: str, steps: int, accumulation: int, cwd: Path, precision: str = "fp32", every: int = 1
) -> None:
    """Prepare the same data and train the package on them."""
    case = CASES[workload]
    project = render(workload=workload)
    cwd.mkdir()
    case.write(cwd / "data.file")
    words = f"{case.package} --training.max_steps {steps} --training.precision {precision}"
    words += f" --training.gradient_accumulation_steps {accumulation} --monitor.every_steps {every}"
    words += " --evaluation.every_steps 40"
    for command in (f"prepare {case.prepare}", f"train {words}"):
        check_run(project, *command.split(), cwd=cwd)


# Layers of a script by their names in the package, and what a script has outside of its model.
PACKAGE_NAMES = {"lstm": "encoder.lstm", "norm": "head.norm"}
SCALES = re.compile(r"(target_)?(mean|std)(_rows)?|gaps|offsets")


def weights(cwd: Path) -> dict[str, bytes]:
    return weights_in(last_checkpoint(cwd))


def weights_in(checkpoint: Path) -> dict[str, bytes]:
    """Of either layout, by their names in the package."""
    content = torch.load(checkpoint, weights_only=True)
    is_script = "best_step" in content
    by_name = {}
    for name, tensor in content["model"].items():
        layer, dot, parameter = name.partition(".")
        if is_script:
            layer = PACKAGE_NAMES.get(layer, layer)
        if not SCALES.fullmatch(name):
            by_name[layer + dot + parameter] = tensor.numpy().tobytes()
    return by_name


def result_of(cwd: Path) -> tuple[Any, Any, dict[str, bytes]]:
    return losses(cwd), evaluations(cwd), weights(cwd)
