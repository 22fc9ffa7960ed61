"""What was found out before anything is decided: about the device, and about a model's weights."""

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
    # Whether what is computed in float32 or in bytes has bits that no batch changes, at no cost.
    steady_kernels: bool = False
    # Whether products with weights in fp8 and in 4 bits were found faster here than with plain ones
    # of 16 bits, of few rows, and no slower of many.
    fast_quantised: bool = False


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """Of a checkpoint, each "" where there is nothing to say."""

    stored: str = ""  # what its weights were rounded to before: "gguf", "awq", "fp8" ...
    kept_as: str = ""  # what products with all of these can be computed in: "fp8" or "4 bits"
    int8_fits: str = ""  # why 8-bit arithmetic is right for it on this device

    @property
    def are_rounded(self) -> bool:
        """Whether they are quantised, in files that could hold plain ones as well."""
        return self.stored not in ("", "gguf")
