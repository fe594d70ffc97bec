# -----------------------------------------------------------------------------
# Benchmark: optimizations on against off, in turns, on this machine.

UNMEASURED = ["expandable_segments", "freeze_garbage", "gradient_accumulation_steps"]


def benchmark(settings: Settings, rounds: int, each: bool) -> None:
    """Print what all optimizations gain together, or each one alone, with the spread."""
    optimized = Trainer(settings)
    print_table(optimized.resolved, settings)
    off = replace(settings, **OFF)
    active = optimized.settings
    print(f"{rounds} rounds of {settings.log_every} steps; median (range) of the ratios in turns")
    if not each:
        compare("all optimizations", optimized, Trainer(off), rounds)
        return
    del optimized
    for name, value in OFF.items():
        if getattr(active, name) != value and name not in UNMEASURED:
            alone = replace(off, **{name: getattr(active, name)})
            compare(name, Trainer(alone), Trainer(off), rounds)


def compare(title: str, with_it: Trainer, without: Trainer, rounds: int) -> None:
    """Time steps with and without optimizations in turns, and print times and gain."""
    times = []
    steps = [with_it.steps(), without.steps()]
    for _ in range(rounds + 1):
        on = time_steps(with_it, islice(steps[0], with_it.settings.log_every))
        off = time_steps(without, islice(steps[1], with_it.settings.log_every))
        times.append((off[0] / on[0], on[0], off[0], on[1], off[1]))
    # The first round compiles and warms up.
    ratios, ons, offs, memory_on, memory_off = zip(*times[1:], strict=True)
    text = f"{title}: {spread(ons)} ms a step against {spread(offs)}: {spread(ratios)}× as fast"
    if min(ratios) <= 1 <= max(ratios):
        text += ", which is no difference that these rounds show"
    print(text)
    if DEVICE.type == "cuda":
        peaks = f"{max(memory_on):.2f} against {max(memory_off):.2f} GB"
        print(f"{title}: peak memory {peaks}")


def time_steps(trainer: Trainer, steps: Iterator) -> tuple[float, float]:
    """Return the milliseconds of a step, and the peak memory of the GPU in GB."""
    configure(trainer.settings)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    first_step = trainer.progress.step
    start_time = time.perf_counter()
    for micro_batches in steps:
        trainer.step(micro_batches)
    trainer.mean_loss()  # waits for the GPU
    seconds = time.perf_counter() - start_time
    trainer.progress.micro_batches.clear()
    trainer.norms.clear()
    peak = torch.cuda.max_memory_allocated() / 1e9 if DEVICE.type == "cuda" else 0.0
    return 1000 * seconds / (trainer.progress.step - first_step), peak


def spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
