"""Tokens per second and MFU in the rows of metrics: the model's own arithmetic as a share of the GPU's peak.

FLOPs are counted, not estimated: matrix products and attention of one forward and backward, run by
`torch.utils.flop_counter` on the meta device, where nothing is computed. Recomputed activations do not
count, a causal mask halves nothing (PaLM, appendix B), and the peak is the dense one of `gpus.yml`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..engine.gpus import match, this_card

if TYPE_CHECKING:
    import torch

    from ..engine.run import Run
    from ..engine.seams import Batch


class Hook:
    """Adds them to the rows. FLOPs are counted for the first row, and only where the peak is known."""

    def start(self, run: Run) -> None:
        from ..model import build_model

        project, samples = run.project, run.loader.samples
        peak, why = peak_of(project.device, project.precision.name)

        def flops() -> float:
            return count_flops(lambda: build_model(project.settings, project.store.facts), samples.typical())

        run.monitor.rates.append(partial(rates, tokens=samples.tokens, peak=peak, flops=cache(flops)))
        run.monitor.line(f"  {samples.tokens:,} tokens a sample; MFU {why}")


def rates(
    samples_per_second: float, devices: int, *, tokens: int, peak: float, flops: Callable[[], float]
) -> dict[str, float]:
    """Metrics of a training that takes so many samples a second on all devices together.

    tokens: targets of a mean sample. peak: FLOP/s of a device; 0 where it is not known. flops: of forward and
    backward of a sample.
    """
    found = {"tokens_per_second": samples_per_second * tokens}
    return found | ({"mfu": samples_per_second * flops() / (peak * devices)} if peak else {})


def count_flops(build: Callable[[], Any], batch: Batch) -> float:
    """FLOPs of forward and backward over one sample; `batch` gives shapes only."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    first = {name: torch.empty_like(value[:1], device="meta") for name, value in batch.items()}
    with torch.random.fork_rng(devices=[]), torch.device("meta"), FlopCounterMode(display=False) as counter:
        build()(first).loss.backward()
    return float(counter.get_total_flops())


def peak_of(device: torch.device, precision: str) -> tuple[float, str]:
    """Dense FLOP/s of the device in this precision, and a sentence; 0 where it is not known.

    fp8 has none: some layers multiply in fp8 and others in bf16, so no single peak fits.
    """
    card = this_card(device)
    if card.capability is None:
        return 0.0, "n/a: there is no GPU"
    if precision == "fp8":
        return 0.0, "n/a: fp8 and bf16 layers have different peaks"
    gpu, why = match(card.name, card.sm_count, card.memory_gb)
    if gpu is None or precision not in gpu.tflops:
        return 0.0, f"n/a: {why if gpu is None else f'no published {precision} peak'}"
    return gpu.tflops[precision] * 1e12, f"of {gpu.tflops[precision]:g} TFLOPS, {gpu.label} dense {precision}"
