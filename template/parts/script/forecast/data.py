# How many rows are a day, a week or a year, by the seconds from row to row
SEASONS = {900: 96, 1800: 48, 3600: 24, 86_400: 7, 604_800: 52, 2_678_400: 12}


def choose_columns(header: list[str], settings: Settings) -> dict[str, list[str]]:
    """Return the names of the columns by their role; `columns` are those of numbers."""
    roles = {}
    left = header
    for role in ("series", "known", "targets"):
        names = [name.strip() for name in getattr(settings, role).split(",") if name]
        for name in names:
            if name not in left:
                raise UserError(f"no column '{name}' is left: --{role}: use {', '.join(left)}")
        left = [name for name in left if name not in names]
        if role == "series":
            roles["time"] = left[:1]
            left = left[1:]
            roles["columns"] = left
        roles[role] = names
    roles["targets"] = roles["targets"] or left
    return roles


def read_time(text: str) -> Any:
    """Return a number of seconds, or a time of ISO 8601."""
    number = read_number(text)
    if math.isnan(number):
        return datetime.fromisoformat(f"{text}-01" if len(text) == 7 else text)
    return number


def read_table(settings: Settings) -> tuple[dict[str, list[str]], dict]:
    """Return the roles of columns, and the numbers of each row by its series and time.

    Times are in seconds since the first row. The rows may have any order.
    """
    path = Path(settings.data).expanduser()
    header, *rows = read_rows(path) if settings.data else synthesize()
    roles = choose_columns(header, settings)
    table: dict = {}
    start: Any = None
    for number, cells in enumerate(rows, start=2):
        row = dict(zip(header, cells, strict=True))
        if not any(row[name] for name in roles["targets"]):  # a row to forecast
            continue
        try:
            series = [row[name] for name in roles["series"]]
            row_time = read_time(row[roles["time"][0]])
            if start is None:
                start = row_time
            row_time -= start
            if isinstance(row_time, timedelta):
                row_time = row_time.total_seconds()
            key = ("/".join(series), row_time)
            if "" in series or key in table:
                raise ValueError("no name of a series, or a time that it has already")
            table[key] = [read_number(row[name]) for name in roles["columns"]]
            is_wrong = np.isnan(table[key])
            if is_wrong.any():
                cell = row[roles["columns"][is_wrong.argmax()]]
                raise ValueError(f"'{cell}' is not a finite number")
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{error}: {path}, row {number}: fix this row, or see --series: write date and "
                "clock in one cell, with the offset if an hour comes twice (02:30+01:00), then "
                "numbers without a unit"
            ) from None
    if len(table) < len(rows):
        print(f"note: {len(rows) - len(table)} rows without targets are left out")
    if not table:
        raise UserError(f"no targets: {path}: fill a column, and name it with --targets")
    return roles, table


def synthesize() -> list[list[str]]:
    """Return a table of 24 synthetic shops, always the same."""
    random = np.random.default_rng(22)
    start = datetime(2024, 1, 1)
    rows = [["shop", "date", "sales", "promotion"]]
    for number in range(24 * 730):
        shop, day = divmod(number, 730)
        promotion = number % 11 // 10
        level = 3 + shop / 8 + math.sin(2 * math.pi * day / 7) / 3 + promotion / 2
        sales = math.exp(random.normal(level, 0.1))
        date = start + timedelta(day)
        rows.append([f"shop {shop:02}", f"{date}", f"{sales:.2f}", f"{promotion}"])
    return rows


