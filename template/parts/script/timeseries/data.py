def read_csv(path: Path) -> tuple[list[str], np.ndarray]:
    """Return the names of the columns and their values (N, C), oldest row first."""
    header, *rows = read_rows(path)
    values = []
    previous_time: Any = None
    for number, (text, *cells) in enumerate(rows, start=2):
        try:
            # A time is ISO 8601 or a number. It only orders the rows, so its unit has no effect.
            row_time: Any = read_number(text)
            if math.isnan(row_time):
                row_time = datetime.fromisoformat(f"{text}-01" if len(text) == 7 else text)
            if number > 2 and not row_time > previous_time:
                raise ValueError("the time does not increase")
            values.append([read_number(cell) for cell in cells])
            is_wrong = np.isnan(values[-1])
            if is_wrong.any():
                raise ValueError(f"'{cells[is_wrong.argmax()]}' is not a finite number")
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{error}: {path}, row {number}: fix this row: write date and clock in one cell, "
                "with the offset if an hour comes twice (02:30+01:00), then numbers without a unit"
            ) from None
        previous_time = row_time
    return header[1:], np.array(values)


def synthesize() -> tuple[list[str], np.ndarray]:
    """Return 20,000 synthetic hours of two columns, always the same: daily cycles and noise."""
    days = np.arange(20_000)[:, None] / 24
    noise = np.random.default_rng(22).standard_normal((20_000, 2))
    cycles = np.sin(2 * np.pi * days * [1, 2]) + np.sin(2 * np.pi * days / 7)
    return ["load", "price"], (50 + 8 * cycles + noise).astype(np.float32)


def standardize(values: np.ndarray, num_train: int) -> tuple[np.ndarray, dict]:
    """Return the standardized values and their metadata. The scale comes from training rows."""
    # float32 is too coarse for columns such as Julian dates, whose values hardly differ.
    if not any(abs(column.mean()) > 1e4 * column.std() > 0 for column in values.T):
        values = values.astype(np.float32)
    train_rows = values[:num_train].astype(np.float64)
    mean = train_rows.mean(axis=0).astype(values.dtype)
    std = train_rows.std(axis=0).astype(np.float32)
    std[np.ptp(train_rows, axis=0) == 0] = 1.0  # a constant column
    facts = {
        "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        "mean": mean.tolist(),
        "std": std.tolist(),
    }
    return ((values - mean) / std).astype(np.float32), facts


class Data:
    """The standardized series and the windows of each split, a batch of which is one gather.

    A window belongs to the split that contains all its targets, so that nothing of the future leaks
    into training.
    """

    def __init__(self, settings: Settings):
        path = Path(settings.data).expanduser()
        names, values = read_csv(path) if settings.data else synthesize()
        targets = settings.targets.split(",") if settings.targets else names
        for name in targets:
            if name.strip() not in names:
                raise UserError(f"no column '{name}': --targets: use {', '.join(names)}")
        self.columns = [names.index(name.strip()) for name in targets]

        # The window with number n begins at row n, and each split is a range of numbers.
        self.splits = {}
        start = 0
        ends = split_rows(settings.split, len(values))
        for name, end in zip(["train", "validation", "test"], ends, strict=True):
            first = max(start - settings.history, 0)
            self.splits[name] = range(first, end - settings.history - settings.horizon + 1)
            start = end
        if not (self.splits["train"] and self.splits["validation"]):
            raise UserError(
                f"no window fits: --split {settings.split}: use a smaller --history or --horizon"
            )

        series, self.facts = standardize(values, ends[0])
        self.series = torch.from_numpy(series)
        self.seed = settings.seed
        self.history = settings.history
        self.batch_size = settings.batch_size
        self.batch_targets = settings.batch_size * settings.horizon * len(targets)

    def prepare(self, settings: Settings) -> None:
        """Move the series to the device, or keep it on the host."""
        self.pin_memory = settings.pin_memory
        if settings.resident:
            self.series = self.series.to(DEVICE)
        # All windows are one view (number, row, column).
        self.windows = self.series.unfold(0, self.history + settings.horizon, 1).transpose(1, 2)
        # With a list, each step would wait for the GPU.
        self.targets = torch.tensor(self.columns, device=DEVICE)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        order = np.random.RandomState([self.seed, epoch]).permutation(len(self.splits["train"]))
        return self.batches(order[first_batch * self.batch_size :])

    def split_batches(self, split: str) -> Iterator:
        return self.batches(np.array(self.splits[split]))

    def batches(self, numbers: np.ndarray) -> Iterator:
        """Yield numbers of windows, history (B, T, C), target (B, H, G) and is_real (B,).

        is_real is false for padding, which keeps the shape of an incomplete batch, so that kernels
        are not tuned or compiled twice.
        """
        for first in range(0, len(numbers), self.batch_size):
            chunk = numbers[first : first + self.batch_size]
            padded = np.resize(chunk, self.batch_size)
            windows = self.windows[to_device(padded, self.windows.device)]
            if self.pin_memory:
                windows = windows.pin_memory()
            windows = windows.to(DEVICE, non_blocking=True)
            history = windows[:, : self.history]
            target = windows[:, self.history :, self.targets]
            is_real = to_device(np.arange(self.batch_size) < len(chunk))
            yield chunk, (history, target, is_real)
