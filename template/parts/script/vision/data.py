IMAGE = re.compile(r"(?i)\.(jpe?g|png|webp|bmp|gif|tiff?|p[bgp]m)\Z")
# What folders, arrays and MNIST's files call splits.
SPLIT_OF = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "t10k": "test",
}
WHITENED = 5000  # training images whose patches are measured


@dataclass
class Source:
    """Images that are not decoded yet: paths, or arrays of pixels."""

    items: list
    labels: list
    splits: list[str]  # of each image; empty texts if the data have no splits


def read_source(path: Path) -> Source:
    """Return the images of a folder, an .npz file, or a folder of MNIST's files."""
    try:
        idx = sorted(path.glob("*-idx[13]-ubyte*"))
        if idx:
            source = read_arrays({file.name: read_idx(file) for file in idx})
        elif path.is_dir():
            source = read_folder(path)
        else:
            source = read_arrays(np.load(path))
    except Exception as error:  # a damaged file may raise any error
        raise UserError(f"cannot read the images ({error}): {path}: check --data") from None
    num_classes = len(set(source.labels))
    if num_classes < 2:
        raise UserError(
            f"{len(source.items)} images and {num_classes} classes: {path}: give a folder with a "
            "folder for each class, or arrays x (N, H, W, C) and y (N,)"
        )
    return source


def read_folder(path: Path) -> Source:
    """Return the images below a folder. Their classes are the folders in it, or in train, val, …"""
    names = glob("**", root_dir=path, recursive=True)  # without hidden ones
    files = [Path(name) for name in names if IMAGE.search(name) and os.sep in name]
    files = [file for file in files if not (path / file).is_dir()]
    files.sort(key=lambda file: (file.parent, file.name))
    known = {SPLIT_OF.get(file.parts[0].lower()) for file in files}
    has_splits = None not in known or len(known) > 2  # others next to splits are left out
    source = Source([], [], [])
    for file in files:
        *folders, _ = file.parts
        split = ""
        if has_splits:
            split = SPLIT_OF.get(folders.pop(0).lower(), "")
        if not folders or (has_splits and not split):  # in no folder of a class
            continue
        source.items.append(path / file)
        source.labels.append(folders[0])
        source.splits.append(split)
    return source


def read_arrays(arrays: Any) -> Source:
    """Return the images of arrays such as x and y, x_train and y_train, or MNIST's."""
    images = {}  # by split
    labels = {}
    for name, values in arrays.items():
        words = re.split(r"[\W_]+", name.lower())
        split = next((SPLIT_OF[word] for word in words if word in SPLIT_OF), "train")
        if {"y", "labels"} & {*words}:
            labels[split] = values.ravel().tolist()
        elif {"x", "images"} & {*words}:
            shape = values.shape[3:]  # of the channels
            if values.dtype != np.uint8 or shape not in ((), (1,), (3,), (4,)):
                raise ValueError(f"array {name} is no (N, H, W) or (N, H, W, C) of 8 bits")
            images[split] = values[..., 0] if shape == (1,) else values
    has_splits = len(images) > 1
    source = Source([], [], [])
    for split, values in images.items():
        of_split = labels.get(split, [])
        if len(of_split) != len(values):
            raise ValueError(f"{len(values)} images and {len(of_split)} labels of {split}")
        source.items += list(values)
        source.labels += of_split
        source.splits += [split if has_splits else ""] * len(values)
    return source


