OPTIMIZATIONS["num_workers"] = "processes that read ahead; use them if a sample takes work to load"
OPTIMIZATIONS["persistent_workers"] = "workers stay alive between epochs"
OFF["num_workers"] = 0
OFF["persistent_workers"] = False
WITHOUT_EFFECT: dict[str, str] = {}
DYNAMIC_SHAPES = False


def resolve_own(resolved: Resolved) -> None:
    """Switch off what has no effect in this script."""
    name = "ALLOW_UNSAFE_DATALOADER"
    if os.environ.get(name) and not read_switch(os.environ[name], name):
        resolved.turn_off(f"{name} forbids workers", "num_workers")
    if not resolved.active.num_workers:
        resolved.turn_off("there are no workers", "persistent_workers")
