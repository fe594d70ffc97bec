DYNAMIC_SHAPES = True  # batches have many lengths: compile each block once for all of them


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if resolved.active.resident:
        resolved.turn_off("nothing to copy: the tokens are resident", "pin_memory")
    if resolved.active.optimizer == "adafactor":
        resolved.turn_off("adafactor has no such kernel", "fused")
