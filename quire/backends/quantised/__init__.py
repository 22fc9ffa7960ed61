"""Weights that stay rounded: codes with scales by group (grouped.py), or fp8 (fp8_matrix.py)."""
