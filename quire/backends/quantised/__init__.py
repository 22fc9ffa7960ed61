"""Weights that stay rounded: codes with scales by group (grouped.py), in the order of tensor cores
(fragments.py), or fp8 (fp8_matrix.py)."""

# Groups of columns that share a scale, as the kernels of cuda_c take them: these, multiples of the
# last, and all of a line.
SMALL_GROUPS = (32, 64, 128)
WIDE_GROUP = 256
