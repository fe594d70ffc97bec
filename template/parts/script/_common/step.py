# -----------------------------------------------------------------------------
# Step


def learning_rate_at(step: int, total_steps: int, settings: Settings) -> float:
    """Return the rate of a step: a linear warm-up, then a decay. It has no state to save."""
    peak = settings.learning_rate
    is_onecycle = settings.schedule == "onecycle"
    warmup = settings.warmup_steps
    if warmup < 0:
        warmup = round(0.3 * total_steps) if is_onecycle else min(100, total_steps // 10)
    decay_steps = max(total_steps - warmup, 1)
    if is_onecycle:  # from 1/25 of the peak, to almost 0; both parts are half a cosine
        if step < warmup:
            return peak * cosine(1 / 25, 1.0, step / max(warmup - 1, 1))
        return peak * cosine(1.0, 4e-6, (step - warmup + 1) / decay_steps)
    if step < warmup:
        return peak * ((step + 1) / warmup)
    passed = min((step - warmup) / decay_steps, 1.0)
    if settings.schedule == "cosine":
        return peak * cosine(1.0, settings.final_factor, passed)
    if settings.schedule == "linear":
        return peak * (1.0 + (settings.final_factor - 1.0) * passed)
    return peak


def cosine(start: float, end: float, passed: float) -> float:
    """Return the value on half a cosine from start to end; passed is from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * min(passed, 1.0))) / 2


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    num_targets: Tensor,
    clip: float,
    learning_rate: float,
) -> Tensor:
    """Turn summed gradients into means, clip them and step. Return their norm before clipping.

    Nothing here waits for the GPU: the fused optimizer itself skips a step that overflows in fp16.
    """
    weights = []
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
        weights += group["params"]
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in weights if p.grad is not None]  # an unused weight has none
    norm = torch.nn.utils.get_total_norm(gradients)
    # One division takes the mean and clips: by num_targets, or by norm / clip if that is larger.
    divisor = torch.maximum(num_targets, norm / clip) if clip else num_targets
    torch._foreach_div_(gradients, divisor)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norm / num_targets


@dataclass
class Progress:
    """What a checkpoint contains besides weights and random states."""

    step: int = 0
    best_step: int = 0
    best_loss: float = math.inf
    # (step, loss, number of targets, samples) of each micro-batch since the last log entry
    micro_batches: list[tuple] = field(default_factory=list)


class Trainer:
    """The model and everything that trains it."""

    def __init__(self, settings: Settings):
        random.seed(settings.seed)
        np.random.seed(settings.seed)
        torch.manual_seed(settings.seed)
        self.data = Data(settings)
        self.model = Model(settings, self.data)
        blocks = self.model.blocks()
        self.resolved = Resolved(settings, self.model, blocks)
        self.settings = self.resolved.active
        configure(self.settings)
        optimize_blocks(blocks, self.settings)
        self.model.to(DEVICE)
        self.data.prepare(self.settings)
        self.optimizer = make_optimizer(self.model, self.settings)
        precision = self.settings.precision
        self.autocast, self.scaler = make_autocast(precision, self.data.batch_targets)
        self.parts: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
        }
        self.finite_names = self.find_finite()  # a mask of -inf is not one of them
        self.num_samples = len(self.data.splits["train"])
        self.step_size = settings.batch_size * settings.gradient_accumulation_steps
        self.steps_per_epoch = math.ceil(self.num_samples / self.step_size)
        self.total_steps = settings.max_steps or settings.epochs * self.steps_per_epoch
        self.progress = Progress()
        # (step, gradient norm, samples) of each step since the last log entry
        self.norms: list[tuple] = []
        self.wait_seconds = 0.0  # for batches since then

    def steps(self) -> Iterator:
        """Yield the micro-batches of each step that is left. An epoch has each sample once."""
        step = self.progress.step
        accumulation = self.settings.gradient_accumulation_steps
        while True:
            epoch, steps_done = divmod(step, self.steps_per_epoch)
            batches = self.data.epoch(epoch, steps_done * accumulation)
            for _ in range(steps_done, self.steps_per_epoch):
                yield islice(batches, accumulation)
                step += 1

    def step(self, micro_batches: Iterator) -> Tensor:
        """Train one step, and return the norm of its gradients."""
        progress = self.progress
        learning_rate = learning_rate_at(progress.step, self.total_steps, self.settings)
        progress.step += 1

        # Forward and backward. The gradients of the micro-batches add up.
        step_targets = torch.zeros((), device=DEVICE)
        samples: list[int] = []
        for numbers, batch in self.timed(micro_batches):
            with self.autocast:
                loss, num_targets, _ = compute_loss(self.model, batch)
            self.scaler.scale(loss * num_targets).backward()
            result = (progress.step, loss.detach(), num_targets, numbers.tolist())
            progress.micro_batches.append(result)
            step_targets += num_targets
            samples += numbers.tolist()

        # Update. The gradient of an incomplete last step is scaled by its number of samples.
        divisor = step_targets / (len(samples) / min(self.step_size, self.num_samples))
        clip = self.settings.gradient_clip
        norm = optimizer_step(self.optimizer, self.scaler, divisor, clip, learning_rate)
        if not self.scaler.is_enabled():  # fp16 skips a step that overflows, which is no error
            self.norms.append((progress.step, norm, samples))
        return norm

    def timed(self, micro_batches: Iterator) -> Iterator:
        """Yield the micro-batches, and add up the seconds that the step waits for them."""
        start_time = time.perf_counter()
        for batch in micro_batches:
            self.wait_seconds += time.perf_counter() - start_time
            yield batch
            start_time = time.perf_counter()

    @torch.no_grad()
    def evaluate(self, split: str) -> dict:
        """Return the loss and the metrics of a split, as means over all its targets."""
        self.model.eval()
        sums: dict = {}
        for _, batch in self.data.split_batches(split):
            with self.autocast:
                loss, num_targets, metrics = compute_loss(self.model, batch)
            metrics = {"loss": (loss * num_targets, num_targets), **metrics}
            for name, sum_and_count in metrics.items():
                sums[name] = sums.get(name, 0) + torch.stack(sum_and_count).double()
        self.model.train()
        return {name: (total / count).item() for name, (total, count) in sums.items()}

    def mean_loss(self) -> float:
        """Return the mean loss since the last log entry. Reading it waits for the GPU.

        Raise an error for the first loss or gradient norm that is not finite.
        """
        micro_batches = self.progress.micro_batches
        losses = torch.stack([loss for _, loss, _, _ in micro_batches])
        weights = torch.stack([num_targets for _, _, num_targets, _ in micro_batches])
        values = []
        for (step, _, _, samples), loss in zip(micro_batches, losses.tolist(), strict=True):
            values.append((step, "loss", loss, samples))
        for step, norm, samples in self.norms:
            values.append((step, "gradient norm", norm.item(), samples))
        # Sorting keeps the order within a step: its losses come before the norm.
        for step, name, value, samples in sorted(values, key=lambda entry: entry[0]):
            if not math.isfinite(value):
                raise UserError(
                    f"the {name} of step {step} is {value}: training samples {samples[:64]}: check "
                    "these samples, Model and compute_loss, or use a smaller --learning_rate"
                )
        return ((losses * weights).sum() / weights.sum()).item()

    def find_finite(self) -> set[str]:
        """Return the names of weights and buffers without NaN and infinity. Waits for the GPU."""
        tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name for name, tensor in tensors if tensor.isfinite().all()}

    def check(self) -> None:
        """Raise an error instead of saving weights or buffers that are not finite any more."""
        if self.progress.micro_batches:
            self.mean_loss()
        broken = sorted(self.finite_names - self.find_finite())
        if broken:
            raise UserError(
                f"not finite after step {self.progress.step}: {', '.join(broken[:3])}: "
                "check Model, or use a smaller --learning_rate"
            )
