class Block(nn.Module):
    """A residual hidden layer, (B, width) to (B, width)."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(F.relu(self.linear(x)))


class Model(nn.Module):
    """An MLP from columns to outputs: one number, or a score for each class."""

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        width = settings.width
        *unknown, num_codes = data.offsets
        num_inputs = data.num_features + len(unknown) * settings.category_width
        if unknown:
            self.embedding = nn.Embedding(num_codes, settings.category_width)
            self.embedding.weight.data[unknown] = 0.0
        self.first = nn.Linear(num_inputs, width)
        self.layers = nn.ModuleList(
            Block(width, settings.dropout) for _ in range(settings.depth - 1)
        )
        self.head = nn.Linear(width, data.num_outputs)

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint."""
        return list(self.layers)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return (B, 1) or (B, K) from features (B, F) and categories (B, C)."""
        inputs = []
        if "features" in batch:
            inputs.append(batch["features"])
        if "categories" in batch:
            inputs.append(self.embedding(batch["categories"]).flatten(1))
        x = F.relu(self.first(torch.cat(inputs, 1)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x).float()


def compute_loss(model: nn.Module, batch: dict) -> tuple[Tensor, Tensor, dict]:
    """Return the mean loss, the number of targets, and sum and count of other metrics."""
    output = model(batch)
    target = batch["target"]
    is_real = batch["is_real"]
    num_targets = is_real.sum(dtype=torch.float32)
    if target.is_floating_point():
        errors = (output.squeeze(1) - target) * is_real
        total = errors.square().sum()
        metrics = {"mse": (total, num_targets), "mae": (errors.abs().sum(), num_targets)}
    else:
        losses = F.cross_entropy(output, target, reduction="none")
        total = (losses * is_real).sum()
        hits = (output.argmax(1) == target) & is_real
        metrics = {"accuracy": (hits.sum(), num_targets), "log_loss": (total, num_targets)}
    return total / num_targets, num_targets, metrics
