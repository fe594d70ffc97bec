OPTIMIZATIONS["resident"] = "the series stays on the device: no step waits for data"
OFF["resident"] = False
NO_LOADER = "a batch is one gather, without a DataLoader"
DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the series is resident", "pin_memory")
