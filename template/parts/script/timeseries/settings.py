AT_LEAST_ONE += ["history", "horizon", "width", "depth"]


@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = ""  # CSV or .csv.gz file with times in the first column; if empty, synthetic rows
    targets: str = ""  # columns to forecast, separated by commas; if empty, all
    history: int = 96  # number of past rows that the model sees
    horizon: int = 24  # number of rows to forecast
    split: str = "0.7,0.15,0.15"  # training, validation, test by time: fractions or rows
    # model
    width: int = 64  # hidden units of the LSTM
    depth: int = 1  # number of layers of the LSTM
    dropout: float = 0.2  # fraction of hidden units that dropout zeroes before the last layer
    # optimization
    resident: bool = True  # the series stays on the device: no step waits for data
