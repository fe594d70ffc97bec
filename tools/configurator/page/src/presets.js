// Answers to start from, or to compare with.

/** Each preset by the text of its choice. */
export function presets(template) {
  const extras = template.questions.get("extras").choices.map(({ value }) => value);
  return {
    "the default project": {},
    "one script: tabular": { workload: "tabular", layout: "script" },
    "GPT on an H100, with measurements": {
      workload: "llm",
      gpu: "h100",
      extras: ["check", "benchmark", "profile", "tune"],
    },
    "T5 on several H100, FSDP and fp8": {
      workload: "seq2seq",
      gpu: "h100",
      precision: "fp8",
      distributed: "fsdp",
      tracker: "tensorboard",
      extras: ["slurm"],
    },
    "windows of an HDF5 file, Lightning": {
      workload: "windows",
      framework: "lightning",
      tracker: "mlflow",
    },
    "photos on an RTX 4090": {
      workload: "vision",
      gpu: "rtx_4090",
      extras: ["finetune", "export"],
    },
    "conversations on an H100, LoRA": { workload: "chat", gpu: "h100" },
    "many series, with known futures": { workload: "forecast" },
    "a table on a CPU": { workload: "tabular", gpu: "cpu" },
    everything: { loader: "chunk", distributed: "ddp", tracker: "wandb", extras },
  };
}
