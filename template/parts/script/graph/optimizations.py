OPTIMIZATIONS["cached_graphs"] = "graphs are computed once and kept in a file, not in each batch"
OPTIMIZATIONS["resident"] = "the panel stays on the device: no step waits for data"
OFF["cached_graphs"] = False
OFF["resident"] = False
NO_LOADER = "a batch is one gather, without a DataLoader"
DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the panel is resident", "pin_memory")
