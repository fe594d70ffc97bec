def learning_rate_at(step: int, total_steps: int, settings: Settings) -> float:
    """Return the rate of a step: a warm-up, then cosine decay. It has no state to save."""
    peak = settings.learning_rate
    is_onecycle = settings.schedule == "onecycle"
    warmup = settings.warmup_steps
    if warmup < 0:
        warmup = round(0.3 * total_steps) if is_onecycle else min(100, total_steps // 10)
    decay_steps = max(total_steps - warmup, 1)
    if is_onecycle:  # from 1/25 of the peak, to almost 0; both parts are half a cosine
        if step < warmup:
            return peak * cosine(1 / 25, 1.0, step / max(warmup - 1, 1))
        return peak * cosine(1.0, 4e-6, (step - warmup + 1) / decay_steps)
    if step < warmup:
        return peak * ((step + 1) / warmup)
    return peak * cosine(1.0, settings.final_factor, (step - warmup) / decay_steps)


def cosine(start: float, end: float, passed: float) -> float:
    """Return the value on half a cosine from start to end; passed is from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * min(passed, 1.0))) / 2
