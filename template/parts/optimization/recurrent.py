# --- activation checkpointing


def checkpoint_blocks(blocks: list[nn.Module]) -> None:
    """Checkpoint activations: backward runs each block's forward again, instead of storing them.

    `training.gradient_checkpointing` takes about half of the memory. Evaluation is unaffected.
    """
    for block in blocks:
        rnns = [module for module in block.modules() if isinstance(module, nn.RNNBase)]
        for rnn in rnns:
            rnn.forward = _checkpointed_in_stretches(rnn)
        # A head is left out, because its backward follows its forward at once.
        if not rnns and getattr(block, "recomputes", True):
            block.forward = _checkpointed(block.forward)


def _checkpointed_in_stretches(rnn: nn.RNNBase) -> Any:
    """Return the forward of an RNN, with checkpoints along its T steps of time.

    Backward would otherwise compute all steps again and hold their activations at once. With √T
    stretches of √T steps, it holds those of one stretch, and the states between stretches.
    """
    one_stretch = _checkpointed(rnn.forward)

    @functools.wraps(one_stretch)
    def run(input: Any, hx: Any = None) -> Any:
        # The second direction begins at the end, so it cannot be cut.
        is_whole = rnn.bidirectional or not isinstance(input, torch.Tensor)
        if is_whole or not torch.is_grad_enabled():
            return one_stretch(input, hx)
        time_axis = input.dim() - 2 if rnn.batch_first else 0
        outputs = []
        for stretch in input.tensor_split(int(input.shape[time_axis] ** 0.5), time_axis):
            output, hx = one_stretch(stretch, hx)
            outputs.append(output)
        return torch.cat(outputs, time_axis), hx

    return run
