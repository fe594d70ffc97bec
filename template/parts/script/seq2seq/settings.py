@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting(
        "", ".tsv file, source TAB target in a line; if empty, docstrings of Python"
    )
    max_source: int = setting(512, "tokens of a source; longer ones are cut")
    max_target: int = setting(128, "tokens of a target")
    split: str = setting(
        "0.9,0.05,0.05", "training, validation, test after a shuffle: fractions or pairs"
    )
    bucket: bool = setting(
        True, "whether pairs of similar length share a batch, with little padding", off=False
    )
    # model: the sizes of T5-base are 12, 12, 768, 64, 3072
    pretrained: str = setting(
        "", "folder or hub name of a T5 to start from, with its sizes and tokenizer"
    )
    layers: int = setting(2, "layers of the encoder, and of the decoder")
    heads: int = setting(4, "attention heads of a layer")
    width: int = setting(128, "size of the vector of a token")
    head_width: int = setting(32, "width of a head")
    hidden: int = setting(512, "units of each hidden layer")
    feed_forward: str = setting(
        "relu", "relu, or gated-gelu as in T5 v1.1", choices=["relu", "gated-gelu"]
    )
    dropout: float = setting(0.1, "fraction of the activations that dropout zeroes", high=1)
    # optimizer
    optimizer: str = setting(
        "adamw",
        "adamw, or adafactor, which needs less memory and more time",
        choices=["adamw", "adafactor"],
    )
    batch_size: int = setting(16, "pairs in a micro-batch; a larger one fills a GPU better")
    # optimization
    resident: bool = setting(
        True, "all tokens stay on the device: no step waits for data", off=False
    )
