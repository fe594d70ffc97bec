ALLOCATED = h5py.h5d.SPACE_STATUS_ALLOCATED


def open_windows(path: str | Path) -> list[h5py.Dataset]:
    """Return `features` (N, T, F) and `targets` (N, H) of an HDF5 file."""
    try:
        file = h5py.File(path)
        datasets = [file["features"], file["targets"]]
        features, targets = [dataset.shape for dataset in datasets]
        kinds = {dataset.dtype.kind for dataset in datasets}
    except (OSError, KeyError, AttributeError) as error:
        raise UserError(f"cannot read the file ({error}): {path}: check --data") from None
    has_axes = (len(features), len(targets)) == (3, 2) and 0 not in features + targets
    if not has_axes or features[0] != targets[0] or kinds != {"f"}:
        raise UserError(
            f"wrong features {features} or targets {targets}: {path}: "
            "write floats of the shapes (N, T, F) and (N, H); MATLAB reverses them"
        )
    if any(dataset.id.get_space_status() != ALLOCATED for dataset in datasets):
        raise UserError(
            f"some rows were never written, and would be read as 0: {path}: write them, "
            "or make the datasets smaller"
        )
    # With as many features as targets, the last axis may be the samples as well as the first.
    if features[-1] == targets[-1] and features[0] == min(features) < features[-1]:
        raise UserError(f"reversed axes {features}, as of MATLAB: {path}: write (N, T, F)")
    return datasets


