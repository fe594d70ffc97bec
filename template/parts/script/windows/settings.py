AT_LEAST_ONE += ["shuffle_block", "width", "depth"]


@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = ""  # HDF5 file with features (N, T, F) and targets (N, H); if empty, synthetic
    split: str = "0.7,0.15,0.15"  # training, validation, test by row: fractions or rows
    purge: int = -1  # windows left out before a border, because they overlap; -1: T + H - 1
    shuffle: bool = True  # whether to shuffle the training windows
    shuffle_block: int = 8192  # windows that are read together and shuffled among themselves
    # model
    width: int = 64  # hidden units of the LSTM
    depth: int = 1  # number of layers of the LSTM
    dropout: float = 0.2  # fraction of hidden units that dropout zeroes before the last layer
    # optimizations
    chunk_loader: bool = True  # a thread reads many blocks at once, ahead of the step
    chunk_size_gb: float = 0.5  # memory of a chunk; up to two are on the host, and on the GPU
    resident: bool = True  # training windows that fit into two chunks are read once, and stay
    num_workers: int = 0  # processes that read window by window, without the chunk loader
    allow_unsafe_dataloader: bool = True  # 0: no worker processes
