@dataclass
class Progress:
    """What a checkpoint contains besides weights and random states."""

    step: int = 0
    best_step: int = 0
    best_loss: float = math.inf
    # (loss, number of targets) of each micro-batch since the last log entry
    losses: list = field(default_factory=list)


class Trainer:
    """The model and everything that trains it."""

    def __init__(self, settings: Settings):
        self.resolved = Resolved(settings)
        settings = self.resolved.active
        self.settings = settings
        configure(settings)
        random.seed(settings.seed)
        np.random.seed(settings.seed)
        torch.manual_seed(settings.seed)
        self.data = Data(settings)
        self.model = Model(settings, self.data)
        optimize_blocks(self.model.blocks(), settings)
        self.model.to(DEVICE)
        self.data.prepare(settings)
        self.optimizer = make_optimizer(self.model, settings)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(settings.precision)
        self.autocast = torch.autocast(DEVICE.type, dtype, enabled=dtype is not None)
        # Only fp16 scales the loss, so that small gradients do not vanish. Gradients are sums over
        # a batch, so divide the usual first scale by its number of targets.
        scale = 65536.0 / 2 ** math.ceil(math.log2(self.data.batch_targets))
        self.scaler = torch.amp.GradScaler(DEVICE.type, scale, enabled=dtype == torch.float16)
        num_samples = len(self.data.splits["train"])
        step_size = settings.batch_size * settings.gradient_accumulation_steps
        self.step_size = min(step_size, num_samples)
        self.steps_per_epoch = math.ceil(num_samples / step_size)
        self.total_steps = settings.max_steps or settings.epochs * self.steps_per_epoch
        self.progress = Progress()
        self.batches: Any = None  # those that are left of the epoch
        self.skipped_steps = 0  # in a row, by fp16
        self.not_finite = names_not_finite(self)  # such as a mask of minus infinity
        # (step, name, value, samples) of each loss and gradient norm that is not checked yet
        self.unchecked: list = []

    def next_batches(self) -> Iterator:
        """Return the micro-batches of the next step. An epoch has each sample once."""
        accumulation = self.settings.gradient_accumulation_steps
        epoch, steps_done = divmod(self.progress.step, self.steps_per_epoch)
        if not (steps_done and self.batches):  # an epoch begins, or a run
            self.batches = self.data.epoch(epoch, steps_done * accumulation)
        return islice(self.batches, accumulation)

    def step(self) -> Tensor:
        """Train one step, and return the norm of its gradients."""
        micro_batches = self.next_batches()
        self.progress.step += 1
        step = self.progress.step

        # Forward and backward. The gradients of the micro-batches add up.
        step_targets: Any = 0  # with the first batch, a tensor ()
        samples: list = []
        for numbers, batch in micro_batches:
            with self.autocast:
                loss, num_targets, _ = compute_loss(self.model, batch)
            # The gradients are those of loss * num_targets, a sum: all targets weigh the same.
            loss.backward(gradient=self.scaler.scale(num_targets))
            loss = loss.detach()
            batch_samples = numbers.tolist()
            self.progress.losses.append((loss, num_targets))
            self.unchecked.append((step, "loss", loss, batch_samples))
            step_targets += num_targets
            samples += batch_samples

        # Update. The gradient of an incomplete last step is scaled by its number of samples.
        norm = self.update(step_targets / (len(samples) / self.step_size))
        self.unchecked.append((step, "gradient norm", norm, samples))
        return norm

    def update(self, num_targets: Tensor) -> Tensor:
        """Turn summed gradients into means, clip them and step. Return their norm before clipping.

        Nothing here waits for the GPU: the fused optimizer itself skips a step that overflows in
        fp16.
        """
        gradients = []
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.progress.step - 1, self.total_steps, self.settings)
            # An unused weight has no gradient.
            gradients += [p.grad for p in group["params"] if p.grad is not None]
        self.scaler.unscale_(self.optimizer)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        # One division takes the mean and clips: by num_targets, or by norm / clip if it is larger.
        clip = self.settings.gradient_clip
        divisor = torch.maximum(num_targets, norm / clip) if clip else num_targets
        torch._foreach_div_(gradients, divisor)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return norm / num_targets

    @torch.no_grad()
    def evaluate(self, split: str) -> dict:
        """Return the loss and the metrics of a split, as means over all its targets."""
        self.model.eval()
        sums: Any = Counter()
        for _, batch in self.data.split_batches(split):
            with self.autocast:
                loss, num_targets, metrics = compute_loss(self.model, batch)
            metrics = {"loss": (loss * num_targets, num_targets), **metrics}
            for name, sum_and_count in metrics.items():
                sums[name] += torch.stack(sum_and_count).double()
        self.model.train()
        return {name: (total / count).item() for name, (total, count) in sums.items()}

    def check(self) -> None:
        """Raise an error for the first loss or norm that is not finite. This waits for the GPU."""
        for step, name, value, samples in self.unchecked:
            is_right = math.isfinite(value.item())
            if name == "gradient norm" and self.scaler.is_enabled():
                # fp16 skips a step that overflows, and halves the scale of the loss. Many of them
                # in a row are an error.
                self.skipped_steps += 1
                if is_right:
                    self.skipped_steps = 0
                is_right = self.skipped_steps < min(40, self.total_steps)
                if self.skipped_steps == 10:
                    print(f"warning: fp16 skipped 10 steps in a row, up to step {step}")
            if not is_right:
                raise UserError(
                    f"the {name} of step {step} is {value.item()}: training samples "
                    f"{samples[:64]}: check these samples, Model and compute_loss, "
                    "or use a smaller --learning_rate or another --precision"
                )
        self.unchecked.clear()

    def mean_loss(self) -> float:
        """Return the mean loss since the last log entry, weighted by targets."""
        self.check()
        losses, weights = map(torch.stack, zip(*self.progress.losses, strict=True))
        self.progress.losses.clear()
        return ((losses * weights).sum() / weights.sum()).item()
