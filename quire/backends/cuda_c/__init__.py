"""Kernels in CUDA C++, for what Triton cannot lay out: compiled by NVRTC, which torch's wheels
bring along, and launched by the driver. The sources are the .cu files here; they include nothing.
"""
