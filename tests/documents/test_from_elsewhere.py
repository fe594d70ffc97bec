"""Programs of other kinds become projects as the guides say: the same numbers, then trained."""

import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.csv
import pytest
import torch
import transformers
import yaml
from forking import run_file
from importing import imported
from rendering import REPOSITORY, document, render
from running import check_run, documented, evaluation_of
from safetensors.torch import save_file
from shells import shell
from sklearn.datasets import load_digits
from torch.nn import functional
from workload import Workload

BEFORE = REPOSITORY / "tests/documents/before"
IGNORE = -100
STILL = ("--training.max_steps", "1", "--optimizer.learning_rate", "1e-30")  # changes no weight
CLOSE = {"atol": 1e-6, "rtol": 1e-6}


def quoted(name, language="python"):
    text = document(name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def execute(code, folder):
    """`python FILE` in a folder, of a file or of this code."""
    path = folder / "program.py"
    path.write_text(code if isinstance(code, str) else code.read_text(), encoding="utf-8")
    done = run_file(path, cwd=folder)
    assert done.code == 0, done.err


def program(path):
    """What a file defines."""
    return SimpleNamespace(**runpy.run_path(str(path)))


def changed(folder, workload, files):
    """A project with the page's files, clean to its own linter."""
    project = Path(
        shutil.copytree(render(workload=workload, extras=["finetune"]), folder / "project")
    )
    for name, text in files.items():
        (project / "src/my_training" / name).write_text(text, encoding="utf-8")
    shell(project, "ruff", "check", "src")
    shell(project, "ruff", "format", "--check", "src")
    return project


def replace_model_settings(project, line, value, guide):
    """What the page says is left of the section `Model` and of `model:`."""
    text = document(guide).read_text(encoding="utf-8")
    assert f"`{line}`" in text
    assert f"`{value}`" in text
    settings = project / "src/my_training/settings.py"
    section = r'(class Model\(Section\):\n    """.*?"""\n).*?(\n\n\n)'
    config = project / "config.yaml"
    replaced(settings, section, rf"\1\n    {line}\2")
    replaced(config, r"(\nmodel:\n).*?(\noptimizer:)", rf"\1  {value}\n\2")
    config.write_text(re.sub(r"\n +model\.\w+:.*", "", config.read_text()), encoding="utf-8")


def replaced(path, pattern, new):
    text, count = re.subn(pattern, new, path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert count == 1, path
    path.write_text(text, encoding="utf-8")


def started(project, folder, weights, *words):
    """The model of a run that has not moved from `weights`, and its validation batches."""
    result = check_run(
        project, "train", *STILL, *words, "--finetune.init_from", weights, cwd=folder
    )
    assert f"weights of {weights}: " in result.out
    assert "new: nothing; unused: nothing" in result.out
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        opened = imported(project, "trained").load_run(checkpoint="last")
        opened.model.requires_grad_(False)
        batches = []
        for batch in opened.loader("validation").epoch(0):
            batches.append({name: values.contiguous() for name, values in batch.items()})
    return opened.model, batches


# ---- from nanoGPT ------------------------------------------------------------------------------

LLM = Workload("llm")
SIZES = (
    *("--model.layers", "2", "--model.heads", "2", "--model.width", "32"),
    *("--data.block_size", "32", "--data.batch_size", "8"),
    *("--model.positions", "learned", "--model.context", "32"),
)
CONVERT, MODEL = quoted("from-nanogpt")
PROSE = "Call me Ishmael. Some years ago, never mind how long precisely:\n having little money! "


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory):
    """A folder with a finished run in nanoGPT's structure, and the data that `prepare` made of its
    text."""
    folder = tmp_path_factory.mktemp("nanogpt")
    (folder / "input.txt").write_text(PROSE * 40, encoding="utf-8")
    shutil.copy(REPOSITORY / "benchmarks/nanogpt.py", folder / "model.py")
    execute(BEFORE / "nanogpt.py", folder)
    prepare = documented(document("from-nanogpt"))[0]
    LLM.done(*prepare, cwd=folder)
    return folder


def trained_gpt(folder):
    """nanoGPT's model with its weights."""
    module = program(folder / "model.py")
    checkpoint = torch.load(folder / "out/ckpt.pt", weights_only=True)
    model = module.GPT(module.GPTConfig(**checkpoint["model_args"]))
    weights = checkpoint["model"].items()
    model.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in weights})
    return model.eval().requires_grad_(False)


def nanogpts(old, batch, padding=0):
    """Logits and loss of a batch, the loss with so many more logits of 0."""
    known = old.config.vocab_size
    tokens = batch["tokens"].masked_fill(batch["tokens"] >= known, 0)  # the end of a document
    logits, _ = old(tokens, tokens)
    padded = functional.pad(logits, (0, padding)).flatten(0, 1)
    targets = batch["targets"].masked_fill(batch["targets"] >= known + padding, IGNORE)
    loss = functional.cross_entropy(padded, targets.flatten(), ignore_index=IGNORE)
    return logits, loss


