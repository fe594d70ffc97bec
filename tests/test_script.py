"""`layout: script`: one file, which is the engine's executable specification.

Its losses, evaluations and weights are the package's, bit for bit, on the data that `prepare`
reads.
"""

import functools
import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from forking import run_pytest
from rendering import REPOSITORY, render, render_into, replace
from running import (
    Result,
    Running,
    check_run,
    evaluation_of,
    evaluations,
    flip_bit,
    last_checkpoint,
    losses,
    newest_run,
    one_error,
    rows,
    run,
)
from variants import SCRIPTS, scripts

every_script = pytest.mark.parametrize("workload", SCRIPTS)
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


# --- the same run as script and as package


class Case(NamedTuple):
    """Data, flags of `prepare`, of the script and of the package."""

    write: Callable[[Path], None]
    prepare: str
    script: str
    package: str


def series(path: Path) -> None:
    """Some weeks of hours."""
    noise = np.random.default_rng(0)
    hours = np.arange(700)
    load = 50 + 8 * np.sin(2 * np.pi * hours / 24) + noise.normal(0, 1, len(hours))
    price = 0.6 * load + noise.normal(0, 1, len(hours))
    times = np.datetime64("2024-01-01T00") + hours
    lines = [f"{times[hour]},{load[hour]:.3f},{price[hour]:.3f},7\n" for hour in hours]
    path.write_text("".join(["date,load,price,constant\n", *lines]))


def prose(path: Path) -> None:
    """Some thousand words; the last block is shorter."""
    words = np.random.default_rng(0).choice(["the", "order", "of", "bytes", "is", "ä", "\n"], 3001)
    path.write_text(" ".join(words), encoding="utf-8")


def table(path: Path) -> None:
    """Numbers and one category, nothing missing."""
    noise = np.random.default_rng(0)
    soil = noise.integers(0, 12, 900)
    a = noise.normal(3, 2, 900)
    b = noise.normal(0, 1, 900)
    target = 2 * a + b * (soil % 3) + noise.normal(0, 0.1, 900)
    lines = []
    for row in range(900):
        lines.append(f"{a[row]:.4f},k{soil[row]},{b[row]:.4f},5,{target[row]:.4f}\n")
    path.write_text("".join(["a,soil,b,constant,target\n", *lines]))


def windows(path: Path) -> None:
    """Overlapping windows, each one row later than the one before."""
    table = np.random.default_rng(0).normal(3, 2, (600, 3)).cumsum(0).astype(np.float32)
    parts = np.lib.stride_tricks.sliding_window_view(table, 20, 0).transpose(0, 2, 1)
    with h5py.File(path, "w") as file:
        file["features"] = parts[:, :16]
        file["targets"] = parts[:, 16:, 0]


def panel(folder: Path) -> None:
    """Some stocks; one begins later, and one day of another one has no price."""
    noise = np.random.default_rng(0)
    days = np.datetime64("2024-01-01") + np.arange(230)
    market = noise.normal(0, 0.01, 230)
    folder.mkdir()
    for number in range(6):
        close = 50 * np.exp(np.cumsum(market + noise.normal(0, 0.01, 230)))
        lines = ["date,open,high,low,close,volume\n"]
        for day in range(60 * (number == 2), 230):
            price = close[day]
            row = [price * 0.99, price * 1.02, price * 0.98, price, 1000 + day]
            cells = [f"{value:.4f}" for value in row]
            if (number, day) == (4, 33):
                cells[1] = ""
            lines.append(",".join([str(days[day]), *cells]) + "\n")
        (folder / f"S{number}.csv").write_text("".join(lines))


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


