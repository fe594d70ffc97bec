AT_LEAST_ONE += ["horizon", "window", "neighbors", "refresh", "correlation_days"]
AT_LEAST_ONE += ["width", "heads", "temporal_layers"]
CHOICES["target"] = ["return", "range", "volatility"]


@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = ""  # folder with a CSV file of daily prices for each stock; if empty, synthetic
    target: str = "range"  # return, range or volatility of the next days
    horizon: int = 1  # trading days ahead
    window: int = 20  # number of past days that the model sees
    neighbors: int = 10  # edges into each stock
    refresh: int = 30  # calendar days after which a new graph begins
    correlation_days: int = 120  # trading days of returns that a graph is computed from
    split: str = "0.7,0.15,0.15"  # training, validation, test by time: fractions or days
    # model
    width: int = 32  # units that represent a stock, a multiple of heads
    heads: int = 4  # heads of the attention over days and over stocks
    temporal_layers: int = 2  # layers over the days of the window
    graph_layers: int = 1  # layers over the graph; 0 sees each stock alone
    frequencies: int = 3  # strongest frequencies that the model sees separately; 0: none
    dropout: float = 0.1  # fraction of the units that dropout zeroes
    # optimizer
    batch_size: int = 8  # days in a micro-batch, each with all of its stocks
    # optimizations
    cached_graphs: bool = True  # graphs are computed once and kept in a file, not in each batch
    resident: bool = True  # the panel stays on the device: no step waits for data
