"""The sampler of an engine, with the logits processors that its options name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from quire.config import EngineConfig, VllmConfig
from quire.request import Ints
from quire.sampling.batch_interface import LogitsProcessor, make_processor
from quire.sampling.batch_processors import BatchProcessors
from quire.sampling.holding import HoldingSampler, Patience
from quire.sampling.sampled import DrawLines, Sampled
from quire.sampling.sampler import Sampler
from quire.step import Masks, RowStart
from quire.steps.handles import Handles


class Samples(Protocol):
    """What runners ask of a sampler."""

    def start(self, start: RowStart) -> None: ...

    def end(self, rows: Ints) -> None: ...

    def sample(
        self, logits: Tensor, rows: Ints, positions: Ints, masks: Masks | None
    ) -> Sampled: ...

    def sample_held(self, rows: Ints, masks: Masks | None) -> Sampled: ...


class LateSamples(Samples, Protocol):
    """What is asked of one that draws beside the device."""

    def draw_by(self, kernels: DrawLines) -> None: ...

    def sample(
        self,
        logits: Tensor,
        rows: Ints,
        positions: Ints,
        masks: Masks | None,
        *,
        patience: Patience | None = None,
    ) -> Sampled: ...

    def position_held(self, row: int) -> int:
        """Where the token will stand that the row draws from its held logits."""


MakeSampler = Callable[[EngineConfig, int, torch.device, Handles], LateSamples]


def sampler_for(
    config: EngineConfig, vocab_size: int, device: torch.device, handles: Handles
) -> HoldingSampler:
    """The sampler of an engine whose requests are in this process."""
    sampler = plain_sampler(config, vocab_size, device, handles)
    return HoldingSampler(sampler, max_rows=config.max_num_seqs, device=device, handles=handles)


def plain_sampler(
    config: EngineConfig, vocab_size: int, device: torch.device, handles: Handles
) -> Sampler:
    """The same without the processors of single requests."""
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
