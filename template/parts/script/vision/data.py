IMAGE = re.compile(r"(?i)\.(jpe?g|png|webp|bmp|gif|tiff?|p[bgp]m)\Z")
SPLITS = ["train", "validation", "test"]
# What folders, arrays and MNIST's files call splits.
SPLIT_OF = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "t10k": 2}
WHITENED = 5000  # training images whose patches are measured


@dataclass
class Source:
    """Images that are not decoded yet: paths, or arrays of pixels."""

    items: list
    labels: list
    splits: list[int]  # of each image; empty if the data have no splits


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
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"cannot read the images ({error}): {path}: check --data") from None
    num_classes = len(set(source.labels))
    if num_classes < 2 or len(source.labels) != len(source.items):
        raise UserError(
            f"{len(source.items)} images and {num_classes} classes: {path}: give a folder with a "
            "folder for each class, or arrays x (N, H, W, C) and y (N,)"
        )
    return source


def read_folder(path: Path) -> Source:
    """Return the images below a folder. Their classes are the folders in it, or in train, val, …"""
    source = Source([], [], [])
    tops = [child.name.lower() for child in path.iterdir() if child.is_dir()]
    known = {SPLIT_OF.get(name) for name in tops if name[0] != "."}
    has_splits = None not in known or len(known) > 2  # others next to splits are left out
    for folder, folders, files in os.walk(path, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        place = Path(folder).relative_to(path).parts
        is_other = has_splits and place and place[0].lower() not in SPLIT_OF
        if is_other or len(place) <= has_splits:  # in no folder of a class
            continue
        for name in sorted(files):
            if name[0] != "." and IMAGE.search(name):
                source.items.append(Path(folder, name))
                source.labels.append(place[has_splits])
                if has_splits:
                    source.splits.append(SPLIT_OF[place[0].lower()])
    return source


def read_arrays(arrays: Any) -> Source:
    """Return the images of arrays such as x and y, x_train and y_train, or MNIST's."""
    source = Source([], [], [])
    for name, values in arrays.items():
        words = re.split(r"[\W_]+", name.lower())
        if {"y", "labels"} & {*words}:
            source.labels += values.ravel().tolist()
        elif {"x", "images"} & {*words}:
            if values.dtype != np.uint8 or values.shape[3:] not in ((), (1,), (3,), (4,)):
                raise ValueError(f"array {name} is no (N, H, W) or (N, H, W, C) of 8 bits")
            source.items += list(values[..., 0] if values.shape[3:] == (1,) else values)
            splits = [SPLIT_OF[word] for word in words if word in SPLIT_OF]
            source.splits += splits * len(values)
    return source


def read_idx(path: Path) -> np.ndarray:
    """Read a file of MNIST's format, packed or not."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    shape = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + shape.nbytes).reshape(shape)


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
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
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
    kinds = [str(label) for label in source.labels]
    if source.splits:
        given = np.array(SPLITS)[source.splits]
        kinds = [f"{name}|{kind}" for name, kind in zip(given, kinds, strict=True)]
    order = stratified(np.unique(kinds, return_inverse=True)[1])
    if not source.splits:
        return np.split(order, split_rows(split, len(order), "images")[:2])
    parts = [order[given[order] == name] for name in SPLITS]
    if not len(parts[1]):
        first, second, _ = split_rows(split, len(parts[0]), "images")
        parts[:2] = np.split(parts[0], [len(parts[0]) - (second - first)])
    return parts


def stratified(kinds: np.ndarray) -> np.ndarray:
    """Return a shuffle of kinds (N,) in whose every part each kind has about its fraction."""
    order = np.random.default_rng(0).permutation(len(kinds))
    order = order[kinds[order].argsort(kind="stable")]
    ordered = kinds[order]
    number = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # within its kind
    place = np.empty(len(order))
    place[order] = (number + 0.5) / np.bincount(ordered)[ordered]
    return place.argsort(kind="stable")


def measure(images: np.ndarray) -> dict[str, np.ndarray]:
    """Return the mean and std of each channel, and the covariance of patches (C, 2, 2)."""
    channels = images.shape[3]
    values = np.arange(256)
    pixels = [np.bincount(channel.ravel()) for channel in np.moveaxis(images, 3, 0)]
    histogram = np.stack([np.pad(counts, (0, 256 - len(counts))) for counts in pixels])
    count = histogram.sum(1)
    mean = histogram @ values / count
    variance = histogram @ values**2 / count - mean**2

    step = 1 + images.shape[1] // 64  # a part of the patches of large images is enough
    num_patches = 0
    total = np.zeros(4 * channels)
    products = np.zeros((4 * channels, 4 * channels))
    for image in images[:WHITENED]:
        windows = np.lib.stride_tricks.sliding_window_view(image, (2, 2), (0, 1))
        patches = windows[::step, ::step].reshape(-1, 4 * channels).astype(np.float64)
        num_patches += len(patches)
        total += patches.sum(0)
        products += patches.T @ patches
    mean_patch = total / num_patches
    covariance = products / num_patches - np.outer(mean_patch, mean_patch)
    return {"mean": mean, "std": np.sqrt(variance).clip(1), "covariance": covariance}


def synthesize() -> Source:
    """Return 5,000 bright shapes on dark noise, always the same."""
    random = np.random.default_rng(20)
    kind = random.integers(0, 3, 5000)
    grid = np.linspace(-1, 1, 32)
    radius = random.uniform(0.4, 0.8, (5000, 1, 1))
    y = abs(grid[:, None] / radius)
    x = abs(grid / radius)
    inside = np.choose(kind[:, None, None], [np.hypot(x, y), np.maximum(x, y), x + y]) < 1
    color = random.uniform(20, 120, (5000, 1, 1, 3)) + 120 * inside[..., None]
    noise = random.normal(0, 20, (5000, 32, 32, 3))
    images = (color + noise).clip(0, 255).astype(np.uint8)
    return Source(list(images), np.array(["circle", "square", "diamond"])[kind].tolist(), [])


class Data:
    """All images in memory, decoded and split. Scales come from training images alone."""

    def __init__(self, settings: Settings):
        self.batch_targets = settings.batch_size
        source = read_source(Path(settings.data).expanduser()) if settings.data else synthesize()
        parts = arrange(source, settings.split)
        first, second, last = np.cumsum([len(part) for part in parts]).tolist()
        self.splits = {
            "train": range(first),
            "validation": range(first, second),
            "test": range(second, last),
        }
        order = np.concatenate(parts).tolist()
        items = [source.items[number] for number in order]
        labels = [source.labels[number] for number in order]
        self.classes = sorted(set(labels))
        if set(labels[:first]) != set(labels):
            raise UserError("a class has no training image: --split: use a larger first part")
        shape = [settings.size or 64] * 2 + [3]
        if isinstance(items[0], np.ndarray):
            sides = [settings.size] * 2 if settings.size else items[0].shape[:2]
            shape = [*sides, 1 if items[0].ndim == 2 else 3]
        images = decode_all(items, shape)
        target = np.array([self.classes.index(label) for label in labels])
        self.scales = measure(images[:first])
        content = images.tobytes() + target.tobytes()
        self.facts = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "classes": self.classes,
        }
        self.images = torch.from_numpy(images)
        self.target = torch.from_numpy(target)

    def prepare(self, settings: Settings) -> None:
        """Move the images to the device, or keep them on the host."""
        self.settings = settings
        if settings.resident:
            if DEVICE.type == "cuda" and self.images.nbytes > torch.cuda.mem_get_info()[0] / 2:
                raise UserError("the images do not fit: --resident: use 0")
            self.images = self.images.to(DEVICE)
            self.target = self.target.to(DEVICE)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        seed = [self.settings.seed, epoch]
        order = np.random.RandomState(seed).permutation(len(self.splits["train"]))
        for numbers, batch in self.batches(order[first_batch * self.settings.batch_size :], epoch):
            yield numbers, augment(batch, self.settings, epoch)

    def split_batches(self, split: str) -> Iterator:
        return self.batches(np.array(self.splits[split]))

    def batches(self, numbers: np.ndarray, epoch: int = 0) -> Iterator:
        """Yield numbers of images and their batch: image (B, C, H, W), target (B,), index (B,).

        The index of padding is -1. In training, batch norm also sees it, so it is random images.
        """
        size = self.settings.batch_size
        drawn = draw(self.settings.seed, epoch, np.arange(size), DRAWS.index("padding"))
        padding = drawn * len(self.splits["train"]) >> 24
        for first in range(0, len(numbers), size):
            chunk = numbers[first : first + size]
            index = np.full(size, -1)
            index[: len(chunk)] = chunk
            rows = to_device(np.where(index < 0, padding, index), self.images.device)
            batch = {"image": self.images[rows].movedim(-1, 1), "target": self.target[rows]}
            if self.settings.pin_memory:
                batch = {name: values.pin_memory() for name, values in batch.items()}
            batch = {name: values.to(DEVICE, non_blocking=True) for name, values in batch.items()}
            yield chunk, {**batch, "index": to_device(index)}


# -----------------------------------------------------------------------------
# Augmentation, on the device. Every draw is a pure function of (seed, epoch, index of the image),
# so a resumed run sees the same images. All operations round alike everywhere: powers do not.


BITS = 0xFFFFFFFF
GREY = 127  # the color of hidden pixels
# What is drawn for an image, each at its place, so that a switch changes no other draw. Those that
# are not used here belong to the package, which draws the same.
DRAWS = (
    *("partner", "padding", "top", "left", "shift_y", "shift_x", "flip", "area", "ratio"),
    *("brightness", "contrast", "saturation", "hidden_y", "hidden_x"),
    *("kind_of_mix", "own_weight", "pasted_y", "pasted_x"),
)


def scramble(number: Any) -> Any:
    """Mix the bits of 32-bit numbers: an int, or int64 of NumPy or torch (Ettinger's lowbias32)."""
    number = number ^ number >> 16
    number = number * 0x7FEB352D & BITS
    number = number ^ number >> 15
    number = number * 0x846CA68B & BITS
    return number ^ number >> 16


def draw(seed: int, epoch: int, index: Any, place: Any) -> Any:
    """Return random integers below 2²⁴ for the images `index` and the places of `DRAWS`."""
    key = scramble(scramble(seed) ^ epoch)
    number = index * len(DRAWS) + place & BITS
    number = scramble(number) ^ key
    return scramble(number) >> 8


def augment(batch: dict[str, Tensor], settings: Settings, epoch: int) -> dict[str, Tensor]:
    """Return a batch whose `image` (B, C, H, W) is float32, from 0 to 255."""
    places = torch.arange(len(DRAWS), device=DEVICE)
    numbers = draw(settings.seed, epoch, batch["index"][:, None], places).float() / 2**24
    random = dict(zip(DRAWS, numbers.split(1, 1), strict=True))  # (B, 1) each
    image = move(batch["image"].float(), random, settings)
    if settings.cutout:
        hidden = square(image, random["hidden_y"], random["hidden_x"], settings.cutout)
        image = image.masked_fill(hidden, GREY)
    return {**batch, "image": image}


def move(image: Tensor, random: dict[str, Tensor], settings: Settings) -> Tensor:
    """Crop, enlarge, shift and flip in one bilinear pass; the border is mirrored."""
    height, width = image.shape[2:]
    crop_height: Any = height
    crop_width: Any = width
    if settings.crop < 1:
        area = 1 - (1 - settings.crop) * random["area"]
        ratio = 3 / 4 + (4 / 3 - 3 / 4) * random["ratio"]  # width ÷ height
        crop_height = (area / ratio).sqrt().clamp(max=1) * height
        crop_width = (area * ratio).sqrt().clamp(max=1) * width
    y = pixels(height, crop_height, random["top"])
    x = pixels(width, crop_width, random["left"])
    y = y + shift(random["shift_y"], settings.shift)
    x = x + shift(random["shift_x"], settings.shift)
    y = 2 * y / height - 1  # as grid_sample counts, from -1 to 1
    x = 2 * x / width - 1
    if settings.flip:
        x = torch.where(random["flip"] < 0.5, -x, x)
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), 3)
    return F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)


def pixels(count: int, crop: Any, random: Tensor) -> Tensor:
    """Return where the pixels of a random crop are, (B, count)."""
    last = count - crop
    first = (random * (last + 1)).floor().clamp(max=last)
    centers = torch.arange(count, device=DEVICE) + 0.5
    return first + centers * (crop / count)


def shift(random: Tensor, most: int) -> Tensor:
    """Return whole numbers from -most to most."""
    return (random * (2 * most + 1)).floor() - most


def square(image: Tensor, y: Tensor, x: Tensor, fraction: float) -> Tensor:
    """Return where a square is whose center is at y and x: (B, 1, H, W) bool."""
    inside = []
    for side, middle in zip(image.shape[2:], (y, x), strict=True):
        centers = (torch.arange(side, device=DEVICE) + 0.5) / side
        inside.append((centers - middle).abs() < fraction / 2)  # (B, side)
    rows, columns = inside
    return (rows[:, :, None] & columns[:, None, :])[:, None]
