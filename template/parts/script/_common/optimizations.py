# -----------------------------------------------------------------------------
# Optimizations. `Resolved` decides which ones have an effect here. `configure`, `optimize_blocks`,
# `make_optimizer`, `Trainer` and the data switch them on, and `print_table` shows them.

# What the settings have besides their defaults, and the values for --no-optimize, which is plain
# PyTorch in float32.
DETAILS = {each.name: each.metadata for each in fields(Settings)}
OFF = {name: details["off"] for name, details in DETAILS.items() if "off" in details}
ALLOC_CONF = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]  # PyTorch's version decides which
USER_ALLOC_CONF = any(map(os.environ.get, ALLOC_CONF))


class Resolved:
    """The settings that have an effect here as `active`, and why others have none as `reasons`."""

    def __init__(self, settings: Settings):
        active = replace(settings)
        self.active = active
        self.reasons = {}
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
        is_sm80 = capability >= (8, 0)

        # bf16 on a CPU is slow, but it works.
        needs_sm80 = active.precision == "tf32" or (active.precision == "bf16" and has_gpu)
        if active.precision == "auto":
            active.precision = "fp32"
            if capability >= (7, 0):
                active.precision = "fp16"
            if is_sm80:
                active.precision = "bf16"
            self.reasons["precision"] = "auto: the fastest precision of this device"
        elif needs_sm80 and not is_sm80:
            self.turn_off(f"{active.precision} needs a GPU from sm 8.0", "precision")

        if active.compile == "auto":
            if is_sm80:
                active.compile = "default"
            else:
                self.turn_off("auto: Triton needs a GPU from sm 8.0", "compile")
        has_cuda_graphs = active.compile in ("reduce-overhead", "max-autotune")
        if has_cuda_graphs and active.gradient_accumulation_steps > 1:
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


def print_table(resolved: Resolved) -> None:
    """Print each optimization with its state, and what it does or why it has no effect."""
    print(f"{'optimization':28} {'state':8} why")
    for name in [*OFF, "gradient_accumulation_steps", "deterministic"]:
        value = str(getattr(resolved.active, name))
        state = {"True": "on", "False": "off"}.get(value, value)
        print(f"{name:28} {state:8} {resolved.reasons.get(name, DETAILS[name]['help'])}")
    print("Change one with its flag, such as --fused 0; --no-optimize turns them off.")
    if DEVICE.type == "cpu":
        print("device: CPU, which has no TF32 and no cuDNN")
        return
    gpu = torch.cuda.get_device_properties(DEVICE)
    print(
        f"device: {gpu.name}, sm {gpu.major}.{gpu.minor}, {gpu.total_memory / 1e9:.0f} GB; "
        f"TF32 {gpu.major >= 8 and resolved.active.precision != 'fp32'}, cuDNN benchmark "
        f"{resolved.active.cudnn_benchmark}, deterministic {resolved.active.deterministic}"
    )
