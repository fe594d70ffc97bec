class Attention(nn.Module):
    """Causal self-attention, (B, T, C) to (B, T, C), with PyTorch's fused kernels."""

    def __init__(self, settings: Settings):
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.dropout = settings.dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1)).transpose(1, 3)  # (B, H, 3, T, D)
        query, key = rotate(qkv[:, :, :2], rotation).unbind(2)
        value = qkv[:, :, 2]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each pair (d, d + D/2) of x (..., T, D); rotation has the cosines and sines."""
    cos, sin = rotation  # each (T, D/2)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).type_as(x)


class Block(nn.Module):
    """Attention and a hidden layer of 4 * C units, each with a residual connection."""

    def __init__(self, settings: Settings):
        super().__init__()
        width = settings.width
        self.dropout = nn.Dropout(settings.dropout)
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(settings)
        self.hidden_norm = nn.LayerNorm(width, bias=False)
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
        return x + self.dropout(self.out(F.gelu(self.hidden(self.hidden_norm(x)))))


class Model(nn.Module):
    """Predicts the next token at each position. Embedding and head share one weight."""

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        width = settings.width
        head_width = width // settings.heads
        if width % (2 * settings.heads):
            raise UserError(f"heads do not fit: --width: use a multiple of {2 * settings.heads}")
        # A vocabulary that is a multiple of 64 suits tensor cores.
        self.embedding = nn.Embedding(math.ceil(VOCABULARY / 64) * 64, width)
        self.dropout = nn.Dropout(settings.dropout)
        self.layers = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width, bias=False)
        frequencies = 10_000.0 ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(settings.block_size), frequencies)
        self.rotation = nn.Buffer(torch.stack([angles.cos(), angles.sin()]), persistent=False)
        for weight in self.parameters():
            if weight.dim() >= 2:
                nn.init.normal_(weight, std=0.02)
        for name, weight in self.named_parameters():
            # Two residual branches per block add up along the depth: see GPT-2, section 2.3.
            if name.endswith("out.weight"):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * settings.layers))
        if settings.init_from:
            try:
                checkpoint = load_checkpoint(Path(settings.init_from, "checkpoints"))
                self.load_state_dict(checkpoint["model"])
            except (FileNotFoundError, KeyError, RuntimeError):
                raise UserError(
                    f"no weights of this model: {settings.init_from}: check --init_from"
                ) from None

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint."""
        return list(self.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, T, V) of the next tokens, for tokens (B, T)."""
        x = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x, self.rotation)
        return F.linear(self.norm(x), self.embedding.weight).float()


def compute_loss(model: nn.Module, batch: tuple) -> tuple[Tensor, Tensor, dict]:
    """Return the mean cross-entropy, the number of targets, and sum and count of other metrics."""
    tokens, targets = batch
    logits = model(tokens).flatten(0, 1)
    total = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    num_targets = (targets != IGNORE).sum(dtype=torch.float32)
    num_bytes = num_targets - (targets == END).sum()
    metrics = {"bits_per_byte": (total / math.log(2), num_bytes)}
    return total / num_targets, num_targets, metrics
