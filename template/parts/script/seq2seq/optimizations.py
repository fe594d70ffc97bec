OPTIMIZATIONS["resident"] = "all tokens stay on the device: no step waits for data"
OPTIMIZATIONS["bucket"] = "pairs of similar length share a batch, with little padding"
OFF["resident"] = False
OFF["bucket"] = False
DYNAMIC_SHAPES = True  # batches have many lengths: compile each block once for all of them
NO_LOADER = "a batch is one gather, without a DataLoader"


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the tokens are resident", "pin_memory")
