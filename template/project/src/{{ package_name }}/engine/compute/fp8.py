"""fp8 for the matrix products of large linear layers, by torchao.

Weights and the optimizer stay in fp32. It pays off from sm 8.9 on, with torch.compile, for large
models: 1.17× the speed of bf16 with 26 layers on 8 H100 (karpathy/nanochat, dev/LOG.md). With small
models it is slower than bf16, and without compile it has a quarter of the speed.
`training.precision bf16` turns it off. Evaluation and generation compute in bf16.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from .optimization import Optimization

if TYPE_CHECKING:
    from torch import Tensor

WHEN = "evaluation in bf16; slower than bf16 without compile and on small models"
MULTIPLE = 16  # the hardware requires multiples of it in both sizes of a matrix
LEAST = 128  # smaller matrices lose more by scaling than they gain


def apply(model: Any, precision: str, emulate: bool) -> list[Optimization]:
    """Convert a model if the precision is fp8; return the line for the start of a run."""
    if precision != "fp8":
        return []
    return [Optimization("fp8", "training.precision", f"{convert(model, emulate)} layers", WHEN)]


def convert(model: Any, emulate: bool = False) -> int:
    """Replace linear layers inside the model's blocks; return how many now multiply in fp8.

    emulate: round as fp8 does and multiply in the layers' own precision, on any device, for tests.
    """
    from torch.nn import functional

    with warnings.catch_warnings():
        # torchao warns about inference kernels that this build of torch does not have.
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(max(before, logging.WARNING))
        try:
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            from torchao.float8.float8_linear import Float8Linear
        finally:
            logging.disable(before)

    class Layer(Float8Linear):
        """A linear layer that computes in fp8 in training only."""

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return functional.linear(x, self.weight, self.bias)
            output: Tensor = super().forward(x)
            return output

    converted = 0
    for block in model.blocks():
        convert_to_float8_training(
            block,
            # Padding, because the product for a weight's gradient runs over any number of tokens.
            config=Float8LinearConfig(emulate=emulate, pad_inner_dim=True),
            module_filter_fn=lambda layer, name: fits(layer),
        )
        for layer in block.modules():
            if type(layer) is Float8Linear:
                layer.__class__ = Layer
                converted += 1
    return converted


def fits(layer: Any, least: int = LEAST) -> bool:
    """Whether fp8 is a gain for a layer. It is none for a head, which is not in a block."""
    from torch import nn

    sizes = (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else (0,)
    return min(sizes) >= least and all(size % MULTIPLE == 0 for size in sizes)
