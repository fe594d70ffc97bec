"""Names that settings have in older projects, accepted in files and as flags; delete it if yours has none."""

ALIASES = {
    "training.batch_size": "data.batch_size",
    "training.chunk_size_gb": "data.chunk_size_gb",
    "training.num_workers": "data.num_workers",
    "training.pin_memory": "data.pin_memory",
    "training.use_amp": "use_amp",
    "training.log_gpu_stats_every_n_batches": "monitor.every_steps",
    "data.gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "data.use_amp": "use_amp",
    "data.log_gpu_stats_every_n_batches": "monitor.every_steps",
}
"""Another spelling → the setting."""

OBSOLETE = {
    "use_chunk_loader": "`copier update -d loader=chunk` decides",
    "empty_cache_every_n_epochs": "emptying the GPU's cache takes time and frees nothing live",
}
"""Names that do nothing any more → why."""
