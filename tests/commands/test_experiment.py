"""`experiment` of the extra `experiment`: the test's exact level, verdicts, and what is refused."""

import importlib
import json
import math
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from forking import forked_sides
from importing import imported
from rendering import REPOSITORY, render, replace
from running import PACKAGE, documented, one_error, run, start, until
from sizes import TINY

LENGTH = ("--steps", "12", "--seeds", "5", "--schedule.warmup_steps", "2")
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
BETTER = "optimizer.learning_rate=0.005"  # it learns nearly nothing at 1e-4
SLOW = ("--optimizer.learning_rate", "1e-4")


def commit(folder):
    for words in (("init", "-q"), ("add", "--all"), ("commit", "-q", "-m", "one")):
        subprocess.run([*GIT, *words], cwd=folder, check=True)


def copied(folder, **answers):
    """A project under git, whose files are a test's own."""
    project = render(extras=["experiment"], **answers)
    shutil.copytree(project, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pyc*"))
    commit(folder)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return copied(tmp_path_factory.mktemp("shared"), workload="tabular")


@pytest.fixture
def project(shared):
    """It has the trainings of the tests before; its sources are those of the commit."""
    yield shared
    subprocess.run([*GIT, "reset", "-q", "--hard"], cwd=shared, check=True)
    subprocess.run([*GIT, "clean", "-fdq"], cwd=shared, check=True)


def experiment(folder, *words, workload="tabular", before=forked_sides):
    done = run(folder, "experiment", *TINY[workload], *LENGTH, *words, cwd=folder, before=before)
    assert "Traceback" not in done.err, done.err
    return done


def edit(folder, old, new, file="model.py"):
    replace(folder / "src" / PACKAGE / file, old, new)


def newest(folder):
    return json.loads((folder / "runs/experiments/verdicts.jsonl").read_text().splitlines()[-1])


# --- the test


@pytest.fixture(scope="module")
def paired():
    return imported(render(workload="tabular", extras=["experiment"]), "measure.paired")


def passes(paired, most):
    """The exact chance that an edit without effect passes, by dynamic programme."""
    passed = 0.0
    undecided = {0: 1.0}  # by the number of wins
    for seeds in range(1, most + 1):
        chances = Counter()
        for wins, chance in undecided.items():
            chances[wins] += chance / 2
            chances[wins + 1] += chance / 2
        undecided = {}
        for wins, chance in chances.items():
            decided = paired.decide(wins, seeds - wins, seeds, most)
            passed += chance * (decided == "keep")
            if not decided:
                undecided[wins] = chance
    return passed


def test_the_level_is_exact(paired):
    assert passes(paired, 4) == 0
    assert passes(paired, 20) == pytest.approx(0.0339, abs=5e-5)
    assert passes(paired, 50) == pytest.approx(0.0374, abs=5e-5)
    assert all(passes(paired, most) <= 0.05 for most in range(5, 101, 5))
    # A fair game: the mean wealth is 1, whatever the number of seeds.
    for seeds in (1, 5, 20):
        values = [math.comb(seeds, wins) * paired.wealth(wins, seeds) for wins in range(seeds + 1)]
        assert sum(values) / 2**seeds == pytest.approx(1)
    fewest = []
    for losses in range(4):
        wins = next(w for w in range(30) if paired.wealth(w, w + losses) >= paired.ENOUGH)
        fewest.append(wins)
    assert fewest == [5, 11, 14, 16]


def test_a_tie_counts_against_both_verdicts(paired):
    rng = random.Random(0)
    verdicts = Counter()
    for _ in range(200):
        gains = []
        decided = ""
        while not decided:
            gains.append(rng.choices([1, 0], [0.3, 0.7])[0])
            decided = paired.verdict(gains, 0, 20)
        verdicts[decided] += 1
    assert verdicts["keep"] < 5  # without ties, three of four would be kept
    assert verdicts["discard"] == 0
    assert paired.verdict([1] * 11 + [0], 0, 20) == "keep"
    assert paired.verdict([1] * 10 + [0], 0, 20) == ""
    assert paired.verdict([-1] * 5, 0, 20) == "discard"
    assert paired.verdict([1] * 5, 1, 20) == "undecided"  # what it must be worth is a tie


def test_keep_means_that_the_interval_is_above_what_is_worth(paired):
    rng = random.Random(1)
    verdicts = Counter()
    for _ in range(500):
        middle = rng.choice([-2, 0, 2])
        gains = [middle + rng.choice([-2, -1, 0, 1, 2]) for _ in range(rng.randint(5, 20))]
        worth = rng.choice([-1, 0, 1])
        low, high = paired.interval(gains)
        decided = paired.verdict(gains, worth, 20)
        verdicts[decided] += 1
        assert (decided == "keep") == (low > worth)
        assert (decided == "discard") == (high < worth)
    assert min(verdicts[name] for name in ("keep", "discard", "")) > 3
    assert paired.interval([1.0] * 4) is None


def test_pairs_with_equal_noise_leave_no_variance(paired):
    assert paired.variance_left([1, 2, 4], [0.5, 1.5, 3.5]) == 0
    assert paired.variance_left([1, 2, 4], [4, 1, 2]) > 0.5


# --- verdicts


def test_a_better_setting_is_kept_and_trained_once(project):
    done = experiment(project, *SLOW, "--set", BETTER)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    pattern = (
        r"keep: loss [\d.]+ % better \(90 % interval \+[\d.]+ to \+[\d.]+ %\); 5 seeds of 12 steps;"
        r" 20 trainings, [\d.]+ minutes"
    )
    assert re.fullmatch(pattern, lines[0])
    assert re.search("^  same initial weights and random numbers: .+ unpaired trainings$", lines[1])
    details = ["first_loss", "parameters", "step_ms", "memory_mb"]
    assert [line.split()[0] for line in lines[2:6]] == details
    assert lines[6] == "  runs/experiments/experiments.md"
    said = done.err.splitlines()
    assert re.fullmatch(r"5 to 5 seeds of 12 steps, about \S+ to \S+; twice if promising", said[0])
    assert said[6:8] == ["promising; now `check`", "passed; now fresh seeds"]
    seeds = [line for line in said if line.startswith("  seed ")]
    assert len(seeds) == len(set(seeds)) == 10

    # The same again trains nothing; the effect is that of the fresh seeds alone.
    again = experiment(project, *SLOW, "--set", BETTER, "--json")
    row = json.loads(again.out)
    assert (again.code, row["trainings"], row["verdict"]) == (0, 0, "keep")
    assert [line for line in again.err.splitlines() if line.startswith("  seed ")] == seeds
    shown = [f"{value:+.3g}" for value in (row["effect"], *row["interval"])]
    gains = [re.search(r"\((.+) %\)", line)[1] for line in seeds[5:]]
    ordered = sorted(gains, key=float)
    assert shown == [ordered[2], ordered[0], ordered[4]]
    page = (project / "runs/experiments/experiments.md").read_text()
    assert "1 of 1 edits kept; if none helped, 0.0025 at most are expected" in page
    assert page.count(BETTER) == 1

    # Another question is another experiment. It uses the trainings of the parent.
    done = experiment(project, *SLOW, "--set", BETTER, "--metric", "r2", "--no-confirm")
    row = newest(project)
    assert (done.code, row["why"], row["trainings"]) == (0, "unconfirmed", 0)
    done = experiment(project, *SLOW, "--set", "optimizer.learning_rate=1e-5")
    row = newest(project)
    assert (done.code, row["verdict"], row["trainings"]) == (1, "discard", 5)
    assert row["interval"][1] < 0
    page = (project / "runs/experiments/experiments.md").read_text()
    assert "2 of 3 edits kept; if none helped, 0.055 at most are expected" in page

    # The report of a run has what was kept.
    assert run(project, "train", *TINY["tabular"], "--max-steps", "1", cwd=project).code == 0
    (report,) = (project / "runs").glob("*/report.md")
    assert "## Experiments: 2 of 3 edits kept" in report.read_text()


OUTPUT = "return self.head(x).float()"
SEEN = "((batch['target'] - self.target_mean) / self.target_std).float()[:, None]"


@pytest.mark.parametrize(
    ("new", "out"),
    [
        (f"{OUTPUT}  # a comment", "the same program and settings; 0 trainings"),
        (
            "y = self.head(x)\n        return y.float()",
            "loss equal; equal bits with 2 seeds; 2 seed",
        ),
        (f"{OUTPUT} + 3", r"loss [\d.]+ % worse \(.+\); no gain of 0.1 %; 5 seeds"),
        (
            "return self.head(x.float()",
            r"the edit fails: SyntaxError: .+ \(model.py, line \d+\); 0",
        ),
        (
            "return self.head(x[1:])",
            r"the edit fails: \w+Error: .+ \(model.py, line \d+\); 0 train",
        ),
        (f"{OUTPUT} / 0", "the edit fails: the loss of step 1 is not finite"),
        ("import os\n        os._exit(3)", "the edit fails: its process ended with exit code 3"),
        ("import time\n        time.sleep(999)", r"the edit fails: it has not ended after \d+ s"),
        # It sees the targets: its losses are much better, but a check notices it.
        (
            f"{OUTPUT} * 0.1 + 0.9 * {SEEN}",
            "loss .+ better .+; promising, but a check fails: future row 0 of 'target' makes",
        ),
    ],
    ids=["comment", "variable", "worse", "syntax", "crash", "nan", "killed", "hang", "leak"],
)
def test_what_is_discarded(new, out, project):
    edit(project, OUTPUT, new)
    select = importlib.import_module("select")

    def before():
        forked_sides()
        wait = select.select
        if "sleep" in new:
            select.select = lambda *files, limit=None: wait(*files[:3], files[3] and 4)

    done = experiment(project, *SLOW, before=before)
    assert done.code == 1, done.out + done.err
    assert re.match(f"discard: {out}", done.out)
    assert ("another loss at step 1: if the loss" in done.out) == (
        "worse" in out or "loss ." in out
    )


def test_the_files_of_the_parent_measure(project):
    """An edit that halves the losses that it reports gains nothing."""
    half = 'metrics = {**metrics, "loss": metrics["loss"] / 2}\n    if "scores" in sums:'
    edit(
        project,
        'if "scores" in sums:\n        return {**',
        f"{half}\n        return {{**",
        "dataset.py",
    )
    one_error(experiment(project), "the edit changes what measures it", "dataset.py")
    done = experiment(project, "--yardstick-changed")
    assert (done.code, newest(project)["why"]) == (1, "equal bits with 2 seeds"), done.err
    assert "note: the edit changes what measures it (src/my_training/dataset.py): " in done.err


def test_the_test_split_is_used_once(project):
    replace(project / "config.yaml", "dropout: 0.1", "dropout: 0.9")
    subprocess.run([*GIT, "commit", "-qam", "two"], cwd=project, check=True)
    try:
        first = experiment(project, "--final", "HEAD~1")
        second = experiment(project, "--final", "HEAD~1")
    finally:
        subprocess.run([*GIT, "reset", "-q", "--hard", "HEAD~1"], cwd=project, check=True)
    assert first.out.split(": ")[1] == "final, on the test split", first.err
    assert newest(project)["split"] == "test"
    assert "note: the test split was used" not in first.err
    assert "note: the test split was used 1 times before: its results are too good" in second.err


def test_ctrl_c_keeps_the_trainings(tmp_path):
    project = copied(tmp_path, workload="tabular")
    words = ("experiment", *TINY["tabular"], *LENGTH, *SLOW, "--set", "model.dropout=0.3")
    running = start(project, *words, cwd=project, before=forked_sides)
    trainings = project / "runs/experiments/trainings"
    until(lambda: len([*trainings.glob("*.json")]) > 2, "trainings")
    running.kill(signal.SIGINT)
    done = running.wait()
    assert done.code == 130
    (kept,) = re.findall(r"note: (\d+) trainings are kept: the same command continues", done.err)
    done = experiment(project, *SLOW, "--set", "model.dropout=0.3")
    assert newest(project)["trainings"] <= 10 - int(kept)


def decided_by(module, losses, **arguments):
    """What an experiment says whose edit has these losses, where those of its parent are 1."""
    made = module.Experiment.__new__(module.Experiment)
    made.arguments = SimpleNamespace(worth=0.1, seeds=20, minutes=60, **arguments)
    made.metric = "loss"
    made.sign = -1
    made.start_time = time.monotonic()
    made.seed = lambda number: number
    made.parent = made.edit = SimpleNamespace(metric=lambda result, name: result["metrics"][name])
    results = [{"metrics": {"new": 3, "loss": loss, "auc": math.nan}} for loss in losses]
    made.pair = lambda seed: ({"metrics": {"loss": 1.0, "auc": math.nan}}, results[seed])
    decided, why, pairs = made.test()
    return decided, why, len(pairs)


def test_the_reason_of_a_verdict(project):
    """Here the edit has a metric that its parent does not have."""
    module = imported(project, "measure.experiment")
    assert decided_by(module, [1.0] * 5) == ("discard", "equal bits with 2 seeds", 2)
    assert decided_by(module, [1.0, 0.5, *[1.1] * 18]) == ("discard", "no gain of 0.1 %", 12)
    assert decided_by(module, [0.5] * 5) == ("keep", "", 5)
    both = [0.5, 1.5] * 10
    assert decided_by(module, both) == ("undecided", "20 seeds cannot decide it", 8)


def test_equal_time_gives_a_slower_edit_fewer_steps(project):
    module = imported(project, "measure.experiment")
    times = iter([9.0, 2.0, 2.1, 1.9, 2.0, 2.0, 2.0, *[2.0] * 6, 0.9])

    def side(next_time):
        return SimpleNamespace(ask=lambda *words, **details: {"step_ms": next_time()})

    made = module.Experiment.__new__(module.Experiment)
    made.split = "validation"
    made.parent = side(lambda: 1.0)
    made.edit = side(lambda: next(times))
    assert made.equal_time(100) == 50
    assert made.equal_time(100) == 100  # one of the ratios is on the other side of 1


# --- what is refused


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ("there is no edit", "those of HEAD")),
        (("--set", "model.widht=3"), ("unknown setting 'model.widht'", "did you mean")),
        (("--set", "model.width"), ("model.width cannot be",)),
        (("--set", "model.width=8", "--seeds", "4"), ("--seeds", "use at least 5")),
        (("--set", "model.width=8", "--minutes", "0"), ("5 pairs of trainings take about",)),
        (("--set", "model.width=8", "--metric", "f1"), ("the parent has no metric 'f1'", "mse")),
        (("--set", "model.width=8", "--against", "v9"), ("unknown revision",)),
        (("--set", "evaluation.fraction=0.5"), ("samples in the edit, .+ in its parent",)),
    ],
)
@pytest.mark.first(7)
def test_what_cannot_be_compared_is_one_line(words, parts, project):
    one_error(experiment(project, *words), *parts)


