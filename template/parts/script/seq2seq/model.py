def build_t5(settings: Settings, data: Data) -> Any:
    """Return a T5 with new weights, or the pretrained one, in float32."""
    if settings.pretrained:
        config = load(T5Config, settings.pretrained, dropout_rate=settings.dropout)
        config._attn_implementation = ATTENTION
        return load(
            T5ForConditionalGeneration,
            settings.pretrained,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
        )
    of_tokens: Any = {"decoder_start_token_id": data.start, "eos_token_id": data.end}
    config = T5Config(
        vocab_size=math.ceil(data.vocabulary / 64) * 64,  # suits tensor cores
        d_model=settings.width,
        d_kv=settings.head_width,
        d_ff=settings.hidden,
        num_layers=settings.layers,
        num_heads=settings.heads,
        feed_forward_proj=settings.feed_forward,
        dropout_rate=settings.dropout,
        pad_token_id=data.start,
        **of_tokens,
    )
    config._attn_implementation = ATTENTION
    return T5ForConditionalGeneration(config)


class Model(nn.Module):
    """A T5. Both embeddings and the head share one weight.

    The library's layers run in a loop that adds mask and relative positions once, not in each.
    """

    def __init__(self, settings: Settings, data: Data):
        super().__init__()
        self.t5 = build_t5(settings, data)
        self.vocabulary = data.vocabulary

    def blocks(self) -> list[nn.Module]:
        """Return the modules to compile and to checkpoint."""
        return [*self.t5.encoder.block, *self.t5.decoder.block]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits (B, T, V) of the target tokens."""
        memory, closed = encode(self.t5, batch["source"], batch["source_present"])
        return decode(self.t5, batch["decoder_input"], memory, closed).float()


def compute_loss(model: Model, batch: dict) -> tuple[Tensor, Tensor, dict]:
    """Return the mean cross-entropy, the number of targets, and sum and count of other metrics."""
    targets = batch["targets"]
    logits = model(batch)
    total = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    num_targets = (targets != IGNORE).sum(dtype=torch.float32)
    metrics = {}
    if not model.training:
        is_right = logits[..., : model.vocabulary].argmax(-1) == targets
        metrics["token_accuracy"] = (is_right.sum(), num_targets)
    return total / num_targets, num_targets, metrics
