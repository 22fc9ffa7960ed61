"""Small tensors for calls of kernels: a model's dtypes and shapes, one block, a few rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.backends.ops import HeadNorms, HeadShape
from quire.config import EngineConfig
from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.memory import make_cache
from quire.layer_plan import NormPlan
from quire.layers.attention import Kind
from quire.models.decoder import head_shape
from quire.spec import ModelSpec

ROWS = 16


class CallRoom:
    """Makes tensors with the dtypes and shapes of the model's real calls."""

    def __init__(self, config: EngineConfig, spec: ModelSpec, device: torch.device) -> None:
        self.config, self.spec, self.device = config, spec, device
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        fp8_kv = config.kv_cache_dtype == "fp8"
        self.shape: HeadShape = head_shape(spec, config.block_size, self.dtype, fp8_kv=fp8_kv)
        self.windows = frozenset(spec.windows)

    @property
    def capability(self) -> tuple[int, int]:
        """Of the GPU; that of none where the calls are made elsewhere."""
        on_gpu = self.device.type == "cuda"
        return torch.cuda.get_device_capability(self.device) if on_gpu else (0, 0)

    def kind(self, window: int | None) -> Kind:
        return Kind(0, window, self.shape)

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(size, dtype=dtype or self.dtype, device=self.device)

    def wide(self, *size: int) -> Tensor:
        return self.empty(*size, dtype=torch.float32)

    def cache(self) -> tuple[Tensor, Tensor]:
        kept = self.caches()[0]
        return kept[0], kept[-1]

    def sinks(self) -> Tensor | None:
        if not self.shape.sinks:
            return None
        return self.empty(self.shape.num_heads, dtype=torch.float32)

    def caches(self) -> Tensor:
        """One block of one layer."""
        one = replace(self.spec, layers=self.spec.layers[:1])
        return make_cache(one, 1, self.shape.block_size, self.shape.kv_dtype, self.device)

    def columns(self, num_states: int = 0) -> DeviceColumns:
        vocab_size, device = self.spec.vocab_size, self.device
        return DeviceColumns(ROWS, 4, vocab_size=vocab_size, device=device, num_states=num_states)

    def head_norms(self) -> HeadNorms | None:
        """Norms of heads, if the kernel that rotates heads also norms them."""
        plan = self.spec.layers[0].attention.head_norm
        if plan is None:
            return None
        weight = self.norm_weight(plan, self.spec.head_dim)
        return HeadNorms(weight, weight, plan.eps)

    def norm_weight(self, plan: NormPlan, width: int) -> Tensor:
        return self.empty(width, dtype=torch.float32 if plan.is_wide else None)