def read_idx(path: Path) -> np.ndarray:
    """Read a file of MNIST's format, packed or not."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    shape = np.frombuffer(content, ">i4", content[3], 4)
    values = np.frombuffer(content, np.uint8, offset=4 + shape.nbytes)
    return values.reshape(shape)


def decode(item: Any, shape: list[int]) -> np.ndarray:
    """Return an image (H, W, C) uint8: upright, white where it is transparent, its middle."""
    height, width, channels = shape
    side = 2 * max(height, width)
    image = Image.fromarray(item) if isinstance(item, np.ndarray) else Image.open(item)
    image.draft(None, (side, side))  # a large JPEG is decoded at a fraction of its size
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":  # 16 bits, which Pillow would cut off at 255
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("its pixels have neither 8 nor 16 bits")
        grey = values >> 8
        image = Image.fromarray(grey.astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(shape)


def decode_all(items: list, shape: list[int]) -> np.ndarray:
    """Return all images (N, H, W, C) uint8, decoded by threads."""

    def read(item: Any) -> np.ndarray:
        try:
            return decode(item, shape)
        except Exception as error:  # Pillow raises any class for a damaged file
            raise UserError(
                f"cannot read the image ({error}): {item}: remove or replace it"
            ) from None

    images = np.empty((len(items), *shape), np.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, image in enumerate(pool.map(read, items)):
            images[number] = image
    return images


def arrange(source: Source, split: str) -> list[np.ndarray]:
    """Return the images of each split, shuffled, with each class in its fraction.

    Splits of the data stay. If they have no validation split, training images become one.
    """
    given = np.array(source.splits)
    kinds = [f"{name}|{label}" for name, label in zip(given, source.labels, strict=True)]
    order = stratified(kinds)
    if not given.any():
        ends = split_rows(split, len(order), "images")
        return np.split(order, ends[:2])
    ordered = given[order]
    train = order[ordered == "train"]
    validation = order[ordered == "validation"]
    if not len(validation):
        first, second, _ = split_rows(split, len(train), "images")
        train, validation = np.split(train, [first - second])
    return [train, validation, order[ordered == "test"]]


def stratified(kinds: list[str]) -> np.ndarray:
    """Return a shuffle of kinds (N,) in whose every part each kind has about its fraction."""
    _, kind, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    random = np.random.default_rng(0)
    order = random.permutation(len(kind))
    order = order[kind[order].argsort(kind="stable")]
    ordered = kind[order]
    first = np.searchsorted(ordered, ordered)  # image of its kind
    number = np.arange(len(order)) - first
    place = np.empty(len(order))
    place[order] = (number + 0.5) / counts[ordered]
    return place.argsort(kind="stable")


def measure(images: np.ndarray) -> dict[str, np.ndarray]:
    """Return the mean and std of each channel, and the covariance of patches (C, 2, 2)."""
    channels = images.shape[3]
    mean, of_pixels = moments(image.reshape(-1, channels) for image in images)
    windows = np.lib.stride_tricks.sliding_window_view(images[:WHITENED], (2, 2), (1, 2))
    step = 1 + images.shape[1] // 64  # a part of the patches of large images is enough
    patches = windows[:, ::step, ::step]
    _, covariance = moments(patch.reshape(-1, 4 * channels) for patch in patches)
    std = np.sqrt(of_pixels.diagonal())
    return {"mean": mean, "std": std.clip(1), "covariance": covariance}


def moments(blocks: Iterable) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the covariance of vectors of bytes, in blocks of them (n, size)."""
    count = 0
    total: Any = 0
    products = 0
    for block in blocks:
        vectors = block.astype(np.float64)  # the sums of whole numbers are exact
        count += len(vectors)
        total += np.ones(len(vectors)) @ vectors  # faster than `sum`
        products += vectors.T @ vectors
    mean = total / count
    covariance = products / count - np.outer(mean, mean)
    return mean, covariance


def synthesize() -> Source:
    """Return 5,000 bright shapes on dark noise, always the same."""
    random = np.random.default_rng(20)
    kind = random.integers(0, 3, 5000)
    grid = np.linspace(-1, 1, 32)
    radius = random.uniform(0.4, 0.8, (5000, 1, 1))
    y = abs(grid[:, None] / radius)
    x = abs(grid / radius)
    shapes = [np.hypot(x, y), np.maximum(x, y), x + y]
    inside = np.choose(kind[:, None, None], shapes) < 1
    dark = random.uniform(20, 120, (5000, 1, 1, 3))
    noise = random.normal(0, 20, (5000, 32, 32, 3))
    images = dark + 120 * inside[..., None] + noise
    images = images.clip(0, 255).astype(np.uint8)
    names = np.array(["circle", "square", "diamond"])
    return Source(list(images), names[kind].tolist(), [""] * 5000)