def test_a_nanogpt_continues_as_the_projects_gpt(nanogpt):
    project = LLM.project(extras=["finetune"])
    values = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    for section, given in yaml.safe_load(quoted("from-nanogpt", "yaml")[0]).items():
        values[section] |= given
    (nanogpt / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    execute(CONVERT, nanogpt)
    model, batches = started(project, nanogpt, "nanogpt.safetensors", *SIZES)
    old = trained_gpt(nanogpt)
    known = old.config.vocab_size
    for batch in batches:
        logits, loss = nanogpts(old, batch, padding=-known % 64)
        is_target = batch["targets"] != IGNORE
        ours = model.logits(batch["tokens"])[..., :known]
        torch.testing.assert_close(ours[is_target], logits[is_target], **CLOSE)
        torch.testing.assert_close(model(batch).loss, loss, **CLOSE)
    for words in documented(document("from-nanogpt"))[2:]:
        check_run(project, *words, cwd=nanogpt)


def test_a_nanogpt_keeps_its_model(nanogpt, tmp_path):
    files = {"model.py": MODEL, "gpt.py": (nanogpt / "model.py").read_text()}
    project = changed(tmp_path, "llm", files)
    old = trained_gpt(nanogpt)
    weights = {f"gpt.{name}": value for name, value in old.state_dict().items()}
    del weights["gpt.lm_head.weight"]  # the embedding's
    save_file(weights, nanogpt / "gpt.safetensors")
    model, batches = started(project, nanogpt, "gpt.safetensors", *SIZES)
    for batch in batches:
        logits, loss = nanogpts(old, batch)
        assert torch.equal(model.logits(batch["tokens"]), logits)
        assert torch.equal(model(batch).loss, loss)


# ---- from a LightningModule --------------------------------------------------------------------


def write_flowers(path):
    random = np.random.default_rng(0)
    kinds = random.choice(["iris", "rose", "tulip"], 240)
    shifts = np.select([kinds == "iris", kinds == "rose"], [0, 2], 4)[:, None]
    values = random.normal(shifts, 1, (240, 4)) * [1, 10, 0.1, 5]
    columns = dict(zip(("stem", "leaf", "seed", "root"), values.T.round(3), strict=True))
    pyarrow.csv.write_csv(pyarrow.table({**columns, "kind": kinds}), path)


def test_a_lightning_modules_files_train_and_predict(tmp_path):
    write_flowers(tmp_path / "flowers.csv")
    model, _ = quoted("from-lightning")
    project = changed(tmp_path, "tabular", {"model.py": model})
    replace_model_settings(project, "width: Positive = 32", "width: 32", "from-lightning")
    for words in documented(document("from-lightning")):
        check_run(project, *words, cwd=tmp_path)
    assert evaluation_of(tmp_path)["metrics"]["accuracy"] > 0.8
    assert "probability of iris" in (tmp_path / "predictions.csv").read_text()


# ---- from HF Trainer ---------------------------------------------------------------------------


def test_a_model_of_hf_trainer_becomes_a_project(tmp_path):
    (tmp_path / "input.txt").write_text(PROSE * 40, encoding="utf-8")
    execute(BEFORE / "trainer.py", tmp_path)

    model, convert = quoted("from-trainer")
    project = changed(tmp_path, "llm", {"model.py": model})
    shutil.copy(tmp_path / "output/config.json", project / "src/my_training")
    line = 'attention: Literal["sdpa", "eager"] = "sdpa"'
    replace_model_settings(project, line, "attention: sdpa", "from-trainer")
    execute(convert, tmp_path)
    prepare, *others = documented(document("from-trainer"))
    check_run(project, *prepare, cwd=tmp_path)
    new, batches = started(project, tmp_path, "trainer.safetensors", "--data.block_size", "31")

    old = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "output").eval()
    old.requires_grad_(False)
    for batch in batches:
        is_whole = batch["targets"].min(1).values >= 0
        whole = {name: values[is_whole] for name, values in batch.items()}
        tokens = torch.cat([whole["tokens"][:, :1], whole["targets"]], 1)
        assert torch.equal(new.logits(whole), old(whole["tokens"]).logits)
        torch.testing.assert_close(new(whole).loss, old(tokens, labels=tokens).loss, **CLOSE)
    for words in others:
        check_run(project, *words, cwd=tmp_path)


# ---- from a notebook ---------------------------------------------------------------------------


def test_a_notebooks_files_train_and_predict(tmp_path):
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", images=digits.images.astype(np.uint8), labels=digits.target)
    *files, _ = quoted("from-notebook")
    names = ("dataset.py", "model.py", "commands/prepare.py", "commands/predict.py")
    files.append(quoted("own-data")[3])
    project = changed(tmp_path, "tabular", dict(zip(names, files, strict=True)))
    shutil.rmtree(project / "src/my_training/prepare")
    replace_model_settings(project, "width: Positive = 16", "width: 16", "from-notebook")
    for words in documented(document("from-notebook")):
        check_run(project, *words, cwd=tmp_path)
