"""The extra `check`: the workloads satisfy their contract, and what breaks it is named."""

import re
import shutil
from typing import NamedTuple

import pytest
from rendering import render, replace
from running import check_run, run
from sizes import TINY
from variants import choices

CHECK = {"extras": ["check"]}
SMALL = ("--samples", "64")


class Broken(NamedTuple):
    """`old` is in the file once; with `new`, `check` fails and its line has `words`."""

    workload: str
    file: str
    old: str
    new: str
    check: str
    words: str


BEFORE_MASK = "# Padding rows have no error.\n        "
WINDOW = '{"rows": values[:, : self.history]}'
BATCH = "batch = {name: array.values[:, 0] for name, array in rows.items()}"
SPANS = "return dict.fromkeys(names, span)"
BROKEN = {
    "a forgotten mask": Broken(
        "tabular",
        "model.py",
        "target = torch.where(present, target, prediction.detach())",
        "",
        "padding_rows",
        r'with them the loss is.*batch\["present"\]',
    ),
    "a leak by one row": Broken(
        "timeseries",
        "dataset.py",
        WINDOW,
        WINDOW.replace(": self.history", "1 : self.history + 1"),
        "future",
        "row 48 of 'rows' makes target 0",
    ),
    "a target that counts as known": Broken(
        "forecast",
        "dataset.py",
        "ahead[:, :, self.known]",
        "ahead[:, :, self.targets]",
        "future",
        "row 56 of 'rows' makes target 0",
    ),
    "a detached layer": Broken(
        "tabular",
        "model.py",
        "x = layer(x)",
        "x = layer(x).detach()",
        "weights",
        "get no gradient, such as",
    ),
    "a loss that is a sum": Broken(
        "tabular",
        "model.py",
        "loss = squares.mean() / total_weight.clamp(min=1)",
        "loss = squares.mean()",
        "mean",
        "each sample twice",
    ),
    "labels off by one": Broken(
        "tabular",
        "dataset.py",
        SPANS,
        f'{SPANS} | {{"target": span._replace(starts=span.starts + 1)}}',
        "labels",
        "check that rows match labels",
    ),
    "weights not registered": Broken(
        "tabular",
        "model.py",
        "self.layers = nn.ModuleList(",
        "self.layers = list(",
        "weights",
        r"is not registered",
    ),
    "an augmentation that runs in evaluation": Broken(
        "tabular",
        "dataset.py",
        BATCH,
        f'{BATCH}\n        noise = batch["features"].clone().normal_()'
        '\n        batch["features"] = batch["features"] + noise',
        "evaluation",
        "'features'. changes in evaluation, as by an augmentation: dataset.py",
    ),
    "dropout in evaluation": Broken(
        "timeseries",
        "model.py",
        "self.dropout(self.encode(changes if self.subtract else history, batch))",
        "nn.functional.dropout(self.encode(changes, batch), 0.2, True)",
        "evaluation",
        "as by dropout",
    ),
    "attention to padding": Broken(
        "seq2seq",
        "layers.py",
        "absent = ~present[:, None, None]",
        "absent = ~present[:, None, None] & False",
        "padding",
        "alone and",
    ),
    "an augmentation without a seed": Broken(
        "tabular",
        "dataset.py",
        BATCH,
        f"{BATCH}\n        factor = np.random.default_rng().random()"
        '\n        batch["features"] *= 1 + self.training * factor',
        "seed",
        "the same samples of the same epoch differ",
    ),
    "a value read in the step": Broken(
        "tabular",
        "model.py",
        "loss = squares.mean() / total_weight.clamp(min=1)",
        "loss = squares.mean() / max(total_weight.item(), 1)",
        "sync",
        "would wait for the GPU: model.py:",
    ),
    "predictions in standard deviations": Broken(
        "tabular",
        "model.py",
        "self.outputs(batch).squeeze(1) * self.target_std",
        "self.outputs(batch).squeeze(1)",
        "units",
        "original units",
    ),
    "a random number that nothing saves": Broken(
        "tabular",
        "model.py",
        "return self.head(x).float()",
        'drawn = self.__dict__.setdefault("drawn", torch.randn(1))'
        "\n        return self.head(x).float() + drawn",
        "saving",
        "after loading prediction differs",
    ),
    "a loss that nothing can lower": Broken(
        "tabular",
        "model.py",
        BEFORE_MASK,
        BEFORE_MASK + "prediction = 0 * prediction\n        ",
        "overfit",
        "steps on it only change the loss",
    ),
    "a metric in evaluation only now and then": Broken(
        "tabular",
        "model.py",
        "for name, value in sums.items():\n",
        "for name, value in sums.items():\n            if len(present) == 1 and name == 'mae':\n"
        "                continue\n",
        "shapes",
        "metrics are not the same",
    ),
}


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(3)
def test_the_workloads_keep_to_their_contract(workload, tmp_path):
    # 200 steps with the low rate of other tests would not be enough.
    rate = ("--optimizer.learning_rate", "0.012") if workload == "vision" else ()
    project = render(workload=workload, **CHECK)
    result = check_run(project, "check", *SMALL, *TINY[workload], *rate, cwd=tmp_path)
    states = {line.split()[1]: line.split()[0] for line in result.out.splitlines()}
    skipped = {name for name, state in states.items() if state == "skipped"}
    assert skipped == (set() if workload == "seq2seq" else {"padding"}), result.out


