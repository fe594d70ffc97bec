@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting("", "CSV or .csv.gz file with a header; if empty, synthetic rows")
    target: str = setting("", "column to predict; if empty, the last column")
    task: str = setting(
        "regression",
        "regression (predict a number) or classification",
        choices=["regression", "classification"],
    )
    category: str = setting("", "columns whose numbers are names, separated by commas")
    drop: str = setting("", "columns to leave out, such as a name, separated by commas")
    group: str = setting("", "column, no feature; rows of one value are in one split")
    split: str = setting(
        "0.7,0.15,0.15", "training, validation, test after a shuffle: fractions or rows"
    )
    # model
    width: int = setting(64, "units of each hidden layer")
    depth: int = setting(3, "number of hidden layers; all but the first are residual")
    dropout: float = setting(0.1, "fraction of the units of a block that dropout zeroes", high=1)
    category_width: int = setting(8, "size of the embedding vector of a category")
    # optimizer
    batch_size: int = setting(
        32, "rows in a micro-batch; 1024 fills a GPU, with a higher learning rate"
    )
    # optimizations
    num_workers: int = setting(
        0, "processes that read ahead; use them if a sample takes work to load", off=0
    )
    allow_unsafe_dataloader: bool = setting(True, "0: no worker processes")
    prefetch_factor: int = setting(2, "batches that each worker reads ahead")
    persistent_workers: bool = setting(True, "workers stay alive between epochs", off=False)
