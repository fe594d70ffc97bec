"""Names that settings have in older projects, accepted in files and as flags; delete it if yours has none."""

KEYS = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")

ALIASES = {f"train.batch.{name}": f"data.{name}" for name in KEYS}
"""Another spelling → the setting."""
