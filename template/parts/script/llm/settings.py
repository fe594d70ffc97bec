@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting("", "text file; if empty, 12 MB of the source of Python's standard library")
    block_size: int = setting(128, "number of tokens that the model sees")
    # model
    layers: int = setting(4, "transformer blocks; GPT-2 has 12, with width 768 and 12 heads")
    heads: int = setting(4, "number of attention heads of a block")
    width: int = setting(128, "size of the vector of a token")
    dropout: float = setting(
        0.0, "fraction of activations to drop; use 0.1 to 0.2 for many epochs", high=1
    )
    init_from: str = setting("", "folder of a run whose last weights the model starts from")
    phase: int = setting(
        0, "train only this phase (1: the first), from the newest run; 0: all phases"
    )
    phases_done: int = setting(0, "number of earlier phases; the script sets it")
    # optimizer
    batch_size: int = setting(32, "blocks in a micro-batch; a larger one fills a GPU better")
    schedule: str = setting(
        "cosine", "cosine after a linear warm-up, or onecycle", choices=["cosine", "onecycle"]
    )
    # optimization
    resident: bool = setting(
        True, "the text stays on the device; off: it is read from the mapped file", off=False
    )


# Further phases of a run: the settings that change in each. A phase has a new optimizer and a new
# schedule, and starts from the last weights of the one before.
PHASES: list[dict] = []  # such as [{"max_steps": 500, "block_size": 512, "batch_size": 8}]
