"""LoRA adapters: the name of a request for one. Nothing runs them yet."""
