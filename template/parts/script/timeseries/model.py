class Model(nn.Module):
    """Forecasts all rows of the horizon at once, with an LSTM plus a linear map of the history."""

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        self.horizon = settings.horizon
        self.loss = settings.loss
        self.targets = nn.Buffer(torch.tensor(data.columns), persistent=False)
        num_columns = data.series.shape[1]
        self.lstm = nn.LSTM(num_columns, settings.width, settings.depth, batch_first=True)
        # A checkpointed LSTM saves memory in stretches of time, one after the other.
        self.stretches = math.isqrt(settings.history) if settings.gradient_checkpointing else 1
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(settings.width, settings.horizon * len(data.columns))
        self.linear = nn.Linear(settings.history, settings.horizon)

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint, such as the layers of a transformer."""
        return [self.lstm]

    def forward(self, history: Tensor) -> Tensor:
        """Return forecasts (B, H, G) for history (B, T, C), both standardized."""
        # Both paths use and forecast the change since the last known row.
        last = history[:, -1:]
        change = history - last

        # On a CPU, the LSTM stays float32, because not every CPU supports half precision.
        with torch.autocast("cpu", enabled=False):
            state = None
            for stretch in change.tensor_split(self.stretches, 1):
                outputs, state = self.lstm(stretch, state)
        hidden = self.dropout(outputs[:, -1].float())
        from_lstm = self.head(hidden).float().unflatten(1, (self.horizon, len(self.targets)))

        from_linear = self.linear(change[:, :, self.targets].transpose(1, 2)).float()
        return from_lstm + from_linear.transpose(1, 2) + last[:, :, self.targets]


def compute_loss(model: nn.Module, batch: tuple) -> tuple[Tensor, Tensor, dict]:
    """Return the mean loss, the number of targets, and sum and count of other metrics."""
    history, target, is_real = batch
    errors = (model(history) - target) * is_real[:, None, None]
    num_targets = is_real.sum(dtype=torch.float32) * target[0].numel()
    losses = errors.abs() if model.loss == "mae" else errors.square()
    metrics = {}
    if not model.training:
        metrics["mse"] = (errors.square().sum(), num_targets)
        metrics["mae"] = (errors.abs().sum(), num_targets)
    return losses.sum() / num_targets, num_targets, metrics
