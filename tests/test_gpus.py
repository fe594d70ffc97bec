"""The GPU table and the one rule that picks a precision, as they stand in a rendered project."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from importing import imported
from rendering import render

gpus = imported(render(), "engine.gpus")
errors = imported(render(), "engine.errors")
ROWS = list(gpus.table().values())
HALF = ("fp16", "bf16", "tf32", "fp8")


def rows(test):
    return pytest.mark.parametrize("gpu", ROWS, ids=lambda gpu: gpu.key)(test)


def is_amd(gpu) -> bool:
    return gpu.label.startswith("AMD")


@rows
def test_each_row_is_found_by_each_of_its_names(gpu):
    for name in gpu.aliases:
        for spelled in (name, f"NVIDIA {name}"):
            alone = sum(name in other.aliases for other in ROWS) == 1
            for reported in (gpu.memory_gb, 0.92 * gpu.memory_gb, *([None] if alone else [])):
                assert gpus.match(spelled, gpu.sm_count, reported)[0] is gpu


def capability(gpu):
    major, minor = map(int, gpu.sm.split("."))
    return major, minor


@rows
def test_the_rule_agrees_with_the_hardware_of_each_row(gpu):
    has = gpus.features(capability(gpu), is_amd(gpu))
    assert has == {name for name in HALF if name in gpu.tflops}


@rows
def test_each_row_resolves_auto_to_the_best_it_has(gpu):
    chosen, why = gpus.resolve_precision("auto", capability(gpu), is_amd(gpu))
    expected = "bf16" if "bf16" in gpu.tflops else "fp16" if "fp16" in gpu.tflops else "fp32"
    assert chosen == expected
    assert "\n" not in why


@rows
@pytest.mark.parametrize("name", ["fp32", *HALF])
def test_each_row_takes_or_refuses_each_precision(gpu, name):
    hip = is_amd(gpu)
    if name in gpu.tflops or name in ("fp32", "fp16"):
        assert gpus.resolve_precision(name, capability(gpu), hip)[0] == name
    elif name == "tf32":
        chosen, why = gpus.resolve_precision(name, capability(gpu), hip)
        assert chosen == "fp32"
        assert "no TF32" in why
    else:
        with pytest.raises(errors.UserError) as refusal:
            gpus.resolve_precision(name, capability(gpu), hip)
        line = str(refusal.value)
        automatic = gpus.resolve_precision("auto", capability(gpu), hip)[0]
        assert "training.precision" in line
        assert re.search(f"choose (fp16|{automatic}), or", line)  # one remedy
        assert "auto" in line  # and the other
        assert "\n" not in line


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((6, 1), "fp32"),
        ((7, 0), "fp16"),
        ((7, 5), "fp16"),
        ((8, 0), "bf16"),
        ((8, 9), "bf16"),
        ((12, 1), "bf16"),
    ],
)
def test_auto_at_each_border(capability, expected):
    assert gpus.resolve_precision("auto", capability)[0] == expected


def test_fp8_starts_at_8_9():
    with pytest.raises(errors.UserError, match=r"sm 8\.6"):
        gpus.resolve_precision("fp8", (8, 6))
    assert gpus.resolve_precision("fp8", (8, 9))[0] == "fp8"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("auto", "fp32"), ("fp32", "fp32"), ("tf32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16")],
)
def test_on_a_cpu(name, expected):
    assert gpus.resolve_precision(name, None)[0] == expected


def test_fp8_on_a_cpu_is_refused():
    with pytest.raises(errors.UserError, match="no GPU"):
        gpus.resolve_precision("fp8", None)


DEVICES = [
    (None, False),
    *(((major, 0), False) for major in (6, 7, 8)),
    ((7, 5), False),
    ((9, 0), True),
]


@pytest.mark.parametrize(("capability", "hip"), DEVICES)
def test_a_refused_precision_has_a_remedy_that_works_there(capability, hip):
    refused = 0
    for name in ("bf16", "fp8"):
        try:
            gpus.resolve_precision(name, capability, hip)
        except errors.UserError as error:
            remedy = str(error).rpartition(": choose ")[2]
            named = re.findall(r"auto|fp32|tf32|fp16|bf16|fp8", remedy)
            assert "auto" in named
            for other in named:
                gpus.resolve_precision(other, capability, hip)
            refused += 1
    assert refused


def test_amd_numbers_are_not_read_as_nvidia_ones():
    # (9, 0) on ROCm is anything from MI50 to MI250, and 11.x has no fp8: as NVIDIA chips they would have it.
    assert gpus.features((9, 0), hip=True) == {"fp16"}
    assert gpus.features((11, 0), hip=True) == {"fp16", "bf16"}
    assert gpus.resolve_precision("auto", (9, 4), hip=True)[0] == "bf16"
    assert gpus.resolve_precision("tf32", (9, 5), hip=True)[0] == "fp32"  # MI350 gave TF32 up


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"NVIDIA GeForce RTX {card} Laptop GPU"
            for card in ("3060", "3080", "4070", "4080", "4090", "5080", "5090")
        ),
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA B200 MIG 1g.23gb",
        "NVIDIA L40",
        "NVIDIA A10G",
        "NVIDIA A100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H20",
        "NVIDIA H100",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA RTX 6000",
        "NVIDIA Graphics Device",
        "nvidia h100 pcie",
        "",
    ],
)
def test_cards_that_only_look_like_a_row_have_none(name):
    gpu, why = gpus.match(name)
    assert gpu is None
    assert why


@pytest.mark.parametrize(
    ("name", "sm_count", "memory_gb"),
    [
        ("NVIDIA GeForce RTX 3060", 28, 7.99),  # the 8 GB one, with two thirds of the bandwidth
        ("NVIDIA GeForce RTX 3080", 70, 11.99),
        ("NVIDIA GeForce RTX 3080", 68, 19.99),  # more memory soldered on
        ("NVIDIA GeForce RTX 4090", 128, 47.5),
        ("NVIDIA H200", 66, 139.8),  # half of its multiprocessors
    ],
)
def test_cards_of_one_name_are_told_apart(name, sm_count, memory_gb):
    assert gpus.match(name)[0] is not None
    gpu, why = gpus.match(name, sm_count, memory_gb)
    assert gpu is None
    assert "multiprocessors is not in the table" in why


@pytest.mark.parametrize(
    ("name", "memory_gb"),
    [  # what drivers report of their memory, in GiB
        ("Tesla T4", 14.56),
        ("Tesla V100-SXM2-16GB", 15.77),
        ("NVIDIA A10", 21.98),
        ("NVIDIA L40S", 44.39),
        ("NVIDIA A100-SXM4-80GB", 79.14),
        ("NVIDIA H200", 139.8),
        ("NVIDIA GH200 480GB", 94.5),
        ("NVIDIA B300 SXM6 AC", 267.7),
        ("GeForce RTX 4090", 23.64),
    ],
)
def test_the_memory_that_drivers_report_fits(name, memory_gb):
    assert gpus.match(name, None, memory_gb)[0] is not None


def test_an_edited_table_is_a_users_error(tmp_path, monkeypatch):
    broken = tmp_path / "gpus.yml"
    monkeypatch.setattr(gpus, "TABLE", broken)
    for text in ("h100: [", "h100: {label: H100}", "- h100", ""):
        broken.write_text(text)
        gpus.table.cache_clear()
        with pytest.raises(errors.UserError, match=r"gpus\.yml"):
            gpus.table()
    monkeypatch.undo()
    gpus.table.cache_clear()


def test_nothing_heavy_is_imported():
    code = "import my_training.engine.gpus as g, my_training.engine.runs, sys; g.table(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=render() / "src",
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"torch", "numpy", "h5py"} & set(done.stdout.split())
