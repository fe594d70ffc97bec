class ConvGroup(nn.Module):
    """Two convolutions. The first halves the sides: (B, C, H, W) to (B, D, H / 2, W / 2)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x), 2)
        x = F.gelu(self.norm1(x))
        x = self.norm2(self.conv2(x))
        return F.gelu(x)


class Network(nn.Module):
    """Groups of convolutions after a frozen stem that whitens: (B, C, H, W) to (B, K)."""

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        *sides, channels = data.images.shape[1:]
        side = min(sides)
        depth = settings.depth or max(1, int(math.log2(side / 3)))
        if side - 1 < 2**depth:
            raise UserError(f"the images are too small for --depth {depth}: --size: use a larger")
        widths = [8 * channels, settings.width, *[2 * settings.width] * (depth - 1)]
        self.stem = nn.Conv2d(channels, widths[0], 2)
        self.stem.weight.requires_grad_(False)
        self.stem.weight.copy_(whitening(data.scales))
        groups = map(ConvGroup, widths, widths[1:])
        self.groups = nn.Sequential(*groups)
        self.head = nn.Linear(widths[-1], len(data.classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.stem(x))
        x = self.groups(x)
        return self.head(x.amax((2, 3)))


def whitening(scales: dict[str, np.ndarray]) -> Tensor:
    """Return the filters (8 · C, C, 2, 2) that make the channels of a patch uncorrelated."""
    std = torch.tensor(scales["std"]).repeat_interleave(4)
    covariance = torch.tensor(scales["covariance"])
    values, vectors = torch.linalg.eigh(covariance / std / std[:, None])
    filters = vectors / (values + 5e-4).sqrt()
    filters = filters.T.reshape(-1, len(std) // 4, 2, 2)
    return torch.cat([filters, -filters]).float()


class Model(nn.Module):
    """A network between pixels and classes, (B, C, H, W) to (B, K). It scales the pixels."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        self.settings = settings
        self.network = Network(settings, data)
        for name in ("mean", "std"):
            values = torch.tensor(data.scales[name], dtype=torch.float32)
            self.register_buffer(name, values[:, None, None])
        self.memory_format = torch.contiguous_format
        if settings.channels_last:
            self.memory_format = torch.channels_last
        nn.utils.convert_conv2d_weight_memory_format(self, self.memory_format)

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint."""
        return list(self.network.groups)

    def forward(self, image: Tensor) -> Tensor:
        """Return (B, K). Evaluations average over an image and its mirror image."""
        image = (image - self.mean).div_(self.std)  # without another copy of the batch
        image = image.contiguous(memory_format=self.memory_format)
        logits = self.network(image)
        if self.settings.flip and not self.training:
            mirrored = self.network(image.flip(3))
            logits = (logits + mirrored) / 2
        return logits.float()


def compute_loss(model: nn.Module, batch: dict) -> tuple[Tensor, Tensor, dict]:
    """Return the mean loss, the number of targets, and sum and count of other metrics."""
    logits = model(batch["image"])
    target = batch["target"]
    is_real = batch["index"] >= 0
    num_targets = is_real.sum(dtype=torch.float32)
    settings: Any = model.settings
    smoothing = 0.0
    if model.training:
        smoothing = settings.label_smoothing
    losses = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    hits = {"accuracy": logits.argmax(1) == target}
    if logits.shape[1] > 5:
        likeliest = logits.topk(5, 1).indices
        hits["accuracy_top5"] = (likeliest == target[:, None]).any(1)
    metrics = {}
    for name, is_right in hits.items():
        count = (is_right & is_real).sum()
        metrics[name] = (count, num_targets)
    loss = (losses * is_real).sum() / num_targets
    return loss, num_targets, metrics
