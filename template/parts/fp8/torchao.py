"""fp8 for the matrix products of large linear layers, by torchao.

Weights and the optimizer stay fp32. It pays from sm 8.9 on, with compile, for large models: 1.17
times the speed of bf16 at 26 layers on 8 H100 (karpathy/nanochat, dev/LOG.md), less than 1 on small
ones, and a quarter of it without compile. `training.precision bf16` turns it off. Evaluation and
generation compute in bf16.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

WHEN = "evaluation in bf16; without compile and on small models it loses time"
MULTIPLE = 16  # of both sizes of a matrix, as the hardware wants it
LEAST = 128  # smaller matrices lose more by scaling than they gain


def convert(model: Any, emulate: bool = False) -> int:
    """Replace linear layers inside the model's blocks; return how many now multiply in fp8.

    emulate: rounds as fp8 does and multiplies in the layers' own precision, on any device, to test.
    """
    with warnings.catch_warnings():
        # Of kernels for inference that this torch has no build of, and between the two libraries.
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(max(before, logging.WARNING))
        try:
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            from torchao.float8.float8_linear import Float8Linear
        finally:
            logging.disable(before)

    class Layer(Float8Linear):
        """fp8 in training only."""

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return functional.linear(x, self.weight, self.bias)
            output: Tensor = super().forward(x)
            return output

    converted = 0
    for block in model.blocks():
        convert_to_float8_training(
            block,
            # Padded: the product for a weight's gradient runs over the tokens, in any number.
            config=Float8LinearConfig(emulate=emulate, pad_inner_dim=True),
            module_filter_fn=lambda layer, name: fits(layer),
        )
        for layer in block.modules():
            if type(layer) is Float8Linear:
                layer.__class__ = Layer
                converted += 1
    return converted


def fits(layer: nn.Module, least: int = LEAST) -> bool:
    """Whether a layer gains by fp8; a head over the vocabulary does not, and stands in no block."""
    sizes = (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else (0,)
    return min(sizes) >= least and all(size % MULTIPLE == 0 for size in sizes)
