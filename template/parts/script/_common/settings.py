# -----------------------------------------------------------------------------
# Settings. Each one is a flag, and its comment is its text in --help and in the table of
# optimizations. The lists limit the values.

AT_LEAST_ONE = ["batch_size", "gradient_accumulation_steps", "epochs", "log_every", "rounds"]
AT_MOST_ONE = ["dropout", "learning_rate", "weight_decay", "final_factor"]
CHOICES = {
    "precision": ["auto", "fp32", "tf32", "fp16", "bf16"],
    "compile": [
        "auto",
        "off",
        "default",
        "max-autotune-no-cudagraphs",
        "reduce-overhead",
        "max-autotune",
    ],
}


class UserError(Exception):
    """An error that the user can fix; it is printed as one line, with exit code 2."""


@dataclass
class RunSettings:
    """What does not depend on data and model; `Settings` below adds these."""

    # optimizer
    batch_size: int = 64  # samples in a micro-batch; a larger one fills a GPU better
    learning_rate: float = 1e-3  # peak learning rate of the schedule
    weight_decay: float = 0.01  # weight decay of matrices; biases and norms have none
    warmup_steps: int = -1  # steps of the warm-up; -1: 100, or a tenth of a shorter run
    final_factor: float = 0.1  # final learning rate as a fraction of the peak
    gradient_clip: float = 1.0  # maximum norm of the gradients; 0: no clipping
    # run
    epochs: int = 10  # passes over the training samples
    max_steps: int = 0  # length of the run in steps; 0: use --epochs
    evaluate_every: int = 0  # steps between evaluations; 0: at the end of each epoch
    save_every: int = 0  # steps between checkpoints; 0: at the end of each epoch
    log_every: int = 50  # steps between log entries; each one waits for the GPU
    rounds: int = 7  # rounds of --benchmark, each of --log_every steps
    seed: int = 42  # seed of weights, dropout and the order of samples
    # optimizations
    precision: str = "auto"  # tensor cores compute in bf16, fp16 or TF32; weights stay float32
    compile: str = "auto"  # fuses the kernels of each block; the first steps wait for the compiler
    fused: bool = True  # one kernel updates all weights
    cudnn_benchmark: bool = False  # times the kernels of convolutions, if the model has some
    pin_memory: bool = True  # copies to the GPU overlap with its work
    expandable_segments: bool = True  # GPU memory does not fragment
    gradient_checkpointing: bool = False  # saves memory: backward computes each block again
    gradient_accumulation_steps: int = 1  # micro-batches in a step: the memory of a small batch
    deterministic: bool = False  # slower kernels that give the same result twice, where they exist

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, str):
                continue
            # A default of -1 stands for a value that is computed.
            lowest = 1 if name in AT_LEAST_ONE else min(getattr(type(self), name), 0)
            highest = 1 if name in AT_MOST_ONE else 2**32 - 1
            if not lowest <= value <= highest:
                raise UserError(f"{value} is out of range: --{name}: use {lowest} to {highest}")
