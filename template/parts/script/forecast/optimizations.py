DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the series are resident", "pin_memory")
