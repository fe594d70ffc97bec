OPTIMIZATIONS["resident"] = "the text stays on the device; off: it is read from the mapped file"
OFF["resident"] = False
NO_LOADER = "a batch is one gather, without a DataLoader"
DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the text is resident", "pin_memory")
