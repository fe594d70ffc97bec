"""Which workloads have large matrix products; small sizes of each workload, with which a run takes
seconds and yet learns."""

LARGE_PRODUCTS = ("llm", "seq2seq", "chat")  # workloads that fp8 and fsdp are offered for
GPT2 = ("--model.positions", "learned", "--model.bias", "true", "--data.block_size", "1024")
EMULATED = ("--training.fp8_emulation", "true")
# Small enough for seconds, large enough to learn: flags of each workload for its synthetic data.
TINY = {
    "tabular": ("--data.batch_size", "128", "--model.width", "32", "--schedule.warmup_steps", "10"),
    "llm": (
        *("--data.sample_mb", "0.08", "--data.block_size", "32", "--data.batch_size", "8"),
        *("--model.layers", "1", "--model.width", "128", "--schedule.warmup_steps", "10"),
        *("--optimizer.learning_rate", "0.003"),
        *("--evaluation.batch_size", "64"),
    ),
    "seq2seq": (
        *("--data.sample_pairs", "300", "--data.batch_size", "2", "--evaluation.batch_size", "32"),
        *("--model.layers", "1", "--model.hidden", "128", "--schedule.warmup_steps", "10"),
        *("--optimizer.learning_rate", "0.003"),
    ),
    "graph": (
        *("--data.batch_size", "4", "--model.width", "16", "--model.temporal_layers", "1"),
        *("--schedule.warmup_steps", "10", "--optimizer.learning_rate", "3e-3"),
    ),
    "timeseries": (
        *("--model.width", "16"),
        *("--optimizer.learning_rate", "0.01", "--schedule.warmup_steps", "10"),
    ),
    "forecast": (
        *("--model.width", "16", "--model.depth", "1", "--data.batch_size", "64"),
        *("--optimizer.learning_rate", "0.01", "--schedule.warmup_steps", "10"),
    ),
    "chat": (
        *("--data.sample_chats", "400", "--data.block_size", "128", "--data.batch_size", "2"),
        *("--model.layers", "1", "--model.width", "64", "--model.hidden", "128"),
        *("--schedule.warmup_steps", "10", "--optimizer.learning_rate", "0.003"),
    ),
    "vision": (
        *("--data.batch_size", "64", "--model.width", "8", "--schedule.warmup_steps", "10"),
        *("--optimizer.learning_rate", "0.002"),
    ),
    "windows": (
        *("--model.width", "16"),
        *("--optimizer.learning_rate", "0.01", "--schedule.warmup_steps", "10"),
    ),
}
