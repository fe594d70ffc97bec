IGNORE = -100  # a target that does not count, by default of cross_entropy
END = 256  # the token that ends a text; all others are bytes
MULTIPLE = 8  # lengths are padded to it, which suits tensor cores
POOL = 64  # batches that are sorted by length together: random enough, little padding


class Bytes:
    """One token per byte."""

    vocabulary = 257
    end = END
    start = END  # the first token that the decoder sees

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Pretrained:
    """The tokenizer of a pretrained T5."""

    def __init__(self, name: str):
        try:
            config: Any = T5Config.from_pretrained(name)
            self.tokenizer: Any = AutoTokenizer.from_pretrained(name)
            self.vocabulary = config.vocab_size
            self.end = config.eos_token_id
            self.start = config.decoder_start_token_id
        except (OSError, ValueError, AttributeError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"cannot load ({reason}): --pretrained {name}: check it") from None

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of a .tsv file, without copies."""
    pairs: dict[tuple[str, str], bool] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 at byte {error.start}: {path}: save it as UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = line.rstrip("\r").split("\t")
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise UserError(f"not source, tab, target: {path}, line {number}: fix this line")
        pairs[cells[0], cells[1]] = True
    return list(pairs)


def docstrings() -> list[tuple[str, str]]:
    """Return 2,000 docstrings of Python's library: body and summary line, always the same."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    pairs: dict[tuple[str, str], bool] = {}
    for path in sorted(root.rglob("*.py")):
        if left_out & set(path.relative_to(root).parts) or len(pairs) >= 2000:
            continue
        with suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    summary, _, body = (ast.get_docstring(node) or "").partition("\n\n")
                    if body.strip() and summary.strip():
                        pairs[" ".join(body.split()), " ".join(summary.split())] = True
    return list(pairs)


def likeness(offsets: np.ndarray) -> np.ndarray:
    """Return sort keys that put sources and targets of similar length next to each other.

    Keys order sources by steps of 30 %, and targets within a step, upwards and downwards in turn.
    """
    source, target = np.diff(offsets, axis=0).T
    step = np.ceil(np.log(source) / np.log(1.3)).astype(np.int64)
    longest = int(target.max())
    inside = np.where(step % 2, target, longest - target)
    return step * (longest + 1) + inside


class Data:
    """The tokens of all pairs, one after the other, and where each pair begins."""

    def __init__(self, settings: Settings):
        path = Path(settings.data).expanduser()
        pairs = read_pairs(path) if settings.data else docstrings()
        tokenizer = Pretrained(settings.pretrained) if settings.pretrained else Bytes()
        self.vocabulary = tokenizer.vocabulary
        self.end = tokenizer.end
        self.start = tokenizer.start
        self.batch_size = settings.batch_size
        self.seed = settings.seed
        limits = [settings.max_source, settings.max_target]
        if not settings.data:
            limits = [min(limits[0], 160), min(limits[1], 64)]

        order = np.random.default_rng(0).permutation(len(pairs))
        tokens: list[list[int]] = [[], []]
        offsets = [[0, 0]]
        for number in order.tolist():
            for side, text in enumerate(pairs[number]):
                tokens[side] += tokenizer.encode(text)[: limits[side] - 1]
                tokens[side].append(self.end)
            offsets.append([len(side) for side in tokens])
        self.tokens = [np.array(side, np.int32) for side in tokens]
        self.offsets = np.array(offsets)  # (pairs + 1, 2)

        self.splits = {}
        first = 0
        ends = split_rows(settings.split, len(pairs), rounded=1)
        for name, end in zip(["train", "validation", "test"], ends, strict=True):
            self.splits[name] = range(first, end)
            first = end
        if not (self.splits["train"] and self.splits["validation"]):
            raise UserError(f"no pair is left: --split {settings.split}: use another one")
        digest = hashlib.sha256(self.tokens[0].tobytes() + self.tokens[1].tobytes())
        self.facts = {"sha256": digest.hexdigest()}

    def prepare(self, settings: Settings) -> None:
        """Move the tokens to the device, or keep them on the host."""
        self.bucket = settings.bucket
        self.pin_memory = settings.pin_memory
        device = DEVICE if settings.resident else torch.device("cpu")
        self.sides = [to_device(side, device) for side in self.tokens]
        self.keys = {}
        for split, pairs in self.splits.items():
            if pairs:
                self.keys[split] = likeness(self.offsets[pairs.start : pairs.stop + 1])
        _, batch = next(self.epoch(0, 0))
        self.batch_targets = int((batch["targets"] != IGNORE).sum())

    def arrange(self, epoch: int) -> np.ndarray:
        """Return the numbers (batches, B) of the training pairs of an epoch, −1 for padding."""
        count = len(self.splits["train"])
        size = self.batch_size
        order = np.random.RandomState([self.seed, epoch]).permutation(count)
        padded = np.full(math.ceil(count / size) * size, -1)
        if not self.bucket:
            padded[:count] = order
            return padded.reshape(-1, size)
        for first in range(0, count, POOL * size):
            pool = order[first : first + POOL * size]
            by_length = np.argsort(self.keys["train"][pool], kind="stable")
            padded[first : first + len(pool)] = pool[by_length]
        batches = padded.reshape(-1, size)
        return batches[np.random.RandomState([self.seed, epoch, 1]).permutation(len(batches))]

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        return self.batches("train", self.arrange(epoch)[first_batch:])

    def split_batches(self, split: str) -> Iterator:
        """Return the batches of a split, sorted by length."""
        order = np.argsort(self.keys[split], kind="stable")
        padding = np.full(-len(order) % self.batch_size, -1)
        return self.batches(split, np.append(order, padding).reshape(-1, self.batch_size))

    def batches(self, split: str, rows: np.ndarray) -> Iterator:
        """Yield the numbers of pairs and their batch."""
        for numbers in rows:
            batch = self.batch(split, numbers)
            if self.pin_memory:
                batch = {name: values.pin_memory() for name, values in batch.items()}
            batch = {name: x.to(DEVICE, non_blocking=True) for name, x in batch.items()}
            yield numbers[numbers >= 0], batch

    def batch(self, split: str, numbers: np.ndarray) -> dict[str, Tensor]:
        """Return `source` and `source_present` (B, S), `decoder_input` and `targets` (B, T)."""
        present = numbers >= 0
        pairs = self.splits[split].start + np.where(present, numbers, 0)
        starts = self.offsets[pairs]
        lengths = (self.offsets[pairs + 1] - starts) * present[:, None]
        padded = []
        inside = []
        for side, tokens in enumerate(self.sides):
            width = math.ceil(max(int(lengths[:, side].max()), 1) / MULTIPLE) * MULTIPLE
            places = torch.arange(width, device=tokens.device)
            is_token = places < to_device(lengths[:, side], tokens.device)[:, None]
            first = to_device(starts[:, side], tokens.device)[:, None]
            padded.append(tokens[(first + places) * is_token].long() * is_token)
            inside.append(is_token)
        # Padding rows also get one token, because attention over nothing would be nan.
        inside[0][:, 0] = True
        return {
            "source": padded[0],
            "source_present": inside[0],
            "decoder_input": F.pad(padded[1][:, :-1], (1, 0), value=self.start),
            "targets": padded[1].masked_fill(~inside[1], IGNORE),
        }
