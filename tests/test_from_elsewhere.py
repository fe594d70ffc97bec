"""Programs of other kinds become projects as the guides say: the same numbers, then trained and resumed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import budget
import numpy as np
import pytest
import torch
import transformers
import yaml
from importing import imported
from rendering import REPOSITORY, render
from running import Result, documented, losses, newest_run, run
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from test_shell import shell
from torch.nn import functional

BEFORE = REPOSITORY / "tests/before"
IGNORE = -100
STILL = (
    "--training.max_steps",
    "1",
    "--optimizer.learning_rate",
    "1e-30",
)  # a step that changes no weight
SHORT = (
    "--training.max_steps",
    "30",
    "--monitor.every_steps",
    "1",
    "--checkpoint.every_steps",
    "8",
)
OWN_DATA = re.findall(
    r"```python\n(.*?)```", (REPOSITORY / "docs/own-data.md").read_text(), flags=re.DOTALL
)


def page(name: str) -> Path:
    return REPOSITORY / f"docs/from-{name}.md"


def quoted(name: str, language: str = "python") -> list[str]:
    return re.findall(
        rf"```{language}\n(.*?)```", page(name).read_text(encoding="utf-8"), flags=re.DOTALL
    )


def execute(path: Path, folder: Path) -> None:
    """`python path` in a folder, by a fork that has loaded PyTorch."""

    def main() -> None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        runpy.run_path(str(path), run_name="__main__")

    process = multiprocessing.get_context("fork").Process(target=main)
    process.start()
    process.join()
    assert process.exitcode == 0, path


def converts(folder: Path, code: str) -> None:
    """`python convert.py`, with the page's text in it."""
    (folder / "convert.py").write_text(code, encoding="utf-8")
    execute(folder / "convert.py", folder)


