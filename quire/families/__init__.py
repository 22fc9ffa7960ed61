"""Families of models, one file each: turns the fields of a config into a ModelSpec."""
