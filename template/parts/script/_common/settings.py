# -----------------------------------------------------------------------------
# Settings. Each one is a flag.


class UserError(Exception):
    """An error that the user can fix; it is printed as one line, with exit code 2."""


def setting(default: Any, help: str, **details: Any) -> Any:
    """Return a field with its text in --help and in the table of optimizations.

    low, high: the least and the greatest value. choices: all values. off: the value for
    --no-optimize, which makes the setting an optimization.
    """
    # If not given: a whole number is at least 1, unless its default is less; others are from 0.
    low = 0
    if type(default) is int:
        low = min(default, 1)
    return field(default=default, metadata={"help": help, "low": low, "high": 2**32 - 1, **details})


@dataclass
class RunSettings:
    """What does not depend on data and model; `Settings` below adds these."""

    # optimizer
    batch_size: int  # with a default of each script
    learning_rate: float = setting(1e-3, "peak learning rate of the schedule", high=1)
    weight_decay: float = setting(
        0.01, "weight decay of matrices; biases and norms have none", high=1
    )
    warmup_steps: int = setting(-1, "steps of the warm-up; -1: 100, or a tenth of a shorter run")
    final_factor: float = setting(0.1, "final learning rate as a fraction of the peak", high=1)
    gradient_clip: float = setting(1.0, "maximum norm of the gradients; 0: no clipping")
    # run
    epochs: int = setting(10, "passes over the training samples")
    max_steps: int = setting(0, "length of the run in steps; 0: use --epochs")
    evaluate_every: int = setting(0, "steps between evaluations; 0: at the end of each epoch")
    save_every: int = setting(0, "steps between checkpoints; 0: at the end of each epoch")
    log_every: int = setting(50, "steps between log entries; each one waits for the GPU")
    rounds: int = setting(7, "rounds of --benchmark, each of --log_every steps")
    seed: int = setting(42, "seed of weights, dropout and the order of samples", low=0)
    # optimizations
    precision: str = setting(
        "auto",
        "tensor cores compute in bf16, fp16 or TF32; weights stay float32",
        choices=["auto", "fp32", "tf32", "fp16", "bf16"],
        off="fp32",
    )
    compile: str = setting(
        "auto",
        "fuses the kernels of each block; the first steps wait for the compiler",
        choices=[
            "auto",
            "off",
            "default",
            "max-autotune-no-cudagraphs",
            "reduce-overhead",
            "max-autotune",
        ],
        off="off",
    )
    fused: bool = setting(True, "one kernel updates all weights", off=False)
    cudnn_benchmark: bool = setting(
        False, "times the kernels of convolutions, if the model has some", off=False
    )
    pin_memory: bool = setting(True, "copies to the GPU overlap with its work", off=False)
    expandable_segments: bool = setting(True, "GPU memory does not fragment", off=False)
    gradient_checkpointing: bool = setting(
        False, "saves memory: backward computes each block again", off=False
    )
    gradient_accumulation_steps: int = setting(
        1, "micro-batches in a step: the memory of a small batch"
    )
    deterministic: bool = setting(
        False, "slower kernels that give the same result twice, where they exist"
    )

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            details = DETAILS[name]
            if not details or isinstance(value, str):  # one without `setting` has no range
                continue
            if not details["low"] <= value <= details["high"]:
                raise UserError(
                    f"{value} is out of range: --{name}: use {details['low']} to {details['high']}"
                )
