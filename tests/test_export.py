"""`export`: every workload's trained model, by torch alone, by the project, and with int8
weights."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from importing import imported
from rendering import REPOSITORY, render
from running import check_run, documented, newest_run, one_error, run
from safetensors.torch import load_file
from test_tier_b import TINY
from torch import nn
from variants import choices

EXPORT = {"extras": ["export"], "loader": "dataloader"}
SHORT = ("--training.max_steps", "20")


def trained(workload: str, folder: Path) -> Path:
    """A project with the command, and a short run of it in `folder`."""
    project = render(workload=workload, **EXPORT)
    check_run(project, "train", *TINY[workload], *SHORT, cwd=folder)
    return project


def metrics(out: str) -> dict[str, list[float]]:
    """The table of `evaluate` by row."""
    lines = [line.split() for line in out.splitlines() if line.startswith(("as trained", "int8 "))]
    return {
        line[0]: [float(cell) for cell in line[2 if line[0] == "as" else 1 :]] for line in lines
    }


def example(project: Path, folder: Path) -> str:
    """What `load.py` prints in an interpreter of its own, from another working folder."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, folder / "load.py"],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The program of an LSTM takes ten times as long.
@pytest.mark.parametrize("workload", sorted(choices("workload"), key=lambda w: w != "tabular"))
@pytest.mark.first(1)
def test_every_workload_is_written_and_loads(workload, tmp_path):
    project = trained(workload, tmp_path)
    result = check_run(project, "export", "--int8", cwd=tmp_path)
    folder = newest_run(tmp_path) / "export"
    program = torch.export.load(folder / "model.pt2").module()
    batch = load_file(folder / "example.safetensors")
    whole = program(batch)
    first_two = program({name: value[:2] for name, value in batch.items()})
    for name, value in whole.items():
        torch.testing.assert_close(first_two[name], value[:2], equal_nan=True, rtol=1e-3, atol=1e-4)
    full = load_file(folder / "model.safetensors")
    small = load_file(folder / "model.int8.safetensors")
    rounded = [name for name, weight in small.items() if weight.dtype == torch.int8]
    assert rounded
    for name in rounded:
        scale = small[f"{name}.scale"]
        assert ((small[name] * scale - full[name]).abs() <= 0.51 * scale + 1e-9).all(), name
    size = (folder / "model.safetensors").stat().st_size
    assert (folder / "model.int8.safetensors").stat().st_size < 0.7 * size
    measured = metrics(result.out)
    assert measured["int8"][0] == pytest.approx(measured["as"][0], rel=0.05)
    if workload not in ("llm", "seq2seq"):  # tokens are too many for a digit to change so early
        assert measured["int8"] != measured["as"], "it is the rounded model that is measured"


@pytest.mark.full
def test_the_example_predicts_with_torch_alone_and_with_the_project(tmp_path):
    project = trained("timeseries", tmp_path)
    output = tmp_path / "elsewhere" / "model"
    result = check_run(project, "export", "--output", str(output), cwd=tmp_path)
    assert "int8" not in result.out
    alone = example(Path("/nowhere"), output)
    assert "prediction (64, 12, 3)" in alone
    (output / "model.pt2").unlink()
    assert example(project, output) == alone


def stubborn_model() -> None:
    from my_training import model

    build = model.build_model

    def built(settings, facts):
        made = build(settings, facts)
        predict = made.predict
        made.predict = lambda batch: predict(batch) if batch["index"].sum().item() >= 0 else {}
        return made

    model.build_model = built
    from my_training import assemble

    assemble.build_model = built


def test_a_model_that_torch_export_refuses_is_written_all_the_same(tmp_path):
    project = trained("tabular", tmp_path)
    result = check_run(project, "export", cwd=tmp_path, before=stubborn_model)
    assert "note: no model.pt2, because torch.export failed: " in result.out
    folder = newest_run(tmp_path) / "export"
    assert not (folder / "model.pt2").exists()
    assert (folder / "load.py").exists()


