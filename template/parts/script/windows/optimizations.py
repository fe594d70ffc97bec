OPTIMIZATIONS["chunk_loader"] = "a thread reads many blocks at once, ahead of the step"
OPTIMIZATIONS["resident"] = "training windows that fit into one chunk are read once, and stay"
OPTIMIZATIONS["num_workers"] = "processes that read window by window, without the chunk loader"
OFF["chunk_loader"] = False
OFF["resident"] = False
OFF["num_workers"] = 0
NO_LOADER = "the chunk loader needs no such variable"
DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    if not resolved.active.allow_unsafe_dataloader:
        resolved.turn_off("--allow_unsafe_dataloader forbids workers", "num_workers")
    if resolved.active.chunk_loader:
        resolved.turn_off("the chunk loader has a thread instead", "num_workers")
    else:
        resolved.turn_off("needs --chunk_loader", "resident")
