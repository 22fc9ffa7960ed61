"""Checkpoints whose weights were rounded before: what their configs say, where a weight's parts
are, and how they become a GroupedMatrix or an Fp8Matrix."""
