ATTENTION = "one_bias"  # the name under which `attend` is registered in the library


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **named: Any,
) -> tuple[Tensor, None]:
    """Attention with one bias for positions and mask; query (B, H, T, D) to (B, T, H, D).

    T5 does not scale its scores. On a CPU, the fused kernel lacks dropout and the bias's gradient.
    The library's `generate` passes positions and mask separately; training has already added them.
    """
    bias = named["position_bias"]
    if attention_mask is not None:
        bias = bias + attention_mask
    bias = bias.to(query.dtype)
    if query.device.type == "cpu":
        weights = (query @ key.mT).add_(bias).softmax(-1)
        mixed = F.dropout(weights, named["dropout"]) @ value
    else:
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=named["dropout"], scale=1.0
        )
    return mixed.transpose(1, 2), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, eager_mask)


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
        memory, closed = self.encode(batch["source"], batch["source_present"])
        return self.decode(batch["decoder_input"], memory, closed).float()

    def encode(self, source: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states (B, S, C), and a mask for the padding (B, 1, 1, S)."""
        stack = self.t5.encoder
        absent = ~present[:, None, None]
        bias = positions(stack, source.shape[1]).masked_fill(absent, -math.inf)
        x = stack.dropout(stack.embed_tokens(source))
        for layer in stack.block:
            x = layer(x, None, bias)[0]
        closed = torch.zeros_like(absent, dtype=bias.dtype).masked_fill(absent, -math.inf)
        return stack.dropout(stack.final_layer_norm(x)), closed

    def decode(self, tokens: Tensor, memory: Tensor, closed: Tensor) -> Tensor:
        """Return logits (B, T, V). Padding needs no mask, since it comes after all targets."""
        stack = self.t5.decoder
        place = torch.arange(tokens.shape[1], device=tokens.device)
        later = place > place[:, None]
        bias = positions(stack, tokens.shape[1]).masked_fill(later, -math.inf)
        x = stack.dropout(stack.embed_tokens(tokens))
        for layer in stack.block:
            x = layer(x, None, bias, memory, None, closed)[0]
        x = stack.dropout(stack.final_layer_norm(x))
        if self.t5.config.scale_decoder_outputs:
            x = x * self.t5.model_dim**-0.5
        return self.t5.lm_head(x)


def positions(stack: Any, length: int) -> Tensor:
    """Return the bias of relative positions (1, H, length, length), in the dtype of attention."""
    bias = stack.block[0].layer[0].SelfAttention.compute_bias(length, length)
    device = bias.device.type
    if torch.is_autocast_enabled(device):
        return bias.to(torch.get_autocast_dtype(device))
    return bias


def compute_loss(model: Model, batch: dict) -> tuple[Tensor, Tensor, dict]:
    """Return the mean cross-entropy, the number of targets, and sum and count of other metrics."""
    targets = batch["targets"]
    logits = model(batch)
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    num_targets = (targets != IGNORE).sum(dtype=torch.float32)
    metrics = {}
    if not model.training:
        is_right = logits[..., : model.vocabulary].argmax(-1) == targets
        metrics["token_accuracy"] = (is_right.sum(), num_targets)
    return total / num_targets, num_targets, metrics
