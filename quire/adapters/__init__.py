"""LoRA adapters: read from PEFT's files, checked against the model, held in memory by name."""
