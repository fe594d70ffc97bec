"""Add tokens per second and MFU to the log entries.

MFU (model FLOPs utilization) is the model's FLOP/s as a fraction of the GPU's dense peak in
`gpus.yml`. FLOPs are counted, not estimated: `torch.utils.flop_counter` runs the matrix products
and attention of a forward and a backward on the meta device, where nothing is computed. As in PaLM
(appendix B), activation checkpointing adds no FLOPs, and a causal mask does not halve them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..engine.compute.gpu_table import match
from ..engine.compute.gpus import this_card

if TYPE_CHECKING:
    import torch

    from ..engine.interfaces import Batch
    from ..engine.training.run import Run


class Hook:
    """Adds the metrics; FLOPs are counted once, if the peak is known."""

    def start(self, run: Run) -> None:
        from ..model import build_model

        project: Any = run.project  # its settings are those of `settings.py`
        samples: Any = run.loader.samples  # they count tokens
        self.tokens = samples.tokens
        self.peak, why = peak_of(project.device, project.precision.name)
        self.flops = 0.0
        if self.peak:
            build = partial(build_model, project.settings, project.store.facts)
            self.flops = count_flops(build, samples.typical())
        run.log.line(f"  {samples.tokens:,} tokens a sample; MFU {why}")

    def before_record(self, run: Run, record: dict[str, Any]) -> None:
        rate = record["samples_per_second"]
        record["tokens_per_second"] = rate * self.tokens
        if self.peak:
            record["mfu"] = rate * self.flops / (self.peak * run.project.distributed.world)


def count_flops(build: Callable[[], Any], batch: Batch) -> float:
    """Count the FLOPs of a forward and a backward of one sample; `batch` only gives shapes."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    sample = {}
    for name, value in batch.items():
        sample[name] = torch.empty_like(value[:1], device="meta")
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), torch.device("meta"), counter:
        build()(sample).loss.backward()
    return float(counter.get_total_flops())


def peak_of(device: torch.device, precision: str) -> tuple[float, str]:
    """Return the dense FLOP/s of the device in this precision, 0 if unknown, and an explanation.

    No single peak fits fp8, since some layers multiply in fp8 and others in bf16.
    """
    card = this_card(device)
    if card.capability is None:
        return 0.0, "n/a: there is no GPU"
    if precision == "fp8":
        return 0.0, "n/a: fp8 and bf16 layers have different peaks"
    gpu, why = match(card)
    if gpu is None:
        return 0.0, f"n/a: {why}"
    if precision not in gpu.tflops:
        return 0.0, f"n/a: no published {precision} peak"
    tflops = gpu.tflops[precision]
    return tflops * 1e12, f"of {tflops:g} TFLOPS, {gpu.label} dense {precision}"
