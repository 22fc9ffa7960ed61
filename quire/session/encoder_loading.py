"""Loads an encoder from its files into an executor: config, decisions, weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.config import EngineConfig
from quire.errors import NotSupported
from quire.executor.cpu.spinning import short_spins
from quire.families.encoders.family import EncoderFamily
from quire.families.encoders.registry import encoder_spec
from quire.families.fields import Fields
from quire.options import DeviceFacts, Options, resolve
from quire.pooling.spec import PoolerSpec
from quire.session.adapters import check_no_adapters
from quire.session.ranks import refuse_ranks
from quire.spec import EncoderSpec
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from quire.executor.executor import ModelExecutor
    from quire.models.encoder import Encoder

NO_TEXT = "an encoder writes no text: use embed(), classify() or score(), as its head allows."
# Tokens of one pass by default: enough for every product to run at full speed.
CPU_TOKENS, GPU_TOKENS = 1024, 65_536


def load_encoder(
    files: ModelFiles,
    config: Mapping[str, Any],
    family: EncoderFamily,
    pooler: PoolerSpec,
    options: Options,
) -> tuple[EncoderSpec, EngineConfig, ModelExecutor]:
    """The spec of an encoder, its config, and an executor that is not started yet."""
    check_no_adapters(options, "an encoder")
    refuse_ranks(options, "encoders")
    spec = encoder_spec(family, Fields(config, "config.json"))
    if pooler.max_len is not None:
        spec = replace(spec, max_model_len=min(spec.max_model_len, pooler.max_len))
    with short_spins():
        from quire.executor.encoder.executor import EncoderExecutor
        from quire.executor.probe import device_facts  # torch, which takes seconds

    facts = device_facts(options.device)
    decided = _decide(options, spec, facts)
    build = partial(_build, files, spec, family, decided)
    return spec, decided, EncoderExecutor(decided, spec, build)


def _decide(options: Options, spec: EncoderSpec, facts: DeviceFacts) -> EngineConfig:
    if options.quantization == "fp8":
        raise NotSupported("quantization='fp8' of an encoder is not built: leave it out.")
    on_cpu = facts.device == "cpu"
    if options.batch_invariant is None:
        # So that a stopped job goes on with the same vectors, in every dtype.
        options = replace(options, batch_invariant=on_cpu)
    config = resolve(options, spec, facts)
    tokens = options.max_num_batched_tokens or (CPU_TOKENS if on_cpu else GPU_TOKENS)
    return replace(
        config,
        max_num_batched_tokens=max(tokens, config.max_model_len),
        enable_prefix_caching=False,
        prefix_groups=False,
        speculation=None,
        depth=1,
    )


def _build(
    files: ModelFiles, spec: EncoderSpec, family: EncoderFamily, config: EngineConfig
) -> Encoder:
    import torch

    from quire.models.encoder import Encoder
    from quire.session.encoder_ops import encoder_ops
    from quire.weights.encoder import dummy_encoder_weights, load_encoder_weights

    dtype: torch.dtype = getattr(torch, config.dtype)
    if config.load_format == "dummy":
        weights = dummy_encoder_weights(
            spec, family, dtype=dtype, device=config.device, seed=config.seed
        )
    else:
        weights = load_encoder_weights(files, spec, family, dtype=dtype, device=config.device)
    return Encoder(spec, weights, encoder_ops(spec, config), config.max_model_len)
