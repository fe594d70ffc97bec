END = 256  # the token that ends a text; all others are bytes
VOCABULARY = 257
IGNORE = -100  # a target that does not count, by default of cross_entropy


def tokenize(path: Path) -> np.ndarray:
    """Return a token for each byte of a file, then END."""
    content = np.frombuffer(path.read_bytes(), np.uint8)
    return np.append(content.astype(np.int16), np.int16(END))


def read_standard_library() -> list[np.ndarray]:
    """Return the tokens of each split: 12 MB of Python's modules, in a fixed random order."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    paths = sorted(root.rglob("*.py"))
    paths = [path for path in paths if not left_out & set(path.relative_to(root).parts)]
    random.Random(0).shuffle(paths)
    sizes = np.cumsum([path.stat().st_size for path in paths])
    texts = [tokenize(path) for path in paths[: np.searchsorted(sizes, 12e6) + 1]]
    ends = np.cumsum([len(text) for text in texts])
    held_out = len(texts) // 20
    return np.split(np.concatenate(texts), ends[[-1 - 2 * held_out, -1 - held_out]])


class Data:
    """The blocks of each split.

    Block n has the tokens from n * block_size on, and one more for the last target. So each token
    of a split except the first is a target once. The last block of a split may be shorter.
    Validation and test are the last two twentieths of the text.
    """

    def __init__(self, settings: Settings):
        if settings.data:
            # Mapped, so that the text may be larger than memory. END follows its last byte.
            path = Path(settings.data).expanduser()
            if not path.stat().st_size:
                raise UserError(f"no data: {path}: check --data")
            text = np.memmap(path, np.uint8, mode="c")
            held_out = round((len(text) + 1) * 0.05)
            texts = np.split(text, [len(text) + 1 - 2 * held_out, len(text) + 1 - held_out])
        else:
            texts = read_standard_library()
        self.seed = settings.seed
        self.size = settings.block_size
        self.batch_size = settings.batch_size
        self.batch_targets = settings.batch_size * settings.block_size
        digest = hashlib.sha256()
        self.texts: dict[str, Tensor] = {}
        self.last_blocks: dict[str, Tensor] = {}  # (T + 1,), padded
        self.splits = {}
        for name, text in zip(["train", "validation", "test"], texts, strict=True):
            if len(text) <= self.size:
                raise UserError(f"{name} has {len(text)} tokens: --block_size: use a smaller one")
            digest.update(text)
            self.texts[name] = torch.from_numpy(text)
            num_whole = (len(text) - 1) // self.size
            last = text[num_whole * self.size :].astype(np.int64)
            if settings.data and name == "test":
                last = np.append(last, END)
            self.splits[name] = range(num_whole + (len(last) > 1))
            padding = (0, self.size + 1 - len(last))
            self.last_blocks[name] = torch.from_numpy(np.pad(last, padding, constant_values=IGNORE))
        self.facts = {"sha256": digest.hexdigest()}

    def prepare(self, settings: Settings) -> None:
        """Move the text to the device, or leave it in the file."""
        self.pin_memory = settings.pin_memory
        self.blocks = {}
        for name, text in self.texts.items():
            device = DEVICE if settings.resident else text.device
            # A view (number, token).
            self.blocks[name] = text.to(device).unfold(0, self.size + 1, self.size)
            self.last_blocks[name] = self.last_blocks[name].to(device)

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
        whole = self.blocks[split]
        for first in range(0, len(numbers), self.batch_size):
            chunk = numbers[first : first + self.batch_size]
            places = to_device(np.resize(chunk, self.batch_size), whole.device)
            blocks = whole[places.clamp(max=len(whole) - 1)].long()
            is_last = (places == len(whole))[:, None]
            blocks = torch.where(is_last, self.last_blocks[split], blocks)
            if self.pin_memory:
                blocks = blocks.pin_memory()
            blocks = blocks.to(DEVICE, non_blocking=True)
            blocks[len(chunk) :] = IGNORE
            yield chunk, (blocks[:, :-1].clamp(min=0), blocks[:, 1:])