@dataclass
class ChunkDataLoader:
    """Yields batches of an HDF5 file on the device, while a thread reads the next large chunk.

        loader = ChunkDataLoader("train.h5", batch_size=128, chunk_size_gb="auto", shuffle=True)
        for epoch in range(10):
            for features, targets in loader:  # `len(loader)` batches
                ...

    Every batch is new memory, in float32. The order depends on seed, epoch and `shuffle_block`
    alone, so another chunk size gives the same batches. `batches` begins at any epoch and batch.
    chunk_size_gb: memory of a chunk. Two are on the device, or all rows if they fit into as much.
    "auto" uses three quarters of the memory that is free at the first batch. `num_samples`,
    `sequence_length` and `feature_count` are N, T and F.
    """

    hdf5_path: str | Path
    batch_size: int
    chunk_size_gb: float | str = "auto"
    device: Any = DEVICE
    shuffle: bool = False
    drop_last: bool = False
    rows: Any = None  # a range; all rows if it is not given
    seed: int = 0
    shuffle_block: int = 8192
    resident: bool = True
    pin_memory: bool = False

    def __post_init__(self) -> None:
        self.datasets = open_windows(self.hdf5_path)
        self.rows = self.rows or range(len(self.datasets[0]))
        self.num_samples = len(self.rows)
        _, self.sequence_length, self.feature_count = self.datasets[0].shape
        self.device = torch.device(self.device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError("no GPU is here: ChunkDataLoader: use device='cpu'")
        self.resident_chunk: list[Tensor] = []
        self.chunk_rows = 0  # chosen at the first batch
        self.next_epoch = 0

    def __len__(self) -> int:
        return math.ceil(len(self.order(0, 0)) / self.batch_size)

    def __iter__(self) -> Iterator[list[Tensor]]:
        """Yield the batches of an epoch without numbers; the next call begins the next epoch."""
        for _, batch in self.batches(self.next_epoch):
            yield batch
        self.next_epoch += 1

    @property
    def chunk_ranges(self) -> list[tuple[int, int]]:
        """First and last + 1 sample of each chunk, in the order of an epoch."""
        if not self.chunk_rows:
            self.choose_size()
        size = self.num_samples if self.is_resident else self.chunk_rows
        firsts = range(0, self.num_samples, size)
        return [(first, min(first + size, self.num_samples)) for first in firsts]

    def choose_size(self) -> None:
        """Choose the rows of a chunk, and whether all rows stay on the device."""
        row_bytes = sum(dataset.nbytes // len(dataset) for dataset in self.datasets)
        two_chunks = 1e9  # bytes, on a CPU
        if self.chunk_size_gb != "auto":
            two_chunks = 2e9 * float(self.chunk_size_gb)
        elif self.device.type == "cuda":
            two_chunks = 0.75 * torch.cuda.mem_get_info(self.device)[0]
        limit = int(two_chunks / row_bytes)
        self.is_resident = self.resident and len(self.rows) <= limit
        # A chunk has whole batches, and nearly whole blocks.
        block_rows = max(limit // 2 // self.shuffle_block, 1) * self.shuffle_block
        self.chunk_rows = math.ceil(block_rows / self.batch_size) * self.batch_size

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[tuple]:
        """Yield the batches of an epoch from number `start` on, to resume at any position."""
        for numbers, places, chunk in self.chunks(self.order(epoch, start)):
            for first in range(0, len(numbers), self.batch_size):
                batch = slice(first, first + self.batch_size)
                yield numbers[batch], [part[places[batch]].float() for part in chunk]

    def order(self, epoch: int, start: int) -> np.ndarray:
        """Return the numbers of the samples of an epoch from a batch on.

        If shuffled, blocks and the samples of each block are in random order. A block is one long
        read of the file.
        """
        order = np.arange(len(self.rows))
        if self.shuffle:
            blocks = np.split(order, range(self.shuffle_block, len(order), self.shuffle_block))
            shuffled = []
            for number in np.random.RandomState([self.seed, epoch]).permutation(len(blocks)):
                inside = np.random.RandomState([self.seed, epoch, number])
                shuffled.append(inside.permutation(blocks[number]))
            order = np.concatenate(shuffled)
        if self.drop_last:
            order = order[: len(order) // self.batch_size * self.batch_size]
        return order[start * self.batch_size :]

    def chunks(self, order: np.ndarray) -> Iterator[tuple]:
        """Yield numbers of samples, their places in a chunk, and the chunk's tensors."""
        if not self.chunk_rows:
            self.choose_size()
        if self.is_resident:
            if not self.resident_chunk:
                _, chunk = self.read(np.arange(len(self.rows)))
                self.resident_chunk = [part.to(self.device) for part in chunk]
            yield order, to_device(order, self.device), self.resident_chunk
            return

        plan = np.split(order, range(self.chunk_rows, len(order), self.chunk_rows))
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(self.read, plan[0])
            for index, numbers in enumerate(plan, start=1):
                places, chunk = reading.result()
                if index < len(plan):
                    reading = thread.submit(self.read, plan[index])
                chunk = [part.to(self.device, non_blocking=True) for part in chunk]
                yield numbers, to_device(places, self.device), chunk

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, list[Tensor]]:
        """Read the blocks of some samples; return the places of the samples in them, and the rows.

        The rows keep the dtype of the file until they are on the device.
        """
        size = self.shuffle_block
        blocks, places = np.unique(numbers // size, return_inverse=True)
        spans = [self.rows[block * size : (block + 1) * size] for block in blocks.tolist()]
        parts = []
        for dataset in self.datasets:
            shape = (sum(len(span) for span in spans), *dataset.shape[1:])
            dtype = getattr(torch, dataset.dtype.name)
            part = torch.empty(shape, dtype=dtype, pin_memory=self.pin_memory)
            for place, span in enumerate(spans):
                target = np.s_[place * size : place * size + len(span)]
                dataset.read_direct(part.numpy(), np.s_[span.start : span.stop], target)
            parts.append(part)
        return places * size + numbers % size, parts


def read_singly(path: str | Path, rows: list[int]) -> tuple[np.ndarray, list[Tensor]]:
    """Read windows one by one. Each worker process opens the file itself."""
    batch = []
    for dataset in open_windows(path):
        windows = np.stack([dataset[row] for row in rows])
        batch.append(torch.from_numpy(windows))
    return np.array(rows), batch


def dataloader_batches(
    loader: ChunkDataLoader, num_workers: int, epoch: int = 0, start: int = 0
) -> Iterator[tuple]:
    """Yield the same batches from a DataLoader that reads singly, for --chunk_loader 0."""
    rows_of_samples: Any = loader.rows
    batches = DataLoader(
        rows_of_samples,
        loader.batch_size,
        sampler=loader.order(epoch, start).tolist(),
        num_workers=num_workers,
        collate_fn=partial(read_singly, loader.hdf5_path),
        pin_memory=loader.pin_memory,
        generator=torch.Generator(),  # separate, so that workers do not change dropout
    )
    for rows, batch in batches:
        numbers = rows - loader.rows.start
        yield numbers, [part.to(DEVICE, non_blocking=True).float() for part in batch]


def synthesize() -> str:
    """Write 10,000 synthetic windows, always the same: 24 hours of 3 columns, then 4 targets."""
    hours = np.arange(10_000)[:, None] + np.arange(28)
    noise = np.random.default_rng(22).normal(0, 0.2, (10_027, 3))
    waves = [np.sin(2 * np.pi * hours / period) for period in (24, 12, 168)]
    windows = (np.stack(waves, axis=2) + noise[hours]).astype(np.float32)
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["features"] = windows[:, :24]
        file["targets"] = windows[:, 24:, 0]
    path = Path("data/windows.h5")
    path.parent.mkdir(exist_ok=True)
    write(path, content.getbuffer())
    return str(path)


def measure(dataset: h5py.Dataset, num_rows: int) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each column, from the first rows."""
    count = 0
    offset: Any = 0.0
    sums: Any = 0.0
    for first in range(0, num_rows, 1024):
        rows = dataset[first : min(first + 1024, num_rows)].astype(np.float32)
        values = to_device(rows).double().flatten(0, -2)
        if first == 0:
            offset = values[0]
        # Sums of differences from one row are exact enough for columns with an offset.
        values = values - offset
        sums = sums + torch.stack([values, values.square()]).sum(1)
        count += len(values)
    mean, square = sums / count
    variance = (square - mean.square()).clamp(min=0)
    if not variance.isfinite().all():
        raise UserError(f"a training value is not a finite number: {dataset.file.filename}: fix it")
    std = torch.where(square == 0, 1.0, variance.sqrt())  # 1 for a constant column
    mean += offset
    if dataset.dtype.itemsize > 4 and (mean.abs() > 1e4 * std).any():
        path = dataset.file.filename
        raise UserError(f"float32 is too coarse for a column: {path}: subtract its mean")
    return mean.tolist(), std.tolist()


class Data:
    """The windows of each split in the file, and their loaders."""

    def __init__(self, settings: Settings):
        self.path = os.path.expanduser(settings.data) if settings.data else synthesize()
        datasets = open_windows(self.path)
        features, targets = [dataset.shape for dataset in datasets]
        num_rows, self.history, self.num_features = features
        self.num_targets = targets[1]
        shape = f"{self.history} rows of {self.num_features} features → {self.num_targets} targets"
        print(f"data: {num_rows:,} windows, each {shape}")
        # Windows before a border are left out if they overlap in time with the first one after it.
        purge = settings.purge if settings.purge >= 0 else self.history + self.num_targets - 1
        train_end, validation_end, test_end = split_rows(settings.split, num_rows)
        self.splits = {
            "train": range(train_end - purge),
            "validation": range(train_end, validation_end - purge),
            "test": range(validation_end, test_end),
        }
        if not (self.splits["train"] and self.splits["validation"]):
            raise UserError(f"no window is left: --split {settings.split}: use a smaller --purge")
        self.batch_size = settings.batch_size
        self.batch_targets = settings.batch_size * self.num_targets
        self.scale = {}
        for prefix, dataset in zip(["", "target_"], datasets, strict=True):
            mean, std = measure(dataset, len(self.splits["train"]))
            self.scale[f"{prefix}mean"] = mean
            self.scale[f"{prefix}std"] = std
        self.facts = {"rows": num_rows, "splits": str(self.splits), "scale": self.scale}

    def prepare(self, settings: Settings) -> None:
        """Make the loaders of the splits."""
        self.batches: dict[str, Any] = {}
        for split, rows in self.splits.items():
            loader = ChunkDataLoader(
                self.path,
                settings.batch_size,
                settings.chunk_size_gb,
                shuffle=settings.shuffle and split == "train",
                rows=rows,
                seed=settings.seed,
                shuffle_block=settings.shuffle_block,
                resident=settings.resident and split == "train",
                pin_memory=settings.pin_memory,
            )
            self.batches[split] = loader.batches
            if not settings.chunk_loader:
                self.batches[split] = partial(dataloader_batches, loader, settings.num_workers)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        return self.padded(self.batches["train"](epoch, first_batch))

    def split_batches(self, split: str) -> Iterator:
        return self.padded(self.batches[split]())

    def padded(self, batches: Iterable) -> Iterator:
        """Yield numbers of windows, features (B, T, F), targets (B, H) and is_real (B,).

        is_real is false for padding, which keeps the shape of an incomplete batch.
        """
        for numbers, (features, targets) in batches:
            count = len(numbers)
            if count < self.batch_size:
                padding = to_device(np.resize(np.arange(count), self.batch_size))
                features = features[padding]
                targets = targets[padding]
            yield numbers, (features, targets, to_device(np.arange(self.batch_size) < count))
