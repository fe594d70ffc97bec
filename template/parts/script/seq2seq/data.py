IGNORE = -100  # a target that does not count, by default of cross_entropy
END = 256  # the token that ends a text; all others are bytes
MULTIPLE = 8  # lengths are padded to it, which suits tensor cores
POOL = 64  # batches that are sorted by length together: random enough, little padding


def load(kind: Any, name: str, **options: Any) -> Any:
    """Load a pretrained part of the library from a folder, or by its name on the hub."""
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"cannot load ({reason}): --pretrained {name}: check it") from None


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of a .tsv file, without copies."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 at byte {error.start}: {path}: save it as UTF-8") from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.lower().split() == ["source", "target"]:
            continue  # a header
        cells = line.rstrip("\r").split("\t")
        if len(cells) == 2 and all(cell.strip() for cell in cells):
            pairs.append((cells[0], cells[1]))
        elif line.strip():
            raise UserError(f"not source, tab, target: {path}, line {number}: fix this line")
    return list(dict.fromkeys(pairs))


def docstrings() -> list[tuple[str, str]]:
    """Return docstrings of Python's library, always the same: body and summary, both cut."""
    pairs = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                summary, _, body = (ast.get_docstring(node) or "").partition("\n\n")
                pairs.append((" ".join(body.split())[:159], " ".join(summary.split())[:63]))
    return [pair for pair in dict.fromkeys(pairs) if all(pair)]


class Data:
    """The tokens of all pairs, one after the other, and where each pair begins."""

    def __init__(self, settings: Settings):
        path = Path(settings.data).expanduser()
        pairs = read_pairs(path) if settings.data else docstrings()
        self.vocabulary = 257
        self.end = END
        self.start = END  # the first token that the decoder sees
        tokenizer = None
        if settings.pretrained:
            config = load(T5Config, settings.pretrained)
            if config.model_type != "t5":
                raise UserError(
                    f"{settings.pretrained} is no T5: --pretrained: give the name of one"
                )
            tokenizer = load(AutoTokenizer, settings.pretrained)
            self.vocabulary = config.vocab_size
            self.end = config.eos_token_id
            self.start = config.decoder_start_token_id
        self.batch_size = settings.batch_size
        self.seed = settings.seed

        limits = [settings.max_source, settings.max_target]
        order = np.random.default_rng(0).permutation(len(pairs))
        tokens: list[list] = [[], []]
        offsets = [[0, 0]]
        for number in order.tolist():
            for side, text in enumerate(pairs[number]):
                encoded = list(text.encode())
                if tokenizer:
                    encoded = tokenizer.encode(text, add_special_tokens=False)
                tokens[side] += [*encoded[: limits[side] - 1], self.end]
            offsets.append([len(side) for side in tokens])
        self.tokens = [np.array(side, np.int32) for side in tokens]
        self.offsets = np.array(offsets)  # (pairs + 1, 2)

        train_end, validation_end, test_end = split_rows(settings.split, len(pairs))
        self.splits = {
            "train": range(train_end),
            "validation": range(train_end, validation_end),
            "test": range(validation_end, test_end),
        }
        digest = hashlib.sha256(self.tokens[0].tobytes() + self.tokens[1].tobytes())
        self.facts = {"sha256": digest.hexdigest()}

    def prepare(self, settings: Settings) -> None:
        """Move the tokens to the device, or keep them on the host."""
        self.bucket = settings.bucket
        self.pin_memory = settings.pin_memory
        device = torch.device("cpu")
        if settings.resident:
            device = DEVICE
        self.sides = [to_device(side, device) for side in self.tokens]
        _, batch = next(self.epoch(0, 0))
        self.batch_targets = int((batch["targets"] != IGNORE).sum())

    def likeness(self, split: str) -> np.ndarray:
        """Return sort keys that put pairs of similar lengths next to each other.

        Keys order sources by steps of 30 %, and targets within a step, upwards and downwards in
        turn.
        """
        pairs = self.splits[split]
        source, target = np.diff(self.offsets[pairs.start : pairs.stop + 1], axis=0).T
        step = np.ceil(np.log(source) / np.log(1.3)).astype(np.int64)
        longest = target.max()
        inside = np.where(step % 2, target, longest - target)
        return step * (longest + 1) + inside

    def in_batches(self, order: np.ndarray) -> np.ndarray:
        """Return the numbers of pairs (batches, B), −1 for padding."""
        padding = np.full(-len(order) % self.batch_size, -1)
        return np.append(order, padding).reshape(-1, self.batch_size)

    def epoch(self, epoch: int, first_batch: int) -> Iterator:
        """Return the training batches of an epoch, in an order of its own, from a number on."""
        count = len(self.splits["train"])
        order = np.random.RandomState([self.seed, epoch]).permutation(count)
        batches = self.in_batches(order)
        if self.bucket:
            keys = self.likeness("train")
            size = POOL * self.batch_size
            pools = np.split(order, range(size, count, size))
            pools = [pool[np.argsort(keys[pool], kind="stable")] for pool in pools]
            batches = self.in_batches(np.concatenate(pools))
            shuffle = np.random.RandomState([self.seed, epoch, 1])
            batches = batches[shuffle.permutation(len(batches))]
        return self.batches("train", batches[first_batch:])

    def split_batches(self, split: str) -> Iterator:
        """Return the batches of a split, sorted by length."""
        order = np.argsort(self.likeness(split), kind="stable")
        return self.batches(split, self.in_batches(order))

    def batches(self, split: str, rows: np.ndarray) -> Iterator:
        """Yield the numbers of pairs and their batch."""
        for numbers in rows:
            batch = self.batch(split, numbers)
            for name, values in batch.items():
                if self.pin_memory:
                    values = values.pin_memory()
                batch[name] = values.to(DEVICE, non_blocking=True)
            yield numbers[numbers >= 0], batch

    def batch(self, split: str, numbers: np.ndarray) -> dict[str, Tensor]:
        """Return `source` and `source_present` (B, S), `decoder_input` and `targets` (B, T)."""
        pairs = self.splits[split].start + numbers.clip(min=0)
        starts = self.offsets[pairs]
        lengths = (self.offsets[pairs + 1] - starts) * (numbers >= 0)[:, None]
        padded = []
        inside = []
        for side, tokens in enumerate(self.sides):
            width = math.ceil(lengths[:, side].max() / MULTIPLE) * MULTIPLE
            places = torch.arange(width, device=tokens.device)
            first, length = to_device(np.stack([starts[:, side], lengths[:, side]]), tokens.device)
            is_token = places < length[:, None]
            padded.append(tokens[(first[:, None] + places) * is_token].long() * is_token)
            inside.append(is_token)
        # Padding rows also get one token, because attention over nothing would be nan.
        inside[0][:, 0] = True
        return {
            "source": padded[0],
            "source_present": inside[0],
            "decoder_input": functional.pad(padded[1][:, :-1], (1, 0), value=self.start),
            "targets": padded[1].masked_fill(~inside[1], IGNORE),
        }
