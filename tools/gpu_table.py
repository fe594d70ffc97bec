"""Writes the table of GPUs that projects carry, one line a card: `python tools/gpu_table.py`."""

from pathlib import Path

import yaml

TEMPLATE = Path(__file__).resolve().parent.parent / "template"
TABLES = TEMPLATE / "tables"
CARDS = TEMPLATE / "project/src/{{ package_name }}/engine/compute/gpus.yml"
COLUMNS = (
    *("label", "aliases", "sm", "sm_count", "memory_gb", "bandwidth_gb_s"),
    *("tflops", "torch", "wheel"),
)
HEADER = """\
# What each GPU can do, one line a card; the sources are in the template's table,
# template/tables/gpus.yml. aliases: what torch.cuda.get_device_name() prints, without "NVIDIA ".
# sm_count: streaming multiprocessors (AMD: compute units). memory_gb, bandwidth_gb_s: as the vendor
# counts. tflops: dense peaks; a missing one is not in the hardware, or was never published. torch,
# wheel: the releases with code for the card, and their folder in PyTorch's wheel index.
"""


def lines() -> str:
    """The table as projects carry it."""
    text = HEADER
    rows = yaml.safe_load((TABLES / "gpus.yml").read_text(encoding="utf-8"))
    for key, row in rows.items():
        card = {name: row[name] for name in COLUMNS}
        card["tflops"] = {name: peak for name, peak in row["tflops"].items() if peak is not None}
        text += (
            f"{key}: {yaml.safe_dump(card, default_flow_style=True, sort_keys=False, width=10**6)}"
        )
    return text


if __name__ == "__main__":
    CARDS.write_text(lines(), encoding="utf-8")
