# --- activation checkpointing


def checkpoint_blocks(blocks: list[nn.Module]) -> None:
    """Checkpoint activations: backward runs each block's forward again, instead of storing them.

    `training.gradient_checkpointing` takes about half of the memory. Evaluation is unaffected.
    """
    for block in blocks:
        # A head is left out, because its backward follows its forward at once.
        if getattr(block, "recomputes", True):
            block.forward = _checkpointed(block.forward)
