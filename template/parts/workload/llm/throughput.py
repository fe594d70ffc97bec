"""Tokens per second and MFU in the rows of metrics.

MFU is the model's own arithmetic as a share of the GPU's peak. FLOPs are counted, not estimated:
matrix products and attention of one forward and backward, run by `torch.utils.flop_counter` on the
meta device, where nothing is computed. Recomputed activations do not count, a causal mask halves
nothing (PaLM, appendix B), and the peak is the dense one of `gpus.yml`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..engine.gpus import match, this_card

if TYPE_CHECKING:
    import torch

    from ..engine.interfaces import Batch
    from ..engine.run import Run


class Hook:
    """Adds them to the rows; FLOPs are counted for the first row, where the peak is known."""

    def start(self, run: Run) -> None:
        from ..model import build_model

        project = run.project
        samples = run.loader.samples
        peak, why = peak_of(project.device, project.precision.name)

        @cache
        def flops() -> float:
            def build() -> torch.nn.Module:
                return build_model(project.settings, project.store.facts)

            return count_flops(build, samples.typical())

        run.monitor.rates.append(partial(rates, tokens=samples.tokens, peak=peak, flops=flops))
        run.monitor.line(f"  {samples.tokens:,} tokens a sample; MFU {why}")


def rates(
    samples_per_second: float, devices: int, *, tokens: int, peak: float, flops: Callable[[], float]
) -> dict[str, float]:
    """Metrics of a training that takes so many samples a second on all devices together.

    tokens: targets of a mean sample. peak: FLOP/s of a device; 0 where it is not known. flops: of
    forward and backward of a sample.
    """
    metrics = {"tokens_per_second": samples_per_second * tokens}
    if peak:
        metrics["mfu"] = samples_per_second * flops() / (peak * devices)
    return metrics


def count_flops(build: Callable[[], Any], batch: Batch) -> float:
    """FLOPs of forward and backward over one sample; `batch` gives shapes only."""
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
    """Dense FLOP/s of the device in this precision, and a sentence; 0 where it is not known.

    fp8 has none: some layers multiply in fp8 and others in bf16, so no single peak fits.
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