def measure(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each column (C,); the deviation of a constant one is 1."""
    rows = rows.astype(np.float64)
    std = rows.std(0)
    return rows.mean(0), np.where(std, std, 1)


def mean_change(targets: np.ndarray, season: int) -> np.ndarray:
    """Return the mean change in a season (G,), by which MASE divides errors; NaN if all is flat."""
    lag = season if len(targets) > season else 1
    changes = np.abs(targets[lag:] - targets[:-lag]).sum(0) / max(len(targets) - lag, 1)
    return np.where(changes, changes, np.nan)


class Data:
    """All series, one after the other, and the windows of each split.

    A window is in one series, and belongs to the split that contains all its targets, so that
    nothing of the future leaks into training. A batch is one gather.
    """

    def __init__(self, settings: Settings):
        if not settings.data:
            settings = replace(settings, series="shop", known="promotion")
        self.seed = settings.seed
        self.history = settings.history
        self.horizon = settings.horizon
        self.batch_size = settings.batch_size
        self.roles, table = read_table(settings)
        columns = self.roles["columns"]
        self.targets = [columns.index(name) for name in self.roles["targets"]]
        self.known = [columns.index(name) for name in self.roles["known"]]
        self.batch_targets = settings.batch_size * settings.horizon * len(self.targets)

        # In the order of series and time
        keys, rows = zip(*sorted(table.items()), strict=True)
        names, times = map(np.array, zip(*keys, strict=True))
        values = np.array(rows, np.float32)
        _, firsts, self.series = np.unique(names, return_index=True, return_inverse=True)
        ends = firsts[1:]
        split_of = self.find_windows(settings.split, times, np.append(ends, len(rows)))
        self.season = settings.season or SEASONS.get(np.median(np.diff(times)), 1)
        self.scale(values, np.split(values, ends), np.split(split_of, ends))

    def find_windows(self, split: str, times: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Number the windows of each split, and keep the rows where they begin.

        ends: where the rows of each series end. Returns the number of each row's split (N,).
        """
        sizes = re.fullmatch(r"rest,(\d{1,9}),(\d{1,9})", split)
        if sizes:
            times = np.arange(len(times)) - ends[self.series]  # the last row of a series has -1
            limits: Any = [-int(sizes[1]) - int(sizes[2]), -int(sizes[2]), 0]
        else:
            limits = np.append(np.sort(times), np.inf)[split_rows(split, len(times))]
        split_of = np.searchsorted(limits, times, side="right")

        starts = np.arange(len(times) - self.history - self.horizon + 1)
        begins = starts + self.history  # of the targets
        lasts = begins + self.horizon - 1
        fits = self.series[starts] == self.series[lasts]
        fits &= split_of[begins] == split_of[lasts]
        numbers = split_of[begins[fits]]
        self.starts = starts[fits][np.argsort(numbers, kind="stable")]
        self.splits = {}
        for number, name in enumerate(["train", "validation", "test"]):
            self.splits[name] = range((numbers < number).sum(), (numbers <= number).sum())
        if not (self.splits["train"] and self.splits["validation"]):
            raise UserError(
                f"no window fits: --split {split}: use a smaller --history or --horizon"
            )
        return split_of

    def scale(self, values: np.ndarray, series: list, splits: list) -> None:
        """Standardize columns whose future is known, and keep the scales of each series."""
        mean, std = measure(values[np.concatenate(splits) == 0])
        stds = []
        changes = []
        for rows, split_of in zip(series, splits, strict=True):
            first = split_of[0]
            if first:  # Without training rows: those of the first history, which windows know
                own = rows[: self.history].std(0, dtype=np.float64)
                stds.append(np.where(own, own, std))
            else:
                stds.append(measure(rows[split_of == 0])[1])
            for split in (1, 2):
                # The rows before validation or test, or in it if the series begins there
                before = rows[split_of < max(split, first + 1)]
                changes.append(mean_change(before[:, self.targets], self.season))
        self.stds = to_device(np.array(stds, np.float32))
        self.changes = to_device(np.array(changes, np.float32)).unflatten(0, (-1, 2))
        known = self.known
        values[:, known] = (values[:, known] - np.float32(mean[known])) / np.float32(std[known])
        content = values.tobytes() + self.starts.tobytes()
        self.facts = {"sha256": hashlib.sha256(content).hexdigest()}
        self.values = torch.from_numpy(values)

    def prepare(self, settings: Settings) -> None:
        """Move the series to the device, or keep them on the host."""
        self.pin_memory = settings.pin_memory
        if settings.resident:
            self.values = self.values.to(DEVICE)
        # All windows are one view (row, row of the window, column).
        self.windows = self.values.unfold(0, self.history + self.horizon, 1).transpose(1, 2)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        order = np.random.RandomState([self.seed, epoch]).permutation(len(self.splits["train"]))
        return self.batches(order[first_batch * self.batch_size :])

    def split_batches(self, split: str) -> Iterator:
        return self.batches(np.array(self.splits[split]))

    def batches(self, numbers: np.ndarray) -> Iterator:
        """Yield numbers of windows, and history (B, T, C), future (B, H, C), is_real (B,), series.

        Of these, there are numbers (B,), deviations (B, 1, C) and mean changes in a season (S, G).
        is_real is false for padding, which keeps the shape of an incomplete batch, so that kernels
        are not tuned or compiled twice.
        """
        for first in range(0, len(numbers), self.batch_size):
            chunk = numbers[first : first + self.batch_size]
            starts = self.starts[np.resize(chunk, self.batch_size)]
            windows = self.windows[to_device(starts, self.windows.device)]
            if self.pin_memory:
                windows = windows.pin_memory()
            windows = windows.to(DEVICE, non_blocking=True)
            history = windows[:, : self.history]
            future = windows[:, self.history :]
            is_real = to_device(np.arange(self.batch_size) < len(chunk))
            series = to_device(self.series[starts])
            changes = self.changes[:, int(chunk[0] >= self.splits["test"].start)]
            yield chunk, (history, future, is_real, series, self.stds[series, None], changes)
