"""The interview as a person sees it: each question, choice and refusal whole, at a terminal of 80
by 30."""

import shutil

import pytest
import yaml
from copiers import COPIERS, _clean_home, commit, copied, run_copier  # noqa: F401
from rendering import REPOSITORY, template
from terminal import CLEAR, DOWN, ENTER, Terminal, asked
from variants import choices, families, offered, questions

POINTER = " » "
EVERYTHING = ("--ask", "*")  # also what Copier does not ask from 9.19 on
NOT_ASKED = {name for name, question in questions().items() if question.get("ask") is False}
OTHER_CARD = ("gpu_compute_capability", "gpu_memory_gb")  # asked for a card that is not listed
FIRST = ("project_name", "package_name", "project_description", "workload", "layout")


def labels(question, family=None):
    """The choices of a question as copier.yml writes them, in their order; of GPUs those of one
    family."""
    if family is None:
        return list(offered(question))
    by_card = {card: label for label, card in offered(question).items()}
    return [by_card[card] for card in [*families()[family]["cards"], "auto", "cpu", "other"]]


def pointed(lines):
    return [line for line in lines if line.startswith(POINTER)]


def down(interview):
    """The screen after the next choice was pointed at."""
    was = pointed(interview.lines())
    interview.press(DOWN)

    def moved(lines):  # a list half drawn has two pointers, or none
        return len(pointed(lines)) == 1 and pointed(lines) != was

    return interview.until("next choice", moved)


def chosen(interview, question, number=0, family=None):
    """Holds that every choice of `question` can be scrolled to and read whole, and takes the
    `number`th.

    Returns the lines of those that cannot be chosen.
    """
    asked(interview, question)
    box = "○ " if questions()[question].get("multiselect") else ""
    offered = labels(question, family)
    seen = set(interview.until("pointer", pointed))
    for _ in offered:
        seen.update(down(interview))
    refused = [line for line in sorted(seen) if line.startswith("   - ")]
    read = {line[len(POINTER) :].removeprefix(box) for line in seen}
    unread = [label for label in offered if label not in read]
    assert len(unread) == len(refused), f"not whole on the screen: {unread}"
    while pointed(interview.lines()) != [POINTER + box + offered[number]]:
        down(interview)
    interview.press(ENTER)
    return refused


def entered(interview, question, text=""):
    asked(interview, question)
    interview.press((CLEAR + text if text else "") + ENTER)


# Choices that are refused.
OF_OLD_CARD = ["tf32", "bf16", "fp8", "fsdp", "lora", "folds"]
OF_LLM = ["fp8", "frames", "lanes", "timezones", "folds"]


@pytest.mark.parametrize(
    ("copier", "words", "workload", "gpu", "refusals", "number"),
    [
        ("newest", (), "timeseries", "gtx_1080_ti", OF_OLD_CARD, 11),
        ("newest", EVERYTHING, "llm", "rtx_3060", OF_LLM, 13),
        ("lowest", (), "llm", "rtx_3060", OF_LLM, 13),
    ],
    ids=["usual", "everything", "lowest"],
)
@pytest.mark.first(2)
def test_each_question_choice_and_refusal_is_read_whole(
    copier, words, workload, gpu, refusals, number, tmp_path
):
    command = [*COPIERS[copier], "copy", *words, str(template()), "project"]
    skipped = NOT_ASKED if number == 11 else set()
    with Terminal(command, tmp_path) as interview:
        refused = answer_all(interview, workload, gpu, skipped)
        interview.shows("is ready")
    assert len(questions()) - len(OTHER_CARD) - len(skipped) == number
    saved = (tmp_path / "project/.copier-answers.yml").read_text(encoding="utf-8")
    answers = yaml.safe_load(saved)
    assert answers["gpu"] == gpu
    assert "gpu_family" not in answers
    assert answers["tracker"] == "none"
    assert {line.strip(" -").split(":")[0] for line in refused} == set(refusals)
    assert all(line.endswith(")") for line in refused), "the reasons to their last letter"


def answer_all(interview, workload, gpu, skipped):
    """Answers every question that is not skipped; returns the lines of refused choices."""
    for question in ("project_name", "package_name", "project_description"):
        if question not in skipped:
            entered(interview, question)
    chosen(interview, "workload", [*questions()["workload"]["choices"].values()].index(workload))
    refused = chosen(interview, "layout")
    (family,) = (name for name, row in families().items() if gpu in row["cards"])
    chosen(interview, "gpu_family", choices("gpu_family").index(family))
    chosen(interview, "gpu", families()[family]["cards"].index(gpu), family)
    for question in ("precision", "loader", "framework", "distributed", "tracker", "extras"):
        if question not in skipped:
            refused += chosen(interview, question)
    return refused


def test_the_pages_say_how_many_questions_are_asked():
    for page in ("README.md", "docs/tutorial/start.md"):
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        assert "asks 11 questions" in text, page
        assert page == "README.md" or "older ones ask all 13" in text


@pytest.mark.parametrize("copier", COPIERS)
def test_what_is_not_asked_can_be_answered_and_stays(copier, tmp_path):
    upstream = commit(shutil.copytree(template(), tmp_path / "template"), "1.0.0")
    answers = {"tracker": "tensorboard", "project_description": "Mine"}
    project = copied(upstream, tmp_path / "project", "1.0.0", copier, **answers)
    run_copier(copier, "update", "--defaults", "-d", "gpu=h100", cwd=project)
    saved = yaml.safe_load((project / ".copier-answers.yml").read_text(encoding="utf-8"))
    assert answers.items() <= saved.items()
    assert saved["gpu"] == "h100"


@pytest.mark.parametrize("copier", COPIERS)
@pytest.mark.first(1)
def test_an_update_with_questions_begins_at_the_family_and_card_of_the_project(copier, tmp_path):
    """The answers name the card alone; the list of another family has it too."""
    # `copier update` needs both under git.
    upstream = commit(shutil.copytree(template(), tmp_path / "template"), "1.0.0")
    project = copied(upstream, tmp_path / "project", "1.0.0", gpu="a100_40gb")
    with Terminal([*COPIERS[copier], "update"], project) as terminal:
        for question in FIRST:
            if copier == "lowest" or question not in NOT_ASKED:
                entered(terminal, question)
        asked(terminal, "gpu_family")
        terminal.shows(POINTER + "ampere")
        down(terminal)
        terminal.shows(POINTER + "ada")
        terminal.press(ENTER)
        asked(terminal, "gpu")
        lines = terminal.shows(POINTER + "A100 SXM4 40 GB")
        assert any(line.strip().startswith("L40S") for line in lines)
        assert not any("H100" in line for line in lines)
