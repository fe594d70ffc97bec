"""The GPU table and the one rule that picks a precision, as they are in a rendered project."""

import pytest
from gpu_table import CARDS, lines
from importing import imported
from rendering import render

PROJECT = render(workload="llm")
gpus = imported(PROJECT, "engine.compute.gpus")
gpu_table = imported(PROJECT, "engine.compute.gpu_table")
UserError = imported(PROJECT, "engine.errors").UserError
GPUS = list(gpu_table.gpu_table().values())
FORMATS = ("fp16", "bf16", "tf32", "fp8")
every_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.key)


def capability(gpu):
    major, minor = map(int, gpu.sm.split("."))
    return major, minor


def resolve(name, gpu):
    card = gpus.Card(gpu.label, capability(gpu), hip=is_amd(gpu))
    resolved: tuple[str, str] = gpus.resolve_precision(name, card)
    return resolved


def matching(name, sm_count, memory_gb):
    return gpu_table.match(gpus.Card(name, (8, 0), memory_gb, sm_count))


def is_amd(gpu):
    return gpu.label.startswith("AMD")


def test_projects_carry_the_templates_table():
    assert CARDS.read_text(encoding="utf-8") == lines(), "run `python tools/gpu_table.py`"


@every_gpu
def test_each_row_is_found_by_each_of_its_names(gpu):
    for name in gpu.aliases:
        for reported in (gpu.memory_gb, 0.92 * gpu.memory_gb):
            for spelled in (name, f"NVIDIA {name}"):
                assert matching(spelled, gpu.sm_count, reported)[0] is gpu


@every_gpu
def test_each_row_takes_or_refuses_each_precision(gpu):
    """`auto` is the best that the hardware has; what it lacks is refused with what works."""
    has = gpus.features(capability(gpu), is_amd(gpu))
    assert has == {name for name in FORMATS if name in gpu.tflops}
    best = next((name for name in ("bf16", "fp16") if name in has), "fp32")
    assert resolve("auto", gpu)[0] == best
    for name in ("fp32", "fp16", *has):
        assert resolve(name, gpu)[0] == name
    if "tf32" not in has:
        assert resolve("tf32", gpu)[0] == "fp32"
    for name in {"bf16", "fp8"} - has:
        with pytest.raises(UserError, match=rf"training.precision.*choose (fp16|{best}), or auto"):
            resolve(name, gpu)


def test_fp8_on_a_cpu_is_refused():
    of_fp8 = imported(render(workload="llm", precision="fp8"), "engine.compute.gpus")
    with pytest.raises(of_fp8.UserError, match=r"no GPU.*choose fp32"):
        of_fp8.resolve_precision("fp8", of_fp8.Card("CPU", None))


def test_amd_numbers_are_not_read_as_nvidia_ones():
    # (9, 0) on ROCm is anything from MI50 to MI250, and 11.x has no fp8: NVIDIA's have it.
    assert gpus.features((9, 0), hip=True) == {"fp16"}
    assert gpus.features((11, 0), hip=True) == {"fp16", "bf16"}


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA L40",
        "NVIDIA A10G",
        "NVIDIA A100",
        "NVIDIA H20",
        "NVIDIA GeForce RTX 4090 D",
        "",
    ],
)
def test_cards_that_only_look_like_a_row_have_none(name):
    for gpu in GPUS:
        assert matching(name, gpu.sm_count, gpu.memory_gb)[0] is None


@pytest.mark.parametrize(
    ("name", "sm_count", "memory_gb", "has_row"),
    [
        ("NVIDIA GeForce RTX 3060", 28, 7.99, False),  # 8 GB, with two thirds of the bandwidth
        ("NVIDIA GeForce RTX 3080", 68, 19.99, False),  # more memory soldered on
        ("NVIDIA H200", 66, 139.8, False),  # half of its multiprocessors
        ("Tesla T4", 40, 14.56, True),  # what drivers report of their memory, in GiB
        ("NVIDIA GH200 480GB", 132, 94.5, True),
        ("NVIDIA B300 SXM6 AC", 148, 267.7, True),
    ],
)
def test_cards_of_one_name_are_told_apart(name, sm_count, memory_gb, has_row):
    assert (matching(name, sm_count, memory_gb)[0] is not None) is has_row
