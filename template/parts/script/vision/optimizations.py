DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the images are resident", "pin_memory")
    resolved.turn_off("a second forward would change batch norm", "gradient_checkpointing")
