DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    resolved.turn_off("the compiler gains nothing for an LSTM", "compile")
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the series is resident", "pin_memory")
