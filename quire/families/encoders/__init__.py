"""Encoders: models whose tokens see each other both ways, a file per family."""
