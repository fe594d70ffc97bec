# A cell without a value, as other programs write it.
GAP = re.compile("(?i)(na|n/a|nan|null|none)?")
# A number with a unit, a currency or a decimal comma, which is no category.
AMOUNT = r"""(?x)  # with spaces and comments
    [-+−(~≈±]*  # signs
    (([A-Z]{0,2}[$¢£¥\u20a0-\u20c0]|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|Rs\.?)[ ]?)?
    [-+−]?(\d+|\d{1,3}([ ,.'’]\d{2,3})+)([.,]\d+)?
    ([ ]?([$¢£¥\u20a0-\u20c0%‰°]\w*|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD
    |[kmµ]?g|t|lbs?|oz|[kcmµn]?m|mi|ft|in|ha|[mc]?l|m?s|sec|min|h|hrs?|d|yrs?|km/h|m/s|mph
    |[kMG]?(W|Wh|Hz|V)|[kKMGT]i?B|mA|k?cal|k?J|[kh]?Pa|bar|mmHg|K|C|F|k|M|bn)[²³]?
    |[ ][^\W\d]\S*)?[-)]?"""


def spell(cell: str) -> float | str:
    """Return what all spellings of a category share: 1 for 1.0 and True, not for 01 and 1E0."""
    text = {"true": "1", "false": "0"}.get(cell.lower(), cell)
    if re.fullmatch(r"[-+(−]?(?!0\d)[\d.,'’ ]{1,15}[-)]?", text):  # float64 has 15 digits
        return read_number(text)
    return text


def read_table(settings: Settings) -> dict[str, np.ndarray]:
    """Return each column by name: text if --category names it or most cells are, else numbers."""
    header, *rows = read_rows(Path(settings.data).expanduser())
    categories = re.split(", *", settings.category)
    dropped = re.split(", *", settings.drop)
    for name in filter(None, categories + dropped):
        if name not in header:
            raise UserError(f"no column '{name}': --category, --drop: use {', '.join(header)}")
    names = [name for name in header if name not in dropped]
    if settings.task == "classification":
        categories.append(settings.target or ["", *names][-1])
    table = {}
    for name, *cells in zip(header, *rows, strict=True):
        if name in dropped:
            continue
        values: list = [read_number(cell) for cell in cells]
        is_text = np.isnan(values) & [not re.fullmatch(AMOUNT, cell) for cell in cells]
        is_category = name in categories or is_text.mean() > 0.5
        for row, cell in enumerate(cells):
            if not cell or (np.isnan(values[row]) and not is_category):
                raise UserError(
                    f"cannot read '{cell}': {settings.data}, row {row + 2}, column '{name}': write "
                    "a number without unit or currency, fill an empty cell or remove its row, or "
                    "use --category or --drop"
                )
        for gap in {*filter(GAP.fullmatch, cells)}:
            print(f"note: column '{name}' has cells '{gap}', which are a value like any other")
        if is_category:
            first: dict = {}
            values = [first.setdefault(spell(cell), cell) for cell in cells]
        table[name] = np.array(values)
    return table


def synthesize() -> dict[str, np.ndarray]:
    """Return 20,000 synthetic rows, always the same: two numbers, a category and a target."""
    numbers = np.random.default_rng(20).standard_normal((4, 20_000))
    rain, sun, soil, noise = numbers.astype(np.float32)
    soil = soil.round()
    harvest = np.sin(2 * rain) + rain * sun + soil + 0.3 * noise
    return {"rain": rain, "sun": sun, "soil": soil.astype(str), "harvest": harvest}


def arrange(
    table: dict[str, np.ndarray], target: str, settings: Settings
) -> tuple[np.ndarray, list[int]]:
    """Return shuffled rows, and where each split ends; take the group out of the table.

    Each split has its fraction of each class. Rows of a group stay together; splits count groups.
    """
    group = np.arange(len(table[target]))
    if settings.group:
        group = np.unique(table.pop(settings.group), return_inverse=True)[1]
    units = np.random.default_rng(0).permutation(group.max() + 1)
    ends = split_rows(settings.split, len(units), "rows or groups")
    if settings.task == "classification":
        units = spread_classes(units, rarest_class(table[target], group))
    turns = units.argsort()
    rows = turns[group].argsort(kind="stable")
    sizes = np.bincount(group)
    rows_before = np.append(0, sizes[units].cumsum())
    return rows, rows_before[ends].tolist()


