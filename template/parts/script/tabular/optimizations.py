DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if not resolved.active.allow_unsafe_dataloader:
        resolved.turn_off("--allow_unsafe_dataloader forbids workers", "num_workers")
    if not resolved.active.num_workers:
        resolved.turn_off("there are no workers", "persistent_workers")
