# -----------------------------------------------------------------------------
# Benchmark: optimizations on against off, in turns, on this machine.


def benchmark(settings: Settings, chosen: str) -> None:
    """Measure what all optimizations gain together, each one alone, or the chosen one."""
    resolved = Resolved(settings)
    print_table(resolved)
    print(f"{settings.rounds} rounds of {settings.log_every} steps; median (range) of the rounds")
    off = replace(settings, **OFF)
    if chosen == "all":
        compare("all optimizations", Trainer(settings), Trainer(off))
        return
    for name in OFF if chosen == "each" else [chosen]:
        # A switch that is off is switched on, to measure it.
        alone = Trainer(
            replace(settings, **OFF | {name: getattr(resolved.active, name) or OFF[name] is False})
        )
        if getattr(alone.settings, name) != OFF[name] and name != "expandable_segments":
            compare(name, alone, Trainer(off))


def compare(title: str, *trainers: Trainer) -> None:
    """Print the times of steps of two trainers in turns, and what the first one gains.

    The times and the memory of all rounds are written to a file.
    """
    settings = trainers[0].settings
    rounds = []
    for _ in range(settings.rounds + 1):
        rounds.append([time_steps(trainer) for trainer in trainers])
    measured = np.array(rounds[1:])  # the first round compiles and warms up
    on, off = measured[:, :, 0].T
    print(f"{title}: {spread(on)} ms a step against {spread(off)}: {spread(off / on)}× as fast")
    if DEVICE.type == "cuda":
        memory_on, memory_off = measured[-1, :, 1]
        print(f"{title}: a step adds {memory_on:.2f} against {memory_off:.2f} GB to the weights")
    folder = Path("benchmark_results")
    folder.mkdir(exist_ok=True)
    result = {"compared": title, "measured": measured.tolist(), **vars(settings)}
    write(folder / f"{datetime.now():%Y%m%d-%H%M%S-%f}.json", json.dumps(result).encode())


def time_steps(trainer: Trainer) -> tuple[float, float]:
    """Return the milliseconds of a step, and the GB that it adds to what is on the GPU."""
    configure(trainer.settings)
    held = torch.cuda.memory_allocated()  # also by the other trainer
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    count = trainer.settings.log_every
    start_time = time.perf_counter()
    for _ in range(count):
        trainer.step()
    trainer.mean_loss()  # waits for the GPU
    seconds = time.perf_counter() - start_time
    return 1000 * seconds / count, (torch.cuda.max_memory_allocated() - held) / 1e9


def spread(values: np.ndarray) -> str:
    return f"{np.median(values):.3g} ({values.min():.3g} to {values.max():.3g})"
