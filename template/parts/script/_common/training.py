# -----------------------------------------------------------------------------
# Training. metrics.jsonl has one JSON object per line, for training and evaluation.


SIGNALS = [
    number
    for number in signal.Signals  # Windows has only two of these
    if number.name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
]


def collect_signals() -> list[int]:
    """Return a list that receives signals, so that the loop saves and stops; a second one exits."""
    signals: list = []

    def receive(number: int, frame: object) -> None:
        if signals:
            os._exit(128 + number)
        signals.append(number)
        print("saving after this step; press again to exit at once", file=sys.stderr)

    for number in SIGNALS:
        # Keep ignoring signals that nohup ignores.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, receive)
    return signals


def log(run: Path, record: dict) -> None:
    """Append a record to metrics.jsonl and print it."""
    # JSON has no NaN and no infinity, which is the norm of a step that overflows in fp16.
    with open(run / "metrics.jsonl", "a") as file:
        file.write(re.sub("NaN|-?Infinity", "null", json.dumps(record)) + "\n")
    for name, value in record.items():
        if isinstance(value, float):
            value = f"{value:.5g}"
        print(f"{name} {value}", end="  ")
    print(flush=True)


def log_training(trainer: Trainer, run: Path, norm: Tensor, start_time: float, steps: int) -> None:
    """Log the losses and the speed of the last steps, which began at the start time."""
    step = trainer.progress.step
    loss = trainer.mean_loss()  # waits for the GPU
    seconds = time.perf_counter() - start_time
    remaining = round(seconds / steps * (trainer.total_steps - step))
    record = {
        "step": step,
        "epoch": math.ceil(step / trainer.steps_per_epoch),
        "loss": loss,
        "learning_rate": trainer.optimizer.param_groups[0]["lr"],
        "gradient_norm": norm.item(),
        "samples_per_second": trainer.step_size * steps / seconds,
        "step_ms": 1000 * seconds / steps,
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "remaining": f"{timedelta(seconds=remaining)}",
    }
    log(run, record)


def train(trainer: Trainer, run: Path, signals: list[int]) -> None:
    """Train to the last step or a signal."""
    settings = trainer.settings
    progress = trainer.progress
    evaluate_every = settings.evaluate_every or trainer.steps_per_epoch
    save_every = settings.save_every or trainer.steps_per_epoch

    logged_step = progress.step
    start_time = time.perf_counter()
    is_over = progress.step >= trainer.total_steps
    while not is_over:
        norm = trainer.step()
        step = progress.step
        is_last = step == trainer.total_steps

        # Log, also some of the first steps, so that you see something soon.
        is_early = step in (1, 2, 5, 10, 20) and step < settings.log_every
        if is_last or is_early or step % settings.log_every == 0:
            log_training(trainer, run, norm, start_time, step - logged_step)
            logged_step = step
            start_time = time.perf_counter()

        # Evaluate.
        pause_time = time.perf_counter()
        if is_last or step % evaluate_every == 0:
            metrics = trainer.evaluate("validation")
            log(run, {"step": step, "split": "validation", **metrics})
            if -math.inf < metrics["loss"] < progress.best_loss:
                progress.best_loss = metrics["loss"]
                progress.best_step = step

        # Save. A signal that comes later stops the run after the next step.
        is_over = is_last or bool(signals)
        if is_over or progress.best_step == step or step % save_every == 0:
            save_checkpoint(trainer, run)
        start_time += time.perf_counter() - pause_time


def plot_curves(run: Path) -> None:
    """Draw the losses of metrics.jsonl."""
    records = [*read_log(run)]
    figure = Figure()
    axes = figure.subplots()
    for name in ("train", "validation"):
        points = [(step, loss) for _, step, loss, split in records if split == name]
        axes.plot(*np.transpose(points), label=f"{name} loss")
    axes.legend()
    figure.savefig(run / "curves.png")


def run_training(settings: Settings, run: Path) -> int:
    """Train from the newest checkpoint, if any, to the end or a signal. Return the exit code."""
    signals = collect_signals()
    trainer = Trainer(settings)
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    reserved = lock(run)
    start_or_resume(trainer, settings, run)
    print_table(trainer.resolved)
    if settings.warmup_steps > trainer.total_steps:
        print("note: the warm-up is longer than the run: lower --warmup_steps, or train longer")
    progress = trainer.progress
    print(f"{run}: {DEVICE}, step {progress.step} of {trainer.total_steps}")
    train(trainer, run, signals)

    best = load_checkpoint(folder, f"step-{progress.best_step:08d}-*.pt")
    if best and progress.step >= trainer.total_steps and trainer.data.splits["test"]:
        trainer.model.load_state_dict(best["model"])
        metrics = trainer.evaluate("test")
        log(run, {"step": progress.best_step, "split": "test", **metrics})
    plot_curves(run)
    reserved.close()
    if signals:
        return 128 + signals[0]
    return 0