CASES = {
    "seq2seq": Case(
        pairs,
        prepare="--input data.tsv --split 180,40,40",
        script="--split 180,40,40 --batch_size 8 --layers 1 --heads 2 --width 16 --head_width 32"
        " --hidden 24",
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
        prepare="--input data.file --target target --task regression",
        script="--width 32 --num_workers 1",
        package="--model.width 32",
    ),
    "timeseries": Case(
        series,
        prepare="--input data.file --history 24 --horizon 6",
        script="--history 24 --horizon 6 --width 16 --batch_size 16",
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


SHARED = ("step", "split", "epoch", "loss", "learning_rate", "gradient_norm")
MEASURED = ("mse", "mae", "bits_per_byte", "accuracy", "log_loss")


def curves(cwd: Path) -> list[dict[str, Any]]:
    """The records that both write. The package measures the test split by `evaluate` alone."""
    records = []
    for record in rows(cwd):
        if record.get("split") != "test":
            names = [name for name in (*SHARED, *MEASURED) if name in record]
            records.append({name: record[name] for name in names})
    return records


# Layers of a script by their names in the package, and what a script has outside of its model.
PACKAGE_NAMES = {"lstm": "encoder.lstm", "norm": "head.norm"}
SCALES = re.compile(r"(target_)?(mean|std)(_rows)?|gaps|offsets")


def weights(cwd: Path) -> dict[str, bytes]:
    """Of the last checkpoint, by their names in the package."""
    newest = last_checkpoint(cwd)
    tensors = torch.load(newest, weights_only=True)
    if "best_step" in tensors:
        return script_weights(newest)
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in tensors["model"].items()
        if not SCALES.fullmatch(name)
    }


def script_weights(checkpoint: Path) -> dict[str, bytes]:
    content = {}
    for name, tensor in torch.load(checkpoint, weights_only=True)["model"].items():
        layer, dot, parameter = name.partition(".")
        content[PACKAGE_NAMES.get(layer, layer) + dot + parameter] = tensor.numpy().tobytes()
    return content


@pytest.mark.cover(1)
@every_script
@pytest.mark.parametrize("accumulation", [1, 3])
def test_losses_evaluations_and_weights_are_those_of_the_package(workload, accumulation, tmp_path):
    package = tmp_path / "package"
    of_package(workload, 100, accumulation, package)
    assert of_script(workload, 100, accumulation, tmp_path / "script").code == 0
    records = curves(tmp_path / "script")
    assert [len(losses(tmp_path / "script")), len(records)] == [100, 103]
    assert records == curves(package)
    assert weights(tmp_path / "script") == weights(package)
    check_run(render(workload=workload), "evaluate", "--split", "test", cwd=package)
    measured = evaluation_of(package)["metrics"]
    *_, test = rows(tmp_path / "script")
    assert (test["split"], test["loss"]) == ("test", measured["loss"])


@every_script
@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.full), "fp16"])
def test_half_precision_is_that_of_the_package(workload, precision, tmp_path):
    """And so are records of several steps, which are means of all of their losses."""
    of_package(workload, 20, 3, tmp_path / "package", precision, 7)
    assert of_script(workload, 20, 3, tmp_path / "script", every=7, precision=precision).code == 0
    assert curves(tmp_path / "script") == curves(tmp_path / "package")
    assert weights(tmp_path / "script") == weights(tmp_path / "package")


@pytest.mark.full
def test_the_standard_librarys_text_is_that_of_the_package(tmp_path):
    words = ["--data.batch_size", "16", "--training.max_steps", "5", "--monitor.every_steps", "1"]
    check_run(render(workload="llm"), "train", *words, cwd=tmp_path / "package")
    words = ["--batch_size", "16", "--max_steps", "5", "--log_every", "1"]
    assert run_script(script("llm"), *words, cwd=tmp_path / "script").code == 0
    assert losses(tmp_path / "script") == losses(tmp_path / "package")


def test_splits_are_rounded_as_in_the_package(tmp_path):
    """Also where a fraction of the rows ends in a half."""

    def check(train: Any) -> None:
        sys.path.insert(0, str(render() / "src"))
        from my_training.prepare.splits import split_sizes

        for split in ("0.8,0.1,0.1", "0.7,0.15,0.15", "0.9,0.05,0.05", "0.5,0.25,0.25"):
            for count in range(20, 200):
                for rounded in (0, 1):
                    ends = np.cumsum(split_sizes(split, count, rounded=rounded))
                    assert train.split_rows(split, count, rounded) == ends.tolist()

    assert run_script(script(), "--help", cwd=tmp_path, before=check).code == 0


# --- kills, signals, bad losses


def result_of(cwd: Path) -> tuple[Any, Any, dict[str, bytes]]:
    return losses(cwd), evaluations(cwd), weights(cwd)


