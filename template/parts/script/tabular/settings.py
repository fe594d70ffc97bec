AT_LEAST_ONE += ["prefetch_factor", "width", "depth", "category_width"]
CHOICES["task"] = ["regression", "classification"]


@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = ""  # CSV or .csv.gz file with a header; if empty, synthetic rows
    target: str = ""  # column to predict; if empty, the last column
    task: str = "regression"  # regression (predict a number) or classification
    category: str = ""  # columns whose numbers are names, separated by commas
    split: str = "0.7,0.15,0.15"  # training, validation, test after a shuffle: fractions or rows
    # model
    width: int = 64  # units of each hidden layer
    depth: int = 3  # number of hidden layers; all but the first are residual
    dropout: float = 0.1  # fraction of the units of a block that dropout zeroes
    category_width: int = 8  # size of the embedding vector of a category
    # optimizer
    batch_size: int = 32  # rows in a micro-batch; 1024 fills a GPU, with a higher learning rate
    # optimizations
    num_workers: int = 0  # processes that read ahead; use them if a sample takes work to load
    allow_unsafe_dataloader: bool = True  # 0: no worker processes
    prefetch_factor: int = 2  # batches that each worker reads ahead
    persistent_workers: bool = True  # workers stay alive between epochs
