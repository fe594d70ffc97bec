DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    resolved.turn_off("the compiler gains nothing for an LSTM", "compile")
    if not resolved.active.allow_unsafe_dataloader:
        resolved.turn_off("--allow_unsafe_dataloader forbids workers", "num_workers")
    if resolved.active.chunk_loader:
        resolved.turn_off("the chunk loader has a thread instead", "num_workers")
    else:
        resolved.turn_off("needs --chunk_loader", "resident")
