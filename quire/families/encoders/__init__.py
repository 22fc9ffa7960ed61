"""Encoders: models whose tokens see the whole text. One file per family."""
