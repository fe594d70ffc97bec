@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting(
        "", "CSV or .csv.gz file, a row for each series and time; if empty, synthetic shops"
    )
    series: str = setting(
        "", "columns that name a row's series, separated by commas; if empty, it is all one series"
    )
    targets: str = setting("", "columns to forecast; if empty, all that have no other role")
    known: str = setting("", "columns whose future is known, such as a promotion")
    history: int = setting(96, "number of past rows that the model sees")
    horizon: int = setting(24, "number of rows to forecast")
    season: int = setting(
        0, "rows after which values are alike, for MASE and the naive forecast; 0: by the times"
    )
    split: str = setting(
        "0.7,0.15,0.15", "fractions of all rows by time; or rest,48,48: the last of each series"
    )
    # model
    width: int = setting(256, "hidden units of the MLP")
    depth: int = setting(2, "number of residual blocks of the MLP")
    dropout: float = setting(
        0.0, "fraction of hidden units that dropout zeroes before the last layer", high=1
    )
    # optimizer
    batch_size: int = setting(256, "windows in a micro-batch; a larger one fills a GPU better")
    final_factor: float = setting(0.0, "final learning rate as a fraction of the peak", high=1)
    # optimization
    resident: bool = setting(
        True, "the series stay on the device: no step waits for data", off=False
    )
