"""Model files: finding them, reading them safely, and turning them into named tensors."""
