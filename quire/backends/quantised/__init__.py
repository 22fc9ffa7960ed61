"""Weights that stay quantised: codes with scales by group (grouped.py), in the order of tensor
cores (fragments.py), or fp8 (fp8_matrix.py)."""

# Sizes of groups of columns with one scale that the kernels of cuda_c support: these, multiples of
# the last, and whole lines.
SMALL_GROUPS = (32, 64, 128)
WIDE_GROUP = 256
