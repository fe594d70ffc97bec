@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting(
        "", "folder with a CSV file of daily prices for each stock; if empty, synthetic"
    )
    target: str = setting(
        "range",
        "return, range or volatility of the next days",
        choices=["return", "range", "volatility"],
    )
    horizon: int = setting(1, "trading days ahead")
    window: int = setting(20, "number of past days that the model sees")
    neighbors: int = setting(10, "edges into each stock")
    refresh: int = setting(30, "calendar days after which a new graph begins")
    correlation_days: int = setting(120, "trading days of returns that a graph is computed from")
    split: str = setting("0.7,0.15,0.15", "training, validation, test by time: fractions or days")
    # model
    width: int = setting(32, "units that represent a stock, a multiple of heads")
    heads: int = setting(4, "heads of the attention over days and over stocks")
    temporal_layers: int = setting(2, "layers over the days of the window")
    graph_layers: int = setting(1, "layers over the graph; 0 sees each stock alone", low=0)
    frequencies: int = setting(
        3, "strongest frequencies that the model sees separately; 0: none", low=0
    )
    dropout: float = setting(0.1, "fraction of the units that dropout zeroes", high=1)
    # optimizer
    batch_size: int = setting(8, "days in a micro-batch, each with all of its stocks")
    # optimizations
    cached_graphs: bool = setting(
        True, "graphs are computed once and kept in a file, not in each batch", off=False
    )
    resident: bool = setting(
        True, "the panel stays on the device: no step waits for data", off=False
    )