def program(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"before_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def done(project: Path, *words: str, cwd: Path) -> Result:
    result = run(project, *words, cwd=cwd)
    assert result.code == 0, result.err[-2000:]
    return result


def trains_and_resumes(project: Path, folder: Path, *words: str) -> None:
    """The same losses with a stop in between, and they fall."""
    done(project, "train", *SHORT, *words, cwd=folder)
    whole = losses(folder)
    done(project, "train", *SHORT, *words, "--max-steps", "17", cwd=folder)
    done(project, "train", "--resume", cwd=folder)
    assert losses(folder) == whole
    values = [float.fromhex(loss) for _, loss in whole]
    assert sum(values[-10:]) < sum(values[:10])


def changed(folder: Path, workload: str, files: dict[str, str]) -> Path:
    """A project with the page's files in place of its own, or beside them; clean to its own linter."""
    project = Path(shutil.copytree(render(workload=workload), folder / "project"))
    for name, text in files.items():
        (project / "src/my_training" / name).write_text(text, encoding="utf-8")
    shell(project, "ruff", "check", "src")
    shell(project, "ruff", "format", "--check", "src")
    return project


def only_setting(project: Path, line: str, value: str, document: Path) -> None:
    """What the page says is left of the section `Model` and of `model:`."""
    assert f"`{line}`" in document.read_text(encoding="utf-8")
    assert f"`{value}`" in document.read_text(encoding="utf-8")
    for path, start, end, new in (
        (
            project / "src/my_training/settings.py",
            'class Model\\(Section\\):\n    """.*?"""\n',
            "\n\n\n",
            f"\n    {line}",
        ),
        (project / "config.yaml", "\nmodel:\n", "\noptimizer:", f"  {value}\n"),
    ):
        text, count = re.subn(
            f"({start}).*?({end})", rf"\1{new}\2", path.read_text(), flags=re.DOTALL
        )
        assert count == 1, path
        text = re.sub(r"\n +model\.\w+:.*", "", text)
        path.write_text(text, encoding="utf-8")


def started(project: Path, folder: Path, weights: str, *words: str) -> tuple[Any, Any]:
    """The model of a run that has not moved from `weights`, and its validation batches."""
    result = done(project, "train", *STILL, *words, "--training.init_from", weights, cwd=folder)
    assert f"weights of {weights}: " in result.out
    assert "new: nothing; left: nothing" in result.out
    found, settings = newest_run(folder), imported(project, "config")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = settings.load(found / "config.resolved.yaml", resolved=True)
        arguments = argparse.Namespace(checkpoint="last")
        opened, _ = imported(project, "commands.evaluate").open_run(found, settings, arguments)
        opened.model.requires_grad_(False)
        batches = opened.loader("validation").epoch(0)
        return opened.model, [
            {name: x.contiguous() for name, x in batch.items()} for batch in batches
        ]


def test_settings_of_the_guides_are_there() -> None:
    known: set[str] = set()
    for workload in ("llm", "seq2seq", "tabular"):
        known |= imported(render(workload=workload), "config").SETTINGS.keys()
    sections = "|".join({key.partition(".")[0] for key in known if "." in key})
    for guide in ("nanogpt", "lightning", "trainer", "notebook"):
        prose = re.sub(r"```.*?```", "", page(guide).read_text(encoding="utf-8"), flags=re.DOTALL)
        named = set(re.findall(rf"\b(?:{sections})\.(?!py\b|md\b)\w+\b(?!\()", prose))
        assert named
        assert named <= known


# --- from nanoGPT

SIZES = (
    "--model.layers",
    "2",
    "--model.heads",
    "2",
    "--model.width",
    "32",
    "--data.block_size",
    "32",
)
SIZES += ("--data.batch_size", "8", "--model.positions", "learned", "--model.context", "32")
FASTER = ("--optimizer.learning_rate", "0.01")
CONVERT, MODEL = quoted("nanogpt")
PROSE = "Call me Ishmael. Some years ago, never mind how long precisely:\n having little money! "


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in nanoGPT's structure, and the data that `prepare` made of its text."""
    folder = tmp_path_factory.mktemp("nanogpt")
    (folder / "input.txt").write_text(PROSE * 40, encoding="utf-8")
    shutil.copy(REPOSITORY / "benchmarks/nanogpt.py", folder / "model.py")
    execute(BEFORE / "nanogpt.py", folder)
    prepare = documented(page("nanogpt"))[0]
    done(render(workload="llm"), *prepare, cwd=folder)
    return folder


def trained_gpt(folder: Path) -> Any:
    """nanoGPT's model with its weights."""
    module, found = (
        program(folder / "model.py"),
        torch.load(folder / "out/ckpt.pt", weights_only=True),
    )
    model = module.GPT(module.GPTConfig(**found["model_args"]))
    model.load_state_dict(found["model"])
    return model.eval().requires_grad_(False)


def nanogpts(
    old: Any, batch: dict[str, torch.Tensor], padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and loss of a batch, the loss with so many more logits of 0."""
    known, targets = old.config.vocab_size, batch["targets"]
    tokens = batch["tokens"].masked_fill(batch["tokens"] >= known, 0)  # the end of a document
    logits, _ = old(tokens, tokens)
    padded = torch.cat([logits, logits.new_zeros(*logits.shape[:2], padding)], 2)
    targets = targets.masked_fill(targets >= known + padding, IGNORE)
    return logits, functional.cross_entropy(
        padded.flatten(0, 1), targets.flatten(), ignore_index=IGNORE
    )


def test_nanogpts_data_are_the_same_numbers(nanogpt: Path) -> None:
    (tokens,) = (np.load(path) for path in (nanogpt / "data").glob("store-tokens-*.npy"))
    theirs = np.concatenate(
        [np.fromfile(nanogpt / f"{split}.bin", np.uint16) for split in ("train", "val")]
    )
    assert np.array_equal(tokens[:-1], theirs)


def configured(project: Path, folder: Path, changes: str) -> None:
    """A config.yaml with the page's values in it."""
    values = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    for section, given in yaml.safe_load(changes).items():
        values[section] |= given
    (folder / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")


def test_a_nanogpt_goes_on_as_the_projects_gpt(nanogpt: Path) -> None:
    project, start = render(workload="llm"), "nanogpt.safetensors"
    configured(project, nanogpt, *quoted("nanogpt", "yaml"))
    assert budget.measure_source(CONVERT).tokens <= 200
    converts(nanogpt, CONVERT)
    model, batches = started(project, nanogpt, start, *SIZES)
    old = trained_gpt(nanogpt)
    known = old.config.vocab_size
    for batch in batches:
        logits, loss = nanogpts(old, batch, padding=-known % 64)
        there = batch["targets"] != IGNORE
        found = model.logits(batch["tokens"])[..., :known]
        torch.testing.assert_close(found[there], logits[there], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(model(batch).loss, loss, atol=1e-6, rtol=1e-6)
    trains_and_resumes(project, nanogpt, *SIZES, *FASTER, "--training.init_from", start)
    for words in documented(page("nanogpt"))[2:]:
        done(project, *words, cwd=nanogpt)


def test_a_nanogpt_of_whole_tiles_has_the_same_loss(nanogpt: Path, tmp_path: Path) -> None:
    """Compiled, as its checkpoints often are: their names say so."""
    module, project = program(nanogpt / "model.py"), render(workload="llm")
    old = module.GPT(module.GPTConfig(32, 64, 2, 2, 32)).eval().requires_grad_(False)
    (tmp_path / "out").mkdir()
    compiled = {f"_orig_mod.{name}": value for name, value in old.state_dict().items()}
    torch.save({"model": compiled}, tmp_path / "out/ckpt.pt")
    converts(tmp_path, CONVERT)
    flags = [
        (name.removeprefix("--"), value)
        for name, value in zip(SIZES[::2], SIZES[1::2], strict=True)
    ]
    settings = imported(project, "config").load(overrides=flags)
    facts = {"vocabulary": 64, "token_bytes": [1] * 64}
    model = imported(project, "model").build_model(settings, facts).eval()
    model.load_state_dict(load_file(tmp_path / "nanogpt.safetensors"))
    tokens = torch.randint(64, (3, 33), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    torch.testing.assert_close(model(batch).loss, old(*batch.values())[1], atol=1e-6, rtol=1e-6)


def test_a_nanogpt_keeps_its_model(nanogpt: Path, tmp_path: Path) -> None:
    files = {"model.py": MODEL, "gpt.py": (nanogpt / "model.py").read_text()}
    project, start = changed(tmp_path, "llm", files), "gpt.safetensors"
    old = trained_gpt(nanogpt)
    kept = {
        f"gpt.{name}": value for name, value in old.state_dict().items() if name != "lm_head.weight"
    }
    save_file(kept, nanogpt / start)
    model, batches = started(project, nanogpt, start, *SIZES)
    for batch in batches:
        logits, loss = nanogpts(old, batch)
        assert torch.equal(model.logits(batch["tokens"]), logits)
        assert torch.equal(model(batch).loss, loss)
    trains_and_resumes(project, nanogpt, *SIZES, *FASTER, "--training.init_from", start)
    for words in documented(page("nanogpt"))[2:]:
        done(project, *words, cwd=nanogpt)


# --- from a LightningModule


@pytest.mark.filterwarnings("ignore:You are trying to `self.log")
def test_a_lightning_module_goes_on(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    kinds = random.choice(["iris", "rose", "tulip"], 240)
    shifts = np.where(kinds == "iris", 0, np.where(kinds == "rose", 2, 4))[:, None]
    values = random.normal(shifts, 1, (240, 4)) * [1, 10, 0.1, 5]
    lines = [
        ",".join([*map(str, row), kind]) for row, kind in zip(values.round(3), kinds, strict=True)
    ]
    (tmp_path / "flowers.csv").write_text(
        "\n".join(["stem,leaf,seed,root,kind", *lines]), encoding="utf-8"
    )
    shutil.copy(BEFORE / "flowers.py", tmp_path)
    execute(tmp_path / "flowers.py", tmp_path)

    model, convert = quoted("lightning")
    project = changed(tmp_path, "tabular", {"model.py": model})
    only_setting(
        project, 'width: int = Field(32, ge=1, description="units")', "width: 32", page("lightning")
    )
    converts(tmp_path, convert)
    prepare, train, *others = documented(page("lightning"))
    done(project, *prepare, cwd=tmp_path)
    new, batches = started(project, tmp_path, "flowers.safetensors")

    before = program(tmp_path / "flowers.py")
    old = before.Classifier.load_from_checkpoint(tmp_path / "checkpoints/best.ckpt").eval()
    old.requires_grad_(False)
    data = before.Flowers(str(tmp_path / "flowers.csv"))
    data.setup()
    assert data.classes == sorted(set(kinds))
    for batch in batches:
        there = batch["present"]
        rows = list(zip(batch["features"][there], batch["target"][there], strict=True))
        x, y = data.collate(rows)
        torch.testing.assert_close(new.logits(batch)[there], old(x), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(
            new(batch).loss, old.training_step((x, y), 0), atol=1e-6, rtol=1e-6
        )
    trains_and_resumes(project, tmp_path, *train[1:], "--training.init_from", "flowers.safetensors")
    for words in others:
        done(project, *words, cwd=tmp_path)
    assert "probability of iris" in (tmp_path / "predictions.csv").read_text()


# --- from HF Trainer


def test_a_model_of_hf_trainer_goes_on(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text(PROSE * 40, encoding="utf-8")
    shutil.copy(BEFORE / "trainer.py", tmp_path)
    execute(tmp_path / "trainer.py", tmp_path)

    model, convert = quoted("trainer")
    project, start = changed(tmp_path, "llm", {"model.py": model}), "trainer.safetensors"
    shutil.copy(tmp_path / "output/config.json", project / "src/my_training")
    choice = 'attention: Literal["sdpa", "eager"] = Field("sdpa", description="who computes it")'
    only_setting(project, choice, "attention: sdpa", page("trainer"))
    converts(tmp_path, convert)
    prepare, train, *others = documented(page("trainer"))
    done(project, *prepare, cwd=tmp_path)
    new, batches = started(project, tmp_path, start, "--data.block_size", "31")

    old = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "output")
        .eval()
        .requires_grad_(False)
    )
    for batch in batches:
        whole = batch["targets"].min(1).values >= 0
        tokens = torch.cat([batch["tokens"][:, :1], batch["targets"]], 1)[whole]
        batch = {name: x[whole] for name, x in batch.items()}
        assert torch.equal(new.logits(batch), old(batch["tokens"]).logits)
        theirs = old(tokens, labels=tokens).loss
        torch.testing.assert_close(new(batch).loss, theirs, atol=1e-6, rtol=1e-6)
    trains_and_resumes(project, tmp_path, *train[1:], "--training.init_from", start)
    for words in others:
        done(project, *words, cwd=tmp_path)


# --- from a notebook


def test_a_notebook_goes_on(tmp_path: Path) -> None:
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", images=digits.images.astype(np.uint8), labels=digits.target)
    *files, last = quoted("notebook")
    cells = json.loads((BEFORE / "digits.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    seen = "np.savez('seen.npz', images=images[test], logits=logits, loss=F.cross_entropy(logits, y[test]))"
    (tmp_path / "notebook.py").write_text("\n".join([*code, last, seen]), encoding="utf-8")
    execute(tmp_path / "notebook.py", tmp_path)

    names = ("dataset.py", "model.py", "commands/prepare.py")
    changes = {**dict(zip(names, files, strict=True)), "commands/predict.py": OWN_DATA[3]}
    project, start = changed(tmp_path, "tabular", changes), "digits.safetensors"
    shutil.rmtree(project / "src/my_training/prepare")
    only_setting(
        project,
        'width: int = Field(16, ge=1, description="channels")',
        "width: 16",
        page("notebook"),
    )
    prepare, train, *others = documented(page("notebook"))
    done(project, *prepare, cwd=tmp_path)
    started(project, tmp_path, start)
    done(project, "predict", cwd=tmp_path)
    found, seen = np.load(newest_run(tmp_path) / "predictions.npz"), np.load(tmp_path / "seen.npz")
    probability = torch.from_numpy(seen["logits"]).softmax(1)
    torch.testing.assert_close(
        torch.from_numpy(found["probability"]), probability, atol=1e-6, rtol=1e-6
    )
    done(project, "evaluate", cwd=tmp_path)
    evaluation = json.loads((newest_run(tmp_path) / "evaluation.json").read_text())
    assert evaluation["metrics"]["loss"] == pytest.approx(float(seen["loss"]), abs=1e-6)
    trains_and_resumes(project, tmp_path, *train[1:], "--training.init_from", start)
    for words in others:
        done(project, *words, cwd=tmp_path)
