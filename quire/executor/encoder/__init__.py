"""Runs encoders: each pass computes whole texts, and nothing is kept after it."""
