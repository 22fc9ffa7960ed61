"""What the sampling kernels must do, compared with the sampler that defines it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.params.row_sampling import RowSampling
from quire.sampling.keys import noise_key
from quire.sampling.sampler import Sampler
from quire.sampling_params import SamplingParams
from quire.step import RowStart, no_ints
from quire.steps.row_schema import EMPTY, UNSOUND
from tests.backends.triton.checks import Place, generator


@dataclass(frozen=True, slots=True)
class Wish:
    """What one line asks for."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 7
    sample: int = 0


def drawn(
    place: Place, logits: Tensor, wishes: list[Wish], *, truncated: bool
) -> tuple[Tensor, Tensor]:
    """(tokens, failed) of the kernels; line i belongs to row lines - i, row 0 to nobody."""
    from quire.backends.triton.sample import SampleBuffers, SamplingColumns, sample

    lines, vocab = logits.shape
    columns = SamplingColumns.greedy(lines + 1, place.device)
    for i, wish in enumerate(wishes):
        row = lines - i
        columns.temperature[row] = wish.temperature
        columns.top_k[row] = wish.top_k
        columns.top_p[row] = wish.top_p
        columns.log_min_p[row] = float(np.log(wish.min_p)) if wish.min_p else -torch.inf
        key = noise_key(wish.seed)
        columns.noise_key[row] = key - (1 << 64) if key >= 1 << 63 else key
        columns.sample[row] = wish.sample
    out = SampleBuffers(lines, vocab, place.device)
    rows = torch.arange(lines, 0, -1, dtype=torch.int32, device=place.device)
    positions = torch.arange(lines, dtype=torch.int32, device=place.device) + 5
    sample(logits, rows, positions, columns, out, truncated=truncated)
    return out.tokens.cpu(), out.failed.cpu()


def expected(logits: Tensor, wishes: list[Wish]) -> tuple[Tensor, Tensor]:
    """(tokens, failed) of the sampler, on a CPU."""
    lines, vocab = logits.shape
    sampler = Sampler(
        vocab_size=vocab, max_rows=lines, device=torch.device("cpu"), logprobs_mode="raw_logprobs"
    )
    for row, wish in enumerate(wishes):
        params = SamplingParams(
            temperature=wish.temperature, top_k=wish.top_k, top_p=wish.top_p, min_p=wish.min_p
        )
        sampler.start(
            RowStart(
                row,
                RowSampling.of(params),
                noise_key(wish.seed),
                wish.sample,
                no_ints(),
                no_ints(),
                no_ints(),
                9,
            )
        )
    rows, at = np.arange(lines, dtype=np.int32), np.arange(lines, dtype=np.int32) + 5
    made = sampler.sample(logits.float().cpu(), rows, at, None)
    failed = torch.zeros(lines, dtype=torch.bool)
    failed[list(made.failed)] = True
    return made.tokens, failed


def check_sampling(place: Place, wishes: list[Wish], vocab: int, *, spread: float = 3.0) -> None:
    """The kernels draw the sampler's tokens; logits that are bad make their line fail."""
    logits = place.random(len(wishes), vocab, seed=vocab) * spread
    logits[0, vocab // 2] = torch.nan
    logits[1, vocab - 1] = torch.inf
    logits[2] = -torch.inf
    logits[3, 1:] = -torch.inf
    tokens, failed = drawn(place, logits, wishes, truncated=any(_is_cut(w) for w in wishes))
    want_tokens, want_failed = expected(logits, wishes)
    assert (failed > 0).tolist() == want_failed.tolist()
    assert failed[:3].tolist() == [UNSOUND, UNSOUND, EMPTY]
    assert tokens.tolist() == want_tokens.tolist()


def check_kept(place: Place, wishes: list[Wish], vocab: int, *, spread: float = 3.0) -> None:
    """The kept sets are the sampler's, token by token."""
    from quire.backends.triton.sample import SampleBuffers, SamplingColumns
    from quire.backends.triton.sample import truncate as cut_off
    from quire.sampling.truncation import NO_TOP_K, Limits, truncate

    logits = place.random(len(wishes), vocab, seed=vocab + 1) * spread
    lines, columns = len(wishes), SamplingColumns.greedy(len(wishes), place.device)
    for row, wish in enumerate(wishes):
        columns.temperature[row], columns.top_k[row] = wish.temperature, wish.top_k
        columns.top_p[row] = wish.top_p
        columns.log_min_p[row] = float(np.log(wish.min_p)) if wish.min_p else -torch.inf
    out = SampleBuffers(lines, vocab, place.device)
    rows = torch.arange(lines, dtype=torch.int32, device=place.device)
    cut_off(logits, rows, columns, out)
    wide, token = logits.float().cpu(), torch.arange(vocab)
    least, last = out.least.cpu()[:, None], out.last.cpu()[:, None]
    kept = (wide > least) | ((wide == least) & (token[None] <= last))
    scores = wide / columns.temperature.cpu()[:, None]
    top_k = columns.top_k.cpu().long()
    limits = Limits(
        torch.where(top_k > 0, top_k, NO_TOP_K), columns.log_min_p.cpu(), columns.top_p.cpu()
    )
    want = truncate(scores, scores.max(1).values, limits).masked(scores) > -torch.inf
    assert kept.sum(1).tolist() == want.sum(1).tolist()
    assert bool((kept == want).all())


def check_noise(place: Place, vocab: int, draws: int) -> None:
    """Flat logits: the token is decided by the noise alone, down to its last bit."""
    logits = torch.zeros(draws, vocab, dtype=place.dtype, device=place.device)
    wishes = [Wish(seed=int(s)) for s in torch.randint(1 << 60, (draws,), generator=generator(1))]
    tokens, failed = drawn(place, logits, wishes, truncated=False)
    assert not failed.any()
    assert tokens.tolist() == expected(logits, wishes)[0].tolist()


def _is_cut(wish: Wish) -> bool:
    return wish.top_k > 0 or wish.top_p < 1 or wish.min_p > 0
