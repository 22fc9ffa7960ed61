"""LoRA adapters: read from PEFT's files, checked against the model, and held in memory by name."""
