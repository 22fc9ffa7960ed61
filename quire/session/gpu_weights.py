"""The weights of a model on a GPU, as its config wants them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quire.backends.ops import PackedMatrix
from quire.config import EngineConfig
from quire.errors import NotSupported
from quire.models.parts import Weights
from quire.options.checks import CHECKPOINTS
from quire.ranks.shares import ALONE, RankShare
from quire.spec import ModelSpec
from quire.weights.load import dummy_weights, load_weights
from quire.weights.load_kept import dummy_kept_weights, load_kept_weights
from quire.weights.quantised.unpack import QuantisedMatrix
from quire.weights.source import ModelFiles

FP8_CAPABILITY = (8, 9)


def load_gpu_weights(
    files: ModelFiles, spec: ModelSpec, config: EngineConfig, share: RankShare = ALONE
) -> Weights:
    """All of them, or the share of one of several ranks."""
    device, is_dummy = torch.device(config.device), config.load_format == "dummy"
    dtype: torch.dtype = getattr(torch, config.dtype)
    if config.quantization in CHECKPOINTS and not is_dummy:
        fp8 = torch.cuda.get_device_capability() >= FP8_CAPABILITY
        kept = load_kept_weights(files, spec, dtype=dtype, device=device, fp8=fp8, share=share)
        return _for_products(kept, device, dtype)
    said = files.quantisation
    if config.quantization in CHECKPOINTS and said is not None:
        if share.size > 1:
            raise NotSupported(
                f"load_format='dummy' with quantization={config.quantization!r} for {share.size} "
                "ranks is not built. Leave quantization out."
            )
        made = dummy_kept_weights(spec, said, dtype=dtype, device=device, seed=config.seed)
        return _for_products(made, device, dtype)
    if is_dummy:
        return dummy_weights(spec, dtype=dtype, device=device, seed=config.seed, share=share)
    return load_weights(files, spec, dtype=dtype, device=device, share=share)


def _for_products(
    weights: Mapping[str, Tensor | QuantisedMatrix], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor | PackedMatrix]:
    from quire.backends.triton.grouped import Scratch
    from quire.backends.triton.quantised import DeviceMatrix

    scratch = Scratch(device, dtype)
    return {
        name: weight if isinstance(weight, Tensor) else DeviceMatrix(weight, scratch)
        for name, weight in weights.items()
    }
