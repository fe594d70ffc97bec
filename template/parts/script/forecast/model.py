TINY = 1e-30  # in units of the data, which may be small
FLOOR = 0.01  # of the deviation of a series: the least scale of a window
FLAT = 1e-3  # of the size of the values: another least scale


class Model(nn.Module):
    """Forecasts all rows of the horizon at once: a linear map, plus an MLP of all that is known."""

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        num_columns = len(data.roles["columns"])
        num_known = len(data.known)
        self.targets = nn.Buffer(torch.tensor(data.targets), persistent=False)
        self.known = nn.Buffer(torch.tensor(data.known).long(), persistent=False)
        num_inputs = settings.history * num_columns + settings.horizon * num_known
        self.mixer = Mixer(num_inputs, settings.width, settings.depth)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(settings.width, settings.horizon * len(data.targets))
        self.linear = nn.Linear(settings.history, settings.horizon)
        if data.known:
            self.ahead = nn.Linear(num_known, len(data.targets), bias=False)

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint, such as the layers of a transformer."""
        return [self.mixer]

    def forward(self, history: Tensor, future: Tensor, series_std: Tensor) -> tuple[Tensor, ...]:
        """Return standardized forecasts (B, H, G), and their mean and deviation (B, 1, G)."""
        mean = history.mean(1, keepdim=True)
        spread = (history - mean).square().mean(1, keepdim=True).sqrt()
        # A flat history would make everything after it huge.
        floor = torch.maximum(FLOOR * series_std, FLAT * mean.abs()).clamp(min=TINY)
        # Known columns are standardized already.
        mean = mean.index_fill(2, self.known, 0)
        std = torch.maximum(spread, floor).index_fill(2, self.known, 1)

        history = (history - mean) / std
        known = future[:, :, self.known]
        hidden = self.mixer(torch.cat([history.flatten(1), known.flatten(1)], 1))
        from_mlp = self.head(self.dropout(hidden)).float().unflatten(1, (-1, len(self.targets)))
        from_linear = self.linear(history[:, :, self.targets].transpose(1, 2)).float()
        forecast = from_mlp + from_linear.transpose(1, 2)
        if len(self.known):
            forecast = forecast + self.ahead(known).float()
        return forecast, mean[:, :, self.targets], std[:, :, self.targets]


def compute_loss(model: nn.Module, batch: tuple) -> tuple[Tensor, Tensor, dict]:
    """Return the mean absolute error, the number of targets, and sum and count of other metrics.

    MASE and sMAPE (in percent) have a sum for each series and target (S, G), and `evaluate` takes
    the mean of their means. A flat series has no MASE.
    """
    history, future, is_real, series, series_std, changes = batch
    forecast, mean, std = model(history, future, series_std)
    target = future[:, :, model.targets]
    is_real = is_real[:, None, None].expand_as(target).float()
    errors = (forecast - (target - mean) / std) * is_real
    num_targets = is_real.sum()
    total = errors.abs().sum()
    if model.training:
        return total / num_targets, num_targets, {}

    def sum_by_series(values: Tensor) -> Tensor:
        return torch.zeros_like(changes).index_add(0, series, (values * is_real).sum(1))

    forecast = forecast * std + mean
    error = (forecast - target).abs()
    size = (forecast.abs() + target.abs()).clamp(min=TINY)
    count = sum_by_series(is_real)
    metrics = {
        "mae": (total, num_targets),
        "mse": (errors.square().sum(), num_targets),
        "mase": (sum_by_series(error) / changes, count),
        "smape": (sum_by_series(200 * error / size), count),
    }
    return total / num_targets, num_targets, metrics
