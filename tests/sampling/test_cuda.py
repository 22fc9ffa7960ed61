"""The same draws on a CUDA device as on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.sampling.sampler import Sampler
from quire.step import Masks
from tests.sampling.making import entries
from tests.sampling.test_independence import WIDTHS, make_rows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("vocab", [33, 1027, 40_000])
def test_a_cuda_device_draws_the_tokens_a_cpu_draws(vocab: int, mode: str) -> None:
    starts = make_rows(60)
    width = torch.tensor([WIDTHS[row % 4] for row in range(60)])[:, None]
    generator = torch.Generator().manual_seed(vocab)
    rows = np.arange(60, dtype=np.int32)
    positions = np.asarray([len(s.prompt_ids) + len(s.output_ids) for s in starts], np.int32)
    bits = np.full((2, -(-vocab // 32)), 0xF0F0FFFF, np.uint32)
    masks = Masks(np.asarray([0, 1], np.int32), bits)
    samplers = []
    for device in ("cpu", "cuda"):
        sampler = Sampler(
            vocab_size=vocab, max_rows=64, device=torch.device(device), logprobs_mode=mode
        )
        for start in starts:
            sampler.start(start)
        samplers.append(sampler)
    for step in range(4):
        logits = torch.randn(60, vocab, generator=generator) * width
        logits[7, 3] = torch.nan
        on_cpu = samplers[0].sample(logits, rows, positions + step, masks)
        on_cuda = samplers[1].sample(logits.cuda(), rows, positions + step, masks)
        assert on_cuda.tokens.is_cuda
        assert on_cuda.tokens.tolist() == on_cpu.tokens.tolist()
        assert on_cuda.failed == on_cpu.failed == (7,)
        theirs = entries(on_cuda.logprobs)
        assert theirs.keys() == entries(on_cpu.logprobs).keys()
        for line, entry in entries(on_cpu.logprobs).items():
            other = theirs[line]
            assert other.logprob == pytest.approx(entry.logprob, abs=1e-5)
            assert np.allclose(other.top_logprobs, entry.top_logprobs, atol=1e-5)
