"""Families of models that read images, videos or sounds: the size of each item, and its text in
prompts."""
