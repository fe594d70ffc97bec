PRICES = ["open", "high", "low", "close"]
FEATURES = ["return", "range", "body", "size", "volume", "week", "month"]
DAILY = {"return": 0, "range": 1, "volatility": 3}  # the feature with a target's daily value
NAMES = {"adjclose": "adjusted", "adjustedclose": "adjusted"}
GAPS = ["", "na", "NA", "nan", "NaN", "null", "NULL", "None"]
STILL = 1e-9  # a smaller variance, as a fraction of the sum of squares, is rounding


class Stock(NamedTuple):
    """The days of one stock, in order."""

    dates: np.ndarray  # (n,) datetime64[D]
    prices: np.ndarray  # (n, 4) open, high, low, close
    adjusted: np.ndarray  # (n,) close, adjusted for dividends and splits
    volume: np.ndarray  # (n,) NaN where unknown


def read_stocks(folder: str) -> dict[str, Stock]:
    """Return the stocks in the CSV files of a folder, by the names of the files."""
    path = Path(folder).expanduser()
    files = sorted(path.glob("*.csv")) + sorted(path.glob("*.csv.gz"))
    if not files:
        raise UserError(f"no .csv or .csv.gz file in the folder: {path}: check --data")
    return {file.name.partition(".csv")[0]: read_stock(file) for file in files}


def read_stock(path: Path) -> Stock:
    header, *rows = read_rows(path)
    names = []
    for name in header:
        plain = name.lower().replace(" ", "")
        plain = plain.replace("_", "")
        names.append(NAMES.get(plain, plain))
    for name in ["date", *PRICES, "volume"]:
        if names.count(name) != 1:
            raise UserError(f"not one column '{name}': {path}, row 1: write date, prices, volume")
    table: dict[str, list] = {name: [] for name in names}
    for number, row in enumerate(rows, start=2):
        try:
            for name, cell in zip(names, row, strict=True):
                if name == "date":
                    table[name].append(np.datetime64(cell, "D"))
                elif name in (*PRICES, "adjusted", "volume"):
                    value = read_number(cell)
                    if math.isnan(value) and cell not in GAPS:
                        raise ValueError(f"'{cell}' is not a finite number")
                    table[name].append(value)
        except ValueError as error:
            raise UserError(f"{error}: {path}, row {number}: fix this row") from None
    prices = np.array([table[name] for name in PRICES]).T
    adjusted = np.array(table.get("adjusted", table["close"]))
    dates = np.array(table["date"])
    volume = np.array(table["volume"])
    is_impossible = (prices <= 0).any() or (adjusted <= 0).any()
    has_copies = len({*table["date"]}) < len(dates)
    if is_impossible or has_copies:
        raise UserError(f"a price of 0 or below, or a date twice: {path}: fix or remove the rows")
    # Days without a price are left out.
    columns = np.column_stack([prices, adjusted])
    is_missing = np.isnan(columns).any(axis=1)
    kept = np.argsort(dates)
    kept = kept[~is_missing[kept]]
    return Stock(dates[kept], prices[kept], adjusted[kept], volume[kept])


def synthesize() -> dict[str, Stock]:
    """Return 32 synthetic stocks over 900 days, always the same: a market and its own moves."""
    random = np.random.default_rng(22)
    dates = np.datetime64("2020-01-01") + np.arange(900)
    season = np.sin(np.arange(900) / 40)
    calm = 0.01 * np.exp(0.5 * season)
    market = random.standard_normal(900) * calm
    stocks = {}
    for number in range(32):
        moves = 0.7 * market + random.standard_normal(900) * calm
        close = 100 * np.exp(np.cumsum(moves))
        sizes = np.abs(random.standard_normal((2, 900)))
        spread = np.exp(sizes * calm)
        opening = close * np.exp(-moves / 2)
        high = np.maximum(opening, close) * spread[0]
        low = np.minimum(opening, close) / spread[1]
        interest = random.standard_normal(900) / 4
        volume = 1e6 * np.exp(interest + 20 * np.abs(moves))
        prices = np.stack([opening, high, low, close], axis=1)
        stocks[f"S{number:02d}"] = Stock(dates, prices, close, volume)
    return stocks


