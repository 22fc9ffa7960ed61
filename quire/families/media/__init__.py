"""Families of models that see: how large images become, and what stands for them in prompts."""