def test_a_program_made_from_one_row_takes_two(tmp_path):
    model = nn.Linear(4, 2)
    model.predict = lambda batch: {"y": model(batch["x"])}
    path = tmp_path / "model.pt2"
    module = imported(render(**EXPORT), "commands.export")
    module.write_program(path, model, {"x": torch.zeros(1, 4)})
    torch.export.load(path).module()({"x": torch.zeros(2, 4)})


def test_an_lstm_says_what_int8_is_not():
    module = imported(render(workload="timeseries", **EXPORT), "commands.export")
    model = torch.nn.Module()
    model.encoder = torch.nn.LSTM(8, 16)
    model.predict = lambda batch: {}
    before = model.encoder.weight_hh_l0.detach().clone()
    rounded, notes = module.quantize(model, {})
    assert set(rounded) == {"encoder.weight_ih_l0", "encoder.weight_hh_l0"}
    assert any(
        "encoder: smaller, not faster: torchao has no int8 for LSTM" in note for note in notes
    )
    whole, scale = rounded["encoder.weight_hh_l0"]
    assert scale.shape == (64, 1)
    torch.testing.assert_close(model.encoder.weight_hh_l0.detach(), whole * scale)
    assert 0 < (model.encoder.weight_hh_l0 - before).abs().max() <= 0.5 * scale.max() * 1.01


def test_what_was_compiled_for_training_is_exported_plain(tmp_path):
    """As on a GPU, where compile is on; a program of compiled blocks would be none for other
    machines."""
    project = trained("tabular", tmp_path)
    words = ("--compile.enabled", "true", "--training.precision", "bf16")
    result = check_run(project, "export", "--int8", *words, cwd=tmp_path)
    assert "model.pt2: " in result.out
    assert metrics(result.out)["int8"][0] == pytest.approx(metrics(result.out)["as"][0], rel=0.05)


def test_a_head_that_shares_its_weight_with_an_embedding_stays():
    module = imported(render(workload="timeseries", **EXPORT), "commands.export")
    model = torch.nn.Module()
    model.embedding = nn.Embedding(64, 32)
    model.hidden = nn.Linear(32, 32)
    model.head = nn.Linear(32, 64)
    model.head.weight = model.embedding.weight
    model.predict = lambda batch: {"x": model.head(model.hidden(model.embedding(batch["x"])))}
    rounded, _ = module.quantize(model, {"x": torch.zeros(2, dtype=torch.int64)})
    assert set(rounded) == {"hidden.weight"}
    assert model.head.weight is model.embedding.weight


def test_wrong_flags_are_one_line(tmp_path):
    project = trained("tabular", tmp_path)
    (tmp_path / "file").touch()
    refused = run(project, "export", "--output", "file/below", cwd=tmp_path)
    one_error(refused, "cannot create the folder", "--output")
    one_error(run(project, "export", "--run", "nope", cwd=tmp_path), "no run 'nope'")


def test_the_page_names_every_file(tmp_path):
    page = REPOSITORY / "docs/export.md"
    for words in documented(page):
        fewer = ("--max-steps", "50") if words[0] == "train" else ()
        check_run(render(workload="tabular", **EXPORT), *words, *fewer, cwd=tmp_path)
    for path in (newest_run(tmp_path) / "export").iterdir():
        assert f"`{path.name}`" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("workload", ["timeseries", "tabular"])
def test_the_program_converts_to_onnx(workload, tmp_path, monkeypatch):
    """By the lines of the page; without the packages that they need, nothing can be compared."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    trained(workload, tmp_path)
    check_run(render(workload=workload, **EXPORT), "export", cwd=tmp_path)
    monkeypatch.chdir(newest_run(tmp_path) / "export")
    page = (REPOSITORY / "docs/export.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    expected = torch.export.load("model.pt2").module()(names["batch"])["prediction"]
    assert torch.allclose(torch.from_numpy(names["prediction"]), expected, rtol=1e-4, atol=1e-4)