@functools.cache
def whole(workload: str, folder: Path) -> tuple[Any, Any, dict[str, bytes]]:
    """What a run has made that nothing stopped."""
    assert of_script(workload, 60, 3, folder / workload, every=7).code == 0
    return result_of(folder / workload)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.mark.first(1)
@every_script
@pytest.mark.parametrize("seed", range(4))
def test_resumes_after_a_kill_at_a_random_point(workload, seed, base, tmp_path):
    CASES[workload].write(tmp_path / "data.file")
    draw = random.Random(seed)
    running = start_script(script(workload), *words_of(workload, 60, 3, every=7), cwd=tmp_path)
    running.wait_for_rows(draw.randrange(1, 10))
    time.sleep(draw.random() / 20)
    running.kill(signal.SIGKILL)
    assert running.wait().code in (-signal.SIGKILL, 0)
    done = run_script(script(workload), "--resume", cwd=tmp_path)
    assert done.code == 0, done.err
    assert result_of(tmp_path) == whole(workload, base)


def checkpoints(cwd: Path) -> list[Path]:
    """Of the newest run, the oldest first."""
    return sorted((newest_run(cwd) / "checkpoints").glob("step-*.pt"))


def saved_steps(cwd: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in checkpoints(cwd)]


def test_a_signal_right_after_the_question_for_it_loses_no_step(tmp_path):
    """Whether to save and whether to end are one decision, or the run ends unsaved."""
    step = 0

    def count():
        nonlocal step
        step = 5

    class Late(list[int]):
        """Receives a signal right after the first question in step 5."""

        def __bool__(self):
            answer = len(self) > 0
            if step == 5:
                self.append(signal.SIGTERM)
            return answer

    def late(train):
        at_step(5, count)(train)
        train.collect_signals = Late

    assert of_script("timeseries", 60, 3, tmp_path, late).code == 143
    assert saved_steps(tmp_path) == [6]


def test_a_second_signal_ends_at_once(tmp_path):
    twice = at_step(4, send(signal.SIGINT, signal.SIGINT))
    assert of_script("timeseries", 60, 1, tmp_path, twice).code == 128 + signal.SIGINT
    assert not checkpoints(tmp_path)


@every_script
def test_a_loss_that_goes_bad_ends_the_run_and_names_the_samples(workload, tmp_path):
    def spoil(train):
        compute_loss = train.compute_loss
        count = 0

        def bad(model, batch):
            nonlocal count
            count += 1
            loss, *more = compute_loss(model, batch)
            return (loss * float("nan") if count == 9 else loss, *more)

        train.compute_loss = bad

    done = of_script(workload, 60, 3, tmp_path, spoil, every=50)
    one_error(done, r"loss of step 3 is nan", r"samples \[\d+, \d+")
    assert not checkpoints(tmp_path)


