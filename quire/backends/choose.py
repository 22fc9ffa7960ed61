"""Chooses the set of kernels for a model, by device and batch_invariant."""

from __future__ import annotations

from quire.backends.ops import HeadShape, Kernels
from quire.errors import NotSupported


def kernels_for(device: str, shape: HeadShape, *, batch_invariant: bool) -> Kernels:
    """The kernels of a device. Batch-invariant ones give each row the same bits in any batch."""
    if device == "cuda":
        if batch_invariant:
            from quire.backends.triton.invariant import SteadyKernels

            return SteadyKernels(shape)
        from quire.backends.triton.kernels import TritonKernels

        return TritonKernels(shape)
    if device != "cpu":
        raise NotSupported(f"device {device!r}: kernels are built for 'cpu' and 'cuda'.")
    from quire.backends.cpu.native.kernels import native_kernels

    native = native_kernels(shape, batch_invariant=batch_invariant)
    return native or torch_kernels(shape, batch_invariant=batch_invariant)


def torch_kernels(shape: HeadShape, *, batch_invariant: bool) -> Kernels:
    """The kernels in plain torch, which need no compiler."""
    if batch_invariant:
        from quire.backends.cpu.invariant import InvariantKernels

        return InvariantKernels(shape)
    from quire.backends.cpu.fast import CpuKernels

    return CpuKernels(shape)
