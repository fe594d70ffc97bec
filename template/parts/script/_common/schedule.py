def learning_rate_at(step: int, total_steps: int, settings: Settings) -> float:
    """Return the rate of a step: linear warm-up, then cosine decay. It has no state to save."""
    warmup = settings.warmup_steps
    if warmup < 0:
        warmup = min(100, total_steps // 10)
    if step < warmup:
        return settings.learning_rate * ((step + 1) / warmup)
    passed = min((step - warmup) / max(total_steps - warmup, 1), 1.0)
    final = settings.final_factor
    return settings.learning_rate * (final + (1.0 - final) * (1 + math.cos(math.pi * passed)) / 2)
