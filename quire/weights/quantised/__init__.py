"""Checkpoints with quantised weights: what their configs say, where a weight's tensors are, and how
they become a GroupedMatrix or an Fp8Matrix."""