def test_a_setting_that_the_parent_does_not_have_is_for_the_edit_alone(project):
    edit(
        project,
        "class Model(Section):",
        "class Model(Section):\n    gain: int = 1\n",
        "settings.py",
    )
    done = experiment(project, "--model.gain", "2")
    one_error(done, "unknown setting 'model.gain'", "give it to the edit alone, with --set")


def test_a_source_that_git_ignores_is_refused(project):
    (project / ".git/info/exclude").write_text("secret.py\n")
    (project / "src" / PACKAGE / "secret.py").write_text("")
    one_error(experiment(project, "--set", BETTER), "git ignores this file", "secret.py")
    (project / "src" / PACKAGE / "secret.py").unlink()


def test_a_source_that_no_snapshot_has_is_refused(project):
    """A symbolic link, and a repository within the project's."""
    folder = project / "src/thing"
    (project / "src" / PACKAGE / "link.py").symlink_to("../../README.md")
    one_error(experiment(project), "a link or a repository of its own", f"src/{PACKAGE}/link.py")
    (project / "src" / PACKAGE / "link.py").unlink()
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    commit(folder)
    try:
        one_error(experiment(project), "a link or a repository of its own", "src/thing")
    finally:
        shutil.rmtree(folder)


def test_an_edit_of_the_length_has_a_note(project):
    replace(project / "config.yaml", "epochs: 10", "epochs: 7")
    done = experiment(project)
    assert "note: training.epochs: both sides have equal steps and seeds; see --steps" in done.err
    assert newest(project)["why"] == "equal bits with 2 seeds"


