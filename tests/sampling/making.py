"""Rows to sample for, and the plain meaning of sampling: slow, one line at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.params.row_sampling import RowSampling
from quire.sampling.keys import noise_key
from quire.sampling.sampled import Sampled
from quire.sampling.sampler import Sampler
from quire.sampling.seeds import NoiseKeys, noise
from quire.sampling.truncation import NO_TOP_K, Limits
from quire.sampling_params import SamplingParams
from quire.step import DrawnScores, Masks, RowStart

CPU = torch.device("cpu")
Floats = npt.NDArray[np.float32]


def make_params(*, bad_words: Sequence[Sequence[int]] = (), **fields: Any) -> SamplingParams:
    params = SamplingParams(**fields)
    if bad_words:
        params._bad_words_token_ids = [list(word) for word in bad_words]
    return params


def make_start(
    row: int = 0,
    params: SamplingParams | None = None,
    *,
    seed: int = 0,
    sample: int = 0,
    prompt: Sequence[int] = (1,),
    output: Sequence[int] = (),
    stop_ids: tuple[int, ...] = (),
) -> RowStart:
    return RowStart(
        row=row,
        sampling=RowSampling.of(params or SamplingParams()),
        noise_key=noise_key(seed),
        sample=sample,
        prompt_ids=np.asarray(prompt, np.int32),
        output_ids=np.asarray(output, np.int32),
        stop_ids=np.asarray(stop_ids, np.int32),
        max_tokens=1000,
    )


class Entry(NamedTuple):
    """The logprobs of one line."""

    token_id: int
    logprob: float
    rank: int
    top_ids: Any
    top_logprobs: Any


def entries(blocks: Sequence[DrawnScores]) -> dict[int, Entry]:
    """The logprobs of lines that drew one token each, by line."""
    found = {}
    for block in blocks:
        columns = (array.tolist() for array in block.scores.arrays()[:3])
        tops = block.scores.top_ids, block.scores.top_logprobs
        for line, *entry in zip(block.lines.tolist(), *columns, *tops, strict=True):
            found[line] = Entry(*entry)
    return found


def make_sampler(vocab: int, *starts: RowStart, mode: str = "raw_logprobs") -> Sampler:
    sampler = Sampler(vocab_size=vocab, max_rows=64, device=CPU, logprobs_mode=mode)
    for start in starts:
        sampler.start(start)
    return sampler


def sample_one(
    sampler: Sampler, logits: Tensor, row: int = 0, position: int = 1, masks: Masks | None = None
) -> Sampled:
    lines = np.asarray([row], np.int32)
    return sampler.sample(logits.reshape(1, -1), lines, np.asarray([position], np.int32), masks)


def limits_of(all_params: Sequence[SamplingParams], vocab: int) -> Limits:
    return Limits(
        torch.tensor([p.top_k if 0 < p.top_k < vocab else NO_TOP_K for p in all_params]),
        torch.tensor([math.log(p.min_p) if p.min_p else -math.inf for p in all_params]),
        torch.tensor([p.top_p for p in all_params], dtype=torch.float64),
    )


def keys_for(seeds: Sequence[int], position: int = 0, sample: int = 0) -> NoiseKeys:
    keys = [noise_key(seed) for seed in seeds]
    return NoiseKeys(
        torch.tensor([key & 0xFFFFFFFF for key in keys]),
        torch.tensor([key >> 32 for key in keys]),
        torch.full((len(keys),), sample),
        torch.full((len(keys),), position),
    )


def plain_draw(scores: Tensor, keys: NoiseKeys) -> Tensor:
    """The definition of seeds.py: noise for every token, then the largest."""
    every = torch.arange(scores.shape[1]).expand(len(scores), -1)
    return (scores + noise(every, keys)).argmax(1)


def plain_edit(
    logits: Floats,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
) -> Floats:
    """Everything that happens before greedy or temperature, in order, for one line."""
    edited = logits.astype(np.float32).copy()
    if params.allowed_token_ids is not None:
        for token in range(len(edited)):
            if token not in params.allowed_token_ids:
                edited[token] = -math.inf
    for word in params._bad_words_token_ids or []:
        if len(word) == 1 or list(output[-(len(word) - 1) :]) == word[:-1]:
            edited[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        edited[list(stop_ids)] = -math.inf
    for token, bias in (params.logit_bias or {}).items():
        edited[token] += np.float32(bias)
    repetition = np.float32(params.repetition_penalty)
    for token in {*prompt, *output}:
        edited[token] = (
            edited[token] / repetition if edited[token] > 0 else edited[token] * repetition
        )
    for token in set(output):
        edited[token] -= np.float32(params.frequency_penalty) * np.float32(output.count(token))
    for token in set(output):
        edited[token] -= np.float32(params.presence_penalty)
    return edited


def plain_kept(scores: Sequence[float], params: SamplingParams) -> set[int]:
    """Which tokens of one line min_p, top_k and top_p leave, over exact probabilities."""
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    weight = [math.exp(score - scores[order[0]]) for score in scores]
    left = [token for token in order if weight[token] >= params.min_p and weight[token] > 0]
    if 0 < params.top_k < len(left):
        kth = scores[left[params.top_k - 1]]
        left = [token for token in left if scores[token] >= kth]
    whole, mass, kept = sum(weight[token] for token in left), 0.0, set()
    for token in left:
        if mass >= params.top_p * whole and params.top_p < 1:
            break
        kept.add(token)
        mass += weight[token]
    return kept
