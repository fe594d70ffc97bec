@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting(
        "", "CSV or .csv.gz file with times in the first column; if empty, synthetic rows"
    )
    targets: str = setting("", "columns to forecast, separated by commas; if empty, all")
    history: int = setting(96, "number of past rows that the model sees")
    horizon: int = setting(24, "number of rows to forecast")
    split: str = setting("0.7,0.15,0.15", "training, validation, test by time: fractions or rows")
    # model
    width: int = setting(64, "hidden units of the LSTM")
    depth: int = setting(1, "number of layers of the LSTM")
    dropout: float = setting(
        0.2, "fraction of hidden units that dropout zeroes before the last layer", high=1
    )
    loss: str = setting(
        "mae", "error that training minimizes: absolute or squared", choices=["mae", "mse"]
    )
    # optimizer
    batch_size: int = setting(64, "samples in a micro-batch; a larger one fills a GPU better")
    # optimization
    resident: bool = setting(
        True, "the series stays on the device: no step waits for data", off=False
    )