@pytest.mark.first(8)
@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_contract_is_named(name, tmp_path):
    fault = BROKEN[name]
    project = shutil.copytree(render(workload=fault.workload, **CHECK), tmp_path / "project")
    replace(project / "src/my_training" / fault.file, fault.old, fault.new)
    words = ("check", "--only", fault.check, *SMALL, *TINY[fault.workload])
    result = run(project, *words, cwd=tmp_path)
    assert result.code == 1, result.out + result.err
    (line,) = result.out.splitlines()
    assert re.match(f"failed +{fault.check} .*{fault.words}", line), line


NAN = {  # name: (workload, file, a line there, what it becomes, the one line that says why)
    "in a prepared column": (
        "tabular",
        "dataset.py",
        'writer.source = {"kind": "synthetic"}',
        """cells = writer._open["features"]; cells.seek(-4 * 6 * 20_000 + 4 * 5, 2)
        cells.write(np.float32("inf").tobytes()); cells.seek(0, 2)
        writer.source = {"kind": "synthetic"}""",
        "sample 0 of train: 'features' has inf in column 5 (noise): the prepared data",
    ),
    "in a batch": (
        "tabular",
        "dataset.py",
        BATCH,
        f"{BATCH}\n        batch['features'][:, 4] = float('inf')",
        "sample 0 of train: 'features' has inf in column 4 (height): "
        "dataset.py, Samples.batch: the prepared data are finite",
    ),
    "in the model": (
        "tabular",
        "model.py",
        "return self.head(x).float()",
        "return self.head(x).float() * float('nan')",
        "sample 0 of train: its values are finite, but its loss is not: ",
    ),
    "in the metadata": (
        "tabular",
        "dataset.py",
        "writer.facts = facts",
        "facts['features'][2]['std'] = float('nan'); writer.facts = facts",
        "the metadata of the data have nan or inf: features[2].std is nan: "
        "prepare the data again, from values that are finite",
    ),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", NAN)
def test_one_nan_is_one_failure_with_its_array_column_and_sample(name, tmp_path):
    """What depends on the samples is skipped because of them, and accuses nothing else."""
    workload, file, old, new, reason = NAN[name]
    project = shutil.copytree(render(workload=workload, **CHECK), tmp_path / "project")
    replace(project / "src/my_training" / file, old, new)
    result = run(project, "check", *SMALL, *TINY[workload], cwd=tmp_path)
    assert result.code == 1, result.out + result.err
    lines = {line.split()[1]: line.split(maxsplit=2)[::2] for line in result.out.splitlines()}
    state, line = lines.pop("samples")
    assert state == "failed"
    assert line.startswith(reason)
    assert lines.pop("shapes")[0] == lines.pop("sync")[0] == "ok"
    assert set(map(tuple, lines.values())) == {("skipped", "because samples failed")}
