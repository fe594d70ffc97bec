"""Print the device, the precision and every optimization: what is on, and why.

It also tries a kernel, the data and the compiler. The exit code is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.compute.gpus import chosen_precision, this_card
from ..engine.run.environment import device_line, versions
from ..engine.run.explanations import failure

if TYPE_CHECKING:
    import torch

    from ..config import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """There are no flags."""


def run(arguments: argparse.Namespace, load: Callable[[], Settings]) -> int:
    """Try everything, even if something failed; then print what training sets."""
    settings = load()

    from ..engine.compute.distributed import Distributed
    from ..engine.compute.optimization import describe, set_deterministic
    from ..optimizer import is_fused

    distributed = Distributed()
    code = 0
    for check in (check_device, check_precision, check_data, check_compile):
        state = "ok"
        try:
            line = check(settings, distributed.device)
        except Exception as error:
            state = "failed"
            code = 1
            line = failure(error, settings)
        name = check.__name__.removeprefix("check_")
        print(f"{state:8} {name:12} {line}", flush=True)

    set_deterministic(settings.reproducibility.deterministic, settings.training.cudnn_benchmark)
    print()
    for row in describe(settings, distributed, {"fused optimizer": is_fused(settings)}):
        print(f"{row['name']:26} {row['state']:10} {row['why']}")
    return code


def check_device(settings: Settings, device: torch.device) -> str:
    """Run a kernel: this build of torch may have no code for the GPU."""
    import torch

    torch.ones(1, device=device).add_(1).item()
    of_what = [f"{name} {version}" for name, version in versions().items()]
    return ", ".join([device_line(device), *of_what])


def check_precision(settings: Settings, device: torch.device) -> str:
    """Set the precision as training does."""
    from ..engine.compute.precision import Precision

    name, why = chosen_precision(settings, this_card(device))
    Precision(name, device)
    return f"{name}: {why}"


def check_data(settings: Settings, device: torch.device) -> str:
    """Open the data, and compare small files with their checksums."""
    from ..assemble import open_store
    from ..dataset import Samples

    store = open_store(settings)
    return f"{len(Samples(store, settings, 'train')):,} training samples in {store.folder}"


def check_compile(settings: Settings, device: torch.device) -> str:
    """Compile a small function, if training uses torch.compile."""
    import torch

    from ..engine.compute.optimization import compiles

    used, why = compiles(settings, this_card(device).capability)
    if not used:
        return f"off ({why})"
    ones = torch.ones(64, 64, device=device)
    torch.compile(lambda x: (2 * x).sum(-1))(ones)
    return f"on ({why}): a small function was compiled"