def rarest_class(target: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the number of the class of each group that has the fewest rows in the table."""
    _, classes, counts = np.unique(target, return_inverse=True, return_counts=True)
    common_first = np.lexsort((-counts[classes], group))  # group by group
    ends = np.bincount(group).cumsum()
    return classes[common_first[ends - 1]]


def spread_classes(units: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Reorder units such that those of each class have equal distances."""
    labels = classes[units]
    place = np.empty(len(units))
    for label in np.unique(labels):
        members = labels == label
        count = members.sum()
        place[members] = (np.arange(count) + 0.5) / count
    return units[place.argsort(kind="stable")]


def standardize(values: np.ndarray, num_train: int) -> tuple[np.ndarray, list[float]]:
    """Return standardized values (N,), and the mean and standard deviation of training rows."""
    # float32 is too coarse for a column such as Julian dates, whose values hardly differ.
    if not abs(values.mean()) > 1e4 * values.std() > 0:
        values = values.astype(np.float32)
    train = values[:num_train].astype(np.float64)
    mean = values.dtype.type(train.mean())
    std = np.float32(train.std() if np.ptp(train) else 1.0)
    return ((values - mean) / std).astype(np.float32), [float(mean), float(std)]


def encode(values: np.ndarray, num_train: int) -> tuple[np.ndarray, list[str]]:
    """Return codes (N,) from 1, with 0 for values that no training row has, and their names."""
    # Sort whole numbers by size.
    ordered = sorted(
        set(values[:num_train].tolist()), key=lambda name: (len(name) * name.isdecimal(), name)
    )
    codes = {name: code for code, name in enumerate(ordered, start=1)}
    return np.array([codes.get(name, 0) for name in values.tolist()]), ordered


@dataclass
class Rows(Dataset):
    """Reads batches by the numbers of their rows, in worker processes if there are any.

    YOUR OWN DATA GOES HERE: images, sound, another file. `__getitem__` takes the numbers of at most
    `batch_size` rows and returns what `compute_loss` needs, padded to `batch_size`. A resumed run
    repeats the draws of `random` and `np.random`; with workers, only those that you seed with the
    numbers.
    """

    arrays: dict[str, np.ndarray]
    batch_size: int

    def __getitem__(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        padded = np.resize(numbers, self.batch_size)
        batch = {name: values[padded] for name, values in self.arrays.items()}
        batch["is_real"] = np.arange(self.batch_size) < len(numbers)
        return batch


class Data:
    """The table in memory, shuffled and split. Scales and categories come from training rows."""

    def __init__(self, settings: Settings):
        self.seed = settings.seed
        self.batch_size = settings.batch_size
        self.batch_targets = settings.batch_size
        table = read_table(settings) if settings.data else synthesize()
        target = settings.target or ["", *table][-1]
        if target == settings.group or not table.keys() - {target, settings.group}:
            raise UserError("no target or no feature is left: --group, --drop: name other columns")
        for flag, name in ("target", target), ("group", settings.group or target):
            if name not in table:
                raise UserError(f"no column '{name}': --{flag}: use one of {', '.join(table)}")
        order, (first, second, last) = arrange(table, target, settings)
        self.splits = {
            "train": range(first),
            "validation": range(first, second),
            "test": range(second, last),
        }

        self.facts: dict = {}
        columns = {}
        for name, column in table.items():
            prepare = standardize if column.dtype.kind == "f" else encode
            columns[name], self.facts[name] = prepare(column[order], first)
        self.arrays = {"target": self.check_target(columns.pop(target), target, settings.task)}
        self.stack_features(columns)
        content = b"".join(values.tobytes() for values in self.arrays.values())
        self.facts["sha256"] = hashlib.sha256(content).hexdigest()

    def check_target(self, values: np.ndarray, name: str, task: str) -> np.ndarray:
        """Return the targets: numbers, or classes from 0."""
        self.num_outputs = 1
        if task == "classification":
            values = values - 1
            self.num_outputs = len(self.facts[name])
            if values.min() < 0 or self.num_outputs < 2:
                raise UserError(
                    f"one class, or one without a training row: --target {name}: check its rows"
                )
        elif values.dtype != np.float32:
            raise UserError(f"column '{name}' has text: --task: use classification")
        return values

    def stack_features(self, columns: dict[str, np.ndarray]) -> None:
        """Stack the numbers, and the categories, whose codes begin where the previous ones end."""
        self.offsets = [0]
        numbers = []
        categories = []
        for name, values in columns.items():
            if values.dtype == np.float32:
                numbers.append(values)
            else:
                categories.append(values + self.offsets[-1])
                self.offsets.append(self.offsets[-1] + len(self.facts[name]) + 1)
        self.num_features = len(numbers)
        if numbers:
            self.arrays["features"] = np.stack(numbers, axis=1)
        if categories:
            self.arrays["categories"] = np.stack(categories, axis=1)

    def prepare(self, settings: Settings) -> None:
        """Make the loaders of the splits."""
        self.loaders = {
            split: DataLoader(
                Rows(self.arrays, self.batch_size),
                batch_size=None,
                sampler=[],  # `batches` fills it
                num_workers=settings.num_workers,
                pin_memory=settings.pin_memory,
                prefetch_factor=settings.prefetch_factor if settings.num_workers else None,
                persistent_workers=settings.persistent_workers,
                worker_init_fn=ignore_signals,
                generator=torch.Generator(),  # separate, so that workers do not change dropout
            )
            for split in self.splits
        }

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        order = np.random.RandomState([self.seed, epoch]).permutation(len(self.splits["train"]))
        return self.batches("train", order[first_batch * self.batch_size :])

    def split_batches(self, split: str) -> Iterator:
        return self.batches(split, np.array(self.splits[split]))

    def batches(self, split: str, numbers: np.ndarray) -> Iterator:
        """Yield the numbers of rows and their batch."""
        chunks = np.split(numbers, range(self.batch_size, len(numbers), self.batch_size))
        sampler: Any = self.loaders[split].sampler
        sampler[:] = chunks
        for chunk, batch in zip(chunks, self.loaders[split], strict=True):
            yield chunk, {name: x.to(DEVICE, non_blocking=True) for name, x in batch.items()}


def ignore_signals(worker: int) -> None:
    """Ignore signals in a worker, because the main process handles them and ends the workers."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
