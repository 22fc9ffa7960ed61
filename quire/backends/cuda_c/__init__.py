"""Kernels in CUDA C++, where Triton's layouts are too slow: compiled by NVRTC, which is in torch's
wheels, and launched by the driver. The sources are the .cu files here; they include nothing but
those beside them.
"""
