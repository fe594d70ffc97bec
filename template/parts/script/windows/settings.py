@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting(
        "", "HDF5 file with features (N, T, F) and targets (N, H); if empty, synthetic"
    )
    split: str = setting("0.7,0.15,0.15", "training, validation, test by row: fractions or rows")
    purge: int = setting(
        -1, "windows left out before a border, because they overlap; -1: T + H - 1"
    )
    shuffle: bool = setting(True, "whether to shuffle the training windows")
    shuffle_block: int = setting(
        8192, "windows that are read together and shuffled among themselves"
    )
    # model
    width: int = setting(64, "hidden units of the LSTM")
    depth: int = setting(1, "number of layers of the LSTM")
    dropout: float = setting(
        0.2, "fraction of hidden units that dropout zeroes before the last layer", high=1
    )
    # optimizer
    batch_size: int = setting(64, "samples in a micro-batch; a larger one fills a GPU better")
    # optimizations
    chunk_loader: bool = setting(
        True, "a thread reads many blocks at once, ahead of the step", off=False
    )
    chunk_size_gb: float = setting(
        0.5, "memory of a chunk; up to two are on the host, and on the GPU"
    )
    resident: bool = setting(
        True, "training windows that fit into two chunks are read once, and stay", off=False
    )
    num_workers: int = setting(
        0, "processes that read window by window, without the chunk loader", off=0
    )
    allow_unsafe_dataloader: bool = setting(True, "0: no worker processes")
