# -----------------------------------------------------------------------------
# Benchmark: optimizations on against off, in turns, on this machine.


def benchmark(settings: Settings, each: bool) -> None:
    """Print what all optimizations gain together, or each one alone."""
    optimized = Trainer(settings)
    active = optimized.settings
    print_table(optimized.resolved)
    print(f"{settings.rounds} rounds of {settings.log_every} steps; median (range) of the rounds")
    off = replace(settings, **OFF)
    if not each:
        compare("all optimizations", optimized, Trainer(off))
        return
    del optimized
    for name, value in OFF.items():
        if getattr(active, name) != value and name != "expandable_segments":
            alone = replace(off, **{name: getattr(active, name)})
            compare(name, Trainer(alone), Trainer(off))


def compare(title: str, *trainers: Trainer) -> None:
    """Print the times of steps of two trainers in turns, and what the first one gains."""
    steps = [trainer.steps() for trainer in trainers]
    rounds = []
    for _ in range(trainers[0].settings.rounds + 1):
        rounds.append([time_steps(*pair) for pair in zip(trainers, steps, strict=True)])
    measured = np.array(rounds[1:])  # the first round compiles and warms up
    on, off = measured[:, :, 0].T
    print(f"{title}: {spread(on)} ms a step against {spread(off)}: {spread(off / on)}× as fast")
    if DEVICE.type == "cuda":
        memory_on, memory_off = measured[-1, :, 1]
        print(f"{title}: peak memory {memory_on:.2f} against {memory_off:.2f} GB")


def time_steps(trainer: Trainer, steps: Iterator) -> tuple[float, float]:
    """Return the milliseconds of a step, and the peak memory of the GPU in GB."""
    configure(trainer.settings)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    count = trainer.settings.log_every
    start_time = time.perf_counter()
    for micro_batches in islice(steps, count):
        trainer.step(micro_batches)
    trainer.mean_loss()  # waits for the GPU
    seconds = time.perf_counter() - start_time
    return 1000 * seconds / count, torch.cuda.max_memory_allocated() / 1e9


def spread(values: np.ndarray) -> str:
    return f"{np.median(values):.3g} ({values.min():.3g} to {values.max():.3g})"
