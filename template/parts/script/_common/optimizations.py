# -----------------------------------------------------------------------------
# Optimizations. `resolve` decides which ones have an effect here. `configure`, `optimize_blocks`,
# `make_optimizer`, `make_autocast` and the data switch them on, and `print_table` shows them.

OPTIMIZATIONS = {
    "precision": "tensor cores compute in bf16, fp16 or TF32; weights stay float32",
    "compile": "fuses the kernels of each block; the first steps wait for the compiler",
    "fused": "one kernel updates all weights",
    "cudnn_benchmark": "times the kernels of convolutions; the next run may use others",
    "pin_memory": "copies to the GPU overlap with its work",
    "expandable_segments": "GPU memory does not fragment",
    "freeze_garbage": "garbage collection skips the objects that live as long as the run",
    "gradient_checkpointing": "saves memory: backward computes each block again, which takes time",
    "gradient_accumulation_steps": "micro-batches in a step: the memory of a small batch",
    "deterministic": "slower kernels that give the same result twice; a warning where none exists",
}
# Their values for --no-optimize, which is plain PyTorch in float32.
OFF: dict[str, Any] = {
    "precision": "fp32",
    "compile": "off",
    "fused": False,
    "cudnn_benchmark": False,
    "pin_memory": False,
    "expandable_segments": False,
    "freeze_garbage": False,
    "gradient_checkpointing": False,
}
CUDA_GRAPHS = ["reduce-overhead", "max-autotune"]  # they overwrite gradients that add up


class Resolved:
    """The settings that have an effect here as `active`, and why others have none as `reasons`."""

    def __init__(self, settings: Settings, model: nn.Module, blocks: list[nn.Module]):
        self.active = replace(settings)
        self.reasons: dict[str, str] = {}
        active = self.active
        has_gpu = DEVICE.type == "cuda"
        capability = torch.cuda.get_device_capability() if has_gpu else (0, 0)
        if os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"):
            self.turn_off("PYTORCH_ALLOC_CONF is set and decides", "expandable_segments")
        if not has_gpu:
            self.turn_off("needs a GPU", "pin_memory", "expandable_segments", "cudnn_benchmark")
        if not any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules()):
            self.turn_off("the model has no convolutions", "cudnn_benchmark")
        if active.optimizer == "adafactor":
            self.turn_off("adafactor has no such kernel", "fused")
        if active.deterministic:
            self.turn_off("excluded by --deterministic", "cudnn_benchmark")

        # bf16 on a CPU is slow, but it works.
        needs_sm80 = active.precision == "tf32" or (active.precision == "bf16" and has_gpu)
        if active.precision == "auto":
            active.precision = fastest_precision(capability)
            self.reasons["precision"] = "auto: the fastest precision of this device"
        elif needs_sm80 and capability < (8, 0):
            self.turn_off(f"{active.precision} needs a GPU from sm 8.0", "precision")

        if not any(can_compile(block) for block in blocks):
            self.turn_off("the compiler gains nothing here, as for LSTMs", "compile")
        elif active.compile == "auto" and capability < (8, 0):
            self.turn_off("auto: Triton needs a GPU from sm 8.0", "compile")
        elif active.compile == "auto":
            active.compile = "default"
        if active.compile in CUDA_GRAPHS and active.gradient_accumulation_steps > 1:
            raise UserError(
                f"{active.compile} overwrites gradients that add up: --compile: "
                "use default or max-autotune-no-cudagraphs, or --gradient_accumulation_steps 1"
            )
        resolve_own(self)

    def turn_off(self, reason: str, *names: str) -> None:
        for name in names:
            if getattr(self.active, name) != OFF[name]:
                setattr(self.active, name, OFF[name])
                self.reasons[name] = reason


def fastest_precision(capability: tuple[int, int]) -> str:
    if capability >= (8, 0):
        return "bf16"
    if capability >= (7, 0):
        return "fp16"
    return "fp32"


def can_compile(block: nn.Module) -> bool:
    """Tell whether compiling gains anything: it stops at RNNs, and skips plain torch.nn modules."""
    has_rnn = any(isinstance(module, nn.RNNBase) for module in block.modules())
    return not has_rnn and not type(block).__module__.startswith("torch.nn")


def configure(settings: Settings) -> None:
    """Set PyTorch's global switches."""
    if settings.expandable_segments:
        # A version of PyTorch reads one of the two names.
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            os.environ.setdefault(name, "expandable_segments:True")
    # TF32 also serves the float32 products that remain in half precision. Do not mix these two
    # with the newer `fp32_precision` flags, or PyTorch raises an error.
    use_tf32 = settings.precision != "fp32"
    torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = use_tf32
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)


def optimize_blocks(blocks: list[nn.Module], settings: Settings) -> None:
    """Checkpoint the activations of blocks, and compile block by block, which takes less time."""
    for block in blocks:
        if settings.gradient_checkpointing:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if settings.compile != "off" and can_compile(block):
            # With checkpointing, the compiler has to split the graph.
            fullgraph = not settings.gradient_checkpointing
            dynamic = DYNAMIC_SHAPES or None
            block.compile(mode=settings.compile, fullgraph=fullgraph, dynamic=dynamic)


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimizer, with weight decay for matrices only, and without frozen weights."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise UserError("no weight to train: class Model: add a layer, or freeze fewer of them")
    matrices = [p for p in weights if p.dim() >= 2]
    biases = [p for p in weights if p.dim() < 2]
    decay = settings.weight_decay
    groups: list[dict] = [{"params": matrices}, {"params": biases, "weight_decay": 0.0}]
    if settings.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, weight_decay=decay)
    # None is PyTorch's default, which is not fused.
    return torch.optim.AdamW(groups, weight_decay=decay, fused=settings.fused or None)


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


def print_table(resolved: Resolved, settings: Settings) -> None:
    """Print each optimization with its state and the reason, and what was given without effect."""
    print(f"{'optimization':28} {'state':8} why")
    for name, text in OPTIMIZATIONS.items():
        value = str(getattr(resolved.active, name))
        state = {"True": "on", "False": "off"}.get(value, value)
        print(f"{name:28} {state:8} {resolved.reasons.get(name, text)}")
    print("Change one with its flag, such as --fused 0; --no-optimize turns them off.")
    for name, reason in resolved.reasons.items():
        is_off = getattr(resolved.active, name) == OFF[name]
        if is_off and getattr(settings, name) != getattr(Settings(), name):
            print(f"note: --{name} has no effect: {reason}")
    for name in ENVIRONMENT:
        if os.environ.get(name) and name.lower() not in vars(settings):
            print(f"note: {name} has no effect: {NO_LOADER}")
