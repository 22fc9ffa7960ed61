"""The weights of a model on a GPU, as its config wants them."""

from __future__ import annotations

import torch

from quire.config import EngineConfig
from quire.models.parts import Weights
from quire.ranks.shares import ALONE, RankShare
from quire.spec import ModelSpec
from quire.weights.load import dummy_weights, load_weights
from quire.weights.source import ModelFiles


def load_gpu_weights(
    files: ModelFiles, spec: ModelSpec, config: EngineConfig, share: RankShare = ALONE
) -> Weights:
    """All of them, or the share of one of several ranks."""
    device, dummy = torch.device(config.device), config.load_format == "dummy"
    dtype: torch.dtype = getattr(torch, config.dtype)
    if dummy:
        return dummy_weights(spec, dtype=dtype, device=device, seed=config.seed, share=share)
    return load_weights(files, spec, dtype=dtype, device=device, share=share)
