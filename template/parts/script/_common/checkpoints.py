# -----------------------------------------------------------------------------
# Checkpoints: step-<step>-<sha256>.pt, named as in torch.hub. After a crash, a checkpoint is
# complete or absent. Damaged ones are skipped.


def generators() -> list[torch.Generator]:
    return [torch.default_generator, *torch.cuda.default_generators]


def make_checkpoint(trainer: Trainer) -> dict:
    """Return everything that a resumed run needs to continue bit for bit."""
    state: Any = np.random.get_state()
    name, keys, *numpy_state = state
    return {
        **{name: part.state_dict() for name, part in trainer.parts.items()},
        **vars(trainer.progress),
        "random_states": {
            "python": random.getstate(),
            # A list, because torch.load accepts no NumPy arrays.
            "numpy": [name, keys.tolist(), *numpy_state],
            "torch": [generator.get_state() for generator in generators()],
        },
        "data": trainer.data.facts,
    }


def restore(trainer: Trainer, checkpoint: dict, run: Path) -> None:
    """Restore the model, the optimizer, the scaler, the progress and all random generators."""
    try:
        for name, part in trainer.parts.items():
            part.load_state_dict(checkpoint[name])
        states = checkpoint["random_states"]
        trainer.progress = Progress(**{name: checkpoint[name] for name in vars(Progress())})
    except (KeyError, ValueError, RuntimeError) as error:
        reason = str(error).rpartition("\n")[2].strip()
        raise UserError(
            f"the checkpoint does not fit this train.py ({reason[:200]}): {run}: "
            "use the train.py that wrote it, or start a new run"
        ) from None
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    for generator, state in zip(generators(), states["torch"], strict=False):
        generator.set_state(state.cpu())


def lock(run: Path) -> None:
    """Reserve the run for this process until it ends. Worker processes do not inherit the lock."""
    file = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if sys.platform == "win32":
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise UserError(f"another process uses the run: {run}: wait until it ends") from None
    except OSError:
        pass  # a file system without locks


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a temporary file and rename it, so that a crash leaves the old file or the new one."""
    temporary = path.with_name("temporary")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # wait until the content is on the disk
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_checkpoint(folder: Path, checkpoint: dict) -> None:
    """Save a checkpoint. Keep the two newest and the best."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    content = buffer.getbuffer()
    digest = hashlib.sha256(content).hexdigest()[:16]
    write(folder / f"step-{checkpoint['step']:08d}-{digest}.pt", content)
    best = f"step-{checkpoint['best_step']:08d}-"
    for path in sorted(folder.glob("step-*.pt"))[:-2]:
        if best not in path.name:
            path.unlink()


def load_checkpoint(folder: Path, pattern: str = "step-*.pt") -> dict:
    """Return the newest undamaged checkpoint, or an empty dictionary."""
    for path in sorted(folder.glob(pattern), reverse=True):
        content = path.read_bytes()
        if path.stem.endswith(hashlib.sha256(content).hexdigest()[:16]):
            try:
                return torch.load(io.BytesIO(content), map_location=DEVICE, weights_only=True)
            except Exception as error:  # the hash is right: another program wrote it
                raise UserError(
                    f"cannot load ({type(error).__name__}): {path}: restore it"
                ) from None
        # With another name, it does not count as one of the two newest.
        print(f"warning: {path} is damaged: renamed to .damaged")
        path.replace(path.with_suffix(".damaged"))
    return {}


def start_or_resume(trainer: Trainer, settings: Settings, run: Path) -> None:
    """Restore the newest checkpoint of the run, if any, and prepare its files."""
    metrics_file = run / "metrics.jsonl"
    folder = run / "checkpoints"
    checkpoint = load_checkpoint(folder)
    if checkpoint:
        if checkpoint["data"] != trainer.data.facts:
            raise UserError(f"the data changed since the run began: {run}: restore the file")
        restore(trainer, checkpoint, run)
        # Drop the records after the checkpoint, because the run writes them again.
        metrics_file.touch()
        write(metrics_file, metrics_file.read_bytes()[: checkpoint["metrics_size"]])
    elif any(folder.glob("*.damaged")):
        raise UserError(f"all checkpoints are damaged: {folder}: restore one")
    else:
        write(run / "settings.json", json.dumps(asdict(settings), indent=1).encode())
        write(metrics_file, b"")
