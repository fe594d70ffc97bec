"""What every test here leaves as it found it: the global switches and generators of torch."""

import pytest
import torch


@pytest.fixture(autouse=True)
def global_state():
    """Precision flags, determinism and random state are the process's own."""
    precision = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = cudnn
