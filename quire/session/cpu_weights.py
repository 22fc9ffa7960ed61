"""The form in which a model's weights are held on a CPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from quire.backends.cpu.native.kernels import fits
from quire.backends.cpu.native.library import library
from quire.base.notes import note
from quire.config import EngineConfig
from quire.models.decoder import head_shape
from quire.models.weight_parts import Weights
from quire.options import DeviceFacts, Options
from quire.options.decide import DEFAULT_BLOCK_SIZE
from quire.ranks.shares import ALONE, RankShare
from quire.spec import ModelSpec
from quire.weights.load import dummy_int8_weights, dummy_weights, load_int8_weights, load_weights
from quire.weights.source import ModelFiles


def with_kernels(facts: DeviceFacts, spec: ModelSpec, options: Options) -> DeviceFacts:
    """The facts, with `steady_kernels` set if the kernels for this model's heads are steady."""
    shape = head_shape(spec, options.block_size or DEFAULT_BLOCK_SIZE, torch.float32)
    return replace(facts, steady_kernels=library() is not None and fits(shape))


def load_cpu_weights(
    files: ModelFiles,
    spec: ModelSpec,
    config: EngineConfig,
    *,
    at_hand: Weights | None = None,
    share: RankShare = ALONE,
) -> Weights:
    """The weights in the form that the config asks for; a rank gets its share. `at_hand` are 8-bit
    weights that were loaded before."""
    dummy = config.load_format == "dummy"
    if config.quantization == "int8":
        from quire.executor.cpu.int8_probe import int8_arithmetic, int8_probe

        note(int8_probe().text)
        if at_hand is not None:
            return at_hand
        arithmetic = int8_arithmetic()
        if dummy:
            return dummy_int8_weights(spec, arithmetic, seed=config.seed, share=share)
        return load_int8_weights(files, spec, arithmetic, share)
    dtype: torch.dtype = getattr(torch, config.dtype)
    if dummy:
        return dummy_weights(spec, dtype=dtype, device="cpu", seed=config.seed, share=share)
    return load_weights(files, spec, dtype=dtype, device="cpu", share=share)