# --- odd runs, files and flags


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("stopped")
    done = of_script("timeseries", 60, 3, cwd, at_step(24, send(signal.SIGTERM)), every=7)
    assert done.code == 143
    assert saved_steps(cwd) == [15, 24]
    return cwd


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A folder with a run that stopped after step 24 of 60, between two log entries."""
    return shutil.copytree(stopped_once, tmp_path / "copy")


def resumed(cwd: Path, before: Before = nothing) -> Result:
    return run_script(script(), "--resume", cwd=cwd, before=before)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"widht": 3}', b'{"width": null}'])
def test_damaged_settings_are_one_line(content, stopped):
    (newest_run(stopped) / "settings.json").write_bytes(content)
    one_error(resumed(stopped), "no run to resume .*: runs/.*/settings.json")


def test_a_damaged_checkpoint_is_none_of_the_two_newest(stopped, base):
    """Else the next save would delete the one that the run was resumed from."""
    newest = checkpoints(stopped)[-1]
    flip_bit(newest, newest.stat().st_size // 2)

    def kill_after_save(train):
        save = train.save_checkpoint

        def save_and_die(*arguments):
            save(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        train.save_checkpoint = save_and_die

    assert resumed(stopped, kill_after_save).code == -signal.SIGKILL
    assert saved_steps(stopped) == [15, 30]
    flip_bit(checkpoints(stopped)[-1], -100)
    assert resumed(stopped).code == 0
    assert result_of(stopped) == whole("timeseries", base)


def test_a_run_in_use_is_one_line(tmp_path):
    CASES["timeseries"].write(tmp_path / "data.file")
    running = start_script(script(), *words_of("timeseries", 10**6, 1), cwd=tmp_path)
    running.wait_for_rows(2)
    one_error(resumed(tmp_path), "another process uses the run")
    running.kill(signal.SIGKILL)
    running.wait()


@every_script
def test_flags_and_the_environment(workload, monkeypatch):
    sys.modules.pop("train", None)
    monkeypatch.syspath_prepend(str(script(workload)))
    import train

    def read(words=""):
        return train.read_settings(train.parse(words.split()))[0]

    for words in ("--max-steps 7", "--max_steps 7", "--max-steps=7"):
        assert read(words).max_steps == 7
    for words, reason in {
        "--max-stpes 7": "unrecognized arguments: --max-stpes 7: see --help",
        "--seed -1": "out of range: --seed",
        "--dropout nan": "out of range: --dropout",
    }.items():
        with pytest.raises(train.UserError, match=reason):
            read(words)
    monkeypatch.setenv("SEED", "7")
    monkeypatch.setenv("DETERMINISTIC", "")
    monkeypatch.setenv("USE_AMP", "0")
    settings = read()
    assert (settings.seed, settings.deterministic, settings.precision) == (7, 0, "fp32")
    assert read("--seed 8 --precision bf16").seed == 8
    monkeypatch.setenv("USE_AMP", "1")
    assert read().precision == "auto"
    sys.modules.pop("train", None)


# --- its own tests


@every_script
def test_own_tests_of_a_script_pass(workload, tmp_path):
    done = run_pytest(shutil.copytree(script(workload), tmp_path / "project"), "test_train.py")
    assert done.code == 0, done.out
    assert " passed" in done.out


FAULTS = [
    ("timeseries", "generator.set_state(state.cpu())", "state.cpu()"),
    ("timeseries", "train_rows = values[:num_train]", "train_rows = values"),
    ("timeseries", " * is_real[:, None, None]", ""),
    ("tabular", "train = values[:num_train]", "train = values"),
    ("llm", "blocks[:, 1:]", "blocks[:, :-1]"),
    ("llm", "is_causal=True", "is_causal=False"),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(("workload", "old", "new"), FAULTS)
def test_own_tests_notice(workload, old, new, tmp_path):
    project = shutil.copytree(script(workload), tmp_path / "project")
    replace(project / "train.py", old, new)
    done = run_pytest(project, "test_train.py")
    assert done.code == 1, done.out
    assert "AssertionError" in done.out


def test_documented_commands_of_a_script_run(tmp_path):
    page = (REPOSITORY / "docs/script.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.+?)```", page, flags=re.DOTALL)
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["python", "train.py"]
        if not {"--help", "--resume"} & {*words}:
            words += ["--max_steps", "3"]
        done = run_script(script("tabular"), *words[2:], cwd=tmp_path)
        assert done.code == 0, done.err


# --- answers


PACKAGE_ONLY = {
    "loader": "chunk",
    "framework": "lightning",
    "distributed": "ddp",
    "tracker": "wandb",
    "extras": ["watch"],
}
REFUSED: list[tuple[dict[str, Any], str]] = []
for question, answer in PACKAGE_ONLY.items():
    REFUSED.append(({question: answer}, f"'{question}'.*only if layout is package"))
REFUSED.append(({"workload": "llm", "gpu": "h100", "precision": "fp8"}, "no fp8; choose bf16"))


@pytest.mark.parametrize(("answers", "reason"), sorted(REFUSED, key=str))
def test_what_a_script_cannot_be_is_refused_with_its_reason(answers, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        render_into(tmp_path / "project", layout="script", **answers)
    assert not (tmp_path / "project").exists()


def test_a_script_is_these_files():
    names = "train.py test_train.py README.md pyproject.toml .gitignore .copier-answers.yml"
    for answers in scripts():
        project = render(**answers)
        assert sorted(path.name for path in project.iterdir()) == sorted(names.split())
        saved = (project / ".copier-answers.yml").read_text(encoding="utf-8")
        assert not re.search(rf"^({'|'.join(PACKAGE_ONLY)}):", saved, flags=re.MULTILINE)


# --- the package starts from the weights of a script


@pytest.mark.first(1)
@every_script
def test_the_package_starts_from_the_best_undamaged_checkpoint_of_a_script(workload, tmp_path):
    cwd = tmp_path / "package"
    assert of_script(workload, 3, 1, tmp_path / "script").code == 0
    of_package(workload, 1, 1, cwd)
    (best,) = checkpoints(tmp_path / "script")
    assert weights(cwd) != script_weights(best)
    newer = best.with_name(best.name.replace("step-00000003", "step-00000004"))
    newer.write_bytes(best.read_bytes())  # another best one is named in it
    damaged = best.with_name("step-00000005-0123456789abcdef.pt")
    damaged.write_bytes(b"")
    words = f"train {CASES[workload].package} --training.max_steps 1".split()
    words += ["--optimizer.learning_rate", "1e-30", "--finetune.init_from"]
    package = render(workload=workload, extras=["finetune"])
    for source in (newest_run(tmp_path / "script"), best):
        begun = check_run(package, *words, str(source), cwd=cwd)
        assert f"weights of {best}: " in begun.out
        assert "new: nothing; unused: nothing" in begun.out
        # A checkpoint that is named is read alone.
        note = f"note: skipped a damaged checkpoint: {damaged.name}\n"
        assert begun.err.count(note) == (source != best)
        assert weights(cwd) == script_weights(best)
    best.unlink()
    newer.unlink()
    one_error(run(package, *words, str(best.parents[1]), cwd=cwd), "no valid checkpoint")


# --- what an owner adds


def test_padding_does_not_change_what_the_library_decodes_with_a_script(tmp_path):
    """The library's `generate` passes the mask apart from the positions."""

    def check(train: Any) -> None:
        torch.manual_seed(0)
        sizes = SimpleNamespace(
            pretrained="",
            width=32,
            hidden=64,
            layers=2,
            heads=4,
            head_width=8,
            feed_forward="relu",
            dropout=0.0,
        )
        facts = SimpleNamespace(vocabulary=257, start=256, end=256)
        t5 = train.build_t5(sizes, facts).eval()
        source = torch.randint(97, 103, (1, 16))
        start = torch.full((1, 1), 256)
        present = torch.arange(16)[None] < 7

        def logits(source: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
            given = {"input_ids": source, "attention_mask": present.long()}
            return t5(**given, decoder_input_ids=start).logits

        with torch.no_grad():
            torch.testing.assert_close(
                logits(source, present), logits(source[:, :7], present[:, :7])
            )

    assert run_script(script("seq2seq"), "--help", cwd=tmp_path, before=check).code == 0


PHASES = """
PHASES += [
    {"max_steps": 20, "block_size": 16, "batch_size": 16, "learning_rate": 3e-4},
    {"max_steps": 10, "block_size": 64, "batch_size": 4},
]
"""


def test_a_run_in_phases_resumes_inside_a_phase_bit_for_bit(tmp_path):
    project = shutil.copytree(script("llm"), tmp_path / "project")
    main = '\nif __name__ == "__main__":'
    replace(project / "train.py", main, PHASES + main)
    found = []
    for name in ("whole", "killed"):
        cwd = tmp_path / name
        cwd.mkdir()
        prose(cwd / "data.file")
        words = words_of("llm", steps=30, accumulation=1)
        if name == "killed":
            kill = at_step(30 + 17, send(signal.SIGKILL))
            assert run_script(project, *words, cwd=cwd, before=kill).code == -signal.SIGKILL
            words = ["--resume"]
        done = run_script(project, *words, cwd=cwd)
        assert done.code == 0, done.err
        assert ", step 15 of 20\n" in done.out or name == "whole"
        paths = sorted((cwd / "runs").glob("*/metrics.jsonl"))
        records = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        found.append([(record["step"], record["loss"]) for record in records])
        assert [len(path.read_text().splitlines()) for path in paths] == [32, 22, 12]
    assert found[0] == found[1]
    first_losses = [losses[0] for losses in (found[0][:1], found[0][32:33])]
    assert first_losses[1][1] < first_losses[0][1]