def common_shape(item: Any, size: int) -> list[int]:
    """Return the height, width and channels of all images; those of an array by default."""
    if not isinstance(item, np.ndarray):
        return [size or 64, size or 64, 3]
    height, width = item.shape[:2]
    return [size or height, size or width, 1 if item.ndim == 2 else 3]


class Data:
    """All images in memory, decoded and split. Scales come from training images alone."""

    def __init__(self, settings: Settings):
        self.batch_targets = settings.batch_size
        source = read_source(Path(settings.data).expanduser()) if settings.data else synthesize()
        parts = arrange(source, settings.split)
        sizes = [len(part) for part in parts]
        first, second, last = np.cumsum(sizes).tolist()
        self.splits = {
            "train": range(first),
            "validation": range(first, second),
            "test": range(second, last),
        }
        order = np.concatenate(parts).tolist()
        items = [source.items[number] for number in order]
        labels = [source.labels[number] for number in order]
        classes, target = np.unique(labels, return_inverse=True)
        self.classes = classes.tolist()
        if len(set(labels[:first])) < len(classes):
            raise UserError("a class has no training image: --split: use a larger first part")
        shape = common_shape(items[0], settings.size)
        images = decode_all(items, shape)
        self.scales = measure(images[:first])
        digest = hashlib.sha256(images.data)
        digest.update(target.data)
        self.facts = {"sha256": digest.hexdigest(), "classes": self.classes}
        self.images = torch.from_numpy(images)
        self.target = torch.from_numpy(target)

    def prepare(self, settings: Settings) -> None:
        """Move the images to the device, or keep them on the host."""
        self.settings = settings
        if settings.resident:
            if DEVICE.type == "cuda":
                free, _ = torch.cuda.mem_get_info()
                if self.images.nbytes > free / 2:
                    raise UserError("the images do not fit: --resident: use 0")
            self.images = self.images.to(DEVICE)
            self.target = self.target.to(DEVICE)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        seed = [self.settings.seed, epoch]
        order = np.random.RandomState(seed).permutation(len(self.splits["train"]))
        remaining = order[first_batch * self.settings.batch_size :]
        for numbers, batch in self.batches(remaining, epoch):
            yield numbers, augment(batch, self.settings, epoch)

    def split_batches(self, split: str) -> Iterator:
        return self.batches(np.array(self.splits[split]))

    def batches(self, numbers: np.ndarray, epoch: int = 0) -> Iterator:
        """Yield numbers of images and their batch: image (B, C, H, W), target (B,), index (B,).

        The index of padding is -1. In training, batch norm also sees it, so it is random images.
        """
        size = self.settings.batch_size
        drawn = draw(self.settings.seed, epoch, np.arange(size), PADDING)
        padding = drawn * len(self.splits["train"]) >> 24
        padded = np.pad(numbers, (0, -len(numbers) % size), constant_values=-1)
        for index in padded.reshape(-1, size):
            filled = np.where(index < 0, padding, index)
            rows = to_device(filled, self.images.device)
            image = self.images[rows].movedim(-1, 1)
            batch = {"image": image, "target": self.target[rows]}
            for name, values in batch.items():
                if self.settings.pin_memory:
                    values = values.pin_memory()
                batch[name] = values.to(DEVICE, non_blocking=True)
            batch["index"] = to_device(index)
            yield index[index >= 0], batch


# -----------------------------------------------------------------------------
# Augmentation, on the device. Every draw is a pure function of (seed, epoch, index of the image),
# so a resumed run sees the same images. All operations round alike everywhere: powers do not.


