# -----------------------------------------------------------------------------
# Checkpoints: step-<step>-<sha256>.pt, named as in torch.hub. After a crash, a checkpoint is
# complete or absent. Damaged ones are skipped.


PARTS = ["model", "optimizer", "scaler"]  # of a Trainer, with a state


def generators() -> list[torch.Generator]:
    return [torch.default_generator, *torch.cuda.default_generators]


def make_checkpoint(trainer: Trainer) -> dict:
    """Return everything that a resumed run needs to continue bit for bit."""
    state: Any = np.random.get_state()
    name, keys, *numpy_state = state
    return {
        **{name: getattr(trainer, name).state_dict() for name in PARTS},
        **vars(trainer.progress),
        "python_random": random.getstate(),
        # A list, because torch.load accepts no NumPy arrays.
        "numpy_random": [name, keys.tolist(), *numpy_state],
        "torch_random": [generator.get_state() for generator in generators()],
        "data": trainer.data.facts,
    }


def names_not_finite(trainer: Trainer) -> set[str]:
    """Return the tensors of the model and the optimizer that are not finite."""
    return {
        name
        for state in [trainer.model.state_dict(), *trainer.optimizer.state.values()]
        for name, value in state.items()
        if not torch.as_tensor(value).isfinite().all()
    }


def restore(trainer: Trainer, checkpoint: dict) -> None:
    """Restore the model, the optimizer, the scaler, the progress and all random generators."""
    for name in PARTS:
        getattr(trainer, name).load_state_dict(checkpoint[name])
    for name in vars(trainer.progress):
        setattr(trainer.progress, name, checkpoint[name])
    random.setstate(checkpoint["python_random"])
    np.random.set_state(checkpoint["numpy_random"])
    for generator, state in zip(generators(), checkpoint["torch_random"], strict=False):
        generator.set_state(state.cpu())


def lock(run: Path) -> sqlite3.Connection:
    """Reserve the run for this process, as long as it keeps the connection.

    SQLite locks on every system, and worker processes do not inherit its lock.
    """
    connection = sqlite3.connect(run / ".lock", timeout=0)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:  # else the file system has no locks
            raise UserError(f"another process uses the run: {run}: wait until it ends") from None
    return connection


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a temporary file and rename it, so that a crash leaves the old file or the new one."""
    temporary = path.with_name("temporary")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # wait until the content is on the disk
    temporary.replace(path)


def save_checkpoint(trainer: Trainer, run: Path) -> None:
    """Save a checkpoint, unless something is not finite. Keep the two newest and the best."""
    trainer.check()
    broken = names_not_finite(trainer) - trainer.not_finite
    if broken:
        raise UserError(
            f"{min(broken)} is not finite after step {trainer.progress.step}: check Model and "
            "make_optimizer, or use a smaller --learning_rate, and --resume"
        )
    buffer = io.BytesIO()
    torch.save(make_checkpoint(trainer), buffer)
    content = buffer.getbuffer()
    digest = hashlib.sha256(content).hexdigest()[:16]
    folder = run / "checkpoints"
    write(folder / f"step-{trainer.progress.step:08d}-{digest}.pt", content)
    for path in sorted(folder.glob("step-*.pt"))[:-2]:
        if f"step-{trainer.progress.best_step:08d}-" not in path.name:
            path.unlink()


def load_checkpoint(folder: Path, pattern: str = "step-*.pt") -> dict:
    """Return the newest undamaged checkpoint, or an empty dictionary if there is none at all."""
    # `glob` finds nothing in a folder that cannot be listed now.
    for path in sorted(folder.iterdir(), reverse=True):
        if not path.match(pattern):
            continue
        content = path.read_bytes()
        if path.stem.endswith(hashlib.sha256(content).hexdigest()[:16]):
            # A checkpoint of somebody else cannot run code.
            try:
                found = torch.load(io.BytesIO(content), map_location=DEVICE, weights_only=True)
                if "best_step" not in found:  # a file of another program
                    raise ValueError
                return found
            except Exception:
                raise UserError(f"cannot load it: {path}: use another checkpoint") from None
        # With another name, it does not count as one of the two newest.
        print(f"warning: {path} is damaged: renamed to .damaged")
        path.replace(path.with_suffix(".damaged"))
    if any(folder.glob("*.damaged")):
        raise UserError(f"no undamaged checkpoint: {folder}: restore one, or start a new run")
    return {}


def read_log(run: Path) -> Iterator[tuple]:
    """Yield line, step, loss and split of each record in metrics.jsonl.

    A damaged line has step 0 and no split, so that it costs nothing else.
    """
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        try:
            record = json.loads(line)
            # A list, and a number that is too large for these types, are damaged, too.
            step = np.int32(int(record["step"]))
            yield line, step, np.float32(record["loss"]).item(), record.get("split", "train")
        except Exception:
            print(f"note: not a record of a loss: {run}/metrics.jsonl: {line[:80]!r}")
            yield line, 0, math.nan, ""


def start_or_resume(trainer: Trainer, settings: Settings, run: Path) -> None:
    """Restore the newest checkpoint of the run, if any, and prepare its files."""
    metrics_file = run / "metrics.jsonl"
    checkpoint = load_checkpoint(run / "checkpoints")
    if checkpoint:
        if checkpoint["data"] != trainer.data.facts:
            raise UserError(f"the data changed since the run began: {run}: restore the file")
        restore(trainer, checkpoint)
        # Drop the records after the checkpoint, because the run writes them again.
        metrics_file.touch()
        content = b"".join(
            line + b"\n"
            for line, step, _, split in read_log(run)
            if step <= trainer.progress.step and split != "test"
        )
    else:
        write(run / "settings.json", json.dumps(vars(settings), indent=1).encode())
        content = b""
    write(metrics_file, content)
