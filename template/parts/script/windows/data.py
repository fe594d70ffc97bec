def epoch_blocks(count: int, block: int, seed: list[int] | None) -> list[np.ndarray]:
    """Return the numbers of all samples, block by block; a block is one long read of the file.

    With a seed, the blocks and the samples of each block are in random order.
    """
    numbers = np.arange(math.ceil(count / block))
    if seed is not None:
        numbers = np.random.RandomState(seed).permutation(len(numbers))
    blocks = []
    for number in numbers.tolist():
        first = number * block
        inside = np.arange(min(block, count - first))
        if seed is not None:
            inside = np.random.RandomState([*seed, number]).permutation(len(inside))
        blocks.append(first + inside)
    return blocks


class ChunkDataLoader:
    """Yields batches of an HDF5 file on the device, while a thread reads the next large chunk.

        loader = ChunkDataLoader("train.h5", batch_size=128, chunk_size_gb=1.0, shuffle=True)
        for epoch in range(10):
            for numbers, (features, targets) in loader.batches(epoch):
                ...

    Every batch is new memory, in float32. The order depends on seed, epoch and `shuffle_block`
    alone, so another chunk size gives the same batches.
    """

    def __init__(
        self,
        hdf5_path: str | Path,
        batch_size: int,
        chunk_size_gb: float = 1.0,
        device: torch.device = DEVICE,
        shuffle: bool = False,
        drop_last: bool = False,
        rows: range | None = None,
        seed: int = 0,
        shuffle_block: int = 8192,
        resident: bool = True,
        pin_memory: bool = False,
    ):
        file = h5py.File(hdf5_path)
        self.datasets = [file["features"], file["targets"]]
        self.rows = rows or range(len(self.datasets[0]))
        self.batch_size = batch_size
        self.device = device
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.shuffle_block = shuffle_block
        self.pin_memory = pin_memory
        row_bytes = sum(dataset.nbytes // len(dataset) for dataset in self.datasets)
        chunk_rows = int(chunk_size_gb * 1e9 / row_bytes)
        self.chunk_blocks = max(chunk_rows // shuffle_block, 1)
        self.is_resident = resident and len(self.rows) <= chunk_rows
        self.resident_rows: list[Tensor] = []

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[tuple]:
        """Yield the batches of an epoch from number `start` on, to resume at any position."""
        seed = [self.seed, epoch] if self.shuffle else None
        blocks = epoch_blocks(len(self.rows), self.shuffle_block, seed)
        ends = np.cumsum([len(block) for block in blocks])
        first_block = int(np.searchsorted(ends, start * self.batch_size, side="right"))
        blocks = blocks[first_block:]
        if not blocks:
            return
        blocks[0] = blocks[0][start * self.batch_size - ends[first_block] :]

        kept: list[tuple] = []  # parts of a batch, which the next chunk may complete
        num_kept = 0
        for numbers, places, chunk in self.chunks(blocks):
            begin = 0
            while begin < len(numbers):
                end = min(begin + self.batch_size - num_kept, len(numbers))
                rows = [part[places[begin:end]].float() for part in chunk]
                kept.append((numbers[begin:end], rows))
                num_kept += end - begin
                begin = end
                if num_kept == self.batch_size:
                    yield join(kept)
                    kept.clear()
                    num_kept = 0
        if kept and not self.drop_last:
            yield join(kept)

    def chunks(self, blocks: list[np.ndarray]) -> Iterator[tuple]:
        """Yield numbers of samples, their places in a chunk, and the chunk's tensors."""
        if self.is_resident:
            if not self.resident_rows:
                everything = [np.arange(len(self.rows))]
                rows = self.read(everything, self.make_buffers(len(self.rows)))
                self.resident_rows = [part.to(self.device) for part in rows]
            numbers = np.concatenate(blocks)
            yield numbers, to_device(numbers, self.device), self.resident_rows
            return

        size = self.chunk_blocks
        plan = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        buffers = [self.make_buffers(size * self.shuffle_block) for _ in plan[:2]]
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(self.read, plan[0], buffers[0])
            for index, chunk_blocks in enumerate(plan):
                # On a GPU, this waits for the copy, so that the buffer can be filled again.
                chunk = [part.to(self.device, copy=True) for part in reading.result()]
                if index + 1 < len(plan):
                    reading = thread.submit(self.read, plan[index + 1], buffers[(index + 1) % 2])
                places = []
                offset = 0
                for block in chunk_blocks:
                    places.append(offset + block - block.min())
                    offset += int(np.ptp(block)) + 1
                numbers = np.concatenate(chunk_blocks)
                yield numbers, to_device(np.concatenate(places), self.device), chunk

    def make_buffers(self, num_rows: int) -> list[Tensor]:
        """Return host memory for a chunk, in the dtypes of the file."""
        buffers = []
        for dataset in self.datasets:
            shape = (num_rows, *dataset.shape[1:])
            buffer = torch.from_numpy(np.empty(shape, dataset.dtype.newbyteorder("=")))
            buffers.append(buffer.pin_memory() if self.pin_memory else buffer)
        return buffers

    def read(self, blocks: list[np.ndarray], buffers: list[Tensor]) -> list[Tensor]:
        """Read the rows of each block, which are consecutive in the file, into the buffers."""
        place = 0
        for block in blocks:
            first = self.rows[block.min()]
            last = self.rows[block.max()]
            source = np.s_[first : last + 1]
            target = np.s_[place : place + last + 1 - first]
            for dataset, buffer in zip(self.datasets, buffers, strict=True):
                dataset.read_direct(buffer.numpy(), source, target)
            place += last + 1 - first
        return [buffer[:place] for buffer in buffers]


def join(parts: list[tuple]) -> tuple[np.ndarray, list[Tensor]]:
    """Return one batch from its parts."""
    if len(parts) == 1:
        return parts[0]
    tensors = [torch.cat(tensors) for tensors in zip(*[rows for _, rows in parts], strict=True)]
    return np.concatenate([numbers for numbers, _ in parts]), tensors


class WindowLoader(Dataset):
    """The same batches from a DataLoader that reads window by window, for --chunk_loader 0."""

    def __init__(self, path: str, settings: Settings, rows: range, shuffle: bool):
        self.path = path
        self.settings = settings
        self.rows = rows
        self.shuffle = shuffle
        self.datasets: list = []

    def __getitem__(self, number: int) -> list[np.ndarray]:
        if not self.datasets:  # each worker opens the file itself
            file = h5py.File(self.path)
            self.datasets = [file["features"], file["targets"]]
        return [dataset[self.rows[number]] for dataset in self.datasets]

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[tuple]:
        settings = self.settings
        seed = [settings.seed, epoch] if self.shuffle else None
        numbers = np.concatenate(epoch_blocks(len(self.rows), settings.shuffle_block, seed))
        size = settings.batch_size
        chunks = np.split(numbers, range(size, len(numbers), size))[start:]
        batches: Any = chunks
        loader = DataLoader(
            self,
            batch_sampler=batches,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
            generator=torch.Generator(),  # separate, so that workers do not change dropout
        )
        for chunk, batch in zip(chunks, loader, strict=True):
            yield chunk, [part.to(DEVICE, non_blocking=True).float() for part in batch]


def synthesize() -> str:
    """Write 10,000 synthetic windows, always the same: 24 rows of 3 columns, then 4 targets."""
    path = Path("data/windows.h5")
    path.parent.mkdir(exist_ok=True)
    hours = np.arange(10_027)[:, None]
    noise = np.random.default_rng(22).standard_normal((10_027, 3))
    columns = np.sin(2 * np.pi * hours / [24, 12, 168]) + 0.2 * noise
    windows = np.lib.stride_tricks.sliding_window_view(columns, 28, 0).transpose(0, 2, 1)
    temporary = path.with_name("temporary.h5")
    with h5py.File(temporary, "w") as file:
        file.create_dataset("features", data=windows[:, :24], dtype="float32")
        file.create_dataset("targets", data=windows[:, 24:, 0], dtype="float32")
    temporary.replace(path)
    return str(path)


def read_shapes(path: str) -> dict[str, tuple]:
    """Return the shapes of features (N, T, F) and targets (N, H)."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with h5py.File(path) as file:
            for name, num_axes in {"features": 3, "targets": 2}.items():
                dataset = file.get(name)
                shapes[name] = getattr(dataset, "shape", ())  # a group has none
                if len(shapes[name]) != num_axes or 0 in shapes[name] or dataset.dtype.kind != "f":
                    raise UserError(f"no floats '{name}' with {num_axes} axes: {path}: write them")
    except OSError as error:
        raise UserError(f"cannot read the file ({error}): {path}: check --data") from None
    if shapes["features"][0] != shapes["targets"][0]:
        raise UserError(f"unequal numbers of rows {shapes}: {path}: write one row per window")
    return shapes


class Data:
    """The windows of each split in the file, and their loaders."""

    def __init__(self, settings: Settings):
        self.path = os.path.expanduser(settings.data) if settings.data else synthesize()
        shapes = read_shapes(self.path)
        num_rows, history, self.num_features = shapes["features"]
        self.num_targets = shapes["targets"][1]
        # Windows before a border are left out if they overlap in time with the first one after it.
        purge = settings.purge if settings.purge >= 0 else history + self.num_targets - 1
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
        self.scale = self.measure(settings)
        self.facts = {"shapes": [*shapes.values()], "scale": self.scale.copy()}
        self.facts["splits"] = [[split.start, split.stop] for split in self.splits.values()]

    def measure(self, settings: Settings) -> dict[str, list[float]]:
        """Check the training values; return mean and standard deviation of each column."""
        rows = self.splits["train"]
        chunk = ChunkDataLoader(self.path, 1024, settings.chunk_size_gb, rows=rows, resident=False)
        sums: dict[str, Any] = {}
        try:
            for _, (features, targets) in chunk.batches():
                for prefix, part in {"": features, "target_": targets}.items():
                    values = part.flatten(0, -2).double()
                    # Sums of differences from one row are exact enough for columns with an offset.
                    first = sums.setdefault(f"{prefix}first", values[0])
                    values = values - first
                    count_and_sums = torch.stack([torch.ones_like(values), values, values.square()])
                    sums[prefix] = sums.get(prefix, 0) + count_and_sums.sum(1)
        except OSError as error:
            raise UserError(f"cannot read the file ({error}): {self.path}: check --data") from None
        scale = {}
        for prefix in ("", "target_"):
            count, total, squares = sums[prefix]
            mean = total / count
            variance = (squares / count - mean.square()).clamp(min=0)
            if not variance.isfinite().all():
                raise UserError(f"a training value is not a finite number: {self.path}: fix it")
            std = torch.where(squares == 0, 1.0, variance.sqrt())  # 1 for a constant column
            scale[f"{prefix}mean"] = (sums[f"{prefix}first"] + mean).tolist()
            scale[f"{prefix}std"] = std.tolist()
        return scale

    def prepare(self, settings: Settings) -> None:
        """Make the loaders of the splits."""
        self.loaders: dict[str, Any] = {}
        for split, rows in self.splits.items():
            shuffle = settings.shuffle and split == "train"
            if settings.chunk_loader:
                self.loaders[split] = ChunkDataLoader(
                    self.path,
                    settings.batch_size,
                    settings.chunk_size_gb,
                    shuffle=shuffle,
                    rows=rows,
                    seed=settings.seed,
                    shuffle_block=settings.shuffle_block,
                    resident=settings.resident and split == "train",
                    pin_memory=settings.pin_memory,
                )
            else:
                self.loaders[split] = WindowLoader(self.path, settings, rows, shuffle)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        return self.padded(self.loaders["train"].batches(epoch, first_batch))

    def split_batches(self, split: str) -> Iterator:
        return self.padded(self.loaders[split].batches())

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
