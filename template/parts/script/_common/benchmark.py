# -----------------------------------------------------------------------------
# Benchmark: optimizations on against off, in turns, on this machine.

UNMEASURED = ["expandable_segments", "freeze_garbage", "gradient_accumulation_steps"]


def benchmark(settings: Settings, each: bool) -> None:
    """Print what all optimizations gain together, or each one alone."""
    optimized = Trainer(settings)
    print_table(optimized.resolved, settings)
    print(f"{settings.rounds} rounds of {settings.log_every} steps; median (range) of the rounds")
    off = replace(settings, **OFF)
    if not each:
        compare("all optimizations", optimized, Trainer(off))
        return
    active = optimized.settings
    del optimized
    for name, value in OFF.items():
        if getattr(active, name) != value and name not in UNMEASURED:
            alone = replace(off, **{name: getattr(active, name)})
            compare(name, Trainer(alone), Trainer(off))


def compare(title: str, optimized: Trainer, plain: Trainer) -> None:
    """Print the times of steps with and without optimizations, and what these gain."""
    steps_optimized = optimized.steps()
    steps_plain = plain.steps()
    times = []
    for _ in range(plain.settings.rounds + 1):
        on, memory_on = time_steps(optimized, steps_optimized)
        off, memory_off = time_steps(plain, steps_plain)
        times.append((off / on, on, off))
    # The first round compiles and warms up.
    ratios, times_on, times_off = zip(*times[1:], strict=True)
    against = f"{spread(times_on)} ms a step against {spread(times_off)}"
    text = f"{title}: {against}: {spread(ratios)}× as fast"
    if min(ratios) <= 1 <= max(ratios):
        text += ", which is no difference that these rounds show"
    print(text)
    if DEVICE.type == "cuda":
        print(f"{title}: peak memory {memory_on:.2f} against {memory_off:.2f} GB")


def time_steps(trainer: Trainer, steps: Iterator) -> tuple[float, float]:
    """Return the milliseconds of a step, and the peak memory of the GPU in GB."""
    configure(trainer.settings)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    first_step = trainer.progress.step
    start_time = time.perf_counter()
    for micro_batches in islice(steps, trainer.settings.log_every):
        trainer.step(micro_batches)
    trainer.mean_loss()  # waits for the GPU
    seconds = time.perf_counter() - start_time
    trainer.progress.micro_batches.clear()
    trainer.norms.clear()
    peak = torch.cuda.max_memory_allocated() / 1e9 if DEVICE.type == "cuda" else 0.0
    return 1000 * seconds / (trainer.progress.step - first_step), peak


def spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
