END = 256  # the token that ends a text; all others are bytes
VOCABULARY = 257
IGNORE = -100  # a target that does not count, by default of cross_entropy


def tokenize(path: Path) -> np.ndarray:
    """Return a token for each byte of a file, then END."""
    return np.append(np.frombuffer(path.read_bytes(), np.uint8), np.int16(END))


def read_standard_library() -> tuple[np.ndarray, list[int]]:
    """Return the tokens of 12 MB of Python's modules, in a fixed order, and where splits end."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    paths = [
        path
        for path in sorted(root.rglob("*.py"))
        if left_out.isdisjoint(path.relative_to(root).parts)
    ]
    random.Random(0).shuffle(paths)
    sizes = np.cumsum([path.stat().st_size for path in paths])
    texts = [tokenize(path) for path in paths[: np.searchsorted(sizes, 12e6) + 1]]
    ends = np.cumsum([len(text) for text in texts])
    held_out = len(texts) // 20
    return np.concatenate(texts), ends[[-1 - 2 * held_out, -1 - held_out, -1]].tolist()


class Data:
    """The text, and the tokens at which each split begins and ends.

    Block n of a split has its tokens from n * block_size on, and one more for the last target. So
    each token of a split except the first is a target once. The last block may be shorter.
    Validation and test are the last two twentieths of the text.
    """

    def __init__(self, settings: Settings):
        if settings.data:
            # Mapped, so that the text may be larger than memory. END follows its last byte.
            path = Path(settings.data).expanduser()
            if not path.stat().st_size:
                raise UserError(f"no data: {path}: check --data")
            text: Any = np.memmap(path, np.uint8, mode="c")
            if not text[: 1 << 20].all():  # a text has no byte 0
                raise UserError(f"no UTF-8 text: {path}: decompress or convert it")
            count = len(text) + 1
            held_out = round(count * 0.05)
            ends = [count - 2 * held_out, count - held_out, count]
        else:
            text, ends = read_standard_library()
        self.seed = settings.seed
        self.size = settings.block_size
        self.batch_size = settings.batch_size
        self.batch_targets = settings.batch_size * settings.block_size
        self.text = torch.from_numpy(text)
        self.facts = {"sha256": hashlib.sha256(text).hexdigest()}
        self.spans = {}
        self.splits = {}
        first = 0
        for name, end in zip(["train", "validation", "test"], ends, strict=True):
            count = end - first
            if count <= self.size:
                raise UserError(f"{name} has {count} tokens: --block_size: use a smaller one")
            self.spans[name] = (first, end)
            self.splits[name] = range(math.ceil((count - 1) / self.size))
            first = end

    def prepare(self, settings: Settings) -> None:
        """Move the text to the device, or leave it in the file."""
        self.pin_memory = settings.pin_memory
        if settings.resident:
            self.text = self.text.to(DEVICE)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        order = np.random.RandomState([self.seed, epoch]).permutation(len(self.splits["train"]))
        return self.batches("train", order[first_batch * self.batch_size :])

    def split_batches(self, split: str) -> Iterator:
        return self.batches(split, np.array(self.splits[split]))

    def batches(self, split: str, numbers: np.ndarray) -> Iterator:
        """Yield numbers of blocks, tokens (B, T), and targets (B, T), which are the next tokens.

        Padding keeps the shape of an incomplete batch, so that nothing is compiled twice.
        """
        begin, end = self.spans[split]
        text = self.text
        inside = torch.arange(self.size + 1, device=text.device)
        for first in range(0, len(numbers), self.batch_size):
            chunk = numbers[first : first + self.batch_size]
            starts = begin + np.resize(chunk, self.batch_size) * self.size
            places = to_device(starts, text.device)[:, None] + inside
            blocks = text[places.clamp(max=len(text) - 1)].long()
            blocks.masked_fill_(places == len(text), END)
            blocks.masked_fill_(places >= end, IGNORE)
            blocks[len(chunk) :] = IGNORE
            if self.pin_memory:
                blocks = blocks.pin_memory()
            blocks = blocks.to(DEVICE, non_blocking=True)
            yield chunk, (blocks[:, :-1].clamp(min=0), blocks[:, 1:])
