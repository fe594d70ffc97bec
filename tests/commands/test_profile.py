"""`profile`: what belongs to which layer, what bounds a step, in every framework; whose step it
is."""

import ast
import gzip
import importlib
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import rendering
import torch
from forking import forked_trials
from importing import imported
from running import PACKAGE, check_run, run
from sizes import TINY
from torch import nn
from variants import choices, name, pairwise


def render(**answers):
    return rendering.render(**{"workload": "tabular", "extras": ["profile"]} | answers)


def module(path="measure.profiling"):
    return imported(render(), path)


def profiled(folder, before=None, **answers):
    """profile.md of a short profile."""
    workload = answers.setdefault("workload", "tabular")
    flags = (*TINY[workload], "--steps", "3")
    done = check_run(render(**answers), "profile", *flags, cwd=folder, before=before)
    page = (folder / "trace/profile.md").read_text()
    assert page in done.out
    assert "profiler_start" not in done.err
    return page


def table(page, title):
    """The rows of a table of the page."""
    lines = page.partition(f"## {title}")[2].partition("##")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.parametrize("answers", pairwise("workload", "framework"), ids=name)
@pytest.mark.cover(1, "framework")
def test_every_workload_has_its_layers(answers, tmp_path):
    page = profiled(tmp_path, **answers)
    assert re.match(r"# Profile: (input|Python|memory|compute)-bound\n", page)
    shares = re.findall(r"(?:data|compute|Python) (\d+)%", page.splitlines()[6])
    assert 98 <= sum(map(int, shares)) <= 102
    layers = table(page, "Layers")
    assert "(optimizer)" in {row[0].partition(" ")[0] for row in layers}
    assert any(float(row[1]) > 0 and float(row[2]) > 0 for row in layers if row[0][0] != "(")
    calls = sum(int(row[3].replace(",", "")) for row in table(page, "Operations"))
    assert sum(int(row[5].replace(",", "")) for row in layers) > 0.75 * calls
    assert b'"layer: ' in gzip.decompress((tmp_path / "trace/trace.json.gz").read_bytes())


# ---- the step ------------------------------------------------------------------------------------


def edited(project, folder, line):
    """A copy of a project whose `take_step` begins with this line."""
    copy = Path(shutil.copytree(project, folder / "edited"))
    file = copy / f"src/{PACKAGE}/train.py"
    lines = file.read_text().splitlines(keepends=True)
    (step,) = (
        node
        for node in ast.parse("".join(lines)).body
        if isinstance(node, ast.FunctionDef) and node.name == "take_step"
    )
    lines.insert(step.body[1].lineno - 1, f"    {line}\n")  # after its docstring
    file.write_text("".join(lines))
    return copy


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_an_edit_of_take_step_is_in_every_measured_step(framework, tmp_path):
    steps = tmp_path / "steps"
    project = edited(
        render(framework=framework, extras=["benchmark", "profile", "tune"]),
        tmp_path,
        f"open({str(steps)!r}, 'a').write('x')",
    )

    def few_rates():
        importlib.import_module(f"{PACKAGE}.commands.tune").RATES = 5

    trials = forked_trials(project)
    for words, before, number in (
        (("profile", "--steps", "2"), None, 3 + 2 + 3),
        (("tune", "--learning-rate"), few_rates, 5),
        (("benchmark", "--steps", "2", "--warmup", "1", "--processes", "1"), trials, 2 * 3),
    ):
        steps.write_text("")
        done = run(project, *words, *TINY["tabular"], cwd=tmp_path / words[0], before=before)
        assert len(steps.read_text()) == number, (words, done.err[-2000:])


def test_a_signal_ends_a_measurement_at_once(tmp_path):
    """It has nothing to save, unlike a training."""

    def interrupted():
        step = importlib.import_module(f"{PACKAGE}.train")
        step.take_step = lambda *_: os.kill(os.getpid(), signal.SIGTERM)

    done = run(render(), "profile", *TINY["tabular"], cwd=tmp_path, before=interrupted)
    assert done.code == 128 + signal.SIGTERM
    assert "saving" not in done.err


