"""Which projects can be asked for, derived from copier.yml and the tables; nothing is listed
twice."""

import functools
import itertools
import random
from collections.abc import Mapping
from typing import Any

import jinja2
import yaml
from rendering import REPOSITORY, questions
from sizes import LARGE_PRODUCTS
from tiers import covering

Answers = dict[str, Any]

PARTS_OF_SCRIPTS = REPOSITORY / "template/parts/script"
SCRIPTS = tuple(sorted(path.name for path in PARTS_OF_SCRIPTS.iterdir() if path.name[0] != "_"))

# These change few lines, or files that no other file knows, so they vary pairwise with the rest.
# Every other question with choices is structural: all combinations are rendered. Tier B trains all
# precisions.
PAIRWISE = ("precision", "gpu", "tracker", "extras")
LAYOUT = "layout"  # decides whether most of the others are asked at all: see `scripts`
DRAWS = 40  # random answers around each pair of a pairwise cover, until some are possible


@functools.cache
def gpus() -> dict[str, dict[str, Any]]:
    """The rows of the GPU table by key."""
    return yaml.safe_load((REPOSITORY / "template/tables/gpus.yml").read_text(encoding="utf-8"))


@functools.cache
def families() -> dict[str, dict[str, Any]]:
    """The families of GPUs by name: their labels and cards."""
    text = (REPOSITORY / "template/tables/gpu_families.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


@functools.cache
def offered(question: str) -> dict[str, Any]:
    """The choices of a question by their labels; those of `gpu` for every family."""
    choices = questions()[question].get("choices", {})
    if not isinstance(choices, str):
        return dict(choices)
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(choices)
    tables = {"gpus": gpus(), "gpu_families": families(), "gpu_so_far": "auto"}
    if question != "gpu":
        return yaml.safe_load(template.render(tables))
    listed = [
        yaml.safe_load(template.render(tables, gpu_family=family))
        for family in ("any", *families())
    ]
    return {label: value for choices in listed for label, value in choices.items()}


def choices(question: str) -> tuple[Any, ...]:
    """The values that a question offers, as they are saved; empty for free text."""
    values = offered(question).values()
    return tuple(value["value"] if isinstance(value, Mapping) else value for value in values)


def extras(workload: str) -> list[str]:
    """The extras that a workload may have."""
    possible = []
    for choice in offered("extras").values():
        refusal = ""
        if isinstance(choice, Mapping):
            refusal = jinja2.Template(choice["validator"]).render(workload=workload)
            choice = choice["value"]
        if not refusal:
            possible.append(choice)
    return possible


def structural() -> tuple[str, ...]:
    """Questions whose answers decide whole files, in asking order; those that are not saved decide
    none."""
    asked = [name for name, question in questions().items() if not question.get("secret")]
    return tuple(name for name in asked if choices(name) and name not in (*PAIRWISE, LAYOUT))


def values(question: str) -> list[Any]:
    """What is worth rendering: of GPUs one of each kind, of extras none, each alone and all (they
    do not know each other), of the rest every choice."""
    if question == "gpu":
        kinds = {str(kind(gpu)): gpu for gpu in reversed(choices("gpu"))}
        return list(reversed(kinds.values()))
    if question == "extras":
        together = [extras("timeseries"), extras("llm")]  # those of one workload, and the others
        return [[], *([extra] for extra in choices("extras")), *together]
    return list(choices(question))


def kind(gpu: str) -> object:
    """What of a GPU's row can change a rendered line, apart from its figures."""
    row = gpus().get(gpu)
    if row is None:
        return gpu
    absent = [
        precision
        for precision in ("tf32", "fp16", "bf16", "fp8")
        if row["tflops"][precision] is None
    ]
    return row["torch"], row["wheel"], row["triton"], absent


def impossible(answers: Mapping[str, Any]) -> bool:
    """Whether the chosen GPU cannot compute in the chosen precision, or the workload gains nothing
    by it."""
    workload = answers.get("workload", "timeseries")
    precision = answers.get("precision", "auto")
    gpu = answers.get("gpu", "auto")
    if set(answers.get("extras", [])) - set(extras(workload)):
        return True
    if answers.get(LAYOUT) == "script" and precision == "fp8":
        return True
    is_for_large = precision == "fp8" or answers.get("distributed") == "fsdp"
    if is_for_large and workload not in LARGE_PRODUCTS:
        return True
    if gpu == "cpu":
        return precision in ("tf32", "fp8")
    if gpu == "other":  # of sm 8.0, where the answer is as by default
        return precision == "fp8"
    if gpu not in gpus() or precision not in ("tf32", "bf16", "fp8"):
        return False
    return gpus()[gpu]["tflops"][precision] is None


def products(*names: str) -> list[Answers]:
    """All possible combinations of answers to these questions."""
    combinations = itertools.product(*map(values, names))
    every = [dict(zip(names, combination, strict=True)) for combination in combinations]
    return [answers for answers in every if not impossible(answers)]


def pairwise(*names: str) -> list[Answers]:
    """A small set of possible answers in which each possible pair of answers to two questions
    occurs.

    Of random answers around each pair, some that together have all pairs. The same each time.
    """
    offered = {question: values(question) for question in names}
    draw = random.Random(0)
    candidates: list[Answers] = []
    for first, second in itertools.combinations(names, 2):
        for one, other in itertools.product(offered[first], offered[second]):
            drawn = [{name: draw.choice(offered[name]) for name in names} for _ in range(DRAWS)]
            answers = (some | {first: one, second: other} for some in drawn)
            possible = (some for some in answers if not impossible(some))
            candidates += itertools.islice(possible, 1)
    chosen = covering([pairs(some) for some in candidates])
    return [candidates[number] for number in sorted(chosen)]


def pairs(answers: Answers) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(((name, str(value)) for name, value in answers.items()), 2))


@functools.cache
def all_variants() -> tuple[Answers, ...]:
    """Every combination of the structural questions, and every pair of any two answers."""
    return (*products(*structural()), *pairwise(*structural(), *PAIRWISE))


@functools.cache
def scripts() -> tuple[Answers, ...]:
    """Every pair of answers to the questions that are asked of a script, of GPUs one of each kind."""
    every = [{LAYOUT: "script", **answers} for answers in products("workload", "gpu", "precision")]
    every = [answers for answers in every if answers["workload"] in SCRIPTS]
    possible = [answers for answers in every if not impossible(answers)]
    chosen = covering([pairs(answers) for answers in possible])
    return tuple(possible[number] for number in sorted(chosen))


def name(answers: Mapping[str, Any]) -> str:
    """A short name for a test's id: the answers that differ from the first choice."""
    parts = []
    for question, answer in answers.items():
        if isinstance(answer, list):
            parts += answer
        elif answer != choices(question)[0]:
            parts.append(answer)
    return "-".join(parts) or "default"
