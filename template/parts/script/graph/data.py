PRICES = ["open", "high", "low", "close"]
FEATURES = ["return", "range", "body", "size", "volume", "week", "month"]
DAILY = {"return": 0, "range": 1, "volatility": 3}  # the feature with a target's daily value
# Names of the adjusted close, in lower case and letters alone.
ADJUSTED = ["adjclose", "adjustedclose", "closeadj", "adjprice", "adjustedprice", "adjusted"]
# A cell without a value, as other programs write it.
GAP = re.compile("(?i)(na|n/a|nan|null|none)?")
STILL = 1e-9  # a smaller variance, as a fraction of the sum of squares, is rounding


class Stock(NamedTuple):
    """The days of one stock, in order."""

    dates: np.ndarray  # (n,) datetime64[D]
    prices: np.ndarray  # (n, 4) open, high, low, close
    adjusted: np.ndarray  # (n,) close, adjusted for dividends and splits
    volume: np.ndarray  # (n,) NaN where unknown


def read_stocks(folder: str) -> list[Stock]:
    """Return the stocks in the CSV files of a folder."""
    path = Path(folder).expanduser()
    files = sorted(path.glob("*.csv")) + sorted(path.glob("*.csv.gz"))
    if not files:
        raise UserError(f"no .csv or .csv.gz file in the folder: {path}: check --data")
    return [read_stock(file) for file in files]


def read_stock(path: Path) -> Stock:
    header, *rows = read_rows(path)
    names = []
    for name in header:
        plain = re.sub("[^a-z]", "", name.lower())
        names.append("adjusted" if plain in ADJUSTED else plain)
    for name in ["date", *PRICES, "volume"]:
        if name not in names:
            raise UserError(f"no column '{name}': {path}, row 1: write date, prices, volume")
    adjusted = "close"
    if "adjusted" in names:
        adjusted = "adjusted"
    dates = []
    table = []
    for number, row in enumerate(rows, start=2):
        cells = dict(zip(names, row, strict=True))
        try:
            # The day where the stock trades, also if the cell has a clock and an offset.
            dates.append(np.datetime64(datetime.fromisoformat(cells["date"]).date()))
            table.append([read_value(cells[name]) for name in [*PRICES, adjusted, "volume"]])
        except ValueError as error:
            raise UserError(f"{error}: {path}, row {number}: fix this row") from None
    values = np.array(table)
    is_impossible = (values[:, :5] <= 0).any()
    has_copies = len({*dates}) < len(dates)
    if is_impossible or has_copies:
        raise UserError(f"a price of 0 or below, or a date twice: {path}: fix or remove the rows")
    # Days without a price are left out.
    kept = np.argsort(dates)
    has_prices = np.isfinite(values[kept, :5]).all(axis=1)
    kept = kept[has_prices]
    values = values[kept]
    return Stock(np.array(dates)[kept], values[:, :4], values[:, 4], values[:, 5])


def read_value(cell: str) -> float:
    """Return the number in a cell, NaN if there is none."""
    value = read_number(cell)
    if math.isnan(value) and not GAP.fullmatch(cell):
        raise ValueError(f"'{cell}' is not a finite number")
    return value


def synthesize() -> list[Stock]:
    """Return 32 synthetic stocks over 900 days, always the same: a market and its own moves."""
    random = np.random.default_rng(22)
    dates = np.datetime64("2020-01-01") + np.arange(900)
    calm = 0.01 * np.exp(np.sin(np.arange(900) / 40) / 2)
    market = random.standard_normal(900) * calm
    stocks = []
    for _ in range(32):
        moves = 0.7 * market + random.standard_normal(900) * calm
        close = 100 * np.exp(np.cumsum(moves))
        opening = close / np.exp(moves)
        spread = np.exp(np.abs(random.standard_normal(900)) * calm)
        high = np.maximum(opening, close) * spread
        low = np.minimum(opening, close) / spread
        prices = np.stack([opening, high, low, close], axis=1)
        stocks.append(Stock(dates, prices, close, volume=1e6 * spread))
    return stocks