# ---- layers --------------------------------------------------------------------------------------


def test_backward_belongs_to_the_operation_of_its_number():
    """Numbers are shared by what does not take them: the last operation of a number did."""
    profiling = module()

    def event(name, ms, number=-1, parent=None):
        return SimpleNamespace(
            name=name,
            sequence_nr=number,
            cpu_parent=parent,
            cpu_children=[],
            self_cpu_time_total=1000 * profiling.TRACED * ms,
            self_cpu_memory_usage=0,
        )

    first = event("layer: a.0", 0)
    second = event("layer: b", 0)
    of_second, of_first, _ = (event(f"{profiling.BACKWARD}X", 0, number) for number in (3, 2, 1))
    events = [
        first,
        event("aten::t", 1, 1, first),
        event("aten::mm", 2, 2, first),
        event("aten::sum", 4, 3, first),
        second,
        event("aten::mm", 8, 3, second),
        event("aten::loss", 16, 4),
        of_second,
        event("aten::mm", 32, parent=of_second),
        of_first,
        event("aten::mm", 64, parent=of_first),
        event(f"{profiling.BACKWARD}AccumulateGrad", 128),
        event("Optimizer.step#AdamW.step", 256),
    ]
    rows = {row.name: row for row in profiling.attribute(events, cuda=False)}
    assert (rows["a.*"].forward_ms, rows["a.*"].backward_ms) == (7, 64)
    assert (rows["b"].forward_ms, rows["b"].backward_ms) == (8, 32)
    assert rows["(outside)"].forward_ms == 16
    assert rows["(gradients)"].backward_ms == 128
    assert rows["(optimizer)"].share == 256 / 511


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(512, 2)

    def forward(self, x):
        return self.inner(x).tanh()


def test_a_compiled_block_is_one_layer():
    profiling = module()
    x = torch.ones(256, 512)
    model = nn.Sequential(nn.Linear(512, 512), Block())
    model[1].compile(backend="eager", fullgraph=True)
    model(x).sum().backward()
    with profiling.layers(model), torch.profiler.profile(profile_memory=True) as trace:
        model(x).sum().backward()
    events = list(trace.events())
    events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
    rows = {row.name: row for row in profiling.attribute(events, cuda=False)}
    assert rows["1"].forward_ms > 0
    assert "1.inner" not in rows
    torch._dynamo.reset()


# ---- the verdict ---------------------------------------------------------------------------------


def test_the_largest_share_decides():
    for split, products, kind in (
        ((0.10, 0.24, 0.66), 0.9, "launch"),
        ((0.11, 0.24, 0.65), 0.9, "launch"),
        ((0.34, 0.33, 0.33), 0.1, "input"),
        ((0.40, 0.45, 0.15), 0.9, "compute"),
        ((0.00, 0.55, 0.45), 0.9, "compute"),
        ((0.11, 0.88, 0.01), 0.1, "memory"),
        ((0.09, 0.52, 0.39), 0.1, "memory"),
    ):
        shares = dict(zip(("data", "compute", "idle"), split, strict=True))
        for cuda in (True, False):
            found, why = module().verdict(shares, products, cuda)
            assert found == kind, split
            if kind in ("input", "launch"):
                assert f"{max(split):.0%} of a step" in why


def test_shares_of_a_step():
    shares = module().shares
    gpu = shares(seconds=0.1, waited=0.02, busy=0.05, traced=0.4, cuda=True)
    assert gpu == pytest.approx({"data": 0.2, "compute": 0.5, "idle": 0.3})
    cpu = shares(seconds=0.1, waited=0.02, busy=0.2, traced=0.4, cuda=False)
    assert cpu == pytest.approx({"data": 0.2, "compute": 0.4, "idle": 0.4})
    streams = shares(seconds=0.1, waited=0.02, busy=0.2, traced=0.4, cuda=True)  # two at once
    assert streams == pytest.approx({"data": 0.2, "compute": 0.8, "idle": 0.0})
