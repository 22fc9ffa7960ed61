"""Facts about the device and the model's weights, found out before anything is decided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """`fast_dtypes` are those of "bfloat16" and "float16" that compute faster than float32 here,
    the preferred one first."""

    device: str  # "cpu" or "cuda"
    memory_total: int  # bytes
    memory_free: int  # bytes
    num_cores: int
    fast_dtypes: tuple[str, ...] = ()
    # Whether results in float32 and in bytes are the same bits in any batch, at no cost.
    steady_kernels: bool = False
    # Whether products with weights in fp8 and in 4 bits were measured to be faster here than in 16
    # bits for few rows, and no slower for many.
    fast_quantised: bool = False


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """Facts about a checkpoint's weights; "" where there is nothing to say."""

    stored: str = ""  # how its weights are quantised: "gguf", "awq", "fp8" ...
    kept_as: str = ""  # the form in which all of its products can be computed: "fp8" or "4 bits"
    int8_fits: str = ""  # why 8-bit arithmetic suits it on this device

    @property
    def are_rounded(self) -> bool:
        """Whether they are quantised, in a format that could hold plain weights as well."""
        return self.stored not in ("", "gguf")