BITS = 0xFFFFFFFF
GREY = 127  # the color of hidden pixels
# What is drawn for an image, each at its place. The package draws more, at the other places.
DRAWS = 18
PADDING = 1
TOP = 2
LEFT = 3
SHIFT_Y = 4
SHIFT_X = 5
FLIP = 6
AREA = 7
RATIO = 8
HIDDEN_Y = 12
HIDDEN_X = 13


def scramble(number: Any) -> Any:
    """Mix the bits of 32-bit numbers: an int, or int64 of NumPy or torch (Ettinger's lowbias32)."""
    number = number ^ number >> 16
    number = number * 0x7FEB352D & BITS
    number = number ^ number >> 15
    number = number * 0x846CA68B & BITS
    return number ^ number >> 16


def draw(seed: int, epoch: int, index: Any, place: Any) -> Any:
    """Return random integers below 2²⁴ for the images `index` and the places of draws."""
    key = scramble(scramble(seed) ^ epoch)
    number = index * DRAWS + place & BITS
    number = scramble(number) ^ key
    return scramble(number) >> 8


def augment(batch: dict[str, Tensor], settings: Settings, epoch: int) -> dict[str, Tensor]:
    """Return a batch whose `image` (B, C, H, W) is float32, from 0 to 255."""
    places = torch.arange(DRAWS, device=DEVICE)[:, None, None]
    index = batch["index"][:, None]
    random = draw(settings.seed, epoch, index, places) / 2**24  # (…, B, 1)
    image = move(batch["image"].float(), random, settings)
    if settings.cutout:
        hidden = square(image, random[HIDDEN_Y], random[HIDDEN_X], settings.cutout)
        image = image.masked_fill(hidden, GREY)
    return {**batch, "image": image}


def move(image: Tensor, random: Tensor, settings: Settings) -> Tensor:
    """Crop, enlarge, shift and flip in one bilinear pass; the border is mirrored."""
    height, width = image.shape[2:]
    crop_height: Any = height
    crop_width: Any = width
    if settings.crop < 1:
        area = 1 - (1 - settings.crop) * random[AREA]
        ratio = 3 / 4 + (4 / 3 - 3 / 4) * random[RATIO]  # width ÷ height
        crop_height = (area / ratio).sqrt().clamp(max=1) * height
        crop_width = (area * ratio).sqrt().clamp(max=1) * width
    y = sampled(height, crop_height, random[TOP], random[SHIFT_Y], settings.shift)
    x = sampled(width, crop_width, random[LEFT], random[SHIFT_X], settings.shift)
    if settings.flip:
        x = torch.where(random[FLIP] < 0.5, -x, x)
    columns, rows = torch.broadcast_tensors(x[:, None, :], y[:, :, None])
    grid = torch.stack([columns, rows], 3)
    return F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)


def sampled(count: int, crop: Any, first: Tensor, shift: Tensor, most: int) -> Tensor:
    """Return where the pixels of a random crop are, from -1 to 1 as grid_sample counts: (B, count).

    most: the largest shift, in pixels.
    """
    last = count - crop
    start = (first * (last + 1)).floor().clamp(max=last)
    centers = torch.arange(count, device=DEVICE) + 0.5
    pixels = start + centers * (crop / count)
    offset = (shift * (2 * most + 1)).floor() - most
    return 2 * (pixels + offset) / count - 1


def square(image: Tensor, y: Tensor, x: Tensor, fraction: float) -> Tensor:
    """Return where a square is whose center is at y and x: (B, 1, H, W) bool."""
    rows = distance(y, image.shape[2]) < fraction / 2
    columns = distance(x, image.shape[3]) < fraction / 2
    return rows[:, None, :, None] & columns[:, None, None, :]


def distance(middle: Tensor, count: int) -> Tensor:
    """Return how far `count` pixels of a side are from the middle (B, 1), as fractions of it."""
    centers = torch.arange(count, device=DEVICE) + 0.5
    return (centers / count - middle).abs()
