AT_LEAST_ONE += ["max_source", "max_target", "layers", "heads", "width", "head_width", "hidden"]
CHOICES["feed_forward"] = ["relu", "gated-gelu"]
CHOICES["optimizer"] = ["adamw", "adafactor"]


@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = ""  # .tsv file, source TAB target in a line; if empty, docstrings of Python
    max_source: int = 512  # tokens of a source; longer ones are cut
    max_target: int = 128  # tokens of a target
    split: str = "0.9,0.05,0.05"  # training, validation, test after a shuffle: fractions or pairs
    bucket: bool = True  # whether pairs of similar length share a batch, with little padding
    # model: the sizes of T5-base are 12, 12, 768, 64, 3072
    pretrained: str = ""  # folder or hub name of a T5 to start from, with its sizes and tokenizer
    layers: int = 2  # layers of the encoder, and of the decoder
    heads: int = 4  # attention heads of a layer
    width: int = 128  # size of the vector of a token
    head_width: int = 32  # width of a head
    hidden: int = 512  # units of each hidden layer
    feed_forward: str = "relu"  # relu, or gated-gelu as in T5 v1.1
    dropout: float = 0.1  # fraction of the activations that dropout zeroes
    # optimizer
    optimizer: str = "adamw"  # adamw, or adafactor, which needs less memory and more time
    batch_size: int = 16  # pairs in a micro-batch; a larger one fills a GPU better
    # optimization
    resident: bool = True  # all tokens stay on the device: no step waits for data
