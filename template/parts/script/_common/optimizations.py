# -----------------------------------------------------------------------------
# Optimizations. `Resolved` decides which ones have an effect here. `configure`, `optimize_blocks`,
# `make_optimizer`, `make_autocast` and the data switch them on, and `print_table` shows them.

# Their values for --no-optimize, which is plain PyTorch in float32.
OFF: dict[str, Any] = {
    "precision": "fp32",
    "compile": "off",
    "fused": False,
    "cudnn_benchmark": False,
    "pin_memory": False,
    "expandable_segments": False,
    "gradient_checkpointing": False,
}
CUDA_GRAPHS = ["reduce-overhead", "max-autotune"]  # they overwrite gradients that add up
ALLOC_CONF = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]  # PyTorch's version decides which
USER_ALLOC_CONF = any(map(os.environ.get, ALLOC_CONF))


class Resolved:
    """The settings that have an effect here as `active`, and why others have none as `reasons`."""

    def __init__(self, settings: Settings):
        self.active = replace(settings)
        self.reasons: dict[str, str] = {}
        active = self.active
        resolve_own(self)
        has_gpu = DEVICE.type == "cuda"
        if not has_gpu:
            self.turn_off("needs a GPU", "pin_memory", "expandable_segments", "cudnn_benchmark")
        if USER_ALLOC_CONF:
            self.turn_off("PYTORCH_ALLOC_CONF is set and decides", "expandable_segments")
        if active.expandable_segments:
            for name in ALLOC_CONF:
                os.environ[name] = "expandable_segments:True"
        # From here on, CUDA does not read these variables any more.
        capability = torch.cuda.get_device_capability() if has_gpu else (0, 0)

        # bf16 on a CPU is slow, but it works.
        needs_sm80 = active.precision == "tf32" or (active.precision == "bf16" and has_gpu)
        if active.precision == "auto":
            active.precision = "fp32"
            if capability >= (7, 0):
                active.precision = "fp16"
            if capability >= (8, 0):
                active.precision = "bf16"
            self.reasons["precision"] = "auto: the fastest precision of this device"
        elif needs_sm80 and capability < (8, 0):
            self.turn_off(f"{active.precision} needs a GPU from sm 8.0", "precision")

        if active.compile == "auto" and capability < (8, 0):
            self.turn_off("auto: Triton needs a GPU from sm 8.0", "compile")
        elif active.compile == "auto":
            active.compile = "default"
        if active.compile in CUDA_GRAPHS and active.gradient_accumulation_steps > 1:
            self.turn_off(f"{active.compile} overwrites gradients that add up", "compile")

    def turn_off(self, reason: str, *names: str) -> None:
        for name in names:
            value = getattr(self.active, name)
            if value == OFF[name]:
                continue
            if value != getattr(Settings, name):  # the user asked for it
                print(f"note: --{name} has no effect: {reason}")
            setattr(self.active, name, OFF[name])
            self.reasons[name] = reason


def configure(settings: Settings) -> None:
    """Set PyTorch's global switches."""
    # TF32 also serves the float32 products that remain in half precision. Do not mix these two
    # with the newer `fp32_precision` flags, or PyTorch raises an error.
    use_tf32 = settings.precision != "fp32"
    torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = use_tf32
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)  # warns where no kernel exists


def optimize_blocks(blocks: list[nn.Module], settings: Settings) -> None:
    """Checkpoint the activations of blocks, and compile block by block, which takes less time."""
    for block in blocks:
        if settings.gradient_checkpointing:
            block.forward = partial(checkpointed, block.forward)
        if settings.compile != "off":
            block.compile(mode=settings.compile, dynamic=DYNAMIC_SHAPES)


def checkpointed(forward: Any, *inputs: Any, **named: Any) -> Any:
    """Run a forward whose activations are computed again in the backward pass.

    It is a function of this file, because PyTorch compiles no block that calls `checkpoint` itself.
    """
    return checkpoint(forward, *inputs, use_reentrant=False, **named)


def make_autocast(
    precision: str, batch_targets: int
) -> tuple[torch.autocast, torch.amp.GradScaler]:
    """Return the autocast context and the gradient scaler."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    autocast = torch.autocast(DEVICE.type, dtype, enabled=dtype is not None)
    # Only fp16 scales the loss, so that small gradients do not vanish. Gradients are sums over a
    # batch, so divide the usual first scale by its number of targets.
    scale = 65536.0 / 2 ** math.ceil(math.log2(batch_targets))
    return autocast, torch.amp.GradScaler(DEVICE.type, scale, enabled=precision == "fp16")


def read_comments() -> dict[str, str]:
    """Return the comment of each setting, or an empty text."""
    source = inspect.getsource(RunSettings) + inspect.getsource(Settings)
    return dict(re.findall(r"(\w+): [^#\n]*#? ?(.*)", source))


def print_table(resolved: Resolved) -> None:
    """Print each optimization with its state, and what it does or why it has no effect."""
    comments = read_comments()
    print(f"{'optimization':28} {'state':8} why")
    for name in [*OFF, "gradient_accumulation_steps", "deterministic"]:
        value = str(getattr(resolved.active, name))
        state = {"True": "on", "False": "off"}.get(value, value)
        print(f"{name:28} {state:8} {resolved.reasons.get(name, comments[name])}")
    print("Change one with its flag, such as --fused 0; --no-optimize turns them off.")
    device = "CPU, which has no TF32 and no cuDNN"
    if DEVICE.type == "cuda":
        gpu = torch.cuda.get_device_properties(DEVICE)
        device = (
            f"{gpu.name}, sm {gpu.major}.{gpu.minor}, {gpu.total_memory / 1e9:.0f} GB; "
            f"TF32 {gpu.major >= 8 and resolved.active.precision != 'fp32'}, cuDNN benchmark "
            f"{resolved.active.cudnn_benchmark}, deterministic {resolved.active.deterministic}"
        )
    print(f"device: {device}")
