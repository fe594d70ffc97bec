"""Names that settings have in older projects, accepted in files and as flags; delete it if yours has none."""

ALIASES = {
    f"{section}.{name}": key
    for section in ("data", "training")
    for name, key in {
        "batch_size": "data.batch_size",
        "chunk_size_gb": "data.chunk_size_gb",
        "num_workers": "data.num_workers",
        "pin_memory": "data.pin_memory",
        "gradient_accumulation_steps": "training.gradient_accumulation_steps",
        "use_amp": "use_amp",
        "log_gpu_stats_every_n_batches": "monitor.every_steps",
    }.items()
    if f"{section}.{name}" != key
}
"""Another spelling → the setting."""

OBSOLETE = {
    "use_chunk_loader": "`copier update -d loader=chunk` decides",
    "empty_cache_every_n_epochs": "emptying the GPU's cache takes time and frees nothing live",
}
"""Names that do nothing any more → why."""
