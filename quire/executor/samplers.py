"""Makes the sampler of an engine, with the logits processors that its options name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from quire.config import EngineConfig, VllmConfig
from quire.sampling.batch_interface import LogitsProcessor, make_processor
from quire.sampling.batch_processors import BatchProcessors
from quire.sampling.holding import Holding, HoldingSampler
from quire.sampling.sampler import Sampler
from quire.steps.handles import Handles

MakeSampler = Callable[[EngineConfig, int, torch.device, Handles], Holding]


def sampler_for(
    config: EngineConfig, vocab_size: int, device: torch.device, handles: Handles
) -> HoldingSampler:
    """The sampler of an engine whose requests are in this process."""
    sampler = plain_sampler(config, vocab_size, device, handles)
    return HoldingSampler(sampler, max_rows=config.max_num_seqs, device=device, handles=handles)


def plain_sampler(
    config: EngineConfig, vocab_size: int, device: torch.device, handles: Handles
) -> Sampler:
    """As sampler_for, without the logits processors of single requests."""
    about = VllmConfig.of(config, vocab_size)
    makers: list[Callable[[], LogitsProcessor]] = [
        partial(make_processor, one, about, device) for one in config.batch_processors
    ]
    return Sampler(
        vocab_size=vocab_size,
        max_rows=config.max_num_seqs,
        device=device,
        logprobs_mode=config.logprobs_mode,
        batch=BatchProcessors(makers, handles),
        handles=handles,
    )