def mean_of_last(values: np.ndarray, count: int) -> np.ndarray:
    """Return the mean (n,) of the last `count` values up to each one."""
    sums = np.convolve(values, np.ones(count))
    lengths = np.arange(1, len(values) + 1).clip(max=count)
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
    length = since[-1] + 1
    daily = np.full(length + settings.horizon, np.nan)
    first = 1  # a stock's first day has no return
    if settings.target == "range":
        first = 0
    daily[since[first:]] = features[first:, DAILY[settings.target]]
    if settings.target == "volatility":
        daily = daily**2
    total: Any = sum(daily[ahead : ahead + length] for ahead in range(1, settings.horizon + 1))
    if settings.target != "return":
        total = total / settings.horizon
    if settings.target == "volatility":
        total = np.sqrt(total)
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
        stocks = [stock for stock in stocks if len(stock.dates) >= settings.window]
        if len(stocks) < 2:
            raise UserError(f"{len(stocks)} stocks have --window {settings.window} days: add more")
        self.settings = settings
        self.num_neighbors = min(settings.neighbors, len(stocks) - 1)
        self.make_panel(stocks)
        self.make_splits()
        self.learn_scale()

    def make_panel(self, stocks: list[Stock]) -> None:
        """Compute features and targets of all rows, and the returns by day and stock."""
        settings = self.settings
        calendar = np.unique(np.concatenate([stock.dates for stock in stocks]))
        days = []
        features = []
        targets = []
        for stock in stocks:
            days.append(np.searchsorted(calendar, stock.dates))
            features.append(describe_days(stock, settings.target))
            targets.append(target_of_days(features[-1], days[-1], settings))
        lengths = [len(stock.dates) for stock in stocks]
        stock_of_row = np.repeat(np.arange(len(stocks)), lengths)
        day_of_row = np.concatenate(days)
        age_of_row = np.concatenate([np.arange(length) for length in lengths])
        targets_of_rows = np.concatenate(targets).astype(np.float32)
        self.arrays: dict = {
            "features": np.concatenate(features).astype(np.float32),
            "targets": targets_of_rows[:, None],
            "stocks": stock_of_row,
        }
        self.arrays["seats"] = self.take_seats(day_of_row, age_of_row)

        # `returns` starts with L − 1 empty rows, so that L rows from row d on end with day d.
        back = settings.correlation_days - 1
        self.returns = np.full((back + len(calendar), len(stocks)), np.nan, np.float32)
        returns = np.where(age_of_row > 0, self.arrays["features"][:, 0], np.nan)
        self.returns[back + day_of_row, stock_of_row] = returns
        # Periods count from 1970, so that they do not depend on the first day of the data.
        calendar_days = calendar.astype("M8[D]").astype(np.int64)
        periods = calendar_days // settings.refresh
        _, self.graph_days, graphs = np.unique(periods, return_index=True, return_inverse=True)
        self.graph_of_sample = graphs[self.days]

    def take_seats(self, day_of_row: np.ndarray, age_of_row: np.ndarray) -> np.ndarray:
        """Return the rows (samples, K) of the stocks that have a whole window on a day, or −1."""
        rows = np.flatnonzero(age_of_row >= self.settings.window - 1)
        days = day_of_row[rows]
        self.days, num_stocks = np.unique(days, return_counts=True)
        is_taken = np.arange(num_stocks.max()) < num_stocks[:, None]
        seats = np.full(is_taken.shape, -1)
        seats[is_taken] = rows[np.argsort(days, kind="stable")]
        return seats

    def make_splits(self) -> None:
        """Split the days, without those whose targets reach into the next split."""
        ahead = self.settings.horizon
        count = len(self.days) - ahead  # the last days have no target yet
        train_end, validation_end, test_end = split_rows(self.settings.split, max(count, 0))
        gap = 0
        if test_end > validation_end:
            gap = ahead
        self.splits = {
            "train": range(train_end - ahead),
            "validation": range(train_end, validation_end - gap),
            "test": range(validation_end, test_end),
        }
        if not (self.splits["train"] and self.splits["validation"]):
            raise UserError(
                f"no day is left: --split {self.settings.split}: use a smaller --horizon"
            )

    def learn_scale(self) -> None:
        """Compute means and standard deviations of the training days."""
        rows = self.arrays["seats"][: len(self.splits["train"])]
        rows = rows[rows >= 0]
        self.scale = {}
        digest = hashlib.sha256()
        for prefix, name in {"": "features", "target_": "targets"}.items():
            digest.update(self.arrays[name].tobytes())
            values = self.arrays[name][rows].astype(np.float64)
            is_constant = np.nanmax(values, axis=0) == np.nanmin(values, axis=0)
            std = np.where(is_constant, 1.0, np.nanstd(values, axis=0))
            mean = np.nanmean(values, axis=0)
            self.scale[f"{prefix}mean"] = mean.tolist()
            self.scale[f"{prefix}std"] = std.tolist()
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
        self.settings = settings
        self.device = DEVICE if settings.resident else torch.device("cpu")
        if settings.cached_graphs:
            self.arrays["graphs"] = self.load_graphs()
        self.panel = {name: to_device(array, self.device) for name, array in self.arrays.items()}
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
            for name, values in batch.items():
                if self.settings.pin_memory:
                    values = values.pin_memory()
                batch[name] = values.to(DEVICE, non_blocking=True)
            yield chunk, batch

    def batch(self, samples: np.ndarray, is_real: Tensor) -> dict[str, Tensor]:
        """Return `features` (B, K, T, F), `target` (B, K, 1), `listed` (B, K) and `neighbors`."""
        panel = self.panel
        rows = panel["seats"][to_device(samples, self.device)]
        listed = rows >= 0
        listed &= is_real[:, None]
        rows = rows.clamp(min=0)
        ago = torch.arange(1 - self.settings.window, 1, device=self.device)
        windows = panel["features"][rows[:, :, None] + ago]
        graphs = self.graph_of_sample[samples]
        if self.settings.cached_graphs:
            of_days = panel["graphs"][to_device(graphs, self.device)]
        else:
            of_days = self.graphs_of(self.graph_days[graphs])
            of_days = of_days.to(self.device)
        return {
            "features": windows * listed[:, :, None, None],
            "target": panel["targets"][rows],
            "listed": listed,
            "neighbors": as_seats(of_days, panel["stocks"][rows], listed),
        }


def as_seats(graphs: Tensor, stocks: Tensor, listed: Tensor) -> Tensor:
    """Return the seats (B, K, k) of each stock's neighbors, −1 for those without one today.

    graphs: the neighbors of each stock (B, S, k), −1 for none. stocks: those of the seats (B, K).
    """
    days = torch.arange(len(stocks), device=stocks.device)[:, None]
    stocks = stocks.masked_fill(~listed, -1)
    # The last column is for −1, which is no stock.
    seat_of_stock = stocks.new_full((len(stocks), graphs.shape[1] + 1), -1)
    seat_of_stock[days, stocks] = torch.arange(stocks.shape[1], device=stocks.device)
    seat_of_stock[:, -1] = -1
    neighbors = graphs[days, stocks]
    seats = seat_of_stock[days[:, :, None], neighbors]
    return seats.masked_fill(~listed[:, :, None], -1)
