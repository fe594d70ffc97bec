class Model(nn.Module):
    """Predicts the target of each stock, from its window and its neighbors.

    No stock has weights of its own, so the order of stocks has no effect, and a new listing needs
    no training.
    """

    mean: Tensor  # of each feature (F,), and of the target (1,)
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        width = settings.width
        if width % settings.heads:
            raise UserError(f"{width} is no multiple of --heads {settings.heads}: --width: fix one")
        for name, values in data.scale.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self.frequencies = settings.frequencies
        inputs = 2 * len(FEATURES) if settings.frequencies else len(FEATURES)
        self.first = nn.Linear(inputs, width)
        self.place = nn.Parameter(0.02 * torch.randn(settings.window, width))
        self.temporal = nn.ModuleList()
        for _ in range(settings.temporal_layers):
            self.temporal.append(TemporalBlock(width, settings.heads, settings.dropout))
        self.graph = nn.ModuleList()
        for _ in range(settings.graph_layers):
            self.graph.append(GraphAttention(width, width // settings.heads, settings.heads))
        self.joined = nn.ModuleList()
        for _ in range(settings.graph_layers):
            self.joined.append(GatedResidual(width, settings.dropout))
        self.head = nn.Linear(width + len(FEATURES), 1)

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint."""
        return list(self.temporal)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return standardized predictions (B, K, 1); those of empty seats mean nothing."""
        features = batch["features"]  # (B, K, T, F)
        days, seats = features.shape[:2]
        x = (features - self.mean) / self.std
        x = x.clamp(-10, 10)
        x = x.flatten(0, 1)  # (N, T, F)
        last_day = x[:, -1]

        # Encode the window of each stock.
        if self.frequencies:
            x = split_frequencies(x, self.frequencies)
        x = self.first(x) + self.place
        for block in self.temporal:
            x = block(x)
        x = x[:, -1]  # (N, W): attention has seen the whole window

        # Add information from its neighbors.
        edges, present = disjoint_graph(batch["neighbors"])
        for attend, join in zip(self.graph, self.joined, strict=True):
            change = functional.elu(attend(x, edges, present))
            x = join(x, change)
        x = torch.cat([x, last_day], 1)
        outputs = self.head(x).float()
        return outputs.view(days, seats, -1)


def compute_loss(model: Model, batch: dict) -> tuple[Tensor, Tensor, dict]:
    """Return the mean squared error, the number of targets, and sum and count of other metrics."""
    target = (batch["target"] - model.target_mean) / model.target_std  # (B, K, 1), NaN: unknown
    known = batch["listed"].unsqueeze(2) & target.isfinite()
    num_targets = known.sum(dtype=torch.float32)
    errors = model(batch) - target
    errors = torch.where(known, errors, 0.0)
    squared_error = errors.square().sum()
    metrics = {}
    if not model.training:
        metrics["mse"] = (squared_error, num_targets)
        metrics["mae"] = (errors.abs().sum(), num_targets)
    return squared_error / num_targets.clamp(min=1), num_targets, metrics