def mean_of_last(values: np.ndarray, count: int) -> np.ndarray:
    """Return the mean (n,) of the last `count` values up to each one."""
    sums = np.convolve(values, np.ones(count))
    lengths = np.arange(1, len(values) + 1)
    lengths = lengths.clip(max=count)
    return sums[: len(values)] / lengths


def describe_days(stock: Stock, target: str) -> np.ndarray:
    """Return the features (n, F) of a stock's days, from each day and earlier ones."""
    opening, high, low, close = np.log(stock.prices.T)
    adjusted = np.log(stock.adjusted)
    returns = np.diff(adjusted, prepend=adjusted[:1])
    volume = np.log1p(stock.volume)
    known_share = mean_of_last(~np.isnan(volume), 20)
    usual = mean_of_last(np.nan_to_num(volume), 20)
    usual /= np.maximum(known_share, 1e-9)
    unusual = np.nan_to_num(volume - usual)
    features = [returns, high - low, close - opening, np.abs(returns), unusual]
    daily = features[DAILY[target]]
    features += [mean_of_last(daily, 5), mean_of_last(daily, 22)]
    return np.stack(features, 1)


def target_of_days(features: np.ndarray, places: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the target (n,) of each day, NaN if one of the days ahead is missing.

    places: the days in the calendar (n,), so that a horizon across a missing day has no target.
    """
    since = places - places[0]
    daily = np.full(since[-1] + 1, np.nan)
    first = 0 if settings.target == "range" else 1  # a stock's first day has no return
    daily[since[first:]] = features[first:, DAILY[settings.target]]
    total = np.zeros_like(daily)
    for ahead in range(1, settings.horizon + 1):
        coming = np.full_like(daily, np.nan)
        coming[:-ahead] = daily[ahead:]
        if settings.target == "volatility":
            coming = coming**2
        total = total + coming
    if settings.target == "volatility":
        total = np.sqrt(total / settings.horizon)
    elif settings.target == "range":
        total = total / settings.horizon
    return total[since]


def correlated(returns: Tensor, count: int, overlap: int) -> Tensor:
    """Return the `count` stocks most correlated with each, (…, S, count), −1 if too few.

    returns: (…, L, S), NaN if missing. A correlation uses the days on which both stocks have one.
    """
    known = ~returns.isnan()
    known = known.double()
    returns = returns.double()
    returns = returns.nan_to_num(0.0)
    shared_days = known.mT @ known
    enough = shared_days >= max(overlap, 2)
    shared_days = shared_days.clamp(min=1)
    total = returns.mT @ known
    squares = returns.square().mT @ known
    variance = squares - total.square() / shared_days
    moves = variance > STILL * squares
    covariance = returns.mT @ returns
    covariance -= total * total.mT / shared_days
    scale = (variance * variance.mT).sqrt()
    strength = covariance.abs() / scale
    is_known = enough & moves & moves.mT
    strength = torch.where(is_known, strength, -1.0)
    strength.diagonal(0, -2, -1).fill_(-1)  # no stock is its own neighbor
    best = strength.topk(count, -1)
    is_unknown = best.values < 0
    return best.indices.masked_fill(is_unknown, -1)


class Data:
    """The panel: a sample is a day with all stocks that have a whole window on it.

    Shapes: R rows (the days of each stock, one stock after the other), S stocks, D days of the
    calendar, K seats for the stocks of a day, k neighbors.
    """

    def __init__(self, settings: Settings):
        stocks = read_stocks(settings.data) if settings.data else synthesize()
        for name in list(stocks):
            if len(stocks[name].dates) < settings.window:
                del stocks[name]
        if len(stocks) < 2:
            raise UserError(f"{len(stocks)} stocks have --window {settings.window} days: add more")
        self.settings = settings
        self.num_stocks = len(stocks)
        self.num_neighbors = min(settings.neighbors, self.num_stocks - 1)
        dates = [stock.dates for stock in stocks.values()]
        calendar = np.unique(np.concatenate(dates))
        self.make_timeline(stocks, calendar)
        self.fill(stocks, calendar)
        self.make_splits()
        self.learn_scale()

    def make_timeline(self, stocks: dict[str, Stock], calendar: np.ndarray) -> None:
        """Find the days that are samples, and the graph of each."""
        window = self.settings.window
        listed = np.zeros(len(calendar), np.int64)  # number of stocks of each day
        for stock in stocks.values():
            places = np.searchsorted(calendar, stock.dates)
            listed[places[window - 1 :]] += 1
        self.days = np.flatnonzero(listed)
        self.sample_of_day = np.cumsum(listed > 0) - 1
        self.num_seats = int(listed.max())
        # Periods count from 1970, so that they do not depend on the first day of the data.
        days = calendar.astype("M8[D]").astype(np.int64)
        period = days // self.settings.refresh
        opens = np.flatnonzero(np.diff(period, prepend=period[0] - 1))
        graphs = np.searchsorted(opens, self.days, "right") - 1
        used, self.graph_of_sample = np.unique(graphs, return_inverse=True)
        self.graph_days = opens[used]

    def fill(self, stocks: dict[str, Stock], calendar: np.ndarray) -> None:
        """Compute features and targets of all rows, the seats of each sample, and the returns."""
        settings = self.settings
        back = settings.correlation_days - 1
        features = []
        targets = []
        numbers = []
        # `returns` starts with L − 1 empty rows, so that L rows from row d on end with day d.
        shape = (back + len(calendar), self.num_stocks)
        self.returns = np.full(shape, np.nan, np.float32)
        shape = (len(self.days), self.num_seats)
        self.seats = np.full(shape, -1)  # rows, −1 for an empty seat
        num_taken = np.zeros(len(self.days), np.int64)
        first_row = 0
        for number, stock in enumerate(stocks.values()):
            places = np.searchsorted(calendar, stock.dates)
            described = describe_days(stock, settings.target)
            features.append(described)
            targets.append(target_of_days(described, places, settings))
            numbers.append(np.full(len(places), number))
            self.returns[back + places[1:], number] = described[1:, 0]
            # The stock gets a seat on each day on which it has a whole window.
            last_row = first_row + len(places)
            rows = np.arange(first_row + settings.window - 1, last_row)
            samples = self.sample_of_day[places[settings.window - 1 :]]
            self.seats[samples, num_taken[samples]] = rows
            num_taken[samples] += 1
            first_row = last_row
        self.features = np.concatenate(features).astype(np.float32)
        targets_of_rows = np.concatenate(targets).astype(np.float32)
        self.targets = targets_of_rows[:, None]
        self.stock_of_row = np.concatenate(numbers)

    def make_splits(self) -> None:
        """Split the days, without those whose targets reach into the next split."""
        settings = self.settings
        ahead = settings.horizon
        count = len(self.days) - ahead  # the last days have no target yet
        train_end, validation_end, test_end = split_rows(settings.split, max(count, 0))
        gap = ahead if test_end > validation_end else 0
        self.splits = {
            "train": range(train_end - ahead),
            "validation": range(train_end, validation_end - gap),
            "test": range(validation_end, test_end),
        }
        if not (self.splits["train"] and self.splits["validation"]):
            raise UserError(f"no day is left: --split {settings.split}: use a smaller --horizon")

    def learn_scale(self) -> None:
        """Compute means and standard deviations of the training days."""
        rows = self.seats[: len(self.splits["train"])]
        rows = rows[rows >= 0]
        self.scale = {}
        for prefix, values in {"": self.features[rows], "target_": self.targets[rows]}.items():
            values = values.astype(np.float64)
            mean = np.nanmean(values, axis=0)
            std = np.nanstd(values, axis=0)
            lowest = np.nanmin(values, axis=0)
            std[np.nanmax(values, axis=0) == lowest] = 1.0  # a constant column
            self.scale[f"{prefix}mean"] = mean.tolist()
            self.scale[f"{prefix}std"] = std.tolist()
        digest = hashlib.sha256(self.features.tobytes())
        digest.update(self.targets.tobytes())
        self.facts = {"sha256": digest.hexdigest(), "scale": self.scale}

    def load_graphs(self) -> np.ndarray:
        """Return the neighbors (graphs, S, k) from a file; compute and write them first."""
        settings = self.settings
        options = [self.num_neighbors, settings.refresh, settings.correlation_days]
        digest = hashlib.sha256(self.returns.tobytes())
        digest.update(str(options).encode())
        path = Path(f"data/graphs-{digest.hexdigest()[:16]}.npy")
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            content = io.BytesIO()
            graphs = self.graphs_of(self.graph_days)
            np.save(content, graphs.numpy())
            write(path, content.getbuffer())
        return np.load(path)

    def graphs_of(self, days: np.ndarray) -> Tensor:
        """Return the neighbors (n, S, k) of the graphs of some days."""
        back = self.settings.correlation_days
        overlap = min(30, max(3, back // 2))
        graphs = []
        for day in days:
            past = torch.from_numpy(self.returns[day : day + back])
            graphs.append(correlated(past, self.num_neighbors, overlap))
        return torch.stack(graphs)

    def prepare(self, settings: Settings) -> None:
        """Move the panel to the device, or keep it on the host."""
        self.active = settings
        self.device = DEVICE if settings.resident else torch.device("cpu")
        self.arrays = {
            "features": to_device(self.features, self.device),
            "targets": to_device(self.targets, self.device),
            "seats": to_device(self.seats, self.device),
            "stocks": to_device(self.stock_of_row, self.device),
        }
        if settings.cached_graphs:
            self.graphs = to_device(self.load_graphs(), self.device)
        _, batch = next(self.epoch(0, 0))
        is_known = batch["target"].isfinite()
        is_known &= batch["listed"].unsqueeze(2)
        self.batch_targets = int(is_known.sum())

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        shuffle = np.random.RandomState([self.settings.seed, epoch])
        order = shuffle.permutation(len(self.splits["train"]))
        first = first_batch * self.settings.batch_size
        return self.batches("train", order[first:])

    def split_batches(self, split: str) -> Iterator:
        return self.batches(split, np.arange(len(self.splits[split])))

    def batches(self, split: str, numbers: np.ndarray) -> Iterator:
        """Yield numbers of days of a split, and a batch; padding is a day without stocks."""
        size = self.settings.batch_size
        for first in range(0, len(numbers), size):
            chunk = numbers[first : first + size]
            samples = self.splits[split].start + np.resize(chunk, size)
            is_real = to_device(np.arange(size) < len(chunk), self.device)
            batch = self.batch(samples, is_real)
            if self.active.pin_memory:
                batch = {name: values.pin_memory() for name, values in batch.items()}
            batch = {name: x.to(DEVICE, non_blocking=True) for name, x in batch.items()}
            yield chunk, batch

    def batch(self, samples: np.ndarray, is_real: Tensor) -> dict[str, Tensor]:
        """Return `features` (B, K, T, F), `target` (B, K, 1), `listed` (B, K) and `neighbors`."""
        arrays = self.arrays
        rows = arrays["seats"][to_device(samples, self.device)]
        listed = rows >= 0
        listed &= is_real[:, None]
        rows = rows.clamp(min=0)
        days = torch.arange(1 - self.settings.window, 1, device=self.device)
        rows_of_windows = rows[:, :, None] + days
        rows_of_windows *= listed[:, :, None]
        windows = arrays["features"][rows_of_windows]
        stocks = arrays["stocks"][rows]
        stocks = stocks.masked_fill(~listed, self.num_stocks)
        graphs = self.graph_of_sample[samples]
        if self.active.cached_graphs:
            of_days = self.graphs[to_device(graphs, self.device)]
        else:
            of_days = self.graphs_of(self.graph_days[graphs])
            of_days = of_days.to(self.device)
        return {
            "features": windows * listed[:, :, None, None],
            "target": arrays["targets"][rows],
            "listed": listed,
            "neighbors": self.as_seats(of_days, stocks),
        }

    def as_seats(self, graphs: Tensor, stocks: Tensor) -> Tensor:
        """Return the seats (B, K, k) of each stock's neighbors, −1 for those without one today."""
        absent = self.num_stocks
        seats = torch.arange(stocks.shape[1], device=stocks.device)
        seat_of_stock = stocks.new_full((len(stocks), absent + 1), -1)
        seat_of_stock.scatter_(1, stocks, seats.expand_as(stocks))
        seat_of_stock[:, absent] = -1
        count = graphs.shape[2]
        nobody = graphs.new_full((len(graphs), 1, count), -1)
        graphs = torch.cat([graphs, nobody], 1)
        places = stocks.unsqueeze(2)
        places = places.expand(-1, -1, count)
        neighbors = graphs.gather(1, places)
        neighbors = neighbors.masked_fill(neighbors < 0, absent)
        of_all = seat_of_stock.gather(1, neighbors.flatten(1))
        return of_all.view_as(neighbors)
