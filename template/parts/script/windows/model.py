class Model(nn.Module):
    """Forecasts all targets of a window from the last output of an LSTM."""

    mean: Tensor  # of each column (F,), and of each target (H,)
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        for name, values in data.scale.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self.lstm = nn.LSTM(data.num_features, settings.width, settings.depth, batch_first=True)
        # A checkpointed LSTM saves memory in stretches of time, one after the other.
        self.stretches = math.isqrt(data.history) if settings.gradient_checkpointing else 1
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(settings.width, data.num_targets)

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint, such as the layers of a transformer."""
        return [self.lstm]

    def forward(self, features: Tensor) -> Tensor:
        """Return standardized forecasts (B, H) for features (B, T, F)."""
        # On a CPU, the LSTM stays float32, because not every CPU supports half precision.
        with torch.autocast("cpu", enabled=False):
            state = None
            for stretch in ((features - self.mean) / self.std).tensor_split(self.stretches, 1):
                outputs, state = self.lstm(stretch, state)
        return self.head(self.dropout(outputs[:, -1].float())).float()


def compute_loss(model: Model, batch: tuple) -> tuple[Tensor, Tensor, dict]:
    """Return the mean squared error, the number of targets, and sum and count of other metrics."""
    features, targets, is_real = batch
    errors = model(features) - (targets - model.target_mean) / model.target_std
    errors = errors * is_real[:, None]
    num_targets = is_real.sum(dtype=torch.float32) * errors.shape[1]
    squared_error = errors.square().sum()
    metrics = {}
    if not model.training:
        metrics["mse"] = (squared_error, num_targets)
        metrics["mae"] = (errors.abs().sum(), num_targets)
    return squared_error / num_targets, num_targets, metrics