def test_a_project_without_git_and_a_parent_that_fails_are_one_line(tmp_path):
    project = render(workload="tabular", extras=["experiment"])
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    one_error(experiment(tmp_path, "--set", BETTER), "not a git repository")
    model = tmp_path / "src" / PACKAGE / "model.py"
    text = model.read_text()
    model.write_text(f"{text}\nraise OSError('no')\n")
    commit(tmp_path)
    model.write_text(text)
    one_error(experiment(tmp_path), "the parent fails: OSError: no .model.py, line", "correct and")


# --- every workload, every framework, and as a person starts it


@pytest.mark.parametrize(
    ("workload", "answers", "words"),
    [
        ("llm", {"framework": "lightning", "loader": "dataloader"}, ("--data.num_workers", "2")),
        ("forecast", {"framework": "accelerate"}, ()),
        *((name, {}, ()) for name in sorted(TINY) if name not in ("llm", "forecast", "chat")),
    ],
)
@pytest.mark.first(2)
def test_a_setting_without_effect_has_an_effect_of_zero(workload, answers, words, tmp_path):
    project = copied(tmp_path, workload=workload, **answers)
    model = project / "src" / PACKAGE / "model.py"
    model.write_text(f"{model.read_text()}\nUNUSED = 1\n")
    done = experiment(project, *words, workload=workload)
    assert done.code == 1, done.err
    assert re.match(r"discard: \w+ equal; equal bits with 2 seeds; 2 seeds of 12 steps", done.out)


@pytest.mark.full
def test_the_pages_commands_work(tmp_path):
    project = copied(tmp_path, workload="timeseries")
    replace(project / "config.yaml", "dropout: 0.2", "dropout: 0.1")
    subprocess.run([*GIT, "commit", "-qam", "two"], cwd=project, check=True)
    replace(project / "config.yaml", "dropout: 0.1", "dropout: 0.0")
    for words in documented(REPOSITORY / "docs/how-to/experiment.md"):
        done = run(project, *words, cwd=project)
        assert done.code in (0, 1, 3), (words, done.err)
    assert len((project / "runs/experiments/verdicts.jsonl").read_text().splitlines()) == 3
