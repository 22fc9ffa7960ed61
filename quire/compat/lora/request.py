"""LoRARequest, under the name scripts know."""

from __future__ import annotations

from quire.params.lora import LoRARequest

__all__ = ["LoRARequest"]
