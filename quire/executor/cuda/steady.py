"""Refuses batch_invariant=True where a GPU cannot keep it, when an engine is made."""

from __future__ import annotations

from quire.config import EngineConfig
from quire.errors import NotSupported
from quire.spec import ModelSpec


def check_steady(config: EngineConfig, spec: ModelSpec) -> None:
    """Check the model's attention and its KV cache."""
    if not config.batch_invariant:
        return
    if spec.layers[0].attention.latent is not None:
        raise NotSupported(
            "batch_invariant=True is not built on a GPU for models that keep latents in place of "
            "keys and values. Leave it out, or set device='cpu'."
        )
    if config.kv_cache_dtype == "fp8":
        raise NotSupported(
            "batch_invariant=True with kv_cache_dtype='fp8': decode rows and prompts read such a "
            "cache in different ways. Leave one of them out."
        )
