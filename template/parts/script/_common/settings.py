# -----------------------------------------------------------------------------
# Settings. Each one is a flag, and --help prints its text. The lists limit the values.

AT_LEAST_ONE = ["batch_size", "gradient_accumulation_steps", "epochs", "log_every", "rounds"]
AT_MOST_ONE = ["dropout", "learning_rate", "weight_decay", "final_factor"]
MINUS_ONE = ["warmup_steps"]  # -1 stands for a value that is computed
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
    "optimizer": ["adamw", "adafactor"],
    "schedule": ["cosine", "onecycle", "linear", "constant"],
}


class UserError(Exception):
    """An error that the user can fix; it is printed as one line, with exit code 2."""


@dataclass
class RunSettings:
    """What does not depend on data and model; `Settings` below adds these."""

    # optimizer
    batch_size: int = 64  # samples in a micro-batch; a larger one fills a GPU better
    optimizer: str = "adamw"  # adamw, or adafactor, which needs less memory and more time
    learning_rate: float = 1e-3  # peak learning rate of the schedule
    weight_decay: float = 0.01  # weight decay of matrices; biases and norms have none
    schedule: str = "cosine"  # cosine, onecycle, linear or constant, after a linear warm-up
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
    # optimizations: OPTIMIZATIONS below explains each one
    precision: str = "auto"
    compile: str = "auto"
    fused: bool = True
    cudnn_benchmark: bool = False
    pin_memory: bool = True
    expandable_segments: bool = True
    freeze_garbage: bool = True
    gradient_checkpointing: bool = False
    gradient_accumulation_steps: int = 1
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            choices = CHOICES.get(name, [value])
            if value not in choices:
                raise UserError(f"unknown choice '{value}': --{name}: use {', '.join(choices)}")
            if isinstance(value, str) or (name in MINUS_ONE and value == -1):
                continue
            lowest = 1 if name in AT_LEAST_ONE else 0
            highest = 1 if name in AT_MOST_ONE else 2**32 - 1
            if not lowest <= value <= highest:
                raise UserError(f"{value} is out of range: --{name}: use {lowest} to {highest}")
